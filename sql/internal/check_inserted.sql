-- What the trigger tasks_inserted does, for one row: where triggers see no transition tables, and for a plain push that a
-- trigger of the user has made less plain.
CREATE FUNCTION queue_internal.check_inserted(task queue.tasks, restored boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    PERFORM queue_internal.check_columns(task);
    IF NOT restored THEN
        SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = task.queue;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_queue(task.queue);
        ELSIF source.max_queued IS NOT NULL AND task.errors IS NULL THEN
            PERFORM queue_internal.check_depth(source, 1, (task.state = 'queued')::integer);
        END IF;
        IF source.ttl IS NOT NULL AND task.errors IS NULL AND task.token = 0 AND task.start_by IS NULL THEN
            PERFORM queue_internal.set_start_by(source, ARRAY[task.id]);
        END IF;
    END IF;
    PERFORM queue_internal.check_backoff(task.backoff);
    IF task.admission <> 0 AND task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_inserted IS
    'Checks a new task and its queue, and leaves an event for its group if it is blocked.';
