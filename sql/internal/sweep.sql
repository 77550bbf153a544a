-- The sweep finds changes for which there is no event.
--
--   It reads the dependencies, the groups of each queue, the keys, the batches, and the rows of internal/steps.sql in the
--   order of their indexes, in turns: a bounded number of rows of each in a turn, from where the last turn stopped. So the time until it
--   finds a lost event of a group does not grow with the number of dependencies and keys, or of groups of another queue.
--   While an old snapshot keeps dead entries of groups, a turn checks fewer of them.
--   It resolves dependencies whose predecessor is gone, deletes keys whose task has ended and steps whose task has left no
--   trace, and leaves an event for each waiting task, batch and group that has to be checked and has none. So a lost event causes a delay of at most about
--   "queue.sweep_interval" if the background worker runs, else until the next queue.maintain(). A claim by SQL that
--   found nothing also sweeps a part of its queue, once a second in a session.
--
--   Why it leaves events and does not process what it finds: only events.sql admits and ends tasks, with its own rules
--   for locks and errors.

-- "queue" is the last queue whose groups this turn has checked, null between two turns. "groups" has the last group
-- of each queue that has more of them than a turn checks. Everything has been checked once all queues that had more
-- in the first turn ("queues"), and the dependencies, keys and batches ("pending"), have been read to their ends.
CREATE TYPE queue_internal.sweep_position AS (
    queue text, groups jsonb, predecessor_id bigint, task_id bigint, key_queue text, key text,
    is_first_turn boolean, queues text[], dependencies_pending boolean, keys_pending boolean,
    await_id bigint, awaits_pending boolean, step_id bigint, steps_pending boolean,
    event_queue text, event text, emitted_pending boolean,
    batch bigint, batches_pending boolean);
COMMENT ON TYPE queue_internal.sweep_position IS 'The position of a sweep in each of the tables.';

-- Checks about "max_rows" rows; returns its position. A turn is over when "queue" is null, and everything has been
-- checked when all of the position is null. With "again", each turn starts again with tables that were read to their
-- end, so that changes lost there meanwhile do not wait for larger tables; without, everything is checked once.
CREATE FUNCTION queue_internal.sweep(pos queue_internal.sweep_position, max_rows integer, again boolean)
RETURNS queue_internal.sweep_position
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- The number of rows in a turn: groups of each queue; dependencies, keys and batches each.
    piece  CONSTANT integer := 100;
    rows   CONSTANT integer := 500;
    source queue.queues;
    last   record;
