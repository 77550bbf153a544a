-- The verbs that the library serves natively where it can.
--
--   The core functions of the verbs below move into schema queue_internal, under the same name, and the
--   native ones take their place, with the same arguments. What is not plain they hand over to the core,
--   which remains the only place where a verb's meaning is written (src/verbs.rs).
--   Why they have no SET clause: they look nothing up by name but by the schemas of the extension.

DO $$
DECLARE
    core   regprocedure;
    header text;
BEGIN
    FOREACH core IN ARRAY ARRAY[
        'queue.push(text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb, interval, text)',
        'queue.push_many(text, jsonb[], integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb, interval, text, text[], text[])',
        'queue.claim(interval, text, integer, text)',
        'queue.complete(bigint, bigint, jsonb)',
        'queue.complete_many(bigint[], bigint[], jsonb[])',
        'queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text)',
        'queue.extend(bigint, bigint, interval, jsonb)'
    ]::regprocedure[] LOOP
        SELECT format('queue.%I(%s) RETURNS %s', p.proname, pg_get_function_arguments(p.oid),
                      pg_get_function_result(p.oid))
        INTO header FROM pg_proc AS p WHERE p.oid = core;
        EXECUTE format('ALTER FUNCTION %s SET SCHEMA queue_internal', core);
        EXECUTE format('CREATE FUNCTION %s LANGUAGE c VOLATILE PARALLEL UNSAFE AS %L, %L',
                       header, 'MODULE_PATHNAME', 'queue_' || (SELECT p.proname FROM pg_proc AS p WHERE p.oid = core));
        EXECUTE format('COMMENT ON FUNCTION queue.%I(%s) IS %L',
                       (SELECT p.proname FROM pg_proc AS p WHERE p.oid = core),
                       pg_get_function_identity_arguments(core), obj_description(core, 'pg_proc'));
    END LOOP;
END
$$;

-- How the lanes learn of what the native verbs did not do themselves: the core's own statements, and
-- anybody's INSERT, COPY, UPDATE and DELETE.

CREATE FUNCTION queue_internal.tasks_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'tasks_announced';
COMMENT ON FUNCTION queue_internal.tasks_announced() IS 'Tells the lanes of tasks that a statement inserted.';

CREATE TRIGGER tasks_announced AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_announced();
COMMENT ON TRIGGER tasks_announced ON queue.tasks IS 'Tells the lanes of new tasks.';

CREATE FUNCTION queue_internal.task_changed() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'task_changed';
COMMENT ON FUNCTION queue_internal.task_changed() IS 'Tells the lanes of a task that was changed or deleted.';

CREATE TRIGGER task_changed AFTER UPDATE OR DELETE ON queue.tasks
    FOR EACH ROW EXECUTE FUNCTION queue_internal.task_changed();
COMMENT ON TRIGGER task_changed ON queue.tasks IS 'Tells the lanes of changed tasks.';

CREATE FUNCTION queue_internal.signal_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'signal_announced';
COMMENT ON FUNCTION queue_internal.signal_announced() IS 'Tells the lane of a queue that there are signals to settle.';

CREATE TRIGGER signal_announced AFTER INSERT ON queue_internal.signals
    FOR EACH ROW EXECUTE FUNCTION queue_internal.signal_announced();
COMMENT ON TRIGGER signal_announced ON queue_internal.signals IS
    'Tells the lane of a queue that there are signals to settle.';

-- The counters behind queue.stats, told of what the native verbs did not do.

CREATE OR REPLACE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, behind bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'counted_wrapper';

CREATE FUNCTION queue_internal.history_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'history_counted';
COMMENT ON FUNCTION queue_internal.history_counted() IS 'Counts what was written to the history or deleted from it.';

CREATE TRIGGER history_counted AFTER INSERT ON queue.history
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_counted ON queue.history IS 'Counts finished tasks.';

CREATE TRIGGER history_uncounted AFTER DELETE ON queue.history
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_uncounted ON queue.history IS 'Counts finished tasks no more.';

CREATE FUNCTION queue_internal.dead_letter_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'dead_letter_counted';
COMMENT ON FUNCTION queue_internal.dead_letter_counted() IS 'Counts a dead letter that came or went.';

CREATE TRIGGER dead_letter_counted AFTER INSERT OR UPDATE OR DELETE ON queue.dead_letters
    FOR EACH ROW EXECUTE FUNCTION queue_internal.dead_letter_counted();
COMMENT ON TRIGGER dead_letter_counted ON queue.dead_letters IS 'Counts dead letters.';

CREATE FUNCTION queue_internal.table_emptied() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'table_emptied';
COMMENT ON FUNCTION queue_internal.table_emptied() IS 'Has everything counted anew after a TRUNCATE.';

-- Also for those who write as a replica does: what is not counted would be missing from then on.
DO $$
DECLARE
    emptied regclass;
    counts  record;
BEGIN
    FOREACH emptied IN ARRAY ARRAY['queue.tasks', 'queue.history', 'queue.dead_letters']::regclass[] LOOP
        EXECUTE format('CREATE TRIGGER table_emptied AFTER TRUNCATE ON %s
                        FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.table_emptied()', emptied);
        EXECUTE format('COMMENT ON TRIGGER table_emptied ON %s IS %L', emptied,
                       'Has everything counted anew.');
    END LOOP;
    FOR counts IN
        SELECT t.tgrelid::regclass AS of, t.tgname AS name FROM pg_trigger AS t
        WHERE t.tgname IN ('tasks_announced', 'task_changed', 'history_counted', 'history_uncounted',
                           'dead_letter_counted', 'table_emptied')
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', counts.of, counts.name);
    END LOOP;
END
$$;

SELECT queue_internal.announce_extension();
