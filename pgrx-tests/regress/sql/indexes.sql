\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- No index contains a column that a claim changes.
SELECT i.indexrelid::regclass, pg_get_indexdef(i.indexrelid) FROM pg_index AS i
WHERE i.indrelid = 'queue.tasks'::regclass ORDER BY 1;
-- No function scans the table for a task with a given id, although the table is tiny: a session keeps its plans when the
-- table has grown to a million tasks.
SELECT count(queue.push('default', key => n::text)) FROM generate_series(1, 9) AS n;
ANALYZE queue.tasks;
BEGIN;
DO $$
DECLARE
    task queue.claimed_task;
BEGIN
    SELECT * INTO task FROM queue.claim();
    PERFORM queue.extend(task.id, task.token);
    PERFORM queue.release(task.id, task.token);
    SELECT * INTO task FROM queue.claim();
    PERFORM queue.fail(task.id, task.token, 'no', permanent => true);
    PERFORM queue.retry(task.id);
    SELECT * INTO task FROM queue.claim();
    PERFORM queue.complete(task.id, task.token);
    PERFORM queue.get(task.id);
    SELECT * INTO task FROM queue.claim();
    PERFORM queue.cancel(task.id);
    PERFORM queue.confirm_cancel(task.id, task.token);
    PERFORM queue.cancel(task.id + 1);
    PERFORM queue.push('default', key => (task.id + 2)::text, on_duplicate => 'replace');
    PERFORM queue.complete(task.id + 2, 7);
EXCEPTION WHEN SQLSTATE 'QX001' THEN
    NULL;
END
$$;
SELECT relname, seq_scan FROM pg_stat_xact_user_tables
WHERE relid IN ('queue.tasks'::regclass, 'queue.dead_letters'::regclass) ORDER BY 1;
ROLLBACK;
