\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- What a claim changes is in no index.
SELECT i.indexrelid::regclass, pg_get_indexdef(i.indexrelid) FROM pg_index AS i
WHERE i.indrelid = 'queue.tasks'::regclass ORDER BY 1;
