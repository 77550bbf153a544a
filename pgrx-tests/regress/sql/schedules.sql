\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
SET timezone = 'UTC'; SET datestyle = 'ISO, YMD';
-- A schedule pushes a task at the local times of a cron expression.
SELECT queue.create('mail');
SELECT queue.schedule('report', '0 9 * * MON-FRI', 'mail', '{"kind": "report"}', 'Europe/Berlin',
                      '{"priority": 5, "max_attempts": 3, "headers": {"team": "sales"}}') > now() AS ahead;
SELECT name, cron, timezone, queue, payload, options, missed_runs, next_run_at > now() AS ahead, last_run_at, paused_at, last_error
FROM queue.schedules;
-- The next runs.
SELECT queue.schedule_preview('0 9 * * MON-FRI', 'Europe/Berlin', 6, '2026-03-26');
-- A schedule that is not due pushes nothing.
SELECT queue.run_schedules();
-- A schedule that is due pushes one task, and its next run is in the future.
UPDATE queue.schedules SET next_run_at = '2026-01-05 08:00Z';
SELECT queue.run_schedules();
SELECT queue.run_schedules();
SELECT t.queue, t.payload, t.priority, t.max_attempts, t.headers - 'scheduled_for' AS headers,
       (t.headers ->> 'scheduled_for')::timestamptz = s.last_run_at AS scheduled_for,
       s.last_run_at <= now() AS was_due, s.next_run_at > now() AS ahead
FROM queue.tasks AS t, queue.schedules AS s;
SELECT headers ->> 'scheduled_for' ~ '^\d{4}-\d\d-\d\dT0[78]:00:00Z$' AS as_utc FROM queue.tasks;
-- A run that rolls back is still due.
UPDATE queue.schedules SET next_run_at = '2026-01-05 08:00Z';
BEGIN;
SELECT queue.run_schedules();
ROLLBACK;
SELECT next_run_at FROM queue.schedules;
SELECT queue.run_schedules();

-- run_schedule pushes a task now.
SELECT next_run_at AS planned FROM queue.schedules \gset
SELECT queue.run_schedule('report') AS id \gset
SELECT payload, headers ->> 'schedule' AS schedule, run_at <= clock_timestamp() AS due FROM queue.tasks WHERE id = :id;
SELECT next_run_at = :'planned' AS plan_unchanged FROM queue.schedules;

-- Runs that fall into a pause are not made up for. A paused schedule can be run by hand.
SELECT queue.pause_schedule('report');
SELECT paused_at <= clock_timestamp() AS paused, next_run_at FROM queue.schedules;
SELECT queue.run_schedules(), queue.run_schedule('report') > 0 AS by_hand;
SELECT queue.pause_schedule('report');
SELECT queue.schedule('report', '0 10 * * *', 'mail', '{"kind": "report"}', 'Europe/Berlin', '{"missed_runs": "all"}') AS still_paused;
SELECT queue.resume_schedule('report');
SELECT paused_at, next_run_at > clock_timestamp() AS ahead FROM queue.schedules;
SELECT queue.resume_schedule('report');

-- Replacing a schedule keeps its next run if the expression and time zone are unchanged.
UPDATE queue.schedules SET next_run_at = '2030-01-01 09:00Z';
SELECT queue.schedule('report', '0 10 * * *', 'mail', '{"kind": "other"}', 'Europe/Berlin');
SELECT payload, missed_runs FROM queue.schedules;
SELECT queue.schedule('report', '0 11 * * *', 'mail', '{"kind": "other"}', 'Europe/Berlin') < '2030-01-01' AS other_times,
       queue.schedule('report', '0 11 * * *', 'mail', '{"kind": "other"}') < '2030-01-01' AS other_zone;
SELECT queue.unschedule('report');
SELECT count(*) FROM queue.schedules;

