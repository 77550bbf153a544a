-- The trigger for every way into queue.tasks: push, a plain INSERT, COPY. A row trigger, because YugabyteDB has no
-- transition tables.
--
--   Refuses tasks of unknown and full queues and tasks that could never run, gives a task without a start deadline that of
--   its queue, and leaves an event for the group of a blocked one. A task with errors is a dead letter that is put back.
--   Errors:   QX002 no such queue; QX006 the queue is full; 22023 for an invalid column in a plain INSERT

CREATE FUNCTION queue_internal.tasks_inserted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A role that could attach it to a table of its own could have its code called by the owner.
    IF TG_RELID <> 'queue.tasks'::regclass THEN
        RAISE EXCEPTION 'this trigger function is for queue.tasks alone' USING ERRCODE = 'wrong_object_type';
    END IF;
    PERFORM queue_internal.check_inserted(NEW, TG_NARGS > 0);
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
