//! The size and the colours of the browser's screen.

use serde_json::json;

use super::browser::Browser;

/// Every page, with what `fill` has created.
pub const PAGES: &[&str] = &[
    "queues",
    "queue?name=mail",
    "activity",
    "activity?range=week&queue=mail",
    "failures",
    "tasks",
    "tasks?state=running",
    "task?id=1",
    "dead",
    "schedules",
    "workers",
    "health",
];

/// The width, the height, and whether it is a phone.
pub type Screen = (u32, u32, bool);
pub const WIDE: Screen = (1440, 900, false);
pub const PHONE: Screen = (390, 844, true);

/// Without motion, so that no animation runs while a test looks.
pub fn set(browser: &Browser, (width, height, mobile): Screen, scheme: &str) {
    browser.command(
        "Emulation.setDeviceMetricsOverride",
        json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}),
    );
    browser.command(
        "Emulation.setEmulatedMedia",
        json!({"features": [{"name": "prefers-color-scheme", "value": scheme},
                            {"name": "prefers-reduced-motion", "value": "reduce"}]}),
    );
}

/// Opens a page and waits for its data.
pub fn open(browser: &Browser, address: &str) {
    browser.open(address);
    browser.eventually("the page is there", || browser.count("main h1") == 1);
}
