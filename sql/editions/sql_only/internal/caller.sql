-- Rights (internal/rights.sql). Public functions are SECURITY DEFINER (definer.sql), so the caller is the session's
-- user or the role that it set. A SECURITY DEFINER function of another role in between cannot be seen: the rights of
-- the session's role count.
--
-- But code that PostgreSQL runs for the owner of a table in the session of another role, such as functions in indexes
-- during an ANALYZE by an autovacuum worker or a superuser, must not have the rights of that session. In such a
-- security-restricted operation PostgreSQL refuses the statement UNLISTEN. Elsewhere this one does nothing; but a
-- session that has executed LISTEN cannot prepare a transaction that contains it.

CREATE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role CONSTANT text := current_setting('role');
BEGIN
    UNLISTEN queue_nothing;
    RETURN CASE role WHEN 'none' THEN session_user ELSE role END;
END
$$;
COMMENT ON FUNCTION queue_internal.caller IS 'Returns the role that called the public function that is running.';
