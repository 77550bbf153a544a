-- queue.complete_many
--
--   Touches:  queue.tasks (locks the tasks that run with the token given, in the order of ids, so that two batches
--             cannot deadlock; deletes), queue.history (inserts)
--   How:      if all tasks are plain (complete.sql), one statement moves them, and the next one looks for their
--             dependents. Otherwise one statement locks all of them first, so that their order is the same for all; the
--             next moves those that nothing depends on, and the others follow one by one: see notify_dependents()

CREATE FUNCTION queue.complete_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    -- Null means all queues. Checked once and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    locked  bigint;
    done    bigint[];
    positions  bigint[];
    one     record;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('results', results, cardinality(ids));
    WITH given AS MATERIALIZED (
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.result, g.position
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
             WITH ORDINALITY AS g (id, token, result, position)
        ORDER BY g.id, g.token, g.position
    ), ended AS (
        DELETE FROM queue.tasks AS t USING given AS g
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running' AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND t.key IS NULL AND t.group_key IS NULL
          AND (SELECT bool_and(r.key IS NULL AND r.group_key IS NULL AND q.keep_history AND q.max_running IS NULL)
               FROM given AS i JOIN queue.tasks AS r ON r.id = i.id AND r.token = i.token
               JOIN queue.queues AS q ON q.name = r.queue)
        RETURNING t.*, g.result, g.position
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.kind, e.lease, e.timeout, e.start_by, e.weight, e.headers,
               e.payload, e.progress, e.errors, e.result
        FROM ended AS e
    )
    SELECT array_agg(e.id), array_agg(e.position) INTO done, positions FROM ended AS e;
    IF done IS NOT NULL THEN
        PERFORM queue_internal.notify_dependents(ARRAY[u.id], 'completed') FROM unnest(done) AS u (id)
        WHERE EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = u.id);
        RETURN QUERY SELECT d.id FROM unnest(done, positions) AS d (id, position) ORDER BY d.position;
        RETURN;
    END IF;
    PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
    JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
    WHERE (allowed IS NULL OR t.queue = ANY (allowed))
    ORDER BY t.id FOR UPDATE OF t;
    GET DIAGNOSTICS locked = ROW_COUNT;
    -- Scalar subqueries, because a join may read all dependencies to find a few.
    WITH given AS MATERIALIZED (
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.result, g.position
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
             WITH ORDINALITY AS g (id, token, result, position)
        ORDER BY g.id, g.token, g.position
    ), ended AS (
        DELETE FROM queue.tasks AS t USING given AS g
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running' AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND t.key IS NULL AND t.group_key IS NULL
          AND (SELECT q.max_running FROM queue.queues AS q WHERE q.name = t.queue) IS NULL
          AND (SELECT d.task_id FROM queue_internal.dependencies AS d WHERE d.predecessor_id = t.id LIMIT 1) IS NULL
          -- At another isolation level the snapshot may not show all dependents: then the history has to show how the
          -- task ended (archive).
          AND (current_setting('transaction_isolation') = 'read committed'
               OR (SELECT q.keep_history FROM queue.queues AS q WHERE q.name = t.queue))
        RETURNING t.*, g.result, g.position,
                  (SELECT q.keep_history FROM queue.queues AS q WHERE q.name = t.queue) AS kept
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.kind, e.lease, e.timeout, e.start_by, e.weight, e.headers,
               e.payload, e.progress, e.errors, e.result
        FROM ended AS e WHERE e.kept IS DISTINCT FROM false
    )
    SELECT array_agg(e.id), array_agg(e.position) INTO done, positions FROM ended AS e;
    IF locked > coalesce(cardinality(done), 0) THEN
        FOR one IN
            SELECT DISTINCT ON (t.id) t AS task, g.result, g.position
            FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
                 WITH ORDINALITY AS g (id, token, result, position)
            JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
                 AND (allowed IS NULL OR t.queue = ANY (allowed))
            ORDER BY t.id, g.position
        LOOP
            PERFORM queue_internal.archive(one.task, 'completed', one.result);
            done := done || (one.task).id;
            positions := positions || one.position;
        END LOOP;
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
