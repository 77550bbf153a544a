//! Takes the screenshots of the docs on a busy server. PICTURES is the folder for them; PICTURES_SECONDS is the
//! duration of the load before, which the curves show.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, eventually};
use serde_json::json;

use super::browse;
use super::fill::{id, run};
use super::program::Dashboard;

const SETUP: &str = "
    CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall');
    CREATE SEQUENCE orders START 48211;
    SELECT queue.create('mail', '{\"max_attempts\": 4, \"lease\": \"2 minutes\", \"backoff\": {\"base\": \"2 s\"}}'),
           queue.create('webhooks', '{\"max_attempts\": 3, \"rate_limit\": 600, \"rate_period\": \"1 minute\", \"backoff\": {\"kind\": \"fixed\", \"base\": \"1 s\"}}'),
           queue.create('thumbnails'), queue.create('invoices', '{\"lease\": \"5 minutes\"}'),
           queue.create('search-index'), queue.create('exports', '{\"max_queued\": 38}');
    SELECT queue.pause('exports');
    SELECT queue.schedule('nightly-report', '0 3 * * *', 'invoices', '{}', 'Europe/Berlin'),
           queue.schedule('reindex', '*/15 * * * *', 'search-index'),
           queue.schedule('dunning', '0 9 * * MON-FRI', 'invoices', '{}', 'America/New_York'),
           queue.schedule('month-end', '0 6 LW * *', 'exports'), queue.schedule('old-export', '0 4 * * *', 'exports');
    SELECT queue.pause_schedule('old-export');
    SELECT count(queue.push('exports', jsonb_build_object('tenant', n))) FROM generate_series(1, 38) AS n;
    UPDATE queue.schedules SET last_run_at = now() - interval '1 month', next_run_at = now() - interval '4 hours' WHERE name = 'month-end';
    SELECT count(queue.push('invoices', jsonb_build_object('order', n), delay => '1 hour')) FROM generate_series(1, 412) AS n";

/// The load of producers and workers in each tenth of a second, with the public functions.
const PUSH: &str = "
    SELECT count(queue.push(q.name, jsonb_build_object('to', 'customer-' || n || '@example.com', 'template', 'order-shipped',
                                    'order', 48000 + n, 'items', jsonb_build_array('tea', 'kettle')),
                            key => CASE WHEN q.name = 'mail' THEN 'order-' || nextval('orders') END,
                            headers => jsonb_build_object('traceparent', '00-' || md5(n::text) || '-' || left(md5(n::text), 16) || '-01')))
    FROM (VALUES ('mail', $1), ('thumbnails', $1 * 2), ('webhooks', $1 / 3), ('search-index', $1 / 2), ('invoices', 1)) AS q (name, n_tasks),
         generate_series(1, q.n_tasks) AS n";
const WORK: &str = "
    WITH claimed AS (SELECT * FROM queue.claim('2 minutes', $1, max_tasks => $2, worker => $3))
    SELECT CASE WHEN id % 97 = 0 AND queue = 'webhooks'
                THEN queue.fail(id, token, E'POST https://shop.example.com/hooks/orders: 503 Service Unavailable\\n  at deliver (hooks.rs:88)')
                WHEN id % 203 = 0 AND queue = 'mail' THEN queue.fail(id, token, '550 5.1.1 mailbox unavailable', permanent => true)
                ELSE (SELECT 'done' FROM queue.complete(id, token, '{\"message_id\": \"m-99\"}')) END
    FROM claimed";

