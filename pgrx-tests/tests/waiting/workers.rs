//! queue.workers shows the sessions that wait.

use super::*;

/// The rows for waiting workers, as "worker queue sessions", with whether a time is known.
fn waiting(client: &mut Client) -> Vec<String> {
    let query = "SELECT concat_ws(' ', coalesce(w.worker, '(none)'), w.queue, w.waiting, w.running)
                 FROM queue.workers AS w WHERE w.waiting > 0 AND w.waiting_since BETWEEN now() - interval '1 minute' AND clock_timestamp()
                 ORDER BY 1";
    client.query(query, &[]).expect("look").iter().map(|row| row.get(0)).collect()
}

#[test]
fn workers_that_wait_are_shown_by_name_and_queue() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = without_sweeps("waiting-workers");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('mail'), queue.create('files'); CREATE ROLE mail_boss LOGIN;
         SELECT queue.grant_operator('mail_boss', 'mail')",
    );
    let ada = [
        wait(&cluster, "CALL queue.wait('mail', '1 minute', worker => 'ada')"),
        wait(&cluster, "CALL queue.wait('mail', '1 minute', worker => 'ada')"),
    ];
    let _both = wait(&cluster, "CALL queue.wait(ARRAY['files', 'mail'], '1 minute', worker => 'both')");
    let _nameless = wait(&cluster, "CALL queue.wait('files')");
    let taker = {
        let mut worker = cluster.connect();
        thread::spawn(move || {
            worker
                .query_one("CALL queue.take('files', worker => 'taker')", &[])
                .map(|row| row.get::<_, i64>(0))
        })
    };
    let all = ["(none) files 1 0", "ada mail 2 0", "both files 1 0", "both mail 1 0", "taker files 1 0"];
    eventually("all are shown", SOON, || waiting(&mut client) == all);
    // Those of its own queue, to an operator of one.
    let mut boss = cluster.config("postgres").user("mail_boss").connect(postgres::NoTls).expect("connect");
    assert_eq!(waiting(&mut boss), ["ada mail 2 0", "both mail 1 0"]);
    // A worker that also has a lease is one row.
    run(&mut client, "SELECT queue.push('mail'); SELECT queue.claim(queue => 'mail', worker => 'ada')");
    eventually("one has returned, or none", SOON, || {
        let shown = waiting(&mut client);
        shown.contains(&"ada mail 2 1".to_owned()) || shown.contains(&"ada mail 1 1".to_owned())
    });
    // Sessions that return or are terminated disappear.
    for waiter in &ada {
        run(&mut client, &format!("SELECT pg_terminate_backend({})", waiter.pid));
    }
    eventually("they are gone", SOON, || {
        let shown = waiting(&mut client);
        !shown.iter().any(|row| row.starts_with("ada"))
    });
    run(&mut client, "SELECT count(*) FROM queue.push_many('files', array_fill('{}'::jsonb, ARRAY[3]))");
    assert!(taker.join().expect("join").expect("take") > 0);
    eventually("nobody waits for files", SOON, || {
        !waiting(&mut client).iter().any(|row| row.contains("files"))
    });
}

#[test]
fn the_name_of_a_waiting_worker_is_checked_and_may_have_any_character() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = without_sweeps("waiting-worker-names");
    let mut client = cluster.connect();
    let long = "ä".repeat(64);
    for (name, code) in [("", "22023"), (&*format!("{long}x"), "54000")] {
        let call = format!("CALL queue.wait('default', '1 minute', worker => '{name}')");
        let refused = client.simple_query(&call).expect_err("a name that is not allowed");
        assert_eq!(refused.code().map(|code| code.code()), Some(code), "{name}");
    }
    let mut session = cluster.connect();
    let call = format!("CALL queue.wait('default', '1 minute', worker => '{long}')");
    let waiter = thread::spawn(move || session.simple_query(&call).is_ok());
    eventually("it is shown", SOON, || waiting(&mut client) == [format!("{long} default 1 0")]);
    run(&mut client, "SELECT queue.push('default')");
    assert!(waiter.join().expect("join"));
    eventually("it is gone", SOON, || waiting(&mut client).is_empty());
}
