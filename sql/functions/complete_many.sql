-- queue.complete_many(ids, tokens, results)
--
--   Finishes many tasks at once and returns the ids of those that were accepted, in the order
--   given. A stale token leaves its task out and disturbs none of the others.
--   API:      public; needs the worker's right on the queues
--   Empty:    empty arrays finish nothing and return no rows
--   Errors:   22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (locks in the order of ids, so that two batches cannot deadlock;
--             deletes), queue.history (inserts)

CREATE FUNCTION queue.complete_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('results', results, cardinality(ids));
    PERFORM FROM queue.tasks AS t
    WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed)) ORDER BY t.id FOR UPDATE;
    RETURN QUERY
    WITH finished AS (
        SELECT DISTINCT ON (t.id) t AS task, g.result, g.position
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
             WITH ORDINALITY AS g (id, token, result, position)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
             AND (allowed IS NULL OR t.queue = ANY (allowed))
        ORDER BY t.id, g.position
    ), kept AS (
        SELECT f.position, queue_internal.archive(f.task, 'completed', f.result) FROM finished AS f
    )
    -- Every row of "kept" is needed, or its task would not be archived.
    SELECT (f.task).id FROM finished AS f JOIN kept AS k USING (position) ORDER BY position;
END
$$;
COMMENT ON FUNCTION queue.complete_many(bigint[], bigint[], jsonb[]) IS
    'Finishes many tasks; returns the ids of those whose token was current.';
