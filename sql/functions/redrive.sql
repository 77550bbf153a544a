-- queue.redrive(queue, max_tasks)
--
--   Puts the dead letters of a queue back into it, the oldest first, all of them or up to
--   "max_tasks"; each as queue.retry() would.
--   API:      public; an operator's
--   Returns:  how many
--   Empty:    0
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)
--   Index:    dead_letters_queue_failed_at

CREATE FUNCTION queue.redrive(queue text, max_tasks integer DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    END IF;
    RETURN queue_internal.revive(ARRAY(
        SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = redrive.queue
        ORDER BY d.failed_at, d.id LIMIT max_tasks FOR UPDATE SKIP LOCKED));
END
$$;
COMMENT ON FUNCTION queue.redrive(text, integer) IS
    'Puts the dead letters of a queue back into it, the oldest first; returns how many.';
