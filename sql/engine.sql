-- The native functions, in the library queue_ext. What announces does nothing where the library was
-- not preloaded, and everything else works all the same.

CREATE FUNCTION queue_internal.announce_task(queue text, run_at timestamptz) RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_task_wrapper';
COMMENT ON FUNCTION queue_internal.announce_task IS
    'Tells the engine, when the transaction commits, that claims may get more than the tasks alone tell.';

CREATE FUNCTION queue_internal.announce_extension() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_extension_wrapper';
COMMENT ON FUNCTION queue_internal.announce_extension IS
    'Tells the launcher, when the transaction commits, that this database has the extension.';

CREATE FUNCTION queue_internal.token_base() RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'token_base_wrapper';
COMMENT ON FUNCTION queue_internal.token_base IS
    'The smallest token that a claim may hand out. Makes the commit synchronous if claims must not be lost.';

CREATE FUNCTION queue_internal.claim_durably() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'claim_durably_wrapper';
COMMENT ON FUNCTION queue_internal.claim_durably IS 'Makes the commit of the current transaction synchronous.';

-- It commits if CALL was said outside a transaction block and all procedures on the way could commit, else
-- it does nothing.
CREATE PROCEDURE queue_internal.try_commit(INOUT committed boolean)
LANGUAGE c AS 'MODULE_PATHNAME', 'try_commit';
COMMENT ON PROCEDURE queue_internal.try_commit IS 'Commits, if the caller can; says whether it did.';

CREATE FUNCTION queue.engine_stats() RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'engine_stats_wrapper';
COMMENT ON FUNCTION queue.engine_stats IS
'Returns the internal statistics of the library as a JSON object: whether it is preloaded, its version, the background
worker of this database, how many calls the native fast path served, and the lanes of this database. docs/engine.md
describes them. Needs the operator''s right on any queue, or pg_monitor.';

-- Rights (internal/rights.sql). They are kept in memory until queue.rights or a role changes.

CREATE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_caller';
COMMENT ON FUNCTION queue_internal.caller IS
    'The role that called the verb that is running; outside a verb, the current role.';

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
    'Makes every session read the rights again once the transaction has committed.';

CREATE FUNCTION queue_internal.cron_next(cron text, after timestamp) RETURNS timestamp
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_next_wrapper';
COMMENT ON FUNCTION queue_internal.cron_next IS
    'The first local time after the given one that a cron expression names; null if there is none.';

CREATE FUNCTION queue_internal.cron_error(cron text) RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_error_wrapper';
COMMENT ON FUNCTION queue_internal.cron_error IS 'What is wrong with a cron expression; null if it can be read.';
