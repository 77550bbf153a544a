-- Events: hints to check a waiting task or a group.
--
--   Each change that may unblock a task leaves an event in the same transaction: the end of a predecessor, a push into
--   a group, a retry in a group, an end that could not admit the next task itself (hand_over.sql). The next claim from the
--   queue processes the events before it looks for tasks; the background worker and queue.maintain() do it too.
--   Promise:  an event only names what to check. The result depends on the rows of tasks and dependencies, as
--             they are when the event is processed. A lost event is found by the sweep (sweep.sql).
--   Promise:  an event that cannot be processed does not delay others. It is due again after a pause that grows from
--             10 ms to 1 s because a transaction has a row locked, and to 10 s because of an error, by a constraint or a
--             trigger that somebody added, which is logged once, for a few events of each queue (may_log.sql), and
--             shown by queue.health().
--   Why not outside READ COMMITTED: a snapshot from before another transaction's commit could admit too many of a
--             group.

-- Whether there is an event about a task, for the sweep. If its transaction "is_short", one that another transaction has
-- locked does not count: it may be a claim that stays open, and nobody else can process it meanwhile. It finds that out by
-- locking it, which a claim must not do.
-- Not EXISTS, which drops the ORDER BY. With it, the planner uses the index on tasks also if it plans while the table is
-- empty; without, the plan may read all events of the queue, however many there are by then.
CREATE FUNCTION queue_internal.has_event(task_id bigint, queue text, is_short boolean) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    IF is_short THEN
        RETURN (SELECT e.id FROM queue_internal.events AS e
                WHERE e.task_id = has_event.task_id AND e.queue = has_event.queue
                ORDER BY e.task_id, e.id LIMIT 1 FOR UPDATE SKIP LOCKED) IS NOT NULL;
    END IF;
    RETURN (SELECT e.id FROM queue_internal.events AS e
            WHERE e.task_id = has_event.task_id AND e.queue = has_event.queue
            ORDER BY e.task_id, e.id LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.has_event IS 'Returns whether there is an event of the queue about a task.';

-- The same about a group. Not an event for a later time (rates.sql).
CREATE FUNCTION queue_internal.has_group_event(queue text, group_key text, is_short boolean) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    IF is_short THEN
        RETURN (SELECT e.id FROM queue_internal.events AS e
                WHERE e.queue = has_group_event.queue AND e.group_key = has_group_event.group_key
                  AND (e.due_at <= clock_timestamp() OR e.tries > 0)
                ORDER BY e.queue, e.group_key, e.id LIMIT 1 FOR UPDATE SKIP LOCKED) IS NOT NULL;
    END IF;
    RETURN (SELECT e.id FROM queue_internal.events AS e
            WHERE e.queue = has_group_event.queue AND e.group_key = has_group_event.group_key
              AND (e.due_at <= clock_timestamp() OR e.tries > 0)
            ORDER BY e.queue, e.group_key, e.id LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.has_group_event IS 'Returns whether there is an event about a group.';

-- queue_internal.process_events(queue, max_events, after, all_locked, until)
--
--   Processes due events of a queue, except fresh ones up to the id "after"; returns how many it checked. It processes
--   at least one, and starts no other after "until" (by default in 150 ms), because one event can cause much work.
--   Of the events that other transactions seem to have locked it tries a few, or all with "all_locked" (next_event.sql).
--   Errors:   none of its own
--   Touches:  queue_internal.events (never waits for a lock)
CREATE FUNCTION queue_internal.process_events(
    source queue.queues, max_events integer, after bigint, all_locked boolean DEFAULT false, until timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- For both attempts together.
    stop CONSTANT timestamptz := coalesce(until, clock_timestamp() + interval '150 ms');
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    RETURN queue_internal.process_each(source, max_events, after, all_locked, false, stop);
EXCEPTION WHEN OTHERS THEN
    RETURN queue_internal.process_each(source, max_events, after, all_locked, true, stop);
END
$$;
COMMENT ON FUNCTION queue_internal.process_events IS
    'Unblocks tasks that waited for a predecessor or their turn; returns how many events it checked.';

-- With "apart", each event is processed in a subtransaction of its own.
CREATE FUNCTION queue_internal.process_each(
    source queue.queues, max_events integer, after bigint, all_locked boolean, apart boolean, until timestamptz)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    event    queue_internal.events;
    last_due timestamptz := '-infinity';
    last     bigint := after;
    more     boolean := true;
    -- Of those that other transactions seem to have locked.
    spot_due timestamptz := '-infinity';
    spot     bigint := after;
    locked   integer := 0;
    tried    record;
    checked  integer := 0;
BEGIN
    WHILE checked < max_events AND (checked = 0 OR clock_timestamp() < until) LOOP
        IF more THEN
            event := queue_internal.next_event(source.name, last_due, last, moment, all_locked);
            more := event.id IS NOT NULL;
            last_due := event.due_at;
            last := event.id;
        END IF;
        IF NOT more THEN
            EXIT WHEN all_locked OR locked = 4;
            SELECT t.* INTO tried FROM queue_internal.try_locked_event(source.name, spot_due, spot, moment) AS t;
            EXIT WHEN tried.id IS NULL;
            spot_due := tried.due_at;
            spot := tried.id;
            event := tried.event;
            IF event.id IS NULL THEN
                locked := locked + 1;
                spot_due := '-infinity';
                spot := queue_internal.random_between(spot, greatest(spot, (
                    SELECT e.id FROM queue_internal.events AS e
                    WHERE e.queue = source.name AND e.due_at = '-infinity' ORDER BY e.due_at DESC, e.id DESC LIMIT 1)));
                CONTINUE;
            END IF;
        END IF;
        checked := checked + 1;
        IF apart THEN
            BEGIN
                PERFORM queue_internal.process_event(source, event, after, until, all_locked);
            EXCEPTION WHEN OTHERS THEN
                PERFORM queue_internal.postpone_event(event, SQLERRM);
            END;
        ELSE
            PERFORM queue_internal.process_event(source, event, after, until, all_locked);
        END IF;
    END LOOP;
    RETURN checked;
END
$$;
COMMENT ON FUNCTION queue_internal.process_each IS 'Processes due events of a queue; returns how many it checked.';

-- Treats up to a hundred events about the same task or group as one. Later ones are not included. Locks these only once
-- they are to be deleted: an event whose lock is of no use makes other sessions pass over it (next_event.sql). If they have to
-- be postponed, and the transaction "is_short", one stands for all; otherwise each would be tried again, as long as a lock
-- is held. A claim may be in a transaction that stays open, and leaves the others to sessions that can process them sooner.
CREATE FUNCTION queue_internal.process_event(
    source queue.queues, event queue_internal.events, after bigint, until timestamptz, is_short boolean)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ids     bigint[];
    arrived bigint;
    tries   integer := event.tries;
    last    bigint;
    done    boolean;
    merged  queue_internal.events;
BEGIN
    IF event.task_id IS NOT NULL THEN
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e WHERE e.task_id = event.task_id AND e.id > after
                     ORDER BY e.task_id, e.id LIMIT 100);
        done := queue_internal.process_dependent(event.task_id);
    ELSE
        SELECT array_agg(f.id), least(min(f.arrived), event.arrived), greatest(max(f.tries), event.tries)
        INTO ids, arrived, tries FROM (
            SELECT e.id, e.arrived, e.tries FROM queue_internal.events AS e
            WHERE e.queue = source.name AND e.group_key = event.group_key AND e.id > after
              -- Not one that is for a later time (rates.sql).
              AND (e.due_at <= clock_timestamp() OR e.tries > 0)
            ORDER BY e.queue, e.group_key, e.id LIMIT 100) AS f;
        done := queue_internal.admit_next(event.queue, event.group_key, until, arrived);
    END IF;
    IF NOT done AND (NOT is_short OR cardinality(ids) <= 1) THEN
        PERFORM queue_internal.postpone_event(event, NULL);
        RETURN;
    ELSIF NOT done THEN
        -- With a new id: a session that has read the others deletes them, although it may have looked before they were left.
        INSERT INTO queue_internal.events (queue, group_key, task_id, arrived, tries)
        VALUES (event.queue, event.group_key, event.task_id, arrived, tries) RETURNING * INTO merged;
        PERFORM queue_internal.postpone_event(merged, NULL);
    END IF;
    -- By the whole primary key, because a plan made for few events may read all of the queue for each.
    DELETE FROM queue_internal.events AS e
    WHERE e.queue = event.queue AND e.due_at = event.due_at AND e.id = event.id;
    ids := array_remove(ids, event.id);
    last := ids[cardinality(ids)];
    IF last IS NULL THEN
        RETURN;
    END IF;
    -- The range, because such a plan does not look an array up in the index either.
    IF event.task_id IS NOT NULL THEN
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e
                     WHERE e.task_id = event.task_id AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids)
                     ORDER BY e.task_id, e.id FOR UPDATE SKIP LOCKED);
        DELETE FROM queue_internal.events AS e
        WHERE e.task_id = event.task_id AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids);
    ELSE
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e
                     WHERE e.queue = event.queue AND e.group_key = event.group_key
                       AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids)
                     ORDER BY e.queue, e.group_key, e.id FOR UPDATE SKIP LOCKED);
        DELETE FROM queue_internal.events AS e
        WHERE e.queue = event.queue AND e.group_key = event.group_key
          AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.process_event IS 'Processes an event and deletes it, or postpones it.';

