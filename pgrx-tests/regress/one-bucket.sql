-- Gives the edition for YugabyteDB one bucket, for scripts that show ids and the order of claims.

CREATE OR REPLACE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 1;
END
$$;
ALTER SEQUENCE queue.tasks_id_seq CACHE 1;
ALTER SEQUENCE queue_internal.events_id_seq CACHE 1;
