RESET ROLE;

-- Only objects of the server are found without a schema.
SET LOCAL search_path = '';
SET LOCAL check_function_bodies = off;

-- The parts of a table, each with its definition. Without parentheses, some of which a dump leaves out. Nothing here runs
-- code of the table's owner.
CREATE FUNCTION pg_temp.parts(relation pg_catalog.oid, OUT name pg_catalog.text, OUT definition pg_catalog.text)
RETURNS SETOF pg_catalog.record LANGUAGE sql AS $$
    SELECT p.name, pg_catalog.translate(
               pg_catalog.regexp_replace(p.definition, E'\\m(queue|queue_internal)_before\\M', E'\\1', 'g'), '()', '')
    FROM (
        SELECT 'kind', pg_catalog.concat_ws(' ', c.relkind, c.relpersistence, c.reloftype)
        FROM pg_catalog.pg_class AS c WHERE c.oid = relation
        UNION ALL
        SELECT 'column ' || a.attname, pg_catalog.concat_ws(' ', pg_catalog.format_type(a.atttypid, a.atttypmod), a.attcollation,
               a.attnotnull, a.attidentity, a.attgenerated, pg_catalog.pg_get_expr(v.adbin, v.adrelid))
        FROM pg_catalog.pg_attribute AS a
        LEFT JOIN pg_catalog.pg_attrdef AS v ON v.adrelid = a.attrelid AND v.adnum = a.attnum
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT CASE WHEN i.indexprs IS NULL AND i.indpred IS NULL THEN 'index ' ELSE 'expression index ' END || c.relname,
               pg_catalog.pg_get_indexdef(c.oid)
        FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = relation
        UNION ALL
        SELECT CASE WHEN k.contype IN ('p', 'n') THEN 'primary key ' ELSE 'constraint ' END || k.conname,
               pg_catalog.pg_get_constraintdef(k.oid)
        FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = relation
        UNION ALL
        SELECT 'foreign key ' || k.conname, k.conrelid::regclass::text
        FROM pg_catalog.pg_constraint AS k WHERE k.confrelid = relation
        UNION ALL
        SELECT 'rule ' || r.rulename, pg_catalog.pg_get_ruledef(r.oid) FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = relation
        UNION ALL
        SELECT 'statistics ' || s.stxname, pg_catalog.pg_get_statisticsobjdef(s.oid)
        FROM pg_catalog.pg_statistic_ext AS s WHERE s.stxrelid = relation
        UNION ALL
        SELECT 'policy ' || p.polname, pg_catalog.concat_ws(' ', p.polcmd, p.polpermissive, p.polroles,
               pg_catalog.pg_get_expr(p.polqual, p.polrelid), pg_catalog.pg_get_expr(p.polwithcheck, p.polrelid))
        FROM pg_catalog.pg_policy AS p WHERE p.polrelid = relation
        UNION ALL
        -- Those of the extension, some of which are for its library, cannot be compared with the SQL-only edition.
        SELECT 'trigger ' || t.tgname, pg_catalog.pg_get_triggerdef(t.oid) FROM pg_catalog.pg_trigger AS t
        WHERE t.tgrelid = relation AND NOT t.tgisinternal
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d
                          WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = t.tgfoid AND d.deptype = 'e')
        UNION ALL
        SELECT 'child ' || h.inhrelid::regclass, NULL
        FROM pg_catalog.pg_inherits AS h JOIN pg_catalog.pg_class AS c ON c.oid = h.inhrelid
        WHERE h.inhparent = relation AND (c.relkind NOT IN ('r', 'i', 'I') OR c.relname !~ '^history_([0-9]{8}|default)')
    ) AS p (name, definition)
$$;

-- What would be dropped with the schemas and the extension: everything that depends on them, directly or not. A part of
-- another object, such as the rule of a view, counts as that object. The daily partitions of the history are kept.
CREATE FUNCTION pg_temp.dropped(
    schemas pg_catalog.oid[], extension pg_catalog.oid,
    OUT classid pg_catalog.oid, OUT objid pg_catalog.oid, OUT name pg_catalog.text)
