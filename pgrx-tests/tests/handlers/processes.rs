//! The life of the processes: databases and extensions that are dropped, servers with too few processes, and dumps.

use std::time::Instant;

use super::{
    HANG, NOTE, attach, await_lock, await_state, create, one, prepare, prepare_database, processes, push,
    run, start,
};
use queue_ext_tests::{Cluster, SOON, Settings, WOKEN, eventually, stalls};

#[test]
fn commands_on_a_database_are_not_held_up_by_its_handlers() {
    let (mut cluster, mut client) = start("handlers-databases");
    run(&mut client, "CREATE DATABASE shop");
    let mut shop = cluster.connect_to("shop");
    run(&mut shop, "CREATE EXTENSION queue_ext");
    prepare_database(&mut shop);
    cluster.await_worker("shop");
    attach(&mut shop, HANG, 2);
    let id = push(&mut shop, ", lease => '1 hour'");
    await_lock(&mut shop, 7);
    drop(shop);
    // One process sleeps, and the other one runs a task, which it gives back.
    for command in
        ["CREATE DATABASE copy TEMPLATE shop", "ALTER DATABASE shop RENAME TO store", "DROP DATABASE copy"]
    {
        let started = Instant::now();
        run(&mut client, command);
        assert!(stalls::since(started) < WOKEN, "{command} was held up");
    }
    let mut store = cluster.connect_to("store");
    await_lock(&mut store, 7);
    let state: String =
        one(&mut store, &format!("SELECT state || attempt FROM queue.all_tasks WHERE id = {id}"));
    assert_eq!(state, "running1", "it is claimed again, and the interrupted attempts do not count");
    drop(store);
    let started = Instant::now();
    run(&mut client, "DROP DATABASE store");
    assert!(stalls::since(started) < WOKEN, "DROP DATABASE was held up");
    let left: i64 =
        one(&mut client, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue_ext handler'");
    assert_eq!(left, 0);
}

#[test]
fn dropping_the_extension_ends_its_handlers() {
    let (cluster, mut client) = start("handlers-extension");
    for _ in 0..3 {
        attach(&mut client, NOTE, 2);
        run(&mut client, "SELECT count(queue.push('work')) FROM generate_series(1, 200)");
        let started = Instant::now();
        run(&mut client, "DROP EXTENSION queue_ext CASCADE; DROP TABLE public.done");
        assert!(stalls::since(started) < WOKEN, "DROP EXTENSION was held up");
        eventually("the processes exit", SOON, || processes(&mut client).is_empty());
        run(&mut client, "CREATE EXTENSION queue_ext");
        prepare_database(&mut client);
    }
    assert!(!cluster.log().contains("deadlock"), "{}", cluster.log());
}

#[test]
fn too_few_worker_processes_are_reported_and_tried_again() {
    // The launcher, the worker, the launcher of logical replication, and one for a handler.
    let settings = Settings { preload: true, extra: "max_worker_processes = 4" };
    let mut cluster = Cluster::start_with("handlers-few", &settings);
    let mut client = cluster.connect();
    prepare(&mut client);
    cluster.await_worker("postgres");
    create(&mut client, NOTE);
    run(&mut client, "SELECT queue.attach('work', 'public.handle(queue.claimed_task)', 'app', 3)");
    let health = "SELECT coalesce(string_agg(detail || ': ' || hint, '; '), '') FROM queue.health()
                  WHERE name = 'handlers' AND status = 'warning'";
    eventually("health reports it", SOON, || {
        let row: String = one(&mut client, health);
        row.contains("processes for handlers could not be started: Raise max_worker_processes")
    });
    let warnings = |cluster: &Cluster| cluster.log().matches("could not be started").count();
    assert_eq!(warnings(&cluster), 1, "{}", cluster.log());
    let id = push(&mut client, "");
    await_state(&mut client, id, "completed");
    let running = processes(&mut client).len();
    // With one handler fewer, the others get the remaining processes.
    run(
        &mut client,
        &format!("SELECT queue.attach('work', 'public.handle(queue.claimed_task)', 'app', {running})"),
    );
    eventually("health is well", SOON, || one::<String>(&mut client, health).is_empty());
    assert_eq!(warnings(&cluster), 1, "it is logged once");
}

#[test]
fn processes_exit_with_their_worker_and_the_next_one_starts_others() {
    let (mut cluster, mut client) = start("handlers-worker");
    attach(&mut client, NOTE, 2);
    let before = processes(&mut client);
    let worker = cluster.await_worker("postgres");
    run(&mut client, &format!("SELECT pg_terminate_backend({worker})"));
    eventually("others are there", SOON, || {
        let now = processes(&mut client);
        now.len() == 2 && !now.iter().any(|pid| before.contains(pid))
    });
    let reload = "SELECT pg_reload_conf()";
    run(&mut client, "ALTER SYSTEM SET queue.worker_enabled = off");
    run(&mut client, reload);
    eventually("they exit", SOON, || processes(&mut client).is_empty());
    let id = push(&mut client, "");
    run(&mut client, "ALTER SYSTEM RESET queue.worker_enabled");
    run(&mut client, reload);
    await_state(&mut client, id, "completed");
}

#[test]
fn a_terminated_process_is_replaced() {
    let (_cluster, mut client) = start("handlers-terminated");
    attach(&mut client, HANG, 1);
    let id = push(&mut client, ", lease => '1 hour'");
    await_lock(&mut client, 7);
    let pid = processes(&mut client)[0];
    run(&mut client, &format!("SELECT pg_terminate_backend({pid})"));
    eventually("another one is there", SOON, || processes(&mut client).iter().any(|now| *now != pid));
    assert_eq!(one::<i64>(&mut client, "SELECT count(*) FROM public.done"), 0, "its changes are rolled back");
    create(&mut client, NOTE);
    run(&mut client, &format!("SELECT queue.end_lease({id})"));
    await_state(&mut client, id, "completed");
}

#[test]
fn a_restored_dump_starts_the_handlers() {
    let (cluster, mut client) = start("handlers-dump");
    attach(&mut client, NOTE, 1);
    let folder = cluster.folder().to_str().expect("a plain path").to_owned();
    let file = format!("{folder}/dump");
    cluster.run("pg_dump", &["-h", &folder, "-U", "postgres", "-Fc", "-f", &file, "postgres"]);
    run(&mut client, "SELECT queue.detach('work')");
    run(&mut client, "CREATE DATABASE copy");
    cluster.run("pg_restore", &["-h", &folder, "-U", "postgres", "-d", "copy", &file]);
    let mut copy = cluster.connect_to("copy");
    let id = push(&mut copy, "");
    await_state(&mut copy, id, "completed");
    assert_eq!(one::<i64>(&mut copy, "SELECT count(*) FROM public.done"), 1);
}

#[test]
fn a_copy_of_a_database_runs_the_handlers_of_its_template() {
    let (cluster, mut client) = start("handlers-template");
    attach(&mut client, NOTE, 1);
    drop(client);
    run(&mut cluster.connect_to("template1"), "CREATE DATABASE copy TEMPLATE postgres");
    let mut copy = cluster.connect_to("copy");
    let id = push(&mut copy, "");
    await_state(&mut copy, id, "completed");
    assert_eq!(one::<i64>(&mut copy, "SELECT count(*) FROM public.done"), 1);
}
