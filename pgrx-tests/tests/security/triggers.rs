//! Triggers on the extension's tables: which ones the background worker and the functions fire, and as which role.

use super::worker::works;
use super::{NO_WORKER, attempt, cluster, column, login, number, run};
use postgres::Client;
use queue_ext_tests::{Cluster, SOON, eventually};

/// A trigger function that records its role and process, and tries to do more.
const GREEDY: &str = "RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        BEGIN EXECUTE 'SET ROLE postgres'; EXCEPTION WHEN OTHERS THEN NULL; END;
        BEGIN EXECUTE 'RESET SESSION AUTHORIZATION'; EXCEPTION WHEN OTHERS THEN NULL; END;
        INSERT INTO public.ran VALUES (current_user, pg_backend_pid());
        BEGIN EXECUTE 'ALTER ROLE nobody SUPERUSER'; EXCEPTION WHEN insufficient_privilege THEN NULL; END;
        RETURN coalesce(NEW, OLD);
    END $$";

/// A server with a schedule that is due every second, and an expired lease.
fn busy(name: &str) -> (Cluster, Client) {
    let mut cluster = cluster(name, "queue.sweep_interval = 1");
    cluster.await_worker("postgres");
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "CREATE TABLE public.ran (who name, process integer); GRANT INSERT ON public.ran TO PUBLIC;
         GRANT USAGE ON SCHEMA queue TO nobody; GRANT CREATE ON SCHEMA public TO PUBLIC;
         SELECT queue.create('mail'); SELECT queue.push('mail'); SELECT queue.claim('1 second', 'mail')",
    );
    (cluster, admin)
}

