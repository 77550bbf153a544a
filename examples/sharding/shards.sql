-- The first half of the router: calls of single shards. Run in a database of its own, without queue_ext and
-- with PL/Proxy, after CREATE SERVER queue_shards (docs/sharding.md); then verbs.sql.
--
-- Each call commits on the shard when it returns, even if the caller's transaction rolls back. The first argument is
-- always the number of the shard. The rights are those of the same role on the shards.

\set ON_ERROR_STOP on
BEGIN;
CREATE SCHEMA queue;
CREATE SCHEMA queue_shard;
GRANT USAGE ON SCHEMA queue, queue_shard TO PUBLIC;

-- As on the shards.
CREATE TYPE queue.claimed_task AS (
    id bigint, token bigint, queue text, payload jsonb, headers jsonb, attempt integer, max_attempts integer,
    priority integer, key text, group_key text, progress jsonb, run_at timestamptz, created_at timestamptz,
    lease_until timestamptz, kind text);
CREATE TYPE queue.task AS (
    id bigint, queue text, state text, priority integer, run_at timestamptz, attempt integer,
    max_attempts integer, token bigint, lease_until timestamptz, worker text, claimed_at timestamptz,
    created_at timestamptz, updated_at timestamptz, cancel_requested_at timestamptz, finished_at timestamptz,
    key text, group_key text, kind text, lease interval, timeout interval, start_by timestamptz, weight integer, headers jsonb,
    payload jsonb, progress jsonb, errors jsonb, result jsonb);

CREATE FUNCTION queue_shard.push(
    integer, text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb,
    interval, text, text, interval, interval, timestamptz, interval, integer)
RETURNS bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue.push($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                      kind => $16, lease => $17, timeout => $18, start_by => $19, ttl => $20, weight => $21);
$$;

CREATE FUNCTION queue_shard.push_many(
    integer, text, jsonb[], integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb,
    interval, text, text, interval, interval, timestamptz, interval, integer)
RETURNS SETOF bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue.push_many($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                           kind => $16, lease => $17, timeout => $18, start_by => $19, ttl => $20, weight => $21);
$$;

CREATE FUNCTION queue_shard.try_push(
    integer, text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb,
    interval, text, text, text, interval, interval, timestamptz, interval, integer, OUT id bigint, OUT pushed boolean)
RETURNS SETOF record LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT * FROM queue.try_push($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                                 kind => $17, lease => $18, timeout => $19, start_by => $20, ttl => $21, weight => $22);
$$;

CREATE FUNCTION queue_shard.push_tasks(integer, jsonb) RETURNS SETOF bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue.push_tasks($2);
$$;

CREATE FUNCTION queue_shard.claim(integer, interval, text, integer, text)
RETURNS SETOF queue.claimed_task LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT * FROM queue.claim($2, $3, $4, $5);
$$;

CREATE FUNCTION queue_shard.complete_and_claim(integer, bigint, bigint, jsonb, interval, text, text)
RETURNS SETOF queue.claimed_task LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT * FROM queue.complete_and_claim($2, $3, $4, $5, $6, $7);
$$;

CREATE FUNCTION queue_shard.complete_many(integer, bigint[], bigint[], jsonb[])
RETURNS SETOF bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue.complete_many($2, $3, $4);
$$;

CREATE FUNCTION queue_shard.complete_many_and_claim(
    integer, bigint[], bigint[], jsonb[], interval, text, integer, text)
RETURNS SETOF queue.claimed_task LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT * FROM queue.complete_many_and_claim($2, $3, $4, $5, $6, $7, $8);
$$;

CREATE FUNCTION queue_shard.fail_many(
    integer, bigint[], bigint[], text[], interval, boolean, jsonb[], OUT id bigint, OUT state text)
RETURNS SETOF record LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT * FROM queue.fail_many($2, $3, $4, $5, $6, $7);
$$;

CREATE FUNCTION queue_shard.release_many(integer, bigint[], bigint[], interval)
RETURNS SETOF bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue.release_many($2, $3, $4);
$$;

CREATE FUNCTION queue_shard.extend_many(
    integer, bigint[], bigint[], interval, jsonb[], boolean, OUT id bigint, OUT lease_until timestamptz,
    OUT cancel_requested boolean, OUT extended boolean)
