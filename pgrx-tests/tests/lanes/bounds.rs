//! More than fits: queues, databases, tasks in one transaction.

use super::*;

#[test]
fn more_queues_than_lanes_are_still_served() {
    let cluster = with_settings("lanes-two", "queue.lanes = 2\nqueue.sweep_interval = '1h'");
    let mut client = cluster.connect();
    for n in 0..6 {
        run(&mut client, &format!("SELECT queue.create('q{n}')"));
    }
    for round in 0..3 {
        for n in 0..6 {
            let queue = format!("q{n}");
            let ids = push(&mut client, &queue, 5);
            run(&mut client, "BEGIN");
            assert_eq!(claim(&mut client, &queue, 3), ids[..3], "{queue} in round {round}");
            run(&mut client, "ROLLBACK");
            assert_eq!(claim(&mut client, &queue, 10), ids, "{queue} in round {round}");
        }
    }
    let stats = stats(&mut client);
    assert_eq!(stats["lanes"].as_object().map(serde_json::Map::len), Some(2), "{stats}");
    assert_eq!(stats["max_lanes"], 2);
    assert!(fallbacks(&mut client, "no_lane") >= 24, "{stats}");
}

#[test]
fn without_lanes_every_call_falls_back_to_sql() {
    let cluster = with_settings("lanes-none", "queue.lanes = 0");
    let mut client = cluster.connect();
    let ids = push(&mut client, "default", 3);
    assert_eq!(claim(&mut client, "default", 2), ids[..2]);
    run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running'");
    assert_eq!(claim(&mut client, "default", 2), ids[2..]);
    assert_eq!(served(&mut client), 0);
    assert!(fallbacks(&mut client, "not_loaded") >= 5);
}

#[test]
fn queues_of_the_same_name_in_two_databases_are_independent() {
    let mut cluster = with_settings("lanes-databases", "queue.lanes = 2\nqueue.sweep_interval = '1h'");
    let mut here = cluster.connect();
    run(&mut here, "CREATE DATABASE elsewhere");
    let mut there = cluster.connect_to("elsewhere");
    run(&mut there, "CREATE EXTENSION queue_ext");
    cluster.await_worker("elsewhere");
    let ids = push(&mut here, "default", 4);
    assert_eq!(claim(&mut there, "default", 1), NONE);
    let others = push(&mut there, "default", 2);
    assert_eq!(claim(&mut here, "default", 10), ids);
    assert_eq!(claim(&mut there, "default", 10), others);
    assert_eq!(stats(&mut here)["lanes"].as_object().map(serde_json::Map::len), Some(1));

    // A database that is gone leaves its lane to others.
    run(&mut here, "SELECT queue.create('second')");
    assert_eq!(claim(&mut here, "second", 1), NONE);
    assert_eq!(stats(&mut here)["lanes"]["second"], serde_json::Value::Null, "both lanes are taken");
    drop(there);
    run(&mut here, "DROP DATABASE elsewhere WITH (FORCE)");
    eventually("its lane is free", SOON, || {
        claim(&mut here, "second", 1);
        stats(&mut here)["lanes"]["second"] != serde_json::Value::Null
    });
}

