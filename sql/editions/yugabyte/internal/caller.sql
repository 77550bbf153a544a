-- As in the SQL-only edition, with CLOSE: not every version knows UNLISTEN.
CREATE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role  CONSTANT text := current_setting('role');
    probe refcursor;
BEGIN
    OPEN probe FOR SELECT;
    EXECUTE format('CLOSE %I', probe);
    RETURN CASE role WHEN 'none' THEN session_user ELSE role END;
END
$$;
COMMENT ON FUNCTION queue_internal.caller IS 'Returns the role that called the public function that is running.';
