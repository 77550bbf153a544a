-- An edition may divide the order of claims into buckets. PostgreSQL needs only one; the edition for YugabyteDB has
-- several. All functions that scan the order of claims go through all buckets, so that they are written once.

CREATE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.buckets IS
    'Returns the number of buckets over which the tasks of a queue are spread.';

-- Why SQL and no search_path: so that the planner inlines the expression, and nothing of it is left in a plan. The
-- expression was parsed when the function was created.
CREATE FUNCTION queue_internal.task_in_bucket(task queue.tasks, bucket integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN true;
COMMENT ON FUNCTION queue_internal.task_in_bucket IS 'Returns whether a task is in a bucket.';
