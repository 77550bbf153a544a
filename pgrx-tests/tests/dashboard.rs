//! The dashboard in a real browser: what it shows, its actions, and what it refuses.

#[path = "dashboard/access.rs"]
mod access;
#[path = "dashboard/accessibility.rs"]
mod accessibility;
#[path = "dashboard/acting.rs"]
mod acting;
#[path = "dashboard/activity.rs"]
mod activity;
#[path = "dashboard/browser.rs"]
mod browser;
#[path = "dashboard/failures.rs"]
mod failures;
#[path = "dashboard/fill.rs"]
mod fill;
#[path = "dashboard/http.rs"]
mod http;
#[path = "dashboard/limits.rs"]
mod limits;
#[path = "dashboard/lists.rs"]
mod lists;
#[path = "dashboard/outage.rs"]
mod outage;
#[path = "dashboard/phone.rs"]
mod phone;
#[path = "dashboard/pictures.rs"]
mod pictures;
#[path = "dashboard/program.rs"]
mod program;
#[path = "dashboard/screen.rs"]
mod screen;
#[path = "dashboard/timeline.rs"]
mod timeline;
#[path = "dashboard/tls.rs"]
mod tls;
#[path = "dashboard/view.rs"]
mod view;
#[path = "dashboard/workers.rs"]
mod workers;

use std::time::{Duration, Instant};

use browser::Browser;
use fill::{claimed, fill, id, run};
use program::Dashboard;
use queue_ext_tests::{Cluster, SOON, at_best, brief, eventually};
use serde_json::{Value, json};

const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";

/// A server with the extension, unless another version is tested at length: the page asks for nothing that
/// differs between them.
fn start(name: &str) -> Option<Cluster> {
    if brief() {
        println!("not on this version");
        return None;
    }
    Some(Cluster::start(&format!("dashboard-{name}")))
}

/// A browser at this page of a dashboard.
fn browse(name: &str, dashboard: &Dashboard, page: &str) -> Browser {
    let browser = Browser::start(name);
    browser.open(&dashboard.page(page));
    browser
}

fn ids(found: &Value) -> Vec<&str> {
    found["tasks"].as_array().expect("tasks").iter().map(|task| task["id"].as_str().expect("an id")).collect()
}

#[test]
fn every_page_shows_its_data_and_is_read_only_by_default() {
    let Some(cluster) = start("pages") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("pages", &dashboard, "queues");

    browser.sees("#where", "postgres as oncall");
    browser.sees("#live", "read-only");
    browser.sees("tr[data-key=thumbnails]", "120");
    browser.sees("tr[data-key=thumbnails]", "paused");
    browser.sees("tr[data-key=invoices]", "2");
    assert_eq!(browser.count("tr[data-key=mail] svg.curve.due"), 1);

    // From the queue to its tasks, to one of them, and to its story.
    browser.click("tr[data-key=mail] a.tested, tr[data-key=mail] td.main a");
    browser.sees("h1", "mail");
    browser.sees("main", "fixed, from 00:00:00");
    browser.sees(".error", "smtp.example.com");
    browser.click(&format!("tr[data-key=\"{}\"] td.main a", tasks.failed));
    browser.sees("h1", &format!("Task {}", tasks.failed));
    for said in [
        "Failed for good",
        "Attempt 1 failed at mailer-1",
        "mailbox full",
        "Attempt 2 failed",
        "mail.py:17",
        "Pushed",
    ] {
        browser.sees(".story", said);
    }
    browser.sees("pre.payload", "\"to\": \"ada@example.com\"");
    browser.sees("pre.headers", "t-1");
    browser.sees(".facts", "order-17");
    browser.open(&dashboard.page(&format!("task?id={}", tasks.completed)));
    browser.sees(".story", "Completed by mailer-2, after");
    browser.sees("pre.result", "m-99");
    browser.open(&dashboard.page(&format!("task?id={}", tasks.running)));
    browser.sees(".story", "Attempt 1 claimed by mailer-3");
    browser.sees("pre.progress", "40");
    browser.sees(".facts", "customer-9");
    browser.open(&dashboard.page("task?id=999999"));
    browser.sees(".problem", "QX003");

    // By state, by text, by id, by queue.
    for (state, id) in [
        ("live", tasks.running),
        ("running", tasks.running),
        ("scheduled", tasks.scheduled),
        ("waiting", tasks.waiting),
        ("failed", tasks.failed),
        ("completed", tasks.completed),
        ("cancelled", tasks.cancelled),
    ] {
        browser.open(&dashboard.page(&format!("tasks?state={state}")));
        browser.sees("tbody", &id.to_string());
        browser.sees(".tabs [aria-current]", if state == "live" { "not finished" } else { state });
    }
    browser.open(&dashboard.page("tasks"));
    browser.sees(".extent", "50 shown, newest first.");
    browser.press(&["/"]);
    browser.fill("input[type=search]", &format!("ZUCCHINI{ENTER}"));
    browser.eventually("only it is found", || browser.count("tbody tr") == 1);
    browser.sees("tbody", &tasks.completed.to_string());
    browser.fill("input[type=search]", &format!("{}{ENTER}", tasks.cancelled));
    browser.sees("tbody tr:first-child .badge", "cancelled");
    browser.fill("input[type=search]", &format!("no such text{ENTER}"));
    browser.sees(".empty", "No task matches");

    browser.open(&dashboard.page("dead"));
    browser.sees(".groups", "mail");
    browser.sees("tbody", "order-17");
    browser.open(&dashboard.page("schedules"));
    browser.sees("tr[data-key=\"nightly report\"]", "0 3 * * *");
    browser.sees("tr[data-key=\"nightly report\"]", "Europe/Berlin");
    browser.sees("tr[data-key=\"nightly report\"]", "in ");
    browser.sees("tr[data-key=\"hourly sweep\"]", "paused");
    browser.open(&dashboard.page("workers"));
    browser.sees("tbody", "mailer-3");
    browser.open(&dashboard.page("health"));
    browser.sees("main", "the library is preloaded");

    // It shows no buttons, and refuses actions.
    for page in ["queues", "queue?name=mail", "dead", "schedules", &format!("task?id={}", tasks.failed)] {
        browser.open(&dashboard.page(page));
        browser.sees("#live", "live");
        browser.eventually("the page is there", || browser.count("h1") == 1);
        assert_eq!(browser.count("[data-action]"), 0, "{page}");
    }
    let answer = dashboard.act("{\"action\": \"pause\", \"target\": \"mail\"}");
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert_eq!(id(&mut client, "SELECT count(*) FROM queue.queues WHERE paused_at IS NOT NULL"), 1);
    assert_eq!(
        browser.console().iter().filter(|line| !line.contains("404")).count(),
        0,
        "{:?}",
        browser.console()
    );
}

