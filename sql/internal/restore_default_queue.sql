-- Lets a dump be restored: CREATE EXTENSION has just created the queue "default", and now the dump brings the one that
-- was configured, which replaces it. How a dump is recognized: how_inserted.sql.

CREATE FUNCTION queue_internal.restore_default_queue() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM queue.queues AS q WHERE q.name = NEW.name;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_default_queue IS
    'Lets the queue "default" of a dump replace the one that CREATE EXTENSION made.';

CREATE TRIGGER restore_default_queue BEFORE INSERT ON queue.queues
    FOR EACH ROW WHEN (
        NEW.name = 'default' AND current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.restore_default_queue();
COMMENT ON TRIGGER restore_default_queue ON queue.queues IS
    'Lets the queue "default" of a dump replace the one that CREATE EXTENSION made.';
