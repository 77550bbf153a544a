WITH claimed AS (
    UPDATE jobs SET state = 'running', started_at = now(), attempts = attempts + 1
    WHERE id = ANY (ARRAY(
        SELECT id FROM jobs WHERE state = 'queued' AND run_at <= now()
        ORDER BY priority, run_at, id LIMIT :batch FOR UPDATE SKIP LOCKED))
    RETURNING id, payload)
SELECT array_agg(id) AS ids, count(payload) FROM claimed \gset
UPDATE jobs SET state = 'done', finished_at = now() WHERE id = ANY (:ids::bigint[]);
