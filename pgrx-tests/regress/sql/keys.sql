\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- One live task of a queue has a key. The second push returns the id of the first.
SELECT queue.push('default', '"first"', key => 'order-7') AS first, queue.push('default', '"second"', key => 'order-7') AS second;
SELECT queue.create('mail');
SELECT queue.push('mail', '"another queue, another key"', key => 'order-7') AS other;
-- 'replace' gives the queued task the new payload. 'reschedule' only changes its time.
SELECT queue.push('default', '"newer"', key => 'order-7', on_duplicate => 'replace', priority => -1, headers => '{"request": 2}') AS same;
SELECT queue.push('default', '"ignored"', key => 'order-7', on_duplicate => 'reschedule', delay => '1 hour') AS same;
SELECT id, payload, priority, headers, run_at > now() + interval '59 minutes' AS later FROM queue.tasks WHERE queue = 'default';
SELECT pg_temp.refused($$SELECT queue.push('default', key => 'order-7', on_duplicate => 'error')$$);
SELECT queue.push('default', '"now"', key => 'order-7', on_duplicate => 'replace') AS same;
-- A running task stays as it is.
SELECT id, payload FROM queue.claim();
SELECT queue.push('default', '"too late"', key => 'order-7', on_duplicate => 'reschedule') AS same;
SELECT payload, state FROM queue.tasks WHERE queue = 'default';
-- A retried task keeps its key.
SELECT queue.fail(1, 1, 'no', '0'), queue.push('default', key => 'order-7') AS same;
SELECT queue.complete(id, token) FROM queue.claim();
-- The key of a finished task is free.
SELECT queue.push('default', '"again"', key => 'order-7') AS another;
SELECT queue.cancel(max(id)) FROM queue.tasks WHERE queue = 'default';

-- A request id: the key stays taken for an hour after the task has finished.
SELECT queue.push('default', '"pay"', key => 'request-1', key_ttl => '1 hour') AS paid \gset
SELECT queue.complete(id, token) FROM queue.claim();
SELECT queue.push('default', '"pay"', key => 'request-1') = :paid AS the_finished_one;
SELECT queue.push('default', '"pay"', key => 'request-1', on_duplicate => 'replace') = :paid AS the_finished_one;
UPDATE queue_internal.keys SET expires_at = now() WHERE key = 'request-1';
SELECT queue.push('default', '"pay"', key => 'request-1') > :paid AS a_new_one;
SELECT queue_internal.retire_keys(10), count(*) FROM queue_internal.keys WHERE expires_at IS NOT NULL;
SELECT queue.configure('default', '{"key_ttl": "1 day"}');
SELECT queue.complete(id, token) FROM queue.claim();
SELECT key, expires_at > now() + interval '23 hours' AS held FROM queue_internal.keys WHERE queue = 'default';
SELECT queue.configure('default', '{"key_ttl": null}');

-- push_many, and a plain INSERT, which leaves out the row whose key is taken.
SELECT queue.push_many('default', ARRAY['1', '2', '3', '4']::jsonb[], keys => ARRAY['b', 'a', NULL, 'b']) - :paid AS id;
INSERT INTO queue.tasks (queue, payload, key) VALUES ('default', '5', 'a'), ('default', '6', 'c') RETURNING payload;
SELECT payload, key FROM queue.tasks WHERE queue = 'default' ORDER BY id;
INSERT INTO queue.tasks (queue, key) VALUES ('default', '');

-- A redriven dead letter gets its key back, unless another task has taken it.
SELECT queue.create('dead', '{"max_attempts": 1}');
SELECT queue.push('dead', '"old"', key => 'k') AS old \gset
SELECT queue.fail(id, token, 'no') FROM queue.claim(NULL, 'dead');
SELECT queue.retry(:old);
SELECT queue.fail(id, token, 'no') FROM queue.claim(NULL, 'dead');
SELECT queue.push('dead', '"new"', key => 'k') > :old AS new;
SELECT left(pg_temp.refused(format('SELECT queue.retry(%s)', :old)), 40);
SELECT queue.redrive('dead') AS left_where_it_is, count(*) FROM queue.dead_letters;
SELECT queue.complete(id, token) FROM queue.claim(NULL, 'dead');
SELECT queue.redrive('dead');
-- Of two dead letters with the same key, the older one is redriven, and the other one stays.
SELECT queue.fail(id, token, 'no') FROM queue.claim(NULL, 'dead');
SELECT queue.push('dead', '"second"', key => 'k') > 0 AS pushed;
SELECT queue.fail(id, token, 'no') FROM queue.claim(NULL, 'dead');
SELECT queue.redrive('dead');
SELECT payload, state FROM queue.all_tasks WHERE queue = 'dead' ORDER BY id;
SELECT queue.complete(id, token) FROM queue.claim(NULL, 'dead');
SELECT queue.redrive('dead');

