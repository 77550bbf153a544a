//! A dump restored on a new server has everything that pg_dump saved, while the background worker runs.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use postgres::Client;
use queue_ext_tests::cluster::bindir;
use queue_ext_tests::{Cluster, Edition, SOON, Settings, Worker, estate, eventually};

/// Dumps the source, restores the dump into new servers in every way, and passes each to `check`.
fn restore(source: &Cluster, test: &str, roles: &str, check: impl Fn(&Cluster, &str)) {
    let host = source.folder().to_str().expect("a path").to_owned();
    let connection = ["-h", &host, "-U", "postgres", "-d", "postgres"];
    let plain = format!("{host}/plain.sql");
    let custom = format!("{host}/custom.dump");
    source.run("pg_dump", &[&connection[..], &["-f", &plain]].concat());
    source.run("pg_dump", &[&connection[..], &["-Fc", "-f", &custom]].concat());
    // The rows of all tables the other way round, as several jobs may happen to bring them.
    let list =
        Command::new(bindir().join("pg_restore")).args(["-l", &custom]).output().expect("list the dump");
    let list = String::from_utf8(list.stdout).expect("UTF-8");
    let (mut data, rest): (Vec<&str>, Vec<&str>) =
        list.lines().partition(|line| line.contains(" TABLE DATA "));
    assert!(data.len() > 10, "{list}");
    data.reverse();
    let at = rest.iter().position(|line| line.contains(" SEQUENCE SET ")).expect("the sequence of ids");
    let reversed = format!("{host}/reversed.list");
    let lines = [&rest[..at], &data[..], &rest[at..]].concat();
    std::fs::write(&reversed, lines.join("\n")).expect("write the list");
    for (way, program, arguments) in [
        ("plain", "psql", vec!["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", &plain]),
        ("custom", "pg_restore", vec!["--exit-on-error", &custom]),
        ("parallel", "pg_restore", vec!["--exit-on-error", "-j", "4", &custom]),
        ("reversed", "pg_restore", vec!["--exit-on-error", "-L", &reversed, &custom]),
    ] {
        let target = Cluster::start_with(&format!("{test}-{way}"), &Settings::default());
        target.connect().batch_execute(roles).expect("a role is not part of a dump");
        let host = target.folder().to_str().expect("a path").to_owned();
        target.run(program, &[&arguments[..], &["-h", &host, "-U", "postgres", "-d", "postgres"]].concat());
        check(&target, way);
    }
}

#[test]
fn a_restored_dump_is_the_queue_as_it_was() {
    let mut source = Cluster::start("dump-source");
    source.await_worker("postgres");
    let mut client = source.connect();
    estate::fill(&mut client, 20000);
    let before = estate::everything(&mut client);
    restore(&source, "dump", "CREATE ROLE web", |target, way| {
        let mut client = target.connect();
        assert_eq!(estate::everything(&mut client), before, "{way}");
        estate::goes_on(&mut client);
    });
}

fn claim(client: &mut Client, queue: &str) -> Vec<String> {
    let query = "SELECT payload #>> '{}' FROM queue.claim('1 day', $1, 10)";
    client.query(query, &[&queue]).expect("claim").iter().map(|row| row.get(0)).collect()
}

/// Claims until it gets a task: the worker may be about to unblock it.
fn await_claim(client: &mut Client, queue: &str) -> Vec<String> {
    let mut claimed = Vec::new();
    eventually(&format!("a task of {queue}"), SOON, || {
        claimed = claim(client, queue);
        !claimed.is_empty()
    });
    claimed
}

/// Completes a running task with the token that its worker has.
fn complete(client: &mut Client, payload: &str) {
    let query =
        "SELECT queue.complete(id, token) FROM queue.tasks WHERE payload #>> '{}' = $1 AND state = 'running'";
    assert_eq!(client.execute(query, &[&payload]).expect("complete"), 1, "{payload}");
}

fn state(client: &mut Client, payload: &str) -> String {
    let query = "SELECT state FROM queue.all_tasks WHERE payload #>> '{}' = $1";
    client.query_one(query, &[&payload]).expect(payload).get(0)
}

