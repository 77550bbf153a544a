-- Public functions run with the rights of the owner and check those of their caller (internal/rights.sql). So do the
-- internal functions that views call, and those that procedures call, because a procedure that commits cannot be
-- SECURITY DEFINER itself.
--
-- Functions that only the owner may call, and those that only read views, keep the rights of their caller.

DO $$
DECLARE
    verb regprocedure;
BEGIN
    FOR verb IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'queue'::regnamespace AND p.prokind = 'f'
          AND p.proname !~ '^(grant_|revoke_|attach$|detach$|set$|health$)'
        UNION ALL
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname = ANY (
            '{next_batch, check_wait, check_wait_result, first_ready, first_pause, next_pause, outcome,
              wait_deadline, count_tables, running_tasks, counted, counted_at}')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', verb);
    END LOOP;
END
$$;
