\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- PostgreSQL compares intervals as if each year had 360 days, but adds them with the days of the calendar. So
-- "40 years -14401 days" is less than zero when it is compared, and 209 days long when it is added. All checks count seconds.
SELECT interval '40 years -14401 days' < '0' AS less, extract(epoch FROM interval '40 years -14401 days') / 86400 AS days;
SELECT pg_temp.refused($$SELECT count(*) FROM queue.claim('40 years -14401 days')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', lease => '40 years -14401 days')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', lease => '-1 year 361 days')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', timeout => '400 years -144001 days')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', timeout => '-1 year 361 days')$$);
SELECT pg_temp.refused($$SELECT queue.create('odd', '{"lease": "40 years -14401 days"}')$$);
SELECT pg_temp.refused($$SELECT queue.create('odd', '{"timeout": "400 years -144001 days"}')$$);
SELECT pg_temp.refused($$SELECT queue.create('odd', '{"key_ttl": "400 years -144001 days"}')$$);
SELECT pg_temp.refused($$SELECT queue.create('odd', '{"ageing": "-1 year 361 days"}')$$);
SELECT pg_temp.refused($$SELECT queue.create('odd', '{"backoff": {"max": "400 years -144001 days"}}')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', delay => '40000 years -14400001 days')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', key => 'k', key_ttl => '40000 years -14400001 days')$$);
-- An hour long, but no time can be added to it: a task that completes must not fail because of its key.
SELECT pg_temp.refused($$SELECT queue.push('default', key => 'k', key_ttl => '300000 years -109575000 days 1 hour')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', delay => '40000 years -350640000 hours')$$);
SELECT pg_temp.refused($$CALL queue.cancel_where('{"older_than": "400000 years -144000001 days"}')$$);
-- What is only odd in its form means its seconds.
SELECT queue.push('default', lease => '1 month -29 days', timeout => '1 month -29 days -12 hours');
SELECT count(*) FROM queue.claim();
SELECT lease_until - claimed_at AS leased FROM queue.tasks;
SELECT queue.push('default', lease => '40 years -14609 days');
SELECT count(*) FROM queue.claim();
SELECT lease_until - claimed_at AS leased FROM queue.tasks WHERE id = 2;
SELECT count(*) FROM queue.extend(2, 1);
SELECT lease_until - updated_at AS leased FROM queue.tasks WHERE id = 2;
SELECT queue.release(2, 1, '40 years -14609 days');
SELECT run_at > clock_timestamp() AS later FROM queue.tasks WHERE id = 2;
