-- PgQueuer 1.6.0: its dequeue without limits and its log of jobs, as the server logged them.
WITH available AS (
    SELECT unnest(ARRAY['bench']) AS entrypoint
), next_queued AS (
    SELECT job.id, job.priority
    FROM available
    CROSS JOIN LATERAL (
        SELECT candidate.id, candidate.priority
        FROM pgqueuer candidate
        WHERE candidate.entrypoint = available.entrypoint AND candidate.status = 'queued'
          AND candidate.execute_after < now()
        ORDER BY candidate.priority DESC, candidate.id ASC
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) job
    ORDER BY job.priority DESC, job.id ASC
    LIMIT 1
), next_stale AS (
    SELECT stale.id, stale.priority
    FROM pgqueuer stale
    WHERE stale.status = 'picked' AND stale.entrypoint = ANY (ARRAY['bench'])
      AND stale.heartbeat < now() - interval '30 seconds' AND stale.execute_after < now()
    ORDER BY stale.priority DESC, stale.id ASC
    FOR UPDATE SKIP LOCKED
    LIMIT 1
), eligible AS (
    SELECT id FROM (
        SELECT id, priority FROM next_queued UNION ALL SELECT id, priority FROM next_stale
    ) combined
    ORDER BY priority DESC, id ASC
    LIMIT 1
), claimed AS (
    UPDATE pgqueuer
    SET status = 'picked', updated = now(), heartbeat = now(),
        queue_manager_id = '1818973a-33b9-4898-92ed-130a28dac398'
    WHERE id IN (SELECT id FROM eligible)
    RETURNING *
), log_pick AS (
    INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority)
    SELECT id, status, entrypoint, priority FROM claimed
)
SELECT id, priority, entrypoint, payload IS NULL AS empty FROM claimed ORDER BY priority DESC, id ASC \gset
WITH job_status AS (
    SELECT unnest(ARRAY[:id::bigint]) AS id,
           unnest(array_fill('successful'::pgqueuer_status, ARRAY[1])) AS status,
           unnest(array_fill(NULL::jsonb, ARRAY[1])) AS traceback
), deleted AS (
    DELETE FROM pgqueuer
    WHERE id = ANY (SELECT js.id FROM job_status js WHERE js.status <> 'failed')
    RETURNING id, entrypoint, priority
), held AS (
    UPDATE pgqueuer
    SET status = 'failed', updated = now(), queue_manager_id = NULL
    WHERE id = ANY (SELECT js.id FROM job_status js WHERE js.status = 'failed')
    RETURNING id, entrypoint, priority
), all_resolved AS (
    SELECT id, entrypoint, priority FROM deleted UNION ALL SELECT id, entrypoint, priority FROM held
), merged AS (
    SELECT job_status.id, job_status.status, job_status.traceback, all_resolved.entrypoint, all_resolved.priority
    FROM job_status
    INNER JOIN all_resolved ON all_resolved.id = job_status.id
)
INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority, traceback)
SELECT id, status, entrypoint, priority, traceback FROM merged;
