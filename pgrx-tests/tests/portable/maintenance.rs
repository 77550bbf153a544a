//! Maintenance without a worker: queue.maintain(), and waiting sessions.

use super::*;
use fallible_iterator::FallibleIterator;
use queue_ext_tests::{SOON, WOKEN, at_best, eventually, stalls};
use std::time::{Duration, Instant};

#[test]
fn maintain_does_what_the_worker_would() {
    let cluster = started("maintenance");
    let mut owner = as_owner(&cluster, "postgres");
    let check = |owner: &mut Client, name: &str| -> (String, String) {
        let row = owner
            .query_one("SELECT status, detail FROM queue.health() WHERE name = $1", &[&name])
            .expect("a check");
        (row.get(0), row.get(1))
    };
    assert_eq!(check(&mut owner, "engine"), ("ok".into(), "SQL-only edition, without a library".into()));
    assert_eq!(check(&mut owner, "worker"), ("critical".into(), "queue.maintain() has never run".into()));
    owner
        .batch_execute(
            "SELECT queue.push('default'), queue.push('default');
             SELECT queue.claim('1 hour');
             UPDATE queue.tasks SET lease_until = clock_timestamp() - interval '1 s' WHERE state = 'running';
             SELECT queue.schedule('now', '* * * * *', 'default', '\"by schedule\"');
             UPDATE queue.schedules SET next_run_at = date_trunc('minute', now());
             INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
             SELECT 100, 'default', 0, now(), 1, 1, now(), now() - interval '10 days', '{}';
             SELECT queue.set('dead_letter_retention', '9 days'), queue.set('history_ahead', '2');
             LISTEN queue_default",
        )
        .expect("something to do");
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    assert_eq!(
        ask::<String>(&mut owner, "SELECT string_agg(state || attempt, ' ' ORDER BY id) FROM queue.tasks"),
        "queued1 queued0 queued0",
        "the lease is over, and the schedule has run"
    );
    assert_eq!(
        ask::<i64>(&mut owner, "SELECT count(*) FROM queue.tasks WHERE payload = '\"by schedule\"'"),
        1
    );
    assert_eq!(ask::<i64>(&mut owner, "SELECT count(*) FROM queue.dead_letters"), 0);
    assert_eq!(ask::<i64>(&mut owner, "SELECT count(*) FROM queue_internal.history_partitions()"), 3);
    let heard = owner.notifications().timeout_iter(SOON).next().expect("listen");
    assert_eq!(heard.map(|heard| heard.channel().to_owned()), Some("queue_default".into()));
    assert_eq!(check(&mut owner, "worker").0, "ok");
    owner
        .batch_execute("UPDATE queue_internal.maintenance SET last_run_at = now() - interval '6 minutes'")
        .expect("some time ago");
    let (status, detail) = check(&mut owner, "worker");
    assert!(
        status == "critical" && detail.starts_with("queue.maintain() last ran at "),
        "{status}: {detail}"
    );
    // It is for the owner, and for one transaction after the other.
    let error = owner.batch_execute("BEGIN; CALL queue.maintain()").expect_err("in a transaction");
    assert_eq!(error.code().map(|code| code.code()), Some("2D000"));
    owner.batch_execute("ROLLBACK").expect("roll back");
    // Members of pg_monitor can read without a right of their own.
    cluster
        .connect()
        .batch_execute("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher")
        .expect("a role");
    let mut watcher = cluster.config("postgres").user("watcher").connect(NoTls).expect("connect");
    assert_eq!(check(&mut watcher, "worker").0, "critical");
    assert_eq!(ask::<i64>(&mut watcher, "SELECT queued FROM queue.stats WHERE queue = 'default'"), 3);
}

