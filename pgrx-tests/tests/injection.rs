//! An ERROR or a panic at every point of the native functions: the client gets an ERROR, the server continues, and
//! shared memory hides no task, keeps no lease and blocks no session.
//!
//! The library has fault injection (src/injection.rs). Each scenario is run once to record the points that it passes,
//! and then once for each point, fault and context.

#[path = "injection/events.rs"]
mod events;
#[path = "injection/late.rs"]
mod late;
#[path = "injection/locked.rs"]
mod locked;
#[path = "injection/scenarios.rs"]
mod scenarios;
#[path = "injection/waits.rs"]
mod waits;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc;

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, SOON, Settings, eventually, number, run};
use scenarios::{Hold, SCENARIOS, Scenario};

/// The error that the client gets for each fault.
const FAULTS: [(&str, &str); 2] = [("error", "38000 error at"), ("panic", "XX000 panic at")];

/// Points at which no call has changed anything yet: one scenario is enough.
const EARLY: [&str; 4] = ["TablesSought", "TablesLocked", "QueueRead", "ClaimOpened"];

/// A server with that library; nothing where the library was not built.
fn cluster(name: &str) -> Option<Cluster> {
    cluster_with(name, "")
}

/// The same with more settings.
fn cluster_with(name: &str, settings: &str) -> Option<Cluster> {
    let Ok(folder) = std::env::var("INJECTION") else {
        println!("skipped: the library with faults is there for the first version alone (make injection)");
        return None;
    };
    assert!(Path::new(&folder).join("queue_ext.so").exists(), "make injection builds {folder}");
    let extra = format!(
        "dynamic_library_path = '{folder}:$libdir'\nqueue.sweep_interval = '1h'\nmax_prepared_transactions = 10\n{settings}"
    );
    let mut cluster = Cluster::start_with(name, &Settings { preload: true, extra: extra.leak() });
    let mut admin = cluster.connect();
    run(&mut admin, "CREATE EXTENSION queue_ext");
    cluster.await_worker("postgres");
    Some(cluster)
}

