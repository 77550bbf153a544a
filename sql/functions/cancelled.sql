-- queue.cancelled(id, token)
--
--   The worker's word that it stopped working on a task that was to be cancelled.
--   API:      public; needs the worker's right on the queue
--   Errors:   QX001 the lease is lost; QX003 no such task; QX005 nobody asked to cancel it;
--             22004, 22023 for the arguments
--   Touches:  queue.tasks (deletes), queue.history (inserts)

CREATE FUNCTION queue.cancelled(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task queue.tasks := queue_internal.leased_task(id, token, true);
BEGIN
    IF task.cancel_requested_at IS NULL THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'worker', 'was not asked to be cancelled',
            'Give it back with queue.release(), or report it with queue.fail().');
    END IF;
    PERFORM queue_internal.cancel_now(task);
END
$$;
COMMENT ON FUNCTION queue.cancelled(bigint, bigint) IS
    'Acknowledges that work on a task was stopped because it was to be cancelled.';
