-- riverqueue 0.5.0: the statements that fetch jobs and set their state, as the server logged them: the batches of its client.
WITH locked AS (
    SELECT id FROM river_job
    WHERE state = 'available' AND queue = 'default' AND scheduled_at <= now()
      AND (NULL::text[] IS NULL OR kind = any(NULL::text[]))
      AND NOT EXISTS (SELECT 1 FROM river_queue WHERE name = 'default' AND paused_at IS NOT NULL)
    ORDER BY priority, scheduled_at, id
    LIMIT :batch
    FOR UPDATE SKIP LOCKED
),
fetched AS (
    UPDATE river_job AS job
    SET state = 'running', attempt = job.attempt + 1, attempted_at = now(),
        attempted_by = array_append(
            CASE WHEN array_length(job.attempted_by, 1) >= 100
                 THEN job.attempted_by[array_length(job.attempted_by, 1) + 2 - 100:]
                 ELSE job.attempted_by END, 'bench')
    FROM locked
    WHERE job.id = locked.id
    RETURNING job.id, job.args
)
SELECT array_agg(id) AS ids, count(*) AS n, count(args) AS args FROM fetched \gset
WITH job_input AS (
    SELECT * FROM unnest(
        :ids::bigint[], array_fill(false, ARRAY[:n::integer]), array_fill(0::smallint, ARRAY[:n::integer]),
        array_fill(NULL::jsonb, ARRAY[:n::integer]), array_fill(clock_timestamp(), ARRAY[:n::integer]),
        array_fill(false, ARRAY[:n::integer]), array_fill('{}'::jsonb, ARRAY[:n::integer]),
        array_fill(NULL::timestamptz, ARRAY[:n::integer]), array_fill('completed'::text, ARRAY[:n::integer])
    ) AS job_input (id, attempt_do_update, attempt, errors, finalized_at, metadata_do_merge, metadata_updates,
                    scheduled_at, state)
),
updated AS (
    UPDATE river_job AS job
    SET attempt = CASE WHEN job.state = 'running'
                        AND NOT (job_input.state IN ('available', 'retryable', 'scheduled') AND job.metadata ? 'cancel_attempted_at')
                        AND job_input.attempt_do_update THEN job_input.attempt ELSE job.attempt END,
        errors = CASE WHEN job.state = 'running' AND job_input.errors IS NOT NULL
                      THEN array_append(coalesce(job.errors, '{}'), job_input.errors) ELSE job.errors END,
        finalized_at = CASE WHEN job.state = 'running'
                             AND (job_input.state IN ('available', 'retryable', 'scheduled') AND job.metadata ? 'cancel_attempted_at')
                            THEN now()
                            WHEN job.state = 'running' AND job_input.finalized_at IS NOT NULL
                            THEN job_input.finalized_at ELSE job.finalized_at END,
        metadata = CASE WHEN job_input.metadata_do_merge
                        THEN job.metadata || job_input.metadata_updates ELSE job.metadata END,
        scheduled_at = CASE WHEN job.state = 'running'
                             AND NOT (job_input.state IN ('available', 'retryable', 'scheduled') AND job.metadata ? 'cancel_attempted_at')
                             AND job_input.scheduled_at IS NOT NULL THEN job_input.scheduled_at ELSE job.scheduled_at END,
        state = CASE WHEN job.state = 'running'
                      AND (job_input.state IN ('available', 'retryable', 'scheduled') AND job.metadata ? 'cancel_attempted_at')
                     THEN 'cancelled'::river_job_state
                     WHEN job.state = 'running' THEN job_input.state::river_job_state ELSE job.state END
    FROM job_input
    WHERE job.id = job_input.id AND (job.state = 'running' OR job_input.metadata_do_merge)
    RETURNING job.*
)
SELECT job.* FROM river_job AS job JOIN job_input ON job.id = job_input.id
WHERE NOT EXISTS (SELECT 1 FROM updated WHERE updated.id = job.id)
UNION ALL
SELECT job.* FROM updated AS job;
