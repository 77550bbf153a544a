-- What pg_dump must save although the tables belong to the extension. The daily partitions are created later, belong
-- only to their table, and are dumped like other tables.

SELECT pg_catalog.pg_extension_config_dump('queue.queues', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queue.history_default', '');
SELECT pg_catalog.pg_extension_config_dump('queue.dead_letters', '');
SELECT pg_catalog.pg_extension_config_dump('queue.schedules', '');
SELECT pg_catalog.pg_extension_config_dump('queue.bindings', '');
-- Without roles that were dropped, as for the rights.
SELECT pg_catalog.pg_extension_config_dump(
    'queue.handlers', 'WHERE role::pg_catalog.oid IN (SELECT r.oid FROM pg_catalog.pg_roles AS r)');
-- Without the rights of roles that were dropped, whose OIDs may belong to other roles elsewhere.
SELECT pg_catalog.pg_extension_config_dump(
    'queue.rights', 'WHERE role::pg_catalog.oid IN (SELECT r.oid FROM pg_catalog.pg_roles AS r)');
-- Without events: the sweep leaves new ones.
SELECT pg_catalog.pg_extension_config_dump('queue_internal.keys', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.batches', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.outcomes', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.steps', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.awaits', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.emitted', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.slots', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.rate_buckets', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.group_starts', '');
