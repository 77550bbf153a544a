//! The life of the launcher and the workers: databases, extensions and servers that come and go.

use std::time::Duration;

use postgres::Client;
use queue_ext_tests::cluster::signal;
use queue_ext_tests::{Cluster, SOON, Settings, WOKEN, eventually, stalls};

fn workers(client: &mut Client) -> Vec<(String, i32)> {
    let query = "SELECT datname::text, pid FROM pg_stat_activity WHERE backend_type = 'queue_ext worker' AND datname IS NOT NULL ORDER BY 1";
    client.query(query, &[]).expect("pg_stat_activity").iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn worker_of(client: &mut Client, database: &str) -> Option<i32> {
    workers(client).into_iter().find(|(name, _)| name == database).map(|(_, pid)| pid)
}

fn await_new_worker(client: &mut Client, database: &str, old: i32) -> Duration {
    eventually("a new worker is there", SOON, || worker_of(client, database).is_some_and(|pid| pid != old))
}

fn lease_expires(client: &mut Client) {
    client
        .batch_execute("SELECT queue.push('default'); SELECT count(*) FROM queue.claim('100 ms')")
        .expect("claim");
    // By itself it would look in ten seconds.
    eventually("the worker puts the task back", WOKEN, || {
        let row = client.query_one("SELECT bool_and(state = 'queued') FROM queue.tasks", &[]).expect("state");
        row.get::<_, Option<bool>>(0) == Some(true)
    });
    client.batch_execute("SELECT queue.purge('default')").expect("purge");
}

#[test]
fn worker_survives_termination_and_errors() {
    let mut cluster = Cluster::start("lifecycle-worker");
    let mut client = cluster.connect();
    for _ in 0..3 {
        let pid = cluster.await_worker("postgres");
        client.execute("SELECT pg_terminate_backend($1)", &[&pid]).expect("terminate");
        await_new_worker(&mut client, "postgres", pid);
    }
    // An ERROR in its work: the table that it reads is gone for a while.
    let pid = cluster.await_worker("postgres");
    client.batch_execute("ALTER FUNCTION queue_internal.due_queues RENAME TO gone").expect("rename");
    client
        .batch_execute("SELECT pg_reload_conf(); SELECT queue.push('default', delay => '100 ms')")
        .expect("push");
    let errors = |cluster: &Cluster| cluster.log().matches("queue_internal.due_queues").count();
    eventually("it tries again", SOON, || errors(&cluster) >= 2);
    let lines = cluster.log().lines().count();
    client
        .batch_execute(
            "ALTER FUNCTION queue_internal.gone RENAME TO due_queues; SELECT queue.purge('default')",
        )
        .expect("rename");
    assert_eq!(worker_of(&mut client, "postgres"), Some(pid), "it is the same worker");
    eventually("all is well again", SOON, || {
        let stats: serde_json::Value =
            client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
        stats["worker"]["sleeps_for_ms"].as_i64().is_some_and(|sleeps| sleeps > 1000)
    });
    assert!(lines < 100, "a fault that lasts must not flood the log; it has {lines} lines");
    lease_expires(&mut client);
}

#[test]
fn workers_exit_with_the_launcher_and_restart_with_the_next() {
    let mut cluster = Cluster::start("lifecycle-launcher");
    let mut client = cluster.connect();
    let worker = cluster.await_worker("postgres");
    let killed =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'queue_ext launcher'";
    client.execute(killed, &[]).expect("terminate the launcher");
    await_new_worker(&mut client, "postgres", worker);
    eventually("there is one worker", SOON, || workers(&mut client).len() == 1);
    lease_expires(&mut client);
}

#[test]
fn databases_come_and_go_with_their_workers() {
    let mut cluster = Cluster::start("lifecycle-databases");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE plain").expect("create");
    client.batch_execute("CREATE DATABASE shop").expect("create");
    cluster.connect_to("shop").batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    cluster.await_worker("shop");
    // A worker does not block a copy, a rename or DROP DATABASE.
    client.batch_execute("CREATE DATABASE copy TEMPLATE shop").expect("a copy of a database with a worker");
    eventually("both have workers", SOON, || {
        worker_of(&mut client, "copy").is_some() && worker_of(&mut client, "shop").is_some()
    });
    client.batch_execute("ALTER DATABASE copy RENAME TO duplicate").expect("rename");
    eventually("the worker is back", SOON, || worker_of(&mut client, "duplicate").is_some());
    client.batch_execute("DROP DATABASE duplicate").expect("drop");
    client.batch_execute("DROP DATABASE shop WITH (FORCE)").expect("drop by force");
    client.batch_execute("DROP DATABASE plain").expect("drop");
    eventually("one worker is left", SOON, || workers(&mut client).len() == 1);
    assert!(!cluster.log().contains("FATAL:  database"), "no worker may run after a database that is gone");
    // The same name again is another database.
    client.batch_execute("CREATE DATABASE shop").expect("create");
    cluster.connect_to("shop").batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    cluster.await_worker("shop");
}

fn refusal(client: &mut Client, statement: &str) -> Option<String> {
    Some(client.batch_execute(statement).err()?.code()?.code().to_owned())
}

#[test]
fn a_worker_exits_only_for_commands_that_are_permitted() {
    let mut cluster = Cluster::start("lifecycle-rights");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE keeper LOGIN CREATEDB; CREATE ROLE maker LOGIN CREATEDB; CREATE ROLE nobody LOGIN",
        )
        .expect("roles");
    client.batch_execute("CREATE DATABASE shop OWNER keeper").expect("create");
    cluster.connect_to("shop").batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    let pid = cluster.await_worker("shop");
    let connect = |user| cluster.config("postgres").user(user).connect(postgres::NoTls).expect("connect");
    let (mut keeper, mut maker, mut nobody) = (connect("keeper"), connect("maker"), connect("nobody"));
    let mut stays = |session: &mut Client, statement: &str, code: &str| {
        assert_eq!(refusal(session, statement).as_deref(), Some(code), "{statement}");
        assert_eq!(worker_of(&mut client, "shop"), Some(pid), "{statement}");
    };
    for statement in [
        "DROP DATABASE shop",
        "DROP DATABASE shop WITH (FORCE)",
        "ALTER DATABASE shop RENAME TO mine",
        "ALTER DATABASE shop SET TABLESPACE pg_default",
        "CREATE DATABASE mine TEMPLATE shop",
    ] {
        stays(&mut nobody, statement, "42501");
        stays(&mut maker, statement, "42501");
    }
    stays(&mut keeper, "DO $$ BEGIN EXECUTE 'CREATE DATABASE copy TEMPLATE shop'; END $$", "25001");
    keeper.batch_execute("BEGIN").expect("begin");
    stays(&mut keeper, "DROP DATABASE shop", "25001");
    keeper.batch_execute("ROLLBACK").expect("roll back");
    keeper.batch_execute("CREATE DATABASE copy TEMPLATE shop").expect("a copy");
    keeper
        .batch_execute("BEGIN; ALTER DATABASE shop RENAME TO store; COMMIT")
        .expect("rename in a transaction");
    cluster.await_worker("store");
    client.batch_execute("ALTER DATABASE store IS_TEMPLATE true").expect("template");
    assert_eq!(refusal(&mut nobody, "CREATE DATABASE mine TEMPLATE store").as_deref(), Some("42501"));
    maker.batch_execute("CREATE DATABASE another TEMPLATE store").expect("a copy of a template");
    client.batch_execute("ALTER DATABASE store IS_TEMPLATE false").expect("no template");
    keeper.batch_execute("DROP DATABASE store").expect("drop");
}

