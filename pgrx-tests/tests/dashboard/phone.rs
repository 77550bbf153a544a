//! Every page on a phone: nothing to scroll sideways, and targets that a finger hits.

use super::fill::{fill, run};
use super::program::Dashboard;
use super::screen::{self, PAGES, PHONE};
use super::{browse, start};

/// The visible elements to press that are smaller than this in one direction.
fn smaller(selector: &str, pixels: u32) -> String {
    format!(
        "return [...document.querySelectorAll('{selector}')].filter((element) => {{
            const {{width, height}} = element.getBoundingClientRect();
            return element.checkVisibility() && !element.closest('.skip') && Math.min(width, height) < {pixels};
         }}).map((element) => element.outerHTML)"
    )
}

#[test]
fn on_a_phone_no_page_scrolls_sideways_and_every_target_is_large_enough() {
    let Some(cluster) = start("phone") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    // Long names, long numbers and a long error.
    run(
        &mut client,
        "SELECT queue.create('a-queue-with-a-name-that-is-too-long-for-a-phone-held-upright', '{\"max_attempts\": 1}');
         SELECT queue.create('long');
         SELECT count(queue.push('long', kind => 'kind-without-a-blank-in-its-very-long-name')) FROM generate_series(1, 2);
         SELECT queue.extend(id, token, '23 hours 59 minutes', '{\"step\": \"reading a catalogue that is too long for a line\"}')
         FROM queue.claim('1 hour', 'long', max_tasks => 2, worker => 'worker-17@application-3.internal.example.com')",
    );
    let dashboard = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let browser = browse("phone", &dashboard, "queues");
    screen::set(&browser, PHONE, "light");
    let mut faults = Vec::new();
    for page in PAGES {
        screen::open(&browser, &dashboard.page(page));
        let beyond =
            "return [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility()
            && element.getBoundingClientRect().right > 390.5).map((element) => element.outerHTML)";
        let over = "return [...document.querySelectorAll('td')].filter((cell) => cell.scrollWidth > cell.clientWidth + 1)
            .map((cell) => cell.outerHTML)";
        let small = smaller("a[href], button, input, select, summary", 24);
        let small_for_a_thumb = smaller("#nav a, .control, .button, input[type=search], select", 44);
        for (what, script) in [
            ("beyond the right edge", beyond),
            ("text runs out of its cell", over),
            ("smaller than 24 pixels", &small),
            ("smaller than 44 pixels", &small_for_a_thumb),
        ] {
            let found = browser.run(script);
            faults.extend(
                found.as_array().expect("a list").iter().map(|element| format!("{page}: {what}: {element}")),
            );
        }
        if browser.run("return document.documentElement.scrollWidth") != 390 {
            faults.push(format!("{page}: scrolls sideways"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
