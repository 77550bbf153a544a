-- queue.release(id, token, delay)
--
--   Gives a task back without spending the attempt, at its old place in the queue or after a delay.
--   A task whose cancelling was requested, or that was replaced, is cancelled instead.
--   API:      public; needs the worker's right on the queue
--   Waits:    if the task was asked to be cancelled, or has a key, for transactions that have pushed after it
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (updates)

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
    IF task.cancel_requested_at IS NOT NULL OR queue_internal.is_replaced(task) THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN;
    END IF;
    task.attempt := task.attempt - 1;
    IF delay > '0' THEN
        task.run_at := clock_timestamp() + delay;
    END IF;
    PERFORM queue_internal.put_back(task);
END
$$;
COMMENT ON FUNCTION queue.release(bigint, bigint, interval) IS
    'Gives a task back without spending the attempt.';