#[test]
fn a_database_can_be_dropped_while_its_worker_is_busy() {
    let mut cluster = Cluster::start("lifecycle-busy");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE shop").expect("create");
    let mut shop = cluster.connect_to("shop");
    shop.batch_execute(
        "CREATE EXTENSION queue_ext;
         CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(4); RETURN NULL; END';
         CREATE TRIGGER slow AFTER DELETE ON queue.dead_letters FOR EACH STATEMENT EXECUTE FUNCTION public.slow();
         INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
         VALUES (-1, 'default', 0, now(), 1, 1, now(), now() - interval '1 year', '{}')",
    )
    .expect("a slow trigger");
    drop(shop);
    let pid = cluster.await_worker("shop");
    client.execute("SELECT pg_terminate_backend($1)", &[&pid]).expect("terminate");
    eventually("it is busy", SOON, || {
        let query = "SELECT FROM pg_stat_activity WHERE datname = 'shop' AND query = 'applying retention' AND wait_event = 'PgSleep'";
        client.query_opt(query, &[]).expect("pg_stat_activity").is_some()
    });
    client.batch_execute("DROP DATABASE shop").expect("drop");
}

#[test]
fn an_interrupted_drop_leaves_nothing_for_the_launcher_to_try() {
    let mut cluster = Cluster::start("lifecycle-interrupted");
    let mut client = cluster.connect();
    // As an interrupted DROP DATABASE leaves it.
    client.batch_execute("CREATE DATABASE shop").expect("create");
    client.batch_execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'shop'").expect("update");
    let pid = cluster.await_worker("postgres");
    client
        .batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'queue_ext launcher'")
        .expect("terminate the launcher");
    await_new_worker(&mut client, "postgres", pid);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!cluster.log().contains("cannot connect to invalid database"), "{}", cluster.log());
    client.batch_execute("DROP DATABASE shop").expect("drop");
}

