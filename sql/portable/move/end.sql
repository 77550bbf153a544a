    RESET ROLE;
\endif

-- The triggers take the rows for those of a dump: they may come in any order, and are as they shall be.
SET LOCAL search_path = '';
SET LOCAL check_function_bodies = off;

CREATE FUNCTION pg_temp.before(relation pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql
RETURN pg_catalog.regexp_replace(relation, '^(queue|queue_internal)\.', '\1_before.');

-- What somebody added to the tables would be lost; and reading what he put in their place could run his code.
DO $$
DECLARE
    relation pg_catalog.text;
    addition pg_catalog.text;
BEGIN
    FOR relation IN
        SELECT g.relation FROM queue_internal.guards(NULL) AS g
        UNION VALUES ('queue.rights'), ('queue.history_default')
    LOOP
        SELECT d.name INTO addition FROM (
            SELECT 'not a table' FROM pg_catalog.pg_class AS o JOIN pg_catalog.pg_class AS n ON n.oid = relation::regclass
            WHERE o.oid = pg_temp.before(relation)::regclass AND o.relkind <> n.relkind
            UNION ALL
            SELECT 'rule ' || r.rulename FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = pg_temp.before(relation)::regclass
            UNION ALL
            SELECT 'column ' || a.attname FROM pg_catalog.pg_attribute AS a
            WHERE a.attrelid = pg_temp.before(relation)::regclass AND a.attnum > 0 AND NOT a.attisdropped
              AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS n
                              WHERE n.attrelid = relation::regclass AND n.attname = a.attname AND NOT n.attisdropped
                                AND n.atttypid = a.atttypid AND n.attgenerated = a.attgenerated)
            UNION ALL
            SELECT 'index ' || i.indexrelid::regclass FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
            WHERE i.indrelid = pg_temp.before(relation)::regclass
              AND NOT EXISTS (SELECT FROM pg_catalog.pg_index AS n JOIN pg_catalog.pg_class AS m ON m.oid = n.indexrelid
                              WHERE n.indrelid = relation::regclass AND m.relname = c.relname)
            UNION ALL
            SELECT 'trigger ' || t.tgname FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
            WHERE t.tgrelid = pg_temp.before(relation)::regclass AND NOT t.tgisinternal
              AND p.pronamespace <> 'queue_internal_before'::regnamespace
        ) AS d (name) LIMIT 1;
        IF addition IS NOT NULL THEN
            RAISE EXCEPTION 'table % has an addition that would be lost: %', relation, addition
                USING HINT = 'Drop it, and make it again afterwards.';
        END IF;
    END LOOP;
    -- The days of the history come along as they are. So they must be bare.
    SELECT d.name INTO addition FROM pg_catalog.pg_class AS c, LATERAL (
        SELECT 'rule ' || r.rulename FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = c.oid
        UNION ALL SELECT 'trigger ' || t.tgname FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
        UNION ALL SELECT 'constraint ' || k.conname FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = c.oid AND k.contype NOT IN ('p', 'n')
        UNION ALL SELECT 'policy ' || p.polname FROM pg_catalog.pg_policy AS p WHERE p.polrelid = c.oid
        UNION ALL SELECT 'index ' || i.indexrelid::regclass FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
        UNION ALL SELECT 'default of ' || a.attname FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_attrdef AS v
            ON v.adrelid = a.attrelid AND v.adnum = a.attnum
        WHERE a.attrelid = c.oid AND (a.attgenerated <> '' OR pg_catalog.pg_get_expr(v.adbin, v.adrelid) <> 'clock_timestamp()')
    ) AS d (name)
    WHERE c.relnamespace = 'queue_before'::regnamespace AND c.relname ~ '^history_[0-9]{8}$' LIMIT 1;
    IF addition IS NOT NULL THEN
        RAISE EXCEPTION 'a day of the history has an addition: %', addition
            USING HINT = 'Drop it, and make it again afterwards.';
    END IF;
END
$$;

-- The fresh queue "default" gives way to whatever was there.
DELETE FROM queue.queues;

DO $$
DECLARE
    relation pg_catalog.text;
    columns  pg_catalog.text;
BEGIN
    FOREACH relation IN ARRAY ARRAY[
        'queue.queues', 'queue.bindings', 'queue.schedules', 'queue.dead_letters', 'queue.history_default',
        'queue_internal.keys', 'queue_internal.slots', 'queue_internal.tokens', 'queue_internal.dependencies',
        'queue_internal.signals', 'queue.tasks', 'queue.rights', 'queue_internal.guarded', 'queue_internal.settings', 'queue_internal.upkeep'
    ] LOOP
        -- The columns that both have; what the server numbers, it numbers anew.
        SELECT pg_catalog.string_agg(pg_catalog.quote_ident(o.attname), ', ' ORDER BY o.attnum) INTO columns
        FROM pg_catalog.pg_attribute AS o JOIN pg_catalog.pg_attribute AS n ON n.attname = o.attname
        WHERE o.attrelid = pg_catalog.to_regclass(pg_temp.before(relation))
          AND n.attrelid = pg_catalog.to_regclass(relation) AND o.attnum > 0
          AND NOT o.attisdropped AND NOT n.attisdropped AND n.attidentity = '';
        CONTINUE WHEN columns IS NULL;
        IF relation = 'queue_internal.upkeep' THEN
            DELETE FROM queue_internal.upkeep;
        END IF;
        EXECUTE pg_catalog.format('INSERT INTO %s (%s) SELECT %2$s FROM %s AS o%s', relation, columns,
            pg_temp.before(relation), CASE relation
                WHEN 'queue.rights' THEN ' WHERE EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.oid = o.role)'
                WHEN 'queue_internal.signals' THEN ' ORDER BY o.id'
                ELSE '' END);
    END LOOP;
END
$$;
SELECT pg_catalog.setval('queue.tasks_id_seq', s.last_value, s.is_called) FROM queue_before.tasks_id_seq AS s \g /dev/null

-- The days of the history, as they are.
DO $$
DECLARE
    owner CONSTANT pg_catalog.text :=
        (SELECT c.relowner::regrole::text FROM pg_catalog.pg_class AS c WHERE c.oid = 'queue.history'::regclass);
    day   record;
BEGIN
    FOR day IN
        SELECT c.relname AS name, c.relispartition AS attached, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS span
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'queue_before'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$'
    LOOP
        IF day.attached THEN
            EXECUTE pg_catalog.format('ALTER TABLE queue_before.history DETACH PARTITION queue_before.%I', day.name);
        END IF;
        EXECUTE pg_catalog.format('ALTER TABLE queue_before.%I SET SCHEMA queue', day.name);
        EXECUTE pg_catalog.format('ALTER TABLE queue.%I OWNER TO %s', day.name, owner);
        IF day.attached THEN
            EXECUTE pg_catalog.format('ALTER TABLE queue.history ATTACH PARTITION queue.%I %s', day.name, day.span);
        END IF;
    END LOOP;
END
$$;

-- The settings: in a table here, in a file there.
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
        FOR setting IN SELECT s.name, s.value FROM queue_internal_before.settings AS s WHERE s.name <> 'poll_interval' LOOP
            RAISE WARNING 'to be written into postgresql.conf: queue.% = %', setting.name, pg_catalog.quote_literal(setting.value);
        END LOOP;
    END IF;
END
$$;

-- What was there before goes; but nothing else with it.
SET LOCAL client_min_messages = error;
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
            USING HINT = 'Drop it, and make it again afterwards.';
    END IF;
END
$$;
COMMIT;