RETURNS SETOF record LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT * FROM queue.extend_many($2, $3, $4, $5, $6);
$$;

CREATE FUNCTION queue_shard.cancel(integer, text, text) RETURNS text LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue.cancel($2, $3);
$$;

CREATE FUNCTION queue_shard.pause_all() RETURNS SETOF bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON ALL;
    SELECT queue.pause_all();
$$;

CREATE FUNCTION queue_shard.resume_all() RETURNS SETOF bigint LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON ALL;
    SELECT queue.resume_all();
$$;

CREATE FUNCTION queue_shard.is_ready(integer, text) RETURNS boolean LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT queue_shard.is_ready($2);
$$;

CREATE FUNCTION queue_shard.stats(
    integer, OUT queue text, OUT paused boolean, OUT queued bigint, OUT scheduled bigint, OUT waiting bigint,
    OUT blocked bigint, OUT running bigint, OUT dead bigint, OUT oldest_due_age interval,
    OUT completed_last_hour bigint, OUT cancelled_last_hour bigint, OUT failed_last_hour bigint,
    OUT completed_per_second numeric)
RETURNS SETOF record LANGUAGE plproxy AS $$
    CLUSTER 'queue_shards'; RUN ON $1;
    SELECT s.queue, s.paused, s.queued, s.scheduled, s.waiting, s.blocked, s.running, s.dead, s.oldest_due_age,
           s.completed_last_hour, s.cancelled_last_hour, s.failed_last_hour, s.completed_per_second
    FROM queue.stats AS s;
$$;

-- The shard of a task's id, and the number of shards.
CREATE FUNCTION queue_shard.of(id bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN coalesce((id / 10000000000000)::integer, 0);
COMMENT ON FUNCTION queue_shard.of(bigint) IS 'Returns the number of the shard that assigned this id.';

CREATE FUNCTION queue_shard.count() RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*) FROM pg_foreign_server AS s, unnest(s.srvoptions) AS o
            WHERE s.srvname = 'queue_shards' AND o ~ '^p[0-9]+=');
END
$$;
COMMENT ON FUNCTION queue_shard.count() IS 'Returns the number of shards.';