-- Missed runs: a daily schedule that was due two hours ago, and was not run for three days.
SELECT queue.purge('mail') > 0 AS purged, to_char(now() - interval '2 hours', 'MI HH24 * * *') AS daily \gset
SELECT count(queue.schedule('missed ' || m, :'daily', 'mail', options => jsonb_build_object('missed_runs', m)))
FROM unnest(ARRAY['skip', 'once', 'all']) AS m;
UPDATE queue.schedules SET next_run_at = date_trunc('minute', now() - interval '2 hours') - interval '3 days';
SELECT queue.run_schedules();
SELECT headers ->> 'schedule' AS schedule,
       array_agg(extract(day FROM date_trunc('minute', now() - interval '2 hours') - (headers ->> 'scheduled_for')::timestamptz)
                 ORDER BY id) AS days_ago
FROM queue.tasks GROUP BY 1 ORDER BY 1;
SELECT name, next_run_at = date_trunc('minute', now() - interval '2 hours') + interval '1 day' AS tomorrow, last_run_at IS NOT NULL AS ran
FROM queue.schedules ORDER BY 1;
-- A run that is only a little late is not missed.
UPDATE queue.schedules SET next_run_at = now() - interval '110 s' WHERE name = 'missed skip';
SELECT queue.run_schedules();
SELECT queue.schedule('seconds', '* * * * * *', 'mail', options => '{"missed_runs": "skip"}') > now() AS ahead;
UPDATE queue.schedules SET next_run_at = '2001-01-01Z' WHERE name = 'seconds';
SELECT queue.run_schedules() AS of_many;
SELECT now() - max((headers ->> 'scheduled_for')::timestamptz) < '2 s' AS the_latest FROM queue.tasks WHERE headers ->> 'schedule' = 'seconds';
-- A long backlog of runs is pushed in portions, each run once.
SELECT queue.purge('mail') > 0 AS purged, queue.schedule('seconds', '* * * * * *', 'mail', options => '{"missed_runs": "all"}') > now() - interval '1 s' AS ahead;
UPDATE queue.schedules SET next_run_at = date_trunc('second', now()) - interval '250 s' WHERE name = 'seconds';
SELECT queue.run_schedules() AS first, queue.run_schedules() AS second, queue.run_schedules() BETWEEN 51 AND 70 AS rest;
SELECT count(*) = count(DISTINCT run) AS no_double, max(run) - min(run) = (count(*) - 1) * interval '1 s' AS no_gap
FROM (SELECT (headers ->> 'scheduled_for')::timestamptz AS run FROM queue.tasks) AS t;
SELECT count(queue.unschedule(name)) FROM queue.schedules;

-- A push that fails is recorded and tried again. Other schedules are not affected.
SELECT queue.create('gone');
SELECT queue.schedule('large', '@daily', 'mail', to_jsonb(repeat('x', 1048576)));
SELECT count(queue.schedule(n, '@daily', q, '"secret"')) FROM (VALUES ('a', 'gone'), ('b', 'mail')) AS v (n, q);
SELECT queue.drop('gone'), queue.purge('mail') > 0 AS purged;
UPDATE queue.schedules SET next_run_at = date_trunc('day', now());
SELECT queue.run_schedules();
SELECT name, next_run_at <= now() AS due, last_run_at IS NOT NULL AS ran, last_error, last_error_at <= clock_timestamp() AS noted FROM queue.schedules ORDER BY 1;
SELECT queue.run_schedules();
SELECT queue.create('gone');
SELECT queue.run_schedules();
SELECT name, next_run_at <= now() AS due, last_run_at IS NOT NULL AS ran, last_error, last_error_at FROM queue.schedules ORDER BY 1;
-- The worker tries a failed schedule again after a second, and is not woken for it before. After that it waits for as long
-- as the run is overdue, up to the given time.
UPDATE queue.schedules SET next_run_at = now(), last_error = 'x', last_error_at = now() WHERE name = 'a';
SELECT fired, retry_at - (SELECT last_error_at FROM queue.schedules WHERE name = 'a') AS next_after
FROM queue_internal.fire_schedules(NULL, '10 s');
UPDATE queue.schedules SET next_run_at = now() - interval '4 s', last_error_at = now() WHERE name = 'a';
SELECT queue_internal.schedule_pause(next_run_at, last_error_at, p::interval) AS pause FROM queue.schedules, (VALUES ('10 s'), ('3 s'), ('0')) AS v (p) WHERE name = 'a';
-- CALL queue.maintain() also runs schedules.
UPDATE queue.schedules SET last_error_at = now() - interval '1 minute' WHERE name = 'a';
CALL queue.maintain();
SELECT last_error FROM queue.schedules WHERE name = 'a';
SELECT count(queue.unschedule(name)) FROM queue.schedules;