#[test]
fn with_many_tasks_maintain_counts_them_and_the_views_say_when() {
    let cluster = started("counting");
    let mut owner = as_owner(&cluster, "postgres");
    let maintain = |owner: &mut Client| owner.batch_execute("CALL queue.maintain()").expect("maintain");
    // A few are counted at each read.
    owner
        .batch_execute(
            "SELECT queue.create('second'), queue.push('second'), queue.push('second');
             SELECT queue.claim('1 hour', 'second', worker => 'ada')",
        )
        .expect("some tasks");
    maintain(&mut owner);
    const COUNTED: &str = "SELECT string_agg(concat_ws(' ', queue, queued, running, counted_at IS NOT NULL), ', ' ORDER BY queue) FROM queue.stats";
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 0 0 f, second 1 1 f");
    // As many as take 300 MB.
    owner
        .batch_execute(
            "INSERT INTO queue.tasks (queue, payload)
             SELECT 'default', to_jsonb(repeat('x', 1500)) FROM generate_series(1, 80000)",
        )
        .expect("many tasks");
    maintain(&mut owner);
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 1 t");
    const WORKERS: &str =
        "SELECT concat_ws(' ', worker, queue, running, overdue, counted_at IS NOT NULL) FROM queue.workers";
    assert_eq!(ask::<String>(&mut owner, WORKERS), "ada second 1 0 t");
    let detail: String = ask(&mut owner, "SELECT detail FROM queue.health() WHERE name = 'engine'");
    assert!(detail.starts_with("SQL-only edition, without a library, tasks counted at 20"), "{detail}");
    // In a session that has read no tasks before.
    let mut reader = as_owner(&cluster, "postgres");
    reader
        .batch_execute("BEGIN; TABLE queue.stats; TABLE queue.workers; SELECT * FROM queue.health()")
        .expect("read");
    let read = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relid = 'queue.tasks'::regclass";
    assert_eq!(ask::<i64>(&mut reader, read), 0, "tasks were read");
    reader.batch_execute("ROLLBACK").expect("roll back");
    // A role sees the queues on which it has the right, and one without a right none.
    cluster
        .connect()
        .batch_execute(
            "CREATE ROLE one LOGIN; CREATE ROLE stranger LOGIN; SELECT queue.grant_operator('one', 'second')",
        )
        .expect("roles");
    let as_role = |name: &str| cluster.config("postgres").user(name).connect(NoTls).expect("connect");
    assert_eq!(ask::<String>(&mut as_role("one"), COUNTED), "second 1 1 t");
    assert_eq!(ask::<String>(&mut as_role("one"), WORKERS), "ada second 1 0 t");
    as_role("stranger").batch_execute("TABLE queue.stats").expect_err("no right");
    let functions = "SELECT count(*) FROM queue_internal.counted(ARRAY['default', 'second'])";
    assert_eq!(ask::<Option<i64>>(&mut as_role("one"), functions), Some(1));
    // A new queue is counted at each read until the next count. That comes when at most a twentieth of the time goes into counting.
    owner
        .batch_execute(
            "SELECT queue.create('third'), queue.push('third'), queue.push('third');
             SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running';
             SELECT queue.claim('1 hour', 'third', worker => 'eve');
             UPDATE queue_internal.maintenance SET counting = '1 hour'",
        )
        .expect("changes");
    maintain(&mut owner);
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 1 t, third 1 1 f");
    let workers = format!("SELECT string_agg(concat_ws, ', ' ORDER BY concat_ws) FROM ({WORKERS}) AS w");
    assert_eq!(ask::<String>(&mut owner, &workers), "ada second 1 0 t, eve third 1 0 f");
    let ends =
        |when: &str| format!("UPDATE queue.tasks SET lease_until = now() + '{when}' WHERE worker = 'eve'");
    owner.batch_execute(&ends("-1 second")).expect("an expired lease");
    assert_eq!(ask::<String>(&mut owner, &workers), "ada second 1 0 t, eve third 1 1 f");
    owner.batch_execute(&ends("1 hour")).expect("a lease");
    owner.batch_execute("UPDATE queue_internal.maintenance SET counting = '0'").expect("some time later");
    maintain(&mut owner);
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 0 t, third 1 1 t");
    // Nor is that of a queue of the same name before. The next count comes as soon as for a new queue.
    owner
        .batch_execute("SELECT queue.drop('third', true); SELECT queue.create('third')")
        .expect("another queue");
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 0 t, third 0 0 f");
    let later = "UPDATE queue_internal.maintenance SET counted_at = counted_at - interval '1 minute', counting = '6 seconds'";
    owner.batch_execute(later).expect("some time later");
    maintain(&mut owner);
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 0 t, third 0 0 t");
    // Also if the queue was there when the tasks were counted, because the transaction that drops it was still open.
    owner.batch_execute("SELECT queue.push('third')").expect("a task");
    let mut other = as_owner(&cluster, "postgres");
    other
        .batch_execute("BEGIN; SELECT queue.drop('third', true); SELECT queue.create('third')")
        .expect("another queue");
    owner.batch_execute("UPDATE queue_internal.maintenance SET counting = '0'").expect("some time later");
    maintain(&mut owner);
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 0 t, third 1 0 t");
    other.batch_execute("COMMIT").expect("commit");
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 t, second 1 0 t, third 0 0 f");
    maintain(&mut owner);
    // An old count is not shown, and without many tasks none is kept.
    let old =
        "UPDATE queue_internal.maintenance SET counted_at = now() - interval '6 minutes', counting = '0'";
    owner.batch_execute(old).expect("some time later");
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 80000 0 f, second 1 0 f, third 0 0 f");
    owner.batch_execute("TRUNCATE queue.tasks").expect("truncate");
    maintain(&mut owner);
    assert_eq!(ask::<String>(&mut owner, COUNTED), "default 0 0 f, second 0 0 f, third 0 0 f");
    assert_eq!(ask::<i64>(&mut owner, "SELECT count(*) FROM queue_internal.counts"), 0);
}

