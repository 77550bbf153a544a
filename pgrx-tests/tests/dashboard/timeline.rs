//! The pictures on the page of a task: its attempts to scale, and what belongs to it.

use super::browser::Browser;
use super::fill::{claimed, fill, id, run};
use super::program::Dashboard;
use super::{browse, start};
use serde_json::json;

/// Waits until the text in the picture contains this.
fn shows(browser: &Browser, picture: &str, text: &str) {
    let script = format!(
        "return [...document.querySelectorAll('{picture}')].map((drawn) => drawn.textContent).join('\\n')"
    );
    browser.eventually(&format!("{picture} shows {text}"), || {
        browser.run(&script).as_str().unwrap_or_default().contains(text)
    });
}

#[test]
fn the_page_of_a_task_draws_its_attempts_to_scale() {
    let Some(cluster) = start("timeline") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    // Claimed after 10 seconds, failed after 20, due after 40, claimed after 60, completed after 80.
    run(
        &mut client,
        "SET session_replication_role = replica;
         INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, worker, claimed_at, created_at, finished_at, errors, payload)
         SELECT 5000, 'mail', 'completed', 0, at + interval '40 s', 2, 2, 'w-2', at + interval '60 s', at, at + interval '80 s',
                jsonb_build_array(jsonb_build_object('attempt', 1, 'claimed_at', at + interval '10 s', 'at', at + interval '20 s',
                                                    'worker', 'w-1', 'error', 'no')), '{}'
         FROM (SELECT now() - interval '1 hour' AS at) AS t; RESET session_replication_role",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("timeline", &dashboard, "task?id=5000");
    shows(&browser, ".timeline", "Attempt 1 failed after 10 s by w-1 · waited 10 s");
    shows(&browser, ".timeline", "Attempt 2 completed after 20 s by w-2 · due after 20 s, waited 20 s");
    // Where a bar begins and how long it is, in eighths of the whole time.
    let eighths = |bar: &str| {
        let script = format!(
            "const bar = document.querySelector('.timeline {bar}'); const whole = document.querySelector('.timeline').viewBox.baseVal.width - 16;
             return ['x', 'width'].map((name) => Math.round((Number(bar.getAttribute(name)) - (name === 'x' ? 8 : 0)) / whole * 8)).join()"
        );
        browser.run(&script).as_str().expect("numbers").to_owned()
    };
    assert_eq!(eighths(".failed .wait"), "0,1");
    assert_eq!(eighths(".failed .run"), "1,1");
    assert_eq!(eighths(".completed .backoff"), "2,2");
    assert_eq!(eighths(".completed .wait"), "4,2");
    assert_eq!(eighths(".completed .run"), "6,2");

    // On a phone, nothing is cut off.
    browser.command(
        "Emulation.setDeviceMetricsOverride",
        json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true}),
    );
    browser.open(&dashboard.page("task?id=5000"));
    shows(&browser, ".timeline", "due after 20 s, waited 20 s");
    let room = "const { width } = document.querySelector('.timeline').viewBox.baseVal;
                const texts = [...document.querySelectorAll('.timeline text')].map((drawn) => drawn.getBBox());
                return width < 390 && texts.every(({ x, width: long }) => x + long <= width)";
    browser.eventually("every text fits on a phone", || browser.run(room).as_bool() == Some(true));
    browser.command("Emulation.clearDeviceMetricsOverride", json!({}));

    for (task, text, drawn) in [
        (tasks.failed, "Attempt 2 failed", ".attempt.failed"),
        (tasks.running, "Attempt 1 runs", ".attempt.running .run"),
        (tasks.scheduled, "Attempt 1 is due in", ".attempt.next .due"),
        (tasks.cancelled, "cancelled without another attempt", ".attempt.none"),
    ] {
        browser.open(&dashboard.page(&format!("task?id={task}")));
        shows(&browser, ".timeline", text);
        assert!(browser.count(drawn) > 0, "{task}: {drawn}");
    }
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn the_page_of_a_task_links_what_it_waits_for_its_steps_and_its_batch() {
    let Some(cluster) = start("graph") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let other = id(&mut client, "SELECT queue.push('invoices', delay => '1 hour')");
    let stepped = id(&mut client, "SELECT queue.push('invoices')");
    claimed(
        &mut client,
        "SELECT queue.step(id, token, 'charge card', '{\"secret\": 1}') FROM queue.claim('1 minute', 'invoices')",
        &[],
    );
    run(
        &mut client,
        &format!("SELECT queue.await_task(id, token, {other}) FROM queue.tasks WHERE id = {stepped}"),
    );
    let batch = id(&mut client, "SELECT queue.create_batch('invoices')");
    run(
        &mut client,
        &format!(
            "SELECT queue.push('invoices', delay => '1 hour', batch => {batch}) FROM generate_series(1, 2);
             SELECT queue.cancel(queue.push('invoices', delay => '1 hour', batch => {batch})); SELECT queue.seal_batch({batch})"
        ),
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("graph", &dashboard, &format!("task?id={batch}"));
    shows(&browser, ".graph", "Batch: 2 unfinished");
    shows(&browser, ".graph", "1 cancelled");
    browser.open(&dashboard.page(&format!("task?id={stepped}")));
    shows(&browser, ".graph .step", "charge card");
    shows(&browser, ".graph .awaited", "waits for this task");
    assert!(!dashboard.get(&format!("/api/task?id={stepped}")).body.contains("secret"));
    browser.click(".graph a rect");
    browser.sees("h1", &format!("Task {other}"));
    shows(&browser, ".dependencies", &format!("Task {stepped}"));
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn the_page_of_a_task_links_the_tasks_before_and_after_it() {
    let Some(cluster) = start("dependencies") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let ended = id(&mut client, "SELECT queue.push('invoices', priority => -1)");
    let first = id(&mut client, "SELECT queue.push('invoices', delay => '1 hour')");
    let batch = id(&mut client, "SELECT queue.create_batch('invoices')");
    let push = format!("SELECT queue.push('invoices', after => ARRAY[{ended}, {first}], batch => {batch})");
    let middle = id(&mut client, &push);
    let last = id(&mut client, &format!("SELECT queue.push('mail', after => ARRAY[{middle}])"));
    run(
        &mut client,
        &format!(
            "SELECT queue.push('invoices', after => ARRAY[{last}]) FROM generate_series(1, 12);
             SELECT queue.complete(id, token) FROM queue.claim('1 minute', 'invoices')"
        ),
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("dependencies", &dashboard, &format!("task?id={middle}"));
    for box_of in [
        format!("Task {first}: scheduled"),
        format!("Task {ended}: completed"),
        format!("Task {middle}: waiting"),
        format!("Task {batch}: waiting, callback of the batch"),
        format!("Task {last}: waiting"),
    ] {
        shows(&browser, ".dependencies title", &box_of);
    }
    assert_eq!(browser.count(".dependencies .arrow"), 2);
    // Those that have not ended come first.
    browser.click(".dependencies a rect");
    browser.sees("h1", &format!("Task {first}"));
    shows(&browser, ".dependencies title", &format!("Task {middle}: waiting"));
    // Many.
    browser.open(&dashboard.page(&format!("task?id={last}")));
    shows(&browser, ".dependencies", "4 more");
    // An operator of one queue sees the predecessor in another without its state.
    run(&mut client, "CREATE ROLE postman LOGIN; SELECT queue.grant_operator('postman', 'mail')");
    let dashboard = Dashboard::start(&cluster, "postman", &[]);
    browser.open(&dashboard.page(&format!("task?id={last}")));
    shows(&browser, ".dependencies title", &format!("Task {last}: waiting"));
    shows(&browser, ".dependencies title", &format!("Task {middle}: in another queue"));
    assert_eq!(browser.console(), Vec::<String>::new());
}
