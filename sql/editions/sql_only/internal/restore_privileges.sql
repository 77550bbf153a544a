-- pg_dump --no-privileges leaves out who may use what: then PUBLIC may call every function, and no role may use the schemas. The
-- same is left where a role is missing: what a dump says of the schema queue names every role that has a right, and fails as
-- a whole. A dump of an extension has no such statements.
--
--   It is recognized by pg_monitor, which gets its privileges at the end. So a privilege that was revoked from another role later stays
--   revoked.

CREATE FUNCTION queue_internal.restore_privileges() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    missing record;
    failed  boolean := false;
BEGIN
    -- On another server, a dump would give their rights to roles that have the same number.
    DELETE FROM queue.rights AS r WHERE NOT EXISTS (SELECT FROM pg_roles AS o WHERE o.oid = r.role);
    IF EXISTS (SELECT FROM pg_namespace AS n, LATERAL aclexplode(n.nspacl) AS a
               WHERE n.oid = 'queue'::regnamespace AND a.grantee = 'pg_monitor'::regrole)
       AND EXISTS (SELECT FROM pg_class AS c, LATERAL aclexplode(c.relacl) AS a
                   WHERE c.oid = 'queue.maintained'::regclass AND a.grantee = 'pg_monitor'::regrole)
       -- The dump has not brought the rights yet.
       OR NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = 'queue.rights'::regclass AND t.tgname = 'rights_changed') THEN
        RETURN;
    END IF;
    PERFORM queue_internal.close_functions();
    FOR missing IN SELECT DISTINCT r.kind, r.role FROM queue.rights AS r LOOP
        BEGIN
            PERFORM queue_internal.apply_privileges(missing.kind, missing.role);
        EXCEPTION WHEN OTHERS THEN
            failed := true;
            RAISE WARNING 'queue.maintain() could not restore the privileges of role %: %', missing.role, SQLERRM;
        END;
    END LOOP;
    IF NOT failed THEN
        PERFORM queue_internal.apply_privileges('monitor', 'pg_monitor');
        GRANT SELECT ON queue.maintained TO pg_monitor;
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not restore the privileges of roles: %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_privileges IS 'Sets the privileges of roles that a dump has left out.';
