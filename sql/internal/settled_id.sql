-- The settled id: no transaction that is open now, or starts later, commits a new task with this id or a smaller one.
--
--   A push takes its id before it commits. Because its transaction locks queue.tasks first, pg_locks shows every transaction
--   that may still commit a smaller id. A session stores the last id and these transactions in queue_internal.settling. Once
--   all of them have ended, a later call makes the stored id the settled one, and stores the next id. A transaction that
--   writes to queue.tasks for a long time delays the settled id. A redrive or a move can put back a task with any id.
--
--   The settled id and the time of the next check are kept in sequences. Sequences leave no dead rows while an old
--   snapshot holds back vacuum, and other sessions see a new value at once. The settled id stays correct if the transaction that
--   set it is rolled back, because the others have ended in any case. Each update of queue_internal.settling leaves a dead row, which
--   makes the next check slower. Therefore sessions pause for twenty times as long as a check takes.
--
--   A session counts its own transaction, because it may have pushed a task and call this again before it commits.

CREATE FUNCTION queue_internal.settled_id() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Microseconds. A clock can be set back.
    begun   CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    pause   CONSTANT bigint := pg_sequence_last_value('queue_internal.settling_due_seq') - begun;
    -- Read before pg_locks: a transaction that locks the table later takes a larger id.
    last    CONSTANT bigint := coalesce(pg_sequence_last_value('queue.tasks_id_seq'), 0);
    settled bigint := coalesce(pg_sequence_last_value('queue_internal.settled_id_seq'), 0);
    noted   queue_internal.settling;
    active  text[];
BEGIN
    -- The owner may have set the sequence back.
    settled := CASE WHEN settled <= last THEN settled ELSE 0 END;
    IF pause BETWEEN 0 AND 60000000 THEN
        RETURN settled;
    END IF;
    SELECT s.* INTO noted FROM queue_internal.settling AS s WHERE s.number = 1 FOR UPDATE SKIP LOCKED;
    -- With a larger cache, a session uses ids that it took earlier, when it had no lock.
    IF FOUND AND (SELECT q.seqcache = 1 FROM pg_sequence AS q WHERE q.seqrelid = 'queue.tasks_id_seq'::regclass) THEN
        -- A restart changes the virtual transaction id of a prepared transaction to -1/xid.
        active := ARRAY(
            SELECT CASE WHEN l.virtualtransaction LIKE '-1/%' THEN 'prepared' ELSE l.virtualtransaction END FROM pg_locks AS l
            WHERE l.locktype = 'relation' AND l.relation = 'queue.tasks'::regclass
              AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
              AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));
        IF noted.id > last OR NOT array_append(noted.writers, 'prepared') && active THEN
            settled := CASE WHEN noted.id <= last THEN noted.id ELSE 0 END;
            PERFORM setval('queue_internal.settled_id_seq', settled);
            UPDATE queue_internal.settling AS s SET id = last, writers = active WHERE s.number = 1;
        END IF;
    END IF;
    PERFORM setval('queue_internal.settling_due_seq', greatest(1,
        begun + least(20 * (extract(epoch FROM clock_timestamp()) * 1000000 - begun)::bigint, 60000000)));
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settled_id IS
    'Returns the settled id: tasks that are not visible yet, or are pushed later, have larger ids.';