RETURNS SETOF pg_catalog.record LANGUAGE sql AS $$
    WITH RECURSIVE reached (classid, objid, objsubid) AS (
        SELECT s.classid, s.objid, 0
        FROM (SELECT 'pg_catalog.pg_namespace'::regclass::oid AS classid, n.oid AS objid FROM pg_catalog.unnest(schemas) AS n (oid)
              UNION ALL SELECT 'pg_catalog.pg_extension'::regclass::oid, extension WHERE extension IS NOT NULL) AS s
        UNION
        SELECT n.classid, n.objid, n.objsubid
        FROM reached AS r, LATERAL (
            SELECT d.classid, d.objid, d.objsubid FROM pg_catalog.pg_depend AS d
            WHERE d.refclassid = r.classid AND d.refobjid = r.objid AND (r.objsubid = 0 OR d.refobjsubid = r.objsubid)
            UNION ALL
            SELECT w.refclassid, w.refobjid, w.refobjsubid FROM pg_catalog.pg_depend AS w
            WHERE w.classid = r.classid AND w.objid = r.objid AND w.deptype = 'i'
        ) AS n
        WHERE NOT (n.classid = 'pg_catalog.pg_class'::regclass AND EXISTS (
            SELECT FROM pg_catalog.pg_class AS c
            WHERE c.oid = n.objid
              AND (c.relnamespace = 'pg_toast'::regnamespace
                   OR c.relnamespace = 'queue_before'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$')))
    )
    SELECT DISTINCT r.classid, r.objid, pg_catalog.regexp_replace(
        pg_catalog.pg_describe_object(r.classid, r.objid, r.objsubid), E'\\m(queue|queue_internal)_before\\M', E'\\1', 'g')
    FROM reached AS r
    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS w
                      WHERE w.classid = r.classid AND w.objid = r.objid AND w.objsubid = r.objsubid AND w.deptype = 'i')
$$;

-- What the SQL-only edition itself creates.
CREATE TEMP TABLE queue_move_own ON COMMIT DROP AS
SELECT d.name FROM pg_temp.dropped(ARRAY['queue'::regnamespace, 'queue_internal'::regnamespace]::oid[], NULL) AS d;
CREATE TEMP TABLE queue_move_parts ON COMMIT DROP AS
SELECT c.relnamespace::regnamespace::text AS schema, c.relname AS relation, p.name, p.definition
FROM pg_catalog.pg_class AS c, LATERAL pg_temp.parts(c.oid) AS p
WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND c.relkind IN ('r', 'p', 'S');

\if :to_native
    DROP SCHEMA queue, queue_internal CASCADE;
    CREATE EXTENSION queue_ext VERSION '@CARGO_VERSION@';
\endif

-- The tables of the new edition, the tables of the same name in the old one, and the sequence. Tables that the old
-- edition lacks stay as they are.
CREATE TEMP TABLE queue_move_tables ON COMMIT DROP AS
SELECT n.oid AS fresh, o.oid AS old, n.relname AS name, n.relkind AS kind
FROM pg_catalog.pg_class AS n JOIN pg_catalog.pg_class AS o
  ON o.relname = n.relname AND o.relnamespace = (n.relnamespace::regnamespace::text || '_before')::regnamespace
WHERE n.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  AND (n.relkind IN ('r', 'p') OR n.oid = 'queue.tasks_id_seq'::regclass);

-- Whatever else depends on the old edition or belongs to its tables would be lost, and the partitions of the history are
-- moved as they are. So there must be nothing of the kind. Objects are found by their dependencies, and those of the old
-- edition itself are known from a fresh SQL-only edition; in the extension its functions, and the triggers that call them,
-- are known as its members. Two versions may differ: in the definitions of what has the same name, and in functions,
-- types, views and triggers.
DO $$
DECLARE
    same_version CONSTANT boolean := pg_catalog.current_setting('queue_move.same_version') = 'true';
    schemas      CONSTANT oid[] := ARRAY['queue_before'::regnamespace, 'queue_internal_before'::regnamespace]::oid[];
    extension    CONSTANT oid := (SELECT e.oid FROM pg_catalog.pg_extension AS e
                                  WHERE e.extname = 'queue_ext' AND pg_catalog.current_setting('queue_move.from') = 'native');
    replaced     pg_catalog.text;
    lost         pg_catalog.text[];
BEGIN
    WITH part AS (
        SELECT r.schema || '.' || r.relation AS relation, r.schema, p.name, p.definition,
               EXISTS (SELECT FROM pg_temp.queue_move_parts AS n
                       WHERE n.schema = r.schema AND n.relation = r.relation AND n.name = p.name) AS is_known,
               EXISTS (SELECT FROM pg_temp.queue_move_parts AS n
                       WHERE n.schema = r.schema AND n.relation = r.relation AND n.name = p.name
                         AND (n.definition IS NOT DISTINCT FROM p.definition OR p.name <> 'kind' AND NOT same_version)) AS is_same
        FROM (SELECT DISTINCT n.schema, n.relation FROM pg_temp.queue_move_parts AS n) AS r
        JOIN pg_catalog.pg_class AS o ON o.relname = r.relation AND o.relnamespace = (r.schema || '_before')::regnamespace,
             LATERAL pg_temp.parts(o.oid) AS p
    ), own_function AS (
        SELECT p.oid FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = ANY (schemas)
          AND (NOT same_version OR EXISTS (
              SELECT FROM pg_catalog.pg_depend AS d
              WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
                AND d.refclassid = 'pg_catalog.pg_extension'::regclass AND d.refobjid = extension))
    ), own_object AS (
        SELECT 'pg_catalog.pg_proc'::regclass AS classid, f.oid AS objid FROM own_function AS f
        UNION ALL
        SELECT 'pg_catalog.pg_trigger'::regclass, t.oid
        FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
        WHERE c.relnamespace = ANY (schemas) AND t.tgfoid IN (SELECT f.oid FROM own_function AS f)
        UNION ALL
        SELECT 'pg_catalog.pg_extension'::regclass, extension
        UNION ALL
        SELECT 'pg_catalog.pg_class'::regclass, c.oid FROM pg_catalog.pg_class AS c
        WHERE NOT same_version AND c.relnamespace = ANY (schemas) AND c.relkind = 'v'
        UNION ALL
        SELECT 'pg_catalog.pg_type'::regclass, t.oid FROM pg_catalog.pg_type AS t
        WHERE NOT same_version AND t.typnamespace = ANY (schemas)
    ), addition AS (
        SELECT d.name FROM pg_temp.dropped(schemas, extension) AS d
        WHERE NOT EXISTS (SELECT FROM pg_temp.queue_move_own AS o WHERE o.name = d.name)
          AND NOT EXISTS (SELECT FROM own_object AS o WHERE o.classid = d.classid AND o.objid = d.objid)
        UNION
        -- No object depends on a column that was added, nor does a definition that was changed.
        SELECT pg_catalog.format('%s of %s', p.name, p.relation) FROM part AS p
        WHERE NOT p.is_same AND (p.is_known OR p.name ~ '^column ')
        UNION
        SELECT pg_catalog.format('%s of %s', p.name, 'queue.' || c.relname)
        FROM pg_catalog.pg_class AS c, LATERAL pg_temp.parts(c.oid) AS p
        WHERE c.relnamespace = 'queue_before'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$'
          AND p.name !~ '^(primary key|index) '
          AND (p.name, p.definition) NOT IN (SELECT n.name, n.definition FROM pg_temp.parts('queue.history_default'::regclass) AS n
                                             WHERE n.name ~ '^(kind$|column )')
        UNION
        SELECT pg_catalog.format('subscription of table %s', t.fresh::regclass)
        FROM pg_temp.queue_move_tables AS t JOIN pg_catalog.pg_subscription_rel AS s ON s.srrelid = t.old
    )
    SELECT (SELECT pg_catalog.min(p.relation) FROM part AS p WHERE p.name = 'kind' AND NOT p.is_same),
           (SELECT pg_catalog.array_agg(a.name ORDER BY a.name COLLATE "C") FROM addition AS a)
    INTO replaced, lost;
    IF replaced IS NOT NULL THEN
        RAISE EXCEPTION '% is not what it should be: it was replaced by something else of that name', replaced
            USING ERRCODE = 'wrong_object_type';
    ELSIF lost <> '{}' THEN
        RAISE EXCEPTION 'the move would lose additions to queue_ext'
            USING ERRCODE = 'dependent_objects_still_exist',
                  DETAIL = pg_catalog.array_to_string(lost[1:10], E'\n')
                           || CASE WHEN pg_catalog.cardinality(lost) > 10
                              THEN pg_catalog.format(E'\nand %s more', pg_catalog.cardinality(lost) - 10) ELSE '' END,
                  HINT = 'Drop them, and create them again after the move.';
    END IF;
END
$$;

-- Reads a table of the old edition with the rights of its owner. Refreshing a materialized view is the only way in
-- SQL to run a query as another role such that it can neither return to the caller's role nor leave anything for the
-- commit (SECURITY_RESTRICTED_OPERATION). Its columns have types of the server.
CREATE SCHEMA queue_move;
CREATE FUNCTION pg_temp.read_old(name pg_catalog.text, query pg_catalog.text) RETURNS pg_catalog.void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format('CREATE MATERIALIZED VIEW queue_move.%I AS %s WITH NO DATA', name, query);
    EXECUTE pg_catalog.format('ALTER MATERIALIZED VIEW queue_move.%I OWNER TO %s', name,
                              pg_catalog.current_setting('queue_move.owner'));
    EXECUTE pg_catalog.format('REFRESH MATERIALIZED VIEW queue_move.%I', name);
END
$$;

-- Rows that a policy would hide raise an error, and rows are written in the order in which they were read.
SET LOCAL row_security = off;
SET LOCAL synchronize_seqscans = off;
DO $$
DECLARE
    moved   record;
    columns pg_catalog.text;
    casts   pg_catalog.text;
    found   bigint;
    written bigint;
BEGIN
    -- Deletes the rows of the new installation, such as the queue "default".
    FOR moved IN SELECT t.fresh FROM pg_temp.queue_move_tables AS t WHERE t.kind = 'r' LOOP
        EXECUTE pg_catalog.format('DELETE FROM %s', moved.fresh::regclass);
    END LOOP;
    -- Tasks come last: their triggers then find the rows that belong to them, such as keys, and do not create them
    -- again. Locks are created by a trigger on queues and with their first groups, heads of groups when they are needed.
    FOR moved IN
        SELECT t.* FROM pg_temp.queue_move_tables AS t
        WHERE t.kind = 'r' AND t.fresh NOT IN ('queue_internal.locks'::regclass, 'queue_internal.group_heads'::regclass, 'queue_internal.group_returns'::regclass)
        ORDER BY t.fresh = 'queue.tasks'::regclass, t.fresh
    LOOP
        -- The columns of both. The server generates new values for identity columns, in the same order.
        SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n.attname), ', ' ORDER BY n.attnum) FILTER (WHERE n.attidentity = ''),
               pg_catalog.string_agg(pg_catalog.format('o.%I::%s AS %1$I', n.attname, pg_catalog.format_type(n.atttypid, n.atttypmod)),
                                     ', ' ORDER BY n.attnum)
               || ' FROM ' || moved.old::regclass || ' AS o'
               || coalesce(' ORDER BY ' || pg_catalog.string_agg('o.' || pg_catalog.quote_ident(n.attname), ', ')
                                           FILTER (WHERE n.attidentity <> ''), '')
        INTO columns, casts
        FROM pg_catalog.pg_attribute AS o JOIN pg_catalog.pg_attribute AS n ON n.attname = o.attname
        WHERE o.attrelid = moved.old AND n.attrelid = moved.fresh AND o.attnum > 0 AND NOT o.attisdropped AND NOT n.attisdropped;
        PERFORM pg_temp.read_old(moved.name, 'SELECT ' || casts);
        -- The triggers of the tasks treat these rows as those of a dump: in any order, and unchanged. They check for
        -- the empty text; SET would write an empty name in quotes.
        PERFORM pg_catalog.set_config('search_path', '', true) WHERE moved.fresh = 'queue.tasks'::regclass;
        EXECUTE pg_catalog.format('INSERT INTO %s (%s) SELECT %2$s FROM queue_move.%I AS o%s', moved.fresh::regclass, columns,
            moved.name, CASE moved.fresh WHEN 'queue.rights'::regclass
                THEN ' WHERE EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = o.role)' ELSE '' END);
        GET DIAGNOSTICS written = ROW_COUNT;
        EXECUTE pg_catalog.format('SELECT pg_catalog.count(*) FROM queue_move.%I', moved.name) INTO found;
        IF written < found AND moved.fresh <> 'queue.rights'::regclass THEN
            RAISE EXCEPTION '% of % rows of table % would be lost', found - written, found, moved.fresh::regclass;
        END IF;
    END LOOP;
