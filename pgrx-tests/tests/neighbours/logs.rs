//! How much the background worker writes to the server's log because of one role.

use super::*;
use postgres::NoTls;

#[test]
fn a_role_whose_tasks_and_schedules_fail_does_not_fill_the_log() {
    let (mut cluster, mut client, worker) = start("logs");
    run(
        &mut client,
        "CREATE ROLE hostile LOGIN; SELECT queue.create('c'), queue.create('d');
         SELECT queue.grant_producer('hostile', q.name), queue.grant_worker('hostile', q.name), queue.grant_operator('hostile', q.name)
         FROM queue.queues AS q WHERE q.name IN ('a', 'c', 'd');
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON queue.tasks FOR EACH ROW
         WHEN (NEW.state = 'queued') EXECUTE FUNCTION refuse();
         ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER refuse",
    );
    let mut hostile = cluster.config("postgres").user("hostile").connect(NoTls).expect("connect");
    run(
        &mut hostile,
        "SELECT queue.push('d', key => 'k');
         SELECT queue.schedule('failing ' || n, '* * * * * *', 'd', options => '{\"key\": \"k\", \"on_duplicate\": \"error\"}')
         FROM generate_series(1, 20) AS n",
    );
    let flood = std::thread::spawn(move || {
        let (started, mut n) = (Instant::now(), 0);
        while started.elapsed() < while_it_lasts() {
            n += 1;
            run(
                &mut hostile,
                &format!(
                    "SELECT count(queue.push('a', group_key => '{n} ' || g)) FROM generate_series(1, 20) AS g"
                ),
            );
            run(&mut hostile, "SELECT count(queue.push('c')) FROM generate_series(1, 20)");
            run(&mut hostile, "SELECT count(*) FROM queue.claim('1 ms', 'c', 20)");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let failing = "SELECT count(*) FROM queue_internal.events WHERE queue = 'a' AND error IS NOT NULL";
    eventually("events of a fail", SOON, || number(&mut client, failing) > 20);
    let stuck = number(&mut client, "SELECT queue.push('b')");
    run(&mut client, "SELECT queue.claim('1 ms', 'b'); SELECT queue.push('b', group_key => 'g')");
    for warning in [
        format!("WARNING:  the lease of task {stuck} expired, but its attempt cannot be ended"),
        "WARNING:  a group of queue \"b\" cannot be unblocked".to_owned(),
    ] {
        eventually(&warning, SOON, || cluster.log().contains(&warning));
    }
    flood.join().expect("the flood");
    for (what, count, least) in [
        ("events", failing, 50),
        ("leases", "SELECT count(*) FROM queue.tasks WHERE queue = 'c' AND lease_until < now()", 50),
        ("schedules", "SELECT count(*) FROM queue.schedules WHERE last_error LIKE 'key %'", 20),
    ] {
        eventually(&format!("{least} {what} fail"), SOON, || number(&mut client, count) >= least);
    }
    let log = cluster.log();
    let said: Vec<&str> =
        log.lines().filter(|line| line.contains("queue_ext worker") && line.contains("WARNING")).collect();
    // Five each of the events of a, the leases of c, and those of b, in a minute or two.
    assert!(said.len() < 40, "{} lines:\n{}", said.len(), said.join("\n"));
    assert_eq!(cluster.await_worker("postgres"), worker);
}
