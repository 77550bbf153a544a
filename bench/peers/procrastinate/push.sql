-- Procrastinate 3.10.0: defer_jobs.
SELECT unnest(procrastinate_defer_jobs_v1(ARRAY[
    ROW('bench', 'bench', 0, NULL, NULL, :payload::jsonb, NULL)]::procrastinate_job_to_defer_v1[])) AS id;
