\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A claim from an empty queue returns no row and raises no error.
SELECT * FROM queue.claim('30 seconds');

-- The order: priority, then run_at, then id.
SELECT queue.push('default', '"late"', run_at => now() - interval '1 minute');
SELECT queue.push('default', '"early"', run_at => now() - interval '1 hour');
SELECT queue.push('default', '"urgent"', priority => -1);
SELECT queue.push('default', '"not yet"', priority => -2, delay => '1 hour');
SELECT queue.push_many('default', ARRAY['"twin 1"', '"twin 2"']::jsonb[], priority => 1);
SELECT id, token, queue, payload, attempt, max_attempts, priority FROM queue.claim('30 seconds');
SELECT payload FROM queue.claim('30 seconds', 'default', 2, 'worker-1');
SELECT payload FROM queue.claim('30 seconds', 'default', 100);
SELECT * FROM queue.claim('30 seconds');

-- The row after a claim.
SELECT state, attempt, token, worker, lease_until - claimed_at AS lease FROM queue.tasks WHERE payload = '"early"';

-- Without a lease the queue's own is used; months and days are counted as Postgres compares them.
SELECT queue.create('short', '{"lease": "5 seconds", "max_attempts": 2}');
SELECT queue.push('short');
SELECT max_attempts, lease_until BETWEEN statement_timestamp() + '5 s' AND clock_timestamp() + '5 s' AS five_seconds FROM queue.claim(queue => 'short');
SELECT queue.push('short');
SELECT lease_until > clock_timestamp() AS later FROM queue.claim('1 mon -29 days', 'short');

-- Several queues, in the order given.
SELECT queue.create('a');
SELECT queue.create('b');
SELECT queue.push('a', '"a1"'), queue.push('b', '"b1"'), queue.push('a', '"a2"', priority => 1);
SELECT payload FROM queue.claim('1 minute', ARRAY['b', 'a'], 2);
SELECT payload FROM queue.claim(lease => NULL, queues => ARRAY['b', 'a']);
SELECT payload FROM queue.claim('1 minute', ARRAY['b', 'a']);

-- A queue that is named twice counts once: what a call claims does not expire before it has returned.
SELECT queue.push('a', '"a3"'), queue.push('a', '"a4"', priority => 1);
SELECT payload FROM queue.claim('1 microsecond', ARRAY['a', 'b', 'a'], 3);

-- A task whose lease has expired is claimed again with a larger token, without the background worker.
SELECT queue.create('expiring', '{"max_attempts": 2}');
SELECT queue.push('expiring', '"slow"') AS id \gset
SELECT token, attempt FROM queue.claim('1 minute', 'expiring', worker => 'w1');
SELECT pg_temp.expire(:id);
SELECT token, attempt FROM queue.claim('1 minute', 'expiring', worker => 'w2');
SELECT errors #- '{0,at}' #- '{0,claimed_at}' AS errors FROM queue.tasks WHERE id = :id;
-- When its attempts are used up, the claim moves it to the dead letters and continues.
SELECT queue.push('expiring', '"next"');
SELECT pg_temp.expire(:id);
SELECT payload FROM queue.claim('1 minute', 'expiring');
SELECT payload, attempt, jsonb_array_length(errors) AS errors FROM queue.dead_letters;

-- A claim from a paused queue returns no row.
SELECT queue.push('a'), queue.pause('a');
SELECT * FROM queue.claim('1 minute', 'a');
SELECT * FROM queue.claim('1 minute', ARRAY['a', 'b']);
SELECT queue.resume('a');
SELECT count(*) FROM queue.claim('1 minute', 'a');

SELECT pg_temp.refused($$SELECT queue.claim('30 seconds', 'nowhere')$$);
SELECT pg_temp.refused($$SELECT queue.claim('30 seconds', ARRAY['a', 'nowhere'])$$);
-- A list without a type, as psycopg sends it, is taken for the name of one queue.
SELECT pg_temp.refused($$SELECT queue.claim('30 seconds', '{a,nowhere}')$$);
SELECT pg_temp.refused($$SELECT queue.claim('-5 seconds')$$);
SELECT pg_temp.refused($$SELECT queue.claim('8 days')$$);
SET queue.max_lease = '30d';
SELECT pg_temp.refused($$SELECT queue.claim('8 days')$$);

-- In a batch, a task whose lease has expired keeps its place.
SELECT queue.create('places');
SELECT queue.push_many('places', ARRAY['"first"', '"second"', '"third"']::jsonb[]) IS NOT NULL AS pushed;
SELECT pg_temp.expire(id) FROM queue.claim('1 minute', 'places');
SELECT payload, attempt FROM queue.claim('1 minute', 'places', 3);
-- If its attempts are used up, the next task is claimed instead.
SELECT queue.create('last', '{"max_attempts": 1}');
SELECT queue.push_many('last', ARRAY['"first"', '"second"', '"third"']::jsonb[]) IS NOT NULL AS pushed;
SELECT pg_temp.expire(id) FROM queue.claim('1 minute', 'last');
SELECT payload, attempt FROM queue.claim('1 minute', 'last', 2);
