//! Servers and workers that are killed in the middle of their work.

use std::fs;
use std::time::{Duration, Instant};

use queue_ext_tests::{Cluster, SOON, Settings, eventually, stalls};

/// How soon the worker is there after the server.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Tasks acknowledged before the crash, one of them leased, one finished.
fn work(cluster: &Cluster) {
    cluster
        .connect()
        .batch_execute(
            "SELECT count(queue.push('default')) FROM generate_series(1, 100);
         SELECT queue.complete(id, token) FROM queue.claim('1 minute');
         SELECT count(*) FROM queue.claim('1 second')",
        )
        .expect("work");
}

fn all_is_well_after(cluster: &mut Cluster) {
    eventually("the server is back", SOON, || cluster.try_connect("postgres").is_some());
    let began = Instant::now();
    cluster.await_worker("postgres");
    let back = stalls::since(began);
    assert!(back < BACK_WITHIN, "the worker was back after {back:?}");
    let mut client = cluster.connect();
    let counts = client.query_one(
        "SELECT count(*) FILTER (WHERE state IN ('queued', 'running')), count(*) FILTER (WHERE state = 'completed')
         FROM queue.all_tasks", &[]).expect("count");
    assert_eq!((counts.get::<_, i64>(0), counts.get::<_, i64>(1)), (99, 1), "nothing is lost");
    eventually("the worker takes back the lease", SOON, || {
        let row =
            client.query_one("SELECT count(*) FROM queue.tasks WHERE state = 'running'", &[]).expect("count");
        row.get::<_, i64>(0) == 0
    });
}

#[test]
fn killed_worker_is_back_and_nothing_is_lost() {
    let mut cluster = Cluster::start("crash-worker");
    work(&cluster);
    let pid = cluster.await_worker("postgres");
    // SAFETY: a signal to a process of this test's own server.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // Postgres restarts everything when a process that shares its memory is killed.
    eventually("the server notices", SOON, || cluster.log().contains("was terminated by signal 9"));
    all_is_well_after(&mut cluster);
}

#[test]
fn a_crashed_server_whose_process_number_another_has_does_not_stop_it() {
    let mut running = Cluster::start("crash-stranger");
    let mut crashed = Cluster::start_with("crash-left-behind", &Settings::default());
    crashed.keep();
    crashed.kill_all();
    let file = fs::read(format!("{}/postmaster.pid", running.data())).expect("read postmaster.pid");
    fs::write(format!("{}/postmaster.pid", crashed.data()), file).expect("write postmaster.pid");
    drop(crashed);
    drop(Cluster::start_with("crash-left-behind", &Settings::default()));
    running.await_worker("postgres");
}

#[test]
fn killed_postmaster_is_back_and_nothing_is_lost() {
    let mut cluster = Cluster::start("crash-postmaster");
    work(&cluster);
    cluster.kill_postmaster();
    cluster.launch();
    all_is_well_after(&mut cluster);
}

#[test]
fn a_fast_stop_is_fast_and_a_smart_stop_waits_for_no_worker() {
    let mut cluster = Cluster::start("crash-stop");
    for mode in ["fast", "smart", "immediate"] {
        cluster.await_worker("postgres");
        let started = Instant::now();
        cluster.stop(mode);
        let took = stalls::since(started);
        assert!(took < Duration::from_secs(10), "{mode} took {took:?}");
        cluster.launch();
    }
}

#[test]
fn acknowledged_pushes_survive_kill_nine() {
    let mut cluster = Cluster::start("crash-acknowledged");
    for _ in 0..5 {
        let mut client = cluster.connect();
        let before: i64 = client.query_one("SELECT count(*) FROM queue.tasks", &[]).expect("count").get(0);
        let config = cluster.config("postgres");
        let pusher = std::thread::spawn(move || {
            let mut client = config.connect(postgres::NoTls).expect("connect");
            let mut acknowledged = 0_i64;
            while client.query("SELECT queue.push('default')", &[]).is_ok() {
                acknowledged += 1;
            }
            acknowledged
        });
        eventually("some are pushed", SOON, || {
            client.query_one("SELECT count(*) FROM queue.tasks", &[]).expect("count").get::<_, i64>(0)
                > before + 100
        });
        drop(client);
        cluster.kill_postmaster();
        let acknowledged = pusher.join().expect("the pusher");
        cluster.launch();
        let after: i64 =
            cluster.connect().query_one("SELECT count(*) FROM queue.tasks", &[]).expect("count").get(0);
        // One more may have been committed whose answer was cut off.
        assert!(
            (acknowledged..=acknowledged + 1).contains(&(after - before)),
            "{acknowledged} acknowledged, {} found",
            after - before
        );
    }
}
