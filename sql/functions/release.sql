-- queue.release
--
--   Waits:    for transactions that have pushed after the task, if its cancellation was requested or it has a key
--   Touches:  queue.tasks (updates), or as queue.complete if the task is cancelled

CREATE FUNCTION queue.release(id bigint, token bigint, delay interval DEFAULT '0') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task queue.tasks;
BEGIN
    IF delay IS NULL THEN
        PERFORM queue_internal.raise_null('delay');
    END IF;
    PERFORM queue_internal.check_delay('delay', delay);
    task := queue_internal.leased_task(id, token, false);
    PERFORM queue_internal.suspend(
        task, CASE WHEN extract(epoch FROM delay) > 0 THEN clock_timestamp() + delay ELSE task.run_at END);
END
$$;
COMMENT ON FUNCTION queue.release IS
'Gives a task back without counting the attempt. If its cancellation was requested, or it was replaced, it is cancelled
instead. If its timeout has passed, the attempt counts: it has failed with the error "timed out". Needs the worker''s
right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- delay: how long until the task can be claimed again, at most 100 years. With 0 (default) it keeps its place in the
  queue.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
