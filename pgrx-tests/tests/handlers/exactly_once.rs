//! Each task has its effect once, although processes and servers are killed. `HANDLER_KILLS=100` for more than 6 kills.

use super::{SOON, attach, await_lock, await_state, one, processes, push, run, start};
use queue_ext_tests::cluster::signal;
use queue_ext_tests::{Cluster, eventually};

fn kills() -> u32 {
    std::env::var("HANDLER_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6)
}

fn effects(cluster: &Cluster) -> i64 {
    one(&mut cluster.connect(), "SELECT count(*) FROM public.done")
}

#[test]
fn effects_happen_exactly_once_through_kills_and_stops() {
    let (mut cluster, mut client) = start("handlers-kills");
    run(&mut client, "SELECT queue.configure('work', '{\"lease\": \"2 seconds\", \"max_attempts\": 1000}')");
    attach(
        &mut client,
        "INSERT INTO public.done VALUES (task.id, task.attempt, 'done'); PERFORM pg_sleep(0.002); RETURN NULL;",
        3,
    );
    let mut pushed = 0;
    for round in 0..kills() {
        let mut client = cluster.connect();
        // Crashes come after claims that a crash may lose, and after claims that wait for the disk.
        let durable = if round % 2 == 0 { "off" } else { "on" };
        run(&mut client, &format!("SELECT queue.configure('work', '{{\"durable_leases\": \"{durable}\"}}')"));
        run(&mut client, "SELECT count(queue.push('work')) FROM generate_series(1, 400)");
        pushed += 400;
        let before = effects(&cluster);
        eventually("some are done", SOON, || effects(&cluster) > before + 20);
        match round % 6 {
            // The postmaster restarts all processes.
            0 | 3 => {
                let victim = processes(&mut client).into_iter().next().expect("a process");
                let crashes = || cluster.log().matches("was terminated by signal 9").count();
                let earlier = crashes();
                signal(victim, libc::SIGKILL);
                eventually("the server notices", SOON, || crashes() > earlier);
                eventually("it is back", SOON, || cluster.try_connect("postgres").is_some());
            }
            1 | 4 => {
                cluster.kill_all();
                cluster.launch();
            }
            2 => {
                cluster.stop("fast");
                cluster.launch();
            }
            _ => {
                cluster.stop("immediate");
                cluster.launch();
            }
        }
    }
    eventually("all are done", 3 * SOON, || effects(&cluster) >= pushed);
    let mut client = cluster.connect();
    let counts: String = one(
        &mut client,
        "SELECT concat_ws(' ', count(*), count(DISTINCT id), (SELECT count(*) FROM queue.history WHERE state = 'completed'),
                          (SELECT count(*) FROM queue.tasks)) FROM public.done",
    );
    assert_eq!(counts, format!("{pushed} {pushed} {pushed} 0"), "effects, tasks with one, completed, left");
}

#[test]
fn a_task_that_crashes_the_server_spends_its_attempts() {
    let (cluster, mut client) = start("handlers-poison");
    attach(&mut client, "PERFORM pg_advisory_xact_lock(7); PERFORM pg_sleep(3600); RETURN NULL;", 1);
    let id = push(&mut client, ", lease => '1 hour', max_attempts => 2");
    let mut spent = 0;
    let mut crashes = 0;
    while spent < 2 {
        let mut client = cluster.connect();
        await_lock(&mut client, 7);
        let query = format!("SELECT state || attempt FROM queue.all_tasks WHERE id = {id}");
        assert_eq!(one::<String>(&mut client, &query), format!("running{}", spent + 1), "operators see it");
        signal(processes(&mut client)[0], libc::SIGKILL);
        crashes += 1;
        let noticed = || cluster.log().matches("was terminated by signal 9").count() >= crashes;
        eventually("the server notices", SOON, noticed);
        eventually("it is back", SOON, || cluster.try_connect("postgres").is_some());
        let mut client = cluster.connect();
        let attempt: i32 = one(&mut client, &format!("SELECT attempt FROM queue.all_tasks WHERE id = {id}"));
        // A claim commits asynchronously, except for some time after a crash. So only the first one can be lost.
        assert!(attempt == spent + 1 || crashes == 1, "crash {crashes} spent no attempt");
        spent = attempt;
        if attempt > 0 {
            run(&mut client, &format!("SELECT queue.end_lease({id})"));
        }
    }
    await_state(&mut cluster.connect(), id, "failed");
}
