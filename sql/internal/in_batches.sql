-- queue_internal.in_batches(verbs, filter, dry_run, batch_size, to_queue, priority, tasks)
--
--   What all bulk procedures do, once for each of "verbs": visit the tasks that match the filter in the order of their
--   ids, and commit after each batch if the CALL allows it. Adds the number of tasks to "tasks".
--   Promise:  each task is visited once, even if it returns under its id meanwhile, and none that was pushed after it
--             began. A batch that has committed stays done
--   Rights:   next_batch checks them. It runs with the rights of the owner, which a procedure that commits cannot; so
--             it puts nothing from its caller unquoted into a statement
--   Locks:    the tasks of one batch, with SKIP LOCKED. A move and a redrive wait for a transaction that is taking a
--             key
--   Why it has no SET clause, and no operators: see queue.maintain().

CREATE PROCEDURE queue_internal.in_batches(
    verbs text[], filter jsonb, dry_run boolean, batch_size integer, to_queue text, priority integer,
    INOUT tasks bigint)
LANGUAGE plpgsql AS $$
DECLARE
    verb      pg_catalog.text;
    last      bigint;
    newest    bigint;
    moment    pg_catalog.timestamptz;
    -- Kept from one verb to the next: after the first commit, the transaction is no longer that of the CALL, from
    -- which the SQL-only edition concludes that it may commit.
    committed boolean;
BEGIN
    FOREACH verb IN ARRAY verbs LOOP
        last := NULL;
        newest := NULL;
        moment := NULL;
        LOOP
            SELECT b.tasks, b.last, b.newest, b.moment INTO tasks, last, newest, moment
            FROM queue_internal.next_batch(
                verb, filter, dry_run, batch_size, to_queue, priority, tasks, last, newest, moment) AS b;
            EXIT WHEN last IS NULL;
            CALL queue_internal.try_commit(committed);
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue_internal.in_batches IS
    'Applies a bulk change to all tasks that match a filter, batch by batch.';

