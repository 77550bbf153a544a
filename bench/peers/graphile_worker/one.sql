-- graphile-worker 0.18.0: getJob and completeJob, in the wording of the client.
WITH j AS (
    SELECT jobs.job_queue_id, jobs.priority, jobs.run_at, jobs.id
    FROM graphile_worker._private_jobs AS jobs
    WHERE jobs.is_available = true AND run_at <= now() AND task_id = ANY ('{1}'::int[])
      AND (jobs.job_queue_id IS NULL OR jobs.job_queue_id IN (
          SELECT id FROM graphile_worker._private_job_queues AS job_queues
          WHERE job_queues.is_available = true FOR UPDATE SKIP LOCKED))
    ORDER BY priority ASC, run_at ASC
    LIMIT 1
    FOR UPDATE SKIP LOCKED
),
q AS (
    UPDATE graphile_worker._private_job_queues AS job_queues
    SET locked_by = 'pool', locked_at = now()
    FROM j
    WHERE job_queues.id = j.job_queue_id
)
UPDATE graphile_worker._private_jobs AS jobs
SET attempts = jobs.attempts + 1, locked_by = 'pool', locked_at = now()
FROM j
WHERE jobs.id = j.id
RETURNING jobs.id, payload, jobs.task_id, jobs.attempts \gset
DELETE FROM graphile_worker._private_jobs AS jobs WHERE id = :id::bigint;
