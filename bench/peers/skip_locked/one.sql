UPDATE jobs SET state = 'running', started_at = now(), attempts = attempts + 1
WHERE id = (
    SELECT id FROM jobs WHERE state = 'queued' AND run_at <= now()
    ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, payload \gset
UPDATE jobs SET state = 'done', finished_at = now() WHERE id = :id;
