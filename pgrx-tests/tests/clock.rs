//! The server's clock is set while it runs. Forward, leases end early and their holders are refused. Back, nothing
//! stops: sweeps, notifications, leases and schedules use the new time.

use std::time::{Duration, Instant};

use fallible_iterator::FallibleIterator;
use postgres::{Client, NoTls};
use queue_ext_tests::clock::{FakeClock, Speed};
use queue_ext_tests::{Cluster, SOON, Settings, eventually, number, run};

const HOUR: i64 = 3600;
const TEN_YEARS: i64 = 3653 * 24 * HOUR;

/// A server with such a clock.
fn cluster(name: &str) -> (Cluster, FakeClock) {
    let extra = "queue.sweep_interval = '1s'\nqueue.dead_letter_retention = -1";
    let mut cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    cluster.stop("fast");
    let clock = cluster.with_fake_clock();
    cluster.launch();
    cluster.connect().batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    cluster.await_worker("postgres");
    (cluster, clock)
}

/// The token of the claim that got the task, if any.
fn claim(client: &mut Client, lease: &str) -> Option<i64> {
    let query = format!("SELECT token FROM queue.claim('{lease}')");
    client.query_opt(&query, &[]).expect("claim").map(|row| row.get(0))
}

fn refused(client: &mut Client, token: i64) {
    let error = client.execute("SELECT queue.complete(1, $1)", &[&token]).expect_err("a stale token");
    assert_eq!(error.code().expect("a code").code(), "QX001", "{error}");
}

fn heard(client: &mut Client) {
    let told = client.notifications().timeout_iter(SOON).next().expect("listen");
    assert!(told.is_some(), "no notification within {SOON:?}");
}

/// Waits for the worker's next rounds.
fn goes_round(client: &mut Client) {
    let rounds = "SELECT (queue.engine_stats()->'worker'->>'rounds')::bigint";
    let before = number(client, rounds);
    eventually("the worker goes round", SOON, || number(client, rounds) > before + 2);
}

/// A lease that is over by the clock as it is now is over, whatever the clock was; and stays so.
#[test]
fn tokens_decide() {
    let (cluster, clock) = cluster("clock-tokens");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    run(&mut one, "SELECT queue.push('default')");
    let first = claim(&mut one, "1 hour").expect("a task");
    assert_eq!(claim(&mut other, "1 hour"), None, "the lease runs");
    clock.set(2 * HOUR, Speed::Real);
    // The worker may be about to end it itself.
    let mut second = None;
    eventually("the lease is over", SOON, || {
        second = claim(&mut other, "1 hour");
        second.is_some()
    });
    refused(&mut one, first);
    clock.set(0, Speed::Real);
    refused(&mut one, first);
    assert_eq!(claim(&mut one, "1 hour"), None, "the second lease is not over");
    let done = other.execute("SELECT queue.complete(1, $1)", &[&second]);
    done.expect("the second lease is valid");
}

/// A lease from a future that is over ends within the longest lease.
#[test]
fn leases_of_the_future_are_cut() {
    let (cluster, clock) = cluster("clock-future");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.push('default')");
    clock.set(TEN_YEARS, Speed::Real);
    assert!(claim(&mut client, "1 hour").is_some(), "a task");
    // A worker that was started later checks once a minute anyway.
    goes_round(&mut client);
    clock.set(0, Speed::Real);
    // The worker checks at least once a minute.
    eventually("no lease lasts longer than the longest", 2 * SOON, || {
        let query = "SELECT count(*) FROM queue.tasks WHERE state = 'running'
                     AND lease_until < clock_timestamp() + interval '7 days 1 second'";
        number(&mut client, query) == 1
    });
}

/// A completion that waits for a lock across midnight goes to the partition of its time.
#[test]
fn every_row_of_the_history_is_in_its_day() {
    let (cluster, clock) = cluster("clock-midnight");
    let mut holder = cluster.connect();
    run(&mut holder, "SELECT queue.push('default')");
    // The worker may be making the partitions, and have the table locked.
    eventually("there are partitions", SOON, || holder.batch_execute("CALL queue.maintain()").is_ok());
    let token = claim(&mut holder, "3 days").expect("a task");
    run(&mut holder, "BEGIN; SELECT FROM queue.tasks FOR UPDATE");
    let config = cluster.config("postgres");
    let completion = std::thread::spawn(move || {
        let mut client = config.connect(NoTls).expect("connect");
        client.execute("SELECT queue.complete(1, $1)", &[&token]).expect("complete");
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT queue.complete%' \
                   AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')";
    let mut other = cluster.connect();
    eventually("it waits", SOON, || number(&mut other, waiting) == 1);
    clock.set(24 * HOUR, Speed::Real);
    run(&mut holder, "ROLLBACK");
    completion.join().expect("completed");
    let in_its_day = "SELECT count(*) FROM queue.history AS h JOIN pg_class AS c ON c.oid = h.tableoid
                      WHERE c.relname = 'history_' || to_char(h.finished_at AT TIME ZONE 'UTC', 'YYYYMMDD')";
    assert_eq!(number(&mut holder, in_its_day), 1);
}

/// After the clock was set back by ten years, a push is notified, a lease ends, sweeps continue, and no process is
/// busy.
#[test]
fn nothing_stops_when_the_clock_is_set_back() {
    let (cluster, clock) = cluster("clock-back");
    let (mut client, mut listener) = (cluster.connect(), cluster.connect());
    run(&mut client, "SELECT queue.create('idle')");
    let channel: String = client.query_one("SELECT queue.channel('default')", &[]).expect("channel").get(0);
    run(&mut listener, &format!("LISTEN \"{channel}\""));
    run(&mut client, "SELECT queue.push('default')");
    heard(&mut listener);
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let config = cluster.config("postgres");
            std::thread::spawn(move || {
                let mut client = config.connect(NoTls).expect("connect");
                client.batch_execute("CALL queue.wait('idle', '10 minutes')")
            })
        })
        .collect();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%' \
                   AND wait_event_type = 'Extension'";
    eventually("they wait", SOON, || number(&mut client, waiting) == 4);
    clock.set(-TEN_YEARS, Speed::Real);
    run(&mut client, "SELECT queue.push('default')");
    heard(&mut listener);
    // The first task was pushed in what is now the future.
    let ids = client.query("SELECT id FROM queue.claim('300 ms', max_tasks => 5)", &[]).expect("claim");
    assert_eq!(ids.len(), 1, "only the second one is due");
    eventually("the worker ends the lease", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'") == 0
    });
    goes_round(&mut client);
    let pids = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%' \
                OR backend_type = 'queue_ext worker'";
    let pids: Vec<i32> = client.query(pids, &[]).expect("pids").iter().map(|row| row.get(0)).collect();
    assert_eq!(pids.len(), 5, "the worker and four that wait");
    let (used, since) = (processor(&pids), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let share = (processor(&pids) - used).as_secs_f64() / since.elapsed().as_secs_f64();
    assert!(share < 0.05, "they take {share:.3} of a core");
    run(
        &mut client,
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%'",
    );
    for waiter in waiters {
        let error = waiter.join().expect("a waiter").expect_err("nothing came");
        assert_eq!(error.code().expect("a code").code(), "57014", "{error}");
    }
}

