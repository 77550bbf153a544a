//! Attaching and detaching, and what keeps a handler from running.

use super::{HANG, NOTE, attach, await_lock, await_state, create, one, processes, push, run, start};
use postgres::Client;
use queue_ext_tests::{SOON, WOKEN, eventually};

fn problem(client: &mut Client) -> String {
    one(client, "SELECT coalesce(string_agg(problem, '; '), '') FROM queue.failing_handlers")
}

fn health(client: &mut Client) -> String {
    one(
        client,
        "SELECT string_agg(concat_ws(': ', status, detail, hint), '; ') FROM queue.health() WHERE name = 'handlers'",
    )
}

/// Waits until the worker has begun and ended a round, and so knows what is committed.
fn await_round(client: &mut Client) {
    const ROUNDS: &str = "SELECT (queue.engine_stats() #>> '{worker,rounds}')::bigint";
    let before: i64 = one(client, ROUNDS);
    run(client, "SELECT queue.create('bystander')");
    eventually("a round of the worker", SOON, || {
        // It wakes up when a task becomes due. The first round to end may have begun before.
        run(client, "SELECT queue.push('bystander', delay => '1 ms')");
        one::<i64>(client, ROUNDS) >= before + 2
    });
}

#[test]
fn a_detached_handler_finishes_its_task_and_claims_no_other() {
    let (_cluster, mut client) = start("handlers-detach");
    attach(
        &mut client,
        "PERFORM pg_advisory_xact_lock_shared(8), pg_advisory_xact_lock(7);
         INSERT INTO public.done VALUES (task.id, task.attempt, 'done'); RETURN NULL;",
        1,
    );
    let mut gate = _cluster.connect();
    run(&mut gate, "BEGIN; SELECT pg_advisory_xact_lock(7)");
    let (id, next) = (push(&mut client, ""), push(&mut client, ""));
    await_lock(&mut client, 8);
    let detached: bool = one(&mut client, "SELECT queue.detach('work')");
    assert!(detached);
    assert!(!one::<bool>(&mut client, "SELECT queue.detach('work')"), "there is none any more");
    // The worker has told it to exit.
    await_round(&mut client);
    run(&mut gate, "ROLLBACK");
    await_state(&mut client, id, "completed");
    eventually("the process exits", WOKEN, || processes(&mut client).is_empty());
    await_state(&mut client, next, "queued");
}

#[test]
fn attaching_again_replaces_the_handler_and_the_number_of_processes() {
    let (_cluster, mut client) = start("handlers-replace");
    attach(&mut client, NOTE, 3);
    let before = processes(&mut client);
    run(&mut client, "SELECT queue.attach('work', 'public.handle(queue.claimed_task)', 'app', 1)");
    eventually("two exit", WOKEN, || processes(&mut client).len() == 1);
    assert!(before.contains(&processes(&mut client)[0]), "one of them stays");
    run(
        &mut client,
        "CREATE FUNCTION public.other(queue.claimed_task) RETURNS jsonb LANGUAGE sql RETURN '\"other\"'::jsonb;
         SELECT queue.attach('work', 'public.other(queue.claimed_task)', 'app', 2)",
    );
    eventually("others are there", WOKEN, || {
        let now = processes(&mut client);
        now.len() == 2 && !now.iter().any(|pid| before.contains(pid))
    });
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
    assert_eq!(one::<String>(&mut client, "SELECT result::text FROM queue.history"), "\"other\"");
}

#[test]
fn attaching_takes_effect_with_its_commit() {
    let (_cluster, mut client) = start("handlers-rollback");
    create(&mut client, NOTE);
    let attach = "SELECT queue.attach('work', 'public.handle(queue.claimed_task)', 'app')";
    run(&mut client, &format!("BEGIN; {attach}; ROLLBACK"));
    let id = push(&mut client, "");
    run(&mut client, &format!("BEGIN; {attach}"));
    assert!(processes(&mut client).is_empty());
    await_state(&mut client, id, "queued");
    run(&mut client, "COMMIT");
    await_state(&mut client, id, "completed");
}

