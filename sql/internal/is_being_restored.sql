-- queue_internal.is_being_restored()
--
--   pg_restore loads rows in any order. Meanwhile everything is postponed that could take an id, a key or the name of a
--   partition that the dump has still to bring.

CREATE FUNCTION queue_internal.is_being_restored() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.application_name = 'pg_restore'
          -- Any session can use that application_name, so it only counts for a role that may write to the table.
          AND has_table_privilege(a.usesysid, 'queue.history', 'INSERT'));
END
$$;
COMMENT ON FUNCTION queue_internal.is_being_restored IS 'Returns whether pg_restore is connected to the database.';