#[test]
fn policies_continue_where_they_were() {
    // No process handles events, expired leases or old rows, so that the dump contains unfinished states.
    let source = Cluster::start_with(
        "dump-policies",
        &Settings { preload: true, extra: "queue.worker_enabled = off" },
    );
    let mut client = source.connect();
    client
        .batch_execute(
            "CREATE EXTENSION queue_ext;
             SELECT queue.create('keyed', '{\"key_ttl\": \"1 day\"}'), queue.create('ordered'), queue.create('linked'),
                    queue.create('fragile', '{\"max_attempts\": 1}'),
                    queue.create('limited', '{\"max_running\": 2, \"rate_limit\": 3, \"rate_period\": \"1 day\"}'),
                    queue.create('metered', '{\"group_rate_limit\": 3, \"rate_period\": \"1 day\"}');
             SELECT queue.push('keyed', '\"kept\"', key => 'kept');
             SELECT queue.complete(id, token) FROM queue.claim('1 day', 'keyed');
             SELECT queue.push('keyed', '\"live\"', key => 'live', key_ttl => '3 days', kind => 'letter', lease => '2 days',
                               timeout => '3 days', weight => 4, start_by => '2100-01-01');
             SELECT queue.push('keyed', '\"late\"', start_by => '2020-01-01');
             SELECT queue.push('ordered', to_jsonb('g' || n), group_key => 'g') FROM generate_series(1, 3) AS n;
             SELECT queue.push('ordered', to_jsonb('h' || n), group_key => 'h') FROM generate_series(1, 2) AS n;
             SELECT queue.claim('1 day', 'ordered');
             SELECT queue.push('limited', to_jsonb('l' || n)) FROM generate_series(1, 5) AS n;
             SELECT queue.claim('1 day', 'limited', 2);
             SELECT queue.push('metered', to_jsonb('m' || n), weight => n, group_key => 'm') FROM generate_series(1, 3) AS n;
             SELECT queue.claim('1 day', 'metered')",
        )
        .expect("work");
    let mut push = |queue: &str, payload: &str, after: &[i64]| -> i64 {
        let query = "SELECT queue.push($1, to_jsonb($2::text), after => nullif($3::bigint[], '{}'))";
        client.query_one(query, &[&queue, &payload, &after]).expect("push").get(0)
    };
    let bake = push("linked", "bake", &[]);
    let whip = push("linked", "whip", &[]);
    let serve = push("linked", "serve", &[bake, whip]);
    push("linked", "wash", &[serve]);
    // Its worker is gone; dependent tasks have to learn of its end.
    let vase = push("fragile", "vase", &[]);
    push("linked", "admire", &[vase]);
    // It has completed, and its event was not processed yet.
    let shop = push("fragile", "shop", &[]);
    push("linked", "cook", &[shop]);
    client
        .batch_execute(
            "SELECT queue.claim('1 day', 'linked'), queue.claim('1 day', 'fragile', 2);
             SELECT queue.complete(id, token) FROM queue.tasks WHERE payload = '\"shop\"';
             UPDATE queue.tasks SET lease_until = now() WHERE payload = '\"vase\"'",
        )
        .expect("claim");
    // Tasks that wait for an event, with a timeout and without, and for another task.
    let suspend = format!(
        "SELECT queue.create('flows'), queue.push('flows', '\"ship\"'), queue.push('flows', '\"send\"'),
                queue.push('flows', '\"join\"');
         SELECT queue.step(id, token, 'first', payload), queue.await_event(id, token, 'paid') FROM queue.claim('1 day', 'flows');
         SELECT count(*) FROM queue.claim('1 day', 'flows') AS c, LATERAL queue.await_event(c.id, c.token, 'paid', '1 day');
         SELECT count(*) FROM queue.claim('1 day', 'flows') AS c, LATERAL queue.await_task(c.id, c.token, {bake}, '1 day');
         SELECT queue.emit('flows', 'early', '7')"
    );
    client.batch_execute(&suspend).expect("suspend");

    restore(&source, "dump-policies", "", |target, way| {
        let mut client = target.connect();
        // Keys: of a finished task, for the key_ttl of its queue, and of a live one, with its own key_ttl.
        for key in ["kept", "live"] {
            let pushed = format!("SELECT queue.push('keyed', key => '{key}', on_duplicate => 'error')");
            let error = client.batch_execute(&pushed).expect_err(way);
            assert_eq!(error.code().map(|code| code.code()), Some("QX004"), "{way}, {key}");
        }
        assert_eq!(await_claim(&mut client, "keyed"), ["live"], "{way}");
        // Its kind, its lease, its timeout its weight and its start deadline.
        let own = "SELECT (kind, lease, timeout, weight, start_by = '2100-01-01')::text FROM queue.tasks WHERE payload = '\"live\"'";
        assert_eq!(
            client.query_one(own, &[]).expect("the task").get::<_, String>(0),
            "(letter,\"2 days\",\"3 days\",4,t)",
            "{way}"
        );
        eventually("the late one ends", SOON, || {
            let late = "SELECT count(*) FROM queue.dead_letters WHERE payload = '\"late\"' AND start_by = '2020-01-01'";
            client.query_one(late, &[]).expect("count").get::<_, i64>(0) == 1
        });
        complete(&mut client, "live");
        let held =
            "SELECT expires_at > now() + interval '2 days' FROM queue_internal.keys WHERE key = 'live'";
        assert!(client.query_one(held, &[]).expect("the key").get::<_, bool>(0), "{way}");

        // Groups: behind a running head they wait, and one that was next is next.
        assert_eq!(await_claim(&mut client, "ordered"), ["h1"], "{way}");
        complete(&mut client, "g1");
        assert_eq!(await_claim(&mut client, "ordered"), ["g2"], "{way}");
        complete(&mut client, "h1");
        assert_eq!(await_claim(&mut client, "ordered"), ["h2"], "{way}");

        // Limits: two slots, and three starts a day.
        assert!(claim(&mut client, "limited").is_empty(), "{way}");
        complete(&mut client, "l1");
        assert_eq!(await_claim(&mut client, "limited"), ["l3"], "{way}");
        complete(&mut client, "l2");
        assert!(claim(&mut client, "limited").is_empty(), "{way}");

        // The rate of a group: three a day, of which the first task took one and the second takes two.
        complete(&mut client, "m1");
        assert_eq!(await_claim(&mut client, "metered"), ["m2"], "{way}");
        complete(&mut client, "m2");
        assert!(claim(&mut client, "metered").is_empty(), "{way}");

        // Dependencies: those in flight, queued, lost and done at the time of the dump.
        eventually("the worker has settled what was lost", SOON, || {
            state(&mut client, "vase") == "failed" && state(&mut client, "admire") == "cancelled"
        });
        eventually("the worker has settled what nobody had told", SOON, || {
            state(&mut client, "cook") == "queued"
        });
        // A task that was just committed can be visible a moment before it can be claimed.
        let mut claimed = Vec::new();
        eventually("both that wait no more are claimed", SOON, || {
            claimed.extend(claim(&mut client, "linked"));
            claimed.len() == 2
        });
        assert_eq!(claimed, ["whip", "cook"], "{way}");
        complete(&mut client, "bake");
        assert!(claim(&mut client, "linked").is_empty(), "{way}");
        complete(&mut client, "whip");
        assert_eq!(await_claim(&mut client, "linked"), ["serve"], "{way}");
        assert_eq!(state(&mut client, "wash"), "waiting", "{way}");
        complete(&mut client, "serve");
        assert_eq!(await_claim(&mut client, "linked"), ["wash"], "{way}");

        // Steps and events.
        assert_eq!(await_claim(&mut client, "flows"), ["join"], "{way}");
        client.batch_execute("SELECT queue.emit('flows', 'paid', '5')").expect("emit");
        let mut woken = Vec::new();
        eventually("both are woken", SOON, || {
            woken.extend(claim(&mut client, "flows"));
            woken.len() == 2
        });
        let answers =
            "SELECT string_agg(concat_ws(' ', t.payload, a.payload, e.payload, s.value), ', ' ORDER BY t.id)
                       FROM queue.tasks AS t LEFT JOIN LATERAL queue.steps(t.id) AS s ON s.name = 'first',
                            LATERAL queue.await_event(t.id, t.token, 'paid') AS a,
                            LATERAL queue.await_event(t.id, t.token, 'early') AS e
                       WHERE t.queue = 'flows' AND t.payload <> '\"join\"'";
        let answers: String = client.query_one(answers, &[]).expect("answers").get(0);
        assert_eq!(answers, "\"ship\" 5 7 \"ship\", \"send\" 5 7", "{way}");
    });
}

