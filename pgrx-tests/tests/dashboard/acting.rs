//! Finding tasks by their fields, and changing them: many at once, one, and those that schedules push.

use serde_json::json;

use super::browser::Browser;
use super::fill::{fill, id, run};
use super::program::Dashboard;
use super::{ENTER, browse, http, ids, start};

const YES: &str = "dialog [value=yes]";

fn now(client: &mut postgres::Client) -> f64 {
    client.query_one("SELECT extract(epoch FROM clock_timestamp())::float8", &[]).expect("the time").get(0)
}

/// Chooses in a list, as a user does.
fn choose(browser: &Browser, selector: &str, value: &str) {
    browser.eventually(selector, || browser.count(selector) == 1);
    browser.run(&format!(
        "const list = document.querySelector({}); list.value = {};
         for (const kind of ['input', 'change']) list.dispatchEvent(new Event(kind, {{ bubbles: true }}))",
        json!(selector),
        json!(value)
    ));
}

#[test]
fn tasks_are_filtered_by_each_field_and_the_address_holds_the_filter() {
    let Some(cluster) = start("filters") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    let a = id(
        &mut client,
        "SELECT queue.push('invoices', '{\"tenant\": 7, \"n\": 1}', kind => 'bill', key => 'a_1', group_key => 'g_1')",
    );
    let between = now(&mut client);
    let b = id(
        &mut client,
        "SELECT queue.push('invoices', '{\"tenant\": 8}', kind => 'bill', key => 'aX1', group_key => 'gX1')",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    for (query, found) in [
        ("kind=bill".to_owned(), vec![b, a]),
        ("kind=bill&queue=mail".to_owned(), vec![]),
        ("key=a_1".to_owned(), vec![a]),
        ("key=a*1".to_owned(), vec![b, a]),
        ("state=live&queue=invoices&group=g_1".to_owned(), vec![a]),
        ("group=g*1".to_owned(), vec![b, a]),
        ("worker=mailer-3".to_owned(), vec![tasks.running]),
        ("state=failed&error=*refused*".to_owned(), vec![tasks.failed]),
        ("payload=%7B%22tenant%22%3A7%7D".to_owned(), vec![a]),
        (format!("kind=bill&pushed_from={between}"), vec![b]),
        (format!("kind=bill&pushed_to={between}"), vec![a]),
        (format!("state=completed&ended_to={between}"), vec![tasks.completed]),
        (format!("state=completed&ended_from={between}"), vec![]),
        (format!("state=failed&queue=mail&ended_to={between}&text=ORDER"), vec![tasks.failed]),
    ] {
        let expected: Vec<String> = found.iter().map(i64::to_string).collect();
        assert_eq!(ids(&dashboard.tasks(&query)), expected, "{query}");
    }
    for (query, name) in [("payload=%7Bx", "payload"), ("pushed_from=soon", "pushed_from")] {
        let refused = dashboard.get(&format!("/api/tasks?{query}"));
        assert!(refused.status == 400 && refused.body.contains(name), "{}", refused.body);
    }
    let hiding = Dashboard::start(&cluster, "oncall", &["--hide-payloads"]);
    assert_eq!(hiding.get("/api/tasks?payload=%7B%7D").status, 400);

    let browser = browse("filters", &dashboard, "tasks?kind=bill");
    browser.eventually("both are there", || browser.count("tbody tr") == 2);
    browser.fill("input[name=key]", &format!("a_1{ENTER}"));
    browser.eventually("one is there", || browser.count("tbody tr") == 1);
    browser.sees("tbody", &a.to_string());
    assert_eq!(browser.run("return location.hash"), "#/tasks?kind=bill&key=a_1");
    browser.click(".chip[data-key=key]");
    browser.eventually("both are there again", || browser.count("tbody tr") == 2);
    assert_eq!(browser.run("return location.hash"), "#/tasks?kind=bill");
}

#[test]
fn a_bulk_action_changes_what_its_dry_run_counted_in_batches_and_can_be_stopped() {
    let Some(cluster) = start("bulk") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    let push = |kind: &str, number: i64| {
        format!(
            "SELECT count(queue.push('invoices', '{{\"secret\": \"s3cr3t\"}}', kind => '{kind}', delay => '1 hour')) FROM generate_series(1, {number})"
        )
    };
    run(&mut client, &push("bulk", 2500));
    run(&mut client, &push("other", 3));
    let count = |client: &mut postgres::Client, condition: &str| {
        id(client, &format!("SELECT count(*) FROM queue.all_tasks WHERE kind = 'bulk' AND {condition}"))
    };
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("bulk", &dashboard, "tasks?state=scheduled&kind=bulk");

    // What is pushed after the count is not changed.
    browser.click("[data-bulk=reprioritise_where]");
    browser.sees("dialog .said", "bulk");
    browser.fill("#field-priority", "3");
    browser.sees(".counted", "2,500 tasks match");
    run(&mut client, &push("bulk", 1));
    browser.click(YES);
    browser.sees("#notes", "2,500 tasks given the priority");
    assert_eq!(count(&mut client, "priority = 3"), 2500);

    // Stopped while the first batch waits for a lock: that batch is done, the others are not.
    browser.click("[data-bulk=run_now_where]");
    browser.sees(".counted", "2,501 tasks match");
    let mut lock = client.transaction().expect("a transaction");
    lock.batch_execute("LOCK TABLE queue.tasks IN SHARE MODE").expect("a lock");
    browser.click(YES);
    browser.sees(".counted", "0 of 2,501");
    browser.click("dialog [value=no]");
    lock.rollback().expect("an end");
    browser.sees("#notes", "Stopped: 1,000 of 2,501 tasks made due");
    assert_eq!(count(&mut client, "run_at <= clock_timestamp()"), 1000);

    browser.open(&dashboard.page("tasks?state=queued&kind=bulk"));
    browser.click("[data-bulk=move_where]");
    choose(&browser, "#field-to_queue", "thumbnails");
    browser.sees(".counted", "1,000 tasks match");
    browser.click(YES);
    browser.sees("#notes", "1,000 tasks moved");
    assert_eq!(count(&mut client, "queue = 'thumbnails'"), 1000);

    // The selected ones alone.
    browser.click("tbody tr:first-child [data-pick]");
    browser.sees(".bulk", "the 1 selected");
    browser.click("[data-bulk=cancel_where]");
    browser.sees(".counted", "1 task matches");
    browser.click(YES);
    browser.sees("#notes", "1 task cancelled or asked to stop");
    assert_eq!(count(&mut client, "state = 'cancelled'"), 1);

    browser.click("[data-bulk=purge_where]");
    browser.sees(".counted", "999 tasks match");
    browser.click(YES);
    browser.sees("#notes", "999 tasks deleted");
    assert_eq!(count(&mut client, "state = 'queued' AND run_at <= clock_timestamp()"), 0);

    browser.open(&dashboard.page("dead?error=*refused*"));
    browser.click("[data-bulk=redrive_where]");
    browser.sees(".counted", "1 task matches");
    browser.click(YES);
    browser.sees("#notes", "1 task back in");
    let queued = format!("SELECT count(*) FROM queue.tasks WHERE id = {} AND state = 'queued'", tasks.failed);
    assert_eq!(id(&mut client, &queued), 1);

    // What the procedures cannot filter by is neither offered nor accepted.
    browser.open(&dashboard.page("tasks?state=live&text=other"));
    browser.sees(".bulk", "cannot search text");
    assert_eq!(browser.count("[data-bulk]"), 0);
    for filter in [
        json!({"state": "live", "text": "x"}),
        json!({"state": "live", "ended_to": "1"}),
        json!({"state": "blocked"}),
        json!({"state": "live", "knid": "bulk"}),
        json!({}),
    ] {
        let wish = json!({"action": "cancel_where", "filter": filter, "from": "0", "until": "9999999", "at_most": 9});
        assert_eq!(dashboard.act(&wish.to_string()).status, 400, "{filter}");
    }
    let cancel = json!({"action": "cancel_where", "from": "0", "until": "9999999", "at_most": 9, "filter": {
        "state": "live", "kind": "other", "payload": "{\"secret\": \"s3cr3t\"}", "pushed_to": "9999999999"}});
    let done = dashboard.act(&cancel.to_string());
    assert_eq!(done.json()["result"]["tasks"], 3, "{}", done.body);
    let log = dashboard.log();
    assert!(log.contains("(not shown)") && !log.contains("s3cr3t"), "{log}");
    for action in ["reprioritise", "run_now", "move", "cancel", "purge", "redrive"] {
        assert!(log.contains(&format!("action={action}_where target=")), "{action}: {log}");
    }

    let reading = Dashboard::start(&cluster, "oncall", &[]);
    assert_eq!(reading.act(&cancel.to_string()).status, 403);
    for page in ["tasks?state=live", "dead", "schedules", "queue?name=mail"] {
        browser.open(&reading.page(page));
        browser.eventually("the page is there", || browser.count("h1") == 1);
        assert_eq!(browser.count("[data-bulk], [data-pick], [data-form]"), 0, "{page}");
    }
}

#[test]
fn selected_tasks_that_meanwhile_failed_or_were_redriven_are_not_purged() {
    let Some(cluster) = start("selected") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    let live = id(&mut client, "SELECT queue.push('invoices', delay => '1 hour')");
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    // As they are now, the first was selected as a live task before it failed, and the second as a dead letter before it
    // was redriven.
    for (task, selected, other) in [(tasks.failed, "live", "failed"), (live, "failed", "live")] {
        for (state, dry_run, expected) in
            [(selected, true, 0), (selected, false, 0), (other, true, 1), (other, false, 1)]
        {
            let purge = json!({"action": "purge_where", "ids": [task.to_string()], "state": state, "dry_run": dry_run});
            let done = dashboard.act(&purge.to_string());
            assert_eq!(done.json()["result"]["tasks"], expected, "{purge}: {}", done.body);
        }
    }
    let refused = json!({"action": "cancel_where", "ids": ["1"], "state": "failed"});
    assert_eq!(dashboard.act(&refused.to_string()).status, 400);

    let (dead, redriven) = (
        id(&mut client, "SELECT queue.push('invoices', max_attempts => 1, priority => -1)"),
        id(&mut client, "SELECT queue.push('invoices', max_attempts => 1, priority => -1)"),
    );
    run(&mut client, "SELECT queue.fail(id, token, 'no') FROM queue.claim('1 minute', 'invoices', 2)");
    let browser = browse("selected", &dashboard, "tasks?state=failed&queue=invoices");
    browser.eventually("both are there", || browser.count("[data-pick]") >= 2);
    browser.click(&format!("[data-pick='{dead}']"));
    browser.click(&format!("[data-pick='{redriven}']"));
    browser.click("[data-bulk=purge_where]");
    browser.sees("dialog .counted", "2 tasks match");
    run(&mut client, &format!("SELECT queue.retry({redriven})"));
    browser.click("dialog [value=yes]");
    browser.eventually("one is purged", || {
        id(&mut client, &format!("SELECT count(*) FROM queue.all_tasks WHERE id = {dead}")) == 0
    });
    assert_eq!(id(&mut client, &format!("SELECT count(*) FROM queue.tasks WHERE id = {redriven}")), 1);
}

#[test]
fn a_task_is_pushed_run_now_and_reprioritised_and_the_form_keeps_what_was_typed() {
    let Some(cluster) = start("push") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    run(&mut client, "SELECT queue.grant_producer('oncall')");
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("push", &dashboard, "queue?name=invoices");
    browser.click("[data-form=push]");
    browser.fill("#field-payload", "{to: 1}");
    browser.fill("#field-key", "k-1");
    browser.click(YES);
    browser.sees("dialog .problem", "payload is not JSON");
    assert_eq!(browser.run("return document.querySelector('#field-key').value"), "k-1");
    browser.fill("#field-payload", "{\"amount\": 12345678901234567890123}");
    browser.fill("#field-delay", "soon");
    browser.click(YES);
    browser.sees("dialog .problem", "delay must be an interval");
    browser.fill("#field-delay", "10 minutes");
    browser.fill("#field-priority", "5");
    browser.fill("#field-headers", "{\"trace\": \"t\"}");
    browser.click(YES);
    browser.sees("#notes", "into invoices");
    let task = id(
        &mut client,
        "SELECT id FROM queue.tasks WHERE queue = 'invoices' AND key = 'k-1' AND priority = 5 AND run_at > now()
            AND payload = '{\"amount\": 12345678901234567890123}' AND headers = '{\"trace\": \"t\"}'",
    );
    // A key that is taken is an error, and not the id of another task.
    let again = dashboard.act("{\"action\": \"push\", \"target\": \"invoices\", \"key\": \"k-1\"}");
    assert_eq!(again.json()["problem"]["sqlstate"], "QX004", "{}", again.body);
    run(
        &mut client,
        "CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RETURN CASE WHEN NEW.kind IS DISTINCT FROM 'unwanted' THEN NEW END; END $$;
         CREATE TRIGGER suppress BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION suppress()",
    );
    let none = dashboard.act("{\"action\": \"push\", \"target\": \"invoices\", \"kind\": \"unwanted\"}");
    assert!(none.body.contains("suppressed the task"), "{}", none.body);
    run(
        &mut client,
        "SELECT queue.schedule('unwanted', '@daily', 'invoices', options => '{\"kind\": \"unwanted\"}')",
    );
    let none = dashboard.act("{\"action\": \"run_schedule\", \"target\": \"unwanted\"}");
    assert!(none.body.contains("suppressed the task"), "{}", none.body);

    browser.open(&dashboard.page(&format!("task?id={task}")));
    browser.click("[data-action=reprioritise]");
    browser.fill("#priority", "-2");
    browser.click(YES);
    browser.sees("#notes", "has the new priority");
    browser.click("[data-action=run_now]");
    browser.sees("#notes", "is due");
    browser.sees("h1 + .badge", "queued");
    let due =
        format!("SELECT count(*) FROM queue.tasks WHERE id = {task} AND priority = -2 AND run_at <= now()");
    assert_eq!(id(&mut client, &due), 1);
    let log = dashboard.log();
    for line in ["action=push target=\"invoices\"", "action=reprioritise target=", "action=run_now target="] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert!(!log.contains("1234567890"), "no payloads: {log}");
}

#[test]
fn a_schedule_is_created_changed_and_deleted_in_a_form_that_shows_its_next_runs() {
    let Some(cluster) = start("schedules") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("schedules", &dashboard, "schedules");
    browser.click("[data-form=schedule][data-target=\"\"]");
    browser.fill("#field-target", "weekly");
    browser.fill("#field-cron", "61 6 * * MON");
    browser.sees(".runs", "not a cron expression");
    browser.click(YES);
    browser.sees("dialog .problem", "not a cron expression");
    assert_eq!(browser.run("return document.querySelector('#field-target').value"), "weekly");
    browser.fill("#field-cron", "0 6 * * MON");
    browser.fill("#field-timezone", "Europe/Berlin");
    browser.eventually("five runs are shown", || browser.count(".runs .planned") == 5);
    browser.fill("#field-payload", "{\"n\": 12345678901234567890123}");
    choose(&browser, "#field-queue", "mail");
    browser.click("dialog summary");
    browser.fill("#field-priority", "7");
    browser.fill("#field-headers", "{\"h\": \"x\"}");
    browser.click(YES);
    browser.sees("tr[data-key=weekly]", "0 6 * * MON");
    let saved = |client: &mut postgres::Client, condition: &str| {
        id(client, &format!("SELECT count(*) FROM queue.schedules WHERE name = 'weekly' AND {condition}"))
    };
    let kept = "payload = '{\"n\": 12345678901234567890123}' AND options @> '{\"priority\": 7, \"headers\": {\"h\": \"x\"}}'";
    assert_eq!(saved(&mut client, &format!("queue = 'mail' AND timezone = 'Europe/Berlin' AND {kept}")), 1);
    // A name that is taken is refused.
    let wish = json!({"action": "create_schedule", "target": "weekly", "cron": "@daily", "queue": "mail"});
    let taken = dashboard.act(&wish.to_string());
    assert!(taken.status == 400 && taken.body.contains("exists"), "{}", taken.body);

    browser.click("[aria-label=\"Edit… weekly\"]");
    browser.sees("dialog", "Edit the schedule weekly");
    choose(&browser, "#field-common", "0 * * * *");
    browser.click(YES);
    browser.sees("tr[data-key=weekly]", "0 * * * *");
    assert_eq!(saved(&mut client, &format!("cron = '0 * * * *' AND {kept}")), 1);

    // With hidden payloads they are not shown, and stay.
    let hiding = Dashboard::start(&cluster, "oncall", &["--allow-actions", "--hide-payloads"]);
    assert!(!hiding.get("/api/schedule?name=weekly").body.contains("1234567890"));
    let wish = json!({"action": "change_schedule", "target": "weekly", "cron": "@daily", "queue": "mail", "priority": "7"});
    assert_eq!(hiding.act(&wish.to_string()).status, 200);
    assert_eq!(saved(&mut client, &format!("cron = '@daily' AND {kept}")), 1);

    browser.click("[aria-label=\"Delete weekly\"]");
    browser.click(YES);
    browser.sees("#notes", "weekly is deleted");
    assert_eq!(saved(&mut client, "true"), 0);
    let log = dashboard.log();
    for action in ["create_schedule", "change_schedule", "unschedule"] {
        assert!(log.contains(&format!("action={action} target=\"weekly\"")), "{action}: {log}");
    }
    assert!(!log.contains("1234567890"), "no payloads: {log}");
}

#[test]
fn the_user_whom_a_proxy_names_is_shown_and_logged() {
    let Some(cluster) = start("users") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions", "--user-header", "X-User"]);
    let browser = Browser::start("users");
    browser.command("Network.enable", json!({}));
    browser.command("Network.setExtraHTTPHeaders", json!({"headers": {"X-User": "ada@example.org"}}));
    browser.open(&dashboard.page("queues"));
    browser.sees("#where", "as oncall, ada@example.org");
    browser.click("[aria-label=\"Pause mail\"]");
    browser.click(YES);
    browser.sees("#notes", "mail is paused");
    let line = "action=pause target=\"mail\" role=\"oncall\" user=\"ada@example.org\" from=127.0.0.1:";
    assert!(dashboard.log().contains(line), "{}", dashboard.log());

    // Nobody acts without a name, or with two.
    let resume = "{\"action\": \"resume\", \"target\": \"mail\"}";
    let nameless = dashboard.act(resume);
    assert!(nameless.status == 403 && nameless.body.contains("x-user"), "{}", nameless.body);
    let two = [("X-User", "ada"), ("X-User", "eve")];
    for path in ["/api/session", "/api/overview", "/api/tasks"] {
        assert_eq!(http::send(&dashboard.address, "GET", path, &two, "").status, 403, "{path}");
    }
    assert_eq!(
        id(&mut client, "SELECT count(*) FROM queue.queues WHERE name = 'mail' AND paused_at IS NOT NULL"),
        1
    );
}
