//! WCAG 2.2 AA: axe-core finds no violation, and the keyboard alone is enough.

use std::cell::RefCell;
use std::fs;

use queue_ext_tests::cluster::home;
use serde_json::Value;

use super::browser::Browser;
use super::fill::{fill, run};
use super::program::Dashboard;
use super::screen::{self, PAGES, PHONE, WIDE};
use super::{ENTER, ESCAPE, browse, start};

const TAB: &str = "\u{e004}";
/// Every rule for WCAG 2.2 AA, and what axe-core counts as good practice.
const RULES: &str = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']";

/// The violations that axe-core finds in the page, each with the first element that has it.
fn violations(browser: &Browser, axe: &str) -> Vec<String> {
    if browser.run("return window.axe === undefined") == true {
        browser.run(axe);
    }
    let found = browser.run(&format!(
        "return axe.run({{runOnly: {RULES}}}).then(({{violations}}) => violations.map(
            ({{id, nodes}}) => `${{id}}: ${{nodes[0].html}} ${{nodes[0].failureSummary}}`))"
    ));
    let found = found.as_array().expect("a list of violations").iter();
    found.map(|violation| violation.as_str().unwrap_or_default().to_owned()).collect()
}

/// The program that servers.py fetches with the browser if there is npm.
fn axe() -> Option<String> {
    let found = fs::read_to_string(home().join("browser/node_modules/axe-core/axe.min.js"));
    found.inspect_err(|error| println!("axe-core is not installed: {error}")).ok()
}

#[test]
fn no_page_and_no_dialog_violates_the_rules_of_wcag() {
    let Some(cluster) = start("axe") else { return };
    let Some(axe) = axe() else { return };
    fill(&mut cluster.connect());
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("axe", &dashboard, "queues");
    let all = RefCell::new(Vec::new());
    let clean = |what: &str| {
        let found = violations(&browser, &axe).into_iter();
        all.borrow_mut().extend(found.map(|violation| format!("{what}: {violation}")));
    };
    for (size, scheme) in [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")] {
        screen::set(&browser, size, scheme);
        for page in PAGES {
            screen::open(&browser, &dashboard.page(page));
            clean(&format!("{page}, {size:?}, {scheme}"));
        }
        screen::open(&browser, &dashboard.page("dead"));
        browser.click("[aria-label=\"Redrive… mail\"]");
        browser.sees("dialog", "Redrive mail?");
        clean(&format!("a dialog, {size:?}, {scheme}"));
        browser.press(&[ESCAPE]);
        for (page, opens, title) in [
            ("tasks?queue=mail", "[data-form=push]", "Push"),
            ("schedules", "[data-form=schedule]", "chedule"),
            ("dead", "[data-bulk=redrive_where]", "Redrive"),
        ] {
            screen::open(&browser, &dashboard.page(page));
            browser.click(opens);
            browser.sees("dialog", title);
            clean(&format!("{opens}, {size:?}, {scheme}"));
            browser.press(&[ESCAPE]);
        }
        browser.press(&["?"]);
        browser.sees("#help", "Keys");
        clean(&format!("the list of keys, {size:?}, {scheme}"));
        browser.press(&[ESCAPE]);
        screen::open(&browser, &dashboard.page("task?id=999999"));
        clean(&format!("an error, {size:?}, {scheme}"));
    }
    assert!(all.borrow().is_empty(), "{:#?}", all.borrow());
    // It does find violations.
    browser.run("document.querySelector('h1').append(document.createElement('img'))");
    let found = violations(&browser, &axe);
    assert!(found.iter().any(|violation| violation.starts_with("image-alt")), "{found:#?}");
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
