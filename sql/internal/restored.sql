-- What lets a dump be restored in any order.
--
-- pg_restore with several jobs loads the tables in any order and at the same time, whatever foreign keys
-- there are, with the worker looking on. So a row that is restored must need no other. A restored task is
-- not refused for want of its queue, and leaves its key to queue_internal.keys (the triggers on
-- queue.tasks); and whichever comes later, a task or what it waits for, has the task looked at.
--
-- What tells a restore are two settings that every dump makes before its first row, and a role that may truncate
-- the tables: the owner, or a superuser. Verbs have a search_path of their own, so that nothing they do is ever
-- taken for a restore; and a producer who makes the settings is checked like any other.

CREATE FUNCTION queue_internal.dependencies_restored() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.signals (queue, task_id)
    SELECT DISTINCT r.queue, r.task_id FROM restored AS r;
    PERFORM queue_internal.announce_task(r.queue, clock_timestamp())
    FROM (SELECT DISTINCT i.queue FROM restored AS i) AS r;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.dependencies_restored() IS
    'Has the tasks looked at whose dependencies come from a dump.';

CREATE TRIGGER dependencies_restored AFTER INSERT ON queue_internal.dependencies
    REFERENCING NEW TABLE AS restored
    FOR EACH STATEMENT
    WHEN (current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
          AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependencies_restored();
COMMENT ON TRIGGER dependencies_restored ON queue_internal.dependencies IS
    'Lets a dump be restored in any order.';
