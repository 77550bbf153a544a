-- The entry points of the public functions.
--
--   Every public function that a role may call moves to schema queue_internal under the same name, and an entry point
--   in C with the same arguments replaces it. The entry point switches to the rights of the owner for the call
--   (src/rights.rs) and calls the moved function, which checks the rights of its caller. Some functions have a native
--   version, which the entry point tries first (src/verbs.rs).
--   Internal functions that procedures and views call as their caller get an entry point too; their SQL version is renamed
--   to core_... Functions that only the owner may call, or that only read views, stay as they are.
--   Why the entry points have no SET clause: they look up names only in the extension's schemas.

DO $$
DECLARE
    native CONSTANT text[] := '{push, push_many, claim, complete, complete_many, complete_and_claim,
                                complete_many_and_claim, extend}';
    verb   record;
BEGIN
    FOR verb IN
        SELECT p.oid::regprocedure AS core, p.proname AS name, n.nspname AS schema,
               format('%I.%I(%s) RETURNS %s LANGUAGE c %s PARALLEL UNSAFE', n.nspname, p.proname,
                      pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
                      CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END) AS header,
               CASE WHEN p.proretset AND p.prorows <> 1000 THEN format(' ROWS %s', p.prorows) ELSE '' END AS rows,
               pg_get_function_identity_arguments(p.oid) AS arguments, obj_description(p.oid, 'pg_proc') AS comment,
               -- Claiming from several queues calls that of one queue for each.
               p.proname = ANY (native) AND NOT (p.proname ~ 'claim$' AND 'text[]'::regtype = ANY (p.proargtypes)) AS is_native
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE p.prokind = 'f' AND (
            n.nspname = 'queue' AND p.proname !~ '^(grant_|revoke_|attach$|detach$|engine_stats$|health$)'
            OR n.nspname = 'queue_internal' AND p.proname = ANY (
                '{next_batch, wait_deadline, count_tables, running_tasks}'))
    LOOP
        IF verb.schema = 'queue' THEN
            EXECUTE format('ALTER FUNCTION %s SET SCHEMA queue_internal', verb.core);
        ELSE
            EXECUTE format('ALTER FUNCTION %s RENAME TO %I', verb.core, 'core_' || verb.name);
        END IF;
        EXECUTE format('CREATE FUNCTION %s%s AS %L, %L', verb.header, verb.rows, 'MODULE_PATHNAME',
                       'queue_' || CASE WHEN verb.is_native THEN verb.name ELSE 'verb' END);
        EXECUTE format('COMMENT ON FUNCTION %I.%I(%s) IS %L', verb.schema, verb.name, verb.arguments, verb.comment);
    END LOOP;
END
$$;

-- Until the timeline changes, every claim whose token counts is in the tables of this database.
UPDATE queue_internal.token_mark
SET timeline = ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint;

-- Notifies the lanes of changes that the native functions did not make: statements of the SQL implementation, and
-- INSERT, COPY, UPDATE and DELETE by clients.

CREATE FUNCTION queue_internal.tasks_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'tasks_announced';
COMMENT ON FUNCTION queue_internal.tasks_announced IS 'Announces inserted tasks to the lanes.';

CREATE TRIGGER tasks_announced AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_announced();
COMMENT ON TRIGGER tasks_announced ON queue.tasks IS 'Announces new tasks to the lanes.';

CREATE FUNCTION queue_internal.task_changed() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'task_changed';
COMMENT ON FUNCTION queue_internal.task_changed IS 'Announces a changed or deleted task to the lanes.';

CREATE TRIGGER task_changed AFTER UPDATE OR DELETE ON queue.tasks
    FOR EACH ROW EXECUTE FUNCTION queue_internal.task_changed();
COMMENT ON TRIGGER task_changed ON queue.tasks IS 'Announces changed tasks to the lanes.';

CREATE FUNCTION queue_internal.event_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'event_announced';
COMMENT ON FUNCTION queue_internal.event_announced IS
    'Announces to the lane of a queue that it has events to process.';

-- An event for a later time is announced for that time (recheck_group_at).
CREATE TRIGGER event_announced AFTER INSERT ON queue_internal.events
    FOR EACH ROW WHEN (NEW.due_at = '-infinity') EXECUTE FUNCTION queue_internal.event_announced();
COMMENT ON TRIGGER event_announced ON queue_internal.events IS
    'Announces to the lane of a queue that it has events to process.';

-- A trigger, so that a restored dump of queue.handlers also starts the handlers.
CREATE FUNCTION queue_internal.handlers_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'handlers_announced';
COMMENT ON FUNCTION queue_internal.handlers_announced IS
    'Notifies the background worker at commit that handlers were attached or detached.';

CREATE TRIGGER handlers_announced AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue.handlers
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.handlers_announced();
COMMENT ON TRIGGER handlers_announced ON queue.handlers IS
    'Notifies the background worker of attached and detached handlers.';

-- The role of a handler may have got the right that it lacked, or have lost it.
CREATE TRIGGER handlers_announced AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue.rights
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.handlers_announced();
COMMENT ON TRIGGER handlers_announced ON queue.rights IS
    'Notifies the background worker, which runs the handlers of roles with the right of a worker.';

-- Keeps the counters behind queue.stats up to date with changes that the native functions did not make.

CREATE OR REPLACE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'counted_wrapper';

CREATE OR REPLACE FUNCTION queue_internal.leased_tasks(queues text[]) RETURNS TABLE (queue text, running bigint, ids bigint[])
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'leased_tasks_wrapper';

CREATE FUNCTION queue_internal.history_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'history_counted';
COMMENT ON FUNCTION queue_internal.history_counted IS
    'Counts rows that are written to the history or deleted from it.';

CREATE TRIGGER history_counted AFTER INSERT ON queue.history
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_counted ON queue.history IS 'Counts finished tasks.';

CREATE TRIGGER history_uncounted AFTER DELETE ON queue.history
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_uncounted ON queue.history IS 'Subtracts deleted rows from the counters.';

CREATE FUNCTION queue_internal.dead_letter_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'dead_letter_counted';
COMMENT ON FUNCTION queue_internal.dead_letter_counted IS 'Counts dead letters that are added or removed.';

CREATE TRIGGER dead_letter_counted AFTER INSERT OR UPDATE OR DELETE ON queue.dead_letters
    FOR EACH ROW EXECUTE FUNCTION queue_internal.dead_letter_counted();
COMMENT ON TRIGGER dead_letter_counted ON queue.dead_letters IS 'Counts dead letters.';

CREATE FUNCTION queue_internal.table_emptied() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'table_emptied';
COMMENT ON FUNCTION queue_internal.table_emptied IS 'Resets the counters after a TRUNCATE.';

-- ALWAYS, so that they also fire with session_replication_role = replica: changes that are not counted would make the
-- counters wrong.
DO $$
DECLARE
    emptied regclass;
    counts  record;
BEGIN
    FOREACH emptied IN ARRAY ARRAY['queue.tasks', 'queue.history', 'queue.dead_letters']::regclass[] LOOP
        EXECUTE format('CREATE TRIGGER table_emptied AFTER TRUNCATE ON %s
                        FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.table_emptied()', emptied);
        EXECUTE format('COMMENT ON TRIGGER table_emptied ON %s IS %L', emptied,
                       'Resets the counters.');
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
