//! Every page on a phone: nothing to scroll sideways, and targets that a finger hits.

use serde_json::json;

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
    for page in PAGES {
        screen::open(&browser, &dashboard.page(page));
        let beyond = browser.run(
            "return [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility()
                && element.getBoundingClientRect().right > 390.5).map((element) => element.outerHTML)",
        );
        assert_eq!(beyond, json!([]), "{page}: beyond the right edge");
        let over = browser.run(
            "return [...document.querySelectorAll('td')].filter((cell) => cell.scrollWidth > cell.clientWidth + 1)
                .map((cell) => cell.outerHTML)",
        );
        assert_eq!(over, json!([]), "{page}: text runs out of its cell");
        assert_eq!(browser.run("return document.documentElement.scrollWidth"), 390, "{page}");
        let small = browser.run(&smaller("a[href], button, input, select, summary", 24));
        assert_eq!(small, json!([]), "{page}: smaller than 24 pixels");
        let small = browser.run(&smaller("#nav a, .control, .button, input[type=search], select", 44));
        assert_eq!(small, json!([]), "{page}: smaller than 44 pixels");
    }
}
