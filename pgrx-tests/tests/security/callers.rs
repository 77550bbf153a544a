//! The caller's environment: deferred constraints, views, rights that change meanwhile, locked catalogs.

use super::{NO_WORKER, cluster, login, number, refusal, run};
use postgres::Client;

/// The SQLSTATE of a statement's error; nothing if it succeeds.
fn refused(client: &mut Client, statement: &str) -> Option<String> {
    client.batch_execute(statement).err().map(|error| refusal(&error).0)
}

#[test]
fn a_function_can_leave_a_deferred_constraint_to_the_commit() {
    let cluster = cluster("security-deferred", NO_WORKER);
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "CREATE TABLE public.orders (task_id bigint REFERENCES queue.tasks DEFERRABLE INITIALLY DEFERRED);
         CREATE ROLE bob LOGIN; SELECT queue.grant_worker('bob');
         SELECT queue.push('default'); INSERT INTO public.orders SELECT id FROM queue.tasks",
    );
    for (role, complete) in [
        ("bob", "SELECT queue.complete(id, token) FROM queue.claim('1 minute')"),
        (
            "postgres",
            "WITH gone AS (DELETE FROM public.orders) SELECT queue.complete(id, token) FROM queue.claim('1 minute')",
        ),
    ] {
        let mut client = login(&cluster, role);
        let found = refused(&mut client, complete);
        // The task is referred to until the order goes, in the same transaction.
        assert_eq!(found.as_deref(), (role == "bob").then_some("23503"), "{role}");
    }
    assert_eq!(number(&mut admin, "SELECT count(*) FROM queue.tasks"), 0);
}

#[test]
fn a_key_is_checked_also_for_inserts_through_a_view() {
    let cluster = cluster("security-view", NO_WORKER);
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "SELECT queue.create('a'), queue.create('b'); CREATE ROLE bob LOGIN; SELECT queue.grant_producer('bob', 'a');
         CREATE VIEW public.inbox AS SELECT queue, key, group_key, payload FROM queue.tasks;
         GRANT INSERT ON public.inbox TO bob",
    );
    let mut bob = login(&cluster, "bob");
    run(&mut bob, "INSERT INTO public.inbox VALUES ('a', 'k', NULL, '1'), ('a', 'k', NULL, '2')");
    let twice = "INSERT INTO public.inbox VALUES ('b', 'k', NULL, '1'), ('b', 'k', NULL, '2')";
    assert_eq!(refused(&mut bob, twice).as_deref(), Some("42501"));
    let directly = "INSERT INTO queue.tasks (queue, key) VALUES ('b', 'k')";
    assert_eq!(refused(&mut bob, directly).as_deref(), Some("42501"));
    assert_eq!(number(&mut admin, "SELECT count(*) FROM queue.tasks"), 1);
    assert_eq!(number(&mut admin, "SELECT count(*) FROM queue_internal.keys"), 1);
}

#[test]
fn the_rights_of_the_databases_owner_go_with_the_ownership() {
    let cluster = cluster("security-owners", NO_WORKER);
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "SELECT queue.create('mail'), queue.create('other'); CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN;
         SELECT queue.grant_worker('pg_database_owner', 'mail');
         SELECT queue.grant_worker('alice', 'other'), queue.grant_worker('bob', 'other');
         ALTER DATABASE postgres OWNER TO alice",
    );
    let (mut alice, mut bob) = (login(&cluster, "alice"), login(&cluster, "bob"));
    let claim = "SELECT queue.claim('1 minute', 'mail')";
    for owner in ["alice", "bob", "alice"] {
        run(&mut admin, &format!("ALTER DATABASE postgres OWNER TO {owner}"));
        for (role, client) in [("alice", &mut alice), ("bob", &mut bob)] {
            let expected = (role != owner).then_some("42501");
            assert_eq!(refused(client, claim).as_deref(), expected, "{role} where {owner} owns it");
        }
    }
}

#[test]
fn two_rights_can_be_granted_at_the_same_time() {
    let cluster = cluster("security-grants", NO_WORKER);
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    run(&mut one, "CREATE ROLE alice; CREATE ROLE bob");
    for verb in ["grant", "revoke"] {
        run(&mut one, &format!("BEGIN; SELECT queue.{verb}_worker('alice')"));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| run(&mut other, &format!("SELECT queue.{verb}_worker('bob')")));
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            queue_ext_tests::eventually("the second one waits", queue_ext_tests::SOON, || {
                number(&mut cluster.connect(), waiting) == 1
            });
            run(&mut one, "COMMIT");
            second.join().expect("the second one");
        });
        let expected = if verb == "grant" { 2 } else { 0 };
        assert_eq!(number(&mut one, "SELECT count(*) FROM queue.rights"), expected, "{verb}");
    }
}

#[test]
fn a_command_that_cannot_look_up_a_name_fails_alone() {
    let cluster = cluster("security-catalogs", NO_WORKER);
    let (mut holder, mut client) = (cluster.connect(), cluster.connect());
    run(&mut holder, "CREATE TABLE public.plain (x integer)");
    run(&mut holder, "BEGIN; LOCK TABLE pg_class");
    // By the second one the session is known to live on.
    for code in ["55P03", "57014"] {
        let timeout = if code == "55P03" { "lock_timeout" } else { "statement_timeout" };
        let alter =
            format!("BEGIN; SET LOCAL {timeout} = '300 ms'; ALTER TABLE plain ENABLE TRIGGER ALL; COMMIT");
        assert_eq!(refused(&mut client, &alter).as_deref(), Some(code));
        run(&mut client, "ROLLBACK");
    }
    run(&mut holder, "ROLLBACK");
    run(&mut client, "ALTER TABLE plain ENABLE TRIGGER ALL");
}

#[test]
fn a_database_can_be_created_from_the_default_template() {
    let cluster = cluster("security-template", NO_WORKER);
    run(&mut cluster.connect(), "CREATE DATABASE of_default TEMPLATE DEFAULT");
}
