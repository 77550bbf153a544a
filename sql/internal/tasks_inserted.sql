-- The trigger for every way into queue.tasks: push, a plain INSERT, COPY.
--
--   Refuses tasks of unknown and full queues and tasks that could never run, gives tasks without a start deadline that of
--   their queue, and leaves an event for each group with blocked tasks. A task with errors is a dead letter that is put
--   back: it is never refused and gets no deadline.
--   Errors:   QX002 no such queue; QX006 the queue is full; 22023 for an invalid column in a plain INSERT
--   Why a statement trigger: one lookup of the queues for a million rows.

CREATE FUNCTION queue_internal.tasks_inserted() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- A plan from when there were few queues would read all of them for each row.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    arrival record;
    source  queue.queues;
    misfit  queue.tasks;
BEGIN
    -- A role that could attach it to a table of its own could have its code called by the owner.
    IF TG_RELID <> 'queue.tasks'::regclass THEN
        RAISE EXCEPTION 'this trigger function is for queue.tasks alone' USING ERRCODE = 'wrong_object_type';
    END IF;
    -- Most tasks are as simple as these, in queues without policies for pushes.
    PERFORM FROM inserted AS i LEFT JOIN queue.queues AS q ON q.name = i.queue
    WHERE q.name IS NULL OR q.max_queued IS NOT NULL OR q.ttl IS NOT NULL
       OR i.state <> 'queued' OR i.admission <> 0 OR i.weight <> 1
       OR num_nonnulls(i.max_attempts, i.backoff, i.kind, i.lease, i.timeout, i.start_by, i.headers, i.lease_until, i.claimed_at,
                       i.cancel_requested_at) > 0
       OR NOT (isfinite(i.run_at) AND isfinite(i.created_at) AND isfinite(i.updated_at))
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The conditions of check_columns, which raises the error.
    SELECT i.* INTO misfit FROM inserted AS i
    WHERE i.state NOT IN ('waiting', 'queued', 'running') OR NOT isfinite(i.run_at)
       OR i.max_attempts NOT BETWEEN 1 AND 10000 OR jsonb_typeof(i.headers) <> 'object'
       OR NOT (isfinite(i.created_at) AND isfinite(i.updated_at) AND isfinite(coalesce(i.lease_until, i.run_at))
               AND isfinite(coalesce(i.claimed_at, i.run_at)) AND isfinite(coalesce(i.cancel_requested_at, i.run_at)))
       OR octet_length(i.kind) NOT BETWEEN 1 AND 128
       -- 1000 years and 1 year in seconds. queue.max_lease may have been lowered since the push.
       OR extract(epoch FROM i.lease) NOT BETWEEN 0.000001 AND 31557600000
       OR extract(epoch FROM i.timeout) NOT BETWEEN 0.000001 AND 31557600
       OR NOT isfinite(i.start_by)
       OR i.weight NOT BETWEEN 1 AND 1000000
    LIMIT 1;
    IF FOUND THEN
        PERFORM queue_internal.check_columns(misfit);
    END IF;
    PERFORM queue_internal.check_backoff(b.backoff)
    FROM (SELECT DISTINCT i.backoff FROM inserted AS i WHERE i.backoff IS NOT NULL) AS b;
    FOR arrival IN
        -- Those of a dump may be admitted already.
        SELECT i.queue, bool_or(i.admission <> 0) AS grouped, count(*) FILTER (WHERE i.errors IS NULL) AS fresh,
               count(*) FILTER (WHERE i.errors IS NULL AND i.state = 'queued') AS queued,
               bool_or(i.errors IS NULL AND i.token = 0 AND i.start_by IS NULL) AS undated
        FROM inserted AS i GROUP BY i.queue
    LOOP
        IF TG_NARGS = 0 THEN
            SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = arrival.queue;
            IF NOT FOUND THEN
                PERFORM queue_internal.raise_unknown_queue(arrival.queue);
            ELSIF source.max_queued IS NOT NULL AND arrival.fresh > 0 THEN
                PERFORM queue_internal.check_depth(source, arrival.fresh, arrival.queued);
            END IF;
            IF source.ttl IS NOT NULL AND arrival.undated THEN
                PERFORM queue_internal.set_start_by(source, ARRAY(
                    SELECT i.id FROM inserted AS i
                    WHERE i.queue = arrival.queue AND i.errors IS NULL AND i.token = 0 AND i.start_by IS NULL));
            END IF;
        END IF;
        IF arrival.grouped THEN
            INSERT INTO queue_internal.events (queue, group_key, arrived)
            SELECT i.queue, i.group_key, min(i.id) FROM inserted AS i
            WHERE i.queue = arrival.queue AND i.group_key IS NOT NULL AND i.admission <> 0
            GROUP BY i.queue, i.group_key;
            -- Dead letters that are put back.
            PERFORM queue_internal.note_return(f.queue, f.group_key, f.id)
            FROM (SELECT i.queue, i.group_key, min(i.id) AS id FROM inserted AS i
                  WHERE i.queue = arrival.queue AND i.group_key IS NOT NULL AND i.errors IS NOT NULL
                  GROUP BY i.queue, i.group_key) AS f;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.tasks_inserted IS
    'Refuses tasks of unknown and full queues, and leaves an event for each group with blocked tasks.';

CREATE TRIGGER tasks_inserted AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT
    WHEN (queue_internal.how_inserted() = 'insert')
    EXECUTE FUNCTION queue_internal.tasks_inserted();
COMMENT ON TRIGGER tasks_inserted ON queue.tasks IS
    'Gives a plain INSERT or COPY the same effect as a push.';

-- For the tasks of a dump: see how_inserted.sql.
CREATE TRIGGER tasks_restored AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT
    WHEN (queue_internal.how_inserted() = 'dump')
    EXECUTE FUNCTION queue_internal.tasks_inserted('restored');
COMMENT ON TRIGGER tasks_restored ON queue.tasks IS
    'Lets a dump be restored in any order.';
