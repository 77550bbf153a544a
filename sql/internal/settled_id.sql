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
    -- Not more than that, because somebody may have set the sequence back.
    settled bigint := least(coalesce(pg_sequence_last_value('queue_internal.settled_id_seq'), 0), last);
    noted   queue_internal.settling;
    active  text[];
BEGIN
    IF pause BETWEEN 0 AND 60000000 THEN
        RETURN settled;
    END IF;
    SELECT s.* INTO noted FROM queue_internal.settling AS s WHERE s.number = 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN settled;
    END IF;
    -- A prepared transaction has another name after a restart.
    active := ARRAY(
        SELECT CASE WHEN l.pid IS NULL THEN 'prepared' ELSE l.virtualtransaction END FROM pg_locks AS l
        WHERE l.locktype = 'relation' AND l.relation = 'queue.tasks'::regclass
          AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
          AND l.mode NOT IN ('AccessShareLock', 'ShareLock', 'ShareUpdateExclusiveLock'));
    IF NOT array_append(noted.writers, 'prepared') && active THEN
        settled := least(noted.id, last);
        PERFORM setval('queue_internal.settled_id_seq', settled);
        UPDATE queue_internal.settling AS s SET id = last, writers = active WHERE s.number = 1;
    END IF;
    PERFORM setval('queue_internal.settling_due_seq',
                   begun + 20 * (extract(epoch FROM clock_timestamp()) * 1000000 - begun)::bigint);
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settled_id IS
    'Returns an id; tasks that were pushed and are not visible yet, and those that will be pushed, have larger ones.';
