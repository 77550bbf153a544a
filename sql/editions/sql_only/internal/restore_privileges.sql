-- pg_dump --no-privileges leaves out who may use what: then PUBLIC may call every function, and no role may use the schemas. The
-- same is left where a role is missing: the statement that names it fails, with all that it grants and revokes. A dump of an
-- extension has no such statements.

-- Not before a dump has brought the triggers, and so all rights.
CREATE FUNCTION queue_internal.restore_privileges() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = 'queue.rights'::regclass AND t.tgname = 'rights_changed')
       -- Every function has privileges of its own, unless they were left out.
       OR NOT EXISTS (SELECT FROM pg_proc AS p
                      WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND p.proacl IS NULL) THEN
        RETURN;
    END IF;
    PERFORM queue_internal.set_privileges();
    GRANT SELECT ON queue.maintained TO pg_monitor;
    UPDATE queue.rights AS r SET kind = r.kind;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not restore the privileges of roles: %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_privileges IS 'Sets the privileges of roles that a dump has left out.';
