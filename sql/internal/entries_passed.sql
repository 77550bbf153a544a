-- How a claim finds out that it has read many dead index entries (scan_start.sql).
--
-- Counted and not timed, because a session that had to wait for a processor has read nothing. The count grows within a
-- transaction; between two transactions it may be flushed to the statistics.

-- Why SQL and no search_path: as with task_in_bucket.
CREATE FUNCTION queue_internal.entries_passed() RETURNS bigint
LANGUAGE sql
RETURN coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_order')), 0)
     + coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue_internal.events_pkey')), 0);
COMMENT ON FUNCTION queue_internal.entries_passed IS
    'Returns how many index entries this session has read in search of tasks and events.';

CREATE FUNCTION queue_internal.group_entries_passed() RETURNS bigint
LANGUAGE sql
RETURN coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_group')), 0);
COMMENT ON FUNCTION queue_internal.group_entries_passed IS
    'Returns how many index entries this session has read in search of the tasks of groups.';

CREATE FUNCTION queue_internal.newest_event() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(pg_sequence_last_value(to_regclass('queue_internal.events_id_seq')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.newest_event IS 'Returns the id of the newest event of any queue.';
