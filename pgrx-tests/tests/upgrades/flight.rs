//! ALTER EXTENSION UPDATE under load: leased, awaited and pushed tasks, and sessions that were open before.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, eventually};

use super::{SOON, laboratory, number, run};

/// Roles with rights, one of them with a session that is open all the time.
struct Rights {
    web: Client,
    rows: Vec<String>,
}

impl Rights {
    const ROWS: &str = "SELECT format('%s %s %s', role, kind, queue) FROM queue.rights ORDER BY 1";

    fn given(cluster: &Cluster, admin: &mut Client) -> Self {
        run(
            admin,
            "SELECT queue.create('web'); CREATE ROLE web LOGIN; CREATE ROLE boss LOGIN;
             SELECT queue.grant_producer('web', 'web'), queue.grant_worker('web', 'web'), queue.grant_operator('boss')",
        );
        let rows = texts(admin, Self::ROWS);
        assert_eq!(rows.len(), 3);
        let mut rights = Self { web: login(cluster, "web"), rows };
        rights.hold();
        rights
    }

    /// In the open session.
    fn hold(&mut self) {
        run(&mut self.web, "SELECT queue.push('web')");
        run(&mut self.web, "SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'web')");
        refused(&mut self.web, "SELECT queue.push('default')");
        refused(&mut self.web, "SELECT queue.claim('1 minute')");
        refused(&mut self.web, "SELECT FROM queue.tasks");
    }

    fn are_kept(&mut self, cluster: &Cluster, admin: &mut Client) {
        assert_eq!(texts(admin, Self::ROWS), self.rows);
        self.hold();
        self.web = login(cluster, "web");
        self.hold();
        let mut boss = login(cluster, "boss");
        run(
            &mut boss,
            "SELECT queue.pause('web'), queue.resume('web'), queue.push('web'), queue.purge('web')",
        );
        // A function of the new version, which an operator may call when its privileges are renewed.
        refused(&mut boss, "SELECT queue.site()");
        run(admin, "UPDATE queue.rights SET kind = kind");
        run(&mut boss, "SELECT queue.site()");
        self.hold();
    }
}

fn login(cluster: &Cluster, role: &str) -> Client {
    cluster.config("postgres").user(role).connect(NoTls).expect("connect")
}

fn texts(client: &mut Client, query: &str) -> Vec<String> {
    client.query(query, &[]).expect(query).iter().map(|row| row.get(0)).collect()
}

fn refused(client: &mut Client, statement: &str) {
    let error = client.batch_execute(statement).expect_err(statement);
    assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{statement}: {error}");
}

#[test]
fn work_continues_while_the_extension_is_updated() {
    let (mut cluster, _) = laboratory("upgrades-flight");
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE EXTENSION queue_ext;
         SELECT queue.create('held'), queue.create('quiet'), queue.create('short'), queue.push('held'), queue.push('short')",
    );
    let mut rights = Rights::given(&cluster, &mut client);
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
        let mut waiter = config.connect(NoTls).expect("connect");
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
    rights.are_kept(&cluster, &mut client);
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
