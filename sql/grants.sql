-- Revokes all privileges from PUBLIC. Rights are granted by queue.grant_producer, grant_worker and grant_operator.
-- Views without payloads are for monitoring.
CREATE FUNCTION queue_internal.set_privileges() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grantee text;
BEGIN
    REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM PUBLIC;
    PERFORM queue_internal.close_types();
    -- In case default privileges grant access to new sequences: who can take a value of this one could have others pass over
    -- open pushes.
    FOR grantee IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class AS c, LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = 'queue_internal.settled_id_seq'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON SEQUENCE queue_internal.settled_id_seq FROM %s', grantee);
    END LOOP;
    PERFORM queue_internal.apply_privileges('monitor', 'pg_monitor');
    -- A function in a view or a policy is called with the privileges of the role that reads. These answer about the
    -- rights of that role alone, and show only its queues. counted_at shows only a time.
    GRANT EXECUTE ON FUNCTION queue_internal.has_right, queue_internal.queues_with_right,
        queue_internal.caller, queue_internal.counted, queue_internal.counted_at, queue_internal.count_tables, queue_internal.running_tasks,
        queue_internal.waiting_workers, queue_internal.is_handler,
        queue_internal.handler_name, queue_internal.handler_named TO PUBLIC;
    -- So are those in the condition of a trigger, with those of the role that inserts.
    GRANT EXECUTE ON FUNCTION queue_internal.how_inserted, queue_internal.check_arrival TO PUBLIC;
    -- And in the default of a column, in an edition with several buckets.
    GRANT EXECUTE ON FUNCTION queue_internal.buckets TO PUBLIC;
END
$$;
COMMENT ON FUNCTION queue_internal.set_privileges IS 'Sets the privileges that an installation has before rights are granted.';

DO $$ BEGIN PERFORM queue_internal.set_privileges(); END $$;
-- In case default privileges grant access to new tables: a partition is read through queue.history, which has
-- policies.
ALTER TABLE queue.history_default ENABLE ROW LEVEL SECURITY;
-- Run as the owner for the role that inserts. No other role may attach them to a table.
ALTER FUNCTION queue_internal.task_arrives() SECURITY DEFINER;
ALTER FUNCTION queue_internal.tasks_inserted() SECURITY DEFINER;