#[test]
fn an_extension_created_in_a_prepared_transaction_gets_its_worker() {
    let settings = Settings { preload: true, extra: "max_prepared_transactions = 1" };
    let mut cluster = Cluster::start_with("lifecycle-prepared", &settings);
    let mut client = cluster.connect();
    client.batch_execute("BEGIN; CREATE EXTENSION queue_ext; PREPARE TRANSACTION 'p'").expect("prepare");
    // The launcher checks now, and finds nothing.
    std::thread::sleep(Duration::from_secs(1));
    client.batch_execute("COMMIT PREPARED 'p'").expect("commit");
    cluster.await_worker("postgres");
}

#[test]
fn extension_is_dropped_and_created_while_the_worker_works() {
    let mut cluster = Cluster::start("lifecycle-extension");
    let mut client = cluster.connect();
    for round in 0..20 {
        client.batch_execute("SELECT count(queue.push('default', delay => n * interval '1 ms')) FROM generate_series(1, 50) AS n;
                              SELECT count(*) FROM queue.claim('5 ms', max_tasks => 20)").expect("work");
        let started = std::time::Instant::now();
        client.batch_execute("DROP EXTENSION queue_ext").expect("DROP EXTENSION");
        assert!(stalls::since(started) < WOKEN, "round {round}: DROP EXTENSION was held up");
        let left: i64 = client
            .query_one("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'queue%'", &[])
            .expect("count")
            .get(0);
        assert_eq!(left, 0, "nothing may be left of it");
        client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    }
    cluster.await_worker("postgres");
    lease_expires(&mut client);
    client.batch_execute("DROP EXTENSION queue_ext").expect("DROP EXTENSION");
    eventually("the worker is gone", SOON, || workers(&mut client).is_empty());
    assert!(!cluster.log().contains("deadlock"), "nobody may run into a deadlock");
    let lines = cluster
        .log()
        .lines()
        .filter(|line| line.contains("queue_ext") && (line.contains("ERROR") || line.contains("FATAL")))
        .count();
    assert_eq!(lines, 0, "the worker minds nothing of this:\n{}", cluster.log());
}

/// The launcher, once it has nothing to do.
fn resting_launcher(client: &mut Client) -> Option<i32> {
    let query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue_ext launcher' AND wait_event_type = 'Extension'";
    client.query_opt(query, &[]).expect("pg_stat_activity").map(|row| row.get(0))
}

#[test]
fn an_extension_created_while_its_database_is_probed_gets_its_worker() {
    let mut cluster = Cluster::start("lifecycle-probed");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE fresh").expect("create");
    let (mut locker, mut creator) = (cluster.connect_to("fresh"), cluster.connect_to("fresh"));
    locker.batch_execute("BEGIN; LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE").expect("lock");
    // The next launcher probes all databases at once.
    let mut old = None;
    eventually("the launcher has nothing to do", SOON, || {
        old = resting_launcher(&mut client);
        old.is_some()
    });
    client.execute("SELECT pg_terminate_backend($1)", &[&old]).expect("terminate");
    let probe = "SELECT pid FROM pg_stat_activity AS probe
        WHERE backend_type = 'queue_ext worker' AND datname = 'fresh' AND wait_event_type = 'Lock'
          AND backend_start > (SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'queue_ext launcher')";
    eventually("the probe waits", SOON, || client.query_opt(probe, &[]).expect("probe").is_some());
    let mut launcher = 0;
    eventually("the launcher rests", SOON, || {
        launcher = resting_launcher(&mut client).unwrap_or(0);
        launcher != 0
    });
    // It learns that the probe found nothing only after it hears of the extension.
    signal(launcher, libc::SIGSTOP);
    locker.batch_execute("ROLLBACK").expect("roll back");
    eventually("the probe has ended", SOON, || worker_of(&mut client, "fresh").is_none());
    creator.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    signal(launcher, libc::SIGCONT);
    cluster.await_worker("fresh");
}

/// Two runs of the tests at once would stop each other's servers.
#[test]
fn the_folder_of_a_server_is_not_given_to_another_test() {
    let cluster = Cluster::start("lifecycle-folder");
    let take = || Cluster::create(cluster.folder(), &Settings::default()).keep();
    let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(take)).expect_err("it is used");
    assert!(said.downcast_ref::<String>().is_some_and(|said| said.contains("another run of the tests uses")));
    cluster.connect().batch_execute("SELECT 1").expect("it still runs");
}

