//! How a task ends when its handler does not return.

use super::{HANG, NOTE, attach, await_lock, await_state, create, one, processes, push, run, start};
use queue_ext_tests::{SOON, eventually};

fn last_error(client: &mut postgres::Client, id: i64) -> serde_json::Value {
    one(client, &format!("SELECT errors -> -1 FROM queue.all_tasks WHERE id = {id}"))
}

#[test]
fn an_error_is_a_failed_attempt_with_its_sqlstate_and_the_last_one_is_a_dead_letter() {
    let (cluster, mut client) = start("handlers-failing");
    // Also a code that PostgreSQL does not know, after another ERROR that was caught and a notice.
    attach(
        &mut client,
        "INSERT INTO public.done VALUES (task.id, task.attempt, 'lost');
         BEGIN PERFORM 1 / 0; EXCEPTION WHEN OTHERS THEN NULL; END;
         RAISE NOTICE 'as expected';
         RAISE EXCEPTION 'no such address' USING ERRCODE = 'MA123';",
        1,
    );
    let id = push(&mut client, "");
    await_state(&mut client, id, "failed");
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM public.done"), 0, "its changes are rolled back");
    let error = last_error(&mut client, id);
    assert_eq!(error["error"], "MA123: no such address", "{error}");
    assert_eq!(error["details"]["sqlstate"], "MA123", "{error}");
    assert_eq!(error["attempt"], 3, "{error}");
    assert_eq!(processes(&mut client).len(), 1, "the process goes on");
    assert!(!cluster.log().contains("no such address"), "the error is stored with the task, and not logged");
}

#[test]
fn an_error_at_the_commit_is_a_failed_attempt_as_well() {
    let (_cluster, mut client) = start("handlers-deferred");
    run(
        &mut client,
        "CREATE TABLE public.parent (id bigint PRIMARY KEY);
         ALTER TABLE public.done ADD FOREIGN KEY (id) REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED",
    );
    attach(&mut client, NOTE, 1);
    let (id, next) = (push(&mut client, ""), push(&mut client, ", max_attempts => 1"));
    await_state(&mut client, id, "failed");
    await_state(&mut client, next, "failed");
    let error = last_error(&mut client, id);
    assert_eq!(error["details"]["sqlstate"], "23503", "{error}");
}

#[test]
fn a_handler_is_cancelled_at_the_end_of_its_lease_or_timeout() {
    let (_cluster, mut client) = start("handlers-timeout");
    attach(&mut client, HANG, 1);
    for option in ["lease", "timeout"] {
        let id = push(&mut client, &format!(", {option} => '300 ms', max_attempts => 1"));
        await_state(&mut client, id, "failed");
        let error = last_error(&mut client, id);
        assert_eq!(
            error["error"], "57014: the handler did not return before the end of its lease",
            "{option}: {error}"
        );
    }
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM public.done"), 0, "its changes are rolled back");
    create(&mut client, NOTE);
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
}

#[test]
fn cancelling_a_running_task_interrupts_its_handler() {
    let (_cluster, mut client) = start("handlers-cancel");
    attach(&mut client, HANG, 1);
    let id = push(&mut client, ", lease => '1 hour'");
    await_lock(&mut client, 7);
    let mut other = client.transaction().expect("begin");
    other.execute("SELECT queue.cancel($1)", &[&id]).expect("cancel");
    other.rollback().expect("roll back");
    await_lock(&mut client, 7);
    // Rolled back to a savepoint: the handler is interrupted in vain, and the attempt does not count.
    let before: i64 = one(&mut client, "SELECT token FROM queue.tasks WHERE state = 'running'");
    run(&mut client, &format!("BEGIN; SAVEPOINT a; SELECT queue.cancel({id}); ROLLBACK TO a; COMMIT"));
    eventually("it has the task again", SOON, || {
        one(&mut client, &format!("SELECT token > {before} AND state = 'running' FROM queue.tasks"))
    });
    await_lock(&mut client, 7);
    run(&mut client, &format!("SELECT queue.cancel({id})"));
    await_state(&mut client, id, "cancelled");
    assert_eq!(one::<i32>(&mut client, &format!("SELECT attempt FROM queue.history WHERE id = {id}")), 1);
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM public.done"), 0, "its changes are rolled back");
    create(&mut client, NOTE);
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
}

