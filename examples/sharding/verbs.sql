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
    on_predecessor_failure text DEFAULT NULL, kind text DEFAULT NULL, lease interval DEFAULT NULL,
    timeout interval DEFAULT NULL, start_by timestamptz DEFAULT NULL, ttl interval DEFAULT NULL, weight integer DEFAULT 1)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    id      bigint;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.places(queue, key, group_key, after) LOOP
        BEGIN
            id := queue_shard.push(shard, queue, payload, priority, run_at, delay, key, on_duplicate, group_key,
                                   max_attempts, headers, after, backoff, key_ttl, on_predecessor_failure, kind, lease,
                                   timeout, start_by, ttl, weight);
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
    text, text, interval, interval, timestamptz, interval, integer) IS 'Pushes a task to one of the shards and returns its id.';

CREATE FUNCTION queue.try_push(
    queue text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    group_key text DEFAULT NULL, max_attempts integer DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, backoff jsonb DEFAULT NULL, key_ttl interval DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL, key_ttl_from text DEFAULT NULL, kind text DEFAULT NULL,
    lease interval DEFAULT NULL, timeout interval DEFAULT NULL, start_by timestamptz DEFAULT NULL,
    ttl interval DEFAULT NULL, weight integer DEFAULT 1)
RETURNS TABLE (id bigint, pushed boolean) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.places(queue, key, group_key, after) LOOP
        BEGIN
            RETURN QUERY SELECT queue_shard.check_id(shard, p.id), p.pushed FROM queue_shard.try_push(
                shard, queue, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers,
                after, backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout,
                start_by, ttl, weight) AS p;
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
COMMENT ON FUNCTION queue.try_push(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb, interval,
    text, text, text, interval, interval, timestamptz, interval, integer) IS 'Pushes a task to one of the shards; returns its id, and whether it was added.';

-- All tasks go to one shard, in one transaction: all or none.
CREATE FUNCTION queue.push_tasks(tasks jsonb) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.places(tasks) LOOP
        BEGIN
            RETURN QUERY SELECT queue_shard.check_id(shard, p.id) FROM queue_shard.push_tasks(shard, tasks) AS p (id);
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
COMMENT ON FUNCTION queue.push_tasks(jsonb) IS
    'Pushes many different tasks, all to one of the shards; returns their ids in the order of the array.';

-- The same for tasks that differ only in their payloads.
CREATE FUNCTION queue.push_many(
    queue text, payloads jsonb[], priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    group_key text DEFAULT NULL, max_attempts integer DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, backoff jsonb DEFAULT NULL, key_ttl interval DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL, kind text DEFAULT NULL, lease interval DEFAULT NULL,
    timeout interval DEFAULT NULL, start_by timestamptz DEFAULT NULL, ttl interval DEFAULT NULL, weight integer DEFAULT 1)
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shard   integer;
    problem text;
BEGIN
    FOR shard IN SELECT queue_shard.places(queue, key, group_key, after) LOOP
        BEGIN
            RETURN QUERY SELECT queue_shard.check_id(shard, p.id) FROM queue_shard.push_many(
                shard, queue, payloads, priority, run_at, delay, key, on_duplicate, group_key, max_attempts,
                headers, after, backoff, key_ttl, on_predecessor_failure, kind, lease, timeout, start_by,
                ttl, weight) AS p (id);
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
    text, text, interval, interval, timestamptz, interval, integer) IS 'Pushes one task for each payload, all to one of the shards.';

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

