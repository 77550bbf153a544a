-- How a claim finds out that it passed over much that is of no use (mark.sql).

-- Counted and not timed: a session that had to wait for a processor passed over nothing. The count grows within
-- a transaction; between two, what was counted may be handed over to the statistics.
CREATE FUNCTION queue_internal.entries_passed() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_order')), 0)
         + coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue_internal.events_pkey')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.entries_passed IS
    'How many entries of indexes this session has passed, in search of tasks and events.';

CREATE FUNCTION queue_internal.newest_event() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(pg_sequence_last_value(to_regclass('queue_internal.events_id_seq')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.newest_event IS 'The id of the last event that anybody left, in whatever queue.';
