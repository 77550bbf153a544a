//! Groups in transactions that stay open, and while an old snapshot keeps the entries of their finished tasks: an admission does not read them again, and no
//! task that comes late is passed over.

use postgres::Client;
use postgres::error::SqlState;
use queue_ext_tests::{Cluster, Edition, SOON, Settings, Worker, eventually, number, run};

/// How many tasks run before the others come.
const FINISHED: i64 = 600;
/// An admission that has read more than forty entries, and a few more each time, skips them from then on. All of those of
/// the finished tasks are more than this, in each of several lookups.
const FEW: i64 = 400;

/// Runs a test with the extension and with the SQL-only edition. Nobody sweeps, so that nothing is found by chance.
fn in_both_editions(name: &str, test: impl Fn(&Cluster)) {
    for edition in [Edition::FastPath, Edition::SqlOnly] {
        let cluster = edition.cluster(&format!("{name}-{}", edition.name()), Worker::Off);
        edition.install(&cluster, "postgres");
        println!("{}", edition.name());
        test(&cluster);
    }
}

/// The payload, id and token of the next task.
fn claim(client: &mut Client) -> Option<(String, i64, i64)> {
    let query = "SELECT payload #>> '{}', id, token FROM queue.claim('1 hour', 'q')";
    client.query_opt(query, &[]).expect("claim").map(|row| (row.get(0), row.get(1), row.get(2)))
}

/// Completes the next tasks one by one; returns how many entries each end has read to admit the one after it.
fn complete(client: &mut Client, tasks: i64) -> Vec<i64> {
    let read = "SELECT queue_internal.group_entries_passed()";
    (0..tasks)
        .map(|_| {
            let (_, id, token) = claim(client).expect("a task");
            let mut transaction = client.transaction().expect("begin");
            let before: i64 = transaction.query_one(read, &[]).expect("count").get(0);
            transaction.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
            let after: i64 = transaction.query_one(read, &[]).expect("count").get(0);
            transaction.commit().expect("commit");
            after - before
        })
        .collect()
}

/// A queue with a group of many tasks, and a session that keeps an old snapshot.
fn with_old_snapshot(cluster: &Cluster, options: &str) -> (Client, Client) {
    let (mut client, mut old) = (cluster.connect(), cluster.connect());
    run(&mut client, &format!("SELECT queue.create('q', '{options}')"));
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()");
    (client, old)
}

fn push_many(client: &mut Client) {
    let push = "INSERT INTO queue.tasks (queue, payload, group_key)
                SELECT 'q', to_jsonb(n), 'g' FROM generate_series(1, 2000) AS n";
    run(client, push);
}

/// The smallest id that an admission looks for.
fn head(client: &mut Client) -> i64 {
    let query = "SELECT first_id FROM queue_internal.group_heads WHERE queue = 'q' AND group_key = 'g'";
    client.query_one(query, &[]).expect("a head").get(0)
}

#[test]
fn under_an_old_snapshot_the_end_of_a_task_does_not_read_all_that_its_group_has_finished() {
    in_both_editions("groups-read", |cluster| {
        let (mut client, _old) = with_old_snapshot(cluster, "{}");
        push_many(&mut client);
        let mut read = complete(&mut client, FINISHED);
        read.sort_unstable();
        let (middle, most) = (read[read.len() / 2], read[read.len() - 1]);
        println!("an end reads {middle} entries in the median, and {most} at most");
        // While the machine is busy, the head follows later.
        assert!(middle < FEW, "half of the ends have read more than {middle} entries");
    });
}

#[test]
fn a_task_that_is_pushed_while_the_only_one_of_its_group_ends_has_its_turn_after_that() {
    in_both_editions("groups-push", |cluster| {
        let (mut client, mut other) = (cluster.connect(), cluster.connect());
        run(&mut client, "SELECT queue.create('q'); SELECT queue.push('q', '\"first\"', group_key => 'g')");
        let (_, id, token) = claim(&mut client).expect("a task");
        let mut ending = client.transaction().expect("begin");
        ending.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        run(&mut other, "SELECT queue.push('q', '\"second\"', group_key => 'g')");
        // A refusal does not wait for the group's lock.
        let refused = other
            .batch_execute("SET statement_timeout = '10s'; SELECT queue.drop('q')")
            .expect_err("it has tasks");
        assert_eq!(refused.code(), Some(&SqlState::OBJECT_IN_USE), "{refused:?}");
        // It looks at the group, in which the first task still runs.
        assert_eq!(claim(&mut other), None);
        ending.commit().expect("commit");
        assert_eq!(number(&mut other, "SELECT count(*) FROM queue_internal.events WHERE group_key = 'g'"), 1);
        eventually("the second task", SOON, || {
            claim(&mut other).is_some_and(|(payload, ..)| payload == "second")
        });
    });
}