#[test]
fn what_the_role_lacks_is_refused_and_stops_a_handler_that_runs() {
    let (cluster, mut client) = start("handlers-rights");
    attach(&mut client, NOTE, 1);
    let attach = "SELECT queue.attach('work', 'public.handle(queue.claimed_task)', 'app')";
    for (loses, gets, expected) in [
        (
            "SELECT queue.revoke_worker('app', 'work')",
            "SELECT queue.grant_worker('app', 'work')",
            "role app does not have the right of a worker",
        ),
        ("ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN", "role app is not permitted to log in"),
        (
            "REVOKE EXECUTE ON FUNCTION public.handle FROM PUBLIC",
            "GRANT EXECUTE ON FUNCTION public.handle TO PUBLIC",
            "role app lacks the privilege EXECUTE on public.handle(queue.claimed_task)",
        ),
        (
            "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
            "GRANT CONNECT ON DATABASE postgres TO PUBLIC",
            "role app lacks the privilege CONNECT on the database",
        ),
    ] {
        run(&mut client, loses);
        // The sweep finds what no trigger announces.
        eventually("the process exits", SOON, || processes(&mut client).is_empty());
        assert_eq!(problem(&mut client).replace("execute handle", "execute public.handle"), expected);
        let row = health(&mut client);
        assert!(
            row.starts_with("warning: queue \"work\": its handler does not run, because role app"),
            "{row}"
        );
        let refused = client.batch_execute(attach).expect_err("it must be refused");
        assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{refused:?}");
        let id = push(&mut client, "");
        run(&mut client, gets);
        await_state(&mut client, id, "completed");
    }
    assert_eq!(health(&mut client), "ok: all that are attached can run");
    let lines =
        cluster.log().lines().filter(|line| line.contains("FATAL") || line.contains("WARNING")).count();
    assert!(lines < 10, "the log is not flooded:\n{}", cluster.log());
}

#[test]
fn a_dropped_function_or_role_stops_the_handler_and_spends_no_attempt() {
    let (_cluster, mut client) = start("handlers-dropped");
    attach(&mut client, NOTE, 1);
    run(&mut client, "DROP FUNCTION public.handle");
    let id = push(&mut client, "");
    eventually("the process exits", SOON, || processes(&mut client).is_empty());
    assert_eq!(problem(&mut client), "its function does not exist");
    let spent: i32 = one(&mut client, &format!("SELECT attempt FROM queue.tasks WHERE id = {id}"));
    assert_eq!(spent, 0);
    attach(&mut client, NOTE, 1);
    await_state(&mut client, id, "completed");
    run(&mut client, "SELECT queue.revoke_worker('app', 'work'); DROP OWNED BY app; DROP ROLE app");
    eventually("the process exits", SOON, || processes(&mut client).is_empty());
    assert_eq!(problem(&mut client), "its role does not exist");
    // And neither is dumped, since their numbers may be others elsewhere.
    let dumped: i64 =
        one(&mut client, "SELECT count(*) FROM queue.handlers WHERE role::oid IN (SELECT oid FROM pg_roles)");
    assert_eq!(dumped, 0);
}

#[test]
fn only_the_owner_attaches_and_only_roles_that_the_owner_may_become() {
    let (cluster, mut client) = start("handlers-owner");
    create(&mut client, NOTE);
    run(
        &mut client,
        "CREATE ROLE operator LOGIN; SELECT queue.grant_operator('operator');
         CREATE ROLE keeper LOGIN; GRANT CREATE ON DATABASE postgres TO keeper",
    );
    let attach =
        |role: &str| format!("SELECT queue.attach('work', 'public.handle(queue.claimed_task)', '{role}')");
    let mut operator = cluster.config("postgres").user("operator").connect(postgres::NoTls).expect("connect");
    for statement in [attach("operator"), "SELECT queue.detach('work')".to_owned()] {
        let refused = operator.batch_execute(&statement).expect_err("it must be refused");
        assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{refused:?}");
    }
    // An owner who is no superuser must not become one by writing the row, even without the checks in SQL.
    run(
        &mut client,
        "DO $$ DECLARE name regclass; BEGIN
             FOR name IN SELECT c.oid FROM pg_class AS c WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
                         AND c.relkind IN ('r', 'p', 'v') LOOP
                 EXECUTE format('ALTER TABLE %s OWNER TO keeper', name);
             END LOOP; END $$;
         GRANT USAGE, CREATE ON SCHEMA queue, queue_internal TO keeper;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA queue, queue_internal TO keeper",
    );
    let mut keeper = cluster.config("postgres").user("keeper").connect(postgres::NoTls).expect("connect");
    run(
        &mut keeper,
        "CREATE OR REPLACE VIEW queue.failing_handlers WITH (security_barrier) AS
         SELECT NULL::text COLLATE \"C\" AS queue, NULL::text COLLATE \"C\" AS problem, NULL::text COLLATE \"C\" AS hint WHERE false;
         INSERT INTO queue.handlers (queue, handler, role) VALUES ('work', 'public.handle(queue.claimed_task)', 'postgres')",
    );
    await_round(&mut client);
    assert!(processes(&mut client).is_empty(), "no process runs as a role that the owner may not become");
    run(&mut client, "GRANT app TO keeper");
    run(&mut keeper, "UPDATE queue.handlers SET role = 'app'");
    eventually("it runs as another", SOON, || processes(&mut client).len() == 1);
}