/// A database with the extension or without, on a server where the roles are.
fn database(target: &Cluster, name: &str, statements: &str) -> Client {
    target.connect().batch_execute(&format!("CREATE DATABASE {name}")).expect("a database");
    let mut client = target.connect_to(name);
    client.batch_execute(statements).expect(statements);
    client
}

#[test]
fn a_dump_in_parts_is_the_queue_as_it_was() {
    let mut source = Cluster::start("dump-parts-source");
    source.await_worker("postgres");
    estate::fill(&mut source.connect(), 500);
    let (everything, rows) = (estate::everything(&mut source.connect()), estate::rows(&mut source.connect()));
    let settings = Settings { preload: true, extra: "queue.sweep_interval = '1s'" };
    let target = Cluster::start_with("dump-parts-target", &settings);
    target.connect().batch_execute("CREATE ROLE web").expect("a role is not part of a dump");
    let [from, to] = [&source, &target].map(|cluster| cluster.folder().to_str().expect("a path").to_owned());
    let dump = |how: &[&str]| {
        let file = format!("{from}/part.dump");
        source.run(
            "pg_dump",
            &[&["-h", &from, "-U", "postgres", "-Fc", "-f", &file, "postgres"], how].concat(),
        );
        file
    };
    let restore = |database: &str, file: &str| {
        target.run("pg_restore", &["--exit-on-error", "-h", &to, "-U", "postgres", "-d", database, file]);
    };
    const EXTENSION: &str = "CREATE EXTENSION queue_ext";

    // Only the extension and its schemas. The schemas without the extension have next to nothing: that has to be known.
    let mut client = database(&target, "schemas", "");
    restore("schemas", &dump(&["-e", "queue_ext", "-n", "queue", "-n", "queue_internal"]));
    assert_eq!(estate::everything(&mut client), everything);
    estate::goes_on(&mut client);
    estate::worker_goes_on(&mut client);
    let mut client = database(&target, "nothing", EXTENSION);
    restore("nothing", &dump(&["-n", "queue", "-n", "queue_internal"]));
    let tasks: i64 = client.query_one("SELECT count(*) FROM queue.tasks", &[]).expect("count").get(0);
    assert_eq!(tasks, 0);

    // First the schema, which is a queue without tasks; then the data.
    let mut client = database(&target, "halves", "");
    restore("halves", &dump(&["--schema-only"]));
    let empty = estate::rows(&mut client);
    assert_eq!(empty.len(), 1, "{empty:?}");
    restore("halves", &dump(&["--data-only"]));
    assert_eq!(estate::everything(&mut client), everything);
    estate::goes_on(&mut client);

    // The data alone, into a database that has the extension; it has no partitions for the days yet.
    let mut client = database(&target, "data", EXTENSION);
    restore("data", &dump(&["--data-only", "--load-via-partition-root"]));
    assert_eq!(estate::rows(&mut client), rows);
    estate::goes_on(&mut client);
}