BEGIN
    IF pos.queue IS NULL THEN
        pos.is_first_turn := pos IS NULL;
        IF again OR pos.is_first_turn OR pos.dependencies_pending THEN
            SELECT d.predecessor_id, d.task_id INTO pos.predecessor_id, pos.task_id
            FROM queue_internal.sweep_dependencies(pos.predecessor_id, pos.task_id, rows) AS d;
            pos.dependencies_pending :=
                pos.predecessor_id IS NOT NULL AND (pos.is_first_turn OR pos.dependencies_pending);
            IF pos.predecessor_id IS NULL THEN
                PERFORM queue_internal.retire_outcomes(1000);
            END IF;
        END IF;
        IF again OR pos.is_first_turn OR pos.awaits_pending THEN
            pos.await_id := queue_internal.sweep_awaits(pos.await_id, rows);
            pos.awaits_pending := pos.await_id IS NOT NULL AND (pos.is_first_turn OR pos.awaits_pending);
        END IF;
        IF again OR pos.is_first_turn OR pos.steps_pending THEN
            pos.step_id := queue_internal.sweep_steps(pos.step_id, piece);
            pos.steps_pending := pos.step_id IS NOT NULL AND (pos.is_first_turn OR pos.steps_pending);
        END IF;
        IF again OR pos.is_first_turn OR pos.emitted_pending THEN
            SELECT e.queue, e.event INTO pos.event_queue, pos.event
            FROM queue_internal.sweep_emitted(pos.event_queue, pos.event, rows) AS e;
            pos.emitted_pending := pos.event IS NOT NULL AND (pos.is_first_turn OR pos.emitted_pending);
        END IF;
        pos.queue := '';
        -- Forget queues that are gone.
        pos.groups := (SELECT jsonb_object_agg(g.key, g.value) FROM jsonb_each(pos.groups) AS g
                         WHERE (SELECT q.name FROM queue.queues AS q WHERE q.name = g.key) IS NOT NULL);
        pos.queues := ARRAY(SELECT u.name FROM unnest(pos.queues) AS u (name) WHERE pos.groups ? u.name);
        RETURN pos;
    END IF;
    WHILE max_rows > 0 LOOP
        SELECT q.* INTO source FROM queue.queues AS q
        WHERE q.name > pos.queue AND (again OR pos.is_first_turn OR q.name = ANY (pos.queues))
        ORDER BY q.name LIMIT 1;
        IF NOT FOUND THEN
            IF again OR pos.is_first_turn OR pos.keys_pending THEN
                SELECT k.queue, k.key INTO pos.key_queue, pos.key
                FROM queue_internal.sweep_keys(pos.key_queue, pos.key, rows) AS k;
                pos.keys_pending := pos.key IS NOT NULL AND (pos.is_first_turn OR pos.keys_pending);
            END IF;
            IF again OR pos.is_first_turn OR pos.batches_pending THEN
                pos.batch := (queue_internal.sweep_batches(pos.batch, rows));
                pos.batches_pending := pos.batch IS NOT NULL AND (pos.is_first_turn OR pos.batches_pending);
            END IF;
            IF pos.queues = '{}' AND NOT pos.dependencies_pending AND NOT pos.keys_pending AND NOT pos.batches_pending
               AND NOT pos.awaits_pending AND NOT pos.steps_pending AND NOT pos.emitted_pending THEN
                RETURN NULL;
            END IF;
            pos.queue := NULL;
            RETURN pos;
        END IF;
        pos.queue := source.name;
        -- Replication does not fire the trigger that inserts it.
        INSERT INTO queue_internal.locks (queue, number)
        SELECT source.name, -1
        WHERE NOT EXISTS (SELECT FROM queue_internal.locks AS l WHERE l.queue = source.name AND l.number = -1)
        ON CONFLICT DO NOTHING;
        SELECT g.group_key, g.checked INTO last
        FROM queue_internal.sweep_groups(source, pos.groups ->> source.name, piece, true) AS g;
        IF last.group_key IS NULL THEN
            pos.groups := pos.groups - source.name;
            pos.queues := array_remove(pos.queues, source.name);
        ELSE
            pos.groups := coalesce(pos.groups, '{}') || jsonb_build_object(source.name, last.group_key);
            pos.queues := pos.queues || CASE WHEN pos.is_first_turn THEN ARRAY[source.name] END;
        END IF;
        max_rows := max_rows - 1 - last.checked;
    END LOOP;
    RETURN pos;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep IS
    'Leaves events for changes without one, for a part of the tables; returns where to continue.';

