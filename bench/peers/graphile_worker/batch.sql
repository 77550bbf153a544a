-- graphile-worker 0.18.0: getJob of a local queue and completeJobs in batches, as the server logged them.
WITH j_raw AS (
    SELECT jobs.job_queue_id, jobs.priority, jobs.run_at, jobs.id
    FROM graphile_worker._private_jobs AS jobs
    WHERE jobs.is_available = true AND run_at <= now() AND task_id = ANY ('{1}'::int[])
      AND (jobs.job_queue_id IS NULL OR jobs.job_queue_id IN (
          SELECT id FROM graphile_worker._private_job_queues AS job_queues
          WHERE job_queues.is_available = true FOR UPDATE SKIP LOCKED))
    ORDER BY priority ASC, run_at ASC
    LIMIT :batch
    FOR UPDATE SKIP LOCKED
),
j AS (
    SELECT DISTINCT ON (job_queue_id, CASE WHEN job_queue_id IS NULL THEN id END)
        job_queue_id, priority, run_at, id
    FROM j_raw
    ORDER BY job_queue_id, CASE WHEN job_queue_id IS NULL THEN id END, priority ASC, run_at ASC
),
q AS (
    UPDATE graphile_worker._private_job_queues AS job_queues
    SET locked_by = 'pool', locked_at = now()
    FROM j
    WHERE job_queues.id = j.job_queue_id
),
taken AS (
    UPDATE graphile_worker._private_jobs AS jobs
    SET attempts = jobs.attempts + 1, locked_by = 'pool', locked_at = now()
    FROM j
    WHERE jobs.id = j.id
    RETURNING jobs.id, payload
)
SELECT array_agg(id) AS ids, count(payload) FROM taken \gset
DELETE FROM graphile_worker._private_jobs AS jobs USING unnest(:ids::bigint[]) n(n) WHERE id = n;
