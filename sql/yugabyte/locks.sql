-- In the place of what YugabyteDB lacks, or has had only for a short time.

-- Rows to lock, in the place of advisory locks. Two groups may share one: then the second is looked at by the
-- next claim. A row is only ever locked and never written.
CREATE TABLE queue_internal.group_locks (number integer NOT NULL PRIMARY KEY);
COMMENT ON TABLE queue_internal.group_locks IS 'Whoever opens the gates of a group has a row of this locked.';
INSERT INTO queue_internal.group_locks SELECT generate_series(0, 1023);

CREATE OR REPLACE FUNCTION queue_internal.lock_group(queue text, group_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM queue_internal.group_locks AS l
    WHERE l.number = hashtext(queue || '/' || group_key) & 1023 FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;

-- Without notifications, which are off unless the cluster was told to have them.
CREATE OR REPLACE FUNCTION queue_internal.end_upkeep() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue_internal.upkeep SET last_run_at = clock_timestamp();
END
$$;
COMMENT ON FUNCTION queue_internal.end_upkeep() IS 'Notes when queue.maintain() ended.';

-- Without UNLISTEN, which is not there either.
CREATE OR REPLACE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role CONSTANT text := current_setting('role');
BEGIN
    RETURN CASE role WHEN 'none' THEN session_user ELSE role END;
END
$$;
