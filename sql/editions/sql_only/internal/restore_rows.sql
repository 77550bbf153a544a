-- Rows that the installation makes, and a trigger for each queue. pg_dump saves them like all others. So a dump with
-- --data-only brings rows that are there already, and one with --schema-only leaves them out. How a dump is recognized:
-- how_inserted.sql.

CREATE FUNCTION queue_internal.restore_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE TG_TABLE_NAME
        WHEN 'locks' THEN
            PERFORM FROM queue_internal.locks AS l WHERE l.queue = NEW.queue AND l.number = NEW.number;
        WHEN 'token_mark' THEN
            UPDATE queue_internal.token_mark AS m SET reached = greatest(m.reached, NEW.reached);
        WHEN 'settling' THEN
            PERFORM FROM queue_internal.settling AS s;
        WHEN 'maintenance' THEN
            PERFORM FROM queue_internal.maintenance AS m;
    END CASE;
    RETURN CASE WHEN NOT FOUND THEN NEW END;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_row IS
    'Leaves out a row of a dump that is there already. Keeps the larger mark of tokens.';

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['locks', 'token_mark', 'settling', 'maintenance'] LOOP
        EXECUTE format(
            $sql$
            CREATE TRIGGER restore_row BEFORE INSERT ON queue_internal.%I
                FOR EACH ROW WHEN (
                    current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
                    AND has_table_privilege('queue.tasks', 'TRUNCATE'))
                EXECUTE FUNCTION queue_internal.restore_row();
            COMMENT ON TRIGGER restore_row ON queue_internal.%1$I IS 'Leaves out a row of a dump that is there already.'
            $sql$, name);
    END LOOP;
END
$$;

-- Without a mark, tokens begin with 1.
CREATE FUNCTION queue_internal.add_missing_rows() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM queue_internal.settling AS s) THEN
        INSERT INTO queue_internal.settling DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
    IF NOT EXISTS (SELECT FROM queue_internal.maintenance AS m) THEN
        INSERT INTO queue_internal.maintenance DEFAULT VALUES ON CONFLICT DO NOTHING;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.add_missing_rows IS 'Adds the rows that a dump without data has left out.';
