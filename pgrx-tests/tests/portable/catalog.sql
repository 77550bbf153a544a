-- What there is in the two schemas, object by object, without the days of the history: one line for each.
WITH objects AS (
    SELECT 'schema ' || n.nspname AS name, concat_ws(' ', n.nspowner::regrole, n.nspacl, obj_description(n.oid)) AS what
    FROM pg_namespace AS n WHERE n.nspname ~ '^queue'
    UNION ALL
    SELECT 'function ' || p.oid::regprocedure,
           concat_ws(' ', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), md5(pg_get_functiondef(p.oid)),
                     p.proowner::regrole, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(p.proacl) AS a),
                     obj_description(p.oid, 'pg_proc'))
    FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text ~ '^queue'
    UNION ALL
    SELECT 'relation ' || c.oid::regclass,
           concat_ws(' ', c.relkind, c.relowner::regrole, c.reloptions, c.relrowsecurity,
                     (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(c.relacl) AS a),
                     md5(CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END), obj_description(c.oid, 'pg_class'))
    FROM pg_class AS c
    WHERE c.relnamespace::regnamespace::text ~ '^queue' AND c.relname !~ '^history_\d{8}'
    UNION ALL
    SELECT 'column ' || a.attrelid::regclass || '.' || a.attnum || ' ' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid),
                     (SELECT array_agg(x::text ORDER BY x::text) FROM unnest(a.attacl) AS x), col_description(a.attrelid, a.attnum))
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace::regnamespace::text ~ '^queue' AND c.relname !~ '^history_\d{8}' AND a.attnum > 0
    UNION ALL
    SELECT 'constraint ' || o.conrelid::regclass || ' ' || o.conname, pg_get_constraintdef(o.oid)
    FROM pg_constraint AS o JOIN pg_class AS c ON c.oid = o.conrelid
    WHERE o.connamespace::regnamespace::text ~ '^queue' AND c.relname !~ '^history_\d{8}'
    UNION ALL
    SELECT 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid)
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
    WHERE c.relnamespace::regnamespace::text ~ '^queue' AND c.relname !~ '^history_\d{8}'
    UNION ALL
    SELECT 'trigger ' || t.tgrelid::regclass || ' ' || t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
    FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
    WHERE c.relnamespace::regnamespace::text ~ '^queue' AND NOT t.tgisinternal AND c.relname !~ '^history_\d{8}'
    UNION ALL
    SELECT 'policy ' || p.polrelid::regclass || ' ' || p.polname,
           concat_ws(' ', p.polcmd, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_policy AS p
    UNION ALL
    SELECT 'member ' || pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype::text
    FROM pg_depend AS d WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
      AND d.refobjid = (SELECT e.oid FROM pg_extension AS e WHERE e.extname = 'queue_ext')
    UNION ALL
    SELECT 'extension ' || e.extname, concat_ws(' ', e.extversion, e.extowner::regrole, e.extconfig::regclass[], e.extcondition)
    FROM pg_extension AS e WHERE e.extname = 'queue_ext'
)
SELECT o.name || ': ' || o.what FROM objects AS o ORDER BY o.name COLLATE "C"