-- Cron expressions.
SELECT cron, string_agg(run::text, ' | ' ORDER BY n) AS runs
FROM unnest(ARRAY['*/20 * * * *', '5 4 * * SUN', '0 0,12 1-7/3 * *', '0 0 L * *', '0 0 LW * *', '0 0 15W * *', '0 9 * * MON#2', '0 9 * * FRIL',
                  '0 0 13 * FRI', '0 0 13 * +FRI', '0 0 29 2 *', '*/30 59 23 31 dec 7', '0 0 ? * 1', '@yearly', '@annually',
                  '@monthly', '@weekly', '@daily', '@midnight', '@hourly', ' @Hourly ']) WITH ORDINALITY AS c (cron, line),
     LATERAL queue.schedule_preview(cron, runs => 3, since => '2026-01-01 00:00Z') WITH ORDINALITY AS p (run, n)
GROUP BY line, cron ORDER BY line;
-- Invalid expressions.
SELECT cron, regexp_replace(pg_temp.refused(format('SELECT queue.schedule_preview(%L)', cron)), E'\nHINT.*', '') AS refused
FROM unnest(ARRAY['', '* * * *', '* * * * * * *', '60 * * * *', '* 24 * * *', '* * 0 * *', '* * * 13 *', '* * * * 8', '60 * * * * *', ', * * * *',
                  '1,,2 * * * *', '5/10 * * * *', '*/0 * * * *', '30-10 * * * *', '-1 * * * *', '1.5 * * * *', 'MON * * * *', '* 1MON * * *',
                  '* * * JANUARY *', '* * L-3 * *', '* * * * L', '* * * * MON#6', '0 0 30 2 *', '0 0 31 4,6 *', '@reboot',
                  '0 0 * * mörk', '0 0 * * ſun']) AS cron;
SELECT zone, regexp_replace(pg_temp.refused(format('SELECT queue.schedule_preview(%L, %L)', '@daily', zone)), E'\nHINT.*', '') AS refused
FROM unnest(ARRAY['Europe/Atlantis', '', 'CET', 'EST', '+03', 'UTC+3', 'EST5EDT,M3.2.0,M11.1.0', 'Europe/Berlin5', '../Berlin',
                  'europe/berlin', 'utc', 'Etc/GMT-3']) AS zone;
SELECT pg_temp.refused($$SELECT queue.schedule('x', '@daily', 'nowhere')$$);
SELECT pg_temp.refused($$SELECT queue.schedule('x', '@daily', 'mail', options => '{"colour": "red"}')$$);
SELECT pg_temp.refused($$SELECT queue.schedule('x', '@daily', 'mail', options => '{"missed_runs": "some"}')$$);
SELECT pg_temp.refused($$SELECT queue.unschedule('nothing')$$);
SELECT count(*) FROM queue.schedules;

-- Daylight saving time. Each run in local time and in UTC.
CREATE FUNCTION pg_temp.runs(cron text, zone text, since timestamptz, runs integer DEFAULT 3) RETURNS TABLE (local text, utc text) LANGUAGE sql AS $$
    SELECT to_char(run AT TIME ZONE zone, 'YYYY-MM-DD HH24:MI'), to_char(run, 'MM-DD HH24:MI') FROM queue.schedule_preview(cron, zone, runs, since) AS run
