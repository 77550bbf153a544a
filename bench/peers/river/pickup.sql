-- riverqueue 0.5.0: the statement of its client, and the notification that follows it.
WITH inserted AS (
    INSERT INTO river_job (args, created_at, kind, max_attempts, metadata, priority, queue, scheduled_at, state, tags,
                           unique_key, unique_states)
    VALUES (:payload::jsonb, coalesce(NULL, now()), 'bench', 25, '{}', 1, 'default', coalesce(NULL, now()),
            'available'::text::river_job_state, '{}', NULL, NULL::integer::bit(8))
    ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL
        AND river_job_state_in_bitmask(unique_states, state)
    DO UPDATE SET kind = river_job.kind
    RETURNING *, (xmax != 0) AS unique_skipped_as_duplicate
)
SELECT inserted.*, pg_notify(concat(current_schema(), '.river_insert'), '{"queue":"default"}') FROM inserted;
