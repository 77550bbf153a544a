\getenv srcdir PG_ABS_SRCDIR
\ir :srcdir/prelude.sql
-- Every function refuses a bad argument with the right SQLSTATE and the argument's name, and
-- changes nothing. A case is a call, the argument, the value, and the code; "%s" is the value. What
-- does not say CALL is a function.
CREATE TEMP TABLE cases (call text, argument text, value text, code text);

CREATE FUNCTION pg_temp.calls(argument text, calls text[], bad text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO cases SELECT c, argument, split_part(b, '→', 1), split_part(b, '→', 2)
    FROM unnest(calls) AS c, unnest(bad) AS b;
$$;

-- Names.
SELECT pg_temp.calls('queue', ARRAY[
    'queue.push(%s)', 'queue.create_batch(%s)', 'queue.try_push(%s)', 'queue.try_push(%s, key => ''k'')', 'queue.push_many(%s, ARRAY[''1'']::jsonb[])', 'queue.push_many(%s, ''{}'')',
    'queue.claim(queue => %s)', 'queue.complete_and_claim(1, 1, queue => %s)', 'queue.complete_many_and_claim(''{1}'', ''{1}'', queue => %s)', 'queue.redrive(%s)',
    'CALL queue.wait(%s)', 'CALL queue.take(%s)', 'queue.bind(''a'', %s)', 'queue.unbind(''a'', %s)', 'queue.cancel(%s, ''k'')', 'queue.emit(%s, ''e'')'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 129)→54000', '''nowhere''→QX002']);
SELECT pg_temp.calls('name', ARRAY[
    'queue.configure(%s, ''{}'')', 'queue.drop(%s)', 'queue.pause(%s)', 'queue.resume(%s)', 'queue.purge(%s)'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 129)→54000', '''nowhere''→QX002']);
SELECT pg_temp.calls('name', ARRAY['queue.create(%s)', 'queue.channel(%s)'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 129)→54000', 'repeat(''ü'', 65)→54000']);
SELECT pg_temp.calls('name', ARRAY['queue.create(%s)'], ARRAY['E''a\nb''→22023', 'E''\x7f''→22023']);
SELECT pg_temp.calls('to_queue', ARRAY['CALL queue.move_where(''{"all": true}'', %s)', 'CALL queue.redrive_where(''{"all": true}'', %s)'],
    ARRAY['''''→22023', 'repeat(''x'', 129)→54000', '''nowhere''→QX002']);
SELECT pg_temp.calls('to_queue', ARRAY['CALL queue.move_where(''{"all": true}'', %s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('queues', ARRAY['CALL queue.wait(%s::text[])'],
    ARRAY['NULL→22004', '''{}''→22023', '''{NULL}''→22004', '''{""}''→22023', '''{default,nowhere}''→QX002', '''{{default},{default}}''→22023', 'ARRAY[repeat(''x'', 129)]→54000']);
SELECT pg_temp.calls('topic', ARRAY['queue.publish(%s)'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 256)→54000', '''*''→22023', '''a.#''→22023', '''.a''→22023', '''a.''→22023', '''a b''→22023', '''ü''→22023', 'E''a\n''→22023']);
SELECT pg_temp.calls('topic_pattern', ARRAY['queue.bind(%s, ''default'')', 'queue.unbind(%s, ''default'')'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 256)→54000', '''a*''→22023', '''##''→22023', '''.''→22023', '''a..b''→22023', '''a b''→22023', '''(a)''→22023', 'E''a\n''→22023']);
SELECT pg_temp.calls('role', ARRAY[
    'queue.grant_producer(%s)', 'queue.grant_worker(%s)', 'queue.grant_operator(%s)',
    'queue.revoke_producer(%s)', 'queue.revoke_worker(%s)', 'queue.revoke_operator(%s)'],
    ARRAY['NULL→22004', '''''→22023', '''nobody here''→42704']);
SELECT pg_temp.calls('queue', ARRAY[
    'queue.grant_producer(current_user, %s)', 'queue.grant_worker(current_user, %s)',
    'queue.grant_operator(current_user, %s)'],
    ARRAY['''''→22023', 'repeat(''x'', 129)→54000', '''nowhere''→QX002']);
SELECT pg_temp.calls('queue', ARRAY['queue.revoke_producer(current_user, %s)'], ARRAY['''''→22023', 'repeat(''x'', 129)→54000']);
SELECT pg_temp.calls('worker', ARRAY[
    'queue.claim(worker => %s)', 'CALL queue.take(worker => %s)', 'queue.claim(NULL, ARRAY[''default''], worker => %s)',
    'queue.complete_and_claim(1, 1, worker => %s)', 'queue.complete_many_and_claim(''{1}'', ''{1}'', worker => %s)', 'queue.complete_and_claim(1, 1, NULL, NULL, ARRAY[''default''], %s)'], ARRAY['''''→22023', 'repeat(''x'', 129)→54000']);
SELECT pg_temp.calls('name', ARRAY['queue.unschedule(%s)', 'queue.pause_schedule(%s)', 'queue.resume_schedule(%s)', 'queue.run_schedule(%s)'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 129)→54000', '''nowhere''→42704']);
SELECT pg_temp.calls('name', ARRAY['queue.schedule(%s, ''@daily'', ''default'')'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 129)→54000', 'E''a\nb''→22023']);
SELECT pg_temp.calls('queue', ARRAY['queue.schedule(''fresh'', ''@daily'', %s)'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 129)→54000', '''nowhere''→QX002']);

-- Ids and tokens.
SELECT pg_temp.calls('id', ARRAY[
    'queue.complete(%s, 1)', 'queue.complete_and_claim(%s, 1)', 'queue.fail(%s, 1, ''x'')', 'queue.release(%s, 1)',
    'queue.extend(%s, 1)', 'queue.assert_lease(%s, 1)', 'queue.step(%s, 1, ''s'', ''1'')', 'queue.steps(%s)', 'queue.sleep(%s, 1, now())', 'queue.sleep(%s, 1, ''s'', ''0'')', 'queue.await_event(%s, 1, ''e'')', 'queue.await_task(%s, 1, 2)', 'queue.confirm_cancel(%s, 1)', 'queue.cancel(%s)', 'queue.end_lease(%s)', 'queue.retry(%s)', 'queue.run_again(%s)', 'queue.get(%s)',
    'CALL queue.wait_result(%s)'],
    ARRAY['NULL→22004', '0→22023', '-1→22023', '9223372036854775807→QX003']);
SELECT pg_temp.calls('token', ARRAY[
    'queue.complete(1, %s)', 'queue.complete_and_claim(1, %s)', 'queue.fail(1, %s, ''x'')', 'queue.release(1, %s)',
    'queue.extend(1, %s)', 'queue.assert_lease(1, %s)', 'queue.step(1, %s, ''s'', ''1'')', 'queue.sleep(1, %s, now())', 'queue.sleep(1, %s, ''s'', ''0'')', 'queue.await_event(1, %s, ''e'')', 'queue.await_task(1, %s, 2)', 'queue.confirm_cancel(1, %s)'], ARRAY['NULL→22004', '0→22023', '-1→22023']);

-- Arrays.
SELECT pg_temp.calls('ids', ARRAY['queue.complete_many(%s, ''{1}'')', 'queue.extend_many(%s, ''{1}'')', 'queue.complete_many_and_claim(%s, ''{1}'')', 'queue.fail_many(%s, ''{1}'', ''{x}'')', 'queue.release_many(%s, ''{1}'')'],
    ARRAY['NULL→22004', '''{NULL}''→22004', '''{1,NULL}''→22004', '''{{1},{2}}''→22023', 'array_fill(1::bigint, ARRAY[100001])→54000']);
SELECT pg_temp.calls('tokens', ARRAY['queue.complete_many(''{1}'', %s)', 'queue.extend_many(''{1}'', %s)', 'queue.complete_many_and_claim(''{1}'', %s)', 'queue.fail_many(''{1}'', %s, ''{x}'')', 'queue.release_many(''{1}'', %s)'],
    ARRAY['NULL→22004', '''{NULL}''→22004', '''{}''→22023', '''{1,2}''→22023', '''{{1},{2}}''→22023']);
SELECT pg_temp.calls('results', ARRAY['queue.complete_many(''{1}'', ''{1}'', %s)', 'queue.complete_many_and_claim(''{1}'', ''{1}'', %s)'],
    ARRAY['''{}''→22023', 'ARRAY[''1'',''2'']::jsonb[]→22023']);
SELECT pg_temp.calls('progress', ARRAY['queue.extend_many(''{1}'', ''{1}'', progress => %s)'],
    ARRAY['''{}''→22023', 'ARRAY[''1'',''2'']::jsonb[]→22023']);
SELECT pg_temp.calls('payloads', ARRAY['queue.push_many(''default'', %s)'],
    ARRAY['NULL→22004', '''{NULL}''→22004', 'ARRAY[[''1'',''2'']]::jsonb[]→22023', 'array_fill(''1''::jsonb, ARRAY[100001])→54000']);
SELECT pg_temp.calls('queues', ARRAY['queue.claim(NULL, %s)', 'queue.complete_and_claim(1, 1, NULL, NULL, %s)'],
    ARRAY['NULL::text[]→22004', '''{}''::text[]→22023', '''{NULL}''::text[]→22004', '''{""}''::text[]→22023', 'ARRAY[[''default'']]→22023',
          'ARRAY[repeat(''x'', 129)]→54000', 'ARRAY[''nowhere'']→QX002', 'ARRAY[''default'', ''nowhere'']→QX002']);

-- Times.
SELECT pg_temp.calls('lease', ARRAY[
    'queue.claim(%s::interval)', 'CALL queue.take(lease => %s)', 'queue.claim(%s::interval, ARRAY[''default''])', 'queue.complete_and_claim(1, 1, lease => %s)', 'queue.complete_many_and_claim(''{1}'', ''{1}'', lease => %s)', 'queue.complete_and_claim(1, 1, NULL, %s, ARRAY[''default''])',
    'queue.extend(1, 1, %s)', 'queue.extend_many(''{1}'', ''{1}'', %s)'],
    ARRAY['''0''→22023', '''-1 s''→22023', '''1 mon -30 days''→22023', '''-24 mons 721 days''→22023', '''1000 years''→54000', '''7 days 1 second''→54000']);
SELECT pg_temp.calls('weight', ARRAY['queue.push(''default'', weight => %s)', 'queue.try_push(''default'', weight => %s)',
    'queue.push_many(''default'', ''{1}'', weight => %s)', 'queue.create_batch(''default'', weight => %s)', 'queue.publish(''a'', weight => %s)'],
    ARRAY['NULL→22004', '0→22023', '-1→22023', '1000001→54000']);
SELECT pg_temp.calls('timeout', ARRAY['CALL queue.wait_result(1, %s)', 'CALL queue.wait(timeout => %s)', 'CALL queue.take(timeout => %s)', 'CALL queue.wait(''{default}''::text[], %s)'], ARRAY['NULL→22004', '''-1 s''→22023', '''1000 years''→54000']);
SELECT pg_temp.calls('name', ARRAY['queue.step(1, 1, %s, ''1'')', 'queue.sleep(1, 1, %s, ''0'')'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 513)→54000']);
SELECT pg_temp.calls('event', ARRAY['queue.await_event(1, 1, %s)', 'queue.emit(''default'', %s)'],
    ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 513)→54000']);
SELECT pg_temp.calls('value', ARRAY['queue.step(1, 1, ''s'', %s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('until', ARRAY['queue.sleep(1, 1, %s)'], ARRAY['NULL→22004', '''infinity''→22023', '''-infinity''→22023']);
SELECT pg_temp.calls('duration', ARRAY['queue.sleep(1, 1, ''s'', %s)'], ARRAY['NULL→22004', '''-1 second''→22023', '''101 years''→54000']);
SELECT pg_temp.calls('timeout', ARRAY['queue.await_event(1, 1, ''e'', %s)', 'queue.await_task(1, 1, 2, %s)'],
    ARRAY['''-1 second''→22023', '''101 years''→54000']);
SELECT pg_temp.calls('other', ARRAY['queue.await_task(1, 1, %s)'], ARRAY['NULL→22004', '0→22023', '1→22023']);
SELECT pg_temp.calls('delay', ARRAY['queue.publish(''a'', delay => %s)', 'queue.push(''default'', delay => %s)', 'queue.push_many(''default'', ''{}'', delay => %s)', 'queue.release(1, 1, %s)', 'queue.release_many(''{}'', ''{}'', %s)'],
    ARRAY['''-1 s''→22023', '''-1 mon 29 days''→22023', '''-24 mons 721 days''→22023', '''1000 years''→54000']);
SELECT pg_temp.calls('delay', ARRAY['queue.release(1, 1, %s)', 'queue.release_many(''{}'', ''{}'', %s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('retry_in', ARRAY['queue.fail(1, 1, ''x'', %s)', 'queue.fail_many(''{}'', ''{}'', ''{}'', %s)'], ARRAY['''-1 s''→22023', '''1000 years''→54000']);
SELECT pg_temp.calls('run_at', ARRAY['queue.publish(''a'', run_at => %s)', 'queue.push(''default'', run_at => %s)', 'queue.push_many(''default'', ''{}'', run_at => %s)'],
    ARRAY['''infinity''→22023', '''-infinity''→22023']);
SELECT pg_temp.calls('start_by', ARRAY['queue.publish(''a'', start_by => %s)', 'queue.push(''default'', start_by => %s)', 'queue.push_many(''default'', ''{}'', start_by => %s)'],
    ARRAY['''infinity''→22023', '''-infinity''→22023']);
SELECT pg_temp.calls('ttl', ARRAY['queue.publish(''a'', ttl => %s)', 'queue.push(''default'', ttl => %s)', 'queue.push_many(''default'', ''{}'', ttl => %s)', 'queue.push(''default'', start_by => now(), ttl => %s)'],
    ARRAY['''0''→22023', '''-1 s''→22023', '''-24 mons 721 days''→22023']);
SELECT pg_temp.calls('ttl', ARRAY['queue.publish(''a'', ttl => %s)', 'queue.push(''default'', ttl => %s)', 'queue.push_many(''default'', ''{}'', ttl => %s)'],
    ARRAY['''1000 years''→54000']);
SELECT pg_temp.calls('cron', ARRAY['queue.schedule(''fresh'', %s, ''default'')', 'queue.schedule_preview(%s)'],
    ARRAY['NULL→22004', '''''→22023', '''* * *''→22023', '''60 * * * *''→22023', '''0 0 30 2 *''→22023', 'repeat(''*'', 257)→54000']);
SELECT pg_temp.calls('timezone', ARRAY['queue.schedule(''fresh'', ''@daily'', ''default'', timezone => %s)', 'queue.schedule_preview(''@daily'', %s)'],
    ARRAY['NULL→22004', '''''→22023', '''Mars/Olympus''→22023', '''EST''→22023', 'repeat(''x/'', 5000)→22023']);
SELECT pg_temp.calls('since', ARRAY['queue.schedule_preview(''@daily'', since => %s)'],
    ARRAY['''infinity''→22023', '''-infinity''→22023', '''5000-01-01''→22023', '''0044-03-15 BC''→22023']);
-- An interval without end exists from PostgreSQL 17 on.
SELECT count(c::text) IN (0, 6) FROM (SELECT pg_temp.calls(a, ARRAY[c], ARRAY['''infinity''→22023', '''-infinity''→22023'])
FROM (VALUES ('lease', 'queue.claim(%s::interval)'), ('lease', 'queue.extend(1, 1, %s)'), ('delay', 'queue.push(''default'', delay => %s)'),
             ('delay', 'queue.release(1, 1, %s)'), ('retry_in', 'queue.fail(1, 1, ''x'', %s)'),
             ('timeout', 'CALL queue.wait_result(1, %s)')) AS v (a, c)
WHERE current_setting('server_version_num')::int >= 170000) AS added (c);

-- Numbers, words and JSON.
SELECT pg_temp.calls('max_tasks', ARRAY['queue.claim(max_tasks => %s)', 'queue.claim(NULL, ARRAY[''default''], %s)', 'queue.complete_and_claim(1, 1, max_tasks => %s)', 'queue.complete_many_and_claim(''{1}'', ''{1}'', max_tasks => %s)', 'queue.complete_and_claim(1, 1, NULL, NULL, ARRAY[''default''], NULL, %s)'],
    ARRAY['NULL→22004', '0→22023', '-1→22023', '2147483647→54000']);
SELECT pg_temp.calls('max_tasks', ARRAY['queue.redrive(''default'', %s)'], ARRAY['0→22023', '-1→22023']);
SELECT pg_temp.calls(v.argument, ARRAY[format('queue.publish(''a'', %s => %%s)', v.argument), format('queue.push(''default'', %s => %%s)', v.argument),
                                       format('queue.push_many(''default'', ''{}'', %s => %%s)', v.argument)], v.bad)
FROM (VALUES ('priority', ARRAY['NULL→22004']),
             ('max_attempts', ARRAY['0→22023', '-1→22023', '10001→54000']),
             ('headers', ARRAY['''[]''→22023', '''"x"''→22023', '''1''→22023', '''null''→22023']),
             ('on_duplicate', ARRAY['NULL→22004', '''''→22023', '''perhaps''→22023', '''replace''→22023', '''reschedule''→22023', '''error''→22023']),
             ('key', ARRAY['''''→22023', 'repeat(''x'', 513)→54000']), ('group_key', ARRAY['''''→22023', 'repeat(''x'', 513)→54000'])) AS v (argument, bad);
SELECT pg_temp.calls(v.argument, ARRAY[format('queue.push(''default'', %s => %%s)', v.argument), format('queue.push_many(''default'', ''{}'', %s => %%s)', v.argument)], v.bad)
FROM (VALUES ('key_ttl_from', ARRAY['''push''→22023', '''''→22023', '''start''→22023']), ('key_ttl', ARRAY['''1 s''→22023', '''-1 s''→22023', '''1000 years''→54000']),
             ('on_predecessor_failure', ARRAY['''cancel''→22023', '''''→22023', '''perhaps''→22023']),
             ('after', ARRAY['''{NULL}''→22004', '''{0}''→22023', '''{-1}''→22023', '''{{1},{2}}''→22023', 'array_fill(1::bigint, ARRAY[100001])→54000']),
             ('backoff', ARRAY['''[]''→22023', '''1''→22023', '''null''→22023', '''{"kind": "cubic"}''→22023', '''{"base": 1}''→22023', '''{"base": "-1 s"}''→22023',
                               '''{"max": "2 years"}''→54000', '''{"jitter": 2}''→22023', '''{"step": 1}''→22023'])) AS v (argument, bad);
SELECT pg_temp.calls('key_ttl', ARRAY['queue.push(''default'', key => ''k'', key_ttl => %s)', 'queue.try_push(''default'', key => ''k'', key_ttl => %s)'], ARRAY['''0''→22023']);
SELECT pg_temp.calls('key_ttl_from', ARRAY['queue.push(''default'', key => ''k'', key_ttl => ''1 s'', key_ttl_from => %s)', 'queue.try_push(''default'', key => ''k'', key_ttl => ''1 s'', key_ttl_from => %s)', 'queue.try_push(''default'', key_ttl_from => %s)'], ARRAY['''''→22023', '''start''→22023']);
SELECT pg_temp.calls('after', ARRAY['queue.push(''default'', after => %s)', 'queue.try_push(''default'', key => ''k'', after => %s)'], ARRAY['''{9223372036854775807}''→QX003']);
SELECT pg_temp.calls('keys', ARRAY['queue.push_many(''default'', ARRAY[''1'']::jsonb[], keys => %s)'],
    ARRAY['''{}''→22023', '''{a,b}''→22023', '''{{a}}''→22023', '''{""}''→22023', 'ARRAY[repeat(''x'', 513)]→54000']);
SELECT pg_temp.calls('group_keys', ARRAY['queue.push_many(''default'', ARRAY[''1'']::jsonb[], group_keys => %s)'],
    ARRAY['''{}''→22023', '''{a,b}''→22023', '''{{a}}''→22023', '''{""}''→22023', 'ARRAY[repeat(''x'', 513)]→54000']);
SELECT pg_temp.calls('keys', ARRAY['queue.push_many(''default'', ARRAY[''1'']::jsonb[], key => ''k'', keys => %s)'], ARRAY['''{a}''→22023']);
SELECT pg_temp.calls('group_keys', ARRAY['queue.push_many(''default'', ARRAY[''1'']::jsonb[], group_key => ''k'', group_keys => %s)'], ARRAY['''{a}''→22023']);
SELECT pg_temp.calls('batch', ARRAY['queue.push(''default'', batch => %s)', 'queue.try_push(''default'', batch => %s)', 'queue.push_many(''default'', ''{1}'', batch => %s)', 'queue.create_batch(''default'', batch => %s)', 'queue.seal_batch(%s)'],
    ARRAY['0→22023', '-1→22023', '999999→QX007']);
SELECT pg_temp.calls('batch', ARRAY['queue.seal_batch(%s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('payload', ARRAY['queue.push(''default'', %s)', 'queue.try_push(''default'', %s)', 'queue.try_push(''default'', %s, key => ''k'')', 'queue.schedule(''fresh'', ''@daily'', ''default'', %s)', 'queue.publish(''a'', %s)', 'queue.emit(''default'', ''e'', %s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('runs', ARRAY['queue.schedule_preview(''@daily'', runs => %s)'], ARRAY['NULL→22004', '0→22023', '-1→22023', '10001→54000']);
SELECT pg_temp.calls('delay', ARRAY['queue.push(''default'', run_at => now(), delay => %s)'], ARRAY['''1 s''→22023']);
SELECT pg_temp.calls('error', ARRAY['queue.fail(1, 1, %s)'], ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 1048577)→54000']);
SELECT pg_temp.calls('permanent', ARRAY['queue.fail(1, 1, ''x'', permanent => %s)', 'queue.fail_many(''{}'', ''{}'', ''{}'', permanent => %s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('details', ARRAY['queue.fail(1, 1, ''x'', details => %s)'], ARRAY['to_jsonb(repeat(''x'', 65536))→54000']);
SELECT pg_temp.calls('details', ARRAY['queue.fail_many(''{1}'', ''{1}'', ''{x}'', details => %s)'], ARRAY['''{}''→22023', 'ARRAY[''1'',''2'']::jsonb[]→22023', 'ARRAY[to_jsonb(repeat(''x'', 65536))]→54000']);
SELECT pg_temp.calls('errors', ARRAY['queue.fail_many(''{1}'', ''{1}'', %s)'], ARRAY['NULL→22004', '''{NULL}''→22004', '''{}''→22023', '''{a,b}''→22023', '''{""}''→22023', 'ARRAY[repeat(''x'', 1048577)]→54000']);
SELECT pg_temp.calls('retry_in', ARRAY['queue.fail(1, 1, ''x'', %s, true)', 'queue.fail_many(''{}'', ''{}'', ''{}'', %s, true)'], ARRAY['''1 s''→22023']);
SELECT pg_temp.calls('force', ARRAY['queue.drop(''default'', %s)'], ARRAY['NULL→22004']);
SELECT pg_temp.calls('tasks', ARRAY['queue.push_tasks(%s)'], ARRAY['NULL→22004', '''{}''→22023', '''1''→22023', '''[1]''→22023', '''[[]]''→22023', '''[{"queue": "default", "x": 1}]''→22023',
    '''[{"queue": "default", "priority": "x"}]''→22023', '''[{"queue": "default", "run_at": "soon"}]''→22023', '''[{"queue": "default", "after": 1}]''→22023', '''[{"queue": "default", "key": 1}]''→22023', 'to_jsonb(array_fill(1, ARRAY[100001]))→54000']);
SELECT pg_temp.calls('queue', ARRAY['queue.push_tasks(%s)'], ARRAY['''[{}]''→22004', '''[{"queue": ""}]''→22023', '''[{"queue": "default"}, {"queue": "nowhere"}]''→QX002']);
SELECT pg_temp.calls('after', ARRAY['queue.push_tasks(%s)'], ARRAY['''[{"queue": "default", "after": [null]}]''→22004', '''[{"queue": "default", "after": [0]}]''→22023', '''[{"queue": "default", "after": [9223372036854775807]}]''→QX003']);
SELECT pg_temp.calls('key', ARRAY['queue.cancel(''default'', %s)'], ARRAY['NULL→22004', '''''→22023', 'repeat(''x'', 513)→54000']);
SELECT pg_temp.calls('if_not_exists', ARRAY['queue.create(''fresh'', if_not_exists => %s)', 'queue.create(''default'', if_not_exists => %s)'], ARRAY['NULL→22004']);

-- Options.
SELECT pg_temp.calls('options', ARRAY['queue.create(''fresh'', %s)', 'queue.configure(''default'', %s)'],
    ARRAY['NULL→22004', '''[]''→22023', '''"x"''→22023', '''1''→22023', '''null''→22023', '''{"": 1}''→22023', '''{"Lease": "1 s"}''→22023',
          '''{"rate_limit": 1}''→22023', '''{"group_rate_limit": 1}''→22023', '''{"rate_period": "1 s"}''→22023']);
INSERT INTO cases
SELECT format('queue.%s, %%s)', f), part, format('''{"%s": %s}''', part, value), code
FROM unnest(ARRAY['create(''fresh''', 'configure(''default''']) AS f, (VALUES
    ('lease', '1', '22023'), ('lease', '"soon"', '22023'), ('lease', '"0"', '22023'), ('lease', '"-1 s"', '22023'), ('lease', '"-24 mons 721 days"', '22023'), ('lease', '[]', '22023'), ('lease', '"2 years"', '54000'),
    ('max_attempts', '0', '22023'), ('max_attempts', '-1', '22023'), ('max_attempts', '1.5', '22023'), ('max_attempts', '"3"', '22023'), ('max_attempts', '10001', '22023'),
    ('max_running', '0', '22023'), ('max_running', '10001', '22023'), ('max_running', '"3"', '22023'), ('max_running_per_group', '0', '22023'), ('max_running_per_group', '0.5', '22023'),
    ('rate_limit', '0', '22023'), ('rate_limit', '10001', '22023'), ('group_rate_limit', '0', '22023'), ('group_rate_limit', '10001', '22023'), ('rate_period', '"0"', '22023'), ('rate_period', '60', '22023'), ('rate_period', '"2 years"', '54000'),
    ('delayed_head', '"jump"', '22023'), ('delayed_head', '1', '22023'), ('fair_groups', '"yes"', '22023'), ('ageing', '"0"', '22023'), ('ageing', '10', '22023'),
    ('ttl', '"0"', '22023'), ('ttl', '"2 years"', '54000'), ('on_expired', '"drop"', '22023'), ('max_queued', '0', '22023'), ('max_queued', '3000000000', '22023'),
    ('key_ttl', '"0"', '22023'), ('key_ttl', '[]', '22023'), ('on_predecessor_failure', '"ignore"', '22023'), ('on_predecessor_failure', '{}', '22023'),
    ('keep_history', '1', '22023'), ('keep_history', '"yes"', '22023'), ('keep_payloads', '1', '22023'), ('durable_leases', '"yes"', '22023'), ('durable_leases', 'true', '22023'), ('backoff', '1', '22023'), ('backoff', '[]', '22023')) AS v (part, value, code);
INSERT INTO cases
SELECT format('queue.%s, %%s)', f), 'backoff.' || part, format('''{"backoff": {"%s": %s}}''', part, value), code
FROM unnest(ARRAY['create(''fresh''', 'configure(''default''']) AS f, (VALUES
    ('kind', '"cubic"', '22023'), ('kind', '1', '22023'), ('base', '1', '22023'), ('base', '"-1 s"', '22023'), ('base', '"-24 mons 721 days"', '22023'), ('max', '"x"', '22023'), ('max', '"2 years"', '54000'),
    ('jitter', '-0.1', '22023'), ('jitter', '1.1', '22023'), ('jitter', '"x"', '22023'), ('step', '1', '22023')) AS v (part, value, code);
SELECT pg_temp.calls('options', ARRAY['queue.schedule(''fresh'', ''@daily'', ''default'', options => %s)'],
    ARRAY['NULL→22004', '''[]''→22023', '''null''→22023', '''{"": 1}''→22023', '''{"run_at": "now"}''→22023', '''{"Priority": 1}''→22023']);
INSERT INTO cases
SELECT 'queue.schedule(''fresh'', ''@daily'', ''default'', options => %s)', part, format('''{"%s": %s}''', part, value), code
FROM (VALUES
    ('missed_runs', '"some"', '22023'), ('missed_runs', '1', '22023'), ('missed_runs', 'true', '22023'),
    ('priority', '1.5', '22023'), ('priority', '"1"', '22023'), ('priority', '3000000000', '22023'), ('delay', '1', '22023'), ('delay', '"soon"', '22023'),
    ('weight', '0', '22023'), ('weight', '"1"', '22023'), ('delay', '"-1 s"', '22023'), ('delay', '"2 years"', '54000'), ('max_attempts', '0', '22023'), ('max_attempts', '10001', '22023'),
    ('headers', '[]', '22023'), ('headers', '"x"', '22023'), ('key', '1', '22023'), ('group_key', '{}', '22023'),
    ('on_duplicate', '1', '22023'), ('on_duplicate', '"perhaps"', '22023'), ('on_duplicate', '"replace"', '22023')) AS v (part, value, code);

-- Filters, and the other arguments of the bulk procedures.
CREATE TEMP TABLE bulk AS SELECT format('CALL queue.%s_where(%%s%s', verb, more) AS call FROM (VALUES
    ('cancel', ''), ('run_now', ''), ('redrive', ''), ('reprioritise', ', priority => 1'), ('move', ', to_queue => ''default'''), ('purge', '')) AS v (verb, more);
SELECT count(pg_temp.calls('filter', ARRAY[call || ')'],
    ARRAY['NULL→22004', '''[]''→22023', '''"x"''→22023', '''null''→22023', '''{}''→22023', '''{"": 1}''→22023', '''{"Queue": "default"}''→22023',
          '''{"queue": "nowhere"}''→QX002', '''{"queue": ""}''→QX002', '''{"state": "completed"}''→22023'])) FROM bulk;
INSERT INTO cases SELECT b.call || ')', v.part, format('''{"%s": %s}''', v.part, v.value), v.code FROM bulk AS b, (VALUES
    ('queue', '1', '22023'), ('queue', 'null', '22023'), ('state', '1', '22023'), ('state', 'null', '22023'), ('state', '[]', '22023'), ('all', 'false', '22023'), ('all', '"yes"', '22023'),
    ('older_than', '1', '22023'), ('older_than', '"soon"', '22023'), ('older_than', '"-1 s"', '22023'), ('older_than', '"-24 mons 721 days"', '22023'), ('older_than', '"1001 years"', '22023'), ('newer_than', '"99999999999999 years"', '22023'),
    ('key', '1', '22023'), ('key', '"\\"', '22023'), ('group_key', '{}', '22023'), ('worker', '1', '22023'), ('error', 'true', '22023'), ('headers', '1', '22023'), ('headers', '[]', '22023'),
    ('ids', '1', '22023'), ('ids', '["1"]', '22023'), ('ids', '[0]', '22023'), ('ids', '[1.5]', '22023'), ('ids', '[9223372036854775808]', '22023'), ('ids', '[null]', '22023'), ('ids', '[[1]]', '22023')) AS v (part, value, code);
SELECT count(pg_temp.calls('filter', ARRAY[call || ')'], ARRAY['jsonb_build_object(''ids'', array_fill(1, ARRAY[100001]))→54000'])) FROM bulk;
SELECT count(pg_temp.calls('dry_run', ARRAY[format(call, '''{"all": true}''') || ', dry_run => %s)'], ARRAY['NULL→22004'])) FROM bulk;
SELECT count(pg_temp.calls('batch_size', ARRAY[format(call, '''{"all": true}''') || ', batch_size => %s)'], ARRAY['NULL→22004', '0→22023', '-1→22023', '100001→54000'])) FROM bulk;
SELECT pg_temp.calls('priority', ARRAY['CALL queue.reprioritise_where(''{"all": true}'', %s)'], ARRAY['NULL→22004']);

-- A running task, a waiting task, a dead letter and a schedule. The cases below must not change them.
SELECT queue.schedule('kept', '@yearly', 'default') > now() AS ahead;
SELECT queue.push('default', '"running"'), queue.push('default', '"queued"'), queue.push('default', '"dead"', priority => -1);
SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim();
SELECT count(*) FROM queue.claim('1 hour');
CREATE FUNCTION pg_temp.everything() RETURNS text LANGUAGE sql AS $$
    SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
        SELECT a::text FROM queue.all_tasks AS a UNION ALL SELECT q::text FROM queue.queues AS q
        UNION ALL SELECT k::text FROM queue_internal.keys AS k UNION ALL SELECT d::text FROM queue_internal.dependencies AS d
        UNION ALL SELECT s::text FROM queue_internal.slots AS s UNION ALL SELECT s::text FROM queue_internal.rate_buckets AS s
        UNION ALL SELECT s::text FROM queue_internal.group_starts AS s
        UNION ALL SELECT s::text FROM queue.schedules AS s
        UNION ALL SELECT b::text FROM queue.bindings AS b
        UNION ALL SELECT h::text FROM queue.handlers AS h
        UNION ALL SELECT s::text FROM queue_internal.steps AS s UNION ALL SELECT e::text FROM queue_internal.emitted AS e
        UNION ALL SELECT r.rolname || coalesce(p.polname, '') FROM pg_roles AS r LEFT JOIN pg_policy AS p ON r.oid = ANY (p.polroles)) AS all_of_it (line)
$$;
SELECT pg_temp.everything() AS before \gset

CREATE TEMP TABLE outcomes AS
SELECT *, pg_temp.refused(format(CASE WHEN call LIKE 'CALL%' THEN '' ELSE 'SELECT ' END || call, value)) AS said FROM cases;
SELECT count(*) >= 600 AS enough, count(DISTINCT (call, value)) = count(*) AS distinct_cases FROM outcomes;
SELECT format(call, left(value, 40)) AS wrong_code, code, said FROM outcomes WHERE left(said, 5) <> code;
SELECT format(call, left(value, 40)) AS argument_not_named, said FROM outcomes
WHERE code NOT LIKE 'QX%' AND code <> '42704' AND said NOT LIKE '%"' || argument || '"%' AND said NOT LIKE '%"' || argument || '.%';
SELECT pg_temp.everything() = :'before' AS nothing_changed;