#[test]
fn each_action_works_and_is_logged() {
    let Some(cluster) = start("actions") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("actions", &dashboard, "queues");
    let yes = "dialog [value=yes]";

    // Cells with curves, and with boxes to select a task, are cells like the others.
    let displays = "return [...new Set([...document.querySelectorAll('td, th')].map((cell) => getComputedStyle(cell).display))]";
    browser.sees("tr[data-key=mail]", "mail");
    assert_eq!(browser.run(displays), json!(["table-cell"]));
    browser.open(&dashboard.page("tasks"));
    browser.eventually("the tasks are there", || browser.count("tbody .pick") > 0);
    let wraps = "return [...document.querySelectorAll('.pick')].filter((box) =>
        box.getBoundingClientRect().bottom <= box.parentElement.querySelector('a').getBoundingClientRect().top).length";
    assert_eq!(browser.run(wraps), 0);
    browser.open(&dashboard.page("queues"));

    browser.click("[aria-label=\"Pause mail\"]");
    browser.sees("dialog", "Pause mail?");
    browser.press(&[ESCAPE]);
    browser.sees_no("body", "Pause mail?");
    browser.click("[aria-label=\"Pause mail\"]");
    browser.click(yes);
    browser.sees("#notes", "mail is paused");
    browser.sees("tr[data-key=mail]", "paused");
    let paused = "SELECT count(*) FROM queue.queues WHERE name = 'mail' AND paused_at IS NOT NULL";
    assert_eq!(id(&mut client, paused), 1);
    browser.click("[aria-label=\"Resume mail\"]");
    browser.sees_no("tr[data-key=mail]", "paused");
    assert_eq!(id(&mut client, paused), 0);

    // The dead letter leaves by the keyboard alone: the button, the number, Enter.
    browser.open(&dashboard.page("dead"));
    browser.sees("tbody", "order-17");
    browser.run("document.querySelector('[aria-label=\"Redrive… mail\"]').focus()");
    browser.press(&[ENTER]);
    browser.sees("dialog", "Redrive mail?");
    browser.press(&[ENTER]);
    browser.sees("#notes", "1 task is back in mail");
    browser.sees(".empty", "No dead letters");
    let queued = format!("SELECT count(*) FROM queue.tasks WHERE id = {} AND state = 'queued'", tasks.failed);
    assert_eq!(id(&mut client, &queued), 1);

    // It fails again, and is retried from its own page.
    let fail = "SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('1 minute', 'mail')";
    claimed(&mut client, fail, &[]);
    browser.open(&dashboard.page(&format!("task?id={}", tasks.failed)));
    browser.click("[data-action=retry]");
    browser.sees("h1 + .badge", "queued");
    assert_eq!(id(&mut client, &queued), 1);

    browser.click("[data-action=cancel]");
    browser.click(yes);
    browser.sees("h1 + .badge", "cancelled");
    browser.open(&dashboard.page(&format!("task?id={}", tasks.running)));
    browser.click("[data-action=cancel]");
    browser.click(yes);
    browser.sees("#notes", "is asked to stop");
    browser.sees(".story", "Cancellation requested");

    browser.open(&dashboard.page("schedules"));
    browser.click("[aria-label=\"Run now nightly report\"]");
    browser.click(yes);
    browser.sees("#notes", "nightly report pushed task");
    let pushed = "SELECT count(*) FROM queue.tasks WHERE headers ->> 'schedule' = 'nightly report'";
    assert_eq!(id(&mut client, pushed), 1);
    browser.click("[aria-label=\"Resume hourly sweep\"]");
    browser.sees_no("tr[data-key=\"hourly sweep\"]", "paused");

    // An error of Postgres is shown with its message.
    run(&mut client, "SELECT queue.drop('invoices', true)");
    browser.click("[aria-label=\"Run now nightly report\"]");
    browser.click(yes);
    browser.sees("#notes", "QX002");
    browser.sees("#notes", "Create it with");
    assert_eq!(
        browser.console().iter().filter(|line| !line.contains("422")).count(),
        0,
        "{:?}",
        browser.console()
    );

    let log = dashboard.log();
    for line in [
        "action=pause target=\"mail\" role=\"oncall\" from=127.0.0.1:",
        "action=redrive target=\"mail\" role=\"oncall\"",
        &format!("action=retry target=\"{}\" role=\"oncall\"", tasks.failed),
        "action=run_schedule target=\"nightly report\"",
        "refused=\"QX002 ",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert_eq!(log.lines().filter(|line| line.contains("action=")).count(), 9, "{log}");
    assert!(!log.contains("example.com"), "no payloads: {log}");
}

