//! Names with unusual characters, and values that are too large.

use super::{NO_WORKER, attempt, cluster, number, run};
use postgres::Client;
use serde_json::{Value, json};

/// Characters that are special to SQL, LIKE, regular expressions, JSON, formats, a terminal or a search_path.
const NAMES: &[&str] = &[
    "it's",
    "''",
    "\"quoted\"",
    "back\\slash\\",
    "\\'",
    "$$",
    "$body$ $1",
    "%s %I %L %",
    "_",
    "a%",
    "'); SELECT nextval('public.sprung'); --",
    "\"; SELECT nextval('public.sprung'); --",
    "/* comment */ -- x",
    "{\"json\": [1]}",
    "{a,b}",
    "NULL",
    "default ",
    " ",
    "Default",
    "queue.tasks",
    "pg_temp",
    "(a+)+$",
    ".*",
    "[^x]",
    "é",
    "e\u{301}",
    "日本語の待ち行列",
    "🦀🦀",
    "\u{202e}right to left",
    "zero\u{200b}width",
];

fn one(client: &mut Client, query: &str, parameters: &[&(dyn postgres::types::ToSql + Sync)]) -> i64 {
    client
        .query_one(query, parameters)
        .unwrap_or_else(|error| panic!("{query}, {parameters:?}: {error:?}"))
        .get(0)
}

#[test]
fn names_of_every_odd_character_go_through_every_function() {
    let cluster = cluster("security-names", NO_WORKER);
    let mut admin = cluster.connect();
    run(&mut admin, "CREATE SEQUENCE sprung; SELECT queue.create('other')");
    let longest = ["x".repeat(128), "ü".repeat(64), "🦀".repeat(32), "'".repeat(128)];
    let names: Vec<&str> = NAMES.iter().copied().chain(longest.iter().map(String::as_str)).collect();
    // Natively, and with rights for this queue only.
    for restricted in [false, true] {
        for name in &names {
            let c = &mut admin;
            // As the name of a queue, a role with rights on it, a worker, a key, a group, a schedule, an error.
            one(c, "SELECT count(queue.create($1, '{\"key_ttl\": \"1 hour\"}'))", &[name]);
            let role = name.chars().take(14).fold("r".to_owned(), |role, letter| role + &letter.to_string());
            let quoted = role.replace('"', "\"\"");
            let mut client = cluster.connect();
            if restricted {
                run(c, &format!("CREATE ROLE \"{quoted}\" LOGIN"));
                for kind in ["producer", "worker", "operator"] {
                    one(c, &format!("SELECT count(queue.grant_{kind}($2, $1))"), &[name, &role]);
                }
                client = cluster.config("postgres").user(&role).connect(postgres::NoTls).expect("connect");
            }
            let client = &mut client;
            let payload = json!({ *name: name });
            let id = one(
                client,
                "SELECT queue.push($1, $2, key => $1, group_key => $1, headers => $2)",
                &[name, &payload],
            );
            assert_eq!(one(client, "SELECT queue.push($1, key => $1)", &[name]), id, "the key is taken");
            one(
                client,
                "SELECT max(n) FROM queue.push_many($1, '{1, 2}', keys => ARRAY[left($1, 30) || '1', NULL], group_keys => ARRAY[$1, NULL]) AS n",
                &[name],
            );
            let claimed = "SELECT max(id) FROM queue.claim('1 hour', $1, 1, $1) WHERE queue = $1 AND key = $1 AND group_key = $1";
            assert_eq!(one(client, claimed, &[name]), id);
            assert_eq!(
                one(client, "SELECT count(*) FROM queue.workers WHERE worker = $1 AND queue = $1", &[name]),
                1
            );
            assert_eq!(
                one(client, "SELECT count(*) FROM queue.claim('1 hour', ARRAY[$1], 9, $1)", &[name]),
                1,
                "the one without a group"
            );
            one(client, "SELECT count(queue.fail($2, 1, $1, permanent => true))", &[name, &id]);
            let stored: Value = client
                .query_one("SELECT errors -> 0 FROM queue.dead_letters WHERE id = $1", &[&id])
                .expect("errors")
                .get(0);
            assert_eq!((&stored["error"], &stored["worker"]), (&json!(name), &json!(name)));
            // Patterns mean themselves only where they are no patterns.
            let filter = json!({ "queue": name, "worker": name, "payload": payload });
            assert_eq!(one(client, "CALL queue.redrive_where($1)", &[&filter]), 1);
            one(client, "SELECT count(queue.bind('odd.#', $1))", &[name]);
            assert_eq!(one(client, "SELECT count(*) FROM queue.publish('odd.topic')", &[]), 1);
            one(
                client,
                "SELECT count(queue.schedule($1, '@daily', $1, options => jsonb_build_object('key', $1::text, 'group_key', $1)))",
                &[name],
            );
            one(client, "SELECT queue.run_schedule($1)", &[name]);
            one(
                client,
                "SELECT count(r) FROM (SELECT queue.pause_schedule($1), queue.resume_schedule($1), queue.unschedule($1)) AS r",
                &[name],
            );
            one(
                client,
                "SELECT count(r) FROM (SELECT queue.pause($1), queue.resume($1), queue.configure($1, '{\"lease\": \"1 s\"}')) AS r",
                &[name],
            );
            assert_eq!(one(client, "SELECT count(*) FROM queue.stats WHERE queue = $1", &[name]), 1);
            let channel: String =
                client.query_one("SELECT queue.channel($1)", &[name]).expect("channel").get(0);
            run(client, &format!("LISTEN \"{}\"", channel.replace('"', "\"\"")));
            client.execute("CALL queue.wait($1, '0')", &[name]).expect("wait");
            assert!(
                one(client, "CALL queue.purge_where(jsonb_build_object('queue', $1::text))", &[name]) > 0
            );
            one(client, "SELECT count(queue.purge($1))", &[name]);
            if restricted {
                for kind in ["producer", "worker", "operator"] {
                    one(c, &format!("SELECT count(queue.revoke_{kind}($2, $1))"), &[name, &role]);
                }
                // Nothing is left of the rights.
                run(c, &format!("DROP ROLE \"{quoted}\""));
            }
            one(c, "SELECT count(queue.drop($1, true))", &[name]);
        }
    }
    assert_eq!(number(&mut admin, "SELECT count(*) FROM sprung WHERE is_called"), 0);
    assert_eq!(number(&mut admin, "SELECT count(*) FROM queue.queues"), 2, "default and other");
}

