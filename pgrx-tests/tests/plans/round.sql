-- Everything that queues do, once. :r is a number that no other round has. What a statement returns is kept in variables, and
-- calls may fail: the plans matter.
\set ON_ERROR_STOP off
SELECT queue.push('p', '{"n":1}') AS a \gset
SELECT queue.push('p', '{"n":2}', key => 'k'||:r) AS b \gset
SELECT queue.push('p', '{"n":2}', key => 'k'||:r, on_duplicate => 'replace') AS b \gset
SELECT queue.push('p', '{"n":2}', key => 'k'||:r, on_duplicate => 'reschedule') AS b \gset
SELECT queue.push('p', '{"n":2}', key => 'k'||:r) \gset
SELECT queue.push('p', after => ARRAY[:a, :b]::bigint[]) AS c \gset
SELECT queue.push('p', after => ARRAY[:c]::bigint[], on_predecessor_failure => 'continue') AS c2 \gset
SELECT queue.push('p', after => ARRAY[:c]::bigint[], on_predecessor_failure => 'fail') AS c3 \gset
SELECT count(*) FROM queue.push_many('p', ARRAY['{}', '{}']::jsonb[], run_at => now()+interval '1 hour') \gset
SELECT count(*) FROM queue.push_tasks(jsonb_build_array(jsonb_build_object('queue', 'p', 'key', 't'||:r), jsonb_build_object('queue', 'p', 'after', jsonb_build_array(:c)))) \gset
SELECT queue.push('p', start_by => clock_timestamp()+interval '20 ms', key => 'x'||:r) AS x \gset
-- ends
SELECT id, token FROM queue.claim('1 minute', 'p') \gset
SELECT queue.assert_lease(:id, :token) \gset
SELECT queue.extend(:id, :token) \gset
SELECT count(*) FROM queue.extend_many(ARRAY[:id]::bigint[], ARRAY[:token]::bigint[]) \gset
SELECT queue.step(:id, :token, 's', '{}') \gset
SELECT count(*) FROM queue.steps(:id) \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT id, token FROM queue.claim('1 minute', 'p') \gset
SELECT queue.release(:id, :token) \gset
SELECT id, token FROM queue.claim('1 minute', 'p') \gset
SELECT queue.fail(:id, :token, 'no', '0') \gset
SELECT id, token FROM queue.claim('1 minute', 'p') \gset
SELECT count(*) FROM queue.complete_and_claim(:id, :token) \gset
SELECT pg_sleep(0.03) \gset
SELECT queue.reap() \gset
SELECT id, token FROM queue.claim('1 minute', 'p') \gset
SELECT queue.fail(:id, :token, 'no', permanent => true) \gset
SELECT queue.retry(:id) \gset
SELECT id, token FROM queue.claim('1 minute', 'p') \gset
SELECT queue.fail(:id, :token, 'no', permanent => true) \gset
SELECT queue.redrive('p', 1) \gset
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'p',5) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'p',5) \gset
SELECT count(*) FROM queue.complete_many_and_claim(:'ids', :'tokens') \gset
SELECT queue.cancel(:c3) \gset
SELECT queue.cancel('p', 't'||:r) \gset
-- events and waiting
SELECT queue.push('f') AS f \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT queue.push('f') AS f2 \gset
SELECT count(*) FROM queue.await_event(:id, :token, 'ev'||:r) \gset
SELECT queue.emit('f', 'ev'||:r) \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT count(*) FROM queue.await_task(:id, :token, :f2) \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT count(*) FROM queue.await_event(:id, :token, 'ev'||:r) \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT queue.sleep(:id, :token, 'z', '1 ms'::interval) \gset
SELECT pg_sleep(0.005) \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT queue.complete(:id, :token, '{}') \gset
-- batches
SELECT queue.create_batch('f') AS bt \gset
SELECT queue.push('f', batch => :bt) \gset
SELECT queue.push('f', batch => :bt, after => ARRAY[:c2]::bigint[]) AS m \gset
SELECT queue.seal_batch(:bt) \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT queue.cancel(:m) \gset
SELECT pg_sleep(0.11) \gset
SELECT id, token FROM queue.claim('1 minute', 'f') \gset
SELECT queue.complete(:id, :token, '{}') \gset
-- groups and limits
SELECT queue.push('g', group_key => 'a') , queue.push('g', group_key => 'a'), queue.push('g', group_key => 'a', priority => 1), queue.push('g', group_key => 'b'||:r) \gset
SELECT id, token FROM queue.claim('1 minute', 'g') \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT id, token FROM queue.claim('1 minute', 'g') \gset
SELECT queue.fail(:id, :token, 'no', '0') \gset
SELECT id, token FROM queue.claim('1 minute', 'g') \gset
SELECT queue.fail(:id, :token, 'no', permanent => true) \gset
SELECT queue.redrive('g', 1) \gset
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'g',50) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'g',50) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT queue.push('l'), queue.push('l', weight => 2), queue.push('l') \gset
SELECT id, token FROM queue.claim('1 minute', 'l') \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'l',2) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
SELECT queue.push('h', group_key => 'a'), queue.push('h', group_key => 'b'), queue.push('h', group_key => 'a') \gset
SELECT id, token FROM queue.claim('1 minute', 'h') \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM queue.claim('1 minute', 'h',2) \gset
SELECT count(*) FROM queue.complete_many(:'ids', :'tokens') \gset
-- filters
SELECT queue.push('p', kind => 'zz'), queue.push('p', key => 'mv'||:r) AS mv, queue.push('p', key => 'rp'||:r) \gset
CALL queue.reprioritise_where(jsonb_build_object('queue', 'p', 'key', 'rp'||:r), 5);
CALL queue.run_now_where(jsonb_build_object('queue', 'p', 'key', 'rp'||:r));
CALL queue.move_where(jsonb_build_object('queue', 'p', 'key', 'mv'||:r), 'f');
CALL queue.cancel_where(jsonb_build_object('queue', 'f', 'key', 'mv'||:r));
SELECT count(*) FROM queue.get(:mv) \gset
SELECT queue.run_again(:mv) AS mv \gset
SELECT queue.cancel(:mv) \gset
SELECT id, token FROM queue.claim('1 minute', ARRAY['p', 'f', 'g', 'l', 'h']) \gset
SELECT queue.complete(:id, :token, '{}') \gset
SELECT queue.reap() \gset
CALL queue.maintain();
SELECT count(*) FROM queue.health() \gset
SELECT count(*) FROM queue.stats \gset
SELECT count(*) FROM queue_internal.sweep(NULL, 1000, false) \gset
