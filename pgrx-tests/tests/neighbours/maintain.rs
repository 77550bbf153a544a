//! queue.maintain(), which does the work where there is no background worker.

use super::*;
use postgres::NoTls;

#[test]
fn maintain_reaches_every_part_though_schedules_are_years_behind() {
    for edition in [Edition::NoPreload, Edition::SqlOnly] {
        let cluster = edition.cluster("neighbours-every-part", Worker::On);
        edition.install(&cluster, "postgres");
        let mut client = cluster.connect();
        run(
            &mut client,
            "SELECT queue.create('b'); SELECT queue.create('a' || n) FROM generate_series(1, 50) AS n;
             SELECT queue.schedule(format('behind %s %s', q.name, n), '* * * * * *', q.name, options => '{\"missed_runs\": \"all\"}')
             FROM queue.queues AS q, generate_series(1, 4) AS n WHERE q.name LIKE 'a%';
             INSERT INTO queue.tasks (queue, priority, run_at)
             SELECT 'a1', n, now() + interval '1 day' FROM generate_series(1, 20000) AS n;
             ANALYZE queue.tasks",
        );
        run(
            &mut client,
            "SELECT queue.push('b'); SELECT queue.claim('1 ms', 'b'); SELECT queue.push('b', group_key => 'g');
             INSERT INTO queue.dead_letters (id, queue, priority, run_at, attempt, token, created_at, failed_at, payload)
             SELECT 999999, 'b', 0, now(), 1, 1, now(), now() - interval '400 days', '{}';
             INSERT INTO queue_internal.keys (queue, key, task_id, expires_at)
             VALUES ('b', 'old', 999999, now() - interval '1 minute')",
        );
        run(
            &mut client,
            "SELECT queue.schedule('tick', '* * * * * *', 'b');
             UPDATE queue.schedules
             SET next_run_at = CASE queue WHEN 'b' THEN date_trunc('second', now()) ELSE '2020-01-01' END",
        );
        let pushed = |of: &str| {
            format!("SELECT count(*) FROM queue.tasks WHERE headers ? 'schedule' AND queue {of} 'b'")
        };
        run(&mut client, "SELECT queue_internal.maintain_schedules(clock_timestamp() + interval '1 minute')");
        assert_eq!(number(&mut client, &pushed("<>")), 0, "other parts have their turn first");
        let mut maintainer = cluster.connect();
        let cancel = maintainer.cancel_token();
        let maintaining = std::thread::spawn(move || maintainer.batch_execute("CALL queue.maintain()"));
        for (what, left) in [
            ("the lease ends", "SELECT count(*) FROM queue.tasks WHERE state = 'running'"),
            ("the event is processed", "SELECT count(*) FROM queue_internal.events WHERE queue = 'b'"),
            (
                "there are partitions",
                "SELECT (NOT EXISTS (SELECT FROM queue_internal.history_partitions()))::integer::bigint",
            ),
            ("the dead letter is deleted", "SELECT count(*) FROM queue.dead_letters"),
            ("the key is deleted", "SELECT count(*) FROM queue_internal.keys WHERE key = 'old'"),
        ] {
            eventually(what, SOON, || number(&mut client, left) == 0);
        }
        for of in ["=", "<>"] {
            eventually("schedules have their share", SOON, || number(&mut client, &pushed(of)) > 0);
        }
        // A call that is done with them would prove nothing.
        let behind = "SELECT count(*) FROM queue.schedules WHERE next_run_at < now() - interval '1 year'";
        assert_eq!(number(&mut client, behind), 200);
        cancel.cancel_query(NoTls).expect("cancel");
        drop(maintaining.join().expect("the call"));
    }
}
