TRUNCATE jobs;
INSERT INTO jobs (payload) SELECT :'payload'::jsonb FROM generate_series(1, :tasks);
