-- Makes a database with queue_ext one of several shards. Run it after CREATE EXTENSION.
--
--     psql -d tasks -v shard=2 -f shard.sql
--
-- The number of the shard counts from 0 and must never change, because every task's id starts with it. Each shard has
-- ten trillion ids, enough for ten thousand pushes a second for 31 years. The first shard may have tasks already.
-- Running this again with the same number changes nothing.

\set ON_ERROR_STOP on
BEGIN;

-- Only forwards. pg_dump saves the value of a sequence, so a restored shard continues in its own range.
SELECT setval('queue.tasks_id_seq', greatest(last_value, :shard * 10000000000000 + 1),
              is_called AND last_value > :shard * 10000000000000) AS last_id
FROM queue.tasks_id_seq;

CREATE SCHEMA IF NOT EXISTS queue_shard;
GRANT USAGE ON SCHEMA queue_shard TO PUBLIC;

-- The router can only SELECT. With a timeout of 0, queue.wait() checks and does not wait.
CREATE OR REPLACE FUNCTION queue_shard.is_ready(queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ready boolean;
BEGIN
    CALL queue.wait(queue, '0', ready);
    RETURN ready;
END
$$;
COMMENT ON FUNCTION queue_shard.is_ready(text) IS 'Returns whether a task of the queue can be claimed.';

COMMIT;
