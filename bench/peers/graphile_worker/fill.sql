TRUNCATE graphile_worker._private_jobs;
INSERT INTO graphile_worker._private_jobs (task_id, payload)
SELECT t.id, :'payload'::json
FROM graphile_worker._private_tasks AS t, generate_series(1, :tasks) WHERE t.identifier = 'bench';
