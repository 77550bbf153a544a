//! Everything that a role with rights for queues a and m1 to m30 can do to delay others, each flood in its own
//! session.

use super::*;
use postgres::NoTls;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Creates the roles, the queues, and the initial tasks.
pub fn prepare(client: &mut Client) {
    run(
        client,
        "CREATE ROLE nobody LOGIN; CREATE ROLE hostile LOGIN; CREATE ROLE tenant LOGIN;
         SELECT queue.grant_producer('tenant', 'b'), queue.grant_worker('tenant', 'b');
         SELECT queue.create('m' || n) FROM generate_series(1, 30) AS n;
         SELECT queue.grant_producer('hostile', q.name), queue.grant_worker('hostile', q.name), queue.grant_operator('hostile', q.name)
         FROM queue.queues AS q WHERE q.name = 'a' OR q.name LIKE 'm%';
         SELECT queue.schedule('nightly ' || n, '* * * * * *', 'a', options => '{\"key\": \"nightly\"}') FROM generate_series(1, 20) AS n",
    );
}

/// Sessions that continue until they have to stop.
pub struct Floods {
    stop: Arc<AtomicBool>,
    sessions: Vec<JoinHandle<Effort>>,
    /// How many statements there were, and how many were refused.
    pub statements: Arc<AtomicU64>,
    pub refused: Arc<AtomicU64>,
}

/// Role, statement and pause in milliseconds of each flood. {n} is a new number each time.
const FLOODS: &[(&str, u64, &str)] = &[
    // Locks that are kept.
    ("hostile", 0, "BEGIN; SELECT queue.push('a', key => 'nightly'); SELECT pg_sleep(3); ROLLBACK"),
    (
        "hostile",
        0,
        "BEGIN; SELECT count(*) FROM queue.claim('1 second', 'a', 100); SELECT pg_sleep(2); ROLLBACK",
    ),
    (
        "hostile",
        0,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.tasks; SELECT pg_sleep(5); COMMIT",
    ),
    (
        "nobody",
        0,
        "BEGIN; SELECT pg_advisory_xact_lock(hashtext('queue_ext history'), 0); SELECT pg_sleep(5); COMMIT",
    ),
    ("hostile", 100, "LOCK TABLE queue.tasks; LOCK TABLE queue_internal.locks"),
    // Rows that other sessions have to read.
    (
        "hostile",
        50,
        "INSERT INTO queue.tasks (queue, priority, run_at) SELECT 'a', {n} * 50 + n, now() + interval '1 day' FROM generate_series(1, 50) AS n",
    ),
    (
        "hostile",
        100,
        "SELECT count(queue.push('a', delay => n * interval '1 ms')) FROM generate_series(1, 100) AS n",
    ),
    (
        "hostile",
        50,
        "SELECT count(queue.push('a', group_key => n::text)) FROM generate_series({n}, {n} + 50) AS n",
    ),
    (
        "hostile",
        50,
        "SELECT queue.push('a', after => ARRAY[queue.push('a')]), queue.push('a', key => '{n}', key_ttl => '100 years')",
    ),
    ("hostile", 50, "SELECT count(*) FROM queue.claim('1 ms', 'a', 100)"),
    ("hostile", 20, "BEGIN; SELECT count(queue.push('a')) FROM generate_series(1, 100); ROLLBACK"),
    (
        "hostile",
        100,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT queue.complete(id, token) FROM queue.claim('1 second', 'a', 20); COMMIT",
    ),
    (
        "hostile",
        50,
        "SELECT queue.schedule('late {n}', '* * * * * *', 'm' || 1 + {n} % 30, options => '{\"missed_runs\": \"all\"}')",
    ),
    ("hostile", 50, "SELECT queue.bind('#.w{n}', 'a'); SELECT count(*) FROM queue.publish('x.y.w{n}')"),
    // Resources that the server shares.
    (
        "hostile",
        20,
        "SELECT count(*) FROM (SELECT queue.claim('1 second', 'm' || n) FROM generate_series(1, 30) AS n) AS c",
    ),
    ("hostile", 50, "SELECT count(queue.push('m' || n)) FROM generate_series(1, 30) AS n"),
    ("hostile", 0, "CALL queue.wait('a', '3 seconds', NULL)"),
    (
        "hostile",
        0,
        "CALL queue.wait(ARRAY['m1', 'm2', 'm3', 'm4', 'm5', 'm6', 'm7', 'm8', 'm9', 'm10'], '3 seconds', NULL)",
    ),
    ("nobody", 20, "SELECT pg_notify('queue_b', ''), pg_notify('queue_ext', '{n}')"),
    ("nobody", 200, "DROP SUBSCRIPTION IF EXISTS none_{n}"),
    ("nobody", 2, "DROP EXTENSION queue_ext"),
    // Functions of operators.
    ("hostile", 200, "SELECT count(*) FROM queue.stats; SELECT count(*) FROM queue.health()"),
    (
        "hostile",
        100,
        "SELECT queue.pause('a'); SELECT queue.resume('a'); SELECT queue.configure('a', '{\"max_running\": 50}'); SELECT queue.configure('a', '{\"max_running\": null}')",
    ),
    ("hostile", 500, "CALL queue.reprioritise_where('{\"queue\": \"a\"}', {n} % 5)"),
    ("hostile", 5000, "SELECT queue.purge('a')"),
    ("hostile", 5000, "SELECT count(queue.purge('m' || n)) FROM generate_series(1, 30) AS n"),
    (
        "hostile",
        5000,
        "SELECT count(queue.unschedule(name)) FROM queue.schedules WHERE name LIKE 'late%'; SELECT count(queue.unbind(topic_pattern, 'a')) FROM queue.bindings",
    ),
    // Of queue b, and refused.
    ("hostile", 50, "SELECT queue.push('b')"),
    ("hostile", 50, "SELECT queue.claim('1 hour', 'b')"),
];

