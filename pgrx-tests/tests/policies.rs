//! Groups and limits with 64 claiming sessions: never more than allowed, measured from the history, and no group
//! starves. An hour of load at 60 times the speed: a period of a minute is a second here.
//!
//! With the native fast path, without it, without preloading, with the SQL-only edition, and with the edition for
//! YugabyteDB; if BRIEF is in the environment, only the first.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, Edition, SOON, Settings, Worker, brief, eventually, stalls};

/// These tests keep both cores busy: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

const CLAIMERS: usize = 64;

/// One attempt at a task, from its claim to its end, whatever end it took.
struct Attempt {
    id: i64,
    token: i64,
    group: Option<String>,
    begun: SystemTime,
    ended: SystemTime,
}

/// How a claiming session ends its tasks: mostly by completing them, and sometimes in every other way. The end is the
/// time at which the server processed it, or at which the lease expired.
fn end(client: &mut Client, attempt: &mut Attempt, n: usize) {
    let verb = match n % 40 {
        7 => "queue.fail($1, $2, 'no', '20 ms')",
        17 => "queue.release($1, $2)",
        // Does not finish: its lease expires.
        27 => return,
        _ => "queue.complete($1, $2)",
    };
    match client.query_one(&format!("SELECT {verb}, clock_timestamp()"), &[&attempt.id, &attempt.token]) {
        Ok(row) => attempt.ended = attempt.ended.min(row.get(1)),
        // Late for its lease on a busy machine.
        Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("QX001"), "{error}"),
    }
}

/// For a session that got no task: whether the queue has any. Of eight sessions, seven wait first, as a worker does, and one
/// claims again at once, so that claims race.
fn has_more(client: &mut Client, queue: &str, number: usize) -> bool {
    if number % 8 != 0 {
        client.execute("CALL queue.wait($1, '1 second')", &[&queue]).expect("wait");
    }
    let left = "SELECT EXISTS (SELECT FROM queue.tasks WHERE queue = $1)";
    client.query_one(left, &[&queue]).expect("left").get(0)
}

/// Claims and works until the queue is empty.
fn work(mut client: Client, queue: &str, number: usize, limit: Duration) -> Vec<Attempt> {
    let started = Instant::now();
    let mut attempts = Vec::new();
    for n in number.. {
        assert!(stalls::since(started) < limit, "the queue is not drained in time");
        // Every fifth claim is rolled back, and has taken nothing.
        let mut transaction = client.transaction().expect("begin");
        let claim = "SELECT id, token, group_key, lease_until - interval '1 second', lease_until
                     FROM queue.claim('1 second', $1, 2)";
        let tasks = transaction.query(claim, &[&queue]).expect("claim");
        if n % 5 == 4 {
            transaction.rollback().expect("roll back");
            continue;
        }
        transaction.commit().expect("commit");
        for task in &tasks {
            let mut attempt = Attempt {
                id: task.get(0),
                token: task.get(1),
                group: task.get(2),
                begun: task.get(3),
                ended: task.get(4),
            };
            end(&mut client, &mut attempt, n);
            attempts.push(attempt);
        }
        if tasks.is_empty() && !has_more(&mut client, queue, number) {
            break;
        }
    }
    attempts
}

