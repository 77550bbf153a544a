//! What lists find, how far they say that they reach, and when a form changes them.

use queue_ext_tests::{SOON, eventually};

use super::fill::{claimed, fill, id, run};
use super::program::Dashboard;
use super::{browse, ids, start};

#[test]
fn a_dead_letter_is_found_by_its_id_and_running_tasks_beyond_the_first_page() {
    let Some(cluster) = start("found") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dead = id(&mut client, "SELECT queue.push('invoices')");
    let fail =
        "SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'invoices')";
    claimed(&mut client, fail, &[]);
    run(
        &mut client,
        "SELECT count(queue.push('default')) FROM generate_series(1, 60);
         SELECT count(*) FROM queue.claim('1 hour', 'default', max_tasks => 60, worker => 'w1')",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let first = dashboard.tasks("state=running");
    let next = first["next"].as_str().expect("a next page").replace(' ', "%20").replace('+', "%2B");
    let second = dashboard.tasks(&format!("state=running&after={next}"));
    assert_eq!((ids(&first).len(), ids(&second).len()), (50, 11), "{second}");
    assert!(second["next"].is_null() && ids(&first).iter().all(|id| !ids(&second).contains(id)), "{second}");

    let browser = browse("found", &dashboard, &format!("dead?text={dead}"));
    browser.eventually("it is found", || browser.count(&format!("tbody tr[data-key='{dead}']")) == 1);

    // The link to the other tasks of a worker names the worker: the text w1 would also be found in w10.
    browser.open(&dashboard.page("workers"));
    browser.click("tr[data-key='\"w1\"'] a[href*=running]");
    browser.sees(".chips", "worker w1");
}

#[test]
fn choosing_a_queue_opens_no_page_before_the_button_is_pressed() {
    let Some(cluster) = start("choosing") else { return };
    fill(&mut cluster.connect());
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("choosing", &dashboard, "tasks");
    for (page, button) in
        [("tasks", "form[data-search] > button"), ("activity", "form[data-filter] > button")]
    {
        browser.open(&dashboard.page(page));
        browser.eventually("the queues are there", || browser.count("main select option[value=mail]") == 1);
        browser.run(
            "const list = document.querySelector('main select'); list.value = 'mail';
             for (const kind of ['input', 'change']) list.dispatchEvent(new Event(kind, { bubbles: true }))",
        );
        assert_eq!(browser.run("return location.hash"), format!("#/{page}"));
        browser.click(button);
        browser.eventually("the page of the queue is there", || {
            browser.run("return location.hash").as_str().is_some_and(|hash| hash.contains("queue=mail"))
        });
    }
}

#[test]
fn pages_report_what_they_do_not_show() {
    let Some(cluster) = start("cuts") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    run(
        &mut client,
        "SELECT queue.create('aged', '{\"ageing\": \"1 minute\"}'), queue.create('fair', '{\"fair_groups\": true}'),
                queue.create('unkept', '{\"keep_history\": false}');
         SELECT queue.push('aged');
         INSERT INTO queue.queues (name) SELECT 'b' || n FROM generate_series(10000, 12000) AS n;
         SELECT count(queue.schedule('s' || n, '@daily', 'mail')) FROM generate_series(1, 501) AS n",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    eventually("the queues are counted", SOON, || {
        dashboard.get("/api/overview").json()["queues"]["value"].is_object()
    });
    let browser = browse("cuts", &dashboard, "queues");
    browser.sees("main", "Only the first 2,000 queues are shown");
    browser.open(&dashboard.page("schedules"));
    browser.sees("main", "Only the first 500 schedules are shown");

    // Not among the first 2,000, and among them without a curve.
    browser.open(&dashboard.page("queue?name=mail"));
    browser.sees("h1", "mail");
    browser.sees("main", "not among those whose tasks are counted");
    browser.sees("main", "smtp.example.com");
    browser.open(&dashboard.page("queue?name=b11000"));
    browser.sees(".figures", "now 0");
    assert!(!browser.text(".figures").contains("at most"), "{}", browser.text(".figures"));
    browser.open(&dashboard.page("queue?name=nowhere"));
    browser.sees(".empty", "There is no queue nowhere");

    for (queue, title) in
        [("aged", "Due, by priority"), ("fair", "Due, by priority"), ("b10000", "Next to be claimed")]
    {
        browser.open(&dashboard.page(&format!("queue?name={queue}")));
        browser.sees("h1", queue);
        // Titles are shown in capitals.
        browser.sees("h2", &title.to_uppercase());
    }
    browser.open(&dashboard.page("activity?queue=unkept"));
    browser.sees(".empty", "No history is kept");
    browser.sees(".extent", "The queue unkept keeps no history");
}
