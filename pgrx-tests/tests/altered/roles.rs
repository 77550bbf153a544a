//! Roles with rights for one queue.

use super::*;

#[test]
fn roles_with_rights_for_one_queue_are_served_natively_and_refused_by_sql() {
    let cluster = cluster("altered-tenants");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('theirs'); CREATE ROLE tenant LOGIN;
         SELECT queue.grant_worker('tenant', 'default'); SELECT queue.grant_producer('tenant', 'default')",
    );
    let mut tenant = cluster.config("postgres").user("tenant").connect(postgres::NoTls).expect("connect");
    // The worker may be making the partitions, and have the table locked.
    eventually("there are partitions", SOON, || client.batch_execute("CALL queue.maintain()").is_ok());
    let (before, _) = verbs(&mut client, "rights");
    run(&mut tenant, "SELECT queue.push('default')");
    run(&mut tenant, "SELECT queue.complete(id, token) FROM queue.claim('1 hour')");
    let (after, _) = verbs(&mut client, "rights");
    assert_eq!(after - before, 3, "served natively");
    run(&mut client, "SELECT queue.push('theirs'); SELECT queue.claim('1 hour', 'theirs')");
    for statement in [
        "SELECT queue.push('theirs')",
        "SELECT queue.claim('1 hour', 'theirs')",
        "SELECT queue.complete(2, 1)",
        "SELECT queue.extend(2, 1)",
        "SELECT queue.complete_and_claim(2, 1)",
    ] {
        let code = code(&mut tenant, statement);
        assert!(["42501", "QX002", "QX003"].contains(&code.as_str()), "{statement}: {code}");
    }
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM queue.tasks WHERE state = 'running' AND token = 1"),
        1
    );
    // A role without any right.
    run(&mut client, "CREATE ROLE nobody_special LOGIN");
    let mut nobody =
        cluster.config("postgres").user("nobody_special").connect(postgres::NoTls).expect("connect");
    for statement in ["SELECT queue.push('default')", "SELECT queue.claim()", "SELECT queue.complete(2, 1)"] {
        assert_eq!(code(&mut nobody, statement), "42501", "{statement}");
    }
}
