//! WCAG 2.2 AA: axe-core finds no violation, and the keyboard alone is enough.

use std::cell::RefCell;
use std::fs;

use queue_ext_tests::cluster::home;
use queue_ext_tests::{Edition, Worker, brief};
use serde_json::Value;

use super::browser::Browser;
use super::fill::{fill, run};
use super::program::Dashboard;
use super::screen::{self, PAGES, PHONE, Screen, WIDE};
use super::{ENTER, ESCAPE, browse, start};

const TAB: &str = "\u{e004}";
/// Every rule for WCAG 2.2 AA, and what axe-core counts as good practice.
const RULES: &str = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']";

/// The screens and colours in which pages are checked.
const LOOKS: [(Screen, &str); 4] = [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")];

/// A browser whose pages axe-core checks. It collects the violations.
struct Checked {
    browser: Browser,
    axe: String,
    found: RefCell<Vec<String>>,
}

impl Checked {
    /// None without axe-core, which servers.py fetches with the browser if there is npm.
    fn browse(name: &str, dashboard: &Dashboard, page: &str) -> Option<Self> {
        let axe = fs::read_to_string(home().join("browser/node_modules/axe-core/axe.min.js"));
        let axe = axe.inspect_err(|error| println!("axe-core is not installed: {error}")).ok()?;
        Some(Self { browser: browse(name, dashboard, page), axe, found: RefCell::default() })
    }

    /// The violations in the page, each with the first element that has it.
    fn violations(&self) -> Vec<String> {
        if self.browser.run("return window.axe === undefined") == true {
            self.browser.run(&self.axe);
        }
        let found = self.browser.run(&format!(
            "return axe.run({{runOnly: {RULES}}}).then(({{violations}}) => violations.map(
                ({{id, nodes}}) => `${{id}}: ${{nodes[0].html}} ${{nodes[0].failureSummary}}`))"
        ));
        let found = found.as_array().expect("a list of violations").iter();
        found.map(|violation| violation.as_str().unwrap_or_default().to_owned()).collect()
    }

    fn check(&self, what: &str) {
        let found = self.violations().into_iter();
        self.found.borrow_mut().extend(found.map(|violation| format!("{what}: {violation}")));
    }

    fn expect_none(&self) {
        assert!(self.found.borrow().is_empty(), "{:#?}", self.found.borrow());
    }
}

#[test]
fn no_page_and_no_dialog_violates_the_rules_of_wcag() {
    let Some(cluster) = start("axe") else { return };
    fill(&mut cluster.connect());
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let Some(checked) = Checked::browse("axe", &dashboard, "queues") else { return };
    let browser = &checked.browser;
    for (size, scheme) in LOOKS {
        screen::set(browser, size, scheme);
        for page in PAGES {
            screen::open(browser, &dashboard.page(page));
            checked.check(&format!("{page}, {size:?}, {scheme}"));
        }
        screen::open(browser, &dashboard.page("dead"));
        browser.click("[aria-label=\"Redrive… mail\"]");
        browser.sees("dialog", "Redrive mail?");
        checked.check(&format!("a dialog, {size:?}, {scheme}"));
        browser.press(&[ESCAPE]);
        for (page, opens, title) in [
            ("tasks?queue=mail", "[data-form=push]", "Push"),
            ("schedules", "[data-form=schedule]", "chedule"),
            ("dead", "[data-bulk=redrive_where]", "Redrive"),
        ] {
            screen::open(browser, &dashboard.page(page));
            browser.click(opens);
            browser.sees("dialog", title);
            checked.check(&format!("{opens}, {size:?}, {scheme}"));
            browser.press(&[ESCAPE]);
        }
        browser.press(&["?"]);
        browser.sees("#help", "Keys");
        checked.check(&format!("the list of keys, {size:?}, {scheme}"));
        browser.press(&[ESCAPE]);
        screen::open(browser, &dashboard.page("task?id=999999"));
        checked.check(&format!("an error, {size:?}, {scheme}"));
    }
    checked.expect_none();
    // It does find violations.
    browser.run("document.querySelector('h1').append(document.createElement('img'))");
    let found = checked.violations();
    assert!(found.iter().any(|violation| violation.starts_with("image-alt")), "{found:#?}");
}

