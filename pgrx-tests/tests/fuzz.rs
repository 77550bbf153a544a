//! Calls of every public function with arguments of every kind, good, odd and bad, made up by proptest. A call is
//! answered or refused, with an SQLSTATE that says why; a refused one has written nothing; what strings say is
//! never run; and the server is still there.
//!
//! CASES and SEED in the environment say how many, and which. What once failed is played again first:
//! fuzz.regressions has the seeds, which proptest adds, and fuzz.corpus calls worth keeping, one a line.

#[path = "fuzz/values.rs"]
mod values;

use std::cell::RefCell;
use std::collections::BTreeMap;

use postgres::Client;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestRng, TestRunner,
};
use queue_ext_tests::{Cluster, Settings};

const SETUP: &str = "
    TRUNCATE queue.tasks, queue.history, queue.dead_letters, queue.queues, queue.schedules, queue.bindings,
             queue_internal.keys, queue_internal.dependencies, queue_internal.events, queue_internal.slots,
             queue_internal.rate_buckets;
    ALTER SEQUENCE queue.tasks_id_seq RESTART;
    INSERT INTO queue.queues (name) VALUES ('default');
    SELECT queue.create('mail', '{\"max_running\": 2, \"key_ttl\": \"1 s\", \"rate_limit\": 5, \"rate_period\": \"1 s\"}');
    SELECT queue.push('default', '{\"a\": 1}', key => 'k', group_key => 'g');
    SELECT queue.push('default', '{\"a\": 2}', after => '{1}');
    SELECT queue.push('mail', '[]', delay => '1 hour');
    SELECT queue.push('default', '1', priority => 2); SELECT queue.push('default', '2', priority => 3);
    SELECT queue.claim('1 hour', 'default', 2); SELECT queue.fail(4, 1, 'x', permanent => true);
    SELECT queue.schedule('s', '* * * * *', 'mail'); SELECT queue.bind('a.*', 'mail');";

/// What every table holds, but what the calls themselves may leave when they are refused: nothing.
const EVERYTHING: &str = "
    SELECT md5(coalesce(string_agg(line, E'\\n' ORDER BY line), '')) FROM (
        SELECT a::text FROM queue.all_tasks AS a UNION ALL SELECT q::text FROM queue.queues AS q
        UNION ALL SELECT s::text FROM queue.schedules AS s UNION ALL SELECT b::text FROM queue.bindings AS b
        UNION ALL SELECT r::text FROM queue.rights AS r UNION ALL SELECT k::text FROM queue_internal.keys AS k
        UNION ALL SELECT d::text FROM queue_internal.dependencies AS d UNION ALL SELECT s::text FROM queue_internal.slots AS s
        UNION ALL SELECT t::text FROM queue_internal.rate_buckets AS t UNION ALL SELECT s::text FROM queue_internal.events AS s
        UNION ALL SELECT s.is_called::text FROM sprung AS s) AS all_of_it (line)";

/// The SQLSTATEs with which a call may be refused, and whole classes of them.
const REFUSALS: &[&str] = &["22", "54", "QX", "0A000", "23514", "42704", "42710", "55006", "2D000"];

