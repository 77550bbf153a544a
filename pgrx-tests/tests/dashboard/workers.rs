//! The workers: what each of them does, has done, and whether it is alive.

use queue_ext_tests::{Cluster, Settings};

use super::fill::run;
use super::program::Dashboard;
use super::screen::{self, WIDE};
use super::{browse, start};

#[test]
fn each_worker_shows_what_it_does_has_done_and_waits_for() {
    let Some(cluster) = start("workers") else { return };
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall');
         CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
         SELECT queue.create('mail'), queue.create('bills');
         SELECT count(queue.push('mail', kind => 'welcome')) FROM generate_series(1, 8);
         SELECT queue.extend(id, token, '1 hour', '{\"percent\": 40}') FROM queue.claim('1 hour', 'mail', worker => 'busy');
         SELECT count(queue.complete(id, token)) FROM queue.claim('1 minute', 'mail', max_tasks => 7, worker => 'idler')",
    );
    let mut waiter = cluster.connect();
    let waits = std::thread::spawn(move || {
        // It ends with the server.
        let _ = waiter.execute("CALL queue.wait('bills', '5 minutes', worker => 'patient')", &[]);
    });
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("workers", &dashboard, "workers");
    screen::set(&browser, WIDE, "light");
    let row = |name: &str| format!("tr[data-key='\"{name}\"']");
    for (worker, said) in [
        ("busy", "working"),
        ("busy", "welcome for"),
        ("busy", "{\"percent\": 40}"),
        ("busy", "ago"),
        ("idler", "idle"),
        ("idler", "7"),
        ("patient", "waiting"),
        ("patient", "bills"),
    ] {
        browser.sees(&row(worker), said);
    }
    browser.click(&format!("{} .work a", row("busy")));
    browser.sees("h1", "Task");

    // Without the right to see tasks, the leases are there nevertheless. Hidden progress is hidden here, too.
    let hiding = Dashboard::start(&cluster, "oncall", &["--hide-payloads"]).get("/api/workers");
    assert!(hiding.status == 200 && !hiding.body.contains("percent"), "{}", hiding.body);
    let watcher = Dashboard::start(&cluster, "watcher", &[]);
    browser.open(&watcher.page("workers"));
    browser.sees(&row("busy"), "working");
    browser.sees("main .problem", "42501");
    drop(cluster);
    waits.join().expect("the waiting worker");
}

#[test]
fn a_worker_with_expired_leases_only_is_marked_as_probably_dead() {
    if queue_ext_tests::brief() {
        return;
    }
    // No background worker, which would end the attempts at once.
    let cluster = Cluster::start_with("dashboard-dead", &Settings { preload: false, extra: "" });
    run(
        &mut cluster.connect(),
        "CREATE EXTENSION queue_ext; CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall');
         SELECT count(queue.push('default')) FROM generate_series(1, 2);
         SELECT queue.claim('1 hour', 'default', worker => 'alive');
         SELECT queue.claim('10 ms', 'default', worker => 'gone')",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("dead-workers", &dashboard, "workers");
    browser.sees("tbody tr:first-child", "gone");
    browser.sees("tbody tr:first-child .badge", "probably dead");
    browser.sees("tr[data-key='\"alive\"'] .badge", "working");
    browser.sees(".heading", "1 probably dead");
}
