TRUNCATE river_job;
INSERT INTO river_job (args, kind, max_attempts)
SELECT :'payload'::jsonb, 'bench', 25 FROM generate_series(1, :tasks);