#[test]
fn a_cancellation_waits_for_a_handler_that_has_changed_its_task() {
    let (cluster, mut client) = start("handlers-cancel-late");
    attach(
        &mut client,
        "PERFORM queue.extend(task.id, task.token, '1 hour');
         PERFORM pg_advisory_xact_lock(8), pg_advisory_xact_lock(7); RETURN NULL;",
        1,
    );
    let mut gate = client.transaction().expect("begin");
    gate.execute("SELECT pg_advisory_xact_lock(7)", &[]).expect("lock");
    let mut other = cluster.connect();
    let id = push(&mut other, ", lease => '1 hour'");
    await_lock(&mut other, 8);
    let cancelled = std::thread::scope(|scope| {
        let mut canceller = cluster.connect();
        let cancel = scope.spawn(move || canceller.query_one("SELECT queue.cancel($1)", &[&id]));
        eventually("the cancellation waits", SOON, || {
            one(
                &mut other,
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE query LIKE 'SELECT queue.cancel(%' AND wait_event_type = 'Lock' AND wait_event = 'transactionid'",
            )
        });
        gate.rollback().expect("unlock");
        cancel.join().expect("the canceller")
    });
    let refused = cancelled.expect_err("the task has completed");
    assert_eq!(refused.code().expect("an SQLSTATE").code(), "QX005");
    await_state(&mut client, id, "completed");
}

#[test]
fn a_lease_that_was_ended_rolls_the_handler_back_and_is_no_failure() {
    let (_cluster, mut client) = start("handlers-lost");
    attach(
        &mut client,
        "INSERT INTO public.done VALUES (task.id, task.attempt, 'handled');
         IF task.attempt = 1 THEN PERFORM pg_advisory_xact_lock(8), pg_advisory_xact_lock(7); END IF; RETURN NULL;",
        1,
    );
    let mut gate = client.transaction().expect("begin");
    gate.execute("SELECT pg_advisory_xact_lock(7)", &[]).expect("lock");
    let id: i64 = {
        let mut other = _cluster.connect();
        let id = push(&mut other, "");
        await_lock(&mut other, 8);
        run(&mut other, &format!("SELECT queue.end_lease({id})"));
        id
    };
    gate.rollback().expect("unlock");
    await_state(&mut client, id, "completed");
    let done: String =
        one(&mut client, "SELECT string_agg(attempt::text, ' ' ORDER BY attempt) FROM public.done");
    assert_eq!(done, "2", "only the second attempt has an effect");
    let errors: i32 =
        one(&mut client, &format!("SELECT jsonb_array_length(errors) FROM queue.history WHERE id = {id}"));
    assert_eq!(errors, 1, "only that its lease was ended");
}

#[test]
fn a_handler_may_end_its_task_itself() {
    let (_cluster, mut client) = start("handlers-own");
    attach(
        &mut client,
        "INSERT INTO public.done VALUES (task.id, task.attempt, 'kept');
         CASE task.kind
             WHEN 'fail' THEN PERFORM queue.fail(task.id, task.token, 'bad address', permanent => true);
             WHEN 'complete' THEN PERFORM queue.complete(task.id, task.token, '\"own\"');
             WHEN 'extend' THEN PERFORM queue.extend(task.id, task.token, '1 hour');
             WHEN 'sleep' THEN
                 IF queue.sleep(task.id, task.token, 'nap', interval '100 ms') THEN NULL; END IF;
         END CASE;
         RETURN '\"returned\"';",
        1,
    );
    for (kind, state, result) in [
        ("fail", "failed", None),
        ("complete", "completed", Some("\"own\"")),
        ("extend", "completed", Some("\"returned\"")),
        ("sleep", "completed", Some("\"returned\"")),
    ] {
        let id = push(&mut client, &format!(", kind => '{kind}'"));
        await_state(&mut client, id, state);
        let found: Option<String> =
            one(&mut client, &format!("SELECT result::text FROM queue.all_tasks WHERE id = {id}"));
        assert_eq!(found.as_deref(), result, "{kind}");
        let kept: i64 = one(&mut client, &format!("SELECT count(*) FROM public.done WHERE id = {id}"));
        assert_eq!(kept, if kind == "sleep" { 2 } else { 1 }, "{kind}: its changes are kept");
    }
}

