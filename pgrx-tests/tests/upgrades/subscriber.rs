//! Logical replication: a subscriber has the tables and leaves them alone, until it has to take over.

use std::time::Duration;

use queue_ext_tests::{Cluster, Settings, estate, eventually};

use super::{SOON, number, run};

/// The publication of docs/upgrading.md.
const PUBLICATION: &str = "
    CREATE PUBLICATION queues FOR TABLE
        queue.queues, queue.tasks, queue.history, queue.dead_letters, queue.schedules, queue.bindings,
        queue_internal.keys, queue_internal.dependencies, queue_internal.batches, queue_internal.outcomes, queue_internal.events,
        queue_internal.slots, queue_internal.rate_buckets, queue_internal.group_starts,
        queue_internal.steps, queue_internal.awaits, queue_internal.emitted
    WITH (publish_via_partition_root = true)";

/// The steps of docs/upgrading.md on the subscriber after the publisher is gone.
const TAKE_OVER: &str = "
    SELECT setval('queue.tasks_id_seq', (SELECT max(id) FROM queue.all_tasks) + 1000000);
    SELECT setval('queue_internal.events_id_seq', (SELECT coalesce(max(id), 0) FROM queue_internal.events) + 1000000);
    SELECT queue.grant_producer('web', 'mail');
    ALTER SYSTEM RESET queue.worker_enabled;
    SELECT pg_reload_conf()";

#[test]
fn a_subscriber_leaves_the_tasks_alone_until_it_takes_over() {
    let publishes = Settings { preload: true, extra: "wal_level = logical" };
    let mut publisher = Cluster::start_with("upgrades-publisher", &publishes);
    let mut client = publisher.connect();
    run(&mut client, "CREATE EXTENSION queue_ext");
    publisher.await_worker("postgres");
    estate::fill(&mut client, 1000);
    run(&mut client, PUBLICATION);

    let follows = Settings { preload: true, extra: "queue.sweep_interval = '1s'" };
    let subscriber = Cluster::start_with("upgrades-subscriber", &follows);
    let mut there = subscriber.connect();
    run(&mut there, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(&mut there, "SELECT pg_reload_conf()");
    run(&mut there, "CREATE EXTENSION queue_ext; CREATE ROLE web; DELETE FROM queue.queues");
    let from = publisher.folder().display();
    run(
        &mut there,
        &format!(
            "CREATE SUBSCRIPTION queues CONNECTION 'host={from} user=postgres dbname=postgres' PUBLICATION queues"
        ),
    );
    let mut same = |there: &mut postgres::Client, what: &str| {
        let mut published = Vec::new();
        eventually(what, SOON, || {
            published = estate::rows(&mut client);
            estate::rows(there) == published
        });
        published
    };
    same(&mut there, "what was there comes");
    let copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    eventually("every table is copied", SOON, || number(&mut there, copied) == 0);

    // Tasks are pushed, claimed, completed and become due on the publisher.
    let mut busy = publisher.connect();
    run(
        &mut busy,
        "SELECT queue.create('short'), queue.push('short', '\"lost\"'), queue.push('short', '\"kept\"', key => 'k');
         SELECT queue.claim('1 hour', 'short', worker => 'w');
         SELECT count(queue.push('default', to_jsonb(n), priority => -5)) FROM generate_series(1, 500) AS n;
         SELECT count(queue.complete(id, token)) FROM queue.claim('1 hour', max_tasks => 300)",
    );
    same(&mut there, "what happens comes");
    // The publisher stops. A lease expires and a schedule is due, and the subscriber does nothing.
    let worker = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext worker'";
    run(&mut busy, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(&mut busy, "SELECT pg_reload_conf()");
    eventually("the publisher's worker leaves", SOON, || number(&mut busy, worker) == 0);
    run(
        &mut busy,
        "UPDATE queue.tasks SET lease_until = now() WHERE queue = 'short' AND state = 'running';
         UPDATE queue.schedules SET next_run_at = now()",
    );
    let before = same(&mut there, "the last of it comes");
    publisher.stop("fast");
    let quiet = Duration::from_secs(3);
    let started = std::time::Instant::now();
    while started.elapsed() < quiet {
        // Longer than any sweep would take; nothing else happens here.
        assert_eq!(number(&mut there, worker), 0);
        assert!(estate::rows(&mut there) == before, "the subscriber has changed something");
        std::thread::sleep(Duration::from_millis(100));
    }

    // It takes over.
    run(&mut there, "ALTER SUBSCRIPTION queues DISABLE");
    run(&mut there, "ALTER SUBSCRIPTION queues SET (slot_name = NONE)");
    run(&mut there, "DROP SUBSCRIPTION queues");
    for statement in TAKE_OVER.split(';') {
        run(&mut there, statement);
    }
    eventually("its worker puts back what was lost", SOON, || {
        number(&mut there, "SELECT count(*) FROM queue.tasks WHERE queue = 'short' AND state = 'queued'") == 2
    });
    let hats = "SELECT count(*) FROM queue.tasks WHERE payload = '\"hats\"'";
    eventually("and runs the schedule, once", SOON, || number(&mut there, hats) == 1);
    run(&mut there, "DELETE FROM queue.tasks WHERE priority = -5");
    estate::goes_on(&mut there);
    // The key of a task is still taken.
    let taken = there.batch_execute("SELECT queue.push('short', key => 'k', on_duplicate => 'error')");
    let code = taken.expect_err("the key is taken").code().map(|code| code.code().to_owned());
    assert_eq!(code.as_deref(), Some("QX004"));
    estate::worker_goes_on(&mut there);
}
