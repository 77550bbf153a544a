//! Waiting sessions while the worker is at something else.

use super::*;

/// Holds the worker at a step, by a trigger that does not return as long as the step is in the table.
const HOLD: &str = "
    CREATE TABLE public.held (step text);
    CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        WHILE EXISTS (SELECT FROM public.held AS h WHERE h.step = TG_ARGV[0]) LOOP PERFORM pg_sleep(0.01); END LOOP;
        RETURN coalesce(NEW, OLD);
    END $$;
    CREATE TRIGGER hold BEFORE DELETE ON queue_internal.events FOR EACH ROW EXECUTE FUNCTION public.hold('events');
    CREATE TRIGGER hold BEFORE UPDATE ON queue.schedules FOR EACH ROW EXECUTE FUNCTION public.hold('schedules');
    ALTER TABLE queue_internal.events ENABLE ALWAYS TRIGGER hold;
    ALTER TABLE queue.schedules ENABLE ALWAYS TRIGGER hold";

/// The step that the worker is held at.
fn await_step(client: &mut Client, step: &str) {
    eventually(step, SOON, || {
        let query = "SELECT count(*) FROM pg_stat_activity
                     WHERE backend_type = 'queue_ext worker' AND wait_event = 'PgSleep' AND query = ";
        number(client, &format!("{query}'{step}'")) == 1
    });
}

#[test]
fn a_task_that_became_due_during_a_step_of_the_worker_wakes_a_waiter_before_the_next_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("waiting-steps");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('a'), queue.create('b'), queue.schedule('tick', '* * * * * *', 'a')",
    );
    run(&mut client, HOLD);
    eventually("the worker knows when the schedule runs", SOON, || {
        number(&mut client, "SELECT count(*) FROM queue.tasks WHERE queue = 'a'") > 0
    });

    run(&mut client, "INSERT INTO public.held VALUES ('events')");
    run(&mut client, "SELECT queue.push('a', group_key => 'g')");
    await_step(&mut client, "processing events");
    // Which is what it does next, since the schedule is late by then.
    run(&mut client, "INSERT INTO public.held VALUES ('schedules')");
    run(&mut client, "SELECT queue.push('b', delay => '300 ms')");
    let waiter = wait(&cluster, "CALL queue.wait('b')");
    await_waiters(&mut client, "b", 1);
    eventually("the task and the schedule are due", SOON, || {
        let due = "SELECT (SELECT max(run_at) FROM queue.tasks WHERE queue = 'b') < clock_timestamp() - interval '200 ms'
                      AND (SELECT next_run_at FROM queue.schedules) < clock_timestamp() - interval '200 ms'";
        client.query_one(due, &[]).expect(due).get(0)
    });
    assert_eq!(waiters(&mut client, "b"), 1, "the worker is held");

    run(&mut client, "DELETE FROM public.held WHERE step = 'events'");
    await_step(&mut client, "running schedules");
    eventually("the waiter is woken", WOKEN, || waiter.thread.is_finished());
    await_step(&mut client, "running schedules");
    assert!(waiter.done().0);
    run(&mut client, "DELETE FROM public.held");
}