END
$$;
SELECT pg_temp.read_old('tasks_id_seq', 'SELECT s.last_value::bigint, s.is_called::boolean FROM queue_before.tasks_id_seq AS s') \g /dev/null
SELECT pg_catalog.setval('queue.tasks_id_seq', s.last_value, s.is_called) FROM queue_move.tasks_id_seq AS s \g /dev/null

-- The partitions of the history, as they are.
DO $$
DECLARE
    owner   CONSTANT pg_catalog.text :=
        (SELECT c.relowner::regrole::text FROM pg_catalog.pg_class AS c WHERE c.oid = 'queue.history'::regclass);
    day     record;
    grantee pg_catalog.text;
    since   pg_catalog.timestamptz;
BEGIN
    FOR day IN
        SELECT c.oid, c.relname AS name, c.relispartition AS attached
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'queue_before'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$'
    LOOP
        -- What the owner has created since begin.sql locked all tables can still be changed.
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_locks AS l
                       WHERE l.relation = day.oid AND l.pid = pg_catalog.pg_backend_pid() AND l.mode = 'AccessExclusiveLock'
                         AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                                           WHERE d.datname = pg_catalog.current_database())) THEN
            RAISE EXCEPTION 'table queue.% was created during the move', day.name
                USING ERRCODE = 'object_in_use', HINT = 'Nothing was changed. Drop it, and move again.';
        END IF;
        IF day.attached THEN
            EXECUTE pg_catalog.format('ALTER TABLE queue_before.history DETACH PARTITION queue_before.%I', day.name);
        END IF;
        EXECUTE pg_catalog.format('ALTER TABLE queue_before.%I SET SCHEMA queue', day.name);
        EXECUTE pg_catalog.format('ALTER TABLE queue.%I OWNER TO %s', day.name, owner);
        -- A role that may create a trigger on it could have it run with the rights of every role that ends a task.
        FOR grantee IN
            SELECT DISTINCT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END
            FROM (SELECT c.relacl FROM pg_catalog.pg_class AS c WHERE c.oid = day.oid
                  UNION ALL SELECT a.attacl FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = day.oid) AS acl (items),
                 LATERAL pg_catalog.aclexplode(acl.items) AS x
            WHERE x.grantee::regrole::text <> owner
        LOOP
            EXECUTE pg_catalog.format('REVOKE ALL ON queue.%I FROM %s CASCADE', day.name, grantee);
        END LOOP;
        IF day.attached THEN
            since := pg_catalog.to_timestamp(pg_catalog.right(day.name, 8) || ' +00', 'YYYYMMDD TZH');
            EXECUTE pg_catalog.format('ALTER TABLE queue.history ATTACH PARTITION queue.%I FOR VALUES FROM (%L) TO (%L)',
                                      day.name, since, since + interval '24 hours');
        END IF;
    END LOOP;
