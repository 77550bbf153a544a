//! Every function does through the router what it does on one server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use queue_ext_tests::{WOKEN, eventually, stalls};

use super::*;

pub fn reach_the_shard_that_has_the_task(sharded: &Sharded) {
    let mut client = sharded.router.connect();
    spread(&mut client);
    one_home(&mut client);
    ends(&mut client);
    many(&mut client);
    all_shards(&mut client);
    in_turn(&mut client);
    rights(sharded);
    wait(sharded);
    cost(sharded);
    one_more(&mut client, &sharded.shards[2]);
    script(&sharded.shards[1], "shard.sql", &["-vshard=1"]);
    let id = number(&mut sharded.shards[1].connect(), "SELECT queue.push('default')");
    assert!(shard_of(id) == 1 && id % 10_000_000_000_000 > 100, "shard.sql again changes nothing: {id}");
    run(&mut sharded.shards[2].connect(), "SELECT setval('queue.tasks_id_seq', 77)");
    eventually_refused(&mut client, "SELECT queue.push('default')", "55000");
    run(&mut sharded.shards[2].connect(), "SELECT setval('queue.tasks_id_seq', 20000001000000)");
}

/// Tasks without a key go everywhere, and claims find them everywhere.
fn spread(client: &mut Client) {
    let mut pushed: BTreeSet<i64> = BTreeSet::new();
    for row in client
        .query("SELECT queue.push('default', to_jsonb(n)) FROM generate_series(1, 300) AS n", &[])
        .expect("push")
    {
        pushed.insert(row.get(0));
    }
    assert_eq!(pushed.len(), 300, "ids are unique");
    for shard in 0..SHARDS {
        let there = pushed.iter().filter(|id| shard_of(**id) == shard).count();
        assert!(there > 50, "{there} tasks on shard {shard}");
    }
    let queued = client.query_one("SELECT queued, shards_away FROM queue.stats", &[]).expect("queue.stats");
    assert_eq!((queued.get::<_, i64>(0), queued.get::<_, i64>(1)), (300, 0));
    let many = client
        .query("SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[10]))", &[])
        .expect("push_many");
    let shards: BTreeSet<usize> = many.iter().map(|row| shard_of(row.get(0))).collect();
    assert_eq!((many.len(), shards.len()), (10, 1), "push_many is for one shard");
    pushed.extend(many.iter().map(|row| row.get::<_, i64>(0)));
    let mut claimed: BTreeSet<i64> = BTreeSet::new();
    loop {
        let rows =
            client.query("SELECT * FROM queue.claim(max_tasks => 7, worker => 'w')", &[]).expect("claim");
        if rows.is_empty() {
            break;
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
        let tokens: Vec<i64> = rows.iter().map(|row| row.get("token")).collect();
        assert_eq!(rows[0].get::<_, &str>("queue"), "default");
        assert!(ids.iter().all(|id| claimed.insert(*id)), "a task was claimed twice");
        let accepted = client
            .query("SELECT * FROM queue.complete_many($1, $2)", &[&ids, &tokens])
            .expect("complete_many");
        assert_eq!(accepted.len(), ids.len());
        assert!(
            client
                .query("SELECT * FROM queue.complete_many($1, $2)", &[&ids, &tokens])
                .expect("stale")
                .is_empty()
        );
    }
    assert_eq!(claimed, pushed);
    assert_eq!(number(client, "SELECT sum(completed_last_hour)::bigint FROM queue.shard_stats"), 310);
}

/// Tasks of one key or group are on one shard.
fn one_home(client: &mut Client) {
    for key in 1..=20 {
        let push = format!("SELECT queue.push('default', key => 'k{key}')");
        assert_eq!(number(client, &push), number(client, &push), "a key is taken once, on all shards");
    }
    let homes = number(client, "SELECT count(*) FROM queue.shard_stats WHERE queued > 0");
    assert_eq!(homes, SHARDS as i64, "keys are spread");
    for _ in 0..10 {
        run(client, "SELECT queue.push('default', group_key => 'g', priority => -1)");
    }
    let first = client.query("SELECT id FROM queue.claim()", &[]).expect("claim");
    let home = shard_of(first[0].get(0));
    let busy =
        "SELECT count(*) FROM queue.claim(queue => 'default', max_tasks => 100) AS c WHERE c.group_key = 'g'";
    for _ in 0..SHARDS {
        assert!(number(client, busy) <= 1, "one task of a group runs");
    }
    let blocked = client.query("SELECT shard FROM queue.shard_stats WHERE blocked > 0", &[]).expect("stats");
    assert_eq!(blocked.len(), 1, "a group is on one shard: {home}");
    assert_eq!(refused(client, "SELECT queue.push('default', key => 'a', group_key => 'b')"), "22023");
    // Predecessors: where they are, and only there.
    let of = |client: &mut Client, shard: usize| loop {
        let id = number(client, "SELECT queue.push('default')");
        if shard_of(id) == shard {
            return id;
        }
    };
    let (a, b) = (of(client, 1), of(client, 2));
    let next = number(client, &format!("SELECT queue.push('default', after => ARRAY[{a}]::bigint[])"));
    assert_eq!(shard_of(next), 1);
    assert_eq!(
        refused(client, &format!("SELECT queue.push('default', after => ARRAY[{a}, {b}]::bigint[])")),
        "22023"
    );
}

/// The ends that a task can take, by its id alone.
fn ends(client: &mut Client) {
    run(client, "SELECT queue.create('ends', '{\"backoff\": {\"base\": \"0\"}}')");
    assert_eq!(refused(client, "SELECT queue.create('ends')"), "42710");
    let claim = |client: &mut Client| -> (i64, i64) {
        let row = client.query_one("SELECT id, token FROM queue.claim(queue => 'ends')", &[]).expect("claim");
        (row.get(0), row.get(1))
    };
    for shard in 0..SHARDS {
        let pushed = loop {
            let id = number(client, "SELECT queue.push('ends', '{\"a\": 1}', headers => '{\"b\": 2}')");
            if shard_of(id) == shard {
                break id;
            }
            run(client, &format!("SELECT queue.cancel({id})"));
        };
        let (id, token) = claim(client);
        assert_eq!(id, pushed);
        run(client, &format!("SELECT * FROM queue.extend({id}, {token}, '1 minute', '{{\"done\": 1}}')"));
        run(client, &format!("SELECT queue.release({id}, {token})"));
        assert_eq!(refused(client, &format!("SELECT queue.complete({id}, {token})")), "QX001");
        let (id, token) = claim(client);
        let state = client.query_one("SELECT queue.fail($1, $2, 'no')", &[&id, &token]).expect("fail");
        assert_eq!(state.get::<_, &str>(0), "queued");
        let (id, token) = claim(client);
        run(
            client,
            &format!("SELECT queue.fail({id}, {token}, 'no', permanent => true); SELECT queue.retry({id})"),
        );
        let (id, token) = claim(client);
        run(client, &format!("SELECT queue.cancel({id})"));
        assert!(
            client
                .query_one("SELECT cancel_requested FROM queue.extend($1, $2)", &[&id, &token])
                .expect("extend")
                .get::<_, bool>(0)
        );
        run(client, &format!("SELECT queue.confirm_cancel({id}, {token})"));
        let task = client
            .query_one(
                "SELECT state, payload::text, headers::text, progress::text FROM queue.get($1)",
                &[&id],
            )
            .expect("get");
        let columns: Vec<&str> = (0..4).map(|n| task.get(n)).collect();
        assert_eq!(columns, ["cancelled", "{\"a\": 1}", "{\"b\": 2}", "{\"done\": 1}"]);
        assert_eq!(refused(client, &format!("SELECT queue.get({})", id + 1_000_000)), "QX003");
    }
    // Its own shard has nothing more: the next task comes from another.
    for _ in 0..20 {
        run(client, "SELECT queue.push('ends')");
    }
    let (mut id, mut token) = claim(client);
    for left in (0..20).rev() {
        let next = client
            .query_opt(
                "SELECT id, token FROM queue.complete_and_claim($1, $2, queue => 'ends')",
                &[&id, &token],
            )
            .expect("complete_and_claim");
        assert_eq!(next.is_some(), left > 0, "{left} are left");
        next.iter().for_each(|row| (id, token) = (row.get(0), row.get(1)));
    }
}

/// The functions for many tasks, and those for a key.
fn many(client: &mut Client) {
    run(client, "SELECT queue.create('many', '{\"max_attempts\": 1}')");
    let text = |client: &mut Client, query: &str| -> Option<String> {
        client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
    };
    let try_push = "SELECT string_agg(pushed::text, ',') FROM queue.try_push('many', key => 'once')";
    assert_eq!(text(client, try_push).as_deref(), Some("true"));
    assert_eq!(text(client, try_push).as_deref(), Some("false"));
    assert_eq!(text(client, "SELECT queue.cancel('many', 'once')").as_deref(), Some("cancelled"));
    assert_eq!(text(client, "SELECT queue.cancel('many', 'once')"), None);
    let ended = number(client, "SELECT id FROM queue.try_push('many')");
    run(client, &format!("SELECT queue.cancel({ended})"));
    let again = number(client, &format!("SELECT queue.run_again({ended})"));
    assert!(again > ended && shard_of(again) == shard_of(ended));
    run(client, &format!("SELECT queue.cancel({again})"));

    // All of push_tasks is for one shard.
    let payloads = "SELECT string_agg((queue.get(p.id)).payload::text, ',' ORDER BY p.nth)
                    FROM queue.push_tasks('[{\"queue\": \"many\", \"payload\": 1, \"priority\": 5},
                                            {\"queue\": \"many\", \"payload\": 2, \"key\": \"b\"},
                                            {\"queue\": \"many\", \"payload\": 3, \"key\": \"b\"}]')
                         WITH ORDINALITY AS p (id, nth)";
    assert_eq!(text(client, payloads).as_deref(), Some("1,2,2"));
    let keys: Vec<String> = (0..20).map(|n| format!("{{\"queue\": \"many\", \"key\": \"k{n}\"}}")).collect();
    assert_eq!(refused(client, &format!("SELECT queue.push_tasks('[{}]')", keys.join(","))), "22023");
    assert_eq!(refused(client, "SELECT queue.push_tasks('{}')"), "22023");
    assert_eq!(refused(client, "SELECT queue.push_tasks('[{\"queue\": \"many\", \"key\": 1}]')"), "22023");
    let left = "SELECT sum(queued + running)::bigint FROM queue.stats WHERE queue = 'many'";
    assert_eq!(number(client, left), 2, "nothing was pushed");

    run(client, "SELECT queue.push('many') FROM generate_series(1, 58)");
    let mut held: (Vec<i64>, Vec<i64>) = Default::default();
    while held.0.len() < 60 {
        for row in client
            .query("SELECT id, token FROM queue.claim(queue => 'many', max_tasks => 60)", &[])
            .expect("claim")
        {
            held.0.push(row.get(0));
            held.1.push(row.get(1));
        }
    }
    let shards: BTreeSet<usize> = held.0.iter().map(|id| shard_of(*id)).collect();
    assert_eq!(shards.len(), SHARDS);
    let mut count = |query: &str, ids: &[i64], tokens: &[i64]| {
        client.query(query, &[&ids, &tokens]).unwrap_or_else(|error| panic!("{query}: {error:?}")).len()
    };
    let (ids, tokens) = &held;
    let extend = "SELECT * FROM queue.extend_many($1, $2, '1 hour', array_fill('1'::jsonb, ARRAY[60]))
                  WHERE NOT cancel_requested AND lease_until > now() + interval '59 minutes'";
    assert_eq!(count(extend, ids, tokens), 60);
    let release = "SELECT queue.release_many($1, $2, '1 day')";
    assert_eq!(count(release, &ids[..20], &tokens[..20]), 20);
    assert_eq!(count(release, &ids[..20], &tokens[..20]), 0, "the tokens are stale");
    let fail =
        "SELECT * FROM queue.fail_many($1, $2, array_fill('no'::text, ARRAY[20])) WHERE state = 'failed'";
    assert_eq!(count(fail, &ids[20..40], &tokens[20..40]), 20);
    let complete = "SELECT * FROM queue.complete_many_and_claim($1, $2, queue => 'many', max_tasks => 5)";
    assert_eq!(count(complete, &ids[40..], &tokens[40..]), 0, "all others are delayed");
    let ends =
        "SELECT sum(completed_last_hour)::text || ' ' || sum(failed_last_hour) || ' ' || sum(scheduled)
                FROM queue.stats WHERE queue = 'many'";
    assert_eq!(text(client, ends).as_deref(), Some("20 20 20"));

    let queues = number(client, "SELECT queue.pause_all()");
    assert!(queues > 2);
    assert_eq!(number(client, "SELECT count(*) FROM queue.shard_stats WHERE NOT paused"), 0);
    assert_eq!(number(client, "SELECT queue.resume_all()"), queues);
}

/// Calls for a queue go to all shards.
fn all_shards(client: &mut Client) {
    assert_eq!(number(client, "SELECT count(*) FROM queue.shard_stats WHERE queue = 'ends'"), SHARDS as i64);
    run(client, "SELECT queue.configure('ends', '{\"max_attempts\": 1}'); SELECT queue.pause('ends')");
    run(client, "SELECT queue.push('ends') FROM generate_series(1, 9)");
    assert_eq!(number(client, "SELECT count(*) FROM queue.claim(queue => 'ends')"), 0);
    run(client, "SELECT queue.resume('ends')");
    for _ in 0..9 {
        let row = client
            .query_one("SELECT queue.fail(id, token, 'no') FROM queue.claim(queue => 'ends')", &[])
            .expect("fail");
        assert_eq!(row.get::<_, &str>(0), "failed");
    }
    for (query, code) in [
        ("SELECT queue.push('nowhere')", "QX002"),
        ("SELECT * FROM queue.claim(queue => 'nowhere')", "QX002"),
        ("SELECT * FROM queue.claim(max_tasks => 0)", "22023"),
        ("SELECT queue.push('default', NULL)", "22004"),
        ("SELECT queue.complete(NULL, 1)", "22004"),
        ("SELECT queue.complete(-5, 1)", "22023"),
        ("CALL queue.wait('nowhere')", "QX002"),
    ] {
        assert_eq!(refused(client, query), code, "{query}");
    }
}

/// A shard that was found away is left alone for a while, as long as there are others.
fn in_turn(client: &mut Client) {
    let shards = |client: &mut Client| -> BTreeSet<i32> {
        let rows = client.query("SELECT queue_shard.in_turn()", &[]).expect("in_turn");
        rows.iter().map(|row| row.get(0)).collect()
    };
    run(client, "SELECT queue_shard.note_away(0)");
    assert_eq!(shards(client), BTreeSet::from([1, 2]));
    run(client, "SELECT queue_shard.note_away(1), queue_shard.note_away(2)");
    assert_eq!(shards(client), BTreeSet::from([0, 1, 2]), "all are away");
    run(client, "SELECT set_config('queue_shard.away_1', (now() - interval '1 second')::text, false)");
    assert_eq!(shards(client), BTreeSet::from([1]));
    run(client, "RESET ALL");
    assert_eq!(shards(client).len(), SHARDS);
}

/// Through the router a role has the rights that it has on the shards.
fn rights(sharded: &Sharded) {
    for shard in &sharded.shards {
        run(
            &mut shard.connect(),
            "CREATE ROLE pusher LOGIN; SELECT queue.grant_producer('pusher', 'default')",
        );
    }
    run(&mut sharded.router.connect(), "CREATE ROLE pusher LOGIN");
    let mut pusher =
        sharded.router.config("postgres").user("pusher").connect(postgres::NoTls).expect("connect");
    run(&mut pusher, "SELECT queue.push('default')");
    assert_eq!(refused(&mut pusher, "SELECT queue.push('ends')"), "42501");
    assert_eq!(refused(&mut pusher, "SELECT * FROM queue.claim()"), "42501");
}

/// A worker that waits at the router hears of a push on whichever shard.
fn wait(sharded: &Sharded) {
    let mut client = sharded.router.connect();
    run(&mut client, "SELECT queue.create('quiet')");
    let started = Instant::now();
    let ready = |client: &mut Client, timeout: &str| -> bool {
        client.query_one(&format!("CALL queue.wait('quiet', '{timeout}')"), &[]).expect("wait").get(0)
    };
    assert!(!ready(&mut client, "50 ms"));
    assert!(started.elapsed() >= Duration::from_millis(50));
    for shard in &sharded.shards {
        let mut waiter = sharded.router.connect();
        let thread = std::thread::spawn(move || {
            let row = waiter.query_one("CALL queue.wait('quiet', '20 seconds')", &[]).expect("wait");
            (row.get::<_, bool>(0), Instant::now())
        });
        let mut watch = sharded.router.connect();
        eventually("it waits", SOON, || {
            number(
                &mut watch,
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%' AND state = 'active'",
            ) == 1
        });
        run(&mut shard.connect(), "SELECT queue.push('quiet')");
        let pushed = Instant::now();
        let (ready, told) = thread.join().expect("join");
        assert!(ready && stalls::took(pushed, told) < WOKEN, "{:?}", told.duration_since(pushed));
        run(&mut shard.connect(), "SELECT queue.complete(id, token) FROM queue.claim(queue => 'quiet')");
    }
}

/// The cost of a call through the router relative to a direct call.
fn cost(sharded: &Sharded) {
    const CALLS: usize = 200;
    for shard in &sharded.shards {
        run(
            &mut shard.connect(),
            "SELECT queue.push_many('quiet', array_fill('{}'::jsonb, ARRAY[1000])); ANALYZE queue.tasks",
        );
    }
    let time = |client: &mut Client| {
        let mut times: Vec<Duration> = (0..CALLS)
            .map(|_| {
                let started = Instant::now();
                run(client, "SELECT queue.push('quiet')");
                run(client, "SELECT queue.complete(id, token) FROM queue.claim(queue => 'quiet')");
                started.elapsed()
            })
            .collect();
        times.sort();
        times[CALLS / 2]
    };
    let direct = time(&mut sharded.shards[0].connect());
    let routed = time(&mut sharded.router.connect());
    let ratio = routed.as_secs_f64() / direct.as_secs_f64();
    println!("push, claim, complete: {direct:?} direct, {routed:?} through the router: {ratio:.1} times");
    assert!(ratio < 30.0, "{ratio}");
}

/// A shard can be named later, and takes part at once.
fn one_more(client: &mut Client, shard: &Cluster) {
    let add = format!(
        "ALTER SERVER queue_shards OPTIONS (ADD p2 'host={} dbname=postgres')",
        shard.folder().display()
    );
    run(client, "ALTER SERVER queue_shards OPTIONS (DROP p2)");
    let pushed = |client: &mut Client| shard_of(number(client, "SELECT queue.push('default')"));
    assert!((0..20).all(|_| pushed(client) < 2));
    run(client, &add);
    eventually("the new one is used", SOON, || pushed(client) == 2);
}

/// A push to a random shard meets a certain one soon.
fn eventually_refused(client: &mut Client, query: &str, code: &str) {
    let mut said = None;
    eventually("it is refused", SOON, || {
        said = client
            .simple_query(query)
            .err()
            .and_then(|error| error.code().map(|code| code.code().to_owned()));
        said.is_some()
    });
    assert_eq!(said.as_deref(), Some(code));
}