/// Only the sessions of the test end leases, process events and refill lanes.
fn send_the_worker_away(client: &mut Client) {
    run(client, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(client, "SELECT pg_reload_conf()");
    eventually("the worker leaves", SOON, || stats(client)["worker"].is_null());
}

fn ids(client: &mut Client, query: &str) -> BTreeSet<i64> {
    let rows = client.query(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

fn stats(client: &mut Client) -> serde_json::Value {
    client.query_one("SELECT queue.engine_stats()", &[]).expect("stats").get(0)
}

fn served(client: &mut Client) -> u64 {
    stats(client)["verbs"]["served"].as_u64().expect("a count")
}

/// Every point.
fn points(client: &mut Client) -> BTreeSet<String> {
    let query = "SELECT unnest(enumvals) FROM pg_settings WHERE name = 'queue.fault_at'";
    let all = client.query(query, &[]).expect("points");
    all.iter().map(|row| row.get(0)).filter(|point| point != "Nowhere").collect()
}

/// The server is the one that was started, and no process of it has crashed.
fn unharmed(cluster: &Cluster) {
    let log = cluster.log();
    for sign in ["PANIC", "terminated by signal", "terminating any other active", "stuck"] {
        assert!(!log.contains(sign), "the log says {sign}");
    }
}

/// Where the statement stands that comes to a fault.
#[derive(Clone, Copy, Debug)]
enum Context {
    Plain,
    Savepoint,
    /// A block of PL/pgSQL with an exception handler.
    Block,
}

impl Context {
    const ALL: [Self; 3] = [Self::Plain, Self::Savepoint, Self::Block];

    /// Runs the statement and returns the SQLSTATE and message of its ERROR. Its effects are then undone; unless it
    /// was a plain statement, the transaction is still open.
    fn run(self, client: &mut Client, statement: &str) -> Option<String> {
        if let Self::Block = self {
            run(client, &format!(
                "SET test.caught = ''; BEGIN; DO $block$ BEGIN EXECUTE $q${statement}$q$;
                 EXCEPTION WHEN OTHERS THEN PERFORM set_config('test.caught', SQLSTATE || ' ' || SQLERRM, false);
                 END $block$"
            ));
            let caught: String =
                client.query_one("SELECT current_setting('test.caught')", &[]).expect("caught").get(0);
            return (!caught.is_empty()).then_some(caught);
        }
        if let Self::Savepoint = self {
            run(client, "BEGIN; SAVEPOINT s");
        }
        let error = outcome(client, statement)?;
        if let Self::Savepoint = self {
            run(client, "ROLLBACK TO s");
        }
        Some(error)
    }

    fn end(self, client: &mut Client) {
        if !matches!(self, Self::Plain) {
            run(client, "COMMIT");
        }
    }
}

/// The ERROR that the statement ended with, if it did; whatever the session does then, it has done.
fn outcome(client: &mut Client, statement: &str) -> Option<String> {
    let error = client.batch_execute(statement).err()?;
    run(client, "");
    Some(told(&error))
}

/// The SQLSTATE and the message of an ERROR.
fn told(error: &postgres::Error) -> String {
    let error = error.as_db_error().unwrap_or_else(|| panic!("not an ERROR of the server: {error:?}"));
    format!("{} {}", error.code().code(), error.message())
}

/// A session that reports the points it passes, and its report.
fn telling(cluster: &Cluster) -> (Client, mpsc::Receiver<String>) {
    let (tell, said) = mpsc::channel();
    let mut config = cluster.config("postgres");
    config.notice_callback(move |notice| _ = tell.send(notice.message().to_owned()));
    let mut client = config.connect(NoTls).expect("connect");
    run(&mut client, "SET queue.fault = tell");
    (client, said)
}

/// The queue of a scenario, and the other sessions.
struct Stage<'a> {
    cluster: &'a Cluster,
    other: &'a mut Client,
    queue: &'a str,
    scenario: &'a Scenario,
}

impl<'a> Stage<'a> {
    /// The lanes of the queues know nothing, and the scenario's preparations are made.
    fn set(cluster: &'a Cluster, other: &'a mut Client, scenario: &'a Scenario, queue: &'a str) -> Self {
        let stage = Self { cluster, other, queue, scenario };
        let push = stage.of("SELECT queue.push('default'), queue.push('Q')");
        run(stage.other, &format!("BEGIN; {push}; PREPARE TRANSACTION 'undone'"));
        run(stage.other, "ROLLBACK PREPARED 'undone'");
        scenario.prepare.iter().for_each(|statement| run(stage.other, &stage.of(statement)));
        stage
    }

    /// A statement about this queue.
    fn of(&self, statement: &str) -> String {
        statement.replace("'Q'", &format!("'{}'", self.queue))
    }

    /// Runs the scenario's statement while another session holds locks, until the statement ends or waits for it.
    fn act(&mut self, one: &mut Client, context: Context) -> Option<String> {
        let statement = self.of(self.scenario.statement);
        let mut holder = self.cluster.connect();
        let canceller = holder.cancel_token();
        let (hold, release) = match self.scenario.hold {
            Hold::Nothing => return context.run(one, &statement),
            Hold::Rows(hold, release) => (self.of(hold), release),
            Hold::Refill => (
                self.of("SET queue.fault = stop; SET queue.fault_at = RefillRow; SELECT queue.claim('1 hour', 'Q')"),
                "",
            ),
        };
        let pid = |client: &mut Client| number(client, "SELECT pg_backend_pid()::bigint");
        let (one_pid, holder_pid) = (pid(one), pid(&mut holder));
        let mut waits = |pid| {
            let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type IN ('Extension', 'Lock') AND state = 'active' AND pid =";
            number(self.other, &format!("{query} {pid}")) == 1
        };
        std::thread::scope(|scope| {
            let holding = scope.spawn(move || (holder.batch_execute(&hold), holder));
            eventually("the other session holds", SOON, || holding.is_finished() || waits(holder_pid));
            let acting = scope.spawn(|| context.run(one, &statement));
            eventually("it ends or waits", SOON, || acting.is_finished() || waits(one_pid));
            if release.is_empty() {
                canceller.cancel_query(NoTls).expect("cancel");
            }
            let (held, mut holder) = holding.join().expect("join");
            let stopped = held.err().map(|error| told(&error)[..5].to_owned());
            assert_eq!(stopped.as_deref(), release.is_empty().then_some("57014"));
            run(&mut holder, release);
            acting.join().expect("join")
        })
    }

    /// The rows of the tasks, without columns that a fault cannot affect.
    fn truth(&mut self) -> String {
        let query = "SELECT coalesce(string_agg(concat_ws(' ', id, state, attempt, token, admission, lease_until, worker, run_at), E'\n' ORDER BY id), '')
                     FROM queue.tasks WHERE queue = 'Q'";
        self.other.query_one(&self.of(query), &[]).expect("truth").get(0)
    }

    /// How many tasks there are, and were.
    fn total(&mut self) -> i64 {
        let query = "SELECT (SELECT count(*) FROM queue.tasks WHERE queue = 'Q') + count(*) FROM queue.history WHERE queue = 'Q'";
        number(self.other, &self.of(query))
    }

    fn claim(&mut self) -> BTreeSet<i64> {
        let query = self.of("SELECT id FROM queue.claim('1 hour', 'Q', 2000)");
        ids(self.other, &query)
    }

    /// Another session gets every task that can be claimed, each once, and no other.
    fn all_claimable(&mut self) {
        let query = self.of("SELECT id FROM queue.tasks WHERE queue = 'Q' AND CASE state
                 WHEN 'queued' THEN admission < 2 AND run_at <= clock_timestamp()
                 WHEN 'running' THEN lease_until <= clock_timestamp() END");
        let expected = ids(self.other, &query);
        let mut found = BTreeSet::new();
        eventually("all tasks are claimed", SOON, || {
            assert!(self.claim().into_iter().all(|id| found.insert(id)), "no task twice");
            found.len() >= expected.len()
        });
        assert_eq!(found, expected);
        // On a busy machine a check for events may take long, and a session then leaves events to SQL for a while.
        eventually("claims are native again", SOON, || {
            let natively = served(self.other);
            assert_eq!(self.claim(), BTreeSet::new());
            served(self.other) == natively + 1
        });
    }

    /// All tasks can be completed, and are then all there were.
    fn all_completed(&mut self, total: i64) {
        let complete =
            self.of("WITH tasks AS (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM queue.tasks
                            WHERE queue = 'Q' AND state = 'running')
             SELECT queue.complete_many(ids, tokens) FROM tasks WHERE ids IS NOT NULL");
        let left = self.of("SELECT count(*) FROM queue.tasks WHERE queue = 'Q'");
        // The end of one may let another in.
        eventually("all tasks are completed", SOON, || {
            run(self.other, &complete);
            self.claim();
            number(self.other, &left) == 0
        });
        assert_eq!(self.total(), total);
        let counted = self.of("SELECT count(*) FROM queue_internal.counted(ARRAY['Q'])");
        assert_eq!(number(self.other, &counted), 1, "somebody else can count");
        let lane = &stats(self.other)["lanes"][self.queue];
        assert_eq!((&lane["ready"], &lane["waiters"]), (&0.into(), &0.into()), "{lane}");
    }

    /// The session with the fault continues normally.
    fn goes_on(&mut self, one: &mut Client) {
        run(one, "RESET queue.fault");
        let push = self.of("SELECT queue.push('Q')");
        let work = self.of("DO $$ DECLARE task queue.claimed_task; BEGIN
                     SELECT * INTO STRICT task FROM queue.claim('1 hour', 'Q');
                     PERFORM queue.complete(task.id, task.token);
                 END $$");
        eventually("it is native", SOON, || {
            let before = served(self.other);
            run(one, &push);
            run(one, &work);
            served(self.other) == before + 3
        });
    }
}

#[test]
fn a_fault_in_a_call_leaves_nothing_behind() {
    let Some(cluster) = cluster("injection") else { return };
    let mut other = cluster.connect();
    send_the_worker_away(&mut other);
    // A lane that is never refilled, or stays locked, would keep everybody waiting.
    run(&mut other, "SET statement_timeout = '60s'");
    let started =
        other.query_one("SELECT pg_postmaster_start_time()::text", &[]).expect("start").get::<_, String>(0);
    let points = points(&mut other);
    let (mut missing, mut count) = (points.clone(), 0);
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        for context in Context::ALL {
            let queue = format!("{number} {context:?}");
            run(&mut other, &format!("SELECT queue.create('{queue}'); TRUNCATE queue.history"));
            let (mut one, said) = telling(&cluster);
            let mut stage = Stage::set(&cluster, &mut other, scenario, &queue);
            assert_eq!(stage.act(&mut one, context), None, "{}", scenario.name);
            context.end(&mut one);
            let total = stage.total();
            stage.all_completed(total);
            let mut reached: BTreeSet<String> =
                said.try_iter().filter(|point| points.contains(point)).collect();
            reached.retain(|point| number == 0 || !EARLY.contains(&point.as_str()));
            println!(
                "{} ({context:?}): {}",
                scenario.name,
                reached.iter().cloned().collect::<Vec<_>>().join(" ")
            );
            for (point, (fault, error)) in reached.iter().flat_map(|point| FAULTS.map(|fault| (point, fault)))
            {
                missing.remove(point);
                count += 1;
                let mut stage = Stage::set(&cluster, &mut other, scenario, &queue);
                let mut one = cluster.connect();
                run(&mut one, &format!("SET queue.fault = {fault}; SET queue.fault_at = {point}"));
                let (truth, total) = (stage.truth(), stage.total());
                println!("  {fault} at {point}");
                assert_eq!(stage.act(&mut one, context), Some(format!("{error} {point}")));
                assert_eq!(stage.truth(), truth);
                stage.all_claimable();
                context.end(&mut one);
                stage.all_completed(total);
                stage.goes_on(&mut one);
            }
            unharmed(&cluster);
        }
    }
    let now =
        other.query_one("SELECT pg_postmaster_start_time()::text", &[]).expect("start").get::<_, String>(0);
    assert_eq!(now, started);
    let waits = waits::POINTS.map(str::to_owned);
    assert_eq!(missing, BTreeSet::from(waits), "every point but those of a sleeping session was come by");
    println!("{count} runs");
}
