\set ECHO none
-- Included at the start of every script.
\set VERBOSITY terse
SET client_min_messages = warning;

-- Runs a statement and returns its error as a client sees it.
CREATE FUNCTION pg_temp.refused(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said record;
BEGIN
    EXECUTE statement;
    RETURN 'not refused';
EXCEPTION WHEN OTHERS THEN
    DECLARE
        detail text;
        hint   text;
    BEGIN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        RETURN concat_ws(E'\n', sqlstate || ': ' || sqlerrm, 'DETAIL: ' || nullif(detail, ''),
                         'HINT: ' || nullif(hint, ''));
    END;
END
$$;

-- Makes the lease of a task expire.
CREATE FUNCTION pg_temp.expire(task bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '1 second' WHERE id = task;
$$;
\set ECHO all