#[test]
fn maintain_closes_the_types_that_a_restored_dump_has_opened() {
    let cluster = started("types");
    let mut owner = as_owner(&cluster, "postgres");
    let open = "SELECT has_type_privilege('pg_monitor', 'queue.tasks', 'USAGE')";
    assert!(!ask::<bool>(&mut owner, open));
    // pg_dump does not save the privileges of row types.
    owner.batch_execute("GRANT USAGE ON TYPE queue.tasks TO PUBLIC").expect("as a new table has it");
    assert!(ask::<bool>(&mut owner, open));
    owner.batch_execute("CALL queue.maintain()").expect("maintain");
    assert!(!ask::<bool>(&mut owner, open));
}

#[test]
fn settings_are_kept_in_the_database() {
    let cluster = started("settings");
    let mut owner = as_owner(&cluster, "postgres");
    for (name, value) in [
        ("lanes", "1"),
        ("max_lease", "soon"),
        ("max_lease", "-1 s"),
        ("max_lease", "20 s"),
        ("max_lease", "100000 years"),
        ("history_ahead", "0"),
        ("history_ahead", "366"),
        ("history_ahead", "x"),
        ("history_retention", "100000 years"),
        ("poll_interval", "0"),
    ] {
        let error = owner.query("SELECT queue.set($1, $2)", &[&name, &value]).expect_err("refused");
        assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{name} {value}: {error}");
        let said = error.as_db_error().expect("of the server").message();
        assert!(said.contains(name) || name == "lanes", "{said} does not name {name}");
    }
    owner.batch_execute("SELECT queue.set('max_lease', '1 minute')").expect("set");
    // A worker cannot exceed the limit.
    cluster.connect().batch_execute("CREATE ROLE worker LOGIN").expect("a role");
    owner.batch_execute("SELECT queue.grant_worker('worker')").expect("grant");
    let mut worker = cluster.config("postgres").user("worker").connect(NoTls).expect("connect");
    let error = worker
        .batch_execute("SET queue.max_lease = '1 day'; SELECT queue.claim('2 minutes')")
        .expect_err("too long");
    assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error}");
    let error = worker.batch_execute("SELECT queue.set('max_lease', '1 day')").expect_err("not his");
    assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{error}");
    owner
        .batch_execute("SELECT queue.set('max_lease', NULL); SELECT queue.claim('2 minutes')")
        .expect("the default");
    // Nor if the owner has set no limit.
    let error = worker
        .batch_execute("SET queue.max_lease = '400 days'; SELECT queue.claim('8 days')")
        .expect_err("too long");
    assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error}");
}

