//! Access control, mostly with requests that no browser would send.

use super::fill::{fill, id, run};
use super::program::{Dashboard, refused};
use super::{ENTER, browse, http, ids, start};

#[test]
fn requests_without_the_token_or_from_another_site_are_refused() {
    let Some(cluster) = start("guard") else { return };
    let mut client = cluster.connect();
    fill(&mut client);
    let file = cluster.folder().join("token");
    std::fs::write(&file, "a token of many letters\n").expect("write the token");
    let token = [
        "--allow-actions",
        "--token-file",
        file.to_str().expect("a path"),
        "--allow-host",
        "queue.example.com",
    ];
    let closed = Dashboard::start(&cluster, "oncall", &token);
    let authorised = ("Authorization", "Bearer a token of many letters");
    for path in ["/api/session", "/api/overview", "/api/tasks", "/api/task?id=1"] {
        for headers in [
            vec![],
            vec![("Authorization", "Bearer a token of many lettersX")],
            vec![("Authorization", "a token of many letters")],
        ] {
            assert_eq!(
                http::send(&closed.address, "GET", path, &headers, "").status,
                401,
                "{path} {headers:?}"
            );
        }
        assert_eq!(http::send(&closed.address, "GET", path, &[authorised], "").status, 200, "{path}");
    }

    // A browser asks for it, and keeps it in the tab.
    let browser = browse("guard", &closed, "queues");
    browser.sees("main", "Token");
    browser.fill("#token", &format!("not the right token{ENTER}"));
    browser.sees("main", "Wrong token");
    browser.fill("#token", &format!("a token of many letters{ENTER}"));
    browser.sees("tbody", "thumbnails");
    drop(browser);

    // An action has to come from the page itself.
    let open = Dashboard::start(&cluster, "oncall", &["--allow-actions"]);
    let key = open.get("/api/session").json()["key"].as_str().expect("the key").to_owned();
    let origin = format!("http://{}", open.address);
    let right =
        [("Origin", origin.as_str()), ("Content-Type", "application/json"), ("X-Queue-Key", key.as_str())];
    let wrong = [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", ""),
        ("Content-Type", "text/plain"),
        ("X-Queue-Key", "00"),
        ("X-Queue-Key", ""),
        ("Sec-Fetch-Site", "cross-site"),
        ("Host", "evil.example"),
    ];
    let wish = "{\"action\": \"pause\", \"target\": \"mail\"}";
    for (name, value) in wrong {
        let mut headers: Vec<_> = right.iter().filter(|(known, _)| *known != name).copied().collect();
        headers.push((name, value));
        assert_eq!(
            http::send(&open.address, "POST", "/api/act", &headers, wish).status,
            403,
            "{name}: {value}"
        );
    }
    let paused = "SELECT count(*) FROM queue.queues WHERE name = 'mail' AND paused_at IS NOT NULL";
    assert_eq!(id(&mut client, paused), 0);
    assert_eq!(http::send(&open.address, "POST", "/api/act", &right, wish).status, 200);
    assert_eq!(id(&mut client, paused), 1);

    // Another site cannot have a browser ask, not even to see how long the answer takes.
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        let answer = http::send(&open.address, "GET", "/api/overview", &[("Sec-Fetch-Site", site)], "");
        assert_eq!(answer.status, status, "{site}");
    }

    // An unknown host name gets no page and no data.
    for path in ["/", "/api/overview"] {
        for (host, status) in
            [("evil.example", 403), ("localhost:1", 200), ("[::1]:80", 200), ("queue.example.com", 403)]
        {
            assert_eq!(
                http::send(&open.address, "GET", path, &[("Host", host)], "").status,
                status,
                "{host}{path}"
            );
        }
    }
    assert_eq!(http::send(&closed.address, "GET", "/", &[("Host", "queue.example.com")], "").status, 200);
    let foreign = open.get("/api/overview").headers.to_lowercase();
    assert!(!foreign.contains("access-control-allow"), "{foreign}");

    // It does not start where others can reach it without a token.
    let url = Some("host=/nowhere user=oncall");
    for (arguments, database, code, complaint) in [
        (vec!["--listen", "0.0.0.0:0"], url, 2, "--token-file"),
        (vec!["--listen", "[::]:0"], url, 2, "--token-file"),
        (vec!["--token-file", "/nowhere/token"], url, 2, "/nowhere/token"),
        (vec![], Some("hots=elsewhere"), 1, "hots"),
    ] {
        let done = refused(&arguments, database);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(code) && said.contains(complaint), "{arguments:?}: {said}");
    }
}

#[test]
fn it_shows_what_its_role_may_see_and_can_hide_payloads() {
    let Some(cluster) = start("roles") else { return };
    let mut client = cluster.connect();
    let tasks = fill(&mut client);
    run(
        &mut client,
        "CREATE ROLE watcher LOGIN IN ROLE pg_monitor; CREATE ROLE biller LOGIN; SELECT queue.grant_operator('biller', 'invoices')",
    );
    let watcher = Dashboard::start(&cluster, "watcher", &["--allow-actions"]);
    let overview = watcher.get("/api/overview").json();
    assert_eq!(overview["queues"]["value"]["queues"].as_array().map(Vec::len), Some(4), "{overview}");
    assert!(overview["health"]["trouble"].is_null(), "{overview}");
    assert_eq!(overview["schedules"]["trouble"]["problem"]["sqlstate"], "42501", "{overview}");
    let refused = watcher.get("/api/tasks");
    assert_eq!(
        (refused.status, refused.json()["problem"]["sqlstate"].as_str()),
        (403, Some("42501")),
        "{}",
        refused.body
    );
    let refused = watcher.act("{\"action\": \"pause\", \"target\": \"mail\"}");
    assert_eq!(refused.json()["problem"]["sqlstate"], "42501", "{}", refused.body);

    // An operator of one queue sees its tasks alone.
    let biller = Dashboard::start(&cluster, "biller", &[]);
    let newest_first = [tasks.waiting.to_string(), tasks.scheduled.to_string()];
    assert_eq!(ids(&biller.tasks("")), newest_first);
    assert_eq!(biller.get(&format!("/api/task?id={}", tasks.failed)).status, 404);

    let hiding = Dashboard::start(&cluster, "oncall", &["--hide-payloads"]);
    let task = hiding.get(&format!("/api/task?id={}", tasks.failed));
    assert!(task.body.contains("mailbox full") && !task.body.contains("ada@example.com"), "{}", task.body);
    assert_eq!(ids(&hiding.tasks("text=ada@example.com")), Vec::<&str>::new());
    assert_eq!(ids(&hiding.tasks("text=order-17")), [tasks.failed.to_string()]);
}
