-- queue_ext @CARGO_VERSION@, the SQL-only edition: a job queue in plain SQL, for servers on which no extension can
-- be installed. Run it as a role that may create schemas in the database, such as its owner:
--
--     psql -q -v ON_ERROR_STOP=1 -f THIS_FILE
--
-- It is one transaction: all of it or nothing. Made by "make portable" out of the files in sql/.

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;

DO $$
DECLARE
    there text;
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'queue_ext') THEN
        RAISE EXCEPTION 'the extension queue_ext is installed in this database'
            USING ERRCODE = 'duplicate_object',
                  HINT = 'There is nothing to install. docs/portable.md says how to change editions.';
    ELSIF pg_catalog.to_regnamespace('queue') IS NOT NULL OR pg_catalog.to_regnamespace('queue_internal') IS NOT NULL THEN
        -- Reads the source instead of calling the function, because any role that may create schemas could have
        -- created it.
        there := (SELECT (regexp_match(p.prosrc, '''version'', ''([^'']+)'''))[1] FROM pg_catalog.pg_proc AS p
                  WHERE p.oid = pg_catalog.to_regprocedure('queue.engine_stats()'));
        IF there IS NULL THEN
            RAISE EXCEPTION 'there is a schema "queue" or "queue_internal" in this database, which is not queue_ext''s'
                USING ERRCODE = 'duplicate_schema', HINT = 'Rename it, or use another database.';
        END IF;
        IF there = '@CARGO_VERSION@' THEN
            RAISE EXCEPTION 'queue_ext % is in this database already', there
                USING ERRCODE = 'duplicate_schema', HINT = 'There is nothing to install: nothing was changed.';
        END IF;
        RAISE EXCEPTION 'another version of queue_ext is in this database: %', there
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'docs/portable.md says how to bring it to version @CARGO_VERSION@ with its tasks.';
    END IF;
END
$$;

