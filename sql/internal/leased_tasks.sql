-- queue_internal.leased_tasks(queues)
--
--   Returns how many tasks run in each of these queues, and the tasks whose leases are in shared memory (src/running.rs). Some of
--   these may have ended, and others may run whose leases are not there. A queue about which nothing is known is left out.
--   native.sql replaces this function.

CREATE FUNCTION queue_internal.leased_tasks(queues text[]) RETURNS TABLE (queue text, running bigint, ids bigint[])
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, 0, NULL::bigint[] WHERE false
$$;
COMMENT ON FUNCTION queue_internal.leased_tasks IS
    'Returns how many tasks run in queues, and the tasks whose leases are known in memory.';
