-- An edition may divide the order of claims into buckets. PostgreSQL needs one only; the edition for YugabyteDB has
-- several. What walks the order of claims goes through them all, so that it is written once.

CREATE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.buckets IS 'The number of buckets in which the tasks of a queue are.';

-- Why SQL and no search_path: so the planner puts the expression in the place of the call, and nothing is left of it
-- in a plan. The expression was parsed when the function was created.
CREATE FUNCTION queue_internal.task_in_bucket(task queue.tasks, bucket integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN true;
COMMENT ON FUNCTION queue_internal.task_in_bucket IS 'Whether a task is in a bucket.';
