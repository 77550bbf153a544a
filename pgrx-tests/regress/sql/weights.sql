\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Lets so much time pass for the rates of a queue.
CREATE FUNCTION pg_temp.pass(span interval) RETURNS void LANGUAGE sql AS $$
    UPDATE queue_internal.group_starts SET started_at = started_at - span, expires_at = expires_at - span;
    UPDATE queue_internal.rate_buckets SET taken = ARRAY(SELECT t - span FROM unnest(taken) WITH ORDINALITY AS u (t, n) ORDER BY n);
    UPDATE queue_internal.events SET due_at = due_at - span;
    SELECT
$$;
CREATE FUNCTION pg_temp.work(queue text, max_tasks integer DEFAULT 100, OUT payload jsonb, OUT group_key text)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE task queue.claimed_task;
BEGIN
    -- A claim that finds events processes them.
    FOR n IN 1..2 LOOP
        FOR task IN SELECT * FROM queue.claim('1 minute', work.queue, max_tasks) LOOP
            PERFORM queue.complete(task.id, task.token);
            payload := task.payload;
            group_key := task.group_key;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;

-- A task takes its weight of the rate limit of the queue: here 5 + 3 + 2.
SELECT queue.create('q', '{"rate_limit": 10, "rate_period": "1 hour"}');
SELECT queue.push('q', '"a"', weight => 5), queue.push('q', '"b"', weight => 3), queue.push('q', '"c"', weight => 2),
       queue.push('q', '"d"', weight => 10), queue.push('q', '"e"');
SELECT * FROM pg_temp.work('q');
-- The next one needs the whole limit. The last would fit sooner, but does not overtake it.
SELECT pg_temp.pass('59 minutes');
SELECT * FROM pg_temp.work('q');
SELECT pg_temp.pass('61 seconds');
SELECT * FROM pg_temp.work('q');
SELECT pg_temp.pass('1 hour');
SELECT * FROM pg_temp.work('q');
-- A task that is heavier than the limit can never start, so a push refuses it.
SELECT pg_temp.refused($$SELECT queue.push('q', weight => 11)$$);
SELECT queue.push_many('q', '{1, 2}', weight => 11);
SELECT queue.push_tasks('[{"queue": "q", "weight": 10}, {"queue": "q", "weight": 11}]');
SELECT queue.schedule('s', '@daily', 'q', options => '{"weight": 11}');
-- If the limit is lowered later, such a task takes all of it.
SELECT queue.push('q', '"heavy"', weight => 10), queue.push('q', '"light"');
SELECT queue.configure('q', '{"rate_limit": 4}'), pg_temp.pass('2 hours');
SELECT * FROM pg_temp.work('q');
SELECT pg_temp.pass('61 minutes');
SELECT * FROM pg_temp.work('q');

-- group_rate_limit: no more than that of each group, whatever the others do.
SELECT queue.create('g', '{"group_rate_limit": 3, "rate_period": "1 hour", "max_running_per_group": 10}');
SELECT count(queue.push('g', to_jsonb(n), group_key => 'ada')) FROM generate_series(1, 5) AS n;
SELECT count(queue.push('g', to_jsonb(n), group_key => 'bob')) FROM generate_series(6, 7) AS n;
SELECT queue.push('g', '8');
SELECT * FROM pg_temp.work('g');
SELECT * FROM pg_temp.work('g');
-- The tasks that have to wait are not in the order of claims, so that no claim meets them.
SELECT payload, admission FROM queue.tasks WHERE queue = 'g' ORDER BY id;
-- The next task starts when the first of the last three starts is an hour old.
SELECT pg_temp.pass('59 minutes');
SELECT * FROM pg_temp.work('g');
SELECT pg_temp.pass('61 seconds');
SELECT * FROM pg_temp.work('g');

