//! What an action may change, and that it is reported and logged whatever the browser does meanwhile.

use std::io::Write;
use std::net::TcpStream;

use postgres::Client;
use queue_ext_tests::{SOON, eventually};

use super::fill::{claimed, fill, id, run};
use super::program::Dashboard;
use super::{browse, start};

const YES: &str = "dialog [value=yes]";

fn count(client: &mut Client, relation: &str, condition: &str) -> i64 {
    id(client, &format!("SELECT count(*) FROM queue.{relation} WHERE kind = 'bulk' AND {condition}"))
}

#[test]
fn a_bulk_action_changes_no_more_than_its_dry_run_counted() {
    let Some(cluster) = start("counted") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    run(&mut client, "SELECT count(queue.push('default', kind => 'bulk')) FROM generate_series(1, 4)");
    run(&mut client, "SELECT queue.push('default', kind => 'bulk', priority => -1)");
    let fail =
        "SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'default')";
    claimed(&mut client, fail, &[]);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("counted", &dashboard, "dead?kind=bulk");
    browser.click("[data-bulk=purge_where]");
    browser.sees(".counted", "1 task matches");
    // Older tasks fail while the dialog is open.
    for _ in 0..3 {
        claimed(&mut client, fail, &[]);
    }
    browser.click(YES);
    browser.sees("#notes", "1 task deleted");
    assert_eq!(count(&mut client, "dead_letters", "true"), 3);

    // Nor do tasks that match later make it more.
    run(&mut client, "SELECT queue.push('default', kind => 'bulk', delay => '1 hour')");
    browser.open(&dashboard.page("tasks?state=scheduled&kind=bulk"));
    browser.click("[data-bulk=reprioritise_where]");
    browser.fill("#field-priority", "3");
    browser.sees(".counted", "1 task matches");
    let put_off =
        "SELECT queue.release(id, token, delay => '1 hour') FROM queue.claim('1 minute', 'default')";
    claimed(&mut client, put_off, &[]);
    browser.click(YES);
    browser.sees("#notes", "1 task given the priority");
    assert_eq!(count(&mut client, "tasks", "priority = 3"), 1);
}

#[test]
fn a_batch_that_fails_after_its_dialog_was_closed_is_reported() {
    let Some(cluster) = start("closed") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("closed", &dashboard, "tasks?state=scheduled");
    browser.click("[data-bulk=run_now_where]");
    browser.sees(".counted", "1 task matches");
    let mut lock = client.transaction().expect("a transaction");
    lock.batch_execute("LOCK TABLE queue.tasks IN SHARE MODE").expect("a lock");
    browser.click(YES);
    browser.sees(".counted", "0 of 1");
    browser.click("dialog [value=no]");
    browser.sees("#notes", "Stopped after 0 of 1");
    browser.sees("#notes", "55P03");
    lock.rollback().expect("an end");
}

#[test]
fn an_action_whose_browser_is_gone_is_logged() {
    let Some(cluster) = start("gone") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let session = dashboard.get("/api/session").json();
    let mut lock = client.transaction().expect("a transaction");
    lock.batch_execute("SELECT FROM queue.queues WHERE name = 'mail' FOR UPDATE").expect("a lock");
    let (address, key) = (&dashboard.address, session["key"].as_str().expect("the key"));
    let wish = "{\"action\": \"pause\", \"target\": \"mail\"}";
    let mut stream = TcpStream::connect(address).expect("the dashboard");
    write!(
        stream,
        "POST /api/act HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nContent-Type: application/json\r\n\
         X-Queue-Key: {key}\r\nContent-Length: {}\r\n\r\n{wish}",
        wish.len()
    )
    .expect("send");
    let mut other = cluster.connect();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queue-dashboard' AND wait_event_type = 'Lock'";
    eventually("the action waits", SOON, || id(&mut other, waits) == 1);
    drop(stream);
    // Not a wait for a condition: the dashboard notices that the connection is closed.
    std::thread::sleep(std::time::Duration::from_millis(500));
    lock.rollback().expect("an end");
    eventually("the action is logged", SOON, || dashboard.log().contains("action=pause target=\"mail\""));
    assert!(dashboard.log().contains("result=\"paused\""), "{}", dashboard.log());
    let paused = "SELECT count(*) FROM queue.queues WHERE name = 'mail' AND paused_at IS NOT NULL";
    assert_eq!(id(&mut client, paused), 1);
}

/// While a table is locked, the reads of four requests wait in the server. Further requests get no connection, also when the
/// browsers of the first are closed.
#[test]
fn requests_whose_browsers_are_gone_keep_their_places_until_the_server_is_done() {
    let Some(cluster) = start("closing") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let mut lock = client.transaction().expect("a transaction");
    lock.batch_execute("LOCK TABLE queue.history").expect("a lock");
    let mut other = cluster.connect();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queue-dashboard' AND wait_event_type = 'Lock'";
    let mut most = 0;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&dashboard.address).expect("the dashboard");
        write!(stream, "GET /api/activity?range=hour HTTP/1.1\r\nHost: {}\r\n\r\n", dashboard.address)
            .expect("send");
        std::thread::sleep(std::time::Duration::from_millis(100));
        most = most.max(id(&mut other, waiting));
    }
    assert_eq!(most, 4);
    lock.rollback().expect("an end");
    eventually("requests are answered again", SOON, || {
        dashboard.get("/api/activity?range=hour").status == 200
    });
}