/// How many statements a session ran, and how much processor time each took.
#[derive(Clone, Copy)]
pub struct Effort {
    every: Duration,
    processor: Duration,
}

impl Floods {
    pub fn begin(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (statements, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let sessions = FLOODS.iter().map(|(role, pause, statement)| {
            let config = cluster.config("postgres").user(role).clone();
            let (stop, said, no) = (stop.clone(), statements.clone(), refused.clone());
            std::thread::spawn(move || {
                let mut client = config.connect(NoTls).expect("connect");
                let pid = number(&mut client, "SELECT pg_backend_pid()::bigint");
                let started = Instant::now();
                let mut times = 0;
                while !stop.load(Ordering::Relaxed) {
                    let n = u64::from(times);
                    times += 1;
                    let result = client.batch_execute(&statement.replace("{n}", &n.to_string()));
                    said.fetch_add(1, Ordering::Relaxed);
                    if result.is_err() {
                        no.fetch_add(1, Ordering::Relaxed);
                        if statement.starts_with("BEGIN") {
                            drop(client.batch_execute("ROLLBACK"));
                        }
                    }
                    std::thread::sleep(Duration::from_millis(*pause));
                }
                let times = times.max(1);
                Effort { every: started.elapsed() / times, processor: processor_time(pid) / times }
            })
        });
        Self { sessions: sessions.collect(), stop, statements, refused }
    }

    pub fn end(self) -> Vec<Effort> {
        self.stop.store(true, Ordering::Relaxed);
        self.sessions.into_iter().map(|session| session.join().expect("a flood")).collect()
    }
}

/// How much of a processor a process has used.
fn processor_time(pid: i64) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let after_name = text.rsplit(')').next().expect("its numbers");
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("ticks"))
        .sum();
    // A hundred a second, on every Linux.
    Duration::from_millis(10 * ticks)
}

/// Runs while as many sessions write to their own tables, as often as the floods ran a statement, and use as much
/// processor time. This measures the cost of sharing a server with any other work.
pub fn beside_work_of_their_own<R>(cluster: &Cluster, efforts: &[Effort], run: impl FnOnce() -> R) -> R {
    let mut admin = cluster.connect();
    let write = |client: &mut Client, table: usize, looks: u64| {
        // Much of the time of a flood goes into reading.
        let statement = format!(
            "INSERT INTO work_{table} SELECT n, md5(n::text) FROM generate_series(1, {looks}) AS n WHERE n % 200 = 0"
        );
        super::run(client, &statement);
    };
    for table in 0..efforts.len() {
        super::run(&mut admin, &format!("CREATE TABLE work_{table} (n bigint, text text)"));
    }
    let pid = number(&mut admin, "SELECT pg_backend_pid()::bigint");
    let (looks, before) = (2_000_000, processor_time(pid));
    write(&mut admin, 0, looks);
    let each = (processor_time(pid) - before) / looks as u32;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (table, effort) in efforts.iter().enumerate() {
            let (mut client, over) = (cluster.connect(), &over);
            let looks = (effort.processor.as_nanos() / each.as_nanos().max(1)) as u64;
            scope.spawn(move || {
                let mut next = Instant::now();
                while !over.load(Ordering::Relaxed) {
                    write(&mut client, table, looks);
                    next = (next + effort.every).max(Instant::now());
                    std::thread::sleep(next - Instant::now());
                }
            });
        }
        let result = run();
        over.store(true, Ordering::Relaxed);
        result
    })
}
