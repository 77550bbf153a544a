-- queue_internal.hand_over(queues, group_keys, tasks_are_plain)
--
--   Admits the next tasks of groups of which tasks have ended in this transaction. Leaves an event for a group whose next
--   task cannot be admitted now: because another transaction admits its tasks, because of an error, or because the
--   snapshot may be older than the lock. Also where several tasks of a group may run, after a tenth of a second, and after fifty
--   calls with one group in a transaction: it has each group locked until the transaction ends, also against others that share
--   its lock, and a snapshot gets slower with more than 64 subtransactions.
--   Errors:   none of its own, unless "tasks_are_plain": then no trigger or constraint of the user can raise one, and it
--             needs no subtransaction

CREATE FUNCTION queue_internal.hand_over(queues text[], group_keys text[], tasks_are_plain boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_blocked CONSTANT smallint := 2;
    until      CONSTANT timestamptz := clock_timestamp() + interval '100 ms';
    single     CONSTANT boolean := cardinality(queues) = 1;
    -- One character for each call with one group, because anybody can set it to anything.
    calls      CONSTANT text := coalesce(current_setting('queue_hand_over.calls', true), '');
    committed  CONSTANT boolean := current_setting('transaction_isolation') = 'read committed';
    source     text;
    one        boolean;
    first      bigint;
    -- The groups in which a task is blocked, which this transaction has locked, and the first blocked task if it is only one group.
    -- Until it comes to the last of many, a push with a smaller id may have been committed.
    in_queues  text[] := '{}';
    keys       text[] := '{}';
    blocked    bigint[] := '{}';
BEGIN
    FOR number IN 1 .. cardinality(queues) LOOP
        IF source IS DISTINCT FROM queues[number] THEN
            source := queues[number];
            one := committed AND (SELECT q.max_running_per_group = 1 FROM queue.queues AS q WHERE q.name = source);
        END IF;
        -- The lock comes first, and is kept even if no task is blocked. A task can be pushed before this transaction commits.
        -- For the session that processes its event, the task that has ended here still runs. Without the lock it would
        -- admit nothing and delete the event.
        IF one AND clock_timestamp() < until AND NOT (single AND length(calls) >= 50)
           AND queue_internal.lock_group(source, group_keys[number]) THEN
            -- From the head of the group on, as in group_head(), but without a call: each end of a task comes here.
            first := (
                SELECT t.id FROM queue.tasks AS t
                WHERE t.queue = source AND t.group_key = group_keys[number]
                  AND (t.admission, t.id) >= (is_blocked, coalesce((
                      SELECT least(h.first_id, (
                                 SELECT r.task_id FROM queue_internal.group_returns AS r
                                 WHERE r.queue = h.queue AND r.group_key = h.group_key ORDER BY r.queue, r.group_key, r.task_id LIMIT 1))
                      FROM queue_internal.group_heads AS h
                      WHERE h.queue = source AND h.group_key = group_keys[number]), -9223372036854775808))
                ORDER BY t.admission, t.id LIMIT 1);
            CONTINUE WHEN first IS NULL;
            in_queues := in_queues || source;
            keys := keys || group_keys[number];
            blocked := blocked || first;
        ELSE
            INSERT INTO queue_internal.events (queue, group_key) VALUES (source, group_keys[number]);
        END IF;
    END LOOP;
    IF single THEN
        PERFORM set_config('queue_hand_over.calls', calls || 'x', true);
    END IF;
    blocked := CASE WHEN cardinality(keys) = 1 THEN blocked ELSE '{}' END;
    IF keys = '{}' THEN
        RETURN;
    ELSIF tasks_are_plain THEN
        PERFORM queue_internal.admit_each(in_queues, keys, blocked, until, false);
        RETURN;
    END IF;
    -- One subtransaction for all groups; one for each only if one of them raises an error.
    BEGIN
        PERFORM queue_internal.admit_each(in_queues, keys, blocked, until, false);
    EXCEPTION WHEN OTHERS THEN
        PERFORM queue_internal.admit_each(in_queues, keys, blocked, until, true);
    END;
END
$$;
COMMENT ON FUNCTION queue_internal.hand_over IS
    'Admits the next tasks of groups whose tasks have ended, or leaves events for them.';

-- "blocked" are their first blocked tasks, as far as known. With "apart", each group has a subtransaction of its own.
CREATE FUNCTION queue_internal.admit_each(
    queues text[], group_keys text[], blocked bigint[], until timestamptz, apart boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    admitted boolean;
BEGIN
    FOR number IN 1 .. cardinality(queues) LOOP
        admitted := false;
        IF clock_timestamp() >= until AND number > 1 THEN
            NULL;
        ELSIF NOT apart THEN
            admitted := queue_internal.admit_next(queues[number], group_keys[number], until, NULL, blocked[number]);
        ELSE
            BEGIN
                admitted := queue_internal.admit_next(queues[number], group_keys[number], until, NULL, blocked[number]);
            EXCEPTION WHEN OTHERS THEN
                IF queue_internal.may_log('event', queues[number]) THEN
                    RAISE WARNING 'the next task of a group of queue % cannot be admitted: %', to_json(queues[number]), SQLERRM;
                END IF;
            END;
        END IF;
        IF NOT admitted THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (queues[number], group_keys[number]);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.admit_each IS 'Admits the next task of each of these groups, or leaves an event for it.';
