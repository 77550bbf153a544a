-- The functions of the library queue_ext. If it is not preloaded, announcing does nothing, and everything else works.

CREATE FUNCTION queue_internal.announce_task(queue text, run_at timestamptz) RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_task_wrapper';
COMMENT ON FUNCTION queue_internal.announce_task IS
    'Announces at commit that claims from a queue may find more than the committed tasks show.';

CREATE FUNCTION queue_internal.announce_extension() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_extension_wrapper';
COMMENT ON FUNCTION queue_internal.announce_extension IS
    'Notifies the launcher at commit that this database has the extension.';

CREATE FUNCTION queue_internal.sweep_lanes() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'sweep_lanes_wrapper';
COMMENT ON FUNCTION queue_internal.sweep_lanes IS
    'Has the lanes of this database read again, for changes that no session announced.';

CREATE FUNCTION queue_internal.token_base(durable boolean) RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'token_base_wrapper';
COMMENT ON FUNCTION queue_internal.token_base IS
    'The smallest token that a claim may hand out. Makes the commit synchronous if the claim must not be lost.';

CREATE FUNCTION queue_internal.claim_durably() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'claim_durably_wrapper';
COMMENT ON FUNCTION queue_internal.claim_durably IS 'Makes the commit of the current transaction synchronous.';

-- Commits if the CALL was issued outside a transaction block and all procedures in between can commit, else does
-- nothing.
CREATE PROCEDURE queue_internal.try_commit(INOUT committed boolean)
LANGUAGE c AS 'MODULE_PATHNAME', 'try_commit';
COMMENT ON PROCEDURE queue_internal.try_commit IS 'Commits if the caller can; returns whether it did.';

CREATE FUNCTION queue_internal.waiting_workers()
RETURNS TABLE (worker text, queue text, since timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'waiting_workers_wrapper';
COMMENT ON FUNCTION queue_internal.waiting_workers IS
    'Returns the sessions that wait for a task, each once for each of its queues.';

CREATE FUNCTION queue.engine_stats() RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'engine_stats_wrapper';
COMMENT ON FUNCTION queue.engine_stats IS
'Returns the internal statistics of the library as a JSON object: whether it is preloaded, its version, the background
worker of this database, how many calls the native fast path served, and the lanes of this database. docs/engine.md
describes them. Needs the operator''s right on any queue, or pg_monitor.';

-- Bounds of queries (due_queues, reap): they count index entries, also of dead rows, so that a query that an old snapshot
-- makes read many of these can be divided into parts.

CREATE FUNCTION queue_internal.next_level(in_bucket integer, queue text, level integer) RETURNS integer
LANGUAGE c STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'next_level_wrapper';
COMMENT ON FUNCTION queue_internal.next_level IS
    'Returns a lower bound for the first priority, from this one on, that has tasks; null if there is none.';

CREATE FUNCTION queue_internal.order_bound(
    in_bucket integer, queue text, level integer, after timestamptz, entries integer)
RETURNS TABLE (run_at timestamptz, id bigint)
LANGUAGE c STABLE STRICT PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'order_bound_wrapper';
COMMENT ON FUNCTION queue_internal.order_bound IS
    'Returns the run_at and id of the n-th index entry of a priority from a time on; no row if there are fewer, or that '
    'is unknown.';

CREATE FUNCTION queue_internal.id_bound(after bigint, entries integer) RETURNS bigint
LANGUAGE c STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'id_bound_wrapper';
COMMENT ON FUNCTION queue_internal.id_bound IS
    'Returns the id of the n-th index entry after another id; null if there are fewer, or that is unknown.';

CREATE FUNCTION queue_internal.deadline_bound(after timestamptz, after_id bigint, entries integer)
RETURNS TABLE (start_by timestamptz, id bigint)
LANGUAGE c STABLE STRICT PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'deadline_bound_wrapper';
COMMENT ON FUNCTION queue_internal.deadline_bound IS
    'Returns the start deadline and id of the n-th index entry after another one; no row if there are fewer, or that is '
    'unknown.';

CREATE FUNCTION queue_internal.known_depth(queue text) RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'known_depth_wrapper';
COMMENT ON FUNCTION queue_internal.known_depth IS
    'Returns how many queued tasks the counters of a queue show, and this transaction has added; null if unknown.';

-- Rights (internal/rights.sql). They are kept in memory until queue.rights or a role changes.

CREATE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_caller';
COMMENT ON FUNCTION queue_internal.caller IS
    'Returns the role that called the public function that is running; outside of one, the current role.';

CREATE FUNCTION queue_internal.has_right(kind text, queue text) RETURNS boolean
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_has_right';
COMMENT ON FUNCTION queue_internal.has_right IS
    'Whether the caller of the verb has a kind of right (producer, worker, operator, any) for the queue; for a null '
    'queue, whether it has it for all queues.';

CREATE FUNCTION queue_internal.queues_with_right(kind text) RETURNS text[]
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_queues_with_right';
COMMENT ON FUNCTION queue_internal.queues_with_right IS
    'The queues for which the caller has a kind of right; null stands for all queues.';

CREATE FUNCTION queue_internal.announce_rights() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'queue_announce_rights';
COMMENT ON FUNCTION queue_internal.announce_rights IS
    'Makes every session read the rights again after the commit.';

CREATE FUNCTION queue_internal.cron_next(cron text, after timestamp) RETURNS timestamp
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_next_wrapper';
COMMENT ON FUNCTION queue_internal.cron_next IS
    'Returns the first local time after the given one that a cron expression matches; null if there is none.';

CREATE FUNCTION queue_internal.cron_error(cron text) RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_error_wrapper';
COMMENT ON FUNCTION queue_internal.cron_error IS
    'Returns what is wrong with a cron expression; null if it is valid.';
