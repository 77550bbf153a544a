\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- At most max_running tasks run at a time, however tasks end.
SELECT queue.create('q', '{"max_running": 3, "max_attempts": 9, "backoff": {"base": "0"}}');
SELECT count(queue.push('q', to_jsonb(n))) FROM generate_series(1, 20) AS n;
SELECT payload, id, token FROM queue.claim('1 minute', 'q', 10);
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
SELECT queue.complete(1, 1), queue.fail(2, 1, 'no', permanent => true), queue.release(3, 1);
SELECT payload FROM queue.claim('1 minute', 'q', 10);
SELECT queue.cancel(4), queue.confirm_cancel(4, 1), queue.extend(5, 1, '1 hour') IS NOT NULL AS extended;
SELECT payload FROM queue.claim('1 minute', 'q', 10);
-- A lease that ran out gives its place back to whoever asks next.
SELECT pg_temp.expire(5);
SELECT payload FROM queue.claim('1 minute', 'q', 10);
-- A claim that rolls back takes no slot.
SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running';
BEGIN;
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
ROLLBACK;
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
-- A raised limit holds at once. With a lowered one, the next task starts as soon as fewer tasks run than the limit allows.
SELECT queue.configure('q', '{"max_running": 5}');
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
SELECT queue.configure('q', '{"max_running": 2}');
SELECT count(queue.complete(id, token)) FROM (SELECT * FROM queue.tasks WHERE state = 'running' ORDER BY id LIMIT 4) AS t;
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);
SELECT count(*) FROM queue.tasks WHERE state = 'running';
SELECT queue.configure('q', '{"max_running": null}');
SELECT count(*) > 2 AS any_number FROM queue.claim('1 minute', 'q', 10);
-- A limit that is set while tasks run counts them.
SELECT queue.configure('q', '{"max_running": 3}');
SELECT count(queue.push('q')) FROM generate_series(1, 9);
SELECT count(*) FROM queue.claim('1 minute', 'q', 10);

-- At most rate_limit tasks start in any rate_period.
SELECT queue.create('rate', '{"rate_limit": 4, "rate_period": "1 hour"}');
SELECT count(queue.push('rate')) FROM generate_series(1, 20);
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'rate', 3);
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'rate', 3);
SELECT count(*) FROM queue.claim('1 minute', 'rate', 3);
-- A start is available again one period later, and not before.
UPDATE queue_internal.rate_buckets SET taken = ARRAY(SELECT t - interval '59 minutes' FROM unnest(taken) AS t) WHERE queue = 'rate';
SELECT count(*) FROM queue.claim('1 minute', 'rate', 3);
UPDATE queue_internal.rate_buckets SET taken = ARRAY(SELECT t + interval '59 minutes' FROM unnest(taken) AS t) WHERE queue = 'rate';
UPDATE queue_internal.rate_buckets SET taken = ARRAY(SELECT t - interval '1 hour' FROM unnest(taken) AS t) WHERE queue = 'rate' AND bucket <= 2;
SELECT count(*) FROM queue.claim('1 minute', 'rate', 3);
-- A changed rate counts earlier starts.
SELECT queue.configure('rate', '{"rate_limit": 5}');
SELECT count(*) FROM queue.claim('1 minute', 'rate', 10);
SELECT queue.configure('rate', '{"rate_limit": null, "rate_period": null}');
SELECT count(*) FROM queue.claim('1 minute', 'rate', 2);
-- After the clock was set back, starts in the future do not count for ever.
SELECT queue.configure('rate', '{"rate_limit": 1, "rate_period": "1 s"}');
SELECT count(*) FROM queue.claim('1 minute', 'rate', 2);
UPDATE queue_internal.rate_buckets SET taken = ARRAY[now() + interval '1 day'] WHERE queue = 'rate';
SELECT count(*) FROM queue.claim('1 minute', 'rate', 2);

-- Above a rate of 64, starts share rate buckets. A start of 40 minutes ago still counts, whatever else its bucket recorded
-- meanwhile.
SELECT queue.create('many', '{"rate_limit": 128, "rate_period": "1 hour"}');
SELECT count(queue.push('many')) FROM generate_series(1, 200);
UPDATE queue_internal.rate_buckets SET taken = ARRAY[now() - interval '40 minutes'] WHERE queue = 'many';
SELECT count(*) FROM queue.claim('1 minute', 'many', 200);

-- Both limits: a slot is returned if no start is available. Otherwise a second try would take a second slot.
SELECT queue.create('both', '{"max_running": 50, "rate_limit": 1, "rate_period": "1 hour"}');
SELECT count(queue.push('both')) FROM generate_series(1, 60);
SELECT count(*) FROM queue.claim('1 minute', 'both', 5);
SELECT queue.configure('both', '{"rate_limit": null, "rate_period": null}');
SELECT count(*) FROM queue.claim('1 minute', 'both', 60);
SELECT queue.drop('both', true);
SELECT count(*) FROM queue_internal.slots WHERE queue = 'both';

-- A limit lowered by one: two tasks have to end, whatever their slots.
SELECT queue.create('lowered', '{"max_running": 100}');
SELECT count(queue.push('lowered')) FROM generate_series(1, 200);
SELECT count(*) FROM queue.claim('1 minute', 'lowered', 200);
SELECT queue.configure('lowered', '{"max_running": 99}');
SELECT queue.complete(t.id, t.token) FROM queue.tasks AS t JOIN queue_internal.slots AS s ON s.task_id = t.id
WHERE s.queue = 'lowered' AND s.slot IN (3);
SELECT count(*) FROM queue.claim('1 minute', 'lowered', 10);
SELECT count(queue.complete(t.id, t.token)) FROM queue.tasks AS t JOIN queue_internal.slots AS s ON s.task_id = t.id
WHERE s.queue = 'lowered' AND s.slot IN (7, 8);
SELECT count(*) FROM queue.claim('1 minute', 'lowered', 10);
SELECT count(*) FROM queue.claim('1 minute', 'lowered', 10);
SELECT queue.complete(t.id, t.token) FROM queue.tasks AS t JOIN queue_internal.slots AS s ON s.task_id = t.id
WHERE s.queue = 'lowered' AND s.slot = 100;
SELECT count(*) FROM queue.claim('1 minute', 'lowered', 10);
SELECT count(*) FROM queue.tasks WHERE queue = 'lowered' AND state = 'running';