CREATE FUNCTION queue_shard.warn_away(shard integer, ids bigint[], problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE WARNING 'shard % cannot be reached: % tasks are left out', shard, cardinality(ids) USING DETAIL = problem;
END
$$;
COMMENT ON FUNCTION queue_shard.warn_away(integer, bigint[], text) IS 'Warns that the tasks of a shard are left out.';

-- The ids of an unavailable shard are left out, like those with a stale token. So are they in the other functions for many
-- tasks, which return their rows shard by shard.
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
            PERFORM queue_shard.warn_away(part.shard, part.ids, SQLERRM);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.complete_many(bigint[], bigint[], jsonb[]) IS
    'Completes many tasks; returns the ids of those whose shard is available and whose token is current.';

CREATE FUNCTION queue.fail_many(
    ids bigint[], tokens bigint[], errors text[], retry_in interval DEFAULT NULL, permanent boolean DEFAULT false,
    details jsonb[] DEFAULT NULL)
RETURNS TABLE (id bigint, state text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT queue_shard.of(t.id) AS shard, array_agg(t.id) AS ids, array_agg(t.token) AS tokens,
               array_agg(t.error) AS errors, CASE WHEN details IS NOT NULL THEN array_agg(t.detail) END AS details
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(errors), unnest(details)) AS t (id, token, error, detail)
        GROUP BY 1
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM queue_shard.fail_many(
                part.shard, part.ids, part.tokens, part.errors, retry_in, permanent, part.details);
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
            PERFORM queue_shard.warn_away(part.shard, part.ids, SQLERRM);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.fail_many(bigint[], bigint[], text[], interval, boolean, jsonb[]) IS
    'Reports that many attempts failed; returns the ids and new states of those whose shard is available and whose token is current.';

CREATE FUNCTION queue.release_many(ids bigint[], tokens bigint[], delay interval DEFAULT '0')
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT queue_shard.of(t.id) AS shard, array_agg(t.id) AS ids, array_agg(t.token) AS tokens
        FROM ROWS FROM (unnest(ids), unnest(tokens)) AS t (id, token)
        GROUP BY 1
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM queue_shard.release_many(part.shard, part.ids, part.tokens, delay);
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
            PERFORM queue_shard.warn_away(part.shard, part.ids, SQLERRM);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.release_many(bigint[], bigint[], interval) IS
    'Gives many tasks back; returns the ids of those whose shard is available and whose token is current.';

CREATE FUNCTION queue.extend_many(
    ids bigint[], tokens bigint[], lease interval DEFAULT NULL, progress jsonb[] DEFAULT NULL,
    skip_locked boolean DEFAULT false)
RETURNS TABLE (id bigint, lease_until timestamptz, cancel_requested boolean, extended boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT queue_shard.of(t.id) AS shard, array_agg(t.id) AS ids, array_agg(t.token) AS tokens,
               CASE WHEN progress IS NOT NULL THEN array_agg(t.done) END AS progress
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(progress)) AS t (id, token, done)
        GROUP BY 1
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM queue_shard.extend_many(part.shard, part.ids, part.tokens, lease, part.progress, skip_locked);
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
            PERFORM queue_shard.warn_away(part.shard, part.ids, SQLERRM);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.extend_many(bigint[], bigint[], interval, jsonb[], boolean) IS
    'Extends many leases; returns a row for each task whose shard is available and whose token is current.';

-- The tasks of the last shard are completed in the transaction that claims there; those of the others before.
CREATE FUNCTION queue.complete_many_and_claim(
    ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL, lease interval DEFAULT NULL,
    queue text DEFAULT 'default', max_tasks integer DEFAULT 1, worker text DEFAULT NULL)
RETURNS SETOF queue.claimed_task LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last CONSTANT integer := (SELECT max(queue_shard.of(i.id)) FROM unnest(ids) AS i (id));
    here record;
    rest record;
BEGIN
    SELECT array_agg(t.id) AS ids, array_agg(t.token) AS tokens, CASE WHEN results IS NOT NULL THEN array_agg(t.result) END AS results
    INTO rest FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results)) AS t (id, token, result)
    WHERE queue_shard.of(t.id) IS DISTINCT FROM last;
    SELECT array_agg(t.id) AS ids, array_agg(t.token) AS tokens, CASE WHEN results IS NOT NULL THEN array_agg(t.result) END AS results
    INTO here FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results)) AS t (id, token, result)
    WHERE queue_shard.of(t.id) = last;
    IF rest.ids IS NOT NULL THEN
        PERFORM queue.complete_many(rest.ids, rest.tokens, rest.results);
    END IF;
    IF here.ids IS NOT NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM queue_shard.complete_many_and_claim(
                last, here.ids, here.tokens, here.results, lease, queue, max_tasks, worker);
            IF FOUND THEN
                RETURN;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            IF queue_shard.failure(SQLSTATE, SQLERRM) IS NULL THEN
                RAISE;
            END IF;
            PERFORM queue_shard.warn_away(last, here.ids, SQLERRM);
        END;
    END IF;
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_many_and_claim(bigint[], bigint[], jsonb[], interval, text, integer, text) IS
    'Completes many tasks and claims the next ones, from a shard of these tasks if it has any.';

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

CREATE FUNCTION queue.cancel(queue text, key text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_shard.cancel(coalesce(queue_shard.home(queue, key), 0), queue, key);
END
$$;
COMMENT ON FUNCTION queue.cancel(text, text) IS 'Cancels the task with a key, on the shard of the key.';

CREATE FUNCTION queue.run_again(id bigint) RETURNS bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON queue_shard.of($1);
    SELECT queue.run_again($1);
$$;
COMMENT ON FUNCTION queue.run_again(bigint) IS 'Pushes a new task like one that ended, to its shard.';

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

-- How many queues, which are the same on all shards. One that was paused on some of them only counts.
CREATE FUNCTION queue.pause_all() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT max(p.paused) FROM queue_shard.pause_all() AS p (paused));
END
$$;
COMMENT ON FUNCTION queue.pause_all() IS 'Pauses all queues on all shards.';

CREATE FUNCTION queue.resume_all() RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT max(r.resumed) FROM queue_shard.resume_all() AS r (resumed));
END
$$;
COMMENT ON FUNCTION queue.resume_all() IS 'Resumes all queues on all shards.';

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