#[test]
fn settings_reload() {
    let mut cluster = Cluster::start("lifecycle-settings");
    let mut client = cluster.connect();
    client.batch_execute("ALTER SYSTEM SET queue.worker_enabled = off").expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    eventually("the worker leaves", SOON, || workers(&mut client).is_empty());
    client.batch_execute("ALTER SYSTEM SET queue.worker_enabled = on").expect("set");
    client.batch_execute("ALTER SYSTEM SET queue.sweep_interval = '2min'").expect("set");
    client.batch_execute("SELECT pg_reload_conf()").expect("reload");
    cluster.await_worker("postgres");
    eventually("it sleeps longer", SOON, || {
        let stats: serde_json::Value =
            client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0);
        stats["worker"]["sleeps_for_ms"].as_i64().is_some_and(|sleeps| sleeps > 20_000)
    });
    let refused =
        client.batch_execute("SET queue.notify_interval = 5").expect_err("only the server's operator");
    assert_eq!(refused.code().map(|code| code.code()), Some("55P02"));
}

#[test]
fn settings_of_the_database_do_not_reach_the_worker() {
    let mut cluster = Cluster::start("lifecycle-session");
    let mut client = cluster.connect();
    let new = queue_ext_tests::cluster::major_version() >= 17;
    let more = if new { "ALTER DATABASE postgres SET transaction_timeout = '1min';" } else { "" };
    client
        .batch_execute(&format!(
            "ALTER DATABASE postgres SET statement_timeout = '1min'; ALTER DATABASE postgres SET lock_timeout = '1min';
             ALTER DATABASE postgres SET session_replication_role = replica; {more}
             CREATE TABLE public.seen (name text, setting text);
             CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.seen SELECT name, setting FROM pg_settings
                 WHERE name ~ '^(statement|lock|transaction)_timeout$' OR name = 'session_replication_role';
                 RETURN NULL; END $$"
        ))
        .expect("set");
    let pid = cluster.await_worker("postgres");
    client.execute("SELECT pg_terminate_backend($1)", &[&pid]).expect("terminate");
    await_new_worker(&mut client, "postgres", pid);
    client
        .batch_execute(
            "SELECT queue.push('default'); SELECT count(*) FROM queue.claim('100 ms');
             CREATE TRIGGER see AFTER UPDATE ON queue.tasks FOR EACH STATEMENT EXECUTE FUNCTION public.see()",
        )
        .expect("claim");
    let mut seen: Option<String> = None;
    eventually("the worker puts the task back, and fires the trigger", SOON, || {
        let query = "SELECT string_agg(DISTINCT name || ' ' || setting, ', ') FROM public.seen";
        seen = client.query_one(query, &[]).expect("seen").get(0);
        seen.is_some()
    });
    let more = if new { ", transaction_timeout 0" } else { "" };
    let expected = format!("lock_timeout 100, session_replication_role origin, statement_timeout 0{more}");
    assert_eq!(seen, Some(expected));
}

