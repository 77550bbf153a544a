-- queue.health
--
--   Touches:  queue.stats, queue.workers, queue.batches, queue.failing_schedules, queue.due_schedules,
--             queue.failing_handlers, queue.delayed_events, queue.engine_stats(), and views and catalogs of the
--             server (reads). Nothing else, because roles that may monitor have no right on the tables nor in queue_internal

CREATE FUNCTION queue.health(
    due_for     interval DEFAULT '10 minutes',
    overdue_for interval DEFAULT NULL,
    pinned_for  interval DEFAULT '10 minutes',
    failed      bigint   DEFAULT 10,
    held_back   bigint   DEFAULT 1000000)
RETURNS TABLE (name text, status text, detail text, hint text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Compiling the queries takes longer than running them.
SET jit = off
-- The bounds of partitions are read from text.
SET datestyle = 'ISO'
AS $$
DECLARE
    due_for     CONSTANT interval := coalesce(due_for, '10 minutes');
    pinned_for  CONSTANT interval := coalesce(pinned_for, '10 minutes');
    failed      CONSTANT bigint := coalesce(failed, 10);
    held_back   CONSTANT bigint := coalesce(held_back, 1000000);
    moment      CONSTANT timestamptz := clock_timestamp();
    today       CONSTANT date := (moment AT TIME ZONE 'UTC')::date;
    engine      CONSTANT jsonb := queue.engine_stats();
    -- queue.maintain() runs once a minute.
    overdue_for CONSTANT interval := coalesce(
        overdue_for, CASE WHEN engine ? 'worker' THEN interval '1 minute' ELSE interval '2 minutes' END);
    stats       CONSTANT queue.stats[] := ARRAY(SELECT s FROM queue.stats AS s);
    by_hand     CONSTANT text := 'Meanwhile, run CALL queue.maintain() once a minute; handlers do not run.';
BEGIN
    -- They only differ during an upgrade of the library or the extension.
    RETURN QUERY
    SELECT 'version', CASE WHEN v.extension = v.library THEN 'ok' ELSE 'warning' END,
           format('extension version %s, library version %s', v.extension, v.library),
           CASE WHEN v.extension <> v.library THEN
               'If the extension is older: ALTER EXTENSION queue_ext UPDATE. If the library is older: restart the server.' END
    FROM (SELECT e.extversion AS extension, coalesce(engine ->> 'version', e.extversion) AS library
          FROM pg_extension AS e WHERE e.extname = 'queue_ext') AS v;

    -- Each of the next two returns the first row that matches.
    RETURN QUERY
    SELECT 'engine', f.status, f.detail, f.hint
    FROM (VALUES
        (engine ? 'edition', 'ok',
         format('%s edition, without a library', engine ->> 'edition')
         || coalesce(', tasks counted at ' || (SELECT max(s.counted_at) FROM unnest(stats) AS s), ''), NULL),
        (engine ? 'max_lanes', 'ok', 'the library is preloaded', NULL),
        ((engine ->> 'loaded')::boolean, 'warning', 'queue.lanes is 0',
         'Claims are slower. Set queue.lanes and restart the server.'),
        (true, 'warning', 'the library is not preloaded',
         'There are no handlers and no notifications, and claims are slower. Call queue.maintain() once a minute, or add '
         'queue_ext to shared_preload_libraries and restart the server.')
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;

    RETURN QUERY
    SELECT 'worker', f.status, f.detail, f.hint
    FROM (VALUES
        (pg_is_in_recovery(), 'ok', 'a standby has no background worker', NULL),
        (engine ? 'worker', 'ok', 'process ' || (engine #>> '{worker,pid}'), NULL),
        ((engine ->> 'maintained_at')::timestamptz > moment - interval '5 minutes', 'ok',
         'queue.maintain() last ran at ' || (engine ->> 'maintained_at'), NULL),
        (engine ? 'edition', 'critical',
         coalesce('queue.maintain() last ran at ' || (engine ->> 'maintained_at'), 'queue.maintain() has never run'),
         'Run CALL queue.maintain() once a minute, with pg_cron or another scheduler.'),
        (NOT (engine ->> 'loaded')::boolean, 'warning', 'the library is not preloaded, so there is no background worker', by_hand),
        (NOT current_setting('queue.worker_enabled', true)::boolean, 'warning', 'queue.worker_enabled is off', by_hand),
        (true, 'critical', 'there is no background worker',
         'After a crash it restarts within seconds. If it does not, look in the server log; max_worker_processes '
         'may be too low. ' || by_hand)
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;

    RETURN QUERY
    SELECT 'lanes', 'warning', format('%s queues with tasks have no lane, so their workers are slower', count(*)),
           'Raise queue.lanes and restart the server.'
    FROM unnest(stats) AS s
    WHERE s.queued + s.running > 0 AND NOT engine -> 'lanes' ? s.queue
      AND (engine #>> '{verbs,fallbacks,no_lane}')::bigint > 0
    HAVING count(*) > 0;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'lanes', 'ok', 'no queue with tasks lacks a lane', NULL;
    END IF;

    RETURN QUERY
    SELECT 'due tasks', 'warning',
           format('queue %s: %s tasks are due, the oldest for %s', to_json(s.queue), s.queued,
                  date_trunc('second', s.oldest_due_age)),
           CASE WHEN s.paused THEN format('The queue is paused: SELECT queue.resume(%L).', s.queue)
                WHEN s.running = 0 THEN 'Start workers. If there are some, a limit of the queue or an open transaction '
                                        'with claims holds them up.'
                ELSE 'Start more workers, raise a limit of the queue, or look in queue.workers for workers that hang.' END
    FROM unnest(stats) AS s WHERE s.oldest_due_age > due_for ORDER BY s.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'due tasks', 'ok', format('no task has been due for %s', due_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'leases', 'warning',
           format('queue %s: a lease of worker %s expired %s ago, but its task was not requeued', to_json(w.queue),
                  coalesce(to_json(w.worker)::text, 'without a name'),
                  CASE WHEN isfinite(w.next_lease_until)
                       THEN date_trunc('second', coalesce(w.counted_at, moment) - w.next_lease_until) END),
           'SELECT queue.reap() requeues it. If there is a background worker, the server log has the reason.'
    FROM queue.workers AS w WHERE w.next_lease_until < coalesce(w.counted_at, moment) - overdue_for ORDER BY w.queue, w.worker;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'leases', 'ok', format('none expired more than %s ago', overdue_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'events', 'warning',
           format('queue %s: %s tasks or groups cannot be unblocked, %s of them because of an error',
                  to_json(d.queue), d.events, d.failing),
           CASE WHEN d.failing = 0 THEN
                    'Another transaction has them locked: look for long transactions in pg_stat_activity.'
                ELSE format('Remove the cause; then they are tried again within ten seconds. The owner of the extension '
                            'sees the errors: SELECT task_id, group_key, error FROM queue_internal.events '
                            'WHERE queue = %L AND error IS NOT NULL.', d.queue) END
    FROM queue.delayed_events AS d ORDER BY d.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'events', 'ok', 'none is delayed', NULL;
    END IF;

    RETURN QUERY
    SELECT 'batches', 'warning',
           format('queue %s: %s batches have not been sealed, the oldest, %s, for %s', to_json(b.queue), count(*),
                  min(b.batch), date_trunc('second', max(b.age))),
           format('Their callbacks wait until they are sealed: SELECT queue.seal_batch(%s). '
                  'If a batch is not needed any longer: SELECT queue.cancel(%1$s).', min(b.batch))
    FROM queue.batches AS b WHERE b.sealed_at IS NULL AND b.age > interval '1 day'
    GROUP BY b.queue ORDER BY b.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'batches', 'ok', 'none has been open for more than a day', NULL;
    END IF;

    RETURN QUERY
    SELECT 'schedules', 'warning', p.detail, p.hint
    FROM (
        SELECT f.queue,
               format('queue %s: schedules that could not push their last task: %s, the first since %s',
                      to_json(f.queue), f.schedules, f.since) AS detail,
               format('They are tried again at least once a minute. The cause: SELECT name, last_error FROM '
                      'queue.schedules WHERE queue = %L AND last_error IS NOT NULL.', f.queue) AS hint
        FROM queue.failing_schedules AS f WHERE f.last_error_at > moment - interval '1 hour'
        UNION ALL
        SELECT d.queue,
               format('queue %s: schedules that are due: %s, the first since %s', to_json(d.queue), d.schedules, d.since),
               'CALL queue.maintain() runs them. If there is a background worker, the server log has the reason.'
        FROM queue.due_schedules AS d WHERE d.since < moment - overdue_for
    ) AS p ORDER BY p.queue, p.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'schedules', 'ok', 'all of them pushed their last task', NULL;
    END IF;

    RETURN QUERY
    SELECT 'handlers', 'warning', p.detail, p.hint
    FROM (
        SELECT f.queue, format('queue %s: its handler does not run, because %s', to_json(f.queue), f.problem) AS detail, f.hint
        FROM queue.failing_handlers AS f
        UNION ALL
        SELECT NULL, format('%s processes for handlers could not be started', engine #>> '{handlers,unstarted}'),
               'Raise max_worker_processes and restart the server, or attach handlers with fewer workers.'
        WHERE (engine #>> '{handlers,unstarted}')::integer > 0
        UNION ALL
        SELECT NULL, format('the processes for handlers of %s queues keep exiting', engine #>> '{handlers,failing}'),
               'The server log has the reason. They are started again after pauses of up to a minute.'
        WHERE (engine #>> '{handlers,failing}')::integer > 0
    ) AS p ORDER BY p.queue, p.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'handlers', 'ok', 'all that are attached can run', NULL;
    END IF;

    RETURN QUERY
    SELECT 'dead letters', 'warning',
           format('queue %s: %s tasks failed for good in the last hour; it has %s dead letters', to_json(s.queue),
                  s.failed_last_hour, s.dead),
           format('SELECT id, errors -> -1 FROM queue.dead_letters WHERE queue = %L. '
                  'Once the cause is fixed: SELECT queue.redrive(%1$L).', s.queue)
    FROM unnest(stats) AS s WHERE s.failed_last_hour >= failed ORDER BY s.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'dead letters', 'ok', format('no queue got %s or more in the last hour', failed), NULL;
    END IF;

    -- By time where it is known; for slots and standbys by the number of transactions.
    RETURN QUERY
    SELECT 'horizon', 'warning', p.detail, p.hint
    FROM (
        SELECT format('process %s (user %s, application %s, %s) has a transaction open for %s', a.pid,
                      to_json(a.usename), to_json(a.application_name), coalesce(a.state, a.backend_type),
                      date_trunc('second', moment - a.xact_start)) AS detail,
               format('Until it ends, vacuum cannot remove finished tasks. SELECT pg_terminate_backend(%s) ends it.',
                      a.pid) AS hint
        FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
          AND a.backend_type <> 'autovacuum worker' AND a.xact_start < moment - pinned_for
        UNION ALL
        SELECT format('transaction %L was prepared %s ago', x.gid, date_trunc('second', moment - x.prepared)),
               format('COMMIT PREPARED %L, or ROLLBACK PREPARED %1$L.', x.gid)
        FROM pg_prepared_xacts AS x
        WHERE x.database = current_database() AND x.prepared < moment - pinned_for
        UNION ALL
        SELECT format('replication slot %s holds back vacuum by %s transactions', to_json(s.slot_name), age(s.xmin)),
               format('Let its standby catch up, or drop it: SELECT pg_drop_replication_slot(%L).', s.slot_name)
        FROM pg_replication_slots AS s WHERE age(s.xmin) > held_back
        UNION ALL
        SELECT format('standby %s holds back vacuum by %s transactions', to_json(r.application_name), age(r.backend_xmin)),
               'End the old query on the standby, or turn off hot_standby_feedback.'
        FROM pg_stat_replication AS r WHERE age(r.backend_xmin) > held_back
    ) AS p;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'horizon', 'ok', format('nothing has held back vacuum for %s', pinned_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'partitions', f.status, f.detail, f.hint
    FROM (SELECT max(right(c.relname, 8)) FILTER (WHERE c.relispartition),
                 bool_or(c.relispartition AND right(c.relname, 8) = to_char(today + 1, 'YYYYMMDD')),
                 min(c.relname) FILTER (WHERE NOT c.relispartition AND right(c.relname, 8) >= to_char(today, 'YYYYMMDD'))
          FROM pg_class AS c
          WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$')
         AS h (last, there, loose),
    -- A partition made by hand that holds a part of tomorrow, and whether it holds all of it.
    (SELECT min(p.relid::regclass::text), bool_or(p.since <= p.day AND p.until >= p.day + interval '24 hours') FROM (
         SELECT c.oid AS relid, (today + 1)::timestamp AT TIME ZONE 'UTC' AS day,
                coalesce(nullif(btrim(b[1], ''''), 'MINVALUE'), '-infinity')::timestamptz AS since,
                coalesce(nullif(btrim(b[2], ''''), 'MAXVALUE'), 'infinity')::timestamptz AS until
         FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
              LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(](.*)[)] TO [(](.*)[)]') AS b
         WHERE i.inhparent = 'queue.history'::regclass AND b IS NOT NULL) AS p
     WHERE p.since < p.day + interval '24 hours' AND p.until > p.day) AS o (name, whole),
    LATERAL (VALUES
        (h.loose IS NOT NULL, 'warning',
         format('table queue.%s is not attached to queue.history, and no partition is created until it is', h.loose),
         'A dump that is being restored will attach it. Otherwise attach it with ALTER TABLE queue.history ATTACH '
         'PARTITION, or drop it.'),
        (h.there, 'ok', 'the last one is for ' || h.last, NULL),
        (o.whole, 'ok', format('the partition %s holds tomorrow', o.name), NULL),
        (o.name IS NOT NULL, 'warning',
         format('the partition %s holds only a part of tomorrow, so no other is created for that day', o.name),
         'The other rows of that day go to queue.history_default. Attach partitions by hand for whole days (UTC).'),
        (h.last IS NULL, 'ok', 'no task has finished yet', NULL),
        (true, 'warning', 'there is none for tomorrow; the last one is for ' || h.last,
         'Rows without one go to queue.history_default. CALL queue.maintain() creates partitions, unless '
         'a transaction has queue.history locked.')
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;
END
$$;
COMMENT ON FUNCTION queue.health IS
'Checks this database, and returns what is wrong and what to do about it: a row for each check, or one for each queue
or transaction that a check complains about. name: the check. status: ok, warning or critical. detail: what was found.
hint: what to do, or null. Needs the operator''s right on any queue, or pg_monitor.

- due_for: how long a task may be due before its queue is reported. Default 10 minutes.
- overdue_for: how long ago a lease may have expired, or a schedule become due. Default 1 minute, or 2
  minutes without the background worker, because queue.maintain() runs once a minute.
- pinned_for: how long a transaction may hold back vacuum. Default 10 minutes.
- failed: how many tasks of a queue may fail within an hour before it is reported. Default 10.
- held_back: by how many transactions a replication slot or a standby may hold back vacuum. Default 1000000.

Null means the default.';