-- With weights. A task that fails takes its weight again when it is tried again.
SELECT queue.create('w', '{"group_rate_limit": 4, "rate_period": "1 hour", "backoff": {"base": "0"}}');
SELECT queue.push('w', '"heavy"', weight => 3, group_key => 'g'), queue.push('w', '"light"', group_key => 'g');
SELECT queue.fail(id, token, 'no') FROM queue.claim('1 minute', 'w', 5);
SELECT * FROM pg_temp.work('w');
SELECT pg_temp.pass('1 hour');
SELECT * FROM pg_temp.work('w');
SELECT pg_temp.refused($$SELECT queue.push('w', weight => 5, group_key => 'g')$$);
SELECT queue.push_many('w', '{1, 2}', weight => 5, group_keys => '{g, h}');
-- Without a group it is not limited.
SELECT queue.push('w', '"no group"', weight => 5) > 0 AS pushed;
SELECT * FROM pg_temp.work('w');
-- A task that was pushed before the limit was lowered takes all of it.
SELECT queue.push('w', '"four"', weight => 4, group_key => 'h'), queue.push('w', '"one"', group_key => 'h');
SELECT queue.configure('w', '{"group_rate_limit": 2}');
SELECT * FROM pg_temp.work('w');
SELECT pg_temp.pass('1 hour');
SELECT * FROM pg_temp.work('w');
-- A replaced task has a new weight.
SELECT queue.configure('w', '{"group_rate_limit": 4}'), pg_temp.pass('2 hours');
SELECT queue.push('w', '"first"', weight => 2, group_key => 'i'), queue.push('w', '"second"', key => 'k', group_key => 'i');
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'w');
SELECT queue.push('w', '"replaced"', key => 'k', on_duplicate => 'replace', weight => 3, group_key => 'i');
SELECT * FROM pg_temp.work('w');
SELECT pg_temp.pass('1 hour');
SELECT * FROM pg_temp.work('w');

-- Both limits: of the queue, and of each group.
SELECT queue.create('both', '{"rate_limit": 3, "group_rate_limit": 2, "rate_period": "1 hour", "max_running_per_group": 9}');
SELECT count(queue.push('both', to_jsonb(n), group_key => chr(97 + n % 2))) FROM generate_series(1, 8) AS n;
SELECT count(*), count(*) FILTER (WHERE group_key = 'a') <= 2 AND count(*) FILTER (WHERE group_key = 'b') <= 2 AS within
FROM pg_temp.work('both');
-- A limit that is removed lets the tasks go on.
SELECT queue.configure('both', '{"rate_limit": null, "group_rate_limit": null, "rate_period": null}');
SELECT count(*) FROM pg_temp.work('both');
-- rate_period goes with one of the limits or both.
SELECT queue.configure('both', '{"rate_period": "1 s"}');
SELECT queue.configure('both', '{"group_rate_limit": 1}');
SELECT queue.configure('both', '{"group_rate_limit": 1, "rate_period": "1 s"}');

-- Starts are forgotten when they count no longer, also those of groups that have no tasks.
SELECT queue_internal.retire_group_starts(1), count(*) > 0 AS some FROM queue_internal.group_starts;
SELECT pg_temp.pass('2 hours');
SELECT queue_internal.retire_group_starts(1000);
SELECT count(*) FROM queue_internal.group_starts;
-- The weight stays with the task.
SELECT queue.push('w', '"kept"', weight => 2), pg_temp.work('w');
SELECT payload, weight FROM queue.all_tasks WHERE payload = '"kept"';
SELECT queue.run_again(id) > 0 AS again FROM queue.history WHERE payload = '"kept"';
SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'w');
SELECT weight FROM queue.dead_letters WHERE payload = '"kept"';
SELECT queue.redrive('w');
SELECT weight FROM queue.tasks WHERE payload = '"kept"';
SELECT queue.drop('g', true), count(*) FROM queue_internal.group_starts WHERE queue = 'g';

