TRUNCATE pgqueuer, pgqueuer_log;
INSERT INTO pgqueuer (priority, status, entrypoint, payload)
SELECT 0, 'queued', 'bench', convert_to(:'payload', 'UTF8') FROM generate_series(1, :tasks);
