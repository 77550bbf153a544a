\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- The tasks of a group run one at a time, in the order in which they were pushed, whatever their priority.
SELECT count(queue.push('default', to_jsonb(n), group_key => 'g', priority => -n)) FROM generate_series(1, 4) AS n;
SELECT queue.push('default', '"of no group"');
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queued, behind, running FROM queue.stats;
-- A retry, a release, a crash: it is still the first one's turn.
SELECT queue.fail(1, 1, 'no', '0');
SELECT payload, attempt FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.release(1, 2);
SELECT payload, attempt FROM queue.claim('1 minute', max_tasks => 10);
SELECT pg_temp.expire(1);
SELECT payload, attempt FROM queue.claim('1 minute', max_tasks => 10);
-- Its end is the next one's turn, whatever the end.
SELECT queue.complete(1, 4);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.fail(2, 1, 'no', permanent => true);
SELECT queue.cancel(3);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(4, 1);
-- A redriven one has its old place.
SELECT queue.push('default', '"later"', group_key => 'g'), queue.retry(2);
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);
SELECT queue.complete(2, 2);
SELECT queue.complete_and_claim(id, token) IS NULL AS none_left FROM queue.claim('1 minute');
SELECT count(*) FROM queue_internal.signals;

-- Where the first is delayed, it holds up those behind it ...
SELECT queue.create('block');
SELECT queue.push('block', '"first"', group_key => 'g', delay => '1 hour'), queue.push('block', '"second"', group_key => 'g');
SELECT payload FROM queue.claim('1 minute', 'block', 10);
-- ... or lets them pass.
SELECT queue.create('pass', '{"delayed_head": "pass"}');
SELECT queue.push('pass', '"first"', group_key => 'g', delay => '1 hour'), queue.push('pass', '"second"', group_key => 'g'), queue.push('pass', '"third"', group_key => 'g');
SELECT payload, id, token FROM queue.claim('1 minute', 'pass', 10) \gset
SELECT :'payload';
-- When it comes due, it waits for the end of the one that runs, and then it is first.
UPDATE queue.tasks SET run_at = now() WHERE queue = 'pass' AND payload = '"first"';
SELECT payload FROM queue.claim('1 minute', 'pass', 10);
SELECT queue.fail(:id, :token, 'no', '1 hour');
SELECT payload FROM queue.claim('1 minute', 'pass', 10);
-- The choice can be changed.
SELECT queue.configure('block', '{"delayed_head": "pass"}');
SELECT payload FROM queue.claim('1 minute', 'block', 10);

-- More of a group at a time.
SELECT queue.create('three', '{"max_running_per_group": 3}');
INSERT INTO queue.tasks (queue, payload, group_key) SELECT 'three', to_jsonb(n), 'g' FROM generate_series(1, 6) AS n;
SELECT payload FROM queue.claim('1 minute', 'three', 10);
SELECT queue.configure('three', '{"max_running_per_group": 4}');
SELECT payload FROM queue.claim('1 minute', 'three', 10);
SELECT queue.configure('three', '{"max_running_per_group": 1}');
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE queue = 'three' AND state = 'running' AND payload < '4';
SELECT payload FROM queue.claim('1 minute', 'three', 10);
SELECT count(queue.complete(id, token)) FROM queue.tasks WHERE queue = 'three' AND state = 'running';
SELECT payload FROM queue.claim('1 minute', 'three', 10);

-- Another queue, another group of the same name.
CALL queue.move_where('{"queue": "three", "group_key": "g"}', 'default');
SELECT payload FROM queue.claim('1 minute', max_tasks => 10);

-- A claim costs no more for 100,000 tasks that have to wait: they are not in the index of claims.
INSERT INTO queue.tasks (queue, group_key) SELECT 'three', 'busy' FROM generate_series(1, 1000);
SELECT count(*) FROM queue.claim('1 minute', 'three', 10);
SELECT count(*) FILTER (WHERE gate < 2) AS in_index, count(*) FROM queue.tasks WHERE group_key = 'busy';
