//! The extension writes no payload to the server's log, at its most verbose level that does not log parameters, nor
//! to errors, pg_stat_activity or pg_stat_statements.

use std::path::Path;

use super::{cluster, login, number, refusal, run};
use postgres::Client;
use postgres::types::{ToSql, Type};
use queue_ext_tests::cluster::pg_config;
use serde_json::{Value, json};

const MARKER: &str = "s3cr3t";

const TALKATIVE: &str =
    "log_min_messages = debug2\nlog_min_error_statement = debug2\nlog_error_verbosity = verbose
log_autovacuum_min_duration = 0\nlog_lock_waits = on";

/// The same, with modules that only the packages of PostgreSQL 15 have.
const WITH_CONTRIB: &str =
    "log_min_messages = debug2\nlog_min_error_statement = debug2\nlog_error_verbosity = verbose
log_autovacuum_min_duration = 0\nlog_lock_waits = on
shared_preload_libraries = 'queue_ext, pg_stat_statements'\npg_stat_statements.track = all";

/// Runs a call with parameters, as programs do.
fn call(client: &mut Client, said: &mut Vec<String>, call: &str, parameters: &[&(dyn ToSql + Sync)]) {
    if let Err(error) = client.query(call, parameters) {
        let (code, message) = refusal(&error);
        let context = error.as_db_error().and_then(|error| error.where_()).unwrap_or_default();
        said.push(format!("{call}: {code} {message}\n{context}"));
    }
}

#[test]
fn no_payload_is_in_a_log_an_error_or_a_statistics_view() {
    let contrib = Path::new(&pg_config("--pkglibdir")).join("pg_stat_statements.so").exists();
    let cluster = cluster("security-leaks", if contrib { WITH_CONTRIB } else { TALKATIVE });
    let mut admin = cluster.connect();
    if contrib {
        run(&mut admin, "CREATE EXTENSION pg_stat_statements");
    }
    run(
        &mut admin,
        "SELECT queue.grant_operator('operator'); SELECT queue.create('mail'); SELECT queue.bind('a', 'mail')",
    );
    run(&mut admin, "SELECT queue.create('limited', '{\"max_running\": 1, \"key_ttl\": \"1 s\"}')");
    let secret = json!({ "card": MARKER });
    let mut said = Vec::new();
    for fast_path in ["on", "off"] {
        let mut client = login(&cluster, "operator");
        run(&mut client, &format!("SET queue.fast_path = {fast_path}"));
        let c = &mut client;
        let said = &mut said;
        for queue in ["mail", "limited"] {
            call(
                c,
                said,
                "SELECT queue.push($1, $2, headers => $2, key => 'k', on_duplicate => 'replace')",
                &[&queue, &secret],
            );
            call(c, said, "SELECT queue.push($1, $2, headers => $2, group_key => 'g')", &[&queue, &secret]);
            call(
                c,
                said,
                "SELECT queue.push_many($1, $2, keys => '{a, b}')",
                &[&queue, &vec![secret.clone(); 2]],
            );
            for _ in 0..4 {
                let task = c
                    .query_opt("SELECT id, token FROM queue.claim('1 minute', $1, 1)", &[&queue])
                    .expect("claim");
                let Some(task) = task else { continue };
                let (id, token): (i64, i64) = (task.get(0), task.get(1));
                call(c, said, "SELECT queue.extend($1, $2, progress => $3)", &[&id, &token, &secret]);
                call(c, said, "SELECT queue.complete($1, 99, $2)", &[&id, &secret]);
                match id % 3 {
                    0 => call(c, said, "SELECT queue.complete($1, $2, $3)", &[&id, &token, &secret]),
                    1 => call(
                        c,
                        said,
                        "SELECT queue.fail($1, $2, $3, permanent => true)",
                        &[&id, &token, &MARKER],
                    ),
                    _ => call(
                        c,
                        said,
                        "SELECT queue.complete_many($1, $2, $3)",
                        &[&vec![id], &vec![token], &vec![secret.clone()]],
                    ),
                }
            }
        }
        // Whatever a call may be refused for.
        for (bad, types) in [
            ("SELECT queue.push('nowhere', $1, headers => $1)", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, priority => NULL)", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, key => 'k', on_duplicate => 'error')", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, key => 'k', on_duplicate => 'error')", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, after => '{999999}')", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, max_attempts => 0)", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, headers => jsonb_build_array($1))", [Type::JSONB]),
            ("SELECT queue.push('mail', $1, run_at => 'infinity')", [Type::JSONB]),
            ("SELECT queue.push_many('nowhere', ARRAY[$1])", [Type::JSONB]),
            ("SELECT queue.push_many('mail', ARRAY[$1, NULL])", [Type::JSONB]),
            ("SELECT queue.push_many('mail', ARRAY[$1], keys => '{}')", [Type::JSONB]),
            ("SELECT queue.try_push('nowhere', $1, key => 'k')", [Type::JSONB]),
            (
                "SELECT queue.push_tasks(jsonb_build_array(jsonb_build_object('queue', 'nowhere', 'payload', $1)))",
                [Type::JSONB],
            ),
            (
                "SELECT queue.push_tasks(jsonb_build_array(jsonb_build_object('queue', 'mail', 'priority', 'x', 'payload', $1)))",
                [Type::JSONB],
            ),
            ("SELECT queue.push_tasks(jsonb_build_array($1))", [Type::JSONB]),
            ("SELECT queue.publish('..', $1)", [Type::JSONB]),
            ("SELECT queue.publish('a', $1)", [Type::JSONB]),
            ("SELECT queue.complete(999999, 1, $1)", [Type::JSONB]),
            ("SELECT queue.complete_and_claim(999999, 1, $1)", [Type::JSONB]),
            ("SELECT queue.complete_many('{1, 2}', '{1}', ARRAY[$1])", [Type::JSONB]),
            ("SELECT queue.complete_many_and_claim('{1, 2}', '{1}', ARRAY[$1])", [Type::JSONB]),
            ("SELECT queue.fail(999999, 1, 'x', details => $1)", [Type::JSONB]),
            ("SELECT queue.fail_many('{1}', '{1}', '{\"\"}', details => ARRAY[$1])", [Type::JSONB]),
            ("SELECT queue.extend(999999, 1, progress => $1)", [Type::JSONB]),
            ("SELECT queue.extend_many('{1}', '{1}', '-1 s', ARRAY[$1])", [Type::JSONB]),
            ("SELECT queue.schedule('s', 'nonsense', 'mail', $1)", [Type::JSONB]),
            ("SELECT queue.schedule('s', '* * * * * *', 'mail', $1)", [Type::JSONB]),
            ("SELECT queue.run_schedule('s') FROM (SELECT $1) AS unused", [Type::JSONB]),
            ("INSERT INTO queue.tasks (queue, payload) VALUES ('nowhere', $1)", [Type::JSONB]),
            ("INSERT INTO queue.tasks (queue, payload, max_attempts) VALUES ('mail', $1, 0)", [Type::JSONB]),
        ] {
            let statement = c.prepare_typed(bad, &types).expect(bad);
            if let Err(error) = c.query(&statement, &[&secret]) {
                let context = error.as_db_error().and_then(|error| error.where_()).unwrap_or_default();
                said.push(format!("{bad}: {:?}\n{context}", refusal(&error)));
            }
        }
        let filter = json!({ "payload": secret, "headers": secret });
        for verb in ["cancel", "run_now", "redrive", "purge"] {
            call(c, said, &format!("CALL queue.{verb}_where($1, dry_run => true)"), &[&filter]);
            call(c, said, &format!("CALL queue.{verb}_where($1)"), &[&filter]);
        }
        // Interrupted while it runs: the context of the error shows the running statements.
        run(
            c,
            "INSERT INTO queue.tasks (queue) SELECT 'mail' FROM generate_series(1, 20000); SET statement_timeout = '15 ms'",
        );
        let filter = json!({ "payload": { "card": MARKER, "deep": vec![MARKER; 50] }, "error": "%" });
        call(c, said, "CALL queue.cancel_where($1, dry_run => true)", &[&filter]);
        call(
            c,
            said,
            "CALL queue.purge_where($1, batch_size => 100000)",
            &[&json!({ "headers": secret, "all": true })],
        );
        // Which can itself be cut short.
        while c.batch_execute("SET statement_timeout = 0").is_err() {}
        run(&mut admin, "DELETE FROM queue.tasks WHERE payload = '{}'");
    }
    assert!(said.len() > 30, "much was refused: {}", said.len());
    for refused in &said {
        assert!(!refused.contains(MARKER), "{refused}");
    }
    let marked = "SELECT count(*) FROM queue.all_tasks AS a WHERE a::text LIKE '%' || $1 || '%'";
    assert!(admin.query_one(marked, &[&MARKER]).expect("count").get::<_, i64>(0) > 3, "there are such tasks");

    let log = cluster.log();
    assert!(log.contains("queue.push($1"), "the log tells of statements that failed");
    let shown: Vec<&str> = log.lines().filter(|line| line.contains(MARKER)).collect();
    assert!(shown.is_empty(), "{} lines of the log, such as:\n{}", shown.len(), shown[0]);
    if contrib {
        // To check the test itself: the statements of the functions are in the log.
        assert!(
            number(
                &mut admin,
                "SELECT count(*) FROM pg_stat_statements WHERE query LIKE 'INSERT INTO queue.tasks%'"
            ) > 0
        );
        let query = format!("SELECT count(*) FROM pg_stat_statements WHERE query LIKE '%{}%'", MARKER);
        run(&mut admin, "SET pg_stat_statements.track = none");
        assert_eq!(number(&mut admin, &query), 0);
    }
    let query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%' || reverse('t3rc3s') || '%' AND pid <> pg_backend_pid()";
    assert_eq!(number(&mut admin, query), 0);
}

