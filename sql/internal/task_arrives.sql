-- The trigger that runs before a task with a key or a group is inserted by a push, an INSERT, a COPY or a redrive. It
-- does not run for other tasks, nor for those of a dump, which restores keys and admissions as well
-- (how_inserted.sql).
--
--   If another task has the key, the INSERT skips the row.
--   Errors:   42501 without the right to push; 22023, 54000 for invalid keys in a plain INSERT

CREATE FUNCTION queue_internal.task_arrives() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A role that could attach it to a table of its own could have its code called by the owner.
    IF TG_RELID <> 'queue.tasks'::regclass THEN
        RAISE EXCEPTION 'this trigger function is for queue.tasks alone' USING ERRCODE = 'wrong_object_type';
    END IF;
    IF NEW.state = 'waiting' THEN
        NEW.admission := 2;
    END IF;
    IF NEW.key IS NOT NULL THEN
        PERFORM queue_internal.check_key('key', NEW.key);
        IF NOT queue_internal.take_key(NEW.queue, NEW.key, NEW.id, keeps_errors => false) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.group_key IS NOT NULL AND NEW.admission = 0 THEN
        PERFORM queue_internal.check_key('group_key', NEW.group_key);
        -- If the queue has delayed_head "pass", a delayed task does not block its group.
        NEW.admission := CASE WHEN NEW.run_at > clock_timestamp() AND EXISTS (
            SELECT FROM queue.queues AS q WHERE q.name = NEW.queue AND q.delayed_head = 'pass') THEN 0 ELSE 2 END;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.task_arrives IS
    'Takes the key of a new task, and blocks it until it is its turn in its group.';

CREATE TRIGGER task_arrives BEFORE INSERT ON queue.tasks
    FOR EACH ROW WHEN ((NEW.key IS NOT NULL OR NEW.group_key IS NOT NULL OR NEW.state = 'waiting')
                       AND queue_internal.check_arrival(
                           NEW.queue, queue_internal.how_inserted(),
                           NOT row_security_active('queue.tasks'::regclass)
                           OR queue_internal.has_right('producer', NEW.queue)))
    EXECUTE FUNCTION queue_internal.task_arrives();
COMMENT ON TRIGGER task_arrives ON queue.tasks IS 'Keys and groups of new tasks, however they are inserted.';
