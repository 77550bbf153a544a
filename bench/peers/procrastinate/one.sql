-- Procrastinate 3.10.0: fetch_job and finish_job. A worker keeps its jobs by default.
SELECT id, status, task_name, priority, lock, queueing_lock, args, scheduled_at, queue_name, attempts, worker_id
FROM procrastinate_fetch_job_v2(ARRAY['bench']::varchar[], 1) \gset
SELECT procrastinate_finish_job_v1(:id, 'succeeded', false);