/// 64 claimers work on `queue` until it is empty; every attempt goes into a table.
fn drain(cluster: &Cluster, queue: &'static str, limit: Duration) {
    let workers: Vec<_> = (0..CLAIMERS)
        .map(|number| {
            let config = cluster.config("postgres");
            std::thread::spawn(move || work(config.connect(NoTls).expect("connect"), queue, number, limit))
        })
        .collect();
    let attempts: Vec<Attempt> =
        workers.into_iter().flat_map(|worker| worker.join().expect("a claimer")).collect();
    let [begun, ended] = [|a: &Attempt| a.begun, |a: &Attempt| a.ended]
        .map(|time| attempts.iter().map(time).collect::<Vec<_>>());
    let ids: Vec<i64> = attempts.iter().map(|attempt| attempt.id).collect();
    let tokens: Vec<i64> = attempts.iter().map(|attempt| attempt.token).collect();
    let groups: Vec<Option<&str>> = attempts.iter().map(|attempt| attempt.group.as_deref()).collect();
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS attempts
                 (queue text, id bigint, token bigint, group_key text, begun timestamptz, ended timestamptz)",
        )
        .expect("a table");
    let insert = "INSERT INTO attempts SELECT $1, a.* FROM unnest($2::bigint[], $3::bigint[], $4::text[],
                      $5::timestamptz[], $6::timestamptz[]) AS a";
    client.execute(insert, &[&queue, &ids, &tokens, &groups, &begun, &ended]).expect("insert");
}

/// Runs a test on a server of its own in each mode, with so many tasks in the first and fewer in the others.
fn in_each_mode(name: &str, tasks: i32, test: impl Fn(&Cluster, i32)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // With the fast path off, or without preloading, the functions are those of the SQL-only edition.
    let editions: &[_] = match (brief(), std::env::var_os("CONFORMANCE")) {
        (_, Some(_)) => &Edition::ALL,
        (true, None) => &[Edition::FastPath],
        (false, None) => &[Edition::FastPath, Edition::SqlOnly, Edition::Yugabyte],
    };
    for edition in editions.iter().copied() {
        let _run = edition.begin("policies");
        let cluster = edition.cluster(&format!("policies-{name}"), Worker::On);
        edition.install(&cluster, "postgres");
        test(&cluster, if edition == Edition::FastPath { tasks } else { tasks / 2 });
    }
}

/// The most that ran at one instant, of the queue or of any of its groups.
fn most_at_once(client: &mut Client, queue: &str, by_group: bool) -> i64 {
    let partition = if by_group { "group_key" } else { "queue" };
    let query = format!(
        "SELECT max(running) FROM (
             SELECT sum(change) OVER (PARTITION BY {partition} ORDER BY at, change) AS running FROM (
                 SELECT queue, group_key, begun AS at, 1 AS change FROM attempts WHERE queue = $1
                 UNION ALL SELECT queue, group_key, ended, -1 FROM attempts WHERE queue = $1) AS edges) AS sums"
    );
    client.query_one(&query, &[&queue]).expect("count").get(0)
}

fn push(client: &mut Client, queue: &str, tasks: i32, groups: i32) {
    let query = "INSERT INTO queue.tasks (queue, payload, group_key)
                 SELECT $1, to_jsonb(n), 'g' || n % nullif($3, 0) FROM generate_series(1, $2::int) AS n";
    client.execute(query, &[&queue, &tasks, &groups]).expect("push");
}

#[test]
fn no_instant_has_more_than_max_running() {
    in_each_mode("max-running", 300, |cluster, tasks| {
        let mut client = cluster.connect();
        client.execute("SELECT queue.create('q', '{\"max_running\": 7}')", &[]).expect("create");
        push(&mut client, "q", tasks, 0);
        drain(cluster, "q", Duration::from_secs(300));
        assert!(most_at_once(&mut client, "q", false) <= 7);
        assert!(most_at_once(&mut client, "q", false) >= 6, "the places are used");
        let finished: i64 =
            client.query_one("SELECT count(*) FROM queue.history", &[]).expect("count").get(0);
        assert_eq!(finished, i64::from(tasks));
    });
}

