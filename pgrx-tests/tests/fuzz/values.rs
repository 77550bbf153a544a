//! Values for arguments, as SQL: by the argument's name where it suggests nearly valid values, and by its type.

use proptest::prelude::*;
use proptest::sample::select;

/// Strings that mean something somewhere: to SQL, to JSON, to patterns, to formats, to a terminal.
pub const ODD: &[&str] = &[
    "",
    " ",
    "'",
    "''",
    "\"",
    "\\",
    "\\'",
    "\\\\",
    "%",
    "%s%n%L%I",
    "_",
    "$$",
    "$1",
    "$body$",
    "'); SELECT nextval('public.sprung'); --",
    "\"; SELECT nextval('public.sprung'); --",
    "$$; SELECT nextval('public.sprung'); --",
    "/* */ --",
    "a\nb",
    "\t\r\u{1b}[31m",
    "{\"a\": 1}",
    "{a,b}",
    "NULL",
    "é",
    "日本語",
    "🦀",
    "e\u{301}\u{200b}\u{202e}",
    "Queue.Tasks",
    "queue.tasks",
    "pg_catalog",
    ".",
    "a..b",
    "#.*.#",
    "(a+)+$",
    "[[:cntrl:]]",
];

/// A string as SQL.
pub fn quote(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

fn text() -> BoxedStrategy<String> {
    prop_oneof![
        3 => select(&["default", "mail", "nowhere", "s", "k", "g"][..]).prop_map(str::to_owned),
        3 => select(ODD).prop_map(str::to_owned),
        2 => "\\PC{0,40}",
        1 => (1..600_usize).prop_map(|length| "x".repeat(length)),
        1 => (1..300_usize).prop_map(|length| "ü".repeat(length)),
    ]
    .boxed()
}

/// Near to a cron expression.
fn cron() -> BoxedStrategy<String> {
    prop_oneof![
        select(
            &[
                "* * * * *",
                "@daily",
                "@never",
                "30 2 * * MON-FRI",
                "0 0 31 2 *",
                "*/7 0-23/5 L * 5#3",
                "59 59 23 LW 12 7L"
            ][..]
        )
        .prop_map(str::to_owned),
        "([0-9*/,LW#?A-Z-]{1,4} ){4,5}[0-9*/,LW#?A-Z-]{1,4}",
        "(([0-9]{1,2}(-[0-9]{1,2})?(/[0-9]{1,2})?|\\*(/[0-9]{1,3})?) ){4,5}(MON|[0-7]L?|[0-7]#[0-6]|\\*)",
        text(),
    ]
    .boxed()
}

/// A JSON value of any kind.
fn json() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        select(
            &[
                "null",
                "true",
                "false",
                "0",
                "-1",
                "1.5",
                "1e400",
                "2147483648",
                "9223372036854775808",
                "[]",
                "{}",
                "[1, 2]",
                "[0]",
                "[null]"
            ][..]
        )
        .prop_map(str::to_owned),
        select(
            &[
                "1 s",
                "-1 s",
                "0",
                "2 years",
                "infinity",
                "1 mon -30 days",
                "fixed",
                "linear",
                "once",
                "all",
                "block",
                "queued",
                "failed",
                "skip",
                "replace",
                "mail"
            ][..]
        )
        .prop_map(|word| serde_json::json!(word).to_string()),
        text().prop_map(|text| serde_json::json!(text).to_string()),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            (text(), inner).prop_map(|(key, value)| format!("{{{}:{value}}}", serde_json::json!(key))),
        ]
    })
    .boxed()
}

/// An object with some of these keys, and whatever values.
fn object(keys: &'static [&'static str]) -> BoxedStrategy<String> {
    let member = (select(keys), json()).prop_map(|(key, value)| format!("\"{key}\": {value}"));
    prop_oneof![
        6 => proptest::collection::vec(member, 0..3).prop_map(|members| format!("{{{}}}", members.join(", "))),
        1 => json(),
        1 => select(&["{", "", "{\"a\": 1} x", "\\u0000", "\"\\u0000\""][..]).prop_map(str::to_owned),
        1 => (1..3000_usize).prop_map(|depth| "[".repeat(depth) + &"]".repeat(depth)),
    ]
    .boxed()
}

fn literals(all: &'static [&'static str]) -> BoxedStrategy<String> {
    select(all).prop_map(|literal| format!("'{literal}'")).boxed()
}