-- A task is moved with its key. It stays if another task has the key in the target queue.
SELECT queue.push('mail', '"moved"', key => 'm') AS moved \gset
CALL queue.move_where('{"queue": "mail", "key": "m"}', 'default');
SELECT queue.push('default', key => 'm') = :moved AS taken, queue.push('mail', '"free again"', key => 'm') > :moved AS free;
CALL queue.move_where('{"queue": "mail", "key": "m"}', 'default');
SELECT t.queue, t.payload, k.queue AS key_of FROM queue.tasks AS t JOIN queue_internal.keys AS k ON k.task_id = t.id WHERE t.key = 'm' ORDER BY t.id;

-- A task that is deleted by hand or purged holds no key.
DELETE FROM queue.tasks WHERE queue = 'dead';
SELECT queue.push('dead', '"after a DELETE"', key => 'k') > 0 AS pushed, queue.purge('dead') AS purged;
SELECT count(*) FROM queue_internal.keys WHERE queue = 'dead';

-- A task that replaces a running one runs after it, even if it is replaced itself. The running one is not retried.
SELECT queue.create('next', '{"backoff": {"base": "0"}}');
CREATE VIEW pg_temp.next AS SELECT state, payload, token, key IS NOT NULL AS has_key FROM queue.all_tasks WHERE queue = 'next' ORDER BY id;
SELECT queue.push('next', '"runs"', key => 'k') AS first \gset
SELECT id, token FROM queue.claim('1 minute', 'next') \gset
SELECT queue.push('next', '"is replaced"', key => 'k', on_duplicate => 'replace') AS second \gset
SELECT :second > :first AS another, queue.push('next', '"comes next"', key => 'k', on_duplicate => 'replace', priority => -5) = :second AS same;
SELECT queue.push('next', key => 'k') = :second AS the_next_one;
SELECT queue.extend(:id, :token) IS NOT NULL AS undisturbed, count(*) AS to_be_had FROM queue.claim('1 minute', 'next');
SELECT * FROM pg_temp.next;
SELECT queue.complete(:id, :token);
SELECT id, token, payload, priority FROM queue.claim('1 minute', 'next') \gset
SELECT :'payload' AS payload, :priority AS priority, :id = :second AS second;
SELECT count(queue.push('next', to_jsonb('after ' || how), key => 'k', on_duplicate => 'replace')) FROM unnest('{a failure}'::text[]) AS how;
SELECT queue.fail(:id, :token, 'no');
SELECT id, token, payload FROM queue.claim('1 minute', 'next') \gset
SELECT queue.push('next', '"after it was given back"', key => 'k', on_duplicate => 'replace') IS NOT NULL AS pushed, queue.release(:id, :token);
SELECT id, token, payload FROM queue.claim('1 minute', 'next') \gset
SELECT queue.push('next', '"after a lease ran out"', key => 'k', on_duplicate => 'replace') IS NOT NULL AS pushed, pg_temp.expire(:id);
SELECT payload, id, token FROM queue.claim('1 minute', 'next') \gset
SELECT :'payload' AS payload;
-- If the next task is cancelled, the running one gets the key back.
SELECT queue.push('next', '"cancelled"', key => 'k', on_duplicate => 'replace') AS next \gset
SELECT queue.cancel(:next), queue.push('next', key => 'k') = :id AS the_running_one;
SELECT queue.fail(:id, :token, 'no');
SELECT id, token FROM queue.claim('1 minute', 'next') \gset
SELECT queue.complete(:id, :token);
SELECT * FROM pg_temp.next;
SELECT count(*) FROM queue_internal.keys WHERE queue = 'next';

-- The running task also gets its own key_ttl back.
SELECT queue.push('next', '"holds its key for an hour"', key => 'k', key_ttl => '1 hour') > 0 AS pushed;
SELECT id, token FROM queue.claim('1 minute', 'next') \gset
SELECT queue.cancel(queue.push('next', key => 'k', on_duplicate => 'replace', key_ttl => '1 minute'));
SELECT queue.complete(:id, :token);
SELECT task_id = :id AS held, expires_at BETWEEN now() + interval '50 minutes' AND now() + interval '70 minutes' AS for_an_hour FROM queue_internal.keys WHERE queue = 'next';
UPDATE queue_internal.keys SET expires_at = now() WHERE queue = 'next';
-- A task may also name the task that it replaces as a predecessor.
SELECT queue.push('next', '"is replaced by its dependent"', key => 'k') AS first \gset
SELECT id, token FROM queue.claim('1 minute', 'next') \gset
SELECT queue.push('next', '"comes after both"', key => 'k', on_duplicate => 'replace', after => ARRAY[:first, queue.push('next')]) > :first AS pushed;
SELECT queue.fail(:id, :token, 'no');
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'next');
SELECT id, token, payload, key FROM queue.claim('1 minute', 'next') \gset
SELECT :'payload' AS payload, :'key' AS key, queue.complete(:id, :token);
-- The sweep removes a key whose task has ended. It keeps a key without a task, because a restore may still insert the task.
INSERT INTO queue_internal.keys (queue, key, task_id) VALUES ('next', 'of the ended', :id), ('next', 'of one to come', 123456789);
DO $$ DECLARE place queue_internal.sweep_position; BEGIN LOOP place := queue_internal.sweep(place, 100000, true); EXIT WHEN place IS NULL; END LOOP; END $$;
SELECT key FROM queue_internal.keys WHERE queue = 'next';
DELETE FROM queue_internal.keys WHERE queue = 'next';

