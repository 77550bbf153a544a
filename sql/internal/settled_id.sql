-- The settled id: whoever pushes from now on, or has not committed yet, has a larger id.
--
--   A push that commits late had its id before. But its transaction has queue.tasks locked since then. So a session
--   notes the last id and who has the table locked ("settling"), and once these have all ended, another one finds the noted id
--   settled, and notes the next one. Who writes to the table for long holds that up, but nothing else. Tasks that are put back, by
--   a redrive or a move, may have any id.
--
--   What is settled, and when to look again, are sequences: they leave no dead rows, which could not be vacuumed while an old
--   snapshot is open, and other sessions see them at once. A transaction that is rolled back need not take them back, because
--   the others had ended all the same. Each note leaves a dead row, which makes the next one slower. So sessions pause for twenty
--   times as long as a look takes.
--
--   Why a session counts itself among the writers: it may have pushed, and looks once more before it commits.

CREATE FUNCTION queue_internal.settled_id() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Microseconds. A clock can be set back.
    begun   CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    pause   CONSTANT bigint := pg_sequence_last_value('queue_internal.settling_due_seq') - begun;
    -- Before the locks: whoever takes one later has a larger id.
    last    CONSTANT bigint := coalesce(pg_sequence_last_value('queue.tasks_id_seq'), 0);
    settled bigint := coalesce(pg_sequence_last_value('queue_internal.settled_id_seq'), 0);
    noted   queue_internal.settling;
    active  text[];
BEGIN
    -- Somebody may have set the sequence back.
    settled := CASE WHEN settled <= last THEN settled ELSE 0 END;
    IF pause BETWEEN 0 AND 60000000 THEN
        RETURN settled;
    END IF;
    SELECT s.* INTO noted FROM queue_internal.settling AS s WHERE s.number = 1 FOR UPDATE SKIP LOCKED;
    -- Sessions that take many values at once use them later, without a lock.
    IF FOUND AND (SELECT q.seqcache = 1 FROM pg_sequence AS q WHERE q.seqrelid = 'queue.tasks_id_seq'::regclass) THEN
        -- After a restart, a prepared transaction has another name, without a session.
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
    'Returns an id; tasks that were pushed and are not visible yet, and those that will be pushed, have larger ones.';
