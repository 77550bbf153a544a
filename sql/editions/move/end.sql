    RESET ROLE;
\endif

-- Only objects of the server are found without a schema.
SET LOCAL search_path = '';
SET LOCAL check_function_bodies = off;

-- The tables of the new edition, the tables of the same name in the old one, and the sequence. Tables that the old
-- edition lacks stay as they are.
CREATE TEMP TABLE queue_move_tables ON COMMIT DROP AS
SELECT n.oid AS fresh, o.oid AS old, n.relname AS name, n.relkind AS kind
FROM pg_catalog.pg_class AS n JOIN pg_catalog.pg_class AS o
  ON o.relname = n.relname AND o.relnamespace = (n.relnamespace::regnamespace::text || '_before')::regnamespace
WHERE n.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  AND (n.relkind IN ('r', 'p') OR n.oid = 'queue.tasks_id_seq'::regclass);

-- The parts of a table, each with its definition. Nothing here runs code of the table's owner.
CREATE FUNCTION pg_temp.parts(relation pg_catalog.oid, OUT name pg_catalog.text, OUT definition pg_catalog.text)
RETURNS SETOF pg_catalog.record LANGUAGE sql AS $$
    SELECT p.name, pg_catalog.regexp_replace(p.definition, E'\\m(queue|queue_internal)_before\\M', E'\\1', 'g')
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
        SELECT 'trigger ' || t.tgname, t.tgfoid::regprocedure::text FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS f ON f.oid = t.tgfoid
        WHERE t.tgrelid = relation AND NOT t.tgisinternal AND f.pronamespace <> 'queue_internal'::regnamespace
          AND f.pronamespace <> 'queue_internal_before'::regnamespace
        UNION ALL
        SELECT 'child ' || h.inhrelid::regclass, NULL
        FROM pg_catalog.pg_inherits AS h JOIN pg_catalog.pg_class AS c ON c.oid = h.inhrelid
        WHERE h.inhparent = relation AND (c.relkind NOT IN ('r', 'i', 'I') OR c.relname !~ '^history_([0-9]{8}|default)')
    ) AS p (name, definition)
$$;

-- Additions to the tables would be lost, and the partitions of the history are moved as they are. So there must be
-- none. The definitions of two versions may differ.
DO $$
DECLARE
    relation pg_catalog.text;
    addition pg_catalog.text;
BEGIN
    SELECT t.fresh::regclass, o.name INTO relation, addition
    FROM pg_temp.queue_move_tables AS t, LATERAL pg_temp.parts(t.old) AS o
    WHERE NOT EXISTS (
        SELECT FROM pg_temp.parts(t.fresh) AS n
        WHERE n.name = o.name AND (n.definition IS NOT DISTINCT FROM o.definition
            OR o.name <> 'kind' AND pg_catalog.current_setting('queue_move.same_version') = 'false'))
    LIMIT 1;
    IF addition = 'kind' THEN
        RAISE EXCEPTION '% is not what it should be: it was replaced by something else of that name', relation;
    ELSIF addition IS NOT NULL THEN
        RAISE EXCEPTION 'table % has an addition that would be lost: %', relation, addition
            USING HINT = 'Drop it, and create it again afterwards.';
    END IF;
    SELECT c.relname, d.name INTO relation, addition FROM pg_catalog.pg_class AS c, LATERAL (
        SELECT o.name FROM pg_temp.parts(c.oid) AS o
        WHERE o.name !~ '^(primary key|index) '
          AND (o.name, o.definition) NOT IN (SELECT n.name, n.definition FROM pg_temp.parts('queue.history_default'::regclass) AS n
                                             WHERE n.name ~ '^(kind$|column )')
        UNION ALL SELECT 'policy ' || p.polname FROM pg_catalog.pg_policy AS p WHERE p.polrelid = c.oid
    ) AS d
    WHERE c.relnamespace = 'queue_before'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$' LIMIT 1;
    IF addition IS NOT NULL THEN
        RAISE EXCEPTION 'a day of the history, %, has an addition: %', relation, addition
            USING HINT = 'Drop it, and create it again afterwards.';
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
    -- again. Locks are created by a trigger on queues and with their first groups.
    FOR moved IN
        SELECT t.* FROM pg_temp.queue_move_tables AS t WHERE t.kind = 'r' AND t.fresh <> 'queue_internal.locks'::regclass
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
        WHERE s.name IN ('queue.history_retention', 'queue.dead_letter_retention', 'queue.history_ahead', 'queue.max_lease')
          AND s.setting <> s.boot_val;
    ELSIF pg_catalog.current_setting('queue_move.to') = 'native' THEN
        PERFORM pg_temp.read_old('settings', 'SELECT s.name::text, s.value::text FROM queue_internal_before.settings AS s');
        FOR setting IN SELECT s.name, s.value FROM queue_move.settings AS s WHERE s.name <> 'poll_interval' LOOP
            RAISE WARNING 'add this to postgresql.conf: queue.% = %', setting.name, pg_catalog.quote_literal(setting.value);
        END LOOP;
    END IF;
END
$$;

-- Drops the old edition, but nothing else with it.
SET LOCAL client_min_messages = error;
DROP SCHEMA queue_move CASCADE;
DO $$
DECLARE
    lost pg_catalog.text;
BEGIN
    IF pg_catalog.current_setting('queue_move.from') = 'native' THEN
        DROP EXTENSION queue_ext;
    ELSE
        DROP SCHEMA queue_before, queue_internal_before CASCADE;
    END IF;
    SELECT o.name INTO lost FROM pg_temp.queue_move_outside AS o
    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE o.classid = 'pg_catalog.pg_class'::regclass AND c.oid = o.objid)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE o.classid = 'pg_catalog.pg_proc'::regclass AND p.oid = o.objid)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE o.classid = 'pg_catalog.pg_trigger'::regclass AND t.oid = o.objid)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS c
                      WHERE o.classid = 'pg_catalog.pg_constraint'::regclass AND c.oid = o.objid)
    LIMIT 1;
    IF lost IS NOT NULL THEN
        RAISE EXCEPTION '% depends on queue_ext, and would be dropped', lost
            USING HINT = 'Drop it, and create it again afterwards.';
    END IF;
END
$$;
COMMIT;
