-- pg-boss 12.35.0: what send() runs.
INSERT INTO pgboss.job_common (
    id, name, data, priority, start_after, created_on, singleton_key, singleton_on, group_id, group_tier,
    expire_seconds, deletion_seconds, keep_until, retry_limit, retry_delay, retry_backoff, retry_delay_max,
    policy, dead_letter, heartbeat_seconds, blocked, blocking, pending_dependencies)
SELECT
    coalesce(id, gen_random_uuid()), 'bench', data, coalesce(priority, 0), j.start_after, pgboss.job_now(),
    "singletonKey",
    CASE WHEN "singletonSeconds" IS NOT NULL THEN 'epoch'::timestamp + '1s'::interval * ("singletonSeconds"::float8
        * floor((date_part('epoch', pgboss.job_now()) + coalesce("singletonOffset", 0)::float8)
                / "singletonSeconds"::float8)) END,
    "groupId", "groupTier", coalesce("expireInSeconds", q.expire_seconds),
    coalesce("deleteAfterSeconds", q.deletion_seconds),
    j.start_after + coalesce("retentionSeconds", q.retention_seconds) * interval '1s',
    coalesce("retryLimit", q.retry_limit), coalesce("retryDelay", q.retry_delay),
    coalesce("retryBackoff", q.retry_backoff, false), coalesce("retryDelayMax", q.retry_delay_max), q.policy,
    coalesce("deadLetter", q.dead_letter), coalesce("heartbeatSeconds", q.heartbeat_seconds),
    coalesce(blocked, false), coalesce(blocking, false), coalesce("pendingDependencies", 0)
FROM (
    SELECT *, pgboss.job_now() + CAST(coalesce("startAfter", '0') AS interval) AS start_after
    FROM json_to_recordset(json_build_array(json_build_object('data', :payload::json))) AS x (
        id uuid, priority integer, data jsonb, "startAfter" text, "retryLimit" integer, "retryDelay" integer,
        "retryDelayMax" integer, "retryBackoff" boolean, "singletonKey" text, "singletonSeconds" integer,
        "singletonOffset" integer, "groupId" text, "groupTier" text, "expireInSeconds" integer,
        "deleteAfterSeconds" integer, "retentionSeconds" integer, "deadLetter" text,
        "heartbeatSeconds" integer, blocked boolean, blocking boolean, "pendingDependencies" integer)
) j
JOIN pgboss.queue q ON q.name = 'bench'
ON CONFLICT DO NOTHING
RETURNING id;