#[test]
fn what_is_too_large_is_refused_at_once() {
    let cluster = cluster("security-large", NO_WORKER);
    let mut client = cluster.connect();
    run(&mut client, "SET statement_timeout = '20 s'; SET work_mem = '1MB'");
    for (call, expected) in [
        ("SELECT queue.push('default', after => array_fill(1::bigint, ARRAY[1000000]))", "54000"),
        ("SELECT queue.push_many('default', array_fill('1'::jsonb, ARRAY[1000000]))", "54000"),
        (
            "SELECT queue.complete_many(array_fill(1::bigint, ARRAY[1000000]), array_fill(1, ARRAY[1000000]))",
            "54000",
        ),
        (
            "SELECT queue.extend_many(array_fill(1::bigint, ARRAY[1000000]), array_fill(1, ARRAY[1000000]))",
            "54000",
        ),
        ("SELECT queue.claim('1 s', array_fill('default'::text, ARRAY[1000000]))", "54000"),
        ("SELECT queue.claim('1 s', max_tasks => 2000000000)", "54000"),
        ("CALL queue.wait(array_fill('default'::text, ARRAY[1000000]), '0')", "54000"),
        ("SELECT queue.push(repeat('x', 10000000))", "54000"),
        ("SELECT queue.push('default', key => repeat('x', 10000000))", "54000"),
        ("SELECT queue.fail(1, 1, repeat('x', 10000000))", "54000"),
        ("SELECT queue.bind(repeat('#.', 1000000) || '#', 'default')", "54000"),
        ("SELECT queue.publish(repeat('a', 1000000))", "54000"),
        ("SELECT queue.schedule('s', repeat('*', 1000000), 'default')", "54000"),
        ("SELECT queue.schedule_preview('* * * * *', runs => 2000000000)", "54000"),
        ("CALL queue.cancel_where(jsonb_build_object('ids', array_fill(1, ARRAY[1000000])))", "54000"),
        ("SELECT queue.push('default', repeat('[', 1000000)::jsonb)", "54001"),
    ] {
        assert_eq!(attempt(&mut client, call).expect_err(call).0, expected, "{call}");
    }
    assert_eq!(number(&mut client, "SELECT count(*) FROM queue.all_tasks"), 0);
}
