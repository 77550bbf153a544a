//! The page "Errors": failures grouped by error.

use super::fill::{claimed, run};
use super::program::Dashboard;
use super::{browse, start};

#[test]
fn failures_are_grouped_by_error_and_a_click_lists_their_tasks() {
    let Some(cluster) = start("failures") else { return };
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall');
         SELECT queue.create('hooks', '{\"max_attempts\": 2}'), queue.create('mail');
         SELECT queue.push('hooks', kind => 'order') FROM generate_series(1, 3); SELECT queue.push('mail')",
    );
    let fail = |queue: &str, more: &str| {
        format!(
            "SELECT queue.fail(id, token, $1{more}) FROM queue.claim('1 minute', '{queue}', worker => 'w-1')"
        )
    };
    let mut failed =
        |queue: &str, more: &str, error: &str| claimed(&mut client, &fail(queue, more), &[&error]);
    failed("hooks", ", permanent => true", "POST /orders/17: 503 after 2.5 s\n  at deliver (hooks.rs:88)");
    failed("hooks", ", permanent => true", "POST /orders/8123: 500 after 10.0 s");
    failed(
        "hooks",
        ", retry_in => '1 hour'",
        "POST /orders/3f2b8c9e-0d1a-4b7e-9c55-0123456789ab: 503 after 1.0 s",
    );
    failed("mail", ", permanent => true", "<img src=x onerror=\"window.stolen=1\"> 4f9a0c1de2");
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("failures", &dashboard, "dead");
    browser.click(".heading a");
    browser.sees("h1", "Errors");
    let group = "tbody tr[data-key='POST /orders/#: # after #.# s']";
    for text in ["3", "2", "hooks", "order"] {
        browser.sees(group, text);
    }
    browser.sees("tbody", "<img src=x onerror=\"window.stolen=#\"> #");
    assert_eq!(browser.count("tbody tr"), 2);
    browser.click(&format!("{group} a"));
    browser.sees(".sentence", "3 tasks failed");
    browser.sees("tbody", "POST /orders/8123: 500");
    browser.sees("tbody", "to be retried");
    assert_eq!(browser.count("tbody tr"), 3);
    browser.sees(".extent", "all dead letters (3)");

    browser.open(&dashboard.page("failures?queue=mail"));
    browser.eventually("only one is left", || browser.count("tbody tr") == 1);
    assert_eq!(browser.count("main img"), 0);
    assert!(browser.run("return window.stolen").is_null());
    browser.open(&dashboard.page("failures?kind=nothing"));
    browser.sees(".empty", "No failures");
    assert_eq!(browser.console(), Vec::<String>::new());
}
