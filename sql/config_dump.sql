-- What pg_dump must save although the tables belong to the extension. The partitions of the days
-- are made later, belong to nobody but their table, and are dumped as they are.

SELECT pg_catalog.pg_extension_config_dump('queue.queues', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queue.history_default', '');
SELECT pg_catalog.pg_extension_config_dump('queue.dead_letters', '');
SELECT pg_catalog.pg_extension_config_dump('queue.schedules', '');
SELECT pg_catalog.pg_extension_config_dump('queue.bindings', '');
SELECT pg_catalog.pg_extension_config_dump('queue.rights', '');
-- The tasks that are restored take their keys, and leave their groups' signals, by themselves.
SELECT pg_catalog.pg_extension_config_dump('queue_internal.keys', 'WHERE expires_at IS NOT NULL OR ttl IS NOT NULL');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.signals', 'WHERE task_id IS NOT NULL');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.signals_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.slots', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.tokens', '');

-- pg_restore with several jobs loads the tables in any order that foreign keys allow, and tasks must
-- not come before their queues and keys. So there are foreign keys, for pg_dump to read, with their
-- triggers disabled: they are never checked and cost nothing. (What checks the queue is the trigger
-- tasks_inserted.)
ALTER TABLE queue.tasks
    ADD CONSTRAINT tasks_queue_fkey FOREIGN KEY (queue) REFERENCES queue.queues (name) NOT VALID,
    ADD CONSTRAINT tasks_key_fkey FOREIGN KEY (queue, key) REFERENCES queue_internal.keys (queue, key) NOT VALID;
DO $$
DECLARE
    disabled record;
BEGIN
    FOR disabled IN
        SELECT t.tgrelid::pg_catalog.regclass AS relation, t.tgname
        FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_constraint AS c ON c.oid = t.tgconstraint
        WHERE c.contype = 'f' AND c.conrelid = 'queue.tasks'::pg_catalog.regclass
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s DISABLE TRIGGER %I', disabled.relation, disabled.tgname);
    END LOOP;
END
$$;
COMMENT ON CONSTRAINT tasks_queue_fkey ON queue.tasks IS
    'Never checked. It tells pg_dump that tasks are restored after their queues.';
COMMENT ON CONSTRAINT tasks_key_fkey ON queue.tasks IS
    'Never checked. It tells pg_dump that tasks are restored after the keys they have.';
