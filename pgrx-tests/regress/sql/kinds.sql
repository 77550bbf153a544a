\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- A kind says what sort of work a task is. A worker gets it with the task, and chooses its code by it.
SELECT queue.push('default', '{"to": "ada"}', kind => 'letter'), queue.push('default', '{"of": "ada"}', kind => 'picture'), queue.push('default');
SELECT id, kind, payload FROM queue.claim('1 minute', max_tasks => 3);
-- Every way to push takes it ...
SELECT * FROM queue.try_push('default', kind => 'tried');
SELECT * FROM queue.try_push('default', key => 'k', kind => 'tried with a key');
SELECT * FROM queue.push_many('default', '{1, 2}', kind => 'many');
SELECT * FROM queue.push_many('default', '{1, 2}', keys => '{a, b}', kind => 'many with keys');
SELECT * FROM queue.push_tasks('[{"queue": "default", "kind": "one"}, {"queue": "default", "kind": "other", "key": "o"}, {"queue": "default"}]');
SELECT queue.bind('news.#', 'default');
SELECT * FROM queue.publish('news.today', kind => 'news');
SELECT * FROM queue.publish('news.today', key => 'n', kind => 'news with a key');
SELECT queue.schedule('nightly', '@daily', 'default', options => '{"kind": "report"}') IS NOT NULL AS scheduled;
SELECT queue.run_schedule('nightly');
INSERT INTO queue.tasks (queue, kind) VALUES ('default', 'inserted');
-- ... and every view shows it.
SELECT id, kind FROM queue.tasks WHERE state = 'queued' ORDER BY id;
SELECT kind FROM queue.get(1);
CALL queue.take() \gset taken_
SELECT :taken_id AS id, :'taken_kind' AS kind;
-- A push that replaces a task also replaces its kind, its lease and its timeout, because the payload is for that kind.
SELECT queue.push('default', '"new"', key => 'k', on_duplicate => 'replace', kind => 'new', lease => '2 minutes', timeout => '1 hour');
SELECT kind, payload FROM queue.get(5);
SELECT lease, timeout FROM queue.tasks WHERE id = 5;
SELECT queue.push('default', '"none"', key => 'k', on_duplicate => 'replace');
SELECT kind, payload FROM queue.get(5);
SELECT lease, timeout FROM queue.tasks WHERE id = 5;
-- It stays with the task: through a retry, in the history, among the dead letters, and back.
SELECT queue.fail(1, 1, 'again', '0'), queue.fail(2, 1, 'no', permanent => true), queue.complete(3, 1);
SELECT id, kind FROM queue.claim('1 minute');
SELECT queue.complete(1, 2);
SELECT id, kind, state FROM queue.all_tasks WHERE id <= 3 ORDER BY id;
SELECT kind FROM queue.history WHERE id = 1;
SELECT kind FROM queue.dead_letters;
SELECT queue.run_again(1) AS first, queue.run_again(2) AS second \gset
SELECT id, kind FROM queue.tasks WHERE id IN (:first, :second) ORDER BY id;
SELECT queue.retry(2);
SELECT kind FROM queue.get(2);
SELECT queue.complete_many(ARRAY[:taken_id::bigint], '{1}');
SELECT kind FROM queue.history WHERE id = :taken_id;
-- Bulk verbs take it as a filter.
CALL queue.cancel_where('{"kind": "many"}');
SELECT id, state FROM queue.all_tasks WHERE kind = 'many' ORDER BY id;
CALL queue.purge_where('{"kind": "man_"}');
-- It has 1 to 128 bytes.
SELECT pg_temp.refused($$SELECT queue.push('default', kind => '')$$);
SELECT pg_temp.refused($$SELECT queue.push('default', kind => repeat('x', 129))$$);
SELECT pg_temp.refused($$SELECT queue.push('default', key => 'z', kind => repeat('x', 129))$$);
SELECT pg_temp.refused($$SELECT queue.push_many('default', '{1}', kind => repeat('x', 129))$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, kind) VALUES ('default', '')$$);
SELECT pg_temp.refused($$INSERT INTO queue.tasks (queue, kind) VALUES ('default', repeat('x', 129))$$);
SELECT pg_temp.refused($$SELECT queue.schedule('s', '@daily', 'default', options => '{"kind": ""}')$$);
SELECT pg_temp.refused($$SELECT queue.schedule('s', '@daily', 'default', options => '{"kind": 1}')$$);
SELECT pg_temp.refused($$CALL queue.cancel_where('{"kind": 1}')$$);
SELECT queue.push('default', kind => repeat('x', 128)) > 0 AS pushed;
