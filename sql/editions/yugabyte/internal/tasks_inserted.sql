-- The trigger for every way into queue.tasks: push, a plain INSERT, COPY. A row trigger, because YugabyteDB has no
-- transition tables.
--
--   Refuses tasks of unknown and full queues and tasks that could never run, gives a task without a start deadline that of
--   its queue, and leaves an event for the group of a blocked one. A task with errors is a dead letter that is put back.
--   Errors:   QX002 no such queue; QX006 the queue is full; 22023 for an invalid column in a plain INSERT

CREATE FUNCTION queue_internal.tasks_inserted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    PERFORM queue_internal.check_columns(NEW);
    IF TG_NARGS = 0 THEN
        SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = NEW.queue;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_queue(NEW.queue);
        ELSIF source.max_queued IS NOT NULL AND NEW.errors IS NULL THEN
            PERFORM queue_internal.check_depth(source, 1, (NEW.state = 'queued')::integer);
        END IF;
        IF source.ttl IS NOT NULL AND NEW.errors IS NULL AND NEW.token = 0 AND NEW.start_by IS NULL THEN
            PERFORM queue_internal.set_start_by(source, ARRAY[NEW.id]);
        END IF;
    END IF;
    PERFORM queue_internal.check_backoff(NEW.backoff);
    IF NEW.admission = 2 AND NEW.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key) VALUES (NEW.queue, NEW.group_key);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.tasks_inserted IS
    'Refuses tasks of unknown and full queues, and leaves an event for the group of a blocked task.';

CREATE TRIGGER tasks_inserted AFTER INSERT ON queue.tasks FOR EACH ROW
    WHEN (queue_internal.how_inserted() = 'insert')
    EXECUTE FUNCTION queue_internal.tasks_inserted();
COMMENT ON TRIGGER tasks_inserted ON queue.tasks IS
    'Gives a plain INSERT or COPY the same effect as a push.';

-- For the tasks of a dump, which may be restored before their queues: see sql/internal/tasks_inserted.sql.
CREATE TRIGGER tasks_restored AFTER INSERT ON queue.tasks FOR EACH ROW
    WHEN (queue_internal.how_inserted() = 'dump')
    EXECUTE FUNCTION queue_internal.tasks_inserted('restored');
COMMENT ON TRIGGER tasks_restored ON queue.tasks IS
    'Lets a dump be restored in any order.';