/// It has the event of a push locked, because it has postponed it.
#[test]
fn a_claim_in_a_transaction_that_stays_open_holds_up_no_group() {
    in_both_editions("groups-postponed", |cluster| {
        let [mut ending, mut long, mut other] = [(); 3].map(|()| cluster.connect());
        run(&mut other, "SELECT queue.create('q'); SELECT queue.push('q', group_key => 'g')");
        let (_, id, token) = claim(&mut other).expect("a task");
        let mut ending = ending.transaction().expect("begin");
        ending.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        run(&mut other, "SELECT queue.push('q', '\"next\"', group_key => 'g')");
        run(&mut long, "BEGIN");
        assert_eq!(claim(&mut long), None);
        ending.commit().expect("commit");
        let locked = "SELECT count(*) - (SELECT count(*) FROM (SELECT FROM queue_internal.events FOR UPDATE SKIP LOCKED) AS e)
                      FROM queue_internal.events";
        assert_eq!(number(&mut other, locked), 1);
        run(&mut other, "CALL queue.maintain()");
        assert_eq!(claim(&mut other).map(|task| task.0).as_deref(), Some("next"));
    });
}

#[test]
fn many_events_of_a_group_that_is_locked_cost_no_more_than_a_few() {
    in_both_editions("groups-merged", |cluster| {
        let [mut ending, mut client] = [(); 2].map(|()| cluster.connect());
        run(&mut client, "SELECT queue.create('q'); SELECT queue.push('q', group_key => 'g')");
        let (_, id, token) = claim(&mut client).expect("a task");
        let mut ending = ending.transaction().expect("begin");
        ending.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        for _ in 0..300 {
            run(&mut client, "SELECT queue.push('q', group_key => 'g')");
        }
        run(&mut client, "CALL queue.maintain()");
        let events = number(&mut client, "SELECT count(*) FROM queue_internal.events WHERE group_key = 'g'");
        assert!((1..=4).contains(&events), "{events} events");
        ending.commit().expect("commit");
        eventually("the next task", SOON, || claim(&mut client).is_some());
    });
}

#[test]
fn a_session_that_waits_does_not_spin_while_a_task_and_an_event_are_locked() {
    let cluster = Edition::FastPath.cluster("groups-event", Worker::Off);
    Edition::FastPath.install(&cluster, "postgres");
    let [mut client, mut event, mut waiting] = [(); 3].map(|()| cluster.connect());
    run(&mut client, "SELECT queue.create('q'); SELECT queue.push('q')");
    run(&mut client, "BEGIN; SELECT FROM queue.tasks FOR UPDATE");
    assert_eq!(claim(&mut waiting), None);
    run(&mut waiting, "SELECT queue.push('q', group_key => 'g')");
    // It has the event of the push locked.
    run(&mut event, "BEGIN");
    assert!(claim(&mut event).is_some());
    let begun = std::time::Instant::now();
    let mut rounds = 0;
    while begun.elapsed().as_millis() < 1000 {
        assert_eq!(claim(&mut waiting), None);
        run(&mut waiting, "CALL queue.wait('q', '100 ms')");
        rounds += 1;
    }
    println!("{rounds} rounds");
    assert!(rounds <= 40, "it has claimed {rounds} times in a second");
}

