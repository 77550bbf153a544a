//! The files for the browser, compiled into the program.

macro_rules! files {
    ($($path:literal: $kind:literal, $file:literal;)*) => {
        &[$(($path, $kind, include_str!(concat!("../assets/", $file)))),*]
    };
}

static FILES: &[(&str, &str, &str)] = files! {
    "/": "text/html; charset=utf-8", "index.html";
    "/style.css": "text/css; charset=utf-8", "style.css";
    "/charts.css": "text/css; charset=utf-8", "charts.css";
    "/icon.svg": "image/svg+xml", "icon.svg";
    "/theme.js": "text/javascript; charset=utf-8", "theme.js";
    "/app.js": "text/javascript; charset=utf-8", "app.js";
    "/api.js": "text/javascript; charset=utf-8", "api.js";
    "/dom.js": "text/javascript; charset=utf-8", "dom.js";
    "/format.js": "text/javascript; charset=utf-8", "format.js";
    "/parts.js": "text/javascript; charset=utf-8", "parts.js";
    "/actions.js": "text/javascript; charset=utf-8", "actions.js";
    "/controls.js": "text/javascript; charset=utf-8", "controls.js";
    "/keys.js": "text/javascript; charset=utf-8", "keys.js";
    "/chart.js": "text/javascript; charset=utf-8", "chart.js";
    "/scale.js": "text/javascript; charset=utf-8", "scale.js";
    "/timeline.js": "text/javascript; charset=utf-8", "timeline.js";
    "/graph.js": "text/javascript; charset=utf-8", "graph.js";
    "/dependencies.js": "text/javascript; charset=utf-8", "dependencies.js";
    "/pages/activity.js": "text/javascript; charset=utf-8", "pages/activity.js";
    "/pages/failures.js": "text/javascript; charset=utf-8", "pages/failures.js";
    "/bulk.js": "text/javascript; charset=utf-8", "bulk.js";
    "/filter.js": "text/javascript; charset=utf-8", "filter.js";
    "/forms.css": "text/css; charset=utf-8", "forms.css";
    "/forms.js": "text/javascript; charset=utf-8", "forms.js";
    "/push.js": "text/javascript; charset=utf-8", "push.js";
    "/schedule.js": "text/javascript; charset=utf-8", "schedule.js";
    "/pages/queues.js": "text/javascript; charset=utf-8", "pages/queues.js";
    "/pages/queue.js": "text/javascript; charset=utf-8", "pages/queue.js";
    "/pages/tasks.js": "text/javascript; charset=utf-8", "pages/tasks.js";
    "/pages/task.js": "text/javascript; charset=utf-8", "pages/task.js";
    "/pages/dead.js": "text/javascript; charset=utf-8", "pages/dead.js";
    "/pages/schedules.js": "text/javascript; charset=utf-8", "pages/schedules.js";
    "/pages/workers.js": "text/javascript; charset=utf-8", "pages/workers.js";
    "/pages/health.js": "text/javascript; charset=utf-8", "pages/health.js";
};

/// The content type and the contents of a file.
pub fn find(path: &str) -> Option<(&'static str, &'static str)> {
    FILES.iter().find(|(known, ..)| *known == path).map(|(_, kind, text)| (*kind, *text))
}