#[test]
fn stored_data_never_runs_in_the_browser() {
    let Some(cluster) = start("hostile") else { return };
    let mut client = cluster.connect();
    run(&mut client, "CREATE ROLE oncall LOGIN; SELECT queue.grant_operator('oncall')");
    let evil = "</pre><script>window.stolen=1</script><img src=x onerror=\"window.stolen=1\">\"'`{{7*7}}";
    client.query("SELECT queue.create($1, '{\"max_attempts\": 1}')", &[&evil]).expect("create");
    client.query("SELECT queue.schedule($1, '@hourly', $1)", &[&evil]).expect("schedule");
    let push = "SELECT queue.push($1, jsonb_build_object($1::text, $1::text), key => $1, headers => jsonb_build_object('h', $1::text))";
    let task: i64 = client.query_one(push, &[&evil]).expect("push").get(0);
    let fail = "SELECT queue.fail(id, token, $1) FROM queue.claim('1 minute', $1, worker => $1)";
    claimed(&mut client, fail, &[&evil]);
    client.query(push, &[&evil]).expect("push");
    claimed(&mut client, "SELECT queue.claim('1 minute', $1, worker => $1)", &[&evil]);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("hostile", &dashboard, "queues");
    let encoded: String = evil.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let pages = ["queues", "tasks", "dead", "schedules", "workers", "health"].map(str::to_owned);
    for page in pages.into_iter().chain([
        format!("task?id={task}"),
        format!("tasks?text={encoded}"),
        format!("queue?name={encoded}"),
    ]) {
        browser.open(&dashboard.page(&page));
        let at = if page == "health" { "h1" } else { "main" };
        browser.sees(at, if page == "health" { "Health" } else { "<img src=x onerror=" });
        assert_eq!(browser.count("main img, main script"), 0, "{page}");
        assert!(browser.run("return window.stolen").is_null(), "{page}");
    }
    // In a dialog, and in the message of an action.
    browser.open(&dashboard.page("queues"));
    browser.click("main [data-action=pause]:not([data-target=default])");
    browser.sees("dialog", "<img src=x onerror=");
    browser.click("dialog [value=yes]");
    browser.sees("#notes", "<img src=x onerror=");
    assert_eq!(browser.count("dialog img, #notes img"), 0);
    // And should a mistake make HTML of it one day, the policy is there.
    let policy = dashboard.get("/").headers.to_lowercase();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "require-trusted-types-for 'script'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(rule), "{rule}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let inline =
        "const s = document.createElement('script'); s.append('window.stolen = 1'); document.body.append(s)";
    let refused = browser.run(&format!(
        "try {{ {inline}; document.body.innerHTML = '<b>x</b>' }} catch (e) {{ return String(e) }}"
    ));
    assert!(
        refused.as_str().is_some_and(|why| why.contains("TrustedHTML") || why.contains("TrustedScript")),
        "{refused}"
    );
    assert!(browser.run("return window.stolen").is_null());
}