#[test]
fn both_editions_accept_the_same_values_of_a_setting() {
    let portable = started("values");
    let mut owner = as_owner(&portable, "postgres");
    let native = Edition::FastPath.cluster("portable-values", Worker::Off);
    let mut superuser = native.connect();
    for (name, value, accepted) in [
        ("history_ahead", "1", true),
        ("history_ahead", "365", true),
        ("history_ahead", "366", false),
        ("max_lease", "1 min", true),
        ("max_lease", "20 s", false),
    ] {
        let set = owner.query("SELECT queue.set($1, $2)", &[&name, &value]);
        let altered = superuser.batch_execute(&format!("ALTER SYSTEM SET queue.{name} = '{value}'"));
        assert_eq!((set.is_ok(), altered.is_ok()), (accepted, accepted), "{name} = {value}");
    }
}

#[test]
fn wait_finds_a_task_within_a_pause_and_holds_no_snapshot_for_longer() {
    let cluster = started("wait");
    let mut owner = as_owner(&cluster, "postgres");
    owner.batch_execute("SELECT queue.set('poll_interval', '100 ms')").expect("set");
    let waiter = std::thread::spawn({
        let config = {
            let mut config = cluster.config("postgres");
            config.user(OWNER).application_name("waiter");
            config
        };
        move || {
            let mut client = config.connect(NoTls).expect("connect");
            // Prepared, like a driver.
            let row = client.query_one("CALL queue.wait(timeout => '1 minute')", &[]).expect("wait");
            (row.get::<_, Option<bool>>(0), Instant::now())
        }
    });
    // The oldest snapshot it holds moves on while it waits.
    let mut seen = std::collections::BTreeSet::new();
    eventually("three transactions of one CALL", SOON, || {
        let query = "SELECT xact_start::text FROM pg_stat_activity WHERE application_name = 'waiter' AND xact_start IS NOT NULL";
        seen.extend(owner.query(query, &[]).expect("look").iter().map(|row| row.get::<_, String>(0)));
        seen.len() >= 3
    });
    owner.batch_execute("SELECT queue.push('default')").expect("push");
    let pushed = Instant::now();
    let (ready, woken) = waiter.join().expect("the waiter");
    assert_eq!(ready, Some(true));
    // A pause, and a good deal for a busy machine; without looking it would be a minute.
    assert!(stalls::took(pushed, woken) < WOKEN);
}

#[test]
fn wait_returns_within_a_pause_of_the_moment_at_which_a_rate_limit_lets_a_task_start() {
    const PERIOD: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(100);
    let cluster = started("rate");
    let mut owner = as_owner(&cluster, "postgres");
    let options = format!("{{\"rate_limit\": 1, \"rate_period\": \"{} s\"}}", PERIOD.as_secs());
    owner
        .batch_execute(&format!(
            "SELECT queue.set('poll_interval', '{} ms'), queue.create('rate', '{options}');
             SELECT queue.push('rate') FROM generate_series(1, 30)",
            PAUSE.as_millis()
        ))
        .expect("a queue with a rate limit");
    let late = "SELECT extract(epoch FROM clock_timestamp() - max(claimed_at))::float8 FROM queue.tasks WHERE state = 'running'";
    let claim = |owner: &mut Client| {
        let claimed = owner.query("SELECT queue.claim('1 hour', 'rate')", &[]).expect("claim").len();
        assert_eq!(claimed, 1, "a task can start");
    };
    claim(&mut owner);
    let late = at_best(2 * PAUSE, || {
        assert!(ask::<bool>(&mut owner, "CALL queue.wait('rate')"));
        let waited = Duration::from_secs_f64(ask(&mut owner, late));
        // Pauses that only grow would have grown to almost a second.
        let pause = "SELECT split_part(current_setting('queue_wait.ready'), ' ', 2)::float8";
        assert_eq!(Duration::from_secs_f64(ask(&mut owner, pause)), PAUSE);
        claim(&mut owner);
        waited.checked_sub(PERIOD).expect("not before the limit lets it start")
    });
    println!("woken {late:?} after a task could start");
    assert!(late < 2 * PAUSE, "{late:?}");
}