#[test]
fn no_instant_has_more_of_a_group_than_allowed_and_at_one_they_run_in_order() {
    in_each_mode("groups", 300, |cluster, tasks| {
        let mut client = cluster.connect();
        for (queue, most) in [("one", 1), ("three", 3)] {
            let options = format!("{{\"max_running_per_group\": {most}}}");
            client.execute("SELECT queue.create($1, $2::text::jsonb)", &[&queue, &options]).expect("create");
            push(&mut client, queue, tasks, 12);
            drain(cluster, queue, Duration::from_secs(300));
            assert_eq!(most_at_once(&mut client, queue, true), most, "{queue}");
            let query = "SELECT count(*), count(DISTINCT group_key) FROM queue.history WHERE queue = $1";
            let row = client.query_one(query, &[&queue]).expect("count");
            assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (i64::from(tasks), 12), "{queue}");
        }
        let query = "SELECT count(*) FROM (
                     SELECT id, lag(id) OVER (PARTITION BY group_key ORDER BY begun, token) AS earlier
                     FROM attempts WHERE queue = 'one') AS a
                 WHERE earlier > id";
        let overtaken: i64 = client.query_one(query, &[]).expect("count").get(0);
        assert_eq!(overtaken, 0, "no task begins before an earlier one of its group has finished");
        let worker = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
        let no_worker = client.query_one(worker, &[]).expect("look for a worker").get::<_, i64>(0) == 0;
        eventually("no event is left", SOON, || {
            // The last claim may have found a group locked by another session; the worker, or its replacement,
            // processes the event.
            if no_worker {
                client.batch_execute("CALL queue.maintain()").expect("maintain");
            }
            let query = "SELECT NOT EXISTS (SELECT FROM queue_internal.events)";
            client.query_one(query, &[]).expect("events").get(0)
        });
    });
}

#[test]
fn no_period_has_more_starts_than_the_rate_limit() {
    in_each_mode("rate", 300, |cluster, tasks| {
        let mut client = cluster.connect();
        let options = "{\"rate_limit\": 100, \"rate_period\": \"1 second\", \"max_running\": 50}";
        client.execute("SELECT queue.create('q', $1::text::jsonb)", &[&options]).expect("create");
        push(&mut client, "q", tasks, 0);
        let started = Instant::now();
        drain(cluster, "q", Duration::from_secs(300));
        let took = started.elapsed();
        // Any span of a period that begins with a start.
        let query = "SELECT max(starts) FROM (
                     SELECT count(*) OVER (ORDER BY begun RANGE BETWEEN CURRENT ROW
                                           AND interval '999999 microseconds' FOLLOWING) AS starts
                     FROM attempts WHERE queue = 'q') AS spans";
        let most: i64 = client.query_one(query, &[]).expect("count").get(0);
        assert!(most <= 100, "{most} starts in a second");
        let attempts: i64 = client.query_one("SELECT count(*) FROM attempts", &[]).expect("count").get(0);
        let least = Duration::from_secs((attempts as u64 - 1) / 100);
        assert!(took >= least, "{attempts} starts in {took:?}");
        // The rate is used, as far as this machine gets without it.
        client.execute("SELECT queue.create('free', '{\"max_running\": 50}')", &[]).expect("create");
        push(&mut client, "free", tasks, 0);
        let started = Instant::now();
        drain(cluster, "free", Duration::from_secs(300));
        let most = 2 * (least + started.elapsed()) + Duration::from_secs(5);
        assert!(took < most, "{attempts} starts in {took:?}, not within {most:?}");
    });
}