/// A dump has the privileges of roles, and their rights as rows of queue.rights, which each function checks.
#[test]
fn a_dump_whose_rights_cannot_all_be_restored_opens_no_queue() {
    let source = Cluster::start("dump-rights-source");
    let mut client = source.connect();
    client
        .batch_execute(
            "SELECT queue.create('a'), queue.create('b'); SELECT queue.push('a'), queue.push('b');
             CREATE ROLE one LOGIN; CREATE ROLE two LOGIN;
             SELECT queue.grant_operator('one', 'a'); SELECT queue.grant_operator('two', 'b')",
        )
        .expect("rights");
    let target = Cluster::start_with("dump-rights-target", &Settings::default());
    target.connect().batch_execute("CREATE ROLE one LOGIN").expect("a role is not part of a dump");
    let [from, to] = [&source, &target].map(|cluster| cluster.folder().to_str().expect("a path").to_owned());
    let restored = |database: &str, how: &[&str]| {
        let file = format!("{from}/rights.sql");
        source.run("pg_dump", &[&["-h", &from, "-U", "postgres", "-f", &file, "postgres"], how].concat());
        let owner = self::database(&target, database, "");
        target.run("psql", &["-X", "-q", "-h", &to, "-U", "postgres", "-d", database, "-f", &file]);
        let config = target.config(database).user("one").to_owned();
        (owner, config.connect(postgres::NoTls).expect("connect"))
    };
    let number = |client: &mut Client, query: &str| -> Option<i64> {
        client.query_one(query, &[]).ok().map(|row| row.get(0))
    };
    const SEEN: &str = "SELECT count(*) FROM queue.tasks";
    const CLAIMED: &str = "SELECT count(*) FROM queue.claim('1 hour', 'b')";

    // A role is missing there: no row can be restored. Privileges without a right show nothing.
    let (mut owner, mut one) = restored("missing", &[]);
    assert_eq!(number(&mut owner, SEEN), Some(2));
    assert_eq!(number(&mut one, SEEN), Some(0));

    // A role was dropped before: its right is left out, and the others hold, with the privileges that they need.
    client.batch_execute("DROP OWNED BY two; DROP ROLE two").expect("drop");
    let (mut owner, mut one) = restored("dropped", &[]);
    assert_eq!(number(&mut owner, "SELECT count(*) FROM queue.rights"), Some(1));
    assert_eq!(number(&mut one, SEEN), Some(1));
    assert_eq!(number(&mut one, "SELECT queue.push('a')"), Some(3));
    assert_eq!(number(&mut one, CLAIMED), None);

    // Privileges follow the rows that are restored.
    let (_, mut one) = restored("unprivileged", &["--no-privileges"]);
    assert_eq!(number(&mut one, SEEN), Some(1));
    assert_eq!(number(&mut one, "SELECT queue.push('a')"), Some(3));

    // A schema without data: no role has a right until rights are granted.
    let (mut owner, mut one) = restored("schema", &["--schema-only"]);
    owner.batch_execute("SELECT queue.create('a'), queue.create('b'); SELECT queue.push('b')").expect("push");
    assert_eq!(number(&mut one, SEEN), Some(0));
    assert_eq!(number(&mut one, CLAIMED), None);
    owner.batch_execute("SELECT queue.grant_operator('one', 'b')").expect("grant");
    assert_eq!(number(&mut one, SEEN), Some(1));
    assert_eq!(number(&mut one, CLAIMED), Some(1));
}