#[test]
fn a_session_that_waits_does_not_spin_while_another_has_a_task_that_only_sql_can_claim() {
    let cluster = Edition::FastPath.cluster("groups-wait", Worker::Off);
    Edition::FastPath.install(&cluster, "postgres");
    let (mut client, mut other) = (cluster.connect(), cluster.connect());
    run(&mut client, "SELECT queue.create('q', '{\"delayed_head\": \"pass\"}')");
    run(
        &mut client,
        "SELECT queue.push('q', group_key => 'g', delay => '20 ms') FROM generate_series(1, 2); SELECT pg_sleep(0.03)",
    );
    let mut claiming = client.transaction().expect("begin");
    claiming.execute("SELECT queue.claim('1 hour', 'q')", &[]).expect("claim");
    let begun = std::time::Instant::now();
    let mut rounds = 0;
    while begun.elapsed().as_millis() < 500 {
        assert_eq!(claim(&mut other), None);
        run(&mut other, "CALL queue.wait('q', '100 ms')");
        rounds += 1;
    }
    println!("{rounds} rounds");
    // Two in each pause, which is 20 ms at least.
    assert!(rounds <= 60, "it has claimed {rounds} times in half a second");
}

/// Natively, claims leave a task whose start deadline has passed to the worker.
#[test]
fn without_a_worker_a_task_whose_start_deadline_has_passed_does_not_hold_up_its_group() {
    in_both_editions("groups-deadline", |cluster| {
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.create('q')");
        let push = "SELECT queue.push('q', to_jsonb($1::text), group_key => 'g', start_by => clock_timestamp() + $2::text::interval)";
        for (payload, start_by) in
            [("first", None), ("late", Some("1 ms")), ("late", Some("1 ms")), ("last", None)]
        {
            client.execute(push, &[&payload, &start_by]).expect("push");
        }
        complete(&mut client, 1);
        assert_eq!(claim(&mut client).expect("a task").0, "last");
        // The same, if it is too late only once it is admitted.
        run(
            &mut client,
            "SELECT queue.create('r'), queue.push('r', '\"late\"', group_key => 'g', start_by => clock_timestamp() + '50 ms')",
        );
        run(
            &mut client,
            "SELECT queue.push('r', '\"last\"', group_key => 'g'); SELECT queue_internal.admit_next('r', 'g', 'infinity')",
        );
        run(&mut client, "SELECT pg_sleep(0.05)");
        let next = "SELECT payload #>> '{}' FROM queue.claim('1 hour', 'r')";
        assert_eq!(client.query_one(next, &[]).expect("a task").get::<_, String>(0), "last");
    });
}

