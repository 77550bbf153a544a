-- awa 0.6.9: the statement of its bridge to other drivers, which inserts a job in the caller's transaction.
SELECT id, kind, queue, args, state, priority, attempt, max_attempts
FROM awa.insert_job_compat(
    'bench', 'bench', :payload::jsonb, 'available'::awa.job_state, 2::smallint, 25::smallint, now(), '{}'::jsonb,
    ARRAY[]::text[], NULL, NULL::bit(8), NULL::bytea);