/// Groups of different weights share the rate of the queue. Neither a group nor the queue starts more in any period, and
/// the light ones do not keep the heavy ones out.
#[test]
fn no_period_has_more_weight_than_the_rates_of_the_queue_and_of_each_group() {
    in_each_mode("group-rate", 96, |cluster, tasks| {
        let mut client = cluster.connect();
        let options = "{\"rate_limit\": 50, \"group_rate_limit\": 12, \"rate_period\": \"1 second\",
                        \"max_running_per_group\": 20}";
        client.execute("SELECT queue.create('q', $1::text::jsonb)", &[&options]).expect("create");
        // The tasks of group g0 weigh 1, those of g5 as much as its limit.
        let push = "INSERT INTO queue.tasks (queue, payload, group_key, weight)
                    SELECT 'q', to_jsonb(n), 'g' || n % 6, (ARRAY[1, 2, 3, 5, 8, 12])[1 + n % 6]
                    FROM generate_series(1, $1::int) AS n";
        client.execute(push, &[&tasks]).expect("push");
        drain(cluster, "q", Duration::from_secs(300));
        for (partition, limit) in [("queue", 50), ("group_key", 12)] {
            // Any span of a period that begins with a start.
            let query = format!(
                "SELECT max(started) FROM (
                     SELECT sum(h.weight) OVER (PARTITION BY a.{partition} ORDER BY a.begun
                                RANGE BETWEEN CURRENT ROW AND interval '999999 microseconds' FOLLOWING) AS started
                     FROM attempts AS a JOIN queue.history AS h ON h.id = a.id WHERE a.queue = 'q') AS spans"
            );
            let most: i64 = client.query_one(&query, &[]).expect("sum").get(0);
            println!("at most {most} of {limit} for each {partition}");
            assert!(most <= limit, "{most} in a second for a {partition}");
            assert!(2 * most > limit, "the rate of each {partition} is used");
        }
        // The group whose rate takes longest sets the pace; none of its tasks waits for longer than others need.
        let gaps = "SELECT max(extract(epoch FROM begun - earlier))::float8, extract(epoch FROM max(begun) - min(begun))::float8
                    FROM (SELECT begun, lag(begun, 1, (SELECT min(begun) FROM attempts)) OVER (
                              PARTITION BY group_key ORDER BY begun) AS earlier FROM attempts) AS a";
        let row = client.query_one(gaps, &[]).expect("gaps");
        let (longest, took): (f64, f64) = (row.get(0), row.get(1));
        println!("the longest time without a start of a group: {longest:.1} s of {took:.1} s");
        assert!(longest < took / 2.0, "a group started nothing for {longest} of {took} seconds");
        eventually("starts that count no longer are deleted", SOON, || {
            client.batch_execute("CALL queue.maintain()").expect("maintain");
            let query = "SELECT NOT EXISTS (SELECT FROM queue_internal.group_starts)";
            client.query_one(query, &[]).expect("starts").get(0)
        });
    });
}

/// However many tasks of a group wait for its rate, claims of others do not read them, also not again and again.
#[test]
fn a_group_at_its_rate_with_many_tasks_in_front_costs_other_claims_nothing() {
    const WAITING: i32 = 40_000;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for edition in [Edition::FastPath, Edition::SqlOnly] {
        let cluster = edition.cluster("policies-throttled", Worker::On);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        let options = "{\"group_rate_limit\": 2, \"rate_period\": \"1 hour\", \"max_running_per_group\": 10}";
        client.execute("SELECT queue.create('q', $1::text::jsonb)", &[&options]).expect("create");
        push(&mut client, "q", WAITING, 1);
        let others = "SELECT count(queue.push('q', group_key => 'h' || n)) FROM generate_series(1, 100) AS n";
        client.query(others, &[]).expect("push");
        let claim = "SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', 'q', 1000)";
        let mut claimed = 0;
        eventually("the other groups and two of this one are done", SOON, || {
            claimed += client.query_one(claim, &[]).expect("a claim").get::<_, i64>(0);
            claimed == 102
        });
        let mut transaction = client.transaction().expect("begin");
        for _ in 0..10 {
            assert_eq!(transaction.query_one(claim, &[]).expect("a claim").get::<_, i64>(0), 0);
        }
        let read = "SELECT pg_stat_get_xact_tuples_returned('queue.tasks_order'::regclass)
                         + pg_stat_get_xact_tuples_returned('queue.tasks_group'::regclass)
                         + pg_stat_get_xact_tuples_returned('queue.tasks'::regclass)";
        let read: i64 = transaction.query_one(read, &[]).expect("count").get(0);
        println!("{}: {read} entries in ten claims", edition.name());
        assert!(read < 5_000, "{}: ten claims read {read} entries", edition.name());
    }
}