#[test]
fn a_dump_restores_rights_where_roles_have_other_oids() {
    // First of all on both servers: so the number of one is that of the other there.
    let [(cluster, ann_here), (target, bob_there)] = [("dump", ["ann", "bob"]), ("restore", ["bob", "ann"])]
        .map(|(name, roles)| {
            let cluster = Edition::SqlOnly.cluster(&format!("portable-{name}"), Worker::On);
            let mut client = cluster.connect();
            for role in roles {
                client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).expect("a role");
            }
            let owned = format!("CREATE ROLE {OWNER} LOGIN; ALTER DATABASE postgres OWNER TO {OWNER}");
            client.batch_execute(&owned).expect("the owner");
            let number: u32 = ask(&mut client, &format!("SELECT '{}'::regrole::oid", roles[0]));
            (cluster, number)
        });
    assert_eq!(ann_here, bob_there);
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut owner = as_owner(&cluster, "postgres");
    owner
        .batch_execute(
            "SELECT queue.create('a'), queue.create('b'), queue.push('a'), queue.push('b');
             SELECT queue.grant_operator('ann', 'a'), queue.grant_operator('bob', 'b'), queue.claim('1 hour', 'b')",
        )
        .expect("some of it");
    let file = format!("{}/dump.sql", cluster.folder().display());
    let host = cluster.folder().to_str().expect("a path").to_owned();
    cluster.run(
        "pg_dump",
        &["-h", &host, "-U", OWNER, "-d", "postgres", "-n", "queue", "-n", "queue_internal", "-f", &file],
    );
    let restored = psql(&target, OWNER, "postgres", Path::new(&file), &["-v", "ON_ERROR_STOP=1"]);
    assert!(restored.status.success(), "{}", said(&restored));
    let mut owner = as_owner(&target, "postgres");
    owner.batch_execute("SELECT queue.complete(2, 1)").expect("the lease from before");
    let mut ann = target.config("postgres").user("ann").connect(NoTls).expect("connect");
    assert_eq!(ask::<String>(&mut ann, "SELECT string_agg(queue, ' ') FROM queue.tasks"), "a");
    owner
        .batch_execute(
            "SELECT queue.grant_operator('bob', 'a'); SELECT queue.grant_operator('ann', 'b'); SELECT queue.revoke_operator('ann', 'a');
             SELECT queue.revoke_operator('bob', 'b'), queue.push('b'); SELECT queue.grant_operator('bob', 'b')",
        )
        .expect("rights change");
    assert_eq!(ask::<String>(&mut ann, "SELECT string_agg(DISTINCT queue, ' ') FROM queue.tasks"), "b");
    owner.batch_execute("SELECT queue.revoke_operator('ann', 'b')").expect("revoke");
    assert!(ann.query("SELECT FROM queue.tasks", &[]).is_err());
}

#[test]
fn bulk_procedures_commit_each_batch_or_nothing() {
    let cluster = started("bulk");
    let mut owner = as_owner(&cluster, "postgres");
    owner
        .batch_execute(
            "CREATE PROCEDURE public.careful() LANGUAGE plpgsql AS $$
             DECLARE
                 cancelled bigint;
             BEGIN
                 CALL queue.cancel_where('{\"all\": true}', batch_size => 2, tasks => cancelled);
             EXCEPTION WHEN division_by_zero THEN
                 NULL;
             END $$",
        )
        .expect("a procedure that cannot commit");
    let call = "CALL queue.cancel_where('{\"all\": true}', batch_size => 2)";
    let mut transactions = |how: &dyn Fn(&mut Client)| -> i64 {
        owner.batch_execute("SELECT queue.push('default') FROM generate_series(1, 6)").expect("six tasks");
        how(&mut owner);
        assert_eq!(ask::<i64>(&mut owner, "SELECT count(*) FROM queue.tasks"), 0);
        let commits = ask(&mut owner, "SELECT count(DISTINCT xmin::text) FROM queue.history_default");
        owner.batch_execute("DELETE FROM queue.history_default").expect("forget");
        commits
    };
    assert_eq!(transactions(&|client| client.batch_execute(call).expect("by itself")), 3);
    assert_eq!(transactions(&|client| drop(client.query(call, &[]).expect("prepared"))), 1);
    assert_eq!(
        transactions(&|client| client.batch_execute(&format!("{call}; SELECT 1")).expect("with another")),
        1
    );
    assert_eq!(
        transactions(&|client| client.batch_execute("CALL public.careful()").expect("by a procedure")),
        1
    );
    let block = |client: &mut Client| {
        for statement in ["BEGIN", call, "COMMIT"] {
            client.batch_execute(statement).expect("in a block");
        }
    };
    assert_eq!(transactions(&block), 1);
}
