-- queue.purge
--
--   Waits:    never: it skips tasks that are locked, or whose key is
--   Touches:  queue.tasks, queue.dead_letters (locks with SKIP LOCKED, deletes)

CREATE FUNCTION queue.purge(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tasks   bigint;
    letters bigint;
BEGIN
    PERFORM queue_internal.check_queue(name);
    -- Dead letters first, in the same order as redrive. Leaves to redrive what it has locked.
    WITH dead AS MATERIALIZED (
        SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = purge.name ORDER BY d.id FOR UPDATE SKIP LOCKED
    )
    DELETE FROM queue.dead_letters AS l USING dead AS d WHERE l.id = d.id;
    GET DIAGNOSTICS letters = ROW_COUNT;
    SELECT count(*) FILTER (WHERE queue_internal.discard(i.task)) INTO tasks FROM (
        SELECT t AS task FROM queue.tasks AS t
        WHERE t.queue = purge.name AND t.state <> 'running' ORDER BY t.id FOR UPDATE SKIP LOCKED
    ) AS i
    -- A session that ends the running task which this one replaces has locked the key.
    WHERE (i.task).key IS NULL OR queue_internal.lock_key((i.task).queue, (i.task).key, false);
    RETURN tasks + letters;
END
$$;
COMMENT ON FUNCTION queue.purge IS
'Deletes the tasks of a queue that are not running, and its dead letters, without recording them in the history.
Returns how many it deleted. Skips tasks that another transaction has locked, or that a trigger of yours keeps. Needs the operator''s right on the
queue.

- name: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: the argument is null,
invalid or too large.';