#[test]
fn a_dropped_queue_loses_its_handler() {
    let (_cluster, mut client) = start("handlers-queue");
    attach(&mut client, NOTE, 2);
    run(&mut client, "SELECT queue.drop('work')");
    eventually("the processes exit", WOKEN, || processes(&mut client).is_empty());
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM queue.handlers"), 0);
}

#[test]
fn settings_of_the_role_apply_to_the_handler_and_do_not_break_the_process() {
    let (_cluster, mut client) = start("handlers-settings");
    run(
        &mut client,
        "CREATE SCHEMA hostile; GRANT ALL ON SCHEMA hostile TO app;
         CREATE FUNCTION hostile.eq(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''caught''; END';
         CREATE OPERATOR hostile.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = hostile.eq);
         ALTER ROLE app SET search_path = hostile, public, pg_catalog;
         ALTER ROLE app SET default_transaction_isolation = serializable;
         ALTER ROLE app SET default_transaction_read_only = on;
         ALTER ROLE app SET statement_timeout = '1ms';
         ALTER ROLE app SET idle_in_transaction_session_timeout = '1ms'",
    );
    attach(
        &mut client,
        "INSERT INTO done VALUES (task.id, task.attempt, current_setting('search_path')); PERFORM pg_sleep(0.05); RETURN NULL;",
        1,
    );
    for _ in 0..3 {
        let id = push(&mut client, "");
        await_state(&mut client, id, "completed");
    }
    let path: String = one(&mut client, "SELECT string_agg(DISTINCT note, ';') FROM public.done");
    assert_eq!(path, "hostile, public, pg_catalog");
}

#[test]
fn settings_that_a_handler_makes_do_not_break_the_process() {
    let (cluster, mut client) = start("handlers-own-settings");
    attach(
        &mut client,
        "PERFORM set_config(name, setting, false) FROM (VALUES
             ('default_transaction_isolation', 'serializable'), ('default_transaction_read_only', 'on'),
             ('row_security', 'off'), ('search_path', 'hostile')) AS s (name, setting);
         RETURN to_jsonb(current_setting('transaction_isolation'));",
        1,
    );
    let pid = processes(&mut client);
    for _ in 0..3 {
        let id = push(&mut client, "");
        await_state(&mut client, id, "completed");
        let query = format!("SELECT result #>> '{{}}' FROM queue.history WHERE id = {id}");
        assert_eq!(one::<String>(&mut client, &query), "read committed");
    }
    assert_eq!(processes(&mut client), pid, "it is the same process");
    assert!(!cluster.log().contains("WARNING"), "{}", cluster.log());
}

#[test]
fn a_renamed_function_is_attached_again() {
    let (_cluster, mut client) = start("handlers-renamed");
    attach(&mut client, NOTE, 1);
    run(&mut client, "ALTER FUNCTION public.handle RENAME TO \"Handle\"\"s\"");
    eventually("the worker has noticed", SOON, || problem(&mut client) == "its function does not exist");
    let attach = "SELECT queue.attach('work', 'public.\"Handle\"\"s\"(queue.claimed_task)', 'app')";
    run(&mut client, attach);
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
    assert_eq!(problem(&mut client), "");
}

#[test]
fn a_running_handler_is_seen_as_a_worker() {
    let (_cluster, mut client) = start("handlers-seen");
    attach(&mut client, HANG, 1);
    push(&mut client, ", lease => '1 hour'");
    await_lock(&mut client, 7);
    let pid = processes(&mut client)[0];
    let seen: String =
        one(&mut client, "SELECT worker || ' ' || running FROM queue.workers WHERE queue = 'work'");
    assert_eq!(seen, format!("handler {pid} 1"));
}