#[test]
fn a_standby_waits_for_its_promotion() {
    let mut cluster = Cluster::start("lifecycle-primary");
    let mut client = cluster.connect();
    client
        .batch_execute("SELECT queue.push('default'); SELECT count(*) FROM queue.claim('200 ms')")
        .expect("claim");
    let mut standby = cluster.standby("lifecycle-standby");
    let mut reader = standby.connect();
    assert_eq!(workers(&mut reader).len(), 0);
    assert_eq!(refusal(&mut reader, "SELECT queue.push('default')").as_deref(), Some("25006"));
    assert_eq!(refusal(&mut reader, "SELECT queue.claim()").as_deref(), Some("25006"));
    reader
        .batch_execute("SELECT * FROM queue.stats; SELECT * FROM queue.all_tasks")
        .expect("views can be read");
    cluster.stop("immediate");
    standby.promote();
    standby.await_worker("postgres");
    eventually("the worker puts back what the old primary had leased", SOON, || {
        let row = reader.query_one("SELECT state FROM queue.tasks", &[]).expect("state");
        row.get::<_, String>(0) == "queued"
    });
}

#[test]
fn many_databases_are_probed_without_taking_every_slot() {
    let mut cluster = Cluster::start("lifecycle-many");
    let mut client = cluster.connect();
    // More than can have a worker.
    for n in 0..70 {
        client.batch_execute(&format!("CREATE DATABASE plain_{n}")).expect("create");
    }
    client.batch_execute("CREATE DATABASE shop").expect("create");
    cluster.connect_to("shop").batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    cluster.await_worker("shop");
    cluster.stop("fast");
    cluster.launch();
    // All are probed, two at a time, and both with the extension end up with a worker.
    let mut client = cluster.connect();
    eventually("both have workers", 2 * SOON, || {
        worker_of(&mut client, "shop").is_some() && worker_of(&mut client, "postgres").is_some()
    });
    eventually("the others are left alone", SOON, || workers(&mut client).len() == 2);
    assert!(!cluster.log().contains("WARNING"), "there was room enough:\n{}", cluster.log());
}

#[test]
fn too_few_worker_slots_are_reported_once() {
    let settings = Settings {
        preload: true,
        extra: "max_worker_processes = 2\nmax_logical_replication_workers = 0\n\
                                                     max_parallel_workers = 0",
    };
    let mut cluster = Cluster::start_with("lifecycle-slots", &settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    // The launcher and logical replication's launcher may leave one slot or none.
    for database in ["one", "two", "three"] {
        client.batch_execute(&format!("CREATE DATABASE {database}")).expect("create");
        cluster.connect_to(database).batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    }
    eventually("it is told", SOON, || cluster.log().contains("no background worker is free"));
    // Everything works without: a claim takes over an expired lease.
    let mut client = cluster.connect_to("three");
    client
        .batch_execute("SELECT queue.push('default'); SELECT count(*) FROM queue.claim('10 ms')")
        .expect("claim");
    eventually("the task is claimed again", SOON, || {
        client.query("SELECT id FROM queue.claim('1 minute')", &[]).expect("claim").len() == 1
    });
    assert_eq!(cluster.log().matches("no background worker is free").count(), 1);
    cluster.stop("fast");
}

/// Which worker is started first is left to chance; with so many others it is rarely that of the last database.
#[test]
fn databases_in_which_the_extension_is_locked_do_not_keep_others_without_a_worker() {
    let extra = "max_prepared_transactions = 10\nmax_worker_processes = 20";
    let mut cluster = Cluster::start_with("lifecycle-locked", &Settings { preload: true, extra });
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext").expect("create");
    for number in 0..6 {
        client.batch_execute(&format!("CREATE DATABASE locked{number}")).expect("create");
        let mut other = cluster.connect_to(&format!("locked{number}"));
        let drop = format!(
            "CREATE EXTENSION queue_ext; BEGIN; DROP EXTENSION queue_ext; PREPARE TRANSACTION 'drop{number}'"
        );
        for statement in drop.split("; ") {
            other.batch_execute(statement).expect(statement);
        }
    }
    cluster.stop("fast");
    cluster.launch();
    cluster.await_worker("postgres");
    lease_expires(&mut cluster.connect());
}