#[test]
fn a_cancelled_statement_of_a_process_is_a_failed_attempt_or_nothing() {
    let (_cluster, mut client) = start("handlers-cancel-backend");
    attach(&mut client, HANG, 1);
    let cancel = |client: &mut postgres::Client| {
        run(
            client,
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'queue_ext handler'",
        );
    };
    let pid = processes(&mut client);
    cancel(&mut client);
    let id = push(&mut client, ", max_attempts => 1, lease => '1 hour'");
    await_lock(&mut client, 7);
    cancel(&mut client);
    await_state(&mut client, id, "failed");
    let error = last_error(&mut client, id);
    assert_eq!(error["details"]["sqlstate"], "57014", "{error}");
    assert_eq!(processes(&mut client), pid, "it is the same process");
}

#[test]
fn a_cancelled_claim_is_repeated_by_the_same_process() {
    let (cluster, mut client) = start("handlers-cancel-claim");
    run(&mut client, "ALTER SYSTEM SET queue.sweep_interval = '1s'");
    run(&mut client, "SELECT pg_reload_conf()");
    attach(&mut client, NOTE, 1);
    let pid = processes(&mut client);
    run(&mut client, "BEGIN; LOCK TABLE queue.tasks");
    eventually("the claim waits", SOON, || {
        one(
            &mut client,
            "SELECT count(pg_cancel_backend(pid)) > 0 FROM pg_stat_activity
             WHERE backend_type = 'queue_ext handler' AND wait_event_type = 'Lock'",
        )
    });
    run(&mut client, "COMMIT");
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
    assert_eq!(processes(&mut client), pid, "it is the same process");
    assert!(!cluster.log().contains("the handler of queue"), "{}", cluster.log());
}

#[test]
fn a_handler_cannot_commit() {
    let (_cluster, mut client) = start("handlers-commit");
    attach(&mut client, "COMMIT; RETURN NULL;", 1);
    let id = push(&mut client, ", max_attempts => 1");
    await_state(&mut client, id, "failed");
    let error = last_error(&mut client, id);
    assert_eq!(error["details"]["sqlstate"], "2D000", "{error}");
    eventually("the process goes on", SOON, || processes(&mut client).len() == 1);
}

#[test]
fn a_handler_may_end_its_task_after_any_number_of_other_changes() {
    let (_cluster, mut client) = start("handlers-many");
    run(&mut client, "SELECT queue.create('other'); SELECT queue.grant_producer('app', 'other')");
    attach(
        &mut client,
        "PERFORM count(queue.push('other')) FROM generate_series(1, 3000);
         BEGIN
             PERFORM queue.fail(task.id, task.token, 'not kept', permanent => true);
             RAISE EXCEPTION 'rolls back';
         EXCEPTION WHEN raise_exception THEN NULL; END;
         IF task.kind = 'own' THEN PERFORM queue.complete(task.id, task.token, '\"own\"'); END IF;
         RETURN '\"returned\"';",
        1,
    );
    for (kind, result) in [("own", "\"own\""), ("other", "\"returned\"")] {
        let id = push(&mut client, &format!(", kind => '{kind}', lease => '1 minute', max_attempts => 1"));
        await_state(&mut client, id, "completed");
        let query = format!("SELECT result::text FROM queue.history WHERE id = {id}");
        assert_eq!(one::<String>(&mut client, &query), result, "{kind}");
    }
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'other'"), 6000);
}

#[test]
fn a_deferred_trigger_is_cancelled_at_the_end_of_the_lease_as_well() {
    let (_cluster, mut client) = start("handlers-slow-commit");
    run(
        &mut client,
        "CREATE FUNCTION public.hang() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); RETURN NULL; END';
         CREATE CONSTRAINT TRIGGER hang AFTER INSERT ON public.done DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION public.hang()",
    );
    attach(&mut client, NOTE, 1);
    let id = push(&mut client, ", lease => '300 ms', max_attempts => 1");
    await_state(&mut client, id, "failed");
    let error = last_error(&mut client, id);
    assert_eq!(error["error"], "57014: the handler did not return before the end of its lease", "{error}");
}

#[test]
fn a_handler_that_catches_its_cancellation_ends_with_its_process() {
    let (_cluster, mut client) = start("handlers-stubborn");
    attach(
        &mut client,
        "LOOP BEGIN PERFORM pg_sleep(3600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP;",
        1,
    );
    let pid = processes(&mut client);
    let id = push(&mut client, ", lease => '500 ms', max_attempts => 1");
    await_state(&mut client, id, "failed");
    assert_eq!(last_error(&mut client, id)["error"], "lease expired");
    eventually("another process", SOON, || {
        let now = processes(&mut client);
        now.len() == 1 && now != pid
    });
    create(&mut client, NOTE);
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
}
