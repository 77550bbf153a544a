-- queue.redrive
--
--   Touches:  queue.dead_letters (locks with SKIP LOCKED, deletes), queue.tasks (inserts)
--   Index:    dead_letters_queue_failed_at

CREATE FUNCTION queue.redrive(queue text, max_tasks integer DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    END IF;
    -- Those whose key is taken do not keep it from those behind them.
    RETURN queue_internal.requeue_dead_letters(ARRAY(
        SELECT d.id FROM queue.dead_letters AS d
        WHERE d.queue = redrive.queue AND (d.key IS NULL OR queue_internal.is_key_free(d.queue, d.key))
        ORDER BY d.failed_at, d.id LIMIT max_tasks FOR UPDATE SKIP LOCKED));
END
$$;
COMMENT ON FUNCTION queue.redrive IS
'Puts the dead letters of a queue back into it, the oldest first, each as queue.retry does. Returns how many. A dead
letter whose key another task has stays where it is. Needs the operator''s right on the queue.

- queue: name of the queue.
- max_tasks: largest number of dead letters to put back. Null (default) means all.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
