-- queue_internal.settle_signals(queue, max_signals, after)
--
--   Acts upon signals of a queue, those with larger ids than "after", and deletes them. A claim does so
--   before it looks for tasks; the background worker does it too.
--   Errors:   none of its own
--   Touches:  queue_internal.signals (never waits for a lock)
--   Why not outside READ COMMITTED: with a snapshot from before another transaction's commit, it
--             could let too many of a group run. The next claim at READ COMMITTED or the background
--             worker does it then.
--   Promise:  a signal that cannot be settled, because of a constraint or a trigger that somebody added, is in
--             no other's way, and the log says why; and those that have to wait, for a predecessor that somebody
--             has locked, hide no group, and no others but by the thousand

CREATE FUNCTION queue_internal.settle_signals(source queue.queues, max_signals integer, after bigint)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    RETURN queue_internal.settle(source, max_signals, after, false);
EXCEPTION WHEN OTHERS THEN
    RETURN queue_internal.settle(source, max_signals, after, true);
END
$$;
COMMENT ON FUNCTION queue_internal.settle_signals(queue.queues, integer, bigint) IS
    'Lets tasks go on that waited for a predecessor or for their turn; returns how many signals were settled.';

-- With "each", each in a subtransaction of its own.
CREATE FUNCTION queue_internal.settle(
    source queue.queues, max_signals integer, after bigint, each boolean)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- After so many that were looked at, only groups are.
    max_looks  CONSTANT integer := 10 * max_signals;
    -- Each holds an advisory lock, of which the server has a limited number.
    max_groups CONSTANT integer := 32;
    signal     queue_internal.signals;
    groups     integer := 0;
    last       bigint := after;
    looks      integer := 0;
    settled    bigint := 0;
BEGIN
    WHILE settled < max_signals AND groups < max_groups LOOP
        SELECT s.* INTO signal FROM queue_internal.signals AS s
        WHERE s.queue = source.name AND s.id > last AND (looks < max_looks OR s.task_id IS NULL)
        ORDER BY s.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        last := signal.id;
        looks := looks + 1;
        groups := groups + (signal.task_id IS NULL)::integer;
        IF each THEN
            BEGIN
                settled := settled + queue_internal.settle_signal(source, signal, after)::integer;
            EXCEPTION WHEN OTHERS THEN
                RAISE WARNING '% of queue % cannot go on: %',
                    coalesce('task ' || signal.task_id, 'a group'), to_json(source.name), SQLERRM;
            END;
        ELSE
            settled := settled + queue_internal.settle_signal(source, signal, after)::integer;
        END IF;
    END LOOP;
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settle(queue.queues, integer, bigint, boolean) IS
    'Settles signals of a queue, up to so many; returns how many.';

CREATE FUNCTION queue_internal.settle_signal(
    source queue.queues, signal queue_internal.signals, after bigint)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids bigint[];
BEGIN
    IF signal.task_id IS NOT NULL THEN
        IF NOT queue_internal.settle_dependent(signal) THEN
            RETURN false;
        END IF;
        -- By the whole primary key: a plan made for few signals may go through all of the queue for
        -- each, and through those that are deleted already.
        DELETE FROM queue_internal.signals AS s WHERE s.queue = source.name AND s.id = signal.id;
    ELSE
        -- All of the group are one. Those that come after this look are not among them.
        ids := ARRAY(SELECT s.id FROM queue_internal.signals AS s
                     WHERE s.queue = source.name AND s.group_key = signal.group_key AND s.id > after
                     FOR UPDATE SKIP LOCKED);
        IF NOT queue_internal.admit_next(source, signal.group_key) THEN
            RETURN false;
        END IF;
        DELETE FROM queue_internal.signals AS s WHERE s.queue = source.name AND s.id = ANY (ids);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.settle_signal(queue.queues, queue_internal.signals, bigint) IS
    'Acts upon a signal, and deletes it; false if it has to be looked at again.';

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
        settled := settled + queue_internal.settle_signals(source, max_signals, 0);
    END LOOP;
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settle_all(integer) IS
    'Settles the signals of all queues, up to so many of each; returns how many it settled.';
