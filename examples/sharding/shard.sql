-- Makes a server one of several shards: run in a database with queue_ext, once it is installed.
--
--     psql -d tasks -v shard=2 -f shard.sql
--
-- The number says which shard it is, counted from 0, and is never to change: every task's id begins with it.
-- A shard has ten million million ids of its own, enough for ten thousand pushes a second for 31 years. The
-- first shard may be a server that has tasks already. Running this again, with the same number, changes nothing.

\set ON_ERROR_STOP on
BEGIN;

-- Only ever forwards. pg_dump saves where a sequence stands, so a restored shard goes on in its own range.
SELECT setval('queue.tasks_id_seq', greatest(last_value, :shard * 10000000000000 + 1),
              is_called AND last_value > :shard * 10000000000000) AS last_id
FROM queue.tasks_id_seq;

CREATE SCHEMA IF NOT EXISTS queue_shard;
GRANT USAGE ON SCHEMA queue_shard TO PUBLIC;

-- The router can only SELECT. Here queue.wait() looks and does not wait.
CREATE OR REPLACE FUNCTION queue_shard.is_ready(queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ready boolean;
BEGIN
    CALL queue.wait(queue, '0', ready);
    RETURN ready;
END
$$;
COMMENT ON FUNCTION queue_shard.is_ready(text) IS 'Whether there is something to claim from the queue.';

COMMIT;
