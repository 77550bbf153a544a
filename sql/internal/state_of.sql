-- queue_internal.state_of(id, kind)
--
--   Returns the state of a task wherever it is; null if it does not exist, or if the caller does not have this kind of
--   right on its queue. So no role can find out which ids other queues have.
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)

CREATE FUNCTION queue_internal.state_of(id bigint, kind text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    state text;
BEGIN
    SELECT t.state INTO state FROM queue.tasks AS t
    WHERE t.id = state_of.id AND queue_internal.has_right(state_of.kind, t.queue);
    IF NOT FOUND THEN
        SELECT 'failed' INTO state FROM queue.dead_letters AS d
        WHERE d.id = state_of.id AND queue_internal.has_right(state_of.kind, d.queue);
    END IF;
    IF state IS NULL THEN
        SELECT h.state INTO state FROM queue.history AS h
        WHERE h.id = state_of.id AND queue_internal.has_right(state_of.kind, h.queue);
    END IF;
    RETURN state;
END
$$;
COMMENT ON FUNCTION queue_internal.state_of IS
    'Returns the state of a task wherever it is, if the caller has this kind of right on its queue.';
