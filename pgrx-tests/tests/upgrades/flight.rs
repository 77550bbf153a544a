//! ALTER EXTENSION UPDATE under load: leased, awaited and pushed tasks, and sessions that were open before.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use queue_ext_tests::eventually;

use super::{SOON, laboratory, number, run};

#[test]
fn work_continues_while_the_extension_is_updated() {
    let (mut cluster, _) = laboratory("upgrades-flight");
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE EXTENSION queue_ext;
         SELECT queue.create('held'), queue.create('quiet'), queue.create('short'), queue.push('held'), queue.push('short')",
    );
    let worker = cluster.await_worker("postgres");
    // A worker that holds a lease, with statements that it prepared before.
    let mut holder = cluster.connect();
    let claim = holder.prepare("SELECT id, token FROM queue.claim('1 hour', 'held')").expect("prepare");
    let extend = holder.prepare("SELECT queue.extend($1, $2)").expect("prepare");
    let complete = holder.prepare("SELECT queue.complete($1, $2, '1')").expect("prepare");
    let held = holder.query_one(&claim, &[]).expect("claim");
    let (id, token): (i64, i64) = (held.get(0), held.get(1));
    run(&mut client, "SELECT queue.claim('2 seconds', 'short')");
    // One that waits, and is connected for as long.
    let config = cluster.config("postgres");
    let waiter = std::thread::spawn(move || {
        let mut waiter = config.connect(postgres::NoTls).expect("connect");
        let ready: bool = waiter.query_one("CALL queue.wait('quiet', '1 minute')", &[]).expect("wait").get(0);
        (ready, waiter.query("SELECT FROM queue.claim('1 hour', 'quiet')", &[]).expect("claim").len())
    });
    eventually("it waits", SOON, || {
        number(&mut client, "SELECT coalesce((queue.engine_stats() #>> '{lanes,quiet,waiters}')::bigint, 0)")
            == 1
    });
    // And many that work.
    let (stop, pushed, done) = (AtomicBool::new(false), Mutex::new(Vec::<i64>::new()), AtomicUsize::new(0));
    let errors = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = cluster.connect();
                while !stop.load(Ordering::Relaxed) {
                    let mut round = || -> Result<(), postgres::Error> {
                        let id = client.query_one("SELECT queue.push('default')", &[])?.get(0);
                        pushed.lock().expect("the list").push(id);
                        for task in client.query("SELECT id, token FROM queue.claim('1 minute')", &[])? {
                            let (id, token): (i64, i64) = (task.get(0), task.get(1));
                            client.execute("SELECT queue.complete($1, $2)", &[&id, &token])?;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    };
                    round()
                        .unwrap_or_else(|error| errors.lock().expect("the list").push(format!("{error:?}")));
                }
            });
        }
        let goes_on = || {
            let before = done.load(Ordering::Relaxed);
            eventually("tasks are completed", SOON, || done.load(Ordering::Relaxed) > before + 100);
        };
        goes_on();
        // Behind a long transaction it gives up after its lock_timeout, and nothing has changed.
        run(&mut holder, "BEGIN; SELECT queue.push('short', delay => '1 hour')");
        let update = "SET lock_timeout = '50 ms'; ALTER EXTENSION queue_ext UPDATE TO '99.0'";
        let refused = client.batch_execute(update).expect_err("the tables are in use");
        assert_eq!(refused.code().map(|code| code.code()), Some("55P03"));
        run(&mut holder, "ROLLBACK");
        run(&mut client, "SET lock_timeout = 0; ALTER EXTENSION queue_ext UPDATE TO '99.0'");
        goes_on();
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(*errors.lock().expect("the list"), [""; 0]);
    // Nothing is lost, and nothing was done twice.
    let pushed = pushed.into_inner().expect("the list");
    let query = "SELECT count(*), count(DISTINCT id) FROM queue.all_tasks WHERE id = ANY ($1)";
    let row = client.query_one(query, &[&pushed]).expect("count");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (pushed.len() as i64, pushed.len() as i64));
    let completed = number(&mut client, "SELECT count(*) FROM queue.history WHERE queue = 'default'");
    assert_eq!(completed, done.load(Ordering::Relaxed) as i64);
    // Leases stay valid, waiting sessions are woken, and the worker ends expired leases.
    holder.query_one(&extend, &[&id, &token]).expect("extend");
    holder.query_one(&complete, &[&id, &token]).expect("complete");
    run(&mut client, "SELECT queue.push('quiet')");
    assert_eq!(waiter.join().expect("the waiter"), (true, 1));
    eventually("the lease is over", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'short' AND state = 'queued'")
            == 1
    });
    // It is the same worker process as before; it reports the new version when it starts again.
    assert_eq!(cluster.await_worker("postgres"), worker);
    client.execute("SELECT pg_terminate_backend($1)", &[&worker]).expect("terminate");
    let warning = "this database has version 99.0 of queue_ext, and the library is of version";
    eventually("the new one warns", SOON, || cluster.log().contains(warning));
    let query = "SELECT status || ': ' || hint FROM queue.health() WHERE name = 'version'";
    let health: String = client.query_one(query, &[]).expect("health").get(0);
    assert!(health.starts_with("warning") && health.contains("ALTER EXTENSION queue_ext UPDATE"), "{health}");
    assert!(!cluster.log().contains("deadlock"), "nobody may run into a deadlock");
}
