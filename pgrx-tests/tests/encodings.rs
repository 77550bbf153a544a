//! Databases in other encodings than UTF-8: a name is bytes in the encoding of its database, for the worker,
//! for counters, for listeners and in the log.

use fallible_iterator::FallibleIterator;
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually, run};

fn count(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

/// A database in this encoding, with a queue whose name is this expression, and its worker.
fn database(cluster: &mut Cluster, encoding: &str, name: &str) -> Client {
    let database = encoding.to_ascii_lowercase();
    run(
        &mut cluster.connect(),
        &format!("CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"),
    );
    let mut client = cluster.connect_to(&database);
    run(&mut client, "CREATE EXTENSION queue_ext");
    run(
        &mut client,
        &format!(
            "CREATE FUNCTION public.name() RETURNS text LANGUAGE sql AS $$ SELECT {name} $$; SELECT FROM queue.create(public.name())"
        ),
    );
    cluster.await_worker(&database);
    client
}

/// Everything that handles names outside of SQL.
fn works(client: &mut Client) {
    // Natively.
    run(
        client,
        "DO $$
         DECLARE task queue.claimed_task;
         BEGIN
             PERFORM queue.push(public.name());
             COMMIT;
             SELECT * INTO STRICT task FROM queue.claim('1 hour', public.name());
             ASSERT task.queue = public.name();
             PERFORM queue.complete(task.id, task.token);
         END $$",
    );
    assert!(count(client, "SELECT (queue.engine_stats()->'verbs'->>'served')::bigint") >= 3);

    // The worker puts tasks back, makes partitions, runs schedules, and keeps going.
    run(
        client,
        "SELECT FROM queue.schedule('each second', '* * * * * *', public.name(), '\"scheduled\"');
         SELECT queue.push(public.name(), '\"leased\"', priority => -1)",
    );
    run(client, "SELECT FROM queue.claim('100 ms', public.name())");
    let back =
        "SELECT count(*) FROM queue.tasks WHERE payload = '\"leased\"' AND state = 'queued' AND attempt = 1";
    eventually("the worker puts the task back", SOON, || count(client, back) == 1);
    let scheduled = "SELECT count(*) FROM queue.tasks WHERE payload = '\"scheduled\"'";
    eventually("the schedule runs", SOON, || count(client, scheduled) >= 2);
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'queue.history'::regclass";
    eventually("the worker makes partitions", SOON, || count(client, partitions) > 3);
    run(client, "SELECT FROM queue.unschedule('each second')");

    // The sweep continues within the queue, whose groups take more than one piece.
    run(
        client,
        "DO $$
         BEGIN
             PERFORM queue.push(public.name(), group_key => public.name() || g) FROM generate_series(1, 200) AS g;
             DELETE FROM queue_internal.events;
         END $$",
    );
    let waiting = "SELECT count(*) FROM queue.tasks WHERE group_key IS NOT NULL AND admission = 2";
    assert_eq!(count(client, waiting), 200);
    eventually("the sweep finds each group", SOON, || count(client, waiting) == 0);

    // The counters have the queue, and those of the engine.
    let stats = "SELECT queued::bigint FROM queue.stats WHERE queue = public.name()";
    let tasks = "SELECT count(*) FROM queue.tasks WHERE queue = public.name() AND run_at <= now()";
    assert_eq!(count(client, stats), count(client, tasks));
    let counted = "SELECT count(*) FROM queue_internal.counted(ARRAY[public.name(), 'default']) AS c WHERE c.queue = public.name()";
    assert_eq!(count(client, counted), 1);
    let lanes = "SELECT count(*) FROM jsonb_object_keys(queue.engine_stats()->'lanes') AS lane WHERE lane = public.name()";
    assert_eq!(count(client, lanes), 1, "the lane has the queue's name");

    // Something that is limited, which only SQL announces.
    run(
        client,
        "SELECT FROM queue.configure(public.name(), '{\"max_running\": 1}');
         SELECT FROM queue.claim('1 hour', public.name());
         SELECT FROM queue.configure(public.name(), '{\"max_running\": 2}')",
    );
    // Bytes that a cron expression must not contain.
    let error = client
        .batch_execute("SELECT FROM queue.schedule('s', '* * * * ' || public.name(), 'default')")
        .expect_err("no cron expression");
    assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{error:?}");
}

/// A notification on the queue's channel comes.
fn notifies(client: &mut Client) {
    run(client, "DO $$ BEGIN EXECUTE format('LISTEN %I', queue.channel(public.name())); END $$");
    run(client, "SELECT queue.push(public.name())");
    let told = client.notifications().timeout_iter(SOON).next();
    // A channel that is no UTF-8 cannot be sent to this client, but the server sends it.
    assert!(!matches!(told, Ok(None)), "no notification");
}

/// The worker does its rounds and complains of nothing.
fn is_well(cluster: &Cluster, client: &mut Client) {
    let rounds = "SELECT (queue.engine_stats()->'worker'->>'rounds')::bigint";
    let before = count(client, rounds);
    eventually("the worker goes round", SOON, || count(client, rounds) > before + 2);
    let log = cluster.log();
    let complaints: Vec<&str> =
        log.lines().filter(|line| line.contains("queue_ext worker") || line.contains("UTF-8")).collect();
    let unwell = |line: &&&str| ["ERROR", "WARNING", "UTF-8"].iter().any(|word| line.contains(word));
    assert_eq!(complaints.iter().filter(unwell).count(), 0, "{complaints:#?}");
}

const SETTINGS: Settings = Settings { preload: true, extra: "queue.sweep_interval = '1s'" };

#[test]
fn a_queue_with_a_latin1_name_works_like_any_other() {
    let mut cluster = Cluster::start_with("encodings-latin1", &SETTINGS);
    let mut client = database(&mut cluster, "LATIN1", "'é'");
    assert_eq!(count(&mut client, "SELECT octet_length(public.name())::bigint"), 1);
    works(&mut client);
    notifies(&mut client);
    let lanes: serde_json::Value =
        client.query_one("SELECT queue.engine_stats()->'lanes'", &[]).expect("stats").get(0);
    assert!(lanes.as_object().is_some_and(|lanes| lanes.contains_key("é")), "{lanes}");
    is_well(&cluster, &mut client);
}

#[test]
fn a_queue_with_a_name_in_no_encoding_works_like_any_other() {
    let mut cluster = Cluster::start_with("encodings-ascii", &SETTINGS);
    let mut client = database(&mut cluster, "SQL_ASCII", r"convert_from('\xe92c22ff', 'SQL_ASCII')");
    works(&mut client);
    is_well(&cluster, &mut client);
}