$$;
-- 02:30 every day. In spring it is skipped, and the run is an hour later. In autumn it occurs twice, and runs the first time.
SELECT v.zone, r.* FROM (VALUES
    ('Europe/Berlin', '2026-03-28 12:00Z'), ('Europe/Berlin', '2026-10-24 12:00Z'),
    ('America/New_York', '2026-03-07 12:00Z'), ('America/New_York', '2026-10-31 12:00Z'),
    ('Australia/Lord_Howe', '2026-04-03 20:00Z'), ('Australia/Lord_Howe', '2026-10-02 20:00Z')) AS v (zone, since),
    LATERAL pg_temp.runs('30 2 * * *', v.zone, v.since::timestamptz) AS r;
-- In New York it is 01:30 that comes twice. Lord Howe's clock moves by half an hour: 02:15 is skipped, 01:45 comes twice.
SELECT v.zone, v.cron, r.* FROM (VALUES
    ('America/New_York', '30 1 * * *', '2026-10-31 12:00Z'), ('Australia/Lord_Howe', '45 1 * * *', '2026-04-03 20:00Z'),
    ('Australia/Lord_Howe', '15 2 * * *', '2026-10-02 20:00Z')) AS v (zone, cron, since),
    LATERAL pg_temp.runs(v.cron, v.zone, v.since::timestamptz) AS r;
-- Midnight in a zone in which the day begins at 01:00.
SELECT * FROM pg_temp.runs('0 0 * * *', 'America/Sao_Paulo', '2018-11-03 12:00Z');
SELECT * FROM pg_temp.runs('@weekly', 'America/Sao_Paulo', '2018-11-03 12:00Z', 2);
-- Every quarter of an hour from two to three: four runs in spring, an hour later, and four in autumn.
SELECT * FROM pg_temp.runs('*/15 2 * * *', 'America/New_York', '2026-03-08 06:00Z', 5);
SELECT * FROM pg_temp.runs('*/15 1 * * *', 'America/New_York', '2026-11-01 04:50Z', 5);
-- An hourly expression runs in both occurrences of a repeated hour, and not in a skipped one.
SELECT * FROM pg_temp.runs('0 * * * *', 'America/New_York', '2026-03-08 05:30Z', 4);
SELECT * FROM pg_temp.runs('@hourly', 'America/New_York', '2026-11-01 04:30Z', 4);
SELECT * FROM pg_temp.runs('*/15 * * * *', 'America/New_York', '2026-11-01 05:40Z', 6);
SELECT * FROM pg_temp.runs('30 * * * *', 'Australia/Lord_Howe', '2026-04-04 14:00Z', 4);
-- The run of a skipped day is on the day after.
SELECT * FROM pg_temp.runs('0 12 * * *', 'Pacific/Apia', '2011-12-29 12:00Z', 4);
SELECT * FROM pg_temp.runs('0 8 30 12 *', 'Pacific/Apia', '2011-01-01', 2);
-- Runs far from any clock change, and every second across one.
SELECT * FROM pg_temp.runs('30 2 29 2 *', 'America/New_York', '2026-01-01', 2);
SELECT count(*), count(DISTINCT run), max(run) - min(run) AS over FROM queue.schedule_preview('* * * * * *', 'America/New_York', 7300, '2026-11-01 05:00Z') AS run;

-- No schedule runs while pg_restore is connected, because a dump restores keys and the sequence of ids after the schedules.
SELECT queue.schedule('restored', '@hourly', 'default', '"restored"') > now() AS scheduled;
UPDATE queue.schedules SET next_run_at = now() - interval '1 minute';
SET application_name = 'pg_restore';
CALL queue.maintain();
SELECT count(*) FROM queue.tasks WHERE payload = '"restored"';
RESET application_name;
CALL queue.maintain();
SELECT count(*) FROM queue.tasks WHERE payload = '"restored"';
SELECT queue.unschedule('restored');
