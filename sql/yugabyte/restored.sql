-- What lets a dump be restored in any order: see sql/internal/restored.sql. Row by row, for want of transition
-- tables.

CREATE FUNCTION queue_internal.dependencies_restored() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.signals (queue, task_id) VALUES (NEW.queue, NEW.task_id);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.dependencies_restored() IS
    'Has the tasks looked at whose dependencies come from a dump.';

CREATE TRIGGER dependencies_restored AFTER INSERT ON queue_internal.dependencies FOR EACH ROW
    WHEN (current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
          AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependencies_restored();
COMMENT ON TRIGGER dependencies_restored ON queue_internal.dependencies IS
    'Lets a dump be restored in any order.';
