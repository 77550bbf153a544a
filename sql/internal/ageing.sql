-- Ageing keeps low priorities from starving: in a queue with the option "ageing", waiting that long is worth one step
-- of priority. So tasks are claimed in the order of run_at + priority * ageing. That value never changes while a task
-- waits and needs no index of its own: within a priority it is the order of run_at, and between priorities the heads
-- are compared.

-- How far a claim has come in a priority.
CREATE TYPE queue_internal.passed_level AS (level integer, until timestamptz);
COMMENT ON TYPE queue_internal.passed_level IS 'How far a claim has come in a priority.';

-- Returns, for a bucket, the priority of the next task, the run_at of that task, and the run_at up to which the tasks
-- of that priority come before those of all others.
CREATE FUNCTION queue_internal.next_aged_level(
    in_bucket integer, source queue.queues, moment timestamptz, passed queue_internal.passed_level[],
    OUT level integer, OUT head timestamptz, OUT until timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    step   CONSTANT float8 := extract(epoch FROM source.ageing);
    other  integer;
    first  timestamptz;
    begun  timestamptz;
    best   float8 := 'infinity';
    second float8 := 'infinity';
    value  float8;
    up_to  float8;
BEGIN
    SELECT t.priority INTO other FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
    ORDER BY t.priority LIMIT 1;
    WHILE other IS NOT NULL LOOP
        SELECT coalesce(max(p.until), '-infinity') INTO begun FROM unnest(passed) AS p WHERE p.level = other;
        SELECT t.run_at INTO first FROM queue.tasks AS t
        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.priority = other
          AND t.admission < 2 AND t.run_at > begun AND t.run_at <= moment
          AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment)
        ORDER BY t.run_at LIMIT 1;
        IF FOUND THEN
            value := extract(epoch FROM first) + other * step;
            IF value < best THEN
                second := best;
                best := value;
                level := other;
                head := first;
            ELSE
                second := least(second, value);
            END IF;
        END IF;
        SELECT t.priority INTO other FROM queue.tasks AS t
        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
          AND t.priority > other ORDER BY t.priority LIMIT 1;
    END LOOP;
    -- Clipped as a number, because priorities that are far apart give times outside the range of timestamptz. Never
    -- earlier than the head itself, whatever rounding does.
    up_to := second - level * step;
    until := CASE WHEN up_to < extract(epoch FROM moment) THEN greatest(head, to_timestamp(up_to)) ELSE moment END;
END
$$;
COMMENT ON FUNCTION queue_internal.next_aged_level IS
    'Returns the priority whose first task comes next in a queue with ageing.';
