\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Every object has a comment.
SELECT pg_describe_object(o.classid, o.objid, 0) AS without_comment
FROM (
    SELECT 'pg_namespace'::regclass AS classid, n.oid AS objid FROM pg_namespace AS n WHERE n.nspname ~ '^queue'
    UNION ALL SELECT 'pg_proc'::regclass, p.oid FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text ~ '^queue'
    UNION ALL SELECT 'pg_class'::regclass, c.oid FROM pg_class AS c
    WHERE c.relnamespace::regnamespace::text ~ '^queue' AND c.relkind IN ('r', 'p', 'v', 'S')
    UNION ALL SELECT 'pg_trigger'::regclass, t.oid FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
    WHERE c.relnamespace::regnamespace::text ~ '^queue' AND NOT t.tgisinternal AND t.tgparentid = 0
    UNION ALL VALUES ('pg_type'::regclass, 'queue.claimed_task'::regtype)
) AS o
WHERE NOT EXISTS (SELECT FROM pg_description AS c
                  WHERE c.classoid = o.classid AND c.objoid = o.objid AND c.objsubid = 0);
-- The comment of a public function explains every parameter, and every public column has a comment.
SELECT p.oid::regprocedure AS function, a.name AS unexplained
FROM pg_proc AS p, unnest(p.proargnames[1:p.pronargs]) AS a (name)
WHERE p.pronamespace = 'queue'::regnamespace AND obj_description(p.oid, 'pg_proc') !~ format(E'(^|\n)- ([a-z_]+,[ \n]+)*%s[:,]', a.name)
UNION ALL
SELECT NULL, a.attrelid::regclass || '.' || a.attname
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'c') AND NOT c.relispartition
  AND c.relname !~ '^history_' AND a.attnum > 0 AND col_description(a.attrelid, a.attnum) IS NULL;
-- PUBLIC has no privileges except on functions that views and policies call. These report only the rights of their
-- caller.
SELECT p.oid::regprocedure AS open_to_public FROM pg_proc AS p
WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee = 0))
ORDER BY p.oid::regprocedure::text COLLATE "C";
SELECT c.oid::regclass AS open_to_public FROM pg_class AS c, aclexplode(c.relacl) AS a
WHERE c.relnamespace = 'queue'::regnamespace AND a.grantee = 0;
-- Nor has it on types, the row types of tables and views included: what a role makes of one would depend on the table.
SELECT t.oid::regtype AS open_to_public FROM pg_type AS t
WHERE t.typnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND t.typelem = 0
  AND (t.typacl IS NULL OR EXISTS (SELECT FROM aclexplode(t.typacl) AS a WHERE a.grantee = 0));
-- No function depends on the caller's search_path. Native functions look up no names. A function that commits cannot have
-- a SET clause, nor one that the planner inlines, whose body was parsed when it was created. The functions in conditions of
-- triggers look at the search_path of the statement, and qualify each name.
SELECT p.oid::regprocedure AS without_search_path FROM pg_proc AS p
WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  AND p.prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c')
  AND coalesce(p.proconfig::text, '') !~ 'search_path=pg_catalog, (queue_internal, )?pg_temp'
ORDER BY p.pronamespace::regnamespace::text COLLATE "C", p.proname, pg_get_function_identity_arguments(p.oid) COLLATE "C";
-- A disabled plan node counts as very expensive where there is no alternative, and jit would then compile the query.
SELECT p.oid::regprocedure AS with_jit FROM pg_proc AS p
WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  AND p.proconfig::text ~ 'enable_' AND NOT 'jit=off' = ANY (p.proconfig)
ORDER BY p.oid::regprocedure::text COLLATE "C";
-- The functions that run with the rights of the owner. In the native edition these are only the triggers of an INSERT,
-- because the entry points of the public functions are in the library.
SELECT p.oid::regprocedure AS security_definer FROM pg_proc AS p
WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND p.prosecdef
ORDER BY p.oid::regprocedure::text COLLATE "C";
-- A function that returns its rows one by one would continue after its entry point has given up the owner's rights.
SELECT p.oid::regprocedure AS lazy_set FROM pg_proc AS p
WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proretset
  AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'sql') AND p.proname NOT IN ('counted', 'first_task')
ORDER BY p.oid::regprocedure::text COLLATE "C";
-- No index depends on the system's collation: names and keys are compared byte by byte.
SELECT i.indexrelid::regclass AS in_another_order FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid, unnest(i.indcollation) AS o (id)
WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND o.id <> 0 AND o.id <> '"C"'::regcollation
ORDER BY i.indexrelid::regclass::text COLLATE "C";
-- The public functions.
SELECT p.proname, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
FROM pg_proc AS p WHERE p.pronamespace = 'queue'::regnamespace ORDER BY 1, 2;
-- The settings, with the defaults of the library and of the SQL implementation.
SELECT queue.engine_stats() IS NOT NULL AS loaded;
SELECT name, context, unit, boot_val, min_val, max_val FROM pg_settings
WHERE name LIKE 'queue.%' AND context <> 'postmaster' ORDER BY name;
SELECT queue_internal.setting('max_lease', 'none') = '7d' AND queue_internal.setting('history_retention', 'none') = '7d'
   AND queue_internal.setting('dead_letter_retention', 'none') = '30d' AND queue_internal.setting('event_retention', 'none') = '7d' AND queue_internal.setting('history_ahead', 'none') = '3' AS same_defaults;