END
$$;

-- The settings: a table in the SQL-only edition, postgresql.conf in the native one.
DO $$
DECLARE
    setting record;
BEGIN
    IF pg_catalog.current_setting('queue_move.from') = 'native' THEN
        INSERT INTO queue_internal.settings (name, value)
        SELECT pg_catalog.split_part(s.name, '.', 2), pg_catalog.current_setting(s.name) FROM pg_catalog.pg_settings AS s
        WHERE s.name IN ('queue.history_retention', 'queue.dead_letter_retention', 'queue.event_retention',
                         'queue.history_ahead', 'queue.max_lease')
          AND s.setting <> s.boot_val;
    ELSIF pg_catalog.current_setting('queue_move.to') = 'native' THEN
        PERFORM pg_temp.read_old('settings', 'SELECT s.name::text, s.value::text FROM queue_internal_before.settings AS s');
        FOR setting IN SELECT s.name, s.value FROM queue_move.settings AS s WHERE s.name <> 'poll_interval' LOOP
            RAISE WARNING 'add this to postgresql.conf: queue.% = %', setting.name, pg_catalog.quote_literal(setting.value);
        END LOOP;
    END IF;
END
$$;

-- Drops the old edition.
SET LOCAL client_min_messages = error;
DROP SCHEMA queue_move CASCADE;
DO $$
BEGIN
    IF pg_catalog.current_setting('queue_move.from') = 'native' THEN
        DROP EXTENSION queue_ext;
    ELSE
        DROP SCHEMA queue_before, queue_internal_before CASCADE;
    END IF;
END
$$;
COMMIT;
