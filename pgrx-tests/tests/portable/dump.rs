//! Dumps of the SQL-only edition. Its tables are ordinary ones, so a dump also has the rows that an installation makes.

use super::*;
use queue_ext_tests::estate;

/// Tables with one row, which the installation makes.
const SINGLE_ROW_TABLES: [&str; 3] = ["token_mark", "settling", "maintenance"];

fn has_its_single_rows(client: &mut Client, way: &str) {
    for table in SINGLE_ROW_TABLES {
        assert_eq!(
            ask::<i64>(client, &format!("SELECT count(*) FROM queue_internal.{table}")),
            1,
            "{way}: {table}"
        );
    }
}

#[test]
fn a_dump_whole_or_in_parts_is_the_queue_as_it_was() {
    let source = started("dump-parts");
    let mut client = source.connect();
    estate::work(&mut client, 500);
    client.batch_execute("CALL queue.maintain()").expect("partitions of the history");
    // Locks of groups, slots of a limit, and a mark that the edition has from the extension.
    client
        .batch_execute(
            "SELECT queue.create('limited', '{\"max_running\": 2}');
             SELECT queue.push('limited', group_key => 'g') FROM generate_series(1, 3);
             SELECT queue.claim('1 day', 'limited');
             UPDATE queue_internal.token_mark SET reached = 7",
        )
        .expect("more of it");
    let (everything, rows) = (estate::everything(&mut client), estate::rows(&mut client));
    let target = Edition::SqlOnly.cluster("portable-dump-target", Worker::On);
    target.connect().batch_execute("CREATE ROLE web").expect("a role is not part of a dump");
    let [from, to] = [&source, &target].map(|cluster| cluster.folder().to_str().expect("a path").to_owned());
    let restore = |database: &str, how: &[&str]| {
        let file = format!("{from}/part.dump");
        source.run(
            "pg_dump",
            &[&["-h", &from, "-U", "postgres", "-Fc", "-f", &file, "postgres"], how].concat(),
        );
        let connection = ["-h", &to, "-U", "postgres", "-d", database];
        target.run("pg_restore", &[&["--exit-on-error", "-j", "2", &file], &connection[..]].concat());
    };
    let database = |name: &str| {
        let mut server = target.connect();
        server.batch_execute(&format!("CREATE DATABASE {name}")).expect("a database");
    };
    let goes_on = |client: &mut Client, way: &str| {
        estate::goes_on(client);
        assert_eq!(ask::<i64>(client, "SELECT count(*) FROM queue.claim('1 day', 'limited', 5)"), 0, "{way}");
        let complete =
            "SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'limited' AND state = 'running'";
        client.batch_execute(complete).expect("the lease from before");
        let token = ask::<i64>(client, "SELECT token FROM queue.claim('1 day', 'limited')");
        assert_eq!(token, 8, "{way}: after the mark");
        client.batch_execute("CALL queue.maintain()").expect("maintain");
        has_its_single_rows(client, way);
    };

    Edition::SqlOnly.install(&target, "postgres");
    database("whole");
    restore("whole", &[]);
    let mut client = target.connect_to("whole");
    assert_eq!(estate::everything(&mut client), everything);
    goes_on(&mut client, "whole");

    // First the schema, which works as a queue without tasks; then the data.
    database("halves");
    restore("halves", &["--schema-only"]);
    let mut client = target.connect_to("halves");
    client.batch_execute("SELECT queue.create('new'), queue.push('new')").expect("push");
    assert_eq!(ask::<i64>(&mut client, "SELECT token FROM queue.claim('1 day', 'new')"), 1);
    client.batch_execute("CALL queue.maintain()").expect("maintain");
    let single_rows = "SELECT (SELECT count(*) FROM queue_internal.settling) + (SELECT count(*) FROM queue_internal.maintenance)";
    assert_eq!(ask::<i64>(&mut client, single_rows), 2);
    let maintained = "SELECT status FROM queue.health() WHERE name = 'worker'";
    assert_eq!(ask::<String>(&mut client, maintained), "ok");
    client.batch_execute("SELECT queue.drop('new', force => true)").expect("drop");
    restore("halves", &["--data-only"]);
    assert_eq!(estate::everything(&mut client), everything);
    goes_on(&mut client, "halves");

    // The data alone, into a database that has the edition; it has no partitions for the days yet.
    let mut client = target.connect();
    restore("postgres", &["--data-only", "--load-via-partition-root"]);
    assert_eq!(estate::rows(&mut client), rows);
    goes_on(&mut client, "data");
}
