-- queue_ext @CARGO_VERSION@: from one edition to another, in place, with everything that is in the queues. For psql:
--
--     psql -v ON_ERROR_STOP=1 -v to=native   -f THIS_FILE    from the SQL-only edition to the extension
--     psql -v ON_ERROR_STOP=1 -v to=sql_only -f THIS_FILE    from the extension, or from another version of the
--                                                            SQL-only edition, to the SQL-only edition
--
-- Run it as a superuser if one of the two is the extension, else as the owner of the SQL-only edition. It is one
-- transaction. It renames the existing schemas, installs the other edition as if it were the first, and copies the rows
-- as a dump and restore would; the partitions of the history move as they are. Workers wait meanwhile, and then
-- continue with their leases and tokens. See docs/portable.md.
--
-- Made by "make portable" out of the files in sql/.

\set ON_ERROR_STOP on
\if :{?to}
\else
    \warn 'Set the target edition: -v to=native or -v to=sql_only'
    DO $$ BEGIN RAISE EXCEPTION 'the variable "to" is not set'; END $$;
\endif
SELECT :'to' = 'native' AS to_native, :'to' = 'sql_only' AS to_sql_only \gset
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '30s';
SET LOCAL datestyle = 'ISO';

-- Which edition is installed, and who will own the new one. If a superuser runs this, the old edition may belong to
-- another role, who could have replaced its tables and functions. So none of its functions are called here, and its
-- rows are read with the rights of its owner (end.sql).
SELECT pg_catalog.set_config('queue_move.to', :'to', true),
       pg_catalog.set_config('queue_move.from', CASE WHEN EXISTS (
           SELECT FROM pg_catalog.pg_extension AS e WHERE e.extname = 'queue_ext') THEN 'native' ELSE 'sql_only' END, true)
\g /dev/null
DO $$
DECLARE
    origin CONSTANT text := current_setting('queue_move.from');
    goal   CONSTANT text := current_setting('queue_move.to');
    there  text;
    owners oid[];
BEGIN
    IF goal NOT IN ('native', 'sql_only') THEN
        RAISE EXCEPTION 'the variable "to" must be native or sql_only';
    ELSIF to_regprocedure('queue.engine_stats()') IS NULL THEN
        RAISE EXCEPTION 'queue_ext is not in this database';
    ELSIF origin = 'native' AND goal = 'native' THEN
        RAISE EXCEPTION 'the extension is in this database already'
            USING HINT = 'ALTER EXTENSION queue_ext UPDATE brings it to a newer version.';
    END IF;
    there := CASE origin WHEN 'native' THEN (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'queue_ext')
             ELSE (SELECT (regexp_match(p.prosrc, '''version'', ''([^'']+)'''))[1] FROM pg_proc AS p
                   WHERE p.oid = to_regprocedure('queue.engine_stats()')) END;
    IF there = '@CARGO_VERSION@' AND origin = goal THEN
        RAISE EXCEPTION 'the SQL-only edition % is in this database already', there
            USING HINT = 'There is nothing to move: nothing was changed.';
    ELSIF there <> '@CARGO_VERSION@' AND origin <> goal THEN
        RAISE EXCEPTION 'this is version %, and the file is of version @CARGO_VERSION@', there
            USING HINT = 'Bring one of them to the version of the other first.';
    END IF;
    PERFORM set_config('queue_move.same_version', (there = '@CARGO_VERSION@')::text, true);
    SELECT array_agg(DISTINCT o.owner) INTO owners FROM (
        SELECT n.nspowner AS owner FROM pg_namespace AS n WHERE n.nspname IN ('queue', 'queue_internal')
        UNION ALL
        SELECT c.relowner FROM pg_class AS c
        WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
    ) AS o;
    IF cardinality(owners) <> 1 THEN
        RAISE EXCEPTION 'the schemas queue and queue_internal and what is in them belong to different roles: %',
                        (SELECT string_agg(o::regrole::text, ', ') FROM unnest(owners) AS o)
            USING HINT = 'Make one role the owner of all of it.';
    END IF;
    PERFORM set_config('queue_move.owner', owners[1]::regrole::text, true);
END
$$;
SELECT CASE WHEN r.rolsuper THEN pg_catalog.pg_get_userbyid(d.datdba) ELSE r.rolname END AS owner
FROM pg_catalog.pg_roles AS r, pg_catalog.pg_database AS d
WHERE r.rolname = current_user AND d.datname = pg_catalog.current_database() \gset

-- Locks the extension before its tables, in the same order as its worker: the other order could deadlock with it. No
-- other command locks an extension like this and leaves it unchanged.
SELECT pg_catalog.current_setting('queue_move.from') = 'native' AS from_native \gset
\if :from_native
    CREATE FUNCTION pg_temp.queue_move() RETURNS void LANGUAGE sql AS '';
    ALTER FUNCTION pg_temp.queue_move() DEPENDS ON EXTENSION queue_ext;
    DROP FUNCTION pg_temp.queue_move();
\endif
-- Locks all tables or none, and retries, for the same reason. From here on their owner cannot change them.
DO $$
DECLARE
    patience CONSTANT timestamptz := clock_timestamp() + interval '30 seconds';
BEGIN
    LOOP
        BEGIN
            EXECUTE (SELECT format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT',
                                   string_agg(c.oid::regclass::text, ', '))
                     FROM pg_class AS c
                     WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
                       AND c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace));
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            IF clock_timestamp() > patience THEN
                RAISE;
            END IF;
        END;
        PERFORM pg_sleep(0.02);
    END LOOP;
END
$$;
ALTER SCHEMA queue RENAME TO queue_before;
ALTER SCHEMA queue_internal RENAME TO queue_internal_before;

-- The SQL-only edition follows. If it is the old edition, the fresh one is only there to compare with, and end.sql drops
-- it again.
\if :to_sql_only
    SET LOCAL ROLE :"owner";
\endif