-- The outcome of a call that failed: "unreached" if it certainly did nothing, "cut" if the connection broke and it may
-- have committed, null if the shard itself raised the error.
CREATE FUNCTION queue_shard.failure(state text, message text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN CASE
    WHEN message ~ '^PL/Proxy function \S+\(\d+\): (\[.*\] PQconnect|connect timeout)' THEN 'unreached'
    WHEN message ~ '^PL/Proxy function \S+\(\d+\): (\[.*\] PQ|Remote error|query timeout)' THEN 'cut'
    WHEN state IN ('57P01', '57P02', '57P03') THEN 'cut'
END;
COMMENT ON FUNCTION queue_shard.failure(text, text) IS
    'Returns whether an error means that the shard is unavailable: unreached, cut, or null if it is available.';

-- A session does not try an unavailable shard again for five seconds, because waiting for a dead server at every claim
-- would be slow.
CREATE FUNCTION queue_shard.note_away(shard integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('queue_shard.away_' || shard, (clock_timestamp() + interval '5 seconds')::text, false);
END
$$;
COMMENT ON FUNCTION queue_shard.note_away(integer) IS 'Records for this session that a shard is unavailable.';

-- All shards, starting with a random one. Unavailable ones only if there is no other.
CREATE FUNCTION queue_shard.in_turn() RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shards CONSTANT integer := queue_shard.count();
    start  CONSTANT integer := floor(random() * shards);
    away   integer[] := '{}';
    shard  integer;
BEGIN
    FOR place IN start .. start + shards - 1 LOOP
        shard := place % shards;
        IF nullif(current_setting('queue_shard.away_' || shard, true), '')::timestamptz > clock_timestamp() THEN
            away := away || shard;
        ELSE
            RETURN NEXT shard;
        END IF;
    END LOOP;
    IF cardinality(away) = shards THEN
        RETURN QUERY SELECT unnest(away);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_shard.in_turn() IS 'Returns the shards to try, in order.';

CREATE FUNCTION queue_shard.home(queue text, key text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN abs(hashtextextended(key, hashtextextended(queue, 0)) % queue_shard.count());
END
$$;
COMMENT ON FUNCTION queue_shard.home(text, text) IS 'Returns the shard of a key or of a group of a queue.';

-- The shards for a new task: that of its key, its group or its predecessors, else any.
CREATE FUNCTION queue_shard.places(queue text, key text, group_key text, after bigint[]) RETURNS SETOF integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    homes integer[];
BEGIN
    IF key IS NULL AND group_key IS NULL AND after IS NULL THEN
        RETURN QUERY SELECT queue_shard.in_turn();
        RETURN;
    ELSIF key IS NOT NULL AND group_key IS NOT NULL THEN
        RAISE EXCEPTION 'argument "key" cannot be combined with "group_key" on shards'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'Each of them says which shard the task goes to.';
    END IF;
    SELECT array_agg(DISTINCT h.shard) INTO homes
    FROM (SELECT queue_shard.of(a) FROM unnest(after) AS a
          UNION ALL
          SELECT queue_shard.home(queue, k)
          FROM unnest(ARRAY[key, group_key]) AS k WHERE k IS NOT NULL) AS h (shard);
    IF cardinality(homes) > 1 THEN
        RAISE EXCEPTION 'argument "after" names tasks of other shards'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('The task and those it waits for would be on the shards %s.', homes),
                  HINT = 'Push what belongs together with queue.push_many, or into one group.';
    END IF;
    -- None: an empty list of predecessors.
    RETURN QUERY SELECT unnest(homes);
    IF NOT FOUND THEN
        RETURN QUERY SELECT queue_shard.in_turn();
    END IF;
END
$$;
COMMENT ON FUNCTION queue_shard.places(text, text, text, bigint[]) IS
    'Returns the shards for a new task, in the order to try them.';

-- The shards for tasks that are pushed together. What is no task at all is left to a shard, which refuses it.
CREATE FUNCTION queue_shard.places(tasks jsonb) RETURNS SETOF integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    homes integer[];
BEGIN
    IF jsonb_typeof(tasks) = 'array' THEN
        homes := ARRAY(
            SELECT DISTINCT p.shard
            FROM jsonb_array_elements(tasks) AS e (task),
                 LATERAL (SELECT CASE WHEN jsonb_typeof(e.task -> 'after') = 'array' THEN ARRAY(
                              SELECT a.id::text::numeric::bigint FROM jsonb_array_elements(e.task -> 'after') AS a (id)
                              WHERE a.id::text ~ '^[0-9]{1,18}$') END) AS w (after),
                 LATERAL queue_shard.places(e.task ->> 'queue', e.task ->> 'key', e.task ->> 'group_key', w.after) AS p (shard)
            WHERE coalesce(e.task ->> 'key', e.task ->> 'group_key') IS NOT NULL OR w.after <> '{}');
    END IF;
    IF cardinality(homes) > 1 THEN
        RAISE EXCEPTION 'argument "tasks" has tasks of several shards'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('Their keys, groups and predecessors are on the shards %s.', homes),
                  HINT = 'Push the tasks of each shard with a call of its own.';
    END IF;
    RETURN QUERY SELECT unnest(homes);
    IF NOT FOUND THEN
        RETURN QUERY SELECT queue_shard.in_turn();
    END IF;
END
$$;
COMMENT ON FUNCTION queue_shard.places(jsonb) IS
    'Returns the shards for tasks that are pushed together, in the order to try them.';

CREATE FUNCTION queue_shard.raise_away(problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'no shard that could do this can be reached'
        USING ERRCODE = 'sqlclient_unable_to_establish_sqlconnection', DETAIL = problem,
              HINT = 'Nothing was done. Try again.';
END
$$;
COMMENT ON FUNCTION queue_shard.raise_away(text) IS 'Raises 08001.';

-- If a shard assigned ids of another one, calls for its tasks would go there.
CREATE FUNCTION queue_shard.check_id(shard integer, id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue_shard.of(id) <> shard THEN
        RAISE EXCEPTION 'shard % gives out ids of shard %', shard, queue_shard.of(id)
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('Run shard.sql on it with shard=%s, after its tasks with such ids were finished or purged.', shard);
    END IF;
    RETURN id;
END
$$;
COMMENT ON FUNCTION queue_shard.check_id(integer, bigint) IS 'Returns the id if it belongs to the shard; raises otherwise.';

COMMIT;
