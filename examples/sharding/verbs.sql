-- The second half of the router: the public functions, with the same names and arguments as on a shard. Run it after
-- shards.sql.

\set ON_ERROR_STOP on
BEGIN;

-- A push tries the next shard only if certainly nothing was pushed. If the connection broke during the push, the caller
-- gets the error: the task may have been pushed or not, as with any COMMIT whose response is lost.
CREATE FUNCTION queue.push(
    queue text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    group_key text DEFAULT NULL, max_attempts integer DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, backoff jsonb DEFAULT NULL, key_ttl interval DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    id      bigint;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.places(queue, key, group_key, after) LOOP
        BEGIN
            id := queue_shard.push(shard, queue, payload, priority, run_at, delay, key, on_duplicate, group_key,
                                   max_attempts, headers, after, backoff, key_ttl, on_predecessor_failure);
            RETURN queue_shard.check_id(shard, id);
        EXCEPTION WHEN OTHERS THEN
            problem := SQLERRM;
            IF queue_shard.failure(SQLSTATE, problem) IS DISTINCT FROM 'unreached' THEN
                RAISE;
            END IF;
        END;
        PERFORM queue_shard.note_away(shard);
    END LOOP;
    PERFORM queue_shard.raise_away(problem);
END
$$;
COMMENT ON FUNCTION queue.push(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb, interval,
    text) IS 'Pushes a task to one of the shards and returns its id.';

-- All tasks go to one shard, in one transaction: all or none.
CREATE FUNCTION queue.push_many(
    queue text, payloads jsonb[], priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    group_key text DEFAULT NULL, max_attempts integer DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, backoff jsonb DEFAULT NULL, key_ttl interval DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL)
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.places(queue, key, group_key, after) LOOP
        BEGIN
            RETURN QUERY SELECT queue_shard.check_id(shard, p.id) FROM queue_shard.push_many(
                shard, queue, payloads, priority, run_at, delay, key, on_duplicate, group_key, max_attempts,
                headers, after, backoff, key_ttl, on_predecessor_failure) AS p (id);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            problem := SQLERRM;
            IF queue_shard.failure(SQLSTATE, problem) IS DISTINCT FROM 'unreached' THEN
                RAISE;
            END IF;
        END;
        PERFORM queue_shard.note_away(shard);
    END LOOP;
    PERFORM queue_shard.raise_away(problem);
END
$$;
COMMENT ON FUNCTION queue.push_many(
    text, jsonb[], integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb, interval,
    text) IS 'Pushes one task for each payload, all to one of the shards.';

-- Returns the tasks of the first shard that has any. Leases whose response is lost expire.
CREATE FUNCTION queue.claim(
    lease interval DEFAULT NULL, queue text DEFAULT 'default', max_tasks integer DEFAULT 1,
    worker text DEFAULT NULL)
RETURNS SETOF queue.claimed_task LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    reached boolean := false;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.in_turn() LOOP
        BEGIN
            RETURN QUERY SELECT * FROM queue_shard.claim(shard, lease, queue, max_tasks, worker);
            IF FOUND THEN
                RETURN;
            END IF;
            reached := true;
            CONTINUE;
        EXCEPTION WHEN OTHERS THEN
            problem := SQLERRM;
            IF queue_shard.failure(SQLSTATE, problem) IS NULL THEN
                RAISE;
            END IF;
        END;
        PERFORM queue_shard.note_away(shard);
    END LOOP;
    IF NOT reached THEN
        PERFORM queue_shard.raise_away(problem);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text, integer, text) IS
    'Claims due tasks from the first shard that has any, starting with a random one.';

-- Completing the task and claiming the next one on its shard is one transaction; a claim from another shard is another
-- one.
CREATE FUNCTION queue.complete_and_claim(
    id bigint, token bigint, result jsonb DEFAULT NULL, lease interval DEFAULT NULL,
    queue text DEFAULT 'default', worker text DEFAULT NULL)