/// The background worker deletes them in batches until none is left, and not a number of them each sweep interval, which
/// many starts would exceed.
#[test]
fn starts_of_groups_are_deleted_however_many_there_are() {
    let settings = Settings { preload: true, extra: "queue.sweep_interval = 1h" };
    let mut cluster = Cluster::start_with("policies-starts", &settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    let expired = "INSERT INTO queue_internal.group_starts
                   SELECT 'default', n, now() - interval '1 hour', n, 1, now() - interval '1 minute'
                   FROM generate_series(1, 50000) AS n";
    client.batch_execute(expired).expect("starts");
    // The first sweep begins with the worker.
    drop(client);
    cluster.stop("fast");
    cluster.launch();
    let mut client = cluster.connect();
    eventually("no start is left", SOON, || {
        let query = "SELECT NOT EXISTS (SELECT FROM queue_internal.group_starts)";
        client.query_one(query, &[]).expect("starts").get(0)
    });
}

/// How long 64 sessions take to claim and complete all tasks of a queue, with as many tasks of a group as may run.
fn time_to_drain(cluster: &Cluster, queue: &'static str) -> Duration {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..CLAIMERS {
            let mut client = cluster.config("postgres").connect(NoTls).expect("connect");
            scope.spawn(move || {
                let done = "SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', $1)";
                while client.query_one(done, &[&queue]).expect("a task").get::<_, i64>(0) > 0
                    || has_more(&mut client, queue, number)
                {}
            });
        }
    });
    started.elapsed()
}

/// Guards the figure of docs/limits.md, with fewer tasks than it was measured with.
#[test]
fn a_rate_per_group_that_is_not_reached_costs_little_more_than_groups() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Edition::FastPath.cluster("policies-group-rate-cost", Worker::On);
    Edition::FastPath.install(&cluster, "postgres");
    let mut client = cluster.connect();
    let options = "{\"max_running_per_group\": 100}";
    let rated =
        "{\"max_running_per_group\": 100, \"group_rate_limit\": 10000, \"rate_period\": \"1 second\"}";
    for (queue, options) in [("free", options), ("rated", rated)] {
        client.execute("SELECT queue.create($1, $2::text::jsonb)", &[&queue, &options]).expect("create");
    }
    let times = ["free", "rated"].map(|queue| {
        push(&mut client, queue, 200, 50);
        time_to_drain(&cluster, queue)
    });
    let ratio = times[1].as_secs_f64() / times[0].as_secs_f64();
    println!("with a rate per group {:?}, without {:?}: {ratio:.2} times as long", times[1], times[0]);
    assert!(ratio < 3.0, "{ratio:.2}");
}

