//! Locks on the extension, and the worker and the sessions that wait.

use super::*;
use postgres::NoTls;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A native claim finds a task with an expired lease, and a waiting session returns in time.
fn sessions_are_in_time(client: &mut Client) {
    run(client, "SELECT queue.push('a'); SELECT queue.claim('200 ms', 'a')");
    eventually("a claim takes over the lease that ran out", WOKEN, || {
        number(client, "SELECT count(*) FROM queue.claim('1 hour', 'a')") == 1
    });
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).expect("the session").get(0);
    let (started, excuse) = (Instant::now(), Excuse::of(pid));
    run(client, "SET lock_timeout = '3s'; CALL queue.wait('a', '1 second', NULL); RESET lock_timeout");
    let took = started.elapsed().saturating_sub(excuse.so_far());
    assert!(took < Duration::from_secs(3), "{took:?}");
    run(
        client,
        "SELECT queue.purge('a'); SELECT queue.complete(id, token) FROM queue.tasks WHERE queue = 'a'",
    );
}

#[test]
fn a_lock_on_the_extension_held_by_its_owner_blocks_nothing() {
    let (mut cluster, mut client, worker) = start("kept");
    run(&mut client, TICK);
    let mut owner = cluster.connect();
    run(
        &mut owner,
        "BEGIN; CREATE FUNCTION pg_temp.f() RETURNS integer LANGUAGE sql RETURN 1;
         ALTER FUNCTION pg_temp.f() DEPENDS ON EXTENSION queue_ext",
    );
    let kept = "SELECT count(*) FROM pg_locks WHERE classid = 'pg_extension'::regclass AND mode = 'AccessExclusiveLock'";
    assert_eq!(number(&mut client, kept), 1);
    sessions_are_in_time(&mut client);
    b_is_in_time(&mut client, while_it_lasts());
    assert_eq!(number(&mut client, kept), 1);
    run(&mut owner, "ROLLBACK");
    assert_eq!(cluster.await_worker("postgres"), worker);
}

#[test]
fn refused_commands_on_the_extension_block_nothing() {
    let (mut cluster, mut client, worker) = start("refused");
    run(&mut client, "CREATE ROLE nobody LOGIN");
    run(&mut client, TICK);
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sessions: Vec<_> = (0..4)
        .map(|_| {
            let config = cluster.config("postgres").user("nobody").clone();
            let (stop, refused) = (stop.clone(), refused.clone());
            std::thread::spawn(move || {
                let mut nobody = config.connect(NoTls).expect("connect");
                run(&mut nobody, "CREATE FUNCTION pg_temp.f() RETURNS integer LANGUAGE sql RETURN 1");
                let commands =
                    ["DROP EXTENSION queue_ext", "ALTER FUNCTION pg_temp.f() DEPENDS ON EXTENSION queue_ext"];
                for command in commands.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let error = nobody.batch_execute(command).expect_err("not the owner");
                    assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{command}");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    sessions_are_in_time(&mut client);
    b_is_in_time(&mut client, while_it_lasts());
    eventually("they are refused", SOON, || refused.load(Ordering::Relaxed) > 100);
    stop.store(true, Ordering::Relaxed);
    sessions.into_iter().for_each(|session| session.join().expect("a session"));
    assert_eq!(cluster.await_worker("postgres"), worker);
}
