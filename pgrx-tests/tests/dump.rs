//! What pg_dump saves, a fresh server gets back, with the worker looking on.

use queue_ext_tests::{Cluster, Settings};

const EVERYTHING: &str = "
    SELECT concat_ws(' ', a.id, a.queue, a.state, a.priority, a.attempt, a.token, a.worker, a.payload, a.errors, a.result)
    FROM queue.all_tasks AS a
    UNION ALL SELECT concat_ws(' ', q.name, q.lease, q.max_attempts, q.paused_at IS NOT NULL) FROM queue.queues AS q
    UNION ALL SELECT concat_ws(' ', s.name, s.cron, s.timezone, s.payload, s.options, s.next_run_at) FROM queue.schedules AS s
    UNION ALL SELECT concat_ws(' ', b.topic_pattern, b.queue, b.topic_regex) FROM queue.bindings AS b
    UNION ALL SELECT concat_ws(' ', p.day, p.attached) FROM queue_internal.history_partitions() AS p
    ORDER BY 1";

fn everything(cluster: &Cluster) -> Vec<String> {
    cluster.connect().query(EVERYTHING, &[]).expect("read everything").iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_restored_dump_is_the_queue_as_it_was() {
    let mut source = Cluster::start("dump-source");
    source.await_worker("postgres");
    let mut client = source.connect();
    client.batch_execute(
        "SELECT queue.create('mail', '{\"max_attempts\": 1}'), queue.pause('mail');
         SELECT queue.configure('default', '{\"max_attempts\": 7}');
         SELECT queue.schedule('party', '@yearly', 'mail', '\"hats\"', 'Europe/Berlin', '{\"priority\": 3}');
         SELECT queue.bind('orders.#', 'mail'), queue.bind('orders.*', 'default');
         CREATE ROLE web; SELECT queue.grant_producer('web', 'mail');
         SELECT count(queue.push('default', to_jsonb(n), delay => '1 hour')) FROM generate_series(1, 1000) AS n;
         SELECT count(queue.push('mail', to_jsonb(n))) FROM generate_series(1, 20000) AS n;
         SELECT queue.push('default', '\"done\"', priority => -3), queue.push('default', '\"dead\"', priority => -2),
                queue.push('default', '\"running\"', priority => -1);
         SELECT queue.complete(id, token, '1') FROM queue.claim();
         SELECT queue.fail(id, token, 'x', permanent => true) FROM queue.claim();
         SELECT count(*) FROM queue.claim('1 day', worker => 'w')").expect("work");
    queue_ext_tests::eventually("the history has its partitions", std::time::Duration::from_secs(5), || {
        client
            .query_one("SELECT count(*) FROM queue_internal.history_partitions()", &[])
            .expect("count")
            .get::<_, i64>(0)
            == 4
    });
    let before = everything(&source);
    let host = source.folder().to_str().expect("a path").to_owned();
    let connection = ["-h", &host, "-U", "postgres", "-d", "postgres"];
    let plain = format!("{host}/plain.sql");
    let custom = format!("{host}/custom.dump");
    source.run("pg_dump", &[&connection[..], &["-f", &plain]].concat());
    source.run("pg_dump", &[&connection[..], &["-Fc", "-f", &custom]].concat());

    for (name, program, arguments) in [
        ("dump-plain", "psql", vec!["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", &plain]),
        ("dump-custom", "pg_restore", vec!["--exit-on-error", &custom]),
        ("dump-parallel", "pg_restore", vec!["--exit-on-error", "-j", "4", &custom]),
    ] {
        let target = Cluster::start_with(name, &Settings::default());
        let mut client = target.connect();
        client.batch_execute("CREATE ROLE web").expect("a role is not part of a dump");
        let host = target.folder().to_str().expect("a path").to_owned();
        target.run(program, &[&arguments[..], &["-h", &host, "-U", "postgres", "-d", "postgres"]].concat());
        assert_eq!(everything(&target), before, "{name}");
        // It goes on where it was: no id comes twice, and the rights hold.
        let highest: i64 = client.query_one("SELECT max(id) FROM queue.all_tasks", &[]).expect("max").get(0);
        let next: i64 =
            client.query_one("SELECT queue.push('default', priority => -9)", &[]).expect("push").get(0);
        assert!(next > highest);
        let claimed: i64 = client.query_one("SELECT id FROM queue.claim()", &[]).expect("claim").get(0);
        assert_eq!(claimed, next);
        client.batch_execute("SET ROLE web; SELECT queue.push('mail')").expect("the right to push");
        assert!(client.batch_execute("SELECT queue.push('default')").is_err(), "to that queue alone");
        assert_eq!(client.query("SELECT queue.publish('orders.new')", &[]).expect("publish").len(), 1);
        client.batch_execute("RESET ROLE").expect("reset");
        assert_eq!(client.query("SELECT queue.publish('orders.new')", &[]).expect("publish").len(), 2);
    }
}
