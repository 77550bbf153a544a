-- queue.confirm_cancel
--
--   Waits:    as queue.complete
--   Touches:  queue.tasks (deletes), queue.history (inserts)

CREATE FUNCTION queue.confirm_cancel(id bigint, token bigint) RETURNS void
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
COMMENT ON FUNCTION queue.confirm_cancel IS
'Confirms that the worker stopped because queue.cancel was called: the task is cancelled. Needs the worker''s right on
the queue.

- id, token: the task and the token of its lease, as claim returned them.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
QX005: its cancellation was not requested. 22004 or 22023: an argument is null or invalid.';
