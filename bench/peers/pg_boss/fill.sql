TRUNCATE pgboss.job_common;
INSERT INTO pgboss.job (name, data, policy)
SELECT 'bench', :'payload'::jsonb, 'standard' FROM generate_series(1, :tasks);
