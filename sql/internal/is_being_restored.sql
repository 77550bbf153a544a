-- queue_internal.is_being_restored()
--
--   The rows of a dump come for a while, in any order. Nothing that can wait is done meanwhile: it could take an id, a key
--   or the name of a partition that the dump is still to bring.

CREATE FUNCTION queue_internal.is_being_restored() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.application_name = 'pg_restore'
          -- Any session can take that name; only a role that may write to the table restores it.
          AND has_table_privilege(a.usesysid, 'queue.history', 'INSERT'));
END
$$;
COMMENT ON FUNCTION queue_internal.is_being_restored IS 'Whether pg_restore is connected to the database.';
