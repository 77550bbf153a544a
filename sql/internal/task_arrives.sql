-- The trigger that meets a task with a key or a group before it is there, however it comes: push, a
-- plain INSERT, COPY, redrive. Tasks without either do not come here; nor do those of a dump, which
-- brings the keys and the gates along (tasks_inserted.sql).
--
--   A key that another task holds keeps the task out: the INSERT goes on without its row.
--   Errors:   42501 without the right to push; 22023, 54000 for keys that a plain INSERT filled with nonsense

CREATE FUNCTION queue_internal.task_arrives() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_NARGS > 0 THEN
        RAISE EXCEPTION 'permission denied for queue "%"', NEW.queue
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'The role that inserts does not have the right of a producer for the queue.';
    ELSIF NEW.state = 'waiting' THEN
        NEW.gate := 2;
    END IF;
    IF NEW.key IS NOT NULL THEN
        PERFORM queue_internal.check_key('key', NEW.key);
        IF NOT queue_internal.take_key(NEW.queue, NEW.key, NEW.id) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.group_key IS NOT NULL AND NEW.gate = 0 THEN
        PERFORM queue_internal.check_key('group_key', NEW.group_key);
        -- A task for later does not hold up its group, where the queue says so.
        NEW.gate := CASE WHEN NEW.run_at > clock_timestamp() AND EXISTS (
            SELECT FROM queue.queues AS q WHERE q.name = NEW.queue AND q.delayed_head = 'pass') THEN 0 ELSE 2 END;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.task_arrives IS
    'Takes the key of a task that comes in, and blocks it until it is its turn.';

CREATE TRIGGER task_arrives BEFORE INSERT ON queue.tasks
    FOR EACH ROW WHEN (
        (NEW.key IS NOT NULL OR NEW.group_key IS NOT NULL OR NEW.state = 'waiting')
        AND (current_setting('search_path') <> '' OR current_setting('check_function_bodies') <> 'off'
             OR NOT has_table_privilege('queue.tasks', 'TRUNCATE'))
        AND (NOT row_security_active('queue.tasks'::regclass) OR queue_internal.has_right('producer', NEW.queue)))
    EXECUTE FUNCTION queue_internal.task_arrives();
COMMENT ON TRIGGER task_arrives ON queue.tasks IS
    'Keys and groups, for every way in which a task can come.';

-- A row that a policy is about to refuse must not ask for a key first, which would tell whether it is taken; nor may it
-- come in without its key by a view, where the policies of the view's owner count.
CREATE TRIGGER task_refused BEFORE INSERT ON queue.tasks
    FOR EACH ROW WHEN (
        (NEW.key IS NOT NULL OR NEW.group_key IS NOT NULL OR NEW.state = 'waiting')
        AND (current_setting('search_path') <> '' OR current_setting('check_function_bodies') <> 'off'
             OR NOT has_table_privilege('queue.tasks', 'TRUNCATE'))
        AND row_security_active('queue.tasks'::regclass) AND NOT queue_internal.has_right('producer', NEW.queue))
    EXECUTE FUNCTION queue_internal.task_arrives('refused');
COMMENT ON TRIGGER task_refused ON queue.tasks IS
    'Refuses tasks with keys or groups of roles that may not push to the queue.';
