TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers;
INSERT INTO procrastinate_jobs (queue_name, task_name, args)
SELECT 'bench', 'bench', :'payload'::jsonb FROM generate_series(1, :tasks);
