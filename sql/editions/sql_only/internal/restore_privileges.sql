-- pg_dump --no-privileges leaves out who may use what: then PUBLIC may call every function, and no role may use the schemas. The
-- same is left where a role is missing: what a dump says of the schema queue names every role that has a right, and fails as
-- a whole. A dump of an extension has no such statements.

CREATE FUNCTION queue_internal.restore_privileges() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    missing record;
BEGIN
    BEGIN
        PERFORM queue_internal.close_functions();
        -- On another server, a dump would give their rights to roles that have the same number.
        DELETE FROM queue.rights AS r WHERE NOT EXISTS (SELECT FROM pg_roles AS o WHERE o.oid = r.role);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'queue.maintain() could not revoke privileges: %', SQLERRM;
    END;
    FOR missing IN
        SELECT DISTINCT r.kind, r.role FROM (
            SELECT r.kind, r.role FROM queue.rights AS r UNION ALL VALUES ('monitor', 'pg_monitor'::regrole)) AS r
        WHERE r.role <> queue_internal.owner()
          AND NOT EXISTS (SELECT FROM pg_namespace AS n, LATERAL aclexplode(n.nspacl) AS a
                          WHERE n.oid = 'queue'::regnamespace AND a.grantee = r.role)
    LOOP
        BEGIN
            PERFORM queue_internal.apply_privileges(missing.kind, missing.role);
            IF missing.kind = 'monitor' THEN
                GRANT SELECT ON queue.maintained TO pg_monitor;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'queue.maintain() could not restore the privileges of role %: %', missing.role, SQLERRM;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_privileges IS 'Sets the privileges of roles that a dump has left out.';
