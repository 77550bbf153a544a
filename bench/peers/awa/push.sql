-- awa 0.6.9: what its bridge to other drivers runs, so that a job is inserted with the caller's own rows.
SELECT id, kind, queue, args, state, priority, attempt, max_attempts
FROM awa.insert_job_compat(
    'bench', 'bench', :payload::jsonb, 'available'::awa.job_state, 2::smallint, 25::smallint, now(), '{}'::jsonb,
    ARRAY[]::text[], NULL, NULL::bit(8), NULL::bytea);