-- A dead letter holds no key, whatever its key_ttl, and gets its key_ttl back when it is redriven.
SELECT queue.create('ttl', '{"max_attempts": 1}'), queue.create('elsewhere');
SELECT queue.push('ttl', '"dies"', key => 'k', key_ttl => '1 hour') AS dead \gset
SELECT queue.fail(id, token, 'no') FROM queue.claim('1 minute', 'ttl');
SELECT queue.push('ttl', '"pushed again"', key => 'k') > :dead AS again;
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'ttl');
SELECT queue.retry(:dead);
SELECT queue.fail(id, token, 'no') FROM queue.claim('1 minute', 'ttl');
SELECT count(*) FROM queue_internal.keys WHERE queue = 'ttl';
CALL queue.redrive_where('{"queue": "ttl"}', 'elsewhere');
SELECT queue.push('ttl', '"the old queue has let it go"', key => 'k') > :dead AS pushed;
SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'elsewhere');
SELECT k.queue, k.task_id = :dead AS of_the_dead, expires_at BETWEEN now() + interval '50 minutes' AND now() + interval '70 minutes' AS for_an_hour
FROM queue_internal.keys AS k WHERE k.queue IN ('ttl', 'elsewhere') ORDER BY k.queue;

-- try_push reports whether it added a task.
SELECT queue.create('tried');
SELECT pushed FROM queue.try_push('tried', '"without a key"', priority => -1);
SELECT id AS first, pushed FROM queue.try_push('tried', '"first"', key => 'k') \gset
SELECT :'pushed' AS pushed;
SELECT id = :first AS same, pushed FROM queue.try_push('tried', key => 'k');
SELECT id = :first AS same, pushed FROM queue.try_push('tried', '"changed"', key => 'k', on_duplicate => 'replace');
SELECT id > :first AS later, pushed FROM queue.try_push('tried', '"waits"', key => 'other', after => ARRAY[:first]);
SELECT id = :first AS first, payload FROM queue.claim('1 minute', 'tried', 3);
-- It adds the task that is to follow a running one.
SELECT id AS next, pushed FROM queue.try_push('tried', '"next"', key => 'k', on_duplicate => 'replace') \gset
SELECT :'pushed' AS pushed, :next > :first AS later;
SELECT id = :next AS same, pushed FROM queue.try_push('tried', key => 'k', delay => '1 hour', on_duplicate => 'reschedule');
SELECT split_part(pg_temp.refused($$SELECT queue.try_push('tried', key => 'k', on_duplicate => 'error')$$), E'\n', 1) AS refused;
SELECT state, payload FROM queue.tasks WHERE queue = 'tried' ORDER BY id;

-- With key_ttl_from => 'push' the key_ttl counts from the push, and the key stays taken at least until the task has ended.
SELECT queue.create('window', '{"max_attempts": 1}');
SELECT count(queue.push('window', to_jsonb(k), key => k, key_ttl => '1 hour', key_ttl_from => 'push')) FROM unnest('{early,late,dies,goes on}'::text[]) AS k;
UPDATE queue.tasks SET created_at = created_at - CASE payload WHEN '"late"' THEN interval '2 hours' ELSE interval '40 minutes' END WHERE queue = 'window';
SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'window', 4) WHERE payload IN ('"early"', '"late"');
SELECT k.key, k.expires_at BETWEEN now() + interval '10 minutes' AND now() + interval '30 minutes' AS for_twenty_minutes, k.expires_at < now() AS over
FROM queue_internal.keys AS k WHERE k.queue = 'window' ORDER BY k.key;
SELECT k, pushed FROM unnest('{early,goes on,late}'::text[]) AS k, queue.try_push('window', key => k) ORDER BY k;
-- A dead letter keeps what the push said, for its retry and for a new task like it.
SELECT queue.fail(id, token, 'x') FROM queue.tasks WHERE queue = 'window' AND payload = '"dies"';
SELECT queue.run_again(id) > id AS pushed, key_ttl < '0' AS counts_from_the_push FROM queue.dead_letters WHERE queue = 'window';
SELECT extract(epoch FROM ttl)::integer AS seconds FROM queue_internal.keys WHERE queue = 'window' AND key = 'dies';
