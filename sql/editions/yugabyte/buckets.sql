-- What a table is like on YugabyteDB, where rows live on tablets and the first column of a key says on which, by
-- its hash. PostgreSQL reads the same lines and keeps the same rows; it has no tablets.
--
-- The tasks of a queue are spread over buckets, so that no tablet has all pushes and claims. A claim goes
-- through the buckets one after the other (claim_from.sql).

-- How many. May be raised at any time. To lower it, lower it, then
-- UPDATE queue.tasks SET bucket = bucket % queue_internal.buckets(); a session that pushed meanwhile by the old
-- number is why to do it twice.
CREATE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 8;
END
$$;
COMMENT ON FUNCTION queue_internal.buckets IS 'Over how many buckets the tasks of a queue are spread.';

ALTER TABLE queue.tasks ADD COLUMN bucket smallint;
ALTER TABLE queue.tasks ALTER COLUMN bucket
    SET DEFAULT pg_catalog.floor(pg_catalog.random() OPERATOR(pg_catalog.*) queue_internal.buckets());
ALTER TABLE queue.tasks ALTER COLUMN bucket SET NOT NULL;
COMMENT ON COLUMN queue.tasks.bucket IS 'Where it is in the order of claims; by chance.';

-- sql/buckets.sql says why it has no search_path.
CREATE FUNCTION queue_internal.task_in_bucket(task queue.tasks, bucket integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN task.bucket = task_in_bucket.bucket;
COMMENT ON FUNCTION queue_internal.task_in_bucket IS 'Whether a task is in a bucket.';

-- Each number of a sequence that is not cached is a write of its own, to a majority of the nodes. So ids say
-- nothing of the order of pushes in different sessions.
ALTER SEQUENCE queue.tasks_id_seq CACHE 100;
ALTER SEQUENCE queue_internal.events_id_seq CACHE 100;

-- Keys are spread by themselves and not by their queue.
ALTER TABLE queue_internal.keys DROP CONSTRAINT keys_pkey;
ALTER TABLE queue_internal.keys ADD CONSTRAINT keys_pkey PRIMARY KEY (key, queue);