/// Values for an argument of this name and type.
pub fn of(name: &str, kind: &str) -> BoxedStrategy<String> {
    let value = match (name, kind) {
        ("cron", _) => cron().prop_map(|text| quote(&text)).boxed(),
        ("topic" | "topic_pattern", _) => {
            prop_oneof!["([a-zA-Z0-9_-]{1,3}|[*#]|)(\\.([a-z]{1,3}|[*#])){0,5}", text()]
                .prop_map(|text| quote(&text))
                .boxed()
        }
        ("timezone", _) => prop_oneof![
            select(
                &[
                    "UTC",
                    "Europe/Berlin",
                    "right/UTC",
                    "EST5EDT",
                    "+03",
                    "../../etc/passwd",
                    "/etc/passwd",
                    "posixrules"
                ][..]
            )
            .prop_map(str::to_owned),
            text()
        ]
        .prop_map(|text| quote(&text))
        .boxed(),
        ("on_duplicate" | "on_predecessor_failure", _) => {
            literals(&["skip", "replace", "reschedule", "error", "fail", "cancel", "continue", "", "x"])
        }
        ("key_ttl_from", _) => literals(&["end", "push", "", "x"]),
        ("filter", _) => object(&[
            "all",
            "queue",
            "state",
            "older_than",
            "newer_than",
            "key",
            "group_key",
            "kind",
            "worker",
            "error",
            "payload",
            "headers",
            "ids",
            "x",
        ])
        .prop_map(|text| quote(&text))
        .boxed(),
        ("options", _) => object(&[
            "lease",
            "timeout",
            "ttl",
            "on_expired",
            "max_queued",
            "kind",
            "max_attempts",
            "backoff",
            "max_running",
            "max_running_per_group",
            "delayed_head",
            "fair_groups",
            "rate_limit",
            "group_rate_limit",
            "weight",
            "rate_period",
            "ageing",
            "key_ttl",
            "on_predecessor_failure",
            "keep_history",
            "durable_leases",
            "missed_runs",
            "priority",
            "delay",
            "headers",
            "key",
            "group_key",
            "on_duplicate",
            "x",
        ])
        .prop_map(|text| quote(&text))
        .boxed(),
        ("tasks", "jsonb") => {
            let names = &[
                "queue",
                "payload",
                "priority",
                "run_at",
                "delay",
                "key",
                "on_duplicate",
                "group_key",
                "max_attempts",
                "headers",
                "after",
                "backoff",
                "key_ttl",
                "on_predecessor_failure",
                "key_ttl_from",
                "kind",
                "lease",
                "timeout",
                "start_by",
                "ttl",
                "weight",
                "batch",
                "x",
            ][..];
            let member = (select(names), json()).prop_map(|(name, value)| format!("\"{name}\": {value}"));
            let queue = select(&["default", "mail", "nowhere"][..]);
            let task = (queue, proptest::collection::vec(member, 0..3)).prop_map(|(queue, members)| {
                let queue = format!("\"queue\": \"{queue}\"");
                format!("{{{}}}", std::iter::once(queue).chain(members).collect::<Vec<_>>().join(", "))
            });
            prop_oneof![
                6 => proptest::collection::vec(task, 0..4).prop_map(|tasks| format!("[{}]", tasks.join(", "))),
                1 => object(&["queue", "x"]),
            ]
            .prop_map(|text| quote(&text))
            .boxed()
        }
        ("backoff", _) => {
            object(&["kind", "base", "max", "jitter", "x"]).prop_map(|text| quote(&text)).boxed()
        }
        // Timeouts are short.
        ("timeout", _) => literals(&["0", "1 ms", "-1 s", "x", "200 years"]),
        (_, "text") => text().prop_map(|text| quote(&text)).boxed(),
        (_, "name") => prop_oneof![Just("nobody".to_owned()), text()].prop_map(|text| quote(&text)).boxed(),
        (_, "jsonb") => object(&["a", "b"]).prop_map(|text| quote(&text)).boxed(),
        (_, "boolean") => literals(&["true", "false", "x"]),
        (_, "integer") => {
            literals(&["-2147483648", "-1", "0", "1", "1", "2", "100001", "2147483647", "2147483648"])
        }
        (_, "bigint") => {
            literals(&["1", "2", "3", "4", "5", "6", "0", "-1", "9223372036854775807", "9223372036854775808"])
        }
        (_, "interval") => literals(&[
            "0",
            "1 ms",
            "1 s",
            "1 hour",
            "7 days",
            "7 days 1 us",
            "-1 s",
            "1 mon -30 days",
            "40 years -14401 days",
            "100 years",
            "178000000 years",
            "-178000000 years",
            "infinity",
            "x",
        ]),
        (_, "timestamp with time zone") => literals(&[
            "now",
            "2030-01-01",
            "infinity",
            "-infinity",
            "294276-12-31",
            "4713-01-01 BC",
            "5000-01-01",
            "x",
        ]),
        ("tokens", "bigint[]") => {
            literals(&["{}", "{1}", "{1,1,1,1}", "{1,2}", "{0}", "{NULL}", "{{1},{1}}", "[5:6]={1,1}", "{x}"])
        }
        (_, "bigint[]") => prop_oneof![
            literals(&[
                "{}",
                "{1}",
                "{1,2,3,4}",
                "{2,1,1}",
                "{0}",
                "{-1}",
                "{NULL}",
                "{{1},{2}}",
                "[5:6]={1,2}",
                "{99}",
                "{x}"
            ]),
            Just("pg_catalog.array_fill(1::bigint, ARRAY[100001])".to_owned())
        ]
        .boxed(),
        (_, "text[]") => proptest::collection::vec(
            prop_oneof![4 => text().prop_map(|text| quote(&text)), 1 => Just("NULL".into())],
            0..4,
        )
        .prop_map(|items| format!("ARRAY[{}]", items.join(", ")))
        .boxed(),
        (_, "jsonb[]") => proptest::collection::vec(json().prop_map(|text| quote(&text)), 0..4)
            .prop_map(|items| format!("ARRAY[{}]", items.join(", ")))
            .boxed(),
        (_, "regprocedure") => literals(&["pg_catalog.now()", "queue.channel(text)", "0", "4294967295"]),
        (_, "regrole") => literals(&["postgres", "0", "4294967295"]),
        _ => panic!("no values for {name} {kind}"),
    };
    let kind = kind.to_owned();
    prop_oneof![15 => value, 1 => Just("NULL".to_owned())]
        .prop_map(move |value| format!("{value}::{kind}"))
        .boxed()
}