#[test]
fn the_worker_shows_and_logs_no_stored_data() {
    let mut cluster = cluster("security-words", "log_min_messages = debug2\nqueue.sweep_interval = 1");
    let mut admin = cluster.connect();
    cluster.await_worker("postgres");
    let payload: Value = json!({ "card": MARKER });
    for query in [
        "SELECT queue.push('default', $1, headers => $1, max_attempts => 1)",
        "SELECT queue.schedule('fails', '* * * * * *', 'default', $1)::text",
        "SELECT queue.schedule('runs', '* * * * * *', 'default', $1)::text",
    ] {
        admin.query_one(query, &[&payload]).expect(query);
    }
    run(
        &mut admin,
        "SELECT queue.claim('10 ms'); UPDATE queue.schedules SET queue = 'nowhere' WHERE name = 'fails'",
    );
    queue_ext_tests::eventually("a dead letter, a run and a failed one", queue_ext_tests::SOON, || {
        number(
            &mut admin,
            "SELECT count(*) FROM (SELECT FROM queue.dead_letters UNION ALL SELECT FROM queue.schedules
                                   WHERE last_error IS NOT NULL AND name = 'fails' OR last_run_at IS NOT NULL AND name = 'runs') AS x",
        ) == 3
    });
    let told = "SELECT count(*) FROM queue.schedules WHERE last_error LIKE '%' || $1 || '%'";
    assert_eq!(admin.query_one(told, &[&MARKER]).expect("count").get::<_, i64>(0), 0);
    assert!(!cluster.log().contains(MARKER));
}
