//! Waiting through PgBouncer in transaction mode.

use super::*;
use queue_ext_tests::PgBouncer;

#[test]
fn through_pgbouncer_in_transaction_mode_a_waiter_keeps_its_connection_and_no_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-bouncer");
    let mut direct = cluster.connect();
    let bouncer = PgBouncer::start(&cluster, 4, "");
    let (mut times, mut locks) = (Vec::new(), handovers(&cluster, 50));
    let mut other = bouncer.connect();
    for _ in 0..20 {
        // The simple protocol: a statement with a name would be in one connection only.
        let mut client = bouncer.connect();
        let thread = thread::spawn(move || {
            let said = client.simple_query("CALL queue.wait()").expect("wait");
            let told = Instant::now();
            let claimed =
                client.simple_query("SELECT queue.complete(id, token) FROM queue.claim()").expect("work");
            (said, claimed.len(), told)
        });
        await_waiters(&mut direct, "default", 1);
        let held = number(
            &mut direct,
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL queue.wait%' AND state = 'active'
             AND (backend_xmin IS NOT NULL OR xact_start IS NOT NULL)",
        );
        assert_eq!(held, 0);
        // Meanwhile others work through the same pool, and one of them pushes.
        other.simple_query("SELECT queue.push('default')").expect("push");
        let pushed = Instant::now();
        let (said, claimed, told) = thread.join().expect("join");
        let ready = said.iter().any(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        });
        assert!(ready && claimed > 1, "{said:?}, {claimed}");
        times.push(told.saturating_duration_since(pushed));
    }
    let [p50, ..] = report("from a push's return to that of queue.wait, through PgBouncer", &mut times);
    locks.extend(handovers(&cluster, 50));
    is_within(10.0, p50, &mut locks);
    assert_eq!(number(&mut direct, "SELECT count(*) FROM queue.history"), 20);

    // As many as there are server connections can wait; then the pool is full until one returns.
    let sleepers: Vec<_> = (0..4)
        .map(|_| {
            let mut client = bouncer.connect();
            thread::spawn(move || client.simple_query("CALL queue.wait()").map(drop))
        })
        .collect();
    await_waiters(&mut direct, "default", 4);
    let blocked = thread::spawn(move || other.simple_query("SELECT 1").map(drop));
    thread::sleep(Duration::from_millis(200));
    assert!(!blocked.is_finished(), "no server connection is free");
    run(&mut direct, "SELECT queue.push('default')");
    blocked.join().expect("join").expect("one is free again");
    run(&mut direct, "SELECT queue.push_many('default', array_fill('{}'::jsonb, ARRAY[3]))");
    sleepers.into_iter().for_each(|thread| thread.join().expect("join").expect("told"));
    assert_eq!(waiters(&mut direct, "default"), 0);
}