#[test]
fn a_task_that_comes_late_with_a_smaller_id_is_next_in_its_group() {
    type Come = fn(&mut Client, &mut Client);
    let late: [(&str, &str, Come, Come); 6] = [
        (
            "a push that commits late",
            "{}",
            |_, late| run(late, "BEGIN; SELECT queue.push('q', '\"late\"', group_key => 'g')"),
            |_, late| run(late, "COMMIT"),
        ),
        (
            "a dead letter that is put back",
            "{}",
            |client, _| {
                run(client, "SELECT queue.push('q', '\"late\"', group_key => 'g')");
                let (_, id, token) = claim(client).expect("a task");
                let fail = "SELECT queue.fail($1, $2, 'no', permanent => true)";
                client.execute(fail, &[&id, &token]).expect("fail");
            },
            |client, _| run(client, "SELECT queue.redrive('q')"),
        ),
        (
            "a dead letter that is put back with an earlier one, which is cancelled",
            "{}",
            |client, _| {
                for payload in ["first", "late"] {
                    run(client, &format!("SELECT queue.push('q', '\"{payload}\"', group_key => 'g')"));
                    let (_, id, token) = claim(client).expect("a task");
                    let fail = "SELECT queue.fail($1, $2, 'no', permanent => true)";
                    client.execute(fail, &[&id, &token]).expect("fail");
                }
            },
            |client, _| {
                run(
                    client,
                    "BEGIN;
                     SELECT queue.redrive('q');
                     SELECT queue.cancel((SELECT min(id) FROM queue.tasks WHERE payload = '\"first\"'));
                     COMMIT",
                );
                // A part of queue.maintain(), which would also admit the task.
                run(client, "SELECT queue_internal.retire_groups()");
            },
        ),
        (
            "a task of another queue",
            "{}",
            |client, _| {
                run(
                    client,
                    "SELECT queue.create('other'); SELECT queue.push('other', '\"late\"', group_key => 'g')",
                );
            },
            |client, _| run(client, "CALL queue.move_where('{\"queue\": \"other\"}', 'q')"),
        ),
        (
            "a delayed task that others no longer pass",
            "{\"delayed_head\": \"pass\"}",
            |_, late| {
                run(late, "BEGIN; SELECT queue.push('q', '\"late\"', group_key => 'g', delay => '1 hour')")
            },
            |client, late| {
                run(late, "COMMIT");
                run(client, "SELECT queue.configure('q', '{\"delayed_head\": \"block\"}')");
                run(client, "UPDATE queue.tasks SET run_at = clock_timestamp() WHERE payload = '\"late\"'");
            },
        ),
        (
            "a task that came without triggers, which the sweep finds",
            "{}",
            |_, late| run(late, "BEGIN; SELECT nextval('queue.tasks_id_seq')"),
            |client, _| {
                run(
                    client,
                    "SET session_replication_role = replica;
                     INSERT INTO queue.tasks (id, queue, payload, group_key, admission) OVERRIDING SYSTEM VALUE
                     VALUES (0, 'q', '\"late\"', 'g', 2);
                     RESET session_replication_role;
                     -- About something else.
                     INSERT INTO queue_internal.events (queue, group_key) VALUES ('q', 'g')",
                );
                run(client, "CALL queue.maintain()");
            },
        ),
    ];
    for (what, options, before, after) in late {
        println!("{what}");
        in_both_editions("groups-late", |cluster| {
            let (mut client, _old) = with_old_snapshot(cluster, options);
            let mut late = cluster.connect();
            before(&mut client, &mut late);
            push_many(&mut client);
            complete(&mut client, FINISHED);
            // The transaction that pushes it has an id that nobody else can see yet.
            let is_open = what.contains("commits late") || what.contains("delayed");
            assert_eq!(head(&mut client) > 10, !is_open, "{what}: the head is {}", head(&mut client));
            let (_, id, token) = claim(&mut client).expect("a task that runs meanwhile");
            after(&mut client, &mut late);
            // While the end of a task stays open, a claim postpones the event of the late one.
            let mut ending = client.transaction().expect("begin");
            ending.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
            assert_eq!(claim(&mut late), None);
            ending.commit().expect("commit");
            let (next, id, token) = claim(&mut client).expect("a task");
            assert_eq!(next, "late", "{what}: another task of the group came first");
            client.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
            run(&mut late, "ROLLBACK");
            complete(&mut client, 100);
            assert!(head(&mut client) > 10, "{what}: the head stays behind");
        });
    }
}

/// The first call stores the last id, and the second one finds it settled. Both skip the pause.
fn settled_id(client: &mut Client) -> i64 {
    let look = "SELECT setval('queue_internal.settling_due_seq', 1); SELECT queue_internal.settled_id()";
    run(client, look);
    run(client, look);
    number(client, "SELECT queue_internal.settled_id()")
}