-- After a limit was lowered, what was set up under the larger one takes all of the smaller one and does not fail: a
-- schedule, a task that is run again, and a task that is published to several queues.
SELECT queue.create('low', '{"rate_limit": 9, "group_rate_limit": 9, "rate_period": "1 hour"}');
SELECT queue.schedule('low', '@daily', 'low', '"scheduled"', options => '{"weight": 9}') > now() AS scheduled;
SELECT queue.push('low', '"again"', weight => 8, group_key => 'g') > 0 AS pushed;
SELECT * FROM pg_temp.work('low');
SELECT queue.configure('low', '{"rate_limit": 3, "group_rate_limit": 2}');
SELECT queue.bind('low.#', 'low'), queue.bind('low.#', 'q');
UPDATE queue.schedules SET next_run_at = now() - interval '1 second' WHERE name = 'low';
SELECT count(*) FROM queue_internal.fire_schedules(10, '1 minute');
SELECT queue.run_again(id) > 0 AS again FROM queue.history WHERE payload = '"again"';
SELECT count(*) AS published FROM queue.publish('low.er', '"published"', weight => 4);
SELECT count(*) AS published FROM queue.publish('low.er', '"keyed"', weight => 4, key => 'k', group_key => 'g');
SELECT last_error FROM queue.schedules WHERE name = 'low';
SELECT queue, payload, weight FROM queue.tasks WHERE queue IN ('low', 'q') ORDER BY queue, id;
SELECT queue.unschedule('low');

-- While the first task waits for its weight, claims write nothing.
SELECT queue.create('idle', '{"rate_limit": 4, "rate_period": "1 hour", "max_running": 5}');
SELECT queue.push('idle', '"first"', weight => 2) > 0 AS pushed;
SELECT * FROM pg_temp.work('idle');
SELECT queue.push('idle', '"heavy"', weight => 3) > 0 AS pushed, queue.push('idle', '"light"') > 0 AS pushed;
SELECT * FROM pg_temp.work('idle');
BEGIN;
SELECT payload FROM queue.claim('1 minute', 'idle', 9);
SELECT pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;
COMMIT;
SELECT queue_internal.first_ready('{idle}') IS NULL AS waits;

-- With ageing, a light task that comes before a heavy one of a better priority is found by queue.wait as by a claim.
SELECT queue.create('aged', '{"rate_limit": 4, "rate_period": "1 hour", "ageing": "1 second"}');
SELECT queue.push('aged', '"first"', weight => 2) > 0 AS pushed;
SELECT * FROM pg_temp.work('aged');
SELECT queue.push('aged', '"old"', priority => 5, run_at => now() - interval '1 minute') > 0 AS pushed,
       queue.push('aged', '"heavy"', weight => 3) > 0 AS pushed;
SELECT queue_internal.first_ready('{aged}') IS NULL AS waits;
SELECT * FROM pg_temp.work('aged');

-- A start relies on no event that another session may process before it sees the start.
SELECT queue.create('near', '{"group_rate_limit": 2, "rate_period": "1 hour", "max_running_per_group": 9}');
SELECT count(queue.push('near', to_jsonb(n), group_key => 'g')) FROM generate_series(1, 3) AS n;
SELECT payload FROM queue.claim('1 minute', 'near');
DO $$ BEGIN
    UPDATE queue_internal.events SET due_at = clock_timestamp() + interval '4 seconds'
    WHERE queue = 'near' AND due_at > now();
    PERFORM queue.claim('1 minute', 'near');
END $$;
SELECT count(*) FROM queue_internal.events WHERE queue = 'near' AND due_at > now() + interval '59 minutes';

-- A start counts for the longer period that an option has got since. In a shorter one it does not.
SELECT queue.create('longer', '{"group_rate_limit": 2, "rate_period": "5 seconds", "max_running_per_group": 9}');
SELECT count(queue.push('longer', to_jsonb(n), group_key => 'g')) FROM generate_series(1, 3) AS n;
SELECT count(*) FROM queue.claim('1 minute', 'longer', 9);
SELECT queue.configure('longer', '{"rate_period": "1 hour"}');
UPDATE queue_internal.group_starts SET started_at = started_at - interval '6 seconds', expires_at = expires_at - interval '6 seconds'
WHERE queue = 'longer';
SELECT queue_internal.retire_group_starts(1000);
SELECT count(*) FROM queue_internal.group_starts WHERE queue = 'longer';
SELECT count(*) FROM queue.claim('1 minute', 'longer', 9);
SELECT queue.configure('longer', '{"rate_period": "5 seconds"}');
SELECT count(*) FROM queue.claim('1 minute', 'longer', 9);
