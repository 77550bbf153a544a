//! Waiting through PgBouncer in transaction mode.

use super::*;

/// PgBouncer in transaction mode, with one server connection for each of so many clients.
struct Bouncer {
    process: std::process::Child,
    config: postgres::Config,
}

impl Bouncer {
    fn start(cluster: &Cluster, pool: usize) -> Self {
        let folder = cluster.folder().display();
        let ini = cluster.folder().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={folder}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = {folder}\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = {pool}\nmax_client_conn = 300\n\
             logfile = {folder}/pgbouncer.log\npidfile = {folder}/pgbouncer.pid\nignore_startup_parameters = extra_float_digits\n"
        );
        // A database of that kind names its user.
        std::fs::write(&ini, text.replace("* = host", "postgres = user=postgres host"))
            .expect("write the settings");
        let process = cluster.start_program(&pgbouncer(), &["-q", ini.to_str().expect("a plain path")]);
        let mut config = cluster.config("postgres");
        config.port(6432);
        let mut bouncer = Self { process, config };
        eventually("PgBouncer takes connections", SOON, || bouncer.try_connect().is_some());
        bouncer
    }

    fn try_connect(&mut self) -> Option<Client> {
        self.config.connect(postgres::NoTls).ok()
    }

    fn connect(&mut self) -> Client {
        self.try_connect().expect("connect to PgBouncer")
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Where PgBouncer is: beside the server, as Debian's packages have it.
fn pgbouncer() -> std::path::PathBuf {
    queue_ext_tests::cluster::home().join("debian/usr/sbin/pgbouncer")
}

#[test]
fn through_pgbouncer_in_transaction_mode_a_waiter_keeps_its_connection_and_no_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-bouncer");
    let mut direct = cluster.connect();
    let mut bouncer = Bouncer::start(&cluster, 4);
    let mut times = Vec::new();
    let mut other = bouncer.connect();
    for _ in 0..20 {
        // The simple protocol: a statement with a name would be in one connection only.
        let mut client = bouncer.connect();
        let thread = thread::spawn(move || {
            let said = client.simple_query("CALL queue.wait()").expect("wait");
            let told = Instant::now();
            let claimed =
                client.simple_query("SELECT queue.complete(id, token) FROM queue.claim()").expect("work");
            (said, claimed.len(), told)
        });
        await_waiters(&mut direct, "default", 1);
        let held = number(
            &mut direct,
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%' AND state = 'active'
             AND (backend_xmin IS NOT NULL OR xact_start IS NOT NULL)",
        );
        assert_eq!(held, 0);
        // Meanwhile others work through the same pool, and one of them pushes.
        other.simple_query("SELECT queue.push('default')").expect("push");
        let pushed = Instant::now();
        let (said, claimed, told) = thread.join().expect("join");
        let ready = said.iter().any(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        });
        assert!(ready && claimed > 1, "{said:?}, {claimed}");
        times.push(told.saturating_duration_since(pushed));
    }
    let [p50, ..] = report("from a push's return to that of queue.wait, through PgBouncer", &mut times);
    assert!(p50 < 10.0, "{p50} ms");
    assert_eq!(number(&mut direct, "SELECT count(*) FROM queue.history"), 20);

    // As many as there are server connections can wait; then the pool is full until one returns.
    let sleepers: Vec<_> = (0..4)
        .map(|_| {
            let mut client = bouncer.connect();
            thread::spawn(move || client.simple_query("CALL queue.wait()").map(drop))
        })
        .collect();
    await_waiters(&mut direct, "default", 4);
    let blocked = thread::spawn(move || other.simple_query("SELECT 1").map(drop));
    thread::sleep(Duration::from_millis(200));
    assert!(!blocked.is_finished(), "no server connection is free");
    run(&mut direct, "SELECT queue.push('default')");
    blocked.join().expect("join").expect("one is free again");
    run(&mut direct, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[3]))");
    sleepers.into_iter().for_each(|thread| thread.join().expect("join").expect("told"));
    assert_eq!(waiters(&mut direct, "default"), 0);
}
