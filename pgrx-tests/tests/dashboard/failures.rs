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

#[test]
fn failures_of_python_are_grouped_by_the_message_after_the_traceback() {
    let Some(cluster) = start("tracebacks") else { return };
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall');
         SELECT queue.push('default') FROM generate_series(1, 5)",
    );
    let frames = "  File \"/app/jobs.py\", line 3, in send\n    deliver()\n    ~~~~~~~^^\n".repeat(40);
    let header = "Traceback (most recent call last):\n";
    for error in [
        format!("{header}{frames}ValueError: order 17 is closed\n"),
        format!(
            "{header}  File \"a.py\", line 1, in f\n    g()\nValueError: order 8 is closed\nsee the log\n  of today\n"
        ),
        format!(
            "{header}{frames}KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n\
             {header}{frames}jobs.Rejected: no such order\n"
        ),
        format!("{header}an end that was cut"),
        "Traceback of another program".to_owned(),
    ] {
        let fail = "SELECT queue.fail(id, token, $1, permanent => true) FROM queue.claim('1 minute')";
        claimed(&mut client, fail, &[&error]);
    }
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let found = dashboard.get("/api/failures").json();
    let groups = found["groups"].as_array().expect("groups").iter();
    let mut groups: Vec<_> = groups.map(|group| (group["error"].as_str(), group["tasks"].as_i64())).collect();
    groups.sort();
    let expected = [
        ("Traceback of another program", 1),
        ("ValueError: order # is closed", 2),
        ("an end that was cut", 1),
        ("jobs.Rejected: no such order", 1),
    ];
    assert_eq!(groups, expected.map(|(error, tasks)| (Some(error), Some(tasks))), "{found}");
    let browser = browse("tracebacks", &dashboard, "dead");
    browser.sees("tbody .error", "jobs.Rejected: no such order");
    browser.sees("tbody .error", "ValueError: order 17 is closed");
}