#[test]
fn a_dump_under_load_has_every_task_pushed_before_it() {
    let mut source = Cluster::start("dump-load-source");
    source.await_worker("postgres");
    let mut client = source.connect();
    estate::fill(&mut client, 500);
    let stop = AtomicBool::new(false);
    let [folder, plain] =
        ["directory", "plain.sql"].map(|name| format!("{}/{name}", source.folder().display()));
    let host = source.folder().to_str().expect("a path");
    let connection = ["-h", host, "-U", "postgres", "-d", "postgres", "--serializable-deferrable"];
    let committed = |client: &mut Client| -> Vec<i64> {
        let ids = "SELECT id FROM queue.all_tasks WHERE queue = 'default' ORDER BY 1";
        client.query(ids, &[]).expect("ids").iter().map(|row| row.get(0)).collect()
    };
    let before = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = source.connect();
                while !stop.load(Ordering::Relaxed) {
                    let work = "SELECT queue.push('default'); SELECT queue.complete(id, token) FROM queue.claim('1 minute')";
                    client.batch_execute(work).expect("work");
                }
            });
        }
        let before = committed(&mut client);
        eventually("it is under load", SOON, || committed(&mut client).len() > before.len() + 100);
        let before = committed(&mut client);
        source.run("pg_dump", &[&connection[..], &["-Fd", "-j", "2", "-f", &folder]].concat());
        source.run("pg_dump", &[&connection[..], &["-f", &plain]].concat());
        stop.store(true, Ordering::Relaxed);
        before
    });
    let target = Cluster::start_with("dump-load-target", &Settings::default());
    target.connect().batch_execute("CREATE ROLE web").expect("a role is not part of a dump");
    let host = target.folder().to_str().expect("a path");
    for (name, program, arguments) in [
        ("directory", "pg_restore", vec!["--exit-on-error", "-j", "3", &folder]),
        ("plain", "psql", vec!["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", &plain]),
    ] {
        let mut client = database(&target, name, "");
        target.run(program, &[&arguments[..], &["-h", host, "-U", "postgres", "-d", name]].concat());
        let restored = committed(&mut client);
        assert!(before.iter().all(|id| restored.binary_search(id).is_ok()), "{name}: a task is missing");
        assert!(restored.windows(2).all(|pair| pair[0] < pair[1]), "{name}: a task is there twice");
        // The running tasks belong to workers that are gone.
        let running =
            "UPDATE queue.tasks SET lease_until = now() WHERE state = 'running' AND payload <> '\"running\"'";
        client.execute(running, &[]).expect("leases");
        client
            .batch_execute("DELETE FROM queue.tasks WHERE queue = 'default' AND payload = '{}'")
            .expect("clear");
        estate::goes_on(&mut client);
    }
}

