-- The next event of a queue to process. YugabyteDB has no xmax (../../../internal/next_event.sql): this tries to lock all.

CREATE FUNCTION queue_internal.next_event(
    queue text, last_due timestamptz, last bigint, moment timestamptz, all_locked boolean)
RETURNS queue_internal.events
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    event queue_internal.events;
BEGIN
    SELECT e.* INTO event FROM queue_internal.events AS e
    WHERE e.queue = next_event.queue AND (e.due_at, e.id) > (last_due, last) AND e.due_at <= moment
    ORDER BY e.due_at, e.id LIMIT 1 FOR UPDATE SKIP LOCKED;
    RETURN event;
END
$$;
COMMENT ON FUNCTION queue_internal.next_event IS
    'Locks and returns the next due event after another one; null if there is none.';

CREATE FUNCTION queue_internal.try_locked_event(
    queue text, last_due timestamptz, last bigint, moment timestamptz,
    OUT due_at timestamptz, OUT id bigint, OUT event queue_internal.events)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.try_locked_event IS 'Returns null: next_event has tried all.';
