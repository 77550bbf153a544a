-- queue.retry
--
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)

CREATE FUNCTION queue.retry(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF NOT EXISTS (SELECT FROM queue.dead_letters AS d
                   WHERE d.id = retry.id AND queue_internal.has_right('operator', d.queue)) THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'is not among the dead letters', 'Only tasks that failed for good can be retried.');
    END IF;
    -- Tries again if the key became free after it was found taken.
    WHILE queue_internal.requeue_dead_letters(ARRAY[id], keeps_errors => false) = 0 LOOP
        PERFORM queue_internal.raise_duplicate_key(d.queue, d.key, k.task_id, k.expires_at)
        FROM queue.dead_letters AS d JOIN queue_internal.keys AS k ON k.queue = d.queue AND k.key = d.key
        WHERE d.id = retry.id AND k.task_id <> d.id;
        IF NOT EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = retry.id) THEN
            PERFORM queue_internal.raise_wrong_state(
                id, 'operator', 'is not among the dead letters',
                'Only tasks that failed for good can be retried.');
        END IF;
        -- With the key, or without any, only a trigger of the user can have suppressed it.
        IF EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = retry.id
                   AND (d.key IS NULL OR EXISTS (SELECT FROM queue_internal.keys AS k
                                                 WHERE k.queue = d.queue AND k.key = d.key AND k.task_id = d.id))) THEN
            RAISE EXCEPTION 'a trigger has suppressed task %', id
                USING ERRCODE = 'triggered_action_exception', HINT = 'It is still among the dead letters.';
        END IF;
    END LOOP;
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue.retry IS
'Puts a dead letter back into its queue and returns its new state, queued. The task is due at once, and its attempts
start again from 0. It keeps its id and its errors, and its token continues to grow. Its start deadline is
removed. Needs the operator''s right on the
queue.

- id: the task.

Errors: QX002: its queue was dropped. QX003: the task does not exist, or the caller has no right on its queue. QX004:
another task has its key. QX005: it is not a dead letter. 09000: a trigger that you added suppresses the task. 22004 or
22023: the argument is null or invalid.';

-- Dead letters whose key another task has, or which a trigger of the user suppresses, stay where they are. So do all but the oldest of those with the same key,
-- which have to be found first: the task that would hold the key does not exist yet.
CREATE FUNCTION queue_internal.requeue_dead_letters(
    ids bigint[], to_queue text DEFAULT NULL, keeps_errors boolean DEFAULT true) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    revived bigint;
    kept    bigint;
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT l.*, coalesce(to_queue, l.queue) AS target FROM queue.dead_letters AS l
        WHERE l.id = ANY (ids) ORDER BY l.id FOR UPDATE
    ), first AS MATERIALIZED (
        -- In the order of push_many.
        SELECT DISTINCT ON (l.target, l.key COLLATE "C") l.id, l.target, l.key, l.key_ttl FROM locked AS l
        WHERE l.key IS NOT NULL ORDER BY l.target, l.key COLLATE "C", l.id
    ), free AS MATERIALIZED (
        SELECT l.id FROM locked AS l WHERE l.key IS NULL
        UNION ALL
        SELECT f.id FROM first AS f WHERE queue_internal.take_key(f.target, f.key, f.id, f.key_ttl, keeps_errors)
    ), added AS (
        INSERT INTO queue.tasks AS t (
            id, queue, priority, max_attempts, token, created_at, key, group_key, backoff, kind, lease, timeout, weight,
            headers, payload, progress, errors)
        SELECT d.id, d.target, d.priority, d.max_attempts, d.token, d.created_at, d.key, d.group_key,
               d.backoff, d.kind, d.lease, d.timeout, d.weight, d.headers, d.payload, d.progress, d.errors
        FROM locked AS d JOIN free AS f ON f.id = d.id ORDER BY d.id
        RETURNING t.id
    ), forgotten AS (
        -- Dependents that are pushed later wait for its next end, and so does a rest that was not notified yet.
        DELETE FROM queue_internal.outcomes AS o USING added AS a WHERE o.task_id = a.id
    ), gone AS (
        DELETE FROM queue.dead_letters AS d USING added AS a WHERE d.id = a.id RETURNING d.id
    )
    SELECT count(g.id), min(a.id) FILTER (WHERE g.id IS NULL) INTO revived, kept
    FROM added AS a LEFT JOIN gone AS g ON g.id = a.id;
    -- It would be in both tables.
    IF kept IS NOT NULL THEN
        PERFORM queue_internal.raise_kept(kept, 'queue.dead_letters');
    END IF;
    RETURN revived;
END
$$;
COMMENT ON FUNCTION queue_internal.requeue_dead_letters IS
    'Puts dead letters back into their queues, or into another one; returns how many.';
