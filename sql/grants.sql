-- Revokes all privileges from PUBLIC. Rights are granted by queue.grant_producer, grant_worker and grant_operator.
-- Views without payloads are for monitoring.

-- Also where default privileges have closed the functions: pg_dump saves what differs from these statements.
REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM PUBLIC;
DO $$ BEGIN
    PERFORM queue_internal.close_types(), queue_internal.close_functions(),
            queue_internal.apply_privileges('monitor', 'pg_monitor');
END $$;
-- In case default privileges grant access to new tables: a partition is read through queue.history, which has
-- policies.
ALTER TABLE queue.history_default ENABLE ROW LEVEL SECURITY;
-- Or to new sequences: who can take a value of this one could have others pass over open pushes.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class AS c, LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = 'queue_internal.settled_id_seq'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON SEQUENCE queue_internal.settled_id_seq FROM %s', grantee);
    END LOOP;
END $$;
-- Run as the owner for the role that inserts. No other role may attach them to a table.
ALTER FUNCTION queue_internal.task_arrives() SECURITY DEFINER;
ALTER FUNCTION queue_internal.tasks_inserted() SECURITY DEFINER;
