-- The next event of a queue to process.
--
--   With many workers, most due events are locked by claims that have not committed yet. A claim that tried to lock each
--   of them would take longer for that than for its task: all sessions would meet at the locks of the same rows. So it
--   passes over a row with an xmax, which says that a transaction has locked or deleted it.
--   That transaction may also have rolled back, or have locked the row only to keep it (notify_batch). Then nobody has it
--   locked, but the xmax stays. So a claim tries to lock these after the others, until it has met a few that are locked,
--   from the first one on and from there on in random places. The worker and queue.maintain() try all.

CREATE FUNCTION queue_internal.next_event(
    queue text, last_due timestamptz, last bigint, moment timestamptz, all_locked boolean)
RETURNS queue_internal.events
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    event queue_internal.events;
BEGIN
    SELECT e.* INTO event FROM queue_internal.events AS e
    WHERE e.queue = next_event.queue AND (e.due_at, e.id) > (last_due, last) AND e.due_at <= moment
      AND (all_locked OR e.xmax = '0')
    ORDER BY e.due_at, e.id LIMIT 1 FOR UPDATE SKIP LOCKED;
    RETURN event;
END
$$;
COMMENT ON FUNCTION queue_internal.next_event IS
    'Locks and returns the next due event after another one; null if there is none.';

-- Returns where the next event is that some transaction has or had locked, or null; and the event if it is not locked now.
CREATE FUNCTION queue_internal.try_locked_event(
    queue text, last_due timestamptz, last bigint, moment timestamptz,
    OUT due_at timestamptz, OUT id bigint, OUT event queue_internal.events)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    SELECT e.due_at, e.id INTO due_at, id FROM queue_internal.events AS e
    WHERE e.queue = try_locked_event.queue AND (e.due_at, e.id) > (last_due, last) AND e.due_at <= moment
      AND e.xmax <> '0'
    ORDER BY e.due_at, e.id LIMIT 1;
    SELECT e.* INTO event FROM queue_internal.events AS e
    WHERE e.queue = try_locked_event.queue AND e.due_at = try_locked_event.due_at AND e.id = try_locked_event.id
    FOR UPDATE SKIP LOCKED;
END
$$;
COMMENT ON FUNCTION queue_internal.try_locked_event IS
    'Tries to lock the next due event after another one that a transaction has or had locked.';