#[test]
fn a_sweep_during_a_restore_ends_no_task_too_early() {
    for edition in [Edition::NoPreload, Edition::SqlOnly] {
        let cluster = edition.cluster("dump-sweep", Worker::Off);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        let mut loader = cluster.connect();
        // A task whose predecessor has ended, and the outcome is in another table.
        let load = "SELECT queue.create('q'); SET check_function_bodies = off; SELECT pg_catalog.set_config('search_path', '', false);
             INSERT INTO queue.tasks (id, queue, state, admission) VALUES (1002, 'q', 'waiting', 2);
             INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure) VALUES (1001, 1002, 'cancel')";
        loader.batch_execute(load).expect("load");
        for (what, state) in [
            ("SELECT 1", "waiting"),
            ("INSERT INTO queue_internal.outcomes (task_id, outcome) VALUES (1001, 'completed')", "queued"),
        ] {
            loader.batch_execute(what).expect(what);
            client.batch_execute("CALL queue.maintain()").expect("maintain");
            client.batch_execute("CALL queue.maintain()").expect("maintain again");
            let found = client.query_one("SELECT min(state) FROM queue.all_tasks WHERE id = 1002", &[]);
            assert_eq!(found.expect("look").get::<_, Option<&str>>(0), Some(state), "{}", edition.name());
        }
    }
}

#[test]
fn a_batch_that_is_restored_in_any_order_calls_back_only_when_it_is_complete() {
    for edition in [Edition::NoPreload, Edition::SqlOnly] {
        let cluster = edition.cluster("dump-batch", Worker::Off);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        let mut loader = cluster.connect();
        let load = "SELECT queue.create('q'); SET check_function_bodies = off; SELECT pg_catalog.set_config('search_path', '', false);
             INSERT INTO queue.tasks (id, queue, state, admission) VALUES (1003, 'q', 'waiting', 2);
             INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure, outcome)
             VALUES (1001, 1003, 'batch', 'completed')";
        loader.batch_execute(load).expect("load");
        for (what, expected) in [
            ("SELECT 1", "waiting"),
            (
                "INSERT INTO queue_internal.batches (task_id, sealed_at, members) VALUES (1003, pg_catalog.now(), 2)",
                "waiting",
            ),
            (
                "INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure, outcome)
                 VALUES (1002, 1003, 'batch', 'failed')",
                "queued {\"batch\": {\"failed\": 1, \"cancelled\": 0, \"completed\": 1}}",
            ),
        ] {
            loader.batch_execute(what).expect(what);
            client.batch_execute("CALL queue.maintain()").expect("maintain");
            client.batch_execute("CALL queue.maintain()").expect("maintain again");
            let found = client
                .query_one("SELECT concat_ws(' ', state, headers) FROM queue.all_tasks WHERE id = 1003", &[])
                .expect("look");
            assert_eq!(found.get::<_, &str>(0), expected, "{}", edition.name());
        }
    }
}