/// The worker stays away for a few seconds when a command needs the database. By the clock as it was then that may be
/// years.
#[test]
fn the_clock_is_set_back_while_the_worker_is_disabled() {
    let (cluster, clock) = cluster("clock-away");
    let mut client = cluster.connect();
    // Refused only after the worker was asked to exit, because another session uses the database.
    let mut other = cluster.connect_to("template1");
    let error = other.batch_execute("CREATE DATABASE copy TEMPLATE postgres").expect_err("somebody is there");
    assert_eq!(error.code().expect("a code").code(), "55006", "{error}");
    clock.set(-TEN_YEARS, Speed::Real);
    run(&mut client, "SELECT queue.push('default'); SELECT queue.claim('300 ms')");
    eventually("the worker is back", SOON, || {
        number(&mut client, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'")
            == 1
    });
    goes_round(&mut client);
}

/// A clock that was never set shows 1970: the worker works as usual.
#[test]
fn before_the_year_2000_the_worker_works() {
    let (cluster, clock) = cluster("clock-ancient");
    clock.set(-5 * TEN_YEARS, Speed::Real);
    let (mut client, mut listener) = (cluster.connect(), cluster.connect());
    assert!(number(&mut client, "SELECT extract(year FROM now())::bigint") < 2000);
    let channel: String = client.query_one("SELECT queue.channel('default')", &[]).expect("channel").get(0);
    run(&mut listener, &format!("LISTEN \"{channel}\""));
    run(&mut client, "SELECT queue.push('default')");
    heard(&mut listener);
    assert!(claim(&mut client, "300 ms").is_some());
    eventually("the worker ends the lease", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'") == 0
    });
    run(&mut client, "SELECT queue.schedule('each second', '* * * * * *', 'default')");
    eventually("the schedule runs", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE headers ? 'schedule'") > 0
    });
    eventually("there is a partition of the day", SOON, || {
        number(
            &mut client,
            "SELECT count(*) FROM queue_internal.history_partitions() WHERE day < '2000-01-01'",
        ) > 0
    });
    goes_round(&mut client);
}

/// The processor time of these processes.
fn processor(pids: &[i32]) -> Duration {
    let ticks = |pid: &i32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        // utime and stime, the 14th and 15th of all.
        [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().expect("ticks")).sum()
    };
    // SAFETY: asks for a constant.
    let a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Duration::from_millis(pids.iter().map(ticks).sum::<u64>() * 1000 / a_second)
}

/// A schedule has each run once, whichever way the clock is set.
#[test]
fn schedules_run_once() {
    let (cluster, clock) = cluster("clock-schedules");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.schedule('tick', '* * * * * *', 'default')");
    let runs = "SELECT count(*) FROM queue.tasks";
    let twice = "SELECT count(*) - count(DISTINCT headers->>'scheduled_for') FROM queue.tasks";
    eventually("it runs", SOON, || number(&mut client, runs) >= 2);
    clock.set(-HOUR, Speed::Real);
    // Its next run is an hour away; the worker checks it anyway.
    let so_far = number(&mut client, runs);
    goes_round(&mut client);
    assert!(number(&mut client, runs) <= so_far + 1, "a run came twice");
    for ahead in [0, HOUR, TEN_YEARS] {
        let so_far = number(&mut client, runs);
        clock.set(ahead, Speed::Real);
        // Missed runs are pushed once, for the latest one.
        eventually("it goes on", SOON, || number(&mut client, runs) >= so_far + 3);
        assert_eq!(number(&mut client, twice), 0, "runs that came twice");
        let made = number(&mut client, runs) - so_far;
        assert!(made < 1000, "missed runs were made up for: {made}");
    }
    run(&mut client, "SELECT queue.unschedule('tick')");
    assert_eq!(number(&mut client, twice), 0, "runs that came twice");
}