#[test]
fn a_recreated_extension_starts_empty() {
    let mut cluster = cluster("lanes-recreated");
    let mut client = cluster.connect();
    let mut other = cluster.connect();
    for round in 0..5 {
        run(&mut client, "SELECT queue.push('default', delay => '1 hour')");
        let ids = push(&mut client, "default", 20);
        assert_eq!(claim(&mut other, "default", 3), ids[..3], "round {round}");
        run(&mut client, "DROP EXTENSION queue_ext; CREATE EXTENSION queue_ext");
        // The other session knew the old tables.
        assert_eq!(claim(&mut other, "default", 3), NONE);
        let ids = push(&mut client, "default", 2);
        assert_eq!(claim(&mut other, "default", 30), ids, "round {round}");
        assert_eq!(count(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'"), 0);
    }
    // And with a rollback.
    let ids = push(&mut client, "default", 1);
    run(&mut client, "BEGIN; DROP EXTENSION queue_ext; CREATE EXTENSION queue_ext");
    push(&mut client, "default", 5);
    assert_eq!(claim(&mut client, "default", 10).len(), 5);
    run(&mut client, "ROLLBACK");
    assert_eq!(claim(&mut other, "default", 10), ids);
    cluster.await_worker("postgres");
}

#[test]
fn a_hundred_thousand_tasks_of_one_transaction_are_all_claimed() {
    let cluster = cluster("lanes-many-tasks");
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    assert_eq!(claim(&mut other, "default", 1), NONE);
    wakes(&cluster, "default", "a large push", || {
        run(&mut one, "BEGIN; SELECT count(queue.push('default', priority => n % 3)) FROM generate_series(1, 50000) AS n;
                       SELECT count(*) FROM queue.push_many('default', array_fill('{}'::jsonb, ARRAY[50000])); COMMIT");
    });
    // A batch with more changes than a transaction can record, rolled back once.
    run(&mut one, "BEGIN");
    assert_eq!(claim(&mut one, "default", 5000).len(), 5000);
    assert_eq!(claim(&mut other, "default", 10).len(), 10, "others go on meanwhile");
    run(&mut one, "ROLLBACK");
    let mut found = 10;
    for batch in (1..).map(|n| 1000 + n * 100) {
        let claimed = claim(&mut other, "default", batch).len();
        found += claimed;
        if claimed < batch as usize {
            break;
        }
    }
    assert_eq!(found, 100_000, "fewer than asked for means that there are no more");
    assert_eq!(count(&mut one, "SELECT count(*) FROM queue.tasks WHERE state = 'queued'"), 0);
    // Their leases expire, too many for the lane: the claims find them.
    run(
        &mut one,
        "DELETE FROM queue.tasks WHERE id % 20 > 0;
         UPDATE queue.tasks SET lease_until = clock_timestamp() + '1 s'",
    );
    let mut back = 0;
    eventually("all are claimed again", SOON, || {
        back += claim(&mut other, "default", 1000).len();
        back == 5000
    });
}

#[test]
fn hundreds_of_queues_share_the_lanes() {
    let cluster = with_settings("lanes-many-queues", "queue.sweep_interval = '1h'\nqueue.lanes = 64");
    let mut client = cluster.connect();
    run(&mut client, "SELECT count(queue.create('q' || n)) FROM generate_series(1, 300) AS n");
    for _ in 0..2 {
        run(&mut client, "SELECT count(queue.push('q' || n % 300 + 1)) FROM generate_series(1, 600) AS n");
        let query = "SELECT count(*) FROM (SELECT (queue.claim('1 hour', 'q' || n, 10)).id FROM generate_series(1, 300) AS n) AS c";
        assert_eq!(count(&mut client, query), 600);
    }
    // One transaction with changes for more lanes than it can record one by one.
    run(
        &mut client,
        "BEGIN; SELECT count(queue.push('q' || n % 60 + 1)) FROM generate_series(1, 6000) AS n; COMMIT",
    );
    let query = "SELECT count(*) FROM (SELECT (queue.claim('1 hour', 'q' || n, 200)).id FROM generate_series(1, 60) AS n) AS c";
    // And one that rolls back.
    run(&mut client, "BEGIN");
    assert_eq!(count(&mut client, query), 6000);
    run(&mut client, "ROLLBACK");
    assert_eq!(count(&mut client, query), 6000);
}

#[test]
fn events_of_many_queues_in_one_transaction_have_no_other_queue_read_again() {
    let cluster = with_settings("lanes-events", "queue.sweep_interval = '1h'");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('other'); SELECT queue.create('q' || n) FROM generate_series(1, 20) AS n",
    );
    let ids = push(&mut client, "other", 2);
    assert_eq!(claim(&mut client, "other", 1), ids[..1]);
    let refills = |client: &mut Client| stats(client)["lanes"]["other"]["refills"].as_u64();
    let before = refills(&mut client);
    let group = "SELECT queue.push('q' || n, group_key => 'g') FROM generate_series(1, 20) AS n";
    run(&mut client, group);
    assert_eq!(claim(&mut client, "other", 1), ids[1..]);
    assert_eq!(claim(&mut client, "other", 1), NONE);
    assert_eq!(refills(&mut client), before);
    // The worker may be processing the event.
    let mut claim_each = || {
        for n in 1..=20 {
            eventually("a task is claimed", SOON, || claim(&mut client, &format!("q{n}"), 1).len() == 1);
        }
        run(&mut client, "SELECT queue.complete(id, token) FROM queue.tasks WHERE state = 'running'");
    };
    claim_each();
    // The lanes of all of them are there now.
    run(&mut cluster.connect(), group);
    claim_each();
}

#[test]
fn with_thousands_of_lanes_the_worker_comes_to_rest() {
    let settings = "queue.lanes = 3000\nqueue.sweep_interval = '1h'";
    let cluster = with_settings("lanes-thousands", settings);
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('q' || n), queue.push('q' || n) FROM generate_series(1, 3000) AS n",
    );
    run(
        &mut client,
        "SELECT count(*) FROM (SELECT queue.claim('1 hour', 'q' || n) FROM generate_series(1, 3000) AS n) AS c",
    );
    let lanes = stats(&mut client)["lanes"].as_object().map_or(0, serde_json::Map::len);
    assert!(lanes > 1000, "{lanes} lanes");
    // One lease makes the worker check all lanes.
    let id = push(&mut client, "q1", 1)[0];
    let claimed = count(&mut client, "SELECT id FROM queue.claim('100 ms', 'q1')");
    assert_eq!(claimed, id);
    let rounds = |client: &mut Client| stats(client)["worker"]["rounds"].as_i64().expect("rounds");
    eventually("the worker ends the lease", SOON, || {
        stats(&mut client)["worker"]["leases_reaped"].as_i64() > Some(0)
    });
    let mut before = rounds(&mut client);
    eventually("it has next to nothing to do for a second", SOON, || {
        std::thread::sleep(Duration::from_secs(1));
        let now = rounds(&mut client);
        let few = now - before < 10;
        before = now;
        few
    });
}

/// How often the table was read for a queue, and how many candidates its claims were offered.
fn readings(client: &mut Client, queue: &str) -> (u64, u64) {
    let lane = &stats(client)["lanes"][queue];
    let number = |name: &str| lane[name].as_u64().unwrap_or_else(|| panic!("{name}: {lane}"));
    (number("refills"), number("offered"))
}

/// Transactions that work in one long transaction have claimed more tasks than a lane can postpone.
#[test]
fn many_locked_tasks_are_not_tried_again_and_again() {
    const LOCKED: usize = 600;
    let cluster = with_settings("lanes-locked", "queue.sweep_interval = '1s'");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('q')");
    push(&mut client, "q", LOCKED as i32 + 100);
    let mut open: Vec<Client> = (0..4).map(|_| cluster.connect()).collect();
    for other in &mut open {
        run(other, "BEGIN");
        assert_eq!(claim(other, "q", LOCKED as i32 / 4).len(), LOCKED / 4);
    }
    // A reading of the table finds them queued, as its snapshot shows them.
    let sweeps = |client: &mut Client| stats(client)["lanes"]["q"]["sweeps"].as_u64();
    let before = sweeps(&mut client);
    eventually("the table is read", SOON, || sweeps(&mut client) > before);
    let (refills, offered) = readings(&mut client, "q");
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(claim(&mut client, "q", 1).len(), 1);
    }
    let took = started.elapsed();
    let (refills_now, offered_now) = readings(&mut client, "q");
    println!("{} refills, {} offered, {took:?}", refills_now - refills, offered_now - offered);
    // Every time that they are due again, and after each sweep, all of them are tried once.
    let rounds = 3 + took.as_millis() as u64 / 20;
    assert!(offered_now - offered < 20 + rounds * 2 * LOCKED as u64, "offered {}", offered_now - offered);
    assert!(refills_now - refills < 20 + rounds * 4, "{} refills", refills_now - refills);
    // None is lost.
    drop(open);
    let mut claimed = 0;
    eventually("all others are claimed", SOON, || {
        claimed += claim(&mut client, "q", 1000).len();
        claimed == LOCKED + 80
    });
}