-- "redrive" and "forget" are about dead letters, all others about live tasks.
CREATE FUNCTION queue_internal.bulk_table(verb text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN verb IN ('redrive', 'forget') THEN 'queue.dead_letters' ELSE 'queue.tasks' END;
COMMENT ON FUNCTION queue_internal.bulk_table IS 'Returns the table that a bulk procedure visits.';

CREATE FUNCTION queue_internal.bulk_states(verb text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE verb
        WHEN 'cancel', 'reprioritise' THEN RETURN '{queued, scheduled, waiting, running}';
        WHEN 'run_now' THEN RETURN '{scheduled}';
        WHEN 'move' THEN RETURN '{queued, scheduled, waiting}';
        WHEN 'discard', 'forget' THEN RETURN '{queued, scheduled, waiting, failed}';
        WHEN 'redrive' THEN RETURN '{failed}';
    END CASE;
END
$$;
COMMENT ON FUNCTION queue_internal.bulk_states IS 'Returns the states of the tasks that a bulk procedure accepts.';

CREATE FUNCTION queue_internal.bulk_condition(
    verb text, filter jsonb, dry_run boolean, batch_size integer, to_queue text, priority integer, newest bigint,
    moment timestamptz)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    matching CONSTANT text := queue_internal.filter_condition(
        filter, queue_internal.bulk_states(verb), queue_internal.bulk_table(verb) = 'queue.dead_letters', moment);
BEGIN
    IF verb = 'move' OR to_queue IS NOT NULL THEN
        PERFORM queue_internal.check_name('to_queue', to_queue);
        PERFORM queue_internal.open_queue(to_queue, 'operator');
    END IF;
    IF verb = 'reprioritise' AND priority IS NULL THEN
        PERFORM queue_internal.raise_null('priority');
    ELSIF dry_run IS NULL THEN
        PERFORM queue_internal.raise_null('dry_run');
    ELSIF batch_size IS NULL THEN
        PERFORM queue_internal.raise_null('batch_size');
    ELSIF batch_size < 1 THEN
        PERFORM queue_internal.raise_invalid('batch_size', 'must be greater than zero', batch_size::text);
    ELSIF batch_size > 100000 THEN
        PERFORM queue_internal.raise_too_large('batch_size', '100000', batch_size::text);
    END IF;
    -- Tasks that are already as requested are not counted.
    RETURN format('t.id <= %s AND %s AND %s', newest, matching, CASE verb
        WHEN 'cancel' THEN '(t.state <> ''running'' OR t.cancel_requested_at IS NULL)'
        WHEN 'reprioritise' THEN 't.priority <> ' || priority
        WHEN 'move' THEN format('t.queue <> %L', to_queue)
        ELSE 'true' END);
END
$$;
COMMENT ON FUNCTION queue_internal.bulk_condition IS
    'Checks the arguments of a bulk procedure and returns the condition for its tasks.';

CREATE FUNCTION queue_internal.count_matching(verb text, condition text, filter jsonb, tasks bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    matching bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s AS t WHERE %s', queue_internal.bulk_table(verb), condition)
    INTO matching USING NULL, NULL, filter;
    RETURN tasks + matching;
END
$$;
COMMENT ON FUNCTION queue_internal.count_matching IS 'Returns the result of a dry run.';

-- The first call has null in "last", "newest" and "moment". "newest" is the largest id at the start, "moment" the
-- time that ages are compared with. Why the planner settings: the scan follows the primary key. Any other plan would
-- start from the beginning for every batch.
CREATE FUNCTION queue_internal.next_batch(
    verb text, filter jsonb, dry_run boolean, batch_size integer, to_queue text, priority integer,
    INOUT tasks bigint, INOUT last bigint, INOUT newest bigint, INOUT moment timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    relation  CONSTANT text := queue_internal.bulk_table(verb);
    condition text;
    ids       bigint[];
    deleted   bigint;
    task_id   bigint;
    task      queue.tasks;
BEGIN
    moment := coalesce(moment, clock_timestamp());
    IF newest IS NULL THEN
        EXECUTE 'SELECT coalesce(max(t.id), 0) FROM ' || relation || ' AS t' INTO newest;
    END IF;
    condition := queue_internal.bulk_condition(verb, filter, dry_run, batch_size, to_queue, priority, newest, moment);
    IF dry_run THEN
        tasks := queue_internal.count_matching(verb, condition, filter, tasks);
        last := NULL;
        RETURN;
    END IF;
    EXECUTE format('SELECT ARRAY(SELECT t.id FROM %s AS t WHERE t.id > $1 AND %s '
                   'ORDER BY t.id LIMIT $2 FOR %s SKIP LOCKED)', relation, condition,
                   -- The others keep the task, so a transaction that has pushed after it does not prevent them.
                   CASE WHEN verb IN ('discard', 'redrive', 'forget') THEN 'UPDATE' ELSE 'NO KEY UPDATE' END)
    INTO ids USING coalesce(last, 0), batch_size, filter;
    IF verb = 'redrive' THEN
        tasks := tasks + queue_internal.requeue_dead_letters(ids, to_queue);
    ELSIF verb = 'forget' THEN
        DELETE FROM queue.dead_letters AS d WHERE d.id = ANY (ids);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        tasks := tasks + deleted;
    ELSE
        -- In the order of keys, as in push_many.
        FOREACH task_id IN ARRAY CASE WHEN verb <> 'move' THEN ids ELSE ARRAY(
            SELECT t.id FROM queue.tasks AS t WHERE t.id = ANY (ids) ORDER BY t.key NULLS FIRST, t.id) END
        LOOP
            -- Read again, because a change to one task may have changed or ended another.
            SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = task_id;
            CONTINUE WHEN NOT FOUND;
            -- Those of tasks that lose their key. A session that ends a task which another one replaces has locked it, too.
            CONTINUE WHEN verb IN ('move', 'discard') AND task.key IS NOT NULL
                      AND NOT queue_internal.lock_key(task.queue, task.key, false);
            CASE verb
                WHEN 'cancel' THEN
                    CONTINUE WHEN task.state <> 'running' AND NOT queue_internal.lock_to_end(task.id, false);
                    PERFORM queue_internal.cancel_or_request(task);
                WHEN 'run_now' THEN
                    task.run_at := clock_timestamp();
                    PERFORM queue_internal.reorder(task);
                WHEN 'reprioritise' THEN
                    task.priority := priority;
                    PERFORM queue_internal.reorder(task);
                WHEN 'move' THEN
                    CONTINUE WHEN NOT queue_internal.move(task, to_queue);
                WHEN 'discard' THEN
                    CONTINUE WHEN NOT queue_internal.discard(task);
            END CASE;
            tasks := tasks + 1;
        END LOOP;
    END IF;
    last := CASE WHEN cardinality(ids) = batch_size THEN ids[batch_size] END;
    RAISE DEBUG 'queue_ext: % tasks so far', tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.next_batch IS
    'Does one batch of a bulk change; "last" is null when nothing is left.';
