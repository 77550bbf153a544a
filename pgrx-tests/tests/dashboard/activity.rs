//! The page "Activity": charts from the stored rows.

use std::time::{Duration, Instant};

use queue_ext_tests::at_best;
use serde_json::Value;

use super::browser::Browser;
use super::fill::{fill, run};
use super::program::Dashboard;
use super::{browse, start};

/// Chooses the buckets of a chart one after the other by keyboard, until one has this text.
fn step_to(browser: &Browser, chart: &str, text: &str) {
    let drawing = format!("svg.chart[data-chart={chart}]");
    browser.run(&format!("document.querySelector('{drawing}').focus()"));
    browser.press(&["\u{e011}"]);
    let said = format!("return document.querySelector('{drawing}').getAttribute('aria-valuetext')");
    let mut left = 60;
    while !browser.run(&said).as_str().expect("a text").contains(text) {
        assert!(left > 0, "no bucket of {chart} has {text}");
        left -= 1;
        browser.press(&["\u{e014}"]);
    }
}

#[test]
fn activity_is_charted_from_stored_rows_with_the_values_of_each_bucket() {
    let Some(cluster) = start("activity") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    // 8 tasks that waited 2 seconds and ran for 5, one of which took two attempts and waited for longer.
    run(
        &mut client,
        "CREATE ROLE clerk LOGIN; SELECT queue.grant_operator('clerk', 'invoices');
         SET session_replication_role = replica;
         INSERT INTO queue.history (id, queue, kind, state, priority, run_at, attempt, token, claimed_at, created_at, finished_at, payload)
         SELECT 1000 + n, 'mail', 'report', 'completed', 0, at, CASE n WHEN 8 THEN 2 ELSE 1 END, 1,
                at + interval '2 s' * CASE n WHEN 8 THEN 100 ELSE 1 END, at,
                at + interval '5 s' + interval '2 s' * CASE n WHEN 8 THEN 100 ELSE 1 END, '{}'
         FROM generate_series(1, 8) AS n, (SELECT date_trunc('hour', now() - interval '26 hours') AS at) AS t;
         RESET session_replication_role",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("activity", &dashboard, "activity?range=hour");
    browser.sees(".sentence", "126 pushed · 1 completed · 1 failed · 1 cancelled");
    browser.sees("#nav [aria-current]", "Activity");
    browser.open(&dashboard.page("activity?range=hour&queue=thumbnails"));
    browser.sees(".sentence", "120 pushed · 0 completed");
    browser.open(&dashboard.page("activity?range=week"));
    browser.sees(".sentence", "134 pushed · 9 completed");

    // The filters are in the address.
    browser.fill("input[name=kind]", "report\u{e007}");
    browser.sees(".sentence", "8 pushed · 8 completed · 0 failed · 0 cancelled");
    assert!(
        browser.run("return location.hash").as_str().expect("an address").contains("range=week&kind=report")
    );

    step_to(&browser, "tasks", "completed 8");
    browser.sees(".tip", "completed");
    browser.sees(".tip", "8");
    step_to(&browser, "wait", "p50 2 s, p95 2 s, p99 2 s");
    step_to(&browser, "run", "p50 5 s, p95 5 s, p99 5 s");
    browser.press(&["\u{e00c}"]);
    browser.eventually("Escape closes the tooltip", || browser.count(".tip") == 0);
    browser.run(
        "const drawing = document.querySelector('svg.chart'); const box = drawing.getBoundingClientRect();
         drawing.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + 90, clientY: box.top + 40}))",
    );
    browser.sees(".tip", "pushed");
    browser.click("figure[data-key=tasks] summary");
    browser.sees("figure[data-key=tasks] table", "8");
    assert_eq!(browser.console(), Vec::<String>::new());

    // It depends neither on when the dashboard was started nor on other queues than those of its role.
    drop(dashboard);
    let dashboard = Dashboard::start(&cluster, "clerk", &[]);
    browser.open(&dashboard.page("activity?range=week"));
    browser.sees(".sentence", "2 pushed · 0 completed");
    let refused = dashboard.get("/api/activity?range=year");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("range is one of"), "{}", refused.body);
}

#[test]
fn activity_of_more_tasks_than_can_be_read_is_estimated_from_a_sample() {
    let Some(cluster) = start("sample") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    const TASKS: i64 = 300_000;
    run(
        &mut client,
        &format!(
            "SET session_replication_role = replica;
             INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, claimed_at, created_at, finished_at, payload)
             SELECT 1000 + n, 'mail', 'completed', 0, at, 1, 1, at, at, at, '{{\"n\": 1}}'
             FROM generate_series(1, {TASKS}) AS n, LATERAL (SELECT now() - interval '6 days' * (1 - n / {TASKS}.0) AS at) AS t;
             RESET session_replication_role"
        ),
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    const LIMIT: Duration = Duration::from_secs(2);
    let mut seen = Value::Null;
    let took = at_best(LIMIT, || {
        let began = Instant::now();
        let answer = dashboard.get("/api/activity?range=week");
        assert_eq!(answer.status, 200);
        seen = answer.json();
        began.elapsed()
    });
    assert!(took < LIMIT, "{took:?}");
    let ended = seen["ended"].as_array().expect("buckets");
    let completed: f64 = ended.iter().map(|bucket| bucket["completed"].as_f64().expect("a number")).sum();
    assert!((completed / TASKS as f64 - 1.0).abs() < 0.1, "{completed}");
    assert!(ended.len() >= 48, "the whole range is shown: {}", ended.len());
    assert!(seen["read"].as_i64().expect("a number") < TASKS * 3 / 4, "{seen}");
    let browser = browse("sample", &dashboard, "activity?range=week");
    browser.sees("main", "Estimated from a sample");
    // A short range of many tasks is read from its index.
    browser.open(&dashboard.page("activity?range=hour"));
    browser.sees(".extent", "finished tasks in queue.history");
}
