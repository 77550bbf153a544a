//! How the page is looked at: its colours, the pause of its refreshing, and the keys.

use super::fill::{fill, run};
use super::program::Dashboard;
use super::screen::{self, WIDE};
use super::{ESCAPE, browse, start};

#[test]
fn colours_follow_the_system_until_one_chooses_and_the_choice_is_remembered() {
    let Some(cluster) = start("colours") else { return };
    fill(&mut cluster.connect());
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("colours", &dashboard, "queues");
    let dark = || {
        let scheme = browser.run("return getComputedStyle(document.body).backgroundColor");
        scheme == "rgb(18, 23, 26)"
    };
    for (scheme, expected) in [("light", false), ("dark", true)] {
        screen::set(&browser, WIDE, scheme);
        browser.eventually("the colours follow the system", || dark() == expected);
    }
    browser.click("[aria-label=\"Colours: system\"]");
    browser.eventually("light", || !dark());
    browser.run("location.reload()");
    browser.sees("h1", "Queues");
    assert!(!dark());
    screen::set(&browser, WIDE, "light");
    browser.press(&["c"]);
    browser.eventually("dark", &dark);
    browser.press(&["c"]);
    browser.eventually("as the system again", || !dark());
}

#[test]
fn a_paused_page_stays_as_it_is_until_one_refreshes_it() {
    let Some(cluster) = start("paused") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("paused", &dashboard, "tasks");
    let asked = || {
        let requests = "return performance.getEntriesByType('resource').filter(({name}) => name.includes('/api/tasks')).length";
        browser.run(requests).as_i64().expect("a number")
    };
    browser.sees("#live", "live");
    browser.click("[aria-label=\"Pause refreshing\"]");
    browser.sees("#live", "paused");
    assert_eq!(browser.count("[aria-label=\"Pause refreshing\"][aria-pressed=true]"), 1);
    let before = asked();
    run(&mut client, "SELECT queue.push('mail', key => 'meanwhile')");
    // Not a wait for a condition: longer than a page takes to refresh.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(asked(), before);
    browser.click("[aria-label=\"Refresh once\"]");
    browser.sees("tbody", "meanwhile");
    browser.sees("#live", "paused");
    // Another page is loaded, and stays.
    browser.run("location.hash = '#/queues'");
    browser.sees("tr[data-key=thumbnails]", "120");
    browser.sees("#live", "paused");
    browser.press(&["p"]);
    browser.sees("#live", "live");
    run(&mut client, "SELECT queue.push('thumbnails')");
    browser.sees("tr[data-key=thumbnails]", "121");
}

#[test]
fn keys_go_to_pages_and_are_listed_and_can_be_switched_off() {
    let Some(cluster) = start("keys") else { return };
    fill(&mut cluster.connect());
    let dashboard = Dashboard::start(&cluster, "oncall", &[]);
    let browser = browse("keys", &dashboard, "queues");
    for (key, title) in [
        ("t", "Tasks"),
        ("d", "Dead letters"),
        ("s", "Schedules"),
        ("w", "Workers"),
        ("h", "Health"),
        ("q", "Queues"),
    ] {
        browser.press(&["g", key]);
        browser.sees("h1", title);
    }
    browser.press(&["g", "d"]);
    browser.sees("h1", "Dead letters");
    browser.press(&["/"]);
    browser.eventually("the search has the focus", || {
        browser.run("return document.activeElement.type === 'search'") == true
    });
    // Letters in a field are text.
    browser.press(&["p", "g", "h"]);
    browser.sees("h1", "Dead letters");
    browser.sees("#live", "live");
    browser.run("document.activeElement.blur()");
    browser.press(&["?"]);
    browser.sees("#help", "Pause or continue refreshing");
    browser.click("#keys-on");
    browser.press(&[ESCAPE]);
    browser.sees_no("body", "Pause or continue refreshing");
    browser.press(&["p"]);
    browser.press(&["g", "h"]);
    browser.sees("#live", "live");
    browser.sees("h1", "Dead letters");
}
