//! What the page shows while a part of the data is not refreshed, and how soon it recovers.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_ext_tests::{Cluster, SOON, eventually};
use serde_json::json;

use super::fill::{fill, id, run};
use super::program::Dashboard;
use super::{browse, start};

/// A port that accepts connections. Until it is opened it does not answer; then it leads to the server.
fn door(cluster: &Cluster) -> (u16, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (opened, asked) = (Arc::new(AtomicBool::new(false)), cluster.folder().join(".s.PGSQL.5432"));
    let open = Arc::clone(&opened);
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            if open.load(Ordering::Relaxed) { pass(stream, asked.clone()) } else { silent.push(stream) }
        }
    });
    (port, opened)
}

fn pass(stream: TcpStream, socket: PathBuf) {
    let server = UnixStream::connect(socket).expect("the server");
    let (mut from, mut to) = (stream.try_clone().expect("a stream"), server.try_clone().expect("a stream"));
    std::thread::spawn(move || io::copy(&mut from, &mut to));
    std::thread::spawn(move || io::copy(&mut &server, &mut &stream));
}

#[test]
fn a_host_that_does_not_answer_leaves_time_for_the_next_one() {
    let Some(cluster) = start("hosts") else { return };
    fill(&mut cluster.connect());
    let (port, _) = door(&cluster);
    let folder = cluster.folder().display();
    let url = format!("host=127.0.0.1,{folder} port={port},5432 dbname=postgres user=oncall sslmode=disable");
    let dashboard = Dashboard::at(&url, &[]);
    let answer = dashboard.get("/api/tasks");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn the_numbers_return_soon_after_a_long_silence() {
    let Some(cluster) = start("silence") else { return };
    fill(&mut cluster.connect());
    let (port, opened) = door(&cluster);
    let url = format!("host=127.0.0.1 port={port} dbname=postgres user=oncall sslmode=disable");
    let dashboard = Dashboard::at(&url, &[]);
    let queues = || dashboard.get("/api/overview").json()["queues"].take();
    eventually("a try has failed", SOON, || queues()["trouble"].is_object());
    opened.store(true, Ordering::Relaxed);
    // Less than twenty times the three seconds that the try took.
    eventually("the numbers are there", Duration::from_secs(20), || queues()["value"].is_object());
}

#[test]
fn a_part_that_fails_is_marked_and_its_last_data_stays() {
    let Some(cluster) = start("parts") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("parts", &dashboard, "schedules");
    browser.sees("tr[data-key=\"nightly report\"]", "0 3 * * *");
    browser.sees("#live", "live");
    let mut lock = client.transaction().expect("a transaction");
    lock.batch_execute("LOCK TABLE queue.schedules").expect("a lock");
    browser.sees("#stale", "The page shows the last data of");
    browser.sees("#live", "stale");
    browser.sees("tr[data-key=\"nightly report\"]", "0 3 * * *");

    // A dashboard that has never had an answer does not know whether there are problems.
    let late = Dashboard::start(&cluster, "oncall", &[]);
    browser.open(&late.page("queues"));
    browser.sees(".troubles", "cannot be shown");
    browser.sees("#nav", "?");
    lock.rollback().expect("an end");
    drop(late);

    // A page whose own data does not come is marked, too.
    browser.open(&dashboard.page("tasks"));
    browser.eventually("the tasks are there", || browser.count("tbody tr") == 50);
    browser.sees("#live", "live");
    browser.command("Network.enable", json!({}));
    browser.command("Network.setBlockedURLs", json!({"urls": ["*api/tasks*"]}));
    browser.sees("#stale", "does not answer");
    browser.sees("#live", "stale");
    assert_eq!(browser.count("tbody tr"), 50);
    browser.command("Network.setBlockedURLs", json!({"urls": []}));
    browser.sees("#live", "live");
}

#[test]
fn a_page_acts_after_another_process_has_taken_over_its_address() {
    let Some(cluster) = start("takeover") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let first = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("takeover", &first, "queues");
    browser.sees("tr[data-key=mail]", "mail");
    let address = first.address.clone();
    // The page does not see the gap between the two.
    browser.command("Network.enable", json!({}));
    browser.click("[aria-label=\"Pause refreshing\"]");
    browser.sees("#live", "paused");
    drop(first);
    let _second = Dashboard::start(&cluster, "oncall", &["--allow-actions", "--listen", &address]);
    browser.click("[aria-label=\"Pause refreshing\"]");
    browser.sees("#live", "live");
    browser.click("[aria-label=\"Pause mail\"]");
    browser.click("dialog [value=yes]");
    browser.sees("#notes", "mail is paused");
    let paused = "SELECT count(*) FROM queue.queues WHERE name = 'mail' AND paused_at IS NOT NULL";
    assert_eq!(id(&mut client, paused), 1);
}

#[test]
fn a_form_that_cannot_be_opened_says_why() {
    let Some(cluster) = start("forms") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    run(&mut client, "SELECT queue.push('invoices', delay => '1 hour')");
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("forms", &dashboard, "tasks?state=scheduled");
    browser.eventually("the buttons are there", || browser.count("[data-bulk=move_where]") == 1);
    browser.command("Network.enable", json!({}));
    browser.command("Network.setBlockedURLs", json!({"urls": ["*api/overview*", "*api/schedule*"]}));
    for button in ["[data-form=push]", "[data-bulk=move_where]"] {
        browser.click(button);
        browser.sees("#notes", "does not answer");
        browser.click("#notes .close");
        browser.sees_no("#notes", "does not answer");
    }
}
