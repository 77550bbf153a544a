-- YugabyteDB distributes the rows of a table over tablets by the hash of the first column of its key. This edition
-- spreads the tasks of a queue over buckets, so that no single tablet gets all pushes and claims. A claim visits the
-- buckets one after the other (claim_from.sql). The script also runs on PostgreSQL, which has no tablets.

-- The number can be raised at any time. To lower it, replace the function, and then run this twice, because a session
-- may still push with the old number: UPDATE queue.tasks SET bucket = bucket % queue_internal.buckets().
CREATE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 8;
END
$$;
COMMENT ON FUNCTION queue_internal.buckets IS
    'Returns the number of buckets over which the tasks of a queue are spread.';

ALTER TABLE queue.tasks ADD COLUMN bucket smallint;
ALTER TABLE queue.tasks ALTER COLUMN bucket
    SET DEFAULT pg_catalog.floor(pg_catalog.random() OPERATOR(pg_catalog.*) queue_internal.buckets());
ALTER TABLE queue.tasks ALTER COLUMN bucket SET NOT NULL;
COMMENT ON COLUMN queue.tasks.bucket IS 'The bucket of the task, chosen at random.';

-- Why it has no search_path: sql/buckets.sql.
CREATE FUNCTION queue_internal.task_in_bucket(task queue.tasks, bucket integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN task.bucket = task_in_bucket.bucket;
COMMENT ON FUNCTION queue_internal.task_in_bucket IS 'Returns whether a task is in a bucket.';

-- Without a cache, each value of a sequence costs a write to a majority of the nodes. With one, the order of ids is not
-- the order of pushes in different sessions.
ALTER SEQUENCE queue.tasks_id_seq CACHE 100;
ALTER SEQUENCE queue_internal.events_id_seq CACHE 100;
-- Not used, because this edition counts no index entries (internal/entries_passed.sql).
ALTER SEQUENCE queue_internal.settled_id_seq CACHE 100;
ALTER SEQUENCE queue_internal.settling_due_seq CACHE 100;

-- Keys are distributed by the hash of the key, not of the queue.
ALTER TABLE queue_internal.keys DROP CONSTRAINT keys_pkey;
ALTER TABLE queue_internal.keys ADD CONSTRAINT keys_pkey PRIMARY KEY (key, queue);
-- The same for the starts of groups.
ALTER TABLE queue_internal.group_starts DROP CONSTRAINT group_starts_pkey;
ALTER TABLE queue_internal.group_starts
    ADD CONSTRAINT group_starts_pkey PRIMARY KEY (group_key, queue, started_at, task_id);
