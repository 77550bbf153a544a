-- queue_internal.settle_signals(queue, max_signals)
--
--   Acts upon signals of a queue and deletes them. A claim does so before it looks for tasks; the
--   background worker does it too.
--   Errors:   none of its own
--   Touches:  queue_internal.signals (never waits for a lock)
--   Why not outside READ COMMITTED: with a snapshot from before another transaction's commit, it
--             could let too many of a group run. The next claim at READ COMMITTED or the background
--             worker does it then.

CREATE FUNCTION queue_internal.settle_signals(source queue.queues, max_signals integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Each holds an advisory lock, of which the server has a limited number.
    max_groups CONSTANT integer := 32;
    signal     queue_internal.signals;
    ids        bigint[];
    groups     integer := 0;
    last       bigint := 0;
    seen       integer := 0;
    settled    bigint := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    WHILE seen < max_signals AND groups < max_groups LOOP
        SELECT s.* INTO signal FROM queue_internal.signals AS s
        WHERE s.queue = source.name AND s.id > last ORDER BY s.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        last := signal.id;
        seen := seen + 1;
        IF signal.task_id IS NOT NULL THEN
            CONTINUE WHEN NOT queue_internal.settle_dependent(signal);
            -- By the whole primary key: a plan made for few signals may go through all of the queue for
            -- each, and through those that are deleted already.
            DELETE FROM queue_internal.signals AS s WHERE s.queue = source.name AND s.id = signal.id;
        ELSE
            -- All of the group are one. Those that come after this look are not among them.
            ids := ARRAY(SELECT s.id FROM queue_internal.signals AS s
                         WHERE s.queue = source.name AND s.group_key = signal.group_key FOR UPDATE SKIP LOCKED);
            groups := groups + 1;
            CONTINUE WHEN NOT queue_internal.admit_next(source, signal.group_key);
            DELETE FROM queue_internal.signals AS s
            WHERE s.queue = source.name AND s.group_key = signal.group_key AND s.id = ANY (ids);
        END IF;
        settled := settled + 1;
    END LOOP;
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settle_signals(queue.queues, integer) IS
    'Lets tasks go on that waited for a predecessor or for their turn; returns how many signals were settled.';

CREATE FUNCTION queue_internal.settle_all(max_signals integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    settled bigint := 0;
BEGIN
    FOR source IN
        SELECT q.* FROM queue.queues AS q
        WHERE EXISTS (SELECT FROM queue_internal.signals AS s WHERE s.queue = q.name)
    LOOP
        -- What cannot be settled in one queue is in no other's way.
        BEGIN
            settled := settled + queue_internal.settle_signals(source, max_signals);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'what happened in queue % cannot be settled: %', to_json(source.name), SQLERRM;
        END;
    END LOOP;
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settle_all(integer) IS
    'Settles the signals of all queues, up to so many of each; returns how many it settled.';
