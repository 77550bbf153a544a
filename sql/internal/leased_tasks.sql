-- queue_internal.leased_tasks(queues)
--
--   Returns the running tasks of those of the queues of which all leases are known in shared memory (src/running.rs).
--   Without the library that is no queue; native.sql replaces this function.

CREATE FUNCTION queue_internal.leased_tasks(queues text[]) RETURNS TABLE (queue text, ids bigint[])
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, NULL::bigint[] WHERE false
$$;
COMMENT ON FUNCTION queue_internal.leased_tasks IS
    'Returns the running tasks of those of the queues whose leases are all known in memory.';