#[test]
fn an_id_is_settled_once_all_that_may_push_a_smaller_one_have_ended() {
    for edition in [Edition::FastPath, Edition::SqlOnly] {
        let preload = edition == Edition::FastPath;
        let extra = if preload {
            "queue.worker_enabled = off\nmax_prepared_transactions = 5"
        } else {
            "max_prepared_transactions = 5"
        };
        let name = format!("groups-settled-{}", edition.name());
        let mut cluster = Cluster::start_with(&name, &Settings { preload, extra });
        edition.install(&cluster, "postgres");
        let [mut client, mut open, mut other] = [(); 3].map(|()| cluster.connect());
        run(&mut client, "SELECT queue.push('default') FROM generate_series(1, 5)");
        assert_eq!(settled_id(&mut client), 5);
        run(&mut open, "BEGIN; SAVEPOINT a; SELECT queue.push('default'); RELEASE a");
        run(&mut client, "SELECT queue.push('default')");
        assert_eq!(settled_id(&mut client), 5, "an open push");
        // Its own push as well, which others do not see.
        assert_eq!(settled_id(&mut open), 5, "its own push");
        assert_eq!(settled_id(&mut client), 5, "its own push, as noted by itself");
        run(&mut open, "COMMIT");
        assert_eq!(settled_id(&mut client), 7);
        // An INSERT that waits has taken its id, and has locked the table before that.
        run(&mut other, "BEGIN; SELECT pg_advisory_xact_lock(1)");
        run(
            &mut client,
            "CREATE FUNCTION public.halt() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
             CREATE TRIGGER halt BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.halt()",
        );
        std::thread::scope(|scope| {
            let push = scope.spawn(|| run(&mut open, "SELECT queue.push('default')"));
            eventually("it waits", SOON, || {
                number(
                    &mut client,
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
                ) == 1
            });
            assert_eq!(settled_id(&mut client), 7, "a push whose row is not there yet");
            run(&mut other, "ROLLBACK");
            push.join().expect("push");
        });
        assert_eq!(settled_id(&mut client), 8);
        // A rollback keeps the settled id, and restores the stored one.
        run(&mut other, "BEGIN");
        assert_eq!(settled_id(&mut other), 8);
        run(&mut other, "ROLLBACK");
        assert_eq!(settled_id(&mut client), 8);
        // A prepared transaction keeps its name.
        run(&mut open, "BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'a'");
        run(&mut client, "SELECT queue.push('default')");
        assert_eq!(settled_id(&mut client), 8, "a prepared push");
        run(&mut open, "COMMIT PREPARED 'a'");
        run(&mut open, "BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'b'");
        assert_eq!(settled_id(&mut client), 10, "only a later one is prepared");
        run(&mut open, "COMMIT PREPARED 'b'");
        // A transaction that only reads does not delay it.
        run(&mut other, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM queue.tasks");
        run(&mut client, "SELECT queue.push('default')");
        assert_eq!(settled_id(&mut client), 12);
        run(&mut other, "COMMIT");
        // Each session that pushes takes some ids, and uses them one by one.
        run(&mut client, "ALTER SEQUENCE queue.tasks_id_seq CACHE 10; SELECT queue.push('default')");
        assert_eq!(settled_id(&mut client), 12, "ids that others may have in store");
        run(&mut client, "ALTER SEQUENCE queue.tasks_id_seq CACHE 1");
        let back = "DELETE FROM queue.tasks; SELECT setval('queue.tasks_id_seq', 3)";
        run(&mut client, back);
        let pause = "SELECT setval('queue_internal.settling_due_seq', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 30000000)";
        run(&mut client, pause);
        run(&mut open, "BEGIN; SELECT queue.push('default')");
        run(&mut client, "SELECT queue.push('default')");
        assert_eq!(number(&mut client, "SELECT queue_internal.settled_id()"), 0, "the sequence was set back");
        assert!(settled_id(&mut client) < 4, "a push that is open since");
        run(&mut open, "COMMIT");
        assert_eq!(settled_id(&mut client), 5);
        run(&mut open, "BEGIN; SELECT queue.push('default'); PREPARE TRANSACTION 'c'");
        run(
            &mut client,
            "SELECT queue.push('default'); SELECT setval('queue_internal.settling_due_seq', 1); SELECT queue_internal.settled_id()",
        );
        cluster.stop("fast");
        cluster.launch();
        let mut client = cluster.connect();
        run(&mut client, "SELECT queue.push('default')");
        assert!(settled_id(&mut client) < 6, "a push that was prepared before a restart");
        run(&mut client, "COMMIT PREPARED 'c'");
        assert!(settled_id(&mut client) > 6);
    }
}

/// Otherwise an id could be settled although a task with it is still to come.
#[test]
fn every_push_locks_the_tasks_before_it_takes_an_id() {
    in_both_editions("groups-locked", |cluster| {
        let [mut client, mut altering] = [(); 2].map(|()| cluster.connect());
        run(&mut client, "SELECT queue.push('default'); SELECT queue.create_batch('default')");
        let batch = number(&mut client, "SELECT max(id) FROM queue.tasks");
        for push in [
            "SELECT queue.push('default')",
            "SET queue.fast_path = off; SELECT queue.push('default')",
            "SELECT queue.push('default', group_key => 'g')",
            "SELECT queue.push('default', key => 'k', group_key => 'g')",
            "SELECT queue.push('default', after => ARRAY[1])",
            &format!("SELECT queue.push('default', batch => {batch})"),
            "SELECT queue.create_batch('default')",
            "SELECT queue.push_many('default', ARRAY['{}', '{}']::jsonb[], group_key => 'g')",
            "SELECT queue.push_many('default', ARRAY['{}', '{}']::jsonb[], keys => ARRAY['a', 'b'])",
            "INSERT INTO queue.tasks (queue, group_key) VALUES ('default', 'g')",
        ] {
            // A session that takes an id waits for the end of this.
            let mut altered = altering.transaction().expect("begin");
            altered.batch_execute("ALTER SEQUENCE queue.tasks_id_seq MAXVALUE 1000000").expect("alter");
            let mut pushing = cluster.connect();
            std::thread::scope(|scope| {
                let pushed = scope.spawn(|| pushing.batch_execute(push));
                let waits = "SELECT count(*) FROM pg_locks
                             WHERE relation = 'queue.tasks_id_seq'::regclass AND NOT granted";
                eventually(&format!("{push} takes an id"), SOON, || number(&mut client, waits) == 1);
                let locks = "SELECT count(*) FROM pg_locks AS l JOIN pg_locks AS w ON w.pid = l.pid
                             WHERE w.relation = 'queue.tasks_id_seq'::regclass AND NOT w.granted
                               AND l.relation = 'queue.tasks'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock')";
                let locked = number(&mut client, locks);
                altered.rollback().expect("roll back");
                pushed.join().expect("no panic").unwrap_or_else(|error| panic!("{push}: {error:?}"));
                assert!(locked > 0, "{push} has not locked the tasks");
            });
        }
    });
}

#[test]
fn default_privileges_give_nobody_the_settled_id() {
    let cluster = Edition::FastPath.cluster("groups-grants", Worker::Off);
    let mut client = cluster.connect_to("template1");
    run(&mut client, "CREATE DATABASE fresh TEMPLATE template0");
    run(&mut client, "CREATE ROLE \"an app\"");
    let mut client = cluster.connect_to("fresh");
    run(&mut client, "ALTER DEFAULT PRIVILEGES GRANT USAGE, UPDATE ON SEQUENCES TO \"an app\", PUBLIC");
    Edition::FastPath.install(&cluster, "fresh");
    let mut has = |sequence: &str| -> bool {
        let query = "SELECT has_sequence_privilege('an app', 'queue_internal.' || $1::text, 'USAGE, UPDATE')";
        client.query_one(query, &[&sequence]).expect("privileges").get(0)
    };
    assert!(has("settling_due_seq"), "the default privileges count");
    assert!(!has("settled_id_seq"));
}

/// Each is put back by a transaction of its own.
#[test]
fn a_task_that_is_put_back_waits_for_no_other_that_is_put_back() {
    in_both_editions("groups-returns", |cluster| {
        let (mut client, _old) = with_old_snapshot(cluster, "{}");
        let mut open = cluster.connect();
        run(
            &mut client,
            "SELECT queue.push('q', to_jsonb(n::text), group_key => 'g') FROM generate_series(1, 300) AS n",
        );
        for _ in 0..3 {
            let (_, id, token) = claim(&mut client).expect("a task");
            let fail = "SELECT queue.fail($1, $2, 'no', permanent => true)";
            client.execute(fail, &[&id, &token]).expect("fail");
        }
        complete(&mut client, 100);
        assert!(head(&mut client) > 10);
        run(&mut open, "BEGIN; SELECT queue.retry(2)");
        let (busy, id, token) = claim(&mut client).expect("a task that runs meanwhile");
        assert_eq!(busy, "104");
        run(&mut client, "SELECT queue.retry(3)");
        client.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        let (next, id, token) = claim(&mut client).expect("a task");
        assert_eq!(next, "3");
        run(&mut open, "COMMIT");
        client.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        let (next, id, token) = claim(&mut client).expect("a task");
        assert_eq!(next, "2");
        // The head has changed since the snapshot.
        run(&mut open, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.queues");
        client.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        complete(&mut client, 50);
        run(&mut open, "SELECT queue.retry(1); COMMIT");
        let (next, ..) = claim(&mut client).expect("a task");
        assert_eq!(next, "1");
        assert_eq!(number(&mut client, "SELECT count(*) FROM queue_internal.group_returns"), 0);
    });
}

/// Claims so many tasks and no more. One claim processes events only for a short time.
fn claim_all(client: &mut Client, tasks: i64) {
    let mut claimed = 0;
    eventually("all are claimed", SOON, || {
        claimed += number(client, "SELECT count(*) FROM queue.claim('1 hour', 'q', 100)");
        claimed >= tasks
    });
    assert_eq!(claimed, tasks);
}

/// A transaction that ends many tasks one by one, by one call or by many.
#[test]
fn a_transaction_that_ends_many_tasks_locks_only_the_first_of_their_groups() {
    in_both_editions("groups-many", |cluster| {
        let (mut client, mut other) = (cluster.connect(), cluster.connect());
        let calls = [
            ("NULL", "queue.complete(id, token)"),
            ("'k' || n", "queue.complete_many(array_agg(id), array_agg(token))"),
            ("NULL", "queue.fail(id, token, 'e', permanent => true)"),
            (
                "NULL",
                "queue.fail_many(array_agg(id), array_agg(token), array_agg('e'::text), permanent => true)",
            ),
        ];
        for (key, call) in calls {
            println!("{call}");
            run(&mut client, "SELECT queue.create('q')");
            let push = format!(
                "SELECT queue.push('q', group_key => 'g' || n % 60, key => {key}) FROM generate_series(1, 120) AS n"
            );
            run(&mut client, &push);
            claim_all(&mut client, 60);
            let mut ending = client.transaction().expect("begin");
            let end = format!("SELECT {call} FROM queue.tasks WHERE state = 'running'");
            ending.execute(&end, &[]).expect("end");
            let events = "SELECT count(*) FROM queue_internal.events WHERE queue = 'q'";
            let left: i64 = ending.query_one(events, &[]).expect("count").get(0);
            assert_eq!(left, 10, "{call}");
            ending.commit().expect("commit");
            // The next claims admit the others.
            claim_all(&mut other, 60);
            run(&mut other, "SELECT queue.drop('q', true)");
        }
    });
}

/// Rows about groups that have gone: of tasks that went elsewhere before an admission, and of a queue whose drop did not see them.
#[test]
fn what_is_left_of_a_group_is_deleted() {
    in_both_editions("groups-left", |cluster| {
        let (mut client, mut other) = (cluster.connect(), cluster.connect());
        run(&mut client, "SELECT queue.create('q'), queue.create('p')");
        run(
            &mut client,
            "SELECT queue.push('q', group_key => 'g'), queue.push('p', group_key => 'g') FROM generate_series(1, 2)",
        );
        let (_, id, token) = claim(&mut client).expect("a task");
        // The group stays locked, so nobody can admit the tasks that come meanwhile.
        let mut ending = client.transaction().expect("begin");
        ending.execute("SELECT queue.complete($1, $2)", &[&id, &token]).expect("complete");
        run(&mut other, "CALL queue.move_where('{\"queue\": \"p\"}', 'q')");
        run(&mut other, "SELECT queue.cancel((SELECT max(id) FROM queue.tasks WHERE queue = 'q'))");
        run(
            &mut other,
            "INSERT INTO queue_internal.group_returns (queue, group_key, task_id) VALUES ('gone', 'g', 1);
             INSERT INTO queue_internal.group_heads (queue, group_key, first_id, changed_at)
             VALUES ('gone', 'g', 1, now() - interval '2 hours')",
        );
        let returns = "SELECT count(*) FROM queue_internal.group_returns";
        assert_eq!(number(&mut other, returns), 3);
        run(&mut other, "CALL queue.maintain()");
        assert_eq!(number(&mut other, returns), 2, "that of the queue that has gone is not needed");
        assert_eq!(
            number(&mut other, "SELECT count(*) FROM queue_internal.group_heads WHERE queue = 'gone'"),
            0
        );
        ending.commit().expect("commit");
        run(&mut other, "CALL queue.maintain()");
        assert_eq!(number(&mut other, returns), 0);
        // Of an empty group, without an event.
        run(
            &mut other,
            "INSERT INTO queue_internal.group_returns (queue, group_key, task_id) VALUES ('q', 'empty', 1)",
        );
        run(&mut other, "CALL queue.maintain()");
        run(&mut other, "CALL queue.maintain()");
        assert_eq!(number(&mut other, returns), 0);
    });
}
