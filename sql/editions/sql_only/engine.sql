-- Replacements for the functions of the library.

-- Sessions that wait check by themselves (wait.sql).
CREATE FUNCTION queue_internal.announce_task(queue text, run_at timestamptz) RETURNS void
LANGUAGE plpgsql STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.announce_task IS
    'Announces tasks to the library. The SQL-only edition has none.';

CREATE FUNCTION queue_internal.sweep_lanes() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_lanes IS 'Does nothing: this edition has no lanes.';

-- SQL cannot count the index entries of dead rows.

CREATE FUNCTION queue_internal.next_level(in_bucket integer, queue text, level integer) RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF level = -2147483648 THEN
        RETURN (SELECT f.level
                FROM queue_internal.first_task(in_bucket, next_level.queue, next_level.level, '-infinity', false) AS f);
    END IF;
    RETURN (SELECT t.priority FROM queue.tasks AS t
            WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = next_level.queue AND t.admission < 2
              AND t.priority >= next_level.level ORDER BY t.priority LIMIT 1);
END
$$;
COMMENT ON FUNCTION queue_internal.next_level IS
    'Returns the first priority of a queue that is at least this one; null if there is none.';

CREATE FUNCTION queue_internal.order_bound(
    in_bucket integer, queue text, level integer, after timestamptz, entries integer)
RETURNS TABLE (run_at timestamptz, id bigint)
LANGUAGE plpgsql IMMUTABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.order_bound IS 'Returns no row: this edition does not count index entries.';

CREATE FUNCTION queue_internal.id_bound(after bigint, entries integer) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.id_bound IS 'Returns null: this edition does not count index entries.';

CREATE FUNCTION queue_internal.deadline_bound(after timestamptz, after_id bigint, entries integer)
RETURNS TABLE (start_by timestamptz, id bigint)
LANGUAGE plpgsql IMMUTABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.deadline_bound IS 'Returns no row: this edition does not count index entries.';

CREATE FUNCTION queue_internal.known_depth(queue text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.known_depth IS 'Returns null: this edition has no counters.';

CREATE FUNCTION queue_internal.has_right(kind text, queue text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    caller CONSTANT name := queue_internal.caller();
BEGIN
    IF pg_has_role(caller, current_user, 'USAGE') THEN
        RETURN true;
    END IF;
    RETURN EXISTS (
        SELECT FROM queue.rights AS r
        WHERE (r.kind IN (has_right.kind, 'operator') OR has_right.kind = 'any')
          AND (r.queue IS NULL OR r.queue = has_right.queue) AND pg_has_role(caller, r.role, 'USAGE'));
END
$$;
COMMENT ON FUNCTION queue_internal.has_right IS
    'Whether the caller of the verb has a kind of right (producer, worker, operator, any) for the queue; for a null '
    'queue, whether it has it for all queues.';

CREATE FUNCTION queue_internal.queues_with_right(kind text) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue_internal.has_right(CASE kind WHEN 'monitor' THEN 'operator' ELSE kind END, NULL)
       OR kind = 'monitor' AND pg_has_role(queue_internal.caller(), 'pg_monitor', 'USAGE') THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT r.queue FROM queue.rights AS r
        WHERE r.kind IN (queues_with_right.kind, 'operator') AND pg_has_role(queue_internal.caller(), r.role, 'USAGE'));
END
$$;
COMMENT ON FUNCTION queue_internal.queues_with_right IS
    'The queues for which the caller has a kind of right; null stands for all queues.';

CREATE FUNCTION queue_internal.announce_rights() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;
COMMENT ON FUNCTION queue_internal.announce_rights IS
    'Makes sessions read the rights again. In the SQL-only edition they read them for every call.';

-- Commits if it is certain that the CALL of a bulk procedure allows it. The error of a COMMIT that is refused cannot
-- be caught. A COMMIT is allowed if CALL is the only statement that a client sent, outside a transaction block. That
-- is certain if the transaction began with the statement, no other function called the procedure, and nothing follows
-- the CALL. Drivers that prepare statements begin the transaction a moment earlier, which cannot be distinguished
-- from a block; then nothing is committed in between.
CREATE PROCEDURE queue_internal.try_commit(INOUT committed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    callers pg_catalog.text;
BEGIN
    GET DIAGNOSTICS callers = PG_CONTEXT;
    committed := queue_internal.may_commit(callers, committed);
    IF committed THEN
        COMMIT;
    END IF;
END
$$;
COMMENT ON PROCEDURE queue_internal.try_commit IS 'Commits if the caller can; returns whether it did.';

CREATE FUNCTION queue_internal.may_commit(callers text, committed boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- After one commit it can commit again, because the transaction is no longer that of the statement.
    RETURN committed IS TRUE
        OR (now() = statement_timestamp()
            AND current_query() ~* '^[[:space:]]*call[[:space:]]' AND current_query() !~ ';[[:space:]]*[^[:space:]]'
            AND callers ~ E'(PL/pgSQL function queue[.][[:alnum:]_]+[(][^\n]*)$');
END
$$;
COMMENT ON FUNCTION queue_internal.may_commit IS
    'Returns whether a bulk procedure that was called like this can certainly commit.';

-- Never lowers synchronous_commit: remote_apply stays.
CREATE FUNCTION queue_internal.claim_durably() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_durably IS 'Makes the commit of the current transaction synchronous.';

-- "counting" is how long the last count took (count_all).
CREATE TABLE queue_internal.maintenance (
    number      smallint NOT NULL DEFAULT 1,
    last_run_at timestamptz,
    counted_at  timestamptz,
    counting    interval,
    CONSTRAINT maintenance_pkey PRIMARY KEY (number),
    CONSTRAINT maintenance_number_check CHECK (number = 1)
);
COMMENT ON TABLE queue_internal.maintenance IS 'One row: when queue.maintain() last ended, and when it last counted the tasks.';
INSERT INTO queue_internal.maintenance DEFAULT VALUES;

-- Readable by roles that may monitor, without a right on queue_internal.
CREATE VIEW queue.maintained AS SELECT u.last_run_at FROM queue_internal.maintenance AS u;
COMMENT ON VIEW queue.maintained IS 'When queue.maintain() last ended.';
COMMENT ON COLUMN queue.maintained.last_run_at IS 'When it ended; null if it has never run.';
GRANT SELECT ON queue.maintained TO pg_monitor;

CREATE FUNCTION queue_internal.waiting_workers()
RETURNS TABLE (worker text, queue text, since timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.waiting_workers IS
    'Returns no rows: without the library, waiting sessions are not recorded.';

CREATE FUNCTION queue.engine_stats() RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object('edition', 'SQL-only', 'version', '@CARGO_VERSION@', 'loaded', false,
                              'maintained_at', (SELECT m.last_run_at FROM queue.maintained AS m));
END
$$;
COMMENT ON FUNCTION queue.engine_stats IS
'Returns a JSON object with the edition, the version, and when queue.maintain() last ended. Needs the operator''s right
on any queue, or pg_monitor.';
