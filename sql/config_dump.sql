-- What pg_dump must save although the tables belong to the extension. The partitions of the days
-- are made later, belong to nobody but their table, and are dumped as they are.

SELECT pg_catalog.pg_extension_config_dump('queue.queues', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queue.history_default', '');
SELECT pg_catalog.pg_extension_config_dump('queue.dead_letters', '');
SELECT pg_catalog.pg_extension_config_dump('queue.schedules', '');
SELECT pg_catalog.pg_extension_config_dump('queue.bindings', '');
-- Without the rights of roles that were dropped: elsewhere their numbers may be those of other roles.
SELECT pg_catalog.pg_extension_config_dump(
    'queue.rights', 'WHERE role::pg_catalog.oid IN (SELECT r.oid FROM pg_catalog.pg_roles AS r)');
-- No events: the sweep leaves new ones.
SELECT pg_catalog.pg_extension_config_dump('queue_internal.keys', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.outcomes', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.slots', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.tokens', '');
