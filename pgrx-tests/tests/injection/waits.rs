//! A fault in a waiting session: it leaves the lists, and its wake-up goes to the next session.

use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::*;
use queue_ext_tests::{WOKEN, stalls};

/// The points that only a session comes by that has to wait.
pub const POINTS: [&str; 6] =
    ["WaitSees", "WaitEntered", "WaitFound", "WaitSleeps", "WaitWoken", "WaitBegins"];
/// Those at which it stands in the lists, and was woken.
const AFTER_WAKING: [&str; 2] = ["WaitWoken", "WaitBegins"];

/// The event that is waited for. T is the id of a running task, Q a queue without a claimable task.
struct Kind {
    options: &'static str,
    /// From the client, and from a procedural block, which keeps a transaction while it waits.
    calls: [&'static str; 2],
    wake: &'static str,
    claimable: usize,
    points: &'static [&'static str],
}

const WAIT: [&str; 2] = [
    "CALL queue.wait('Q', '20 s', NULL)",
    "DO $$ DECLARE ready boolean; BEGIN CALL queue.wait('Q', '20 s', ready); END $$",
];
const WAIT_RESULT: [&str; 2] = [
    "CALL queue.wait_result(T, '20 s', NULL, NULL)",
    "DO $$ DECLARE state text; result jsonb; BEGIN CALL queue.wait_result(T, '20 s', state, result); END $$",
];

const KINDS: [Kind; 3] = [
    Kind {
        options: "{}",
        calls: WAIT,
        wake: "SELECT queue.push('Q')",
        claimable: 1,
        points: POINTS.split_at(1).1,
    },
    // SQL checks there.
    Kind {
        options: "{\"max_running\": 10}",
        calls: WAIT,
        wake: "SELECT queue.push('Q')",
        claimable: 1,
        points: &POINTS,
    },
    Kind {
        options: "{}",
        calls: WAIT_RESULT,
        wake: "SELECT queue.complete(T, 1)",
        claimable: 0,
        points: &POINTS,
    },
];

/// A session that waits in its own thread, and returns its result and the time.
struct Waiting(i64, JoinHandle<(Client, Option<String>, Instant)>);

fn start(mut client: Client, call: String) -> Waiting {
    let pid = number(&mut client, "SELECT pg_backend_pid()::bigint");
    Waiting(
        pid,
        thread::spawn(move || {
            let error = outcome(&mut client, &call);
            (client, error, Instant::now())
        }),
    )
}

impl Waiting {
    /// Whether it is seen to sleep before it has ended.
    fn is_asleep(&self, other: &mut Client) -> bool {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('Extension', 'QueueExtWait') AND pid =";
        let mut asleep = false;
        eventually("it sleeps", SOON, || {
            asleep = number(other, &format!("{query} {}", self.0)) == 1;
            asleep || self.1.is_finished()
        });
        asleep
    }

    fn asleep(self, other: &mut Client) -> Self {
        assert!(self.is_asleep(other), "it sleeps");
        self
    }

    /// It is woken soon, and gets no error.
    fn woken(self, since: Instant) -> Client {
        let (client, error, at) = self.1.join().expect("join");
        assert_eq!(error, None);
        let late = stalls::took(since, at);
        assert!(late < WOKEN, "woken after {late:?}");
        client
    }

    fn failed(self, error: &str) -> Client {
        let (client, told, _) = self.1.join().expect("join");
        assert_eq!(told.as_deref(), Some(error));
        client
    }
}

/// How many stand in the list of a queue.
fn waiters(client: &mut Client, queue: &str) -> u64 {
    stats(client)["lanes"][queue]["waiters"].as_u64().unwrap_or(0)
}

/// One session comes to a fault while another waits behind it. Returns false if it came to the fault too early: the server
/// wakes sessions for reasons of its own, too.
fn play(
    cluster: &Cluster,
    other: &mut Client,
    kind: &Kind,
    call: &str,
    queue: &str,
    fault: [&str; 3],
) -> bool {
    let [fault, point, error] = fault;
    run(other, &format!("SELECT queue.create('{queue}', '{}')", kind.options));
    let [first, second] = [(); 2].map(|()| {
        let id = number(other, &format!("SELECT queue.push('{queue}')"));
        run(other, &format!("SELECT queue.claim('1 hour', '{queue}')"));
        id
    });
    let about = |statement: &str, task: i64| {
        statement.replace("'Q'", &format!("'{queue}'")).replace("(T", &format!("({task}"))
    };

    let mut one = cluster.connect();
    // A new session's latch is set: its first sleep is none.
    run(&mut one, &about(kind.calls[0], first).replace("20 s", "50 ms"));
    run(&mut one, &format!("SET queue.fault = {fault}; SET queue.fault_at = {point}"));
    let one = start(one, about(call, first));
    let behind = || start(cluster.connect(), about(call, first));
    let (mut one, next, since) = if AFTER_WAKING.contains(&point) {
        if !one.is_asleep(other) {
            one.failed(error);
            return false;
        }
        let next = behind().asleep(other);
        let since = Instant::now();
        run(other, &about(kind.wake, first));
        (one.failed(error), next, since)
    } else {
        let one = one.failed(error);
        assert_eq!(waiters(other, queue), 0);
        let next = behind().asleep(other);
        let since = Instant::now();
        run(other, &about(kind.wake, first));
        (one, next, since)
    };
    next.woken(since);
    let claim = format!("SELECT id FROM queue.claim('1 hour', '{queue}', 10)");
    assert_eq!(ids(other, &claim).len(), kind.claimable);

    // It waits again, for something else.
    run(&mut one, "RESET queue.fault");
    let one = start(one, about(call, second)).asleep(other);
    let since = Instant::now();
    run(other, &about(kind.wake, second));
    let _one = one.woken(since);
    assert_eq!(ids(other, &claim).len(), kind.claimable);
    assert_eq!(waiters(other, queue), 0);
    true
}

#[test]
fn a_fault_in_a_waiting_session_costs_no_other_a_wakeup() {
    let Some(cluster) = cluster("injection-waits") else { return };
    let mut other = cluster.connect();
    let mut count = 0;
    for kind in &KINDS {
        for (call, point) in
            kind.calls.iter().flat_map(|call| kind.points.iter().map(move |point| (call, point)))
        {
            for (fault, error) in FAULTS {
                count += 1;
                println!("{call}: {fault} at {point}");
                let error = format!("{error} {point}");
                let mut again = (0..10).map(|again| format!("q{count}-{again}"));
                let came =
                    again.any(|queue| play(&cluster, &mut other, kind, call, &queue, [fault, point, &error]));
                assert!(came, "it is woken too early ten times");
            }
        }
    }
    unharmed(&cluster);
    println!("{count} runs");
}