CREATE FUNCTION queue_internal.retire_outcomes(max_outcomes integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    horizon CONSTANT timestamptz := clock_timestamp() - interval '1 day';
    ended   bigint;
BEGIN
    FOR ended IN
        SELECT o.task_id FROM queue_internal.outcomes AS o
        WHERE o.ended_at < horizon
          -- A dump is older, and its dependencies may only be read now. Not EXISTS, as in has_event.
          AND (SELECT d.task_id FROM queue_internal.dependencies AS d
               WHERE d.predecessor_id = o.task_id AND d.outcome IS NULL
               ORDER BY d.predecessor_id, d.task_id LIMIT 1) IS NULL
        ORDER BY o.ended_at LIMIT max_outcomes FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.outcomes AS o WHERE o.task_id = ended;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_outcomes IS 'Deletes outcomes of which all dependents were notified a day ago.';

-- Returns the last row that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_dependencies(
    INOUT predecessor_id bigint, INOUT task_id bigint, max_rows integer, of_queue text DEFAULT NULL)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row   record;
BEGIN
    FOR row IN
        SELECT d.predecessor_id, d.task_id, d.outcome, d.on_failure, d.restored_at,
               (SELECT t.id FROM queue.tasks AS t WHERE t.id = d.predecessor_id) AS live,
               (SELECT t.queue FROM queue.tasks AS t
                WHERE t.id = d.task_id
                  AND (t.state = 'waiting' OR t.state = 'queued' AND queue_internal.is_suspended(t.id, t.token))) AS queue
        FROM queue_internal.dependencies AS d
        WHERE (d.predecessor_id, d.task_id) > (coalesce(sweep_dependencies.predecessor_id, -9223372036854775808),
                                               coalesce(sweep_dependencies.task_id, -9223372036854775808))
        ORDER BY d.predecessor_id, d.task_id LIMIT max_rows
    LOOP
        checked := checked + 1;
        predecessor_id := row.predecessor_id;
        task_id := row.task_id;
        CONTINUE WHEN row.queue <> of_queue OR row.queue IS NULL AND of_queue IS NOT NULL;
        IF row.queue IS NULL THEN
            -- The dependency of a task that no longer waits: one that ended while the end of its predecessor had this row
            -- locked. A task without a trace may still come from a dump, or may have come since the loop read its row.
            IF (queue_internal.outcome_of(row.task_id) IS NOT NULL
                OR (row.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE
                   AND NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id)
                OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id AND t.state <> 'waiting')
                   -- A dump may still bring what it waits for.
                   AND (row.on_failure = 'continue' AND row.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE)
               -- It may wait for it again, also after it was a dead letter. sweep_awaits does the rest.
               AND NOT EXISTS (SELECT FROM queue_internal.awaits AS a
                               WHERE a.task_id = row.task_id AND a.predecessor_id = row.predecessor_id) THEN
                -- Only this one: a task that runs may ask for the outcome of another.
                DELETE FROM queue_internal.dependencies AS d
                WHERE d.task_id = row.task_id AND d.predecessor_id = (
                    SELECT l.predecessor_id FROM queue_internal.dependencies AS l
                    WHERE l.predecessor_id = row.predecessor_id AND l.task_id = row.task_id FOR UPDATE SKIP LOCKED);
            END IF;
            CONTINUE;
        ELSIF row.outcome IS NULL THEN
            -- The end of the predecessor has left it to notify_rest. That may fail, or be called by nobody.
            CONTINUE WHEN row.live IS NOT NULL OR of_queue IS NULL AND EXISTS (
                SELECT FROM queue_internal.outcomes AS o
                WHERE o.task_id = row.predecessor_id AND o.rest_after < row.task_id
                  AND o.ended_at > clock_timestamp() - interval '10 minutes');
            row.outcome := queue_internal.outcome_of(row.predecessor_id);
            -- A dump may still bring a trace of it.
            CONTINUE WHEN row.outcome IS NULL AND row.restored_at > clock_timestamp() - interval '1 day';
            -- A task that ended by a function of queue_ext has an outcome or left a trace. A task without was deleted
            -- by hand.
            row.outcome := coalesce(row.outcome, 'purged');
            UPDATE queue_internal.dependencies AS d SET outcome = row.outcome
            WHERE d.task_id = row.task_id AND d.predecessor_id = (
                SELECT l.predecessor_id FROM queue_internal.dependencies AS l
                WHERE l.predecessor_id = row.predecessor_id AND l.task_id = row.task_id AND l.outcome IS NULL
                  AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = l.predecessor_id) IS NULL
                FOR UPDATE SKIP LOCKED);
            CONTINUE WHEN NOT FOUND;
        END IF;
        CONTINUE WHEN row.on_failure = 'batch' AND EXISTS (
            SELECT FROM queue_internal.batches AS b WHERE b.task_id = row.task_id AND b.sealed_at IS NULL);
        IF (row.outcome <> 'completed' AND row.on_failure IN ('fail', 'cancel')
            OR NOT queue_internal.waits_for_another(row.task_id))
           -- An event of a queue in which the task was before may never be processed: that queue may be gone.
           AND NOT queue_internal.has_event(row.task_id, row.queue, of_queue IS NULL) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.queue, row.task_id);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        predecessor_id := NULL;
        task_id := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_dependencies IS
    'Resolves dependencies whose predecessor is gone, and leaves events for tasks that need not wait any longer.';