#[test]
fn a_page_survives_restarts_and_marks_old_data() {
    let Some(mut cluster) = start("restart") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("restart", &dashboard, "queues");
    browser.sees("tr[data-key=thumbnails]", "120");
    for mode in ["fast", "immediate"] {
        cluster.stop(mode);
        browser.sees("#stale", "No answer since");
        browser.sees("#live", "stale");
        browser.run("location.hash = '#/dead'");
        browser.sees("main .problem", "");
        browser.run("location.hash = '#/queues'");
        browser.sees("tr[data-key=thumbnails]", "thumbnails");
        assert_eq!(dashboard.act("{\"action\": \"resume\", \"target\": \"thumbnails\"}").status, 503);
        cluster.launch();
        run(&mut cluster.connect(), "SELECT queue.push('thumbnails')");
        browser.sees("#live", "live");
        browser.sees_no("body", "No answer since");
    }
    browser.sees("tr[data-key=thumbnails]", "122");
    // Connections that were ended while they lay idle are noticed before anything is asked of them.
    let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'queue-dashboard'";
    run(&mut cluster.connect(), end);
    assert_eq!(dashboard.get("/api/tasks").status, 200);
    browser.click("[aria-label=\"Resume thumbnails\"]");
    browser.sees("#notes", "thumbnails is resumed");
    drop(dashboard);
    browser.sees("#stale", "queue dashboard does not answer");
    browser.run("location.hash = '#/tasks'");
    browser.sees("main .problem", "queue dashboard does not answer");
}

#[test]
fn every_response_takes_less_than_a_second_with_many_tasks() {
    let Some(cluster) = start("many") else { return };
    let mut client = cluster.connect();
    let many: i64 =
        std::env::var("DASHBOARD_TASKS").ok().map_or(300_000, |tasks| tasks.parse().expect("a number"));
    fill(&mut client);
    // Past the triggers, which is quicker; the counters do not know of it before the next start.
    let bulk = format!(
        "SET session_replication_role = replica;
         INSERT INTO queue.tasks (queue, payload) SELECT 'default', '{{\"n\": 1}}' FROM generate_series(1, {many});
         INSERT INTO queue.history (id, queue, state, priority, run_at, attempt, token, worker, claimed_at, created_at, finished_at, payload)
         SELECT id, queue, 'completed', priority, run_at, 1, 1, 'w', created_at, created_at, now(), payload
         FROM queue.tasks WHERE queue = 'default' LIMIT {many} / 10;
         ANALYZE queue.tasks"
    );
    run(&mut client, &bulk);
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let first: i64 = id(&mut client, "SELECT min(id) FROM queue.tasks WHERE queue = 'default'");
    let mut slowest = (Duration::ZERO, String::new());
    for path in [
        "tasks",
        "tasks?text=nowhere",
        "tasks?text=nowhere&state=live",
        "tasks?state=live",
        "tasks?state=running",
        "tasks?state=waiting",
        "tasks?state=scheduled",
        "tasks?state=queued&queue=default",
        "tasks?state=running&queue=default",
        "tasks?state=failed&queue=mail",
        "tasks?state=completed&queue=mail",
        "queue?name=default",
        "workers",
        &format!("task?id={first}"),
        // Last, so that the first count after the start is over.
        "overview",
    ] {
        const LIMIT: Duration = Duration::from_secs(1);
        let took = at_best(LIMIT, || {
            let began = Instant::now();
            let answer = dashboard.get(&format!("/api/{path}"));
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            began.elapsed()
        });
        assert!(took < LIMIT, "{path}: {took:?}");
        slowest = slowest.max((took, path.to_owned()));
    }
    println!("{many} tasks; the slowest answer: {slowest:?}");

    // Running tasks are found however many tasks follow, and a search reports how far it has read.
    assert_eq!(ids(&dashboard.tasks("state=running")).len(), 1);
    let found = dashboard.tasks("text=nowhere&state=live");
    assert_eq!((found["looked"].as_i64(), ids(&found).len()), (Some(5000), 0), "{found}");
    // From page to page each task comes once, in order.
    let (mut seen, mut after) = (Vec::new(), String::new());
    for _ in 0..5 {
        let found = dashboard.tasks(&format!(
            "state=queued&queue=default&after={}",
            after.replace(' ', "%20").replace('+', "%2B")
        ));
        seen.extend(ids(&found).iter().map(|id| id.parse::<i64>().expect("an id")));
        after = found["next"].as_str().expect("a next page").to_owned();
    }
    assert_eq!(seen, (first..first + 250).collect::<Vec<_>>());
    let overview =
        || dashboard.get("/api/overview").json()["queues"]["value"]["queues"][0]["queued"].as_i64();
    eventually("they are counted", SOON, || overview() == Some(many));
}