/// The roles as which a trigger ran in the worker.
fn ran(admin: &mut Client) -> Vec<String> {
    column(
        admin,
        "SELECT DISTINCT who::text FROM public.ran
         WHERE process IN (SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue_ext worker')",
    )
}

/// The trigger is not fired, and the log and the schedule report that.
fn refused(cluster: &Cluster, admin: &mut Client) {
    let errors = "SELECT coalesce(last_error, '') FROM queue.schedules";
    eventually("the schedule says why it cannot run", SOON, || {
        column(admin, errors)[0]
            .contains("trigger \"own\" on table \"tasks\" must not run with the rights of the owner")
    });
    eventually("the log says why a lease cannot be ended", SOON, || {
        cluster.log().contains("its attempt cannot be ended: trigger \"own\" on table \"tasks\"")
    });
    assert_eq!(ran(admin), [""; 0]);
    assert_eq!(number(admin, "SELECT count(*) FROM pg_roles WHERE rolname = 'nobody' AND rolsuper"), 0);
}

#[test]
fn the_worker_runs_no_trigger_of_a_role_that_only_has_the_privilege() {
    for owner in ["SUPERUSER", "NOSUPERUSER"] {
        let (mut cluster, mut admin) = busy("security-trigger");
        run(&mut admin, &format!("ALTER ROLE owner {owner}; GRANT TRIGGER ON queue.tasks TO nobody"));
        let worker = cluster.await_worker("postgres");
        let mut nobody = login(&cluster, "nobody");
        run(&mut nobody, &format!("CREATE FUNCTION public.own() {GREEDY}"));
        run(
            &mut nobody,
            "CREATE TRIGGER own BEFORE INSERT OR UPDATE OR DELETE ON queue.tasks
             FOR EACH ROW EXECUTE FUNCTION public.own()",
        );
        run(&mut admin, "SELECT queue.schedule('often', '* * * * * *', 'mail')");
        refused(&cluster, &mut admin);
        // Nor a trigger condition that calls a function which every role may call.
        run(
            &mut nobody,
            "CREATE OR REPLACE TRIGGER own BEFORE INSERT ON queue.tasks
             FOR EACH ROW WHEN (set_config('test.ran', 'yes', false) = 'yes')
             EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        );
        run(&mut admin, "UPDATE queue.schedules SET last_error = NULL, last_error_at = NULL");
        refused(&cluster, &mut admin);
        assert_eq!(cluster.await_worker("postgres"), worker, "the worker was never restarted");
        run(&mut admin, "DROP TRIGGER own ON queue.tasks");
        works(&mut cluster, &mut admin, worker);
    }
}

#[test]
fn the_worker_runs_the_triggers_of_the_owner_as_the_owner() {
    let (cluster, mut admin) = busy("security-owner");
    let mut owner = login(&cluster, "owner");
    run(&mut owner, &format!("CREATE FUNCTION public.own() {GREEDY}"));
    run(
        &mut owner,
        "CREATE TRIGGER own BEFORE INSERT OR UPDATE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.own();
         SELECT queue.schedule('often', '* * * * * *', 'mail')",
    );
    eventually("it is run", SOON, || ran(&mut admin) == ["owner"]);
    // A trigger with a condition, or with the function of another role, if the owner enables it.
    run(
        &mut owner,
        "CREATE OR REPLACE TRIGGER own BEFORE INSERT ON queue.tasks
         FOR EACH ROW WHEN (NEW.queue = 'mail') EXECUTE FUNCTION public.own(); TRUNCATE queue.tasks",
    );
    run(&mut admin, "TRUNCATE public.ran");
    eventually("it is refused", SOON, || {
        column(&mut admin, "SELECT coalesce(last_error, '') FROM queue.schedules")[0]
            .contains("trigger \"own\"")
    });
    run(&mut owner, "ALTER TABLE queue.tasks ENABLE ALWAYS TRIGGER own");
    run(&mut admin, "UPDATE queue.schedules SET last_error = NULL, last_error_at = NULL");
    eventually("it is run", SOON, || ran(&mut admin) == ["owner"]);
    assert_eq!(number(&mut admin, "SELECT count(*) FROM pg_roles WHERE rolname = 'nobody' AND rolsuper"), 0);
    // And one that a superuser has made.
    run(
        &mut admin,
        &format!(
            "DROP TRIGGER own ON queue.tasks; TRUNCATE public.ran; CREATE FUNCTION public.audit() {};
             CREATE TRIGGER audit AFTER INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.audit()",
            GREEDY.replace("EXECUTE 'ALTER ROLE nobody SUPERUSER'", "NULL")
        ),
    );
    eventually("it is run", SOON, || ran(&mut admin) == ["owner"]);
}

/// For every calling role and every table.
#[test]
fn no_function_fires_a_trigger_of_a_role_that_only_has_the_privilege() {
    let cluster = cluster("security-verb-triggers", NO_WORKER);
    let mut admin = cluster.connect();
    run(
        &mut admin,
        "CREATE TABLE public.ran (who name, process integer); GRANT INSERT ON public.ran TO PUBLIC;
         GRANT USAGE ON SCHEMA queue, queue_internal TO nobody; GRANT CREATE ON SCHEMA public TO PUBLIC",
    );
    run(
        &mut admin,
        "SELECT queue.push('default'), queue.grant_operator('operator'), queue.grant_producer('producer')",
    );
    run(&mut admin, "CALL queue.maintain()");
    run(&mut login(&cluster, "nobody"), &format!("CREATE FUNCTION public.own() {GREEDY}"));
    let claimed = "SELECT id, token FROM queue.claim('1 hour', 'default')";
    let refused = "must not run with the rights of the owner";
    for (table, call) in [
        ("queue.tasks", "SELECT queue.push('default')"),
        ("queue.tasks", "SELECT queue.claim('1 hour', 'default')"),
        ("queue.history", "SELECT queue.complete(id, token) FROM (CLAIM) AS c"),
        ("queue.dead_letters", "SELECT queue.fail(id, token, 'x', permanent => true) FROM (CLAIM) AS c"),
        ("queue_internal.keys", "SELECT queue.push('default', key => 'k')"),
        ("queue.schedules", "SELECT queue.schedule('s', '@daily', 'default')"),
        // Not by a function, but by a trigger that does the same with the owner's rights.
        ("queue_internal.keys", "INSERT INTO queue.tasks (queue, key) VALUES ('default', 'k')"),
    ] {
        let call = call.replace("CLAIM", claimed);
        run(&mut admin, "GRANT TRIGGER ON ALL TABLES IN SCHEMA queue, queue_internal TO nobody");
        run(
            &mut login(&cluster, "nobody"),
            &format!(
                "CREATE TRIGGER own BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION public.own()"
            ),
        );
        for (role, fast_path) in
            [("operator", "on"), ("operator", "off"), ("owner", "on"), ("postgres", "on")]
        {
            // The owner of the tables fires their triggers with statements of its own, as everywhere in PostgreSQL.
            if call.starts_with("INSERT") && role != "operator" {
                continue;
            }
            let mut client = login(&cluster, role);
            run(&mut client, &format!("SET queue.fast_path = {fast_path}"));
            let (code, said) = attempt(&mut client, &call).expect_err(&call);
            assert!(code == "42501" && said.contains(refused), "{role}: {call}: {code} {said}");
            run(&mut client, "BEGIN; SAVEPOINT s");
            client.batch_execute(&call).expect_err(&call);
            run(&mut client, "ROLLBACK TO s");
            assert_eq!(column(&mut client, "SELECT current_user::text"), [role]);
            run(&mut client, "ROLLBACK");
        }
        run(&mut admin, &format!("DROP TRIGGER own ON {table}"));
    }
    assert_eq!(number(&mut admin, "SELECT count(*) FROM public.ran"), 0);
    // The owner's triggers run as the owner, and cannot change the role.
    run(&mut login(&cluster, "owner"), &format!("CREATE FUNCTION public.owners() {GREEDY}"));
    run(
        &mut login(&cluster, "owner"),
        "CREATE TRIGGER own BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION public.owners()",
    );
    for role in ["producer", "operator", "postgres"] {
        let mut client = login(&cluster, role);
        run(&mut client, "SELECT queue.push('default')");
        assert_eq!(column(&mut client, "SELECT current_user::text"), [role]);
    }
    assert_eq!(column(&mut admin, "SELECT DISTINCT who::text FROM public.ran"), ["owner"]);
    assert_eq!(number(&mut admin, "SELECT count(*) FROM pg_roles WHERE rolname = 'nobody' AND rolsuper"), 0);
}