-- Marks the dependencies of a dump (how_inserted.sql explains how it is recognized).
CREATE FUNCTION queue_internal.dependency_restored() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.restored_at := clock_timestamp();
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.dependency_restored IS 'Records that a dependency comes from a dump.';

CREATE TRIGGER dependency_restored BEFORE INSERT ON queue_internal.dependencies
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER dependency_restored ON queue_internal.dependencies IS
    'Makes the sweep wait for the rest of a dump.';

-- Returns the last group that it checked, or null at the end, and how many it checked.
CREATE FUNCTION queue_internal.sweep_groups(
    source queue.queues, INOUT group_key text, max_rows integer, is_short boolean, OUT checked integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, because a volatile function cannot be an index condition. No event is postponed for that long.
    longest CONSTANT timestamptz :=
        clock_timestamp() + greatest(interval '11 seconds', source.rate_period + interval '1 second');
    -- All that the groups have finished may have to be read.
    entries CONSTANT bigint := queue_internal.group_entries_passed() + 10000;
    late    record;
    step    record;
    head    bigint;
    first   bigint;
BEGIN
    IF group_key IS NULL THEN
        -- The clock has been set back.
        FOR late IN
            SELECT e.due_at, e.id FROM queue_internal.events AS e
            WHERE e.queue = source.name AND e.due_at > longest
            ORDER BY e.due_at, e.id LIMIT max_rows FOR UPDATE SKIP LOCKED
        LOOP
            UPDATE queue_internal.events AS e SET due_at = '-infinity'
            WHERE e.queue = source.name AND e.due_at = late.due_at AND e.id = late.id;
        END LOOP;
        IF FOUND THEN
            PERFORM queue_internal.announce_task(source.name, clock_timestamp());
        END IF;
    END IF;
    checked := 0;
    group_key := coalesce(group_key, '');
    WHILE checked < max_rows AND (checked = 0 OR queue_internal.group_entries_passed() < entries) LOOP
        SELECT t.group_key INTO group_key FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key > sweep_groups.group_key ORDER BY t.group_key LIMIT 1;
        EXIT WHEN group_key IS NULL;
        checked := checked + 1;
        head := queue_internal.group_head(source.name, group_key);
        first := coalesce(head, -9223372036854775808);
        SELECT s.* INTO step
        FROM queue_internal.admitted_of(source, sweep_groups.group_key, first) AS a,
             LATERAL queue_internal.next_admission(
                 source, sweep_groups.group_key, a.admitted, a.ready, a.latest, a.used, first) AS s;
        first := CASE WHEN head IS NOT NULL THEN queue_internal.first_of_group(source.name, group_key) END;
        IF first < head THEN
            -- It came without an event, or that one does not name it. Not EXISTS, as in has_event.
            IF (SELECT e.id FROM queue_internal.events AS e
                WHERE e.queue = source.name AND e.group_key = sweep_groups.group_key AND e.arrived <= first
                ORDER BY e.queue, e.group_key, e.id LIMIT 1) IS NULL THEN
                INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (source.name, sweep_groups.group_key, first);
            END IF;
        ELSIF step.not_before IS NOT NULL THEN
            PERFORM queue_internal.recheck_group_at(source, group_key, step.not_before);
        ELSIF step.admit IS NOT NULL OR step.withdraw IS NOT NULL THEN
            IF NOT queue_internal.has_group_event(source.name, group_key, is_short) THEN
                INSERT INTO queue_internal.events (queue, group_key) VALUES (source.name, sweep_groups.group_key);
            END IF;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_groups IS
    'Leaves events for the groups of a queue in which a task can be admitted.';

-- A task that somebody has deleted by hand leaves the row of its key behind. Such a key is free, but its row remains until
-- the next push with that key. A dump may still bring the task of a key whose task left no trace. Returns the last key
-- that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_keys(INOUT queue text, INOUT key text, max_rows integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row   record;
BEGIN
    FOR row IN
        SELECT k.queue, k.key, k.task_id, k.expires_at,
               (SELECT t.id FROM queue.tasks AS t WHERE t.id = k.task_id) AS live
        FROM queue_internal.keys AS k
        WHERE (k.queue, k.key) > (coalesce(sweep_keys.queue, ''), coalesce(sweep_keys.key, ''))
        ORDER BY k.queue, k.key LIMIT max_rows
    LOOP
        checked := checked + 1;
        queue := row.queue;
        key := row.key;
        IF row.expires_at IS NULL AND row.live IS NULL AND queue_internal.outcome_of(row.task_id) IS NOT NULL THEN
            PERFORM FROM queue_internal.keys AS l
            WHERE l.queue = row.queue AND l.key = row.key AND l.task_id = row.task_id AND l.expires_at IS NULL
            FOR UPDATE SKIP LOCKED;
            -- It may be live again: a dead letter that was put back.
            IF FOUND AND queue_internal.outcome_of(row.task_id) IS NOT NULL THEN
                DELETE FROM queue_internal.keys AS k WHERE k.queue = row.queue AND k.key = row.key;
            END IF;
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        queue := NULL;
        key := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_keys IS 'Deletes keys whose task has ended; returns where to continue.';

CREATE TYPE queue_internal.session_sweep AS (group_key text, since timestamptz);
COMMENT ON TYPE queue_internal.session_sweep IS
    'The position of a session in the groups of a queue, and when it was there.';

CREATE FUNCTION queue_internal.random_between(smallest bigint, largest bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN smallest + trunc(random()::numeric * (largest::numeric - smallest));
END
$$;
COMMENT ON FUNCTION queue_internal.random_between IS 'Returns a random number between two; null if one of them is.';

-- For a claim by SQL that found nothing: sweeps a part of the dependencies and of the groups of the queue, once a
-- second in a session. Those of other queues are left alone, because the caller's transaction may stay open. Returns
-- whether it may have left an event. The session remembers its position in the groups. The part of the dependencies
-- starts at a random id, because a client can read the setting and the ids are also those of other queues.
CREATE FUNCTION queue_internal.sweep_part(source queue.queues) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO'
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    name   CONSTANT text := 'queue_sweep.q' || md5(source.name);
    moment CONSTANT timestamptz := clock_timestamp();
    kept   CONSTANT text := current_setting(name, true);
    pos  queue_internal.session_sweep;
    start  bigint;
    awaits bigint;
    last   record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    ELSIF kept <> '' THEN
        pos := kept;
        IF pos.since BETWEEN moment - interval '1 second' AND moment THEN
            RETURN false;
        END IF;
    END IF;
    -- Not min() and max(), with which a plan made while the table is empty reads all of it.
    start := queue_internal.random_between(
        (SELECT d.predecessor_id FROM queue_internal.dependencies AS d ORDER BY d.predecessor_id, d.task_id LIMIT 1),
        (SELECT d.predecessor_id FROM queue_internal.dependencies AS d
         ORDER BY d.predecessor_id DESC, d.task_id DESC LIMIT 1));
    awaits := queue_internal.random_between(
        (SELECT a.task_id FROM queue_internal.awaits AS a ORDER BY a.task_id LIMIT 1),
        (SELECT a.task_id FROM queue_internal.awaits AS a ORDER BY a.task_id DESC LIMIT 1));
    SELECT d.predecessor_id, g.group_key INTO last
    FROM queue_internal.sweep_dependencies(start, NULL, 100, source.name) AS d,
         queue_internal.sweep_groups(source, pos.group_key, 100, false) AS g;
    IF last.predecessor_id IS NULL THEN
        -- At the end: start again from the first one.
        PERFORM queue_internal.sweep_dependencies(NULL, NULL, 100, source.name);
    END IF;
    IF awaits IS NOT NULL AND queue_internal.sweep_awaits(awaits, 100, source.name) IS NULL THEN
        PERFORM queue_internal.sweep_awaits(NULL, 100, source.name);
    END IF;
    pos.group_key := last.group_key;
    pos.since := moment;
    PERFORM set_config(name, pos::text, false);
    RETURN EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = source.name AND e.due_at <= moment);
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_part IS
    'Leaves events for changes without one, for a small part of a queue, once a second in a session.';