fn work(cluster: &Cluster, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<()>> {
    let forever = |mut client: Client, mut turn: Box<dyn FnMut(&mut Client, f64) + Send>| {
        let (stop, began) = (Arc::clone(stop), Instant::now());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                turn(&mut client, began.elapsed().as_secs_f64());
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    };
    let push: Box<dyn FnMut(&mut Client, f64) + Send> = Box::new(|client, at| {
        let tasks = (6.0 + 4.0 * (at / 17.0).sin() + 2.0 * (at / 5.0).sin()) as i32;
        client.query(PUSH, &[&tasks]).expect("push");
    });
    let mut threads = vec![forever(cluster.connect(), push)];
    for (queue, tasks) in
        [("mail", 7), ("thumbnails", 13), ("webhooks", 2), ("search-index", 4), ("invoices", 1)]
    {
        let work: Box<dyn FnMut(&mut Client, f64) + Send> = Box::new(move |client, _| {
            client.query(WORK, &[&queue, &tasks, &format!("{queue}-{}@app-2", 1)]).expect("work");
        });
        threads.push(forever(cluster.connect(), work));
    }
    threads
}

/// Pushes tasks and claims them before the load does; returns them.
fn take(client: &mut Client, queue: &str, worker: &str, tasks: i32) -> Vec<(i64, i64)> {
    let push =
        "SELECT queue.push($1, jsonb_build_object('to', 'customer-' || n || '@example.com'), priority => -1)
                FROM generate_series(1, $2) AS n";
    let claim = "SELECT id, token FROM queue.claim('10 minutes', $1, max_tasks => $2, worker => $3)";
    let mut taken = Vec::new();
    eventually("the load leaves some tasks", SOON, || {
        client.query(push, &[&queue, &tasks]).expect("push");
        taken = client.query(claim, &[&queue, &tasks, &worker]).expect("claim");
        !taken.is_empty()
    });
    taken.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Spreads the finished tasks over an hour, for the charts of that page.
const SPREAD: &str = "
    UPDATE queue.history SET created_at = created_at - 10 * (now() - finished_at), run_at = run_at - 10 * (now() - finished_at),
           claimed_at = claimed_at - 10 * (now() - finished_at), finished_at = finished_at - 10 * (now() - finished_at);
    UPDATE queue.dead_letters SET created_at = created_at - 10 * (now() - failed_at), run_at = run_at - 10 * (now() - failed_at),
           claimed_at = claimed_at - 10 * (now() - failed_at), failed_at = failed_at - 10 * (now() - failed_at)";

#[test]
fn pictures_for_the_docs() {
    let Some(folder) = std::env::var_os("PICTURES").map(PathBuf::from) else {
        println!("no pictures: PICTURES names no folder for them (make screenshots)");
        return;
    };
    let seconds = std::env::var("PICTURES_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let cluster = Cluster::start("dashboard-pictures");
    let mut client = cluster.connect();
    run(&mut client, SETUP);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let stop = Arc::new(AtomicBool::new(false));
    let threads = work(&cluster, &stop);
    let browser = browse("pictures", &dashboard, "queues");
    // Not a wait for a condition: the pictures show the load of these seconds.
    std::thread::sleep(Duration::from_secs(seconds));
    for (id, token) in take(&mut client, "webhooks", "webhooks-2@app-1", 3) {
        let fail = "SELECT queue.fail($1, $2, 'TLS handshake with hooks.example.com timed out after 10 s', permanent => true)";
        client.query(fail, &[&id, &token]).expect("fail");
    }
    for (queue, worker, tasks) in
        [("mail", "mail-2@app-1", 3), ("thumbnails", "thumbs-7@app-3", 5), ("invoices", "billing-1@app-1", 1)]
    {
        take(&mut client, queue, worker, tasks);
    }
    browser.eventually("it is seen", || browser.text("[data-key=running] .value") != "0");
    let failed = id(
        &mut client,
        "SELECT id FROM queue.dead_letters WHERE queue = 'webhooks' ORDER BY jsonb_array_length(errors) DESC, id LIMIT 1",
    );
    let task = format!("task?id={failed}");
    let wide = (1280, 800, 1, false);
    let phone = (390, 844, 2, true);
    for (name, page, screen, scheme) in [
        ("queues", "queues", wide, "light"),
        ("queues-dark", "queues", wide, "dark"),
        ("queues-phone", "queues", phone, "dark"),
        ("queue", "queue?name=mail", wide, "light"),
        ("errors", "failures", wide, "light"),
        ("tasks", "tasks?state=live", wide, "light"),
        ("task", &task, wide, "light"),
        ("dead-letters", "dead", wide, "dark"),
        // Not right after the same page on a wide screen, which would not draw its timeline anew.
        ("task-phone", &task, phone, "light"),
        ("schedules", "schedules", wide, "light"),
        ("schedules-phone", "schedules", phone, "dark"),
        ("workers", "workers", wide, "light"),
        ("health", "health", wide, "dark"),
        ("activity", "activity?range=hour", wide, "light"),
    ] {
        if name == "activity" {
            run(&mut client, SPREAD);
        }
        let (width, height, scale, mobile) = screen;
        browser.command(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}),
        );
        browser.command(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
        browser.open(&dashboard.page(page));
        browser.sees("#live", "live");
        browser.eventually("the page is there", || {
            browser.count("h1") == 1 && browser.count("main[aria-busy]") == 0
        });
        browser.picture(&folder.join(format!("dashboard-{name}.png")));
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("the load"));
}
