-- Rows that the installation, or a trigger for each queue, makes. pg_dump saves them like all others. A dump with
-- --data-only brings them once more, and one with --schema-only leaves them out. How a dump is recognized:
-- how_inserted.sql. A whole dump brings the rows before the keys and the triggers of the tables.

-- Made again where they are missing: locks with the queue and with its first groups, the others by the next queue.maintain().
CREATE FUNCTION queue_internal.leave_out() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.leave_out IS 'Leaves out a row of a dump.';

CREATE FUNCTION queue_internal.restore_token_mark() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue_internal.token_mark AS m SET reached = greatest(m.reached, NEW.reached);
    RETURN CASE WHEN NOT FOUND THEN NEW END;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_token_mark IS 'Keeps the larger of the marks in the database and in a dump.';

DO $$
DECLARE
    restored record;
BEGIN
    FOR restored IN
        SELECT * FROM (VALUES
            ('locks', 'leave_out'), ('settling', 'leave_out'), ('maintenance', 'leave_out'),
            ('token_mark', 'restore_token_mark')) AS r (name, function)
    LOOP
        EXECUTE format(
            $sql$
            CREATE TRIGGER row_restored BEFORE INSERT ON queue_internal.%I
                FOR EACH ROW WHEN (
                    current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
                    AND has_table_privilege('queue.tasks', 'TRUNCATE'))
                EXECUTE FUNCTION queue_internal.%I();
            COMMENT ON TRIGGER row_restored ON queue_internal.%1$I IS 'Lets a dump be restored although there is a row.'
            $sql$, restored.name, restored.function);
    END LOOP;
END
$$;

-- Not before a dump has brought the keys, and so all rows.
CREATE FUNCTION queue_internal.add_missing_rows() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    IF to_regclass('queue_internal.settling_pkey') IS NULL OR to_regclass('queue_internal.maintenance_pkey') IS NULL
       OR EXISTS (SELECT FROM queue_internal.settling AS s) AND EXISTS (SELECT FROM queue_internal.maintenance AS m)
          AND EXISTS (SELECT FROM queue_internal.token_mark AS m) THEN
        RETURN;
    END IF;
    INSERT INTO queue_internal.settling DEFAULT VALUES ON CONFLICT DO NOTHING;
    INSERT INTO queue_internal.maintenance DEFAULT VALUES ON CONFLICT DO NOTHING;
    -- The mark has no key.
    PERFORM FROM queue_internal.maintenance AS m FOR UPDATE;
    INSERT INTO queue_internal.token_mark (reached, timeline)
    SELECT 0, 0 WHERE NOT EXISTS (SELECT FROM queue_internal.token_mark AS m);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not add rows that are missing: %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_internal.add_missing_rows IS 'Adds the rows that a dump without data has left out.';
