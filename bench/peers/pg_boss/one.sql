-- pg-boss 12.35.0: fetch() and complete() of a standard queue, as the server logged them.
WITH next AS (
    SELECT j.id
    FROM pgboss.job_common j
    WHERE j.name = 'bench' AND j.state < 'active' AND NOT j.blocked AND j.start_after <= pgboss.job_now()
    ORDER BY j.priority DESC, j.created_on
    LIMIT 1
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE pgboss.job_common j
SET state = 'active', started_on = pgboss.job_now(), heartbeat_on = pgboss.job_now(),
    retry_count = CASE WHEN started_on IS NOT NULL THEN retry_count + 1 ELSE retry_count END
FROM next
WHERE name = 'bench' AND j.id = next.id
RETURNING j.id, name, data, retry_count, expire_seconds, heartbeat_seconds, group_id, group_tier \gset
WITH results AS (
    UPDATE pgboss.job_common
    SET completed_on = pgboss.job_now(), state = 'completed', output = NULL::jsonb, blocked = blocked,
        pending_dependencies = pending_dependencies
    WHERE name = 'bench' AND id = ANY (ARRAY[:id::uuid]) AND state = 'active'
      AND (id::text || ':' || retry_count::text) = ANY (ARRAY[:id || ':' || :retry_count])
    RETURNING id
)
SELECT count(*), coalesce(array_agg(id), '{}'::uuid[]) AS ids FROM results;
