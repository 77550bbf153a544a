-- queue.complete(id, token, result)
--
--   Finishes a task and keeps it, with its result, in the history.
--   API:      public; needs the worker's right on the queue
--   Promise:  at most one completion of a task is ever accepted. A stale token raises, so that
--             the caller's own changes in the same transaction are rolled back with it
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023 for the arguments
--   Touches:  queue.tasks (deletes), queue.history (inserts)

CREATE FUNCTION queue.complete(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = complete.id AND t.token = complete.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.check_lease_holder(id, token);
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    PERFORM queue_internal.archive(task, 'completed', result);
END
$$;
COMMENT ON FUNCTION queue.complete(bigint, bigint, jsonb) IS
    'Finishes a task and keeps it, with its result, in the history.';
