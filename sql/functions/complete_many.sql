-- queue.complete_many
--
--   Touches:  queue.tasks (locks the tasks that run with the token given, in the order of ids, so that two batches
--             cannot deadlock; deletes; of groups, admits the next tasks as queue.complete does), queue.history (inserts)
--   How:      if all tasks are plain (complete.sql), one statement locks and moves them, and if it has moved all of those
--             given, that is all. Otherwise one statement locks all that are left first; then the plain ones are moved
--             together, and the others one by one

CREATE FUNCTION queue.complete_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_nestloop = off
SET jit = off
AS $$
DECLARE
    -- Null means all queues. Checked once and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    locked  bigint;
    done    bigint[];
    positions  bigint[];
    plain   record;
    one     record;
    task    queue.tasks;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('results', results, cardinality(ids));
    SELECT p.done, p.positions INTO done, positions
    FROM queue_internal.complete_plain(ids, tokens, results, allowed, true) AS p;
    IF done IS NULL OR cardinality(done) < cardinality(ids) THEN
        PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
        WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
        ORDER BY t.id FOR UPDATE OF t;
        GET DIAGNOSTICS locked = ROW_COUNT;
        IF locked > 0 THEN
            SELECT * INTO plain FROM queue_internal.complete_plain(ids, tokens, results, allowed, false);
            done := done || plain.done;
            positions := positions || plain.positions;
            locked := locked - coalesce(cardinality(plain.done), 0);
        END IF;
        IF locked > 0 THEN
            FOR one IN
                SELECT DISTINCT ON (g.id, g.token) g.*
                FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
                     WITH ORDINALITY AS g (id, token, result, position)
                -- IS NOT TRUE keeps the planner from joining.
                WHERE (g.id IN (SELECT unnest(done))) IS NOT TRUE
                ORDER BY g.id, g.token, g.position
            LOOP
                SELECT t.* INTO task FROM queue.tasks AS t
                WHERE t.id = one.id AND t.token = one.token AND t.state = 'running'
                  AND (allowed IS NULL OR t.queue = ANY (allowed));
                CONTINUE WHEN NOT FOUND;
                PERFORM queue_internal.archive(task, 'completed', one.result);
                done := done || one.id;
                positions := positions || one.position;
            END LOOP;
        END IF;
    END IF;
    RETURN QUERY SELECT d.id FROM unnest(done, positions) AS d (id, position) ORDER BY d.position;
END
$$;
COMMENT ON FUNCTION queue.complete_many IS
'Completes many tasks and returns the ids of those that were accepted, in the order given. A task whose token is stale,
or on whose queue the caller has no worker''s right, is left out and does not affect the others. Empty arrays return no
rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- results: one JSON value for each task; an element may be null. Null (default) means no results.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- Finishes the plain tasks among those given; or none of them, if "all_of_them" is true and some are not plain.
--
--   Why the planner settings and "ids" beside the joins: statistics from when no task ran let the planner expect one such
--   task. It would then compare each task that runs with each one given. And only a merge join in the order of the ids
--   locks the tasks in this order: the token is not joined by "=", so that it cannot be merged by the token.
--   Why scalar subqueries: a join may read all queues, or all dependencies, to find a few.
CREATE FUNCTION queue_internal.complete_plain(
    ids bigint[], tokens bigint[], results jsonb[], allowed text[], all_of_them boolean,
    OUT done bigint[], OUT positions bigint[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_nestloop = off
SET enable_mergejoin = on
SET enable_sort = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    queues     text[];
    group_keys text[];
BEGIN
    WITH given AS MATERIALIZED (
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.result, g.position
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
             WITH ORDINALITY AS g (id, token, result, position)
        ORDER BY g.id, g.token, g.position
    ), found AS MATERIALIZED (
        SELECT t.id, t.token, g.result, g.position, t.key IS NULL AS plain,
               -- What the history keeps: 0 for nothing, 1 for all but the payload, 2 for all. Null if the queue has more to do.
               -- At another isolation level the snapshot may not show all dependents: then the history has to show how the
               -- task ended (archive).
               (SELECT CASE WHEN q.max_running IS NULL
                                 AND (q.keep_history OR current_setting('transaction_isolation') = 'read committed')
                            THEN q.keep_history::integer * (1 + q.keep_payloads::integer) END
                FROM queue.queues AS q WHERE q.name = t.queue) AS kept
        FROM given AS g JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token
        WHERE t.id = ANY (ids) AND t.state = 'running' AND (allowed IS NULL OR t.queue = ANY (allowed))
    ), ended AS (
        DELETE FROM queue.tasks AS t USING found AS f
        WHERE t.id = f.id AND t.token IS NOT DISTINCT FROM f.token AND t.id = ANY (ids) AND t.state = 'running'
          AND t.key IS NULL AND f.kept IS NOT NULL
          AND (NOT all_of_them OR (SELECT bool_and(o.plain AND o.kept IS NOT NULL) FROM found AS o))
        RETURNING t.*, f.result, f.position, f.kept
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.kind, e.lease, e.timeout, e.start_by, e.weight, e.headers,
               CASE WHEN e.kept = 2 THEN e.payload END, e.progress, e.errors, e.result
        FROM ended AS e WHERE e.kept > 0
    )
    SELECT array_agg(e.id), array_agg(e.position),
           array_agg(e.queue) FILTER (WHERE e.group_key IS NOT NULL), array_agg(e.group_key) FILTER (WHERE e.group_key IS NOT NULL)
    INTO done, positions, queues, group_keys FROM ended AS e;
    IF queues IS NOT NULL THEN
        PERFORM queue_internal.hand_over(queues, group_keys);
    END IF;
    -- In a statement after the one that deleted the tasks: see notify_dependents().
    PERFORM queue_internal.notify_dependents(ARRAY[u.id], 'completed') FROM unnest(done) AS u (id)
    WHERE (SELECT d.task_id FROM queue_internal.dependencies AS d WHERE d.predecessor_id = u.id LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.complete_plain IS
    'Completes the tasks that have no key, in queues without max_running.';