#[test]
fn neither_signing_in_nor_a_lost_connection_violates_the_rules_of_wcag() {
    let Some(mut cluster) = start("axe-alone") else { return };
    fill(&mut cluster.connect());
    let file = cluster.folder().join("token");
    fs::write(&file, "a token of many letters\n").expect("write the token");
    let dashboard = Dashboard::start(&cluster, "oncall", &["--token-file", file.to_str().expect("a path")]);
    let Some(checked) = Checked::browse("axe-alone", &dashboard, "queues") else { return };
    let browser = &checked.browser;
    for (size, scheme) in LOOKS {
        screen::set(browser, size, scheme);
        browser.run("sessionStorage.clear(); location.reload()");
        browser.sees_no("main", "Wrong token");
        browser.sees("h1", "Sign in");
        checked.check(&format!("signing in, {size:?}, {scheme}"));
        browser.fill("#token", &format!("not the right token{ENTER}"));
        browser.sees("main", "Wrong token");
        checked.check(&format!("a wrong token, {size:?}, {scheme}"));
    }
    browser.fill("#token", &format!("a token of many letters{ENTER}"));
    browser.sees("tbody", "thumbnails");
    let without_an_answer = |from: &str| {
        for (size, scheme) in LOOKS {
            screen::set(browser, size, scheme);
            browser.run("location.hash = '#/queues'");
            browser.sees("tbody", "thumbnails");
            checked.check(&format!("old data, no answer from {from}, {size:?}, {scheme}"));
            browser.run("location.hash = '#/dead'");
            browser.sees("main .problem", "");
            browser.sees_no("main", "thumbnails");
            checked.check(&format!("no data, no answer from {from}, {size:?}, {scheme}"));
        }
    };
    cluster.stop("fast");
    browser.sees("#stale", "No answer since");
    without_an_answer("PostgreSQL");
    // The dashboard itself still has an answer, and so its last data.
    browser.run("location.hash = '#/queues'");
    browser.sees("tbody", "thumbnails");
    drop(dashboard);
    browser.sees("#stale", "queue dashboard does not answer");
    without_an_answer("queue dashboard");
    checked.expect_none();
}

#[test]
fn every_page_has_its_data_in_the_sql_only_edition_and_violates_no_rule_of_wcag() {
    if brief() {
        return;
    }
    let cluster = Edition::SqlOnly.cluster("dashboard-axe", Worker::On);
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut client = cluster.connect();
    fill(&mut client);
    // As if there were many tasks.
    client
        .batch_execute(
            "INSERT INTO queue_internal.counted_running
             SELECT worker, queue, claimed_at, lease_until FROM queue.tasks WHERE state = 'running';
             INSERT INTO queue_internal.counts SELECT c.*, q.created_at
             FROM queue_internal.count_tables(ARRAY(SELECT name FROM queue.queues)) AS c JOIN queue.queues AS q ON q.name = c.queue;
             UPDATE queue_internal.maintenance SET counted_at = now(), counting = '1 hour'",
        )
        .expect("counts");
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let Some(checked) = Checked::browse("axe-sql-only", &dashboard, "queues") else { return };
    let browser = &checked.browser;
    for (size, scheme) in LOOKS {
        screen::set(browser, size, scheme);
        for page in PAGES {
            screen::open(browser, &dashboard.page(page));
            browser.sees("#live", "live");
            assert_eq!(browser.text("main .problem"), "", "{page}");
            if ["queues", "workers"].contains(&page) {
                browser.sees("main .counted", "Tasks as counted by queue.maintain()");
            }
            checked.check(&format!("{page}, {size:?}, {scheme}"));
        }
    }
    checked.expect_none();
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// What has the focus: its link, its label or its id.
fn focus(browser: &Browser) -> Value {
    browser.run(
        "const at = document.activeElement; return at.getAttribute('href') || at.getAttribute('aria-label') || at.id",
    )
}

#[test]
fn the_keyboard_reaches_everything_and_keeps_its_place_when_the_page_refreshes() {
    let Some(cluster) = start("keyboard") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("keyboard", &dashboard, "tasks?queue=mail");
    browser.sees("tbody", "mail");

    // The first link skips the bar and stays on the page.
    browser.press(&[TAB]);
    assert_eq!(focus(&browser), "#main");
    browser.press(&[ENTER]);
    assert_eq!(focus(&browser), "main");
    assert_eq!(browser.run("return location.hash"), "#/tasks?queue=mail");

    // Every element that a mouse can press has the focus once, and shows it.
    screen::open(&browser, &dashboard.page("dead"));
    browser.run("document.body.focus(); window.reached = new Set()");
    let wanted = browser.count("a[href], button:not([hidden]), input, select");
    for _ in 0..wanted + 2 {
        browser.press(&[TAB]);
        let unseen = browser.run(
            "const at = document.activeElement; if (at === document.body) return null; reached.add(at);
             return getComputedStyle(at).outlineStyle === 'none' ? at.outerHTML : null",
        );
        assert!(unseen.is_null(), "no visible focus: {unseen}");
    }
    let missed = browser.run(
        "return [...document.querySelectorAll('a[href], button:not([hidden]), input, select')]
            .filter((element) => element.checkVisibility() && !reached.has(element)).map((element) => element.outerHTML)",
    );
    assert_eq!(missed, serde_json::json!([]), "not reached by Tab");

    // New rows above it, and a row that goes, do not lose the place of the keyboard.
    screen::open(&browser, &dashboard.page("tasks?state=queued"));
    browser.run("document.querySelectorAll('td.main a')[1].focus()");
    let before = focus(&browser);
    run(&mut client, "SELECT queue.push('mail', key => 'fresh')");
    browser.sees("tbody", "fresh");
    assert_eq!(focus(&browser), before);
    browser.run("document.querySelector('td.main a').focus()");
    run(&mut client, "SELECT queue.cancel(id) FROM queue.tasks WHERE key = 'fresh'");
    browser.sees_no("tbody", "fresh");
    assert_eq!(focus(&browser), "main");
}