/// A worker that claims and finishes in one transaction keeps its part of the limits locked meanwhile. With several of them some
/// claim is always open, and a change of the limits must come through all the same.
#[test]
fn limits_can_be_changed_although_some_claim_is_always_open() {
    let cluster = Edition::FastPath.cluster("policies-open-claims", Worker::On);
    Edition::FastPath.install(&cluster, "postgres");
    let mut client = cluster.connect();
    let options = r#"{"rate_limit": 1000, "rate_period": "1 second", "max_running": 50}"#;
    client.execute("SELECT queue.create('q', $1::text::jsonb)", &[&options]).expect("create");
    push(&mut client, "q", 1000, 0);
    let over = std::sync::atomic::AtomicBool::new(false);
    let claimed = std::sync::Barrier::new(7);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (over, claimed, mut worker) = (&over, &claimed, cluster.connect());
            scope.spawn(move || {
                let mut first = true;
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut work = worker.transaction().expect("begin");
                    work.execute("SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'q')", &[])
                        .expect("claim");
                    if std::mem::take(&mut first) {
                        claimed.wait();
                    }
                    // The work of each takes another time, so that they do not end together.
                    let time = 0.4 + f64::from(number) / 20.0;
                    work.execute("SELECT pg_sleep($1)", &[&time]).expect("work");
                    work.commit().expect("commit");
                }
            });
        }
        claimed.wait();
        // It waits for a little longer than that at first.
        client.batch_execute("SET deadlock_timeout = '100ms'; SET statement_timeout = '5min'").expect("set");
        for change in [r#"{"rate_limit": 2000}"#, r#"{"max_running": null}"#] {
            let started = Instant::now();
            let changed = client.execute("SELECT queue.configure('q', $1::text::jsonb)", &[&change]);
            println!("{change} took {:?}", started.elapsed());
            over.store(changed.is_err(), std::sync::atomic::Ordering::Relaxed);
            changed.expect("the change comes through");
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// While an old snapshot holds back vacuum, a claim that finds a scan start of its session does not scan the finished
/// tasks before it. How many claims that are depends on how fast the machine is: a scan start is used for a time.
#[test]
fn under_an_old_snapshot_a_claim_with_a_scan_start_does_not_scan_all_finished_tasks() {
    const FINISHED: i64 = 12_000;
    const CLAIMS: i64 = 200;
    /// A claim that has read a thousand entries moves the scan start. All finished tasks have as many entries as there are
    /// tasks, in each of two indexes.
    const FEW: i64 = FINISHED / 2;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Groups without the library; with it, claims first check for events in another way.
    for (edition, queue, options, groups) in [
        (Edition::FastPath, "limited", "{\"max_running\": 1000}", 0),
        (Edition::SqlOnly, "grouped", "{}", 100),
    ] {
        let cluster = edition.cluster(&format!("policies-pinned-{queue}"), Worker::On);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        let mut old = cluster.connect();
        old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT").expect("an old snapshot");
        client.execute("SELECT queue.create($1, $2::text::jsonb)", &[&queue, &options]).expect("create");
        push(&mut client, queue, (FINISHED + CLAIMS) as i32, groups);
        let batch = "SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', $1, 500)";
        let mut finished = 0;
        while finished < FINISHED {
            finished += client.query_one(batch, &[&queue]).expect("a batch").get::<_, i64>(0);
        }
        // How many entries the claim read, whether it had a scan start, and whether it still has one.
        let claim = format!(
            "WITH before AS MATERIALIZED (SELECT {LOOK}),
                  claim AS MATERIALIZED (
                      SELECT count(queue.complete(c.id, c.token)) AS claimed
                      FROM before AS b, queue.claim('1 hour', CASE WHEN b.entries >= 0 THEN $1 END) AS c),
                  after AS MATERIALIZED (SELECT c.claimed, {LOOK} FROM claim AS c)
             SELECT a.claimed, a.entries - b.entries, b.until > b.moment, b.until > a.moment
             FROM before AS b, after AS a"
        );
        let (mut claimed, mut with_start, mut all) = (0, 0, 0);
        while finished + claimed < FINISHED + CLAIMS {
            let row = client.query_one(&claim, &[&queue]).expect("a task");
            claimed += row.get::<_, i64>(0);
            let entries: i64 = row.get(1);
            // If it was over meanwhile, the claim may have read it before or after.
            if row.get::<_, Option<bool>>(2) == Some(true) && row.get::<_, Option<bool>>(3) == Some(true) {
                with_start += 1;
                assert!(entries < FEW, "{queue}: a claim with a scan start read {entries} entries");
            }
            all += entries;
        }
        println!(
            "{queue}: {with_start} of {CLAIMS} claims had a scan start; {} entries a claim",
            all / CLAIMS
        );
        assert!(with_start > 0, "{queue}: no claim had a scan start");
    }
}

/// How many entries of the indexes this transaction has read, until when the scan start of the session is used, and the
/// time.
const LOOK: &str = "pg_stat_get_xact_tuples_returned('queue.tasks_order'::regclass)
    + pg_stat_get_xact_tuples_returned('queue_internal.events_pkey'::regclass) AS entries,
    (nullif(current_setting('queue_scan_start.q' || md5($1), true), '')::queue_internal.scan_start).until AS until,
    clock_timestamp() AS moment";