fn from_environment(name: &str, otherwise: u32) -> u32 {
    std::env::var(name)
        .map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn everything(client: &mut Client) -> String {
    client.query_one(EVERYTHING, &[]).expect("the server is there, and its tables can be read").get(0)
}

/// A server with the extension and something in every table, and nobody else who changes it.
fn start(name: &str, extra: &'static str) -> (Cluster, Client) {
    let cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    let mut client = cluster.connect();
    for statement in [
        "CREATE EXTENSION queue_ext; CREATE ROLE nobody; CREATE SEQUENCE sprung; SET statement_timeout = '10s'",
        SETUP,
    ] {
        client.batch_execute(statement).expect(statement);
    }
    (cluster, client)
}

/// Makes one call and checks what it may not do; returns the SQLSTATE that it was refused with.
fn play(client: &mut Client, call: &str) -> Result<Option<String>, String> {
    let before = everything(client);
    let Err(error) = client.batch_execute(call) else { return Ok(None) };
    let Some(code) = error.code().map(|code| code.code().to_owned()) else {
        return Err(format!("{call}: {error}"));
    };
    if !REFUSALS.iter().any(|allowed| code.starts_with(allowed)) {
        return Err(format!("{call}: {code} {error}"));
    }
    if everything(client) != before {
        return Err(format!("{call}: refused with {code}, and yet something was written"));
    }
    Ok(Some(code))
}

/// Calls of every public function, with its arguments by name; those with defaults now and then left out.
fn calls(client: &mut Client) -> BoxedStrategy<String> {
    let query = "
        SELECT CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END || ' queue.' || p.proname,
               a.name, format_type(a.type, NULL), a.position > p.pronargs - p.pronargdefaults, p.oid
        FROM pg_proc AS p LEFT JOIN LATERAL unnest(
            p.proargnames, coalesce(p.proallargtypes, string_to_array(p.proargtypes::text, ' ')::oid[]),
            coalesce(p.proargmodes, array_fill('i'::\"char\", ARRAY[p.pronargs::integer]))
        ) WITH ORDINALITY AS a (name, type, mode, position) ON a.mode IN ('i', 'b')
        WHERE p.pronamespace = 'queue'::regnamespace ORDER BY p.oid::regprocedure::text, a.position";
    let mut functions: BTreeMap<u32, (String, Vec<BoxedStrategy<Option<String>>>)> = BTreeMap::new();
    for row in client.query(query, &[]).expect("functions") {
        let arguments = &mut functions.entry(row.get(4)).or_insert_with(|| (row.get(0), Vec::new())).1;
        let Some(name) = row.get::<_, Option<String>>(1) else { continue };
        let (kind, optional): (String, bool) = (row.get(2), row.get(3));
        let value = values::of(&name, &kind);
        let weight = if optional && name != "timeout" { 6 } else { 0 };
        let given = value.prop_map(move |value| Some(format!("{name} => {value}")));
        arguments.push(prop_oneof![weight => Just(None), 2 => given].boxed());
    }
    assert!(functions.len() > 40, "{} functions", functions.len());
    let calls = functions.into_values().map(|(verb, arguments)| {
        arguments.prop_map(move |given| {
            format!("{verb}({})", given.into_iter().flatten().collect::<Vec<_>>().join(", "))
        })
    });
    Union::new(calls).boxed()
}

fn fuzz(name: &str, extra: &'static str, seed: u32) {
    let (_cluster, mut client) = start(name, extra);
    let calls = calls(&mut client);
    let persistence =
        FileFailurePersistence::Direct(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz.regressions"));
    let config = Config {
        cases: from_environment("CASES", 60),
        max_shrink_iters: 100,
        failure_persistence: Some(Box::new(persistence)),
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&from_environment("SEED", seed).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let (client, counts) = (RefCell::new(client), RefCell::new((0, 0)));
    let result = runner.run(&vec(calls, 1..30), |history| {
        let client = &mut *client.borrow_mut();
        client.batch_execute(SETUP).expect("set up");
        for call in &history {
            let refused = play(client, call).map_err(TestCaseError::fail)?;
            let mut counts = counts.borrow_mut();
            if refused.is_some() { counts.1 += 1 } else { counts.0 += 1 }
        }
        Ok(())
    });
    let (answered, refused) = *counts.borrow();
    println!("{answered} calls answered, {refused} refused");
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(answered > 50 && refused > 50, "{answered} answered, {refused} refused");
}

#[test]
fn whatever_a_function_is_called_with_it_answers_or_refuses_and_then_wrote_nothing() {
    fuzz("fuzz", "queue.worker_enabled = off", 1);
}

#[test]
fn so_does_the_core() {
    fuzz("fuzz-core", "queue.worker_enabled = off\nqueue.fast_path = off", 2);
}

#[test]
fn calls_worth_keeping_still_go_well() {
    let (_cluster, mut client) = start("fuzz-corpus", "queue.worker_enabled = off");
    let corpus = include_str!("fuzz.corpus");
    let calls: Vec<&str> = corpus.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert!(calls.len() > 10);
    for call in calls {
        client.batch_execute(SETUP).expect("set up");
        if let Err(wrong) = play(&mut client, call) {
            panic!("{wrong}");
        }
    }
}