/// Nothing can be read natively while somebody's own trigger is on the table.
#[test]
fn the_worker_does_not_spin_while_the_table_cannot_be_read_and_leases_end_in_time() {
    let cluster = with_settings("lanes-unreadable", "queue.sweep_interval = '1s'");
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('q')");
    // More than a lane has space for.
    push(&mut client, "q", 2600);
    let leased = Instant::now();
    assert_eq!(count(&mut client, "SELECT count(*) FROM queue.claim('2 seconds', 'q', 2600)"), 2600);
    run(
        &mut client,
        "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER own AFTER INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.nothing()",
    );
    let rounds = |client: &mut Client| stats(client)["worker"]["rounds"].as_u64().expect("rounds");
    eventually("all leases have ended", SOON, || {
        count(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running'") == 0
    });
    assert!(leased.elapsed() < Duration::from_secs(15), "after {:?}", leased.elapsed());
    let (before, started) = (rounds(&mut client), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let each_second = (rounds(&mut client) - before) as f64 / started.elapsed().as_secs_f64();
    assert!(each_second < 50.0, "{each_second} rounds a second");
}

/// A worker reads only so many priorities at a time, and so never knows which of the tasks comes due first.
#[test]
fn a_waiter_does_not_make_the_worker_read_all_priorities_all_the_time() {
    let cluster = cluster("lanes-priorities");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('q', '{\"max_running\": 1}');
         SELECT count(queue.push('q', priority => n, delay => CASE WHEN n > 1 THEN interval '1 hour' END))
         FROM generate_series(1, 4000) AS n",
    );
    assert_eq!(claim(&mut client, "q", 1).len(), 1);
    let waiter = wait_for(&cluster, "q");
    let sweeps = |client: &mut Client| stats(client)["lanes"]["q"]["sweeps"].as_u64().expect("sweeps");
    let (before, started) = (sweeps(&mut client), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let each_second = (sweeps(&mut client) - before) as f64 / started.elapsed().as_secs_f64();
    println!("{each_second} readings a second");
    assert!(each_second < 5.0, "{each_second} readings a second");
    run(
        &mut client,
        "SELECT queue.complete(id, token), queue.push('q') FROM queue.tasks WHERE state = 'running'",
    );
    assert!(waiter.join().expect("the waiter").0, "it was woken");
}