RETURNS SETOF queue.claimed_task LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM queue_shard.complete_and_claim(
        queue_shard.of(id), id, token, result, lease, queue, worker);
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM queue.claim(lease, queue, 1, worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text) IS
    'Completes a task and claims the next one, from the same shard if it has any.';

-- The ids of an unavailable shard are left out, like those with a stale token.
CREATE FUNCTION queue.complete_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT queue_shard.of(t.id) AS shard, array_agg(t.id) AS ids, array_agg(t.token) AS tokens,
               CASE WHEN results IS NOT NULL THEN array_agg(t.result) END AS results
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results)) AS t (id, token, result)
        GROUP BY 1
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM queue_shard.complete_many(part.shard, part.ids, part.tokens, part.results);
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
            RAISE WARNING 'shard % cannot be reached: % tasks are left out', part.shard, cardinality(part.ids)
                USING DETAIL = SQLERRM;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.complete_many(bigint[], bigint[], jsonb[]) IS
    'Completes many tasks; returns the ids of those whose shard is available and whose token is current.';

-- Calls for one task go to its shard only.
CREATE FUNCTION queue.complete(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.complete($1, $2, $3);
$$;
COMMENT ON FUNCTION queue.complete(bigint, bigint, jsonb) IS 'Completes a task.';

CREATE FUNCTION queue.fail(
    id bigint, token bigint, error text, retry_in interval DEFAULT NULL, permanent boolean DEFAULT false)
RETURNS text LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.fail($1, $2, $3, $4, $5);
$$;
COMMENT ON FUNCTION queue.fail(bigint, bigint, text, interval, boolean) IS
    'Reports that an attempt failed; returns the new state of the task.';

CREATE FUNCTION queue.release(id bigint, token bigint, delay interval DEFAULT '0') RETURNS void
LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.release($1, $2, $3);
$$;
COMMENT ON FUNCTION queue.release(bigint, bigint, interval) IS 'Gives a task back.';

CREATE FUNCTION queue.extend(
    id bigint, token bigint, lease interval DEFAULT NULL, progress jsonb DEFAULT NULL,
    OUT lease_until timestamptz, OUT cancel_requested boolean)
RETURNS SETOF record LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT * FROM queue.extend($1, $2, $3, $4);
$$;
COMMENT ON FUNCTION queue.extend(bigint, bigint, interval, jsonb) IS
    'Extends a lease, records the progress, and returns whether cancellation was requested.';

CREATE FUNCTION queue.confirm_cancel(id bigint, token bigint) RETURNS void LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.confirm_cancel($1, $2);
$$;
COMMENT ON FUNCTION queue.confirm_cancel(bigint, bigint) IS 'Confirms that the worker stopped because the task was cancelled.';

CREATE FUNCTION queue.cancel(id bigint) RETURNS text LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.cancel($1);
$$;
COMMENT ON FUNCTION queue.cancel(bigint) IS 'Cancels a task, or records the request for a running one.';

CREATE FUNCTION queue.retry(id bigint) RETURNS text LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.retry($1);
$$;
COMMENT ON FUNCTION queue.retry(bigint) IS 'Puts a dead letter back into its queue.';

CREATE FUNCTION queue.get(id bigint) RETURNS queue.task LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT * FROM queue.get($1);
$$;
COMMENT ON FUNCTION queue.get(bigint) IS 'Returns a task, wherever it is.';

-- Calls for a queue go to all shards. If one of them is unavailable, they raise an error, and some of the other shards
-- may have made the change: call again when all are available.
CREATE FUNCTION queue.create(name text, options jsonb DEFAULT '{}') RETURNS SETOF void LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON ALL;
    SELECT queue.create($1, $2);
$$;
COMMENT ON FUNCTION queue.create(text, jsonb) IS 'Creates a queue on all shards.';

CREATE FUNCTION queue.configure(name text, options jsonb) RETURNS SETOF void LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON ALL;
    SELECT queue.configure($1, $2);
$$;
COMMENT ON FUNCTION queue.configure(text, jsonb) IS 'Changes the options of a queue on all shards.';

CREATE FUNCTION queue.pause(name text) RETURNS SETOF void LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON ALL;
    SELECT queue.pause($1);
$$;
COMMENT ON FUNCTION queue.pause(text) IS 'Pauses a queue on all shards.';

CREATE FUNCTION queue.resume(name text) RETURNS SETOF void LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON ALL;
    SELECT queue.resume($1);
$$;
COMMENT ON FUNCTION queue.resume(text) IS 'Resumes a queue on all shards.';

CREATE FUNCTION queue_shard.any_ready(queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard integer;
BEGIN
    FOR shard IN SELECT queue_shard.in_turn() LOOP
        BEGIN
            IF queue_shard.is_ready(shard, queue) THEN
                RETURN true;
            END IF;
            CONTINUE;
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
        END;
        PERFORM queue_shard.note_away(shard);
    END LOOP;
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_shard.any_ready(text) IS 'Returns whether an available shard has a task to claim.';

-- Checks all shards with growing pauses, up to 200 ms. It commits between the checks, so it cannot be called in a
-- transaction block and cannot have a SET clause.
CREATE PROCEDURE queue.wait(
    queue text DEFAULT 'default', timeout interval DEFAULT '30 seconds', INOUT ready boolean DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline CONSTANT timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) timeout;
    pause    interval := '5 ms';
BEGIN
    LOOP
        ready := queue_shard.any_ready(queue);
        EXIT WHEN ready OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) deadline IS NOT FALSE;
        COMMIT;
        PERFORM pg_catalog.pg_sleep_for(pause);
        pause := least(pause OPERATOR(pg_catalog.*) 1.5::pg_catalog.float8, '200 ms');
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.wait(text, interval, boolean) IS
    'Waits until a shard has a task to claim. It polls the shards.';

CREATE FUNCTION queue_shard.all_stats(
    OUT shard integer, OUT problem text, OUT queue text, OUT paused boolean, OUT queued bigint,
    OUT scheduled bigint, OUT waiting bigint, OUT blocked bigint, OUT running bigint, OUT dead bigint,
    OUT oldest_due_age interval, OUT completed_last_hour bigint, OUT cancelled_last_hour bigint,
    OUT failed_last_hour bigint, OUT completed_per_second numeric)
RETURNS SETOF record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR shard IN SELECT generate_series(0, queue_shard.count() - 1) LOOP
        BEGIN
            RETURN QUERY SELECT all_stats.shard, NULL::text, s.* FROM queue_shard.stats(shard) AS s;
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
            problem := SQLERRM;
            RETURN NEXT;
            problem := NULL;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_shard.all_stats() IS
    'queue.stats of each shard; an unavailable shard has one row with the problem.';

CREATE VIEW queue.shard_stats AS SELECT * FROM queue_shard.all_stats();
COMMENT ON VIEW queue.shard_stats IS
    'The numbers of tasks of each queue on each shard; an unavailable shard has one row with the problem.';

CREATE VIEW queue.stats AS
WITH each AS MATERIALIZED (SELECT * FROM queue_shard.all_stats())
SELECT e.queue, bool_or(e.paused) AS paused, sum(e.queued)::bigint AS queued, sum(e.scheduled)::bigint AS scheduled,
       sum(e.waiting)::bigint AS waiting, sum(e.blocked)::bigint AS blocked, sum(e.running)::bigint AS running,
       sum(e.dead)::bigint AS dead, max(e.oldest_due_age) AS oldest_due_age,
       sum(e.completed_last_hour)::bigint AS completed_last_hour,
       sum(e.cancelled_last_hour)::bigint AS cancelled_last_hour,
       sum(e.failed_last_hour)::bigint AS failed_last_hour,
       sum(e.completed_per_second) AS completed_per_second,
       (SELECT count(*) FROM each AS a WHERE a.problem IS NOT NULL) AS shards_away
FROM each AS e WHERE e.problem IS NULL
GROUP BY e.queue;
COMMENT ON VIEW queue.stats IS 'The numbers of tasks of each queue on all available shards.';

COMMIT;