CREATE FUNCTION queue_internal.postpone_event(event queue_internal.events, error text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- A lock may be released at any time.
    longest CONSTANT interval := CASE WHEN postpone_event.error IS NULL THEN '1 second' ELSE '10 seconds' END;
    later   CONSTANT timestamptz := clock_timestamp() + least(interval '10 ms' * 2 ^ least(event.tries, 10), longest);
BEGIN
    UPDATE queue_internal.events AS e
    SET due_at = later, tries = e.tries + 1, error = left(postpone_event.error, 1000)
    WHERE e.queue = event.queue AND e.due_at = event.due_at AND e.id = event.id;
    PERFORM queue_internal.announce_task(event.queue, later);
    IF error IS NOT NULL AND event.error IS NULL AND queue_internal.may_log('event', event.queue) THEN
        RAISE WARNING '% of queue % cannot be unblocked: %',
            coalesce('task ' || event.task_id, 'a group'), to_json(event.queue), error;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.postpone_event IS 'Postpones an event; logs its first error.';

-- First the dependents that the end of a task has left. Then some events of each queue in turn, in random order and for
-- 50 ms in all, so that a queue with many events does not delay others. A queue without due events costs one index
-- lookup; without the planner settings, the planner reads all events for each queue. A lookup that reads many events
-- which were processed, and could not be vacuumed yet, sets the scan start for the next ones (scan_start.sql).
CREATE FUNCTION queue_internal.process_all_events(max_events integer) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked bigint := queue_internal.notify_rests() + queue_internal.wake_rest();
    before  bigint := -1;
    until   CONSTANT timestamptz := clock_timestamp() + interval '50 ms';
    -- In a variable, because a volatile function is no condition for an index.
    moment  timestamptz;
    newest  CONSTANT bigint := queue_internal.newest_event();
    starts  CONSTANT boolean := queue_internal.has_scan_starts();
    entries bigint;
    source  queue.queues;
    after   bigint;
    asked   timestamptz;
    first   record;
    start   queue_internal.scan_start;
BEGIN
    WHILE checked > before LOOP
        before := checked;
        moment := clock_timestamp();
        FOR source IN SELECT q.* FROM queue.queues AS q ORDER BY random() LOOP
            after := CASE WHEN starts THEN (queue_internal.get_scan_start(source.name)).event ELSE 0 END;
            asked := clock_timestamp();
            entries := queue_internal.entries_passed();
            SELECT e.due_at, e.id INTO first FROM queue_internal.events AS e
            WHERE e.queue = source.name AND (e.due_at, e.id) > ('-infinity', after) AND e.due_at <= moment
            ORDER BY e.due_at, e.id LIMIT 1;
            -- Events before it have been processed, and their dead index entries need not be read again.
            after := CASE WHEN first.due_at = '-infinity' THEN first.id - 1 ELSE after END;
            IF clock_timestamp() > asked + interval '2 ms' AND queue_internal.entries_passed() > entries + 1000 THEN
                start := queue_internal.get_scan_start(source.name);
                start.event := CASE WHEN first.due_at = '-infinity' THEN after ELSE newest END;
                start.until := coalesce(start.until, clock_timestamp() + 20 * (clock_timestamp() - asked));
                PERFORM queue_internal.set_scan_start(source.name, start);
            END IF;
            CONTINUE WHEN first.id IS NULL;
            checked := checked + queue_internal.process_events(source, least(max_events, 20), after, true, until);
            IF checked >= max_events OR clock_timestamp() > until THEN
                RETURN checked;
            END IF;
        END LOOP;
    END LOOP;
    RETURN checked;
END
$$;
COMMENT ON FUNCTION queue_internal.process_all_events IS
    'Processes about so many due events of all queues; returns how many it checked.';
