-- All that the catalogs say of the extension, a line for each fact: what it is about, which fact, and how it is.
-- Two databases with the same lines have the same extension, whichever way it came there.

WITH extension AS (SELECT * FROM pg_extension WHERE extname = 'queue_ext'),
members AS (
    SELECT d.classid, d.objid, d.objsubid, pg_describe_object(d.classid, d.objid, d.objsubid) AS what
    FROM pg_depend AS d JOIN extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
    WHERE d.deptype = 'e'),
schemas AS (SELECT n.* FROM pg_namespace AS n WHERE n.nspname IN ('queue', 'queue_internal')),
-- Whatever is in the two schemas, a member or not: an upgrade script may leave something behind.
relations AS (
    SELECT c.*, c.oid::regclass::text AS what FROM pg_class AS c WHERE c.relnamespace IN (SELECT oid FROM schemas)),
facts (what, fact, value) AS (
    SELECT m.what, 'is a member', '' FROM members AS m
    UNION ALL
    SELECT m.what, 'comment', obj_description(m.objid, m.classid::regclass::name) FROM members AS m
    UNION ALL
    SELECT m.what, 'initial privileges', (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(i.initprivs) AS a)
    FROM members AS m JOIN pg_init_privs AS i ON (i.classoid, i.objoid, i.objsubid) = (m.classid, m.objid, m.objsubid)
    UNION ALL
    SELECT 'the extension', f.fact, f.value
    FROM extension AS e, LATERAL (VALUES
        ('owner', e.extowner::regrole::text), ('schema', e.extnamespace::regnamespace::text),
        ('relocatable', e.extrelocatable::text), ('comment', obj_description(e.oid, 'pg_extension'))) AS f (fact, value)
    UNION ALL
    SELECT c.relation::regclass::text, 'dumped', c.condition
    FROM extension AS e, unnest(e.extconfig, e.extcondition) AS c (relation, condition)
    UNION ALL
    SELECT s.nspname, f.fact, f.value
    FROM schemas AS s, LATERAL (VALUES
        ('owner', s.nspowner::regrole::text),
        ('privileges', (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(s.nspacl) AS a)),
        ('comment', obj_description(s.oid, 'pg_namespace'))) AS f (fact, value)
    UNION ALL
    SELECT p.oid::regprocedure::text, f.fact, f.value
    FROM pg_proc AS p, LATERAL (VALUES
        ('definition', pg_get_functiondef(p.oid)), ('owner', p.proowner::regrole::text),
        ('support', p.prosupport::text),
        ('privileges', (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(p.proacl) AS a)),
        ('comment', obj_description(p.oid, 'pg_proc'))) AS f (fact, value)
    WHERE p.pronamespace IN (SELECT oid FROM schemas) AND p.prokind IN ('f', 'p', 'w')
    UNION ALL
    SELECT r.what, f.fact, f.value
    FROM relations AS r, LATERAL (VALUES
        ('kind', concat_ws(' ', r.relkind, r.relpersistence, r.relreplident, (SELECT amname FROM pg_am WHERE oid = r.relam))),
        ('owner', r.relowner::regrole::text), ('options', r.reloptions::text),
        ('options of what is out of line', (SELECT t.reloptions::text FROM pg_class AS t WHERE t.oid = r.reltoastrelid)),
        ('row-level security', concat_ws(' ', r.relrowsecurity, r.relforcerowsecurity)),
        ('partitioned by', pg_get_partkeydef(r.oid)), ('partition', pg_get_expr(r.relpartbound, r.oid)),
        ('query', CASE WHEN r.relkind IN ('v', 'm') THEN pg_get_viewdef(r.oid) END),
        ('privileges', (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(r.relacl) AS a)),
        ('comment', obj_description(r.oid, 'pg_class'))) AS f (fact, value)
    UNION ALL
    -- By their order, which is what * and COPY go by; dropped ones do not count.
    SELECT r.what || ' column ' || dense_rank() OVER (PARTITION BY r.oid ORDER BY a.attnum), f.fact, f.value
    FROM relations AS r
    JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum),
    LATERAL (VALUES
        ('column', concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                             a.attgenerated, a.attstorage, a.attcompression, nullif(a.attcollation, 0)::regcollation)),
        ('default', pg_get_expr(d.adbin, d.adrelid)),
        -- Some builds of PostgreSQL 15 put an option of their own there.
        ('options', (SELECT string_agg(o, ' ' ORDER BY o) FROM unnest(a.attoptions) AS o WHERE o NOT LIKE 'pg_attver=%')),
        ('statistics', nullif(a.attstattarget, -1)::text),
        ('privileges', (SELECT string_agg(p::text, ' ' ORDER BY p::text) FROM unnest(a.attacl) AS p)),
        ('comment', col_description(a.attrelid, a.attnum))) AS f (fact, value)
    UNION ALL
    SELECT coalesce(c.conrelid::regclass::text, c.contypid::regtype::text) || ' constraint ' || c.conname, f.fact, f.value
    FROM pg_constraint AS c, LATERAL (VALUES
        ('definition', pg_get_constraintdef(c.oid)), ('valid', c.convalidated::text),
        ('comment', obj_description(c.oid, 'pg_constraint'))) AS f (fact, value)
    WHERE c.connamespace IN (SELECT oid FROM schemas)
    UNION ALL
    SELECT i.indexrelid::regclass::text, f.fact, f.value
    FROM pg_index AS i JOIN relations AS r ON r.oid = i.indexrelid, LATERAL (VALUES
        ('index', pg_get_indexdef(i.indexrelid)),
        ('state', concat_ws(' ', i.indisvalid, i.indisready, i.indisclustered, i.indisreplident))) AS f (fact, value)
    UNION ALL
    SELECT r.what || ' trigger ' || t.tgname, f.fact, f.value
    FROM pg_trigger AS t JOIN relations AS r ON r.oid = t.tgrelid, LATERAL (VALUES
        ('definition', pg_get_triggerdef(t.oid)), ('enabled', t.tgenabled::text),
        ('comment', obj_description(t.oid, 'pg_trigger'))) AS f (fact, value)
    WHERE NOT t.tgisinternal
    UNION ALL
    SELECT r.what || ' policy ' || p.polname, 'policy',
           concat_ws(' | ', p.polcmd, p.polpermissive, p.polroles::regrole[],
                     pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_policy AS p JOIN relations AS r ON r.oid = p.polrelid
    UNION ALL
    SELECT r.what || ' rule ' || w.rulename, 'rule', pg_get_ruledef(w.oid) || w.ev_enabled::text
    FROM pg_rewrite AS w JOIN relations AS r ON r.oid = w.ev_class
    UNION ALL
    SELECT r.what, 'sequence', concat_ws(' ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle)
    FROM pg_sequence AS s JOIN relations AS r ON r.oid = s.seqrelid
    UNION ALL
    SELECT t.oid::regtype::text, f.fact, f.value
    FROM pg_type AS t, LATERAL (VALUES
        ('type', concat_ws(' ', t.typtype, t.typcategory, t.typnotnull, nullif(t.typbasetype, 0)::regtype, t.typdefault)),
        ('labels', (SELECT string_agg(e.enumlabel, ' ' ORDER BY e.enumsortorder) FROM pg_enum AS e WHERE e.enumtypid = t.oid)),
        ('owner', t.typowner::regrole::text),
        ('privileges', (SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM unnest(t.typacl) AS a)),
        ('comment', obj_description(t.oid, 'pg_type'))) AS f (fact, value)
    WHERE t.typnamespace IN (SELECT oid FROM schemas)
    UNION ALL
    SELECT 'statistics ' || s.stxname, 'definition', pg_get_statisticsobjdef(s.oid)
    FROM pg_statistic_ext AS s WHERE s.stxnamespace IN (SELECT oid FROM schemas)
    UNION ALL
    SELECT 'event trigger ' || t.evtname, 'definition',
           concat_ws(' ', t.evtevent, t.evtowner::regrole, t.evtfoid::regprocedure, t.evtenabled, t.evttags)
    FROM pg_event_trigger AS t
    UNION ALL
    SELECT 'default privileges', d.defaclobjtype::text, d.defaclacl::text
    FROM pg_default_acl AS d WHERE d.defaclnamespace IN (SELECT oid FROM schemas)
    UNION ALL
    -- What needs what: a sequence its column, a function of parsed SQL what it names.
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid),
           'needs (' || d.deptype::text || ') ' || pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), ''
    FROM pg_depend AS d JOIN members AS m ON (d.classid, d.objid) = (m.classid, m.objid)
    UNION ALL
    SELECT 'row of queue.queues', q.name, (to_jsonb(q) - 'created_at')::text FROM queue.queues AS q
)
SELECT DISTINCT concat_ws(': ', f.what, f.fact, f.value) AS line
FROM facts AS f WHERE f.value IS NOT NULL
ORDER BY 1;
