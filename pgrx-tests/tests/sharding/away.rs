//! A shard that dies under load, and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use queue_ext_tests::eventually;

use super::*;

/// The answers that the clients got.
#[derive(Default)]
struct Account {
    stop: AtomicBool,
    /// Pushes that returned.
    pushed: Mutex<BTreeSet<i64>>,
    /// How often each task's completion was accepted.
    completed: Mutex<BTreeMap<i64, usize>>,
    /// Calls whose answer got lost.
    cut: AtomicUsize,
}

/// Whether a shard that is down explains an error; any other error is a bug.
fn excused(account: &Account, error: &postgres::Error) {
    let said = error.as_db_error().unwrap_or_else(|| panic!("the router is away: {error:?}"));
    let excuse = ["XX000", "57P01", "57P02", "57P03", "08001"].contains(&said.code().code());
    // Its lease expired while its shard was down.
    let stale = said.code().code() == "QX001";
    assert!(excuse || stale, "{said:?}");
    account.cut.fetch_add(usize::from(excuse), Ordering::Relaxed);
}

fn pusher(sharded: &Sharded, account: &Arc<Account>, n: usize) -> JoinHandle<()> {
    let (mut client, account) = (sharded.router.connect(), Arc::clone(account));
    std::thread::spawn(move || {
        // Every third with a key, which has one home that may be away.
        for round in 0.. {
            if account.stop.load(Ordering::Relaxed) {
                break;
            }
            let key = (round % 3 == 0).then(|| format!("{n}-{round}"));
            match client.query_one("SELECT queue.push('load', key => $1)", &[&key]) {
                Ok(row) => drop(account.pushed.lock().expect("pushed").insert(row.get(0))),
                Err(error) => excused(&account, &error),
            }
        }
    })
}

fn worker(sharded: &Sharded, account: &Arc<Account>) -> JoinHandle<()> {
    let (mut client, account) = (sharded.router.connect(), Arc::clone(account));
    std::thread::spawn(move || {
        let complete = |client: &mut Client, id: i64, token: i64| match client
            .execute("SELECT queue.complete($1, $2)", &[&id, &token])
        {
            Ok(_) => *account.completed.lock().expect("completed").entry(id).or_default() += 1,
            Err(error) => excused(&account, &error),
        };
        while !account.stop.load(Ordering::Relaxed) {
            match client.query("SELECT id, token FROM queue.claim('3 seconds', 'load', 3)", &[]) {
                Ok(rows) => rows.iter().for_each(|row| complete(&mut client, row.get(0), row.get(1))),
                Err(error) => excused(&account, &error),
            }
        }
    })
}

/// How many tasks of the shards that are not `dead` were finished.
fn finished_elsewhere(account: &Account, dead: usize) -> usize {
    account.completed.lock().expect("completed").keys().filter(|id| shard_of(**id) != dead).count()
}

/// A shard is killed under load and restarted: the others continue without it, and it has lost nothing.
pub fn is_missed_by_nobody_and_loses_nothing(sharded: &mut Sharded) {
    run(&mut sharded.router.connect(), "SELECT queue.create('load')");
    let account = Arc::new(Account::default());
    let mut threads: Vec<_> = (0..2).map(|n| pusher(sharded, &account, n)).collect();
    threads.extend((0..3).map(|_| worker(sharded, &account)));
    let pushed = |account: &Account| account.pushed.lock().expect("pushed").len();
    eventually("there is load", SOON, || finished_elsewhere(&account, 1) > 100);

    const DEAD: usize = 1;
    let mut held = hold_some(sharded);
    sharded.shards[DEAD].kill_all();
    // Its tasks at that time, which no client may get before it is back.
    let (before, pushed_before) = (finished_elsewhere(&account, DEAD), pushed(&account));
    eventually("the others go on", SOON, || {
        finished_elsewhere(&account, DEAD) > before + 200 && pushed(&account) > pushed_before + 200
    });
    let mut client = sharded.router.connect();
    for _ in 0..30 {
        // Not one of them is turned away.
        let id = number(&mut client, "SELECT queue.push('load')");
        assert!(account.pushed.lock().expect("pushed").insert(id) && shard_of(id) != DEAD);
        run(&mut client, "SELECT * FROM queue.claim('1 second', 'load')");
    }
    let away = number(&mut client, "SELECT max(shards_away) FROM queue.stats");
    let problem =
        client.query_one("SELECT shard, problem FROM queue.shard_stats WHERE problem IS NOT NULL", &[]);
    let problem = problem.expect("the shard that is away");
    assert_eq!((away, problem.get::<_, i32>(0)), (1, DEAD as i32), "{}", problem.get::<_, &str>(1));
    assert_eq!(refused(&mut client, "SELECT queue.configure('load', '{\"max_attempts\": 100}')"), "XX000");

    what_names_it_fails(&mut client, DEAD, &mut held);
    sharded.shards[DEAD].launch();
    let there = |account: &Account| {
        account.completed.lock().expect("completed").keys().filter(|id| shard_of(**id) == DEAD).count()
    };
    let had = there(&account);
    eventually("it takes part again", SOON, || there(&account) > had + 50);
    comes_back(&mut client, &held);
    account.stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a client"));

    drain(&mut client, &account);
    settle(&mut client, &account);
}

/// A push whose session on the shard ends under it may have been done: it is not tried on the next one.
pub fn what_was_cut_off_is_not_tried_elsewhere(sharded: &Sharded) {
    for shard in &sharded.shards {
        let hangs_up = "CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                            PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
                        CREATE TRIGGER hang_up BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION hang_up()";
        run(&mut shard.connect(), hangs_up);
    }
    for push in ["SELECT queue.push('default')", "SELECT queue.push_many('default', '{1,2}')"] {
        // 08001 would mean that all shards were tried.
        assert_ne!(refused(&mut sharded.router.connect(), push), "08001", "{push}");
    }
    for shard in &sharded.shards {
        run(&mut shard.connect(), "DROP TRIGGER hang_up ON queue.tasks; DROP FUNCTION hang_up()");
    }
}

/// Tasks of all shards, leased for long: their ids and tokens.
fn hold_some(sharded: &Sharded) -> Vec<(i64, i64)> {
    let mut client = sharded.router.connect();
    // Their leases are to survive that the server is killed.
    run(
        &mut client,
        "SELECT queue.create('held', '{\"durable_leases\": \"on\"}'); SELECT queue.push('held') FROM generate_series(1, 60)",
    );
    let mut held = Vec::new();
    while held.len() < 60 {
        let rows =
            client.query("SELECT id, token FROM queue.claim('1 hour', 'held', 60)", &[]).expect("claim");
        held.extend(rows.iter().map(|row| (row.get(0), row.get(1))));
    }
    held
}

fn complete_many(client: &mut Client, tasks: &[(i64, i64)]) -> BTreeSet<i64> {
    let (ids, tokens): (Vec<i64>, Vec<i64>) = tasks.iter().copied().unzip();
    let accepted =
        client.query("SELECT queue.complete_many($1, $2)", &[&ids, &tokens]).expect("complete_many");
    accepted.iter().map(|row| row.get(0)).collect()
}

/// Calls for the dead shard are refused or leave it out; calls to all shards fail.
fn what_names_it_fails(client: &mut Client, dead: usize, held: &mut Vec<(i64, i64)>) {
    let codes: BTreeSet<Option<String>> = (0..20)
        .map(|n| client.simple_query(&format!("SELECT queue.push('default', key => 'dead-{n}')")))
        .map(|result| result.err().map(|error| error.code().expect("a code").code().to_owned()))
        .collect();
    assert_eq!(codes, BTreeSet::from([None, Some("08001".to_owned())]), "keys with a home there, and others");
    let id = held.iter().find(|(id, _)| shard_of(*id) == dead).expect("one of its tasks").0;
    assert_eq!(refused(client, &format!("SELECT queue.get({id})")), "XX000");
    let there: BTreeSet<i64> = held.iter().map(|task| task.0).filter(|id| shard_of(*id) != dead).collect();
    assert_eq!(complete_many(client, held), there, "the others are finished");
    held.retain(|task| shard_of(task.0) == dead);
    assert_eq!(refused(client, "SELECT queue.create('meanwhile')"), "XX000");
}

/// Its leases are still valid, and calls that were only half done can be repeated.
fn comes_back(client: &mut Client, held: &[(i64, i64)]) {
    assert_eq!(complete_many(client, held).len(), held.len());
    if let Err(error) = client.simple_query("SELECT queue.create('meanwhile')") {
        assert_eq!(error.code().map(|code| code.code()), Some("42710"));
    }
    let query = "SELECT count(*) FROM queue.shard_stats WHERE queue = 'meanwhile'";
    assert_eq!(number(client, query), SHARDS as i64);
}

/// Finishes the remaining tasks, after the leases whose answers were lost have expired.
fn drain(client: &mut Client, account: &Account) {
    eventually("all is done", SOON, || {
        let rows = client
            .query("SELECT id, token FROM queue.claim(queue => 'load', max_tasks => 1000)", &[])
            .expect("claim");
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let tokens: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
        let accepted =
            client.query("SELECT queue.complete_many($1, $2)", &[&ids, &tokens]).expect("complete");
        let mut completed = account.completed.lock().expect("completed");
        accepted.iter().for_each(|row| *completed.entry(row.get(0)).or_default() += 1);
        drop(completed);
        number(
            client,
            "SELECT sum(queued + running + scheduled)::bigint FROM queue.stats WHERE queue = 'load'",
        ) == 0
    });
}

/// Every acknowledged push exists and is finished once, and every task was pushed by a client.
fn settle(client: &mut Client, account: &Account) {
    let pushed = account.pushed.lock().expect("pushed");
    let completed = account.completed.lock().expect("completed");
    assert!(completed.values().all(|times| *times == 1), "a completion was accepted twice");
    let mut unheard = 0;
    for id in pushed.iter() {
        let state = client
            .query_one("SELECT state FROM queue.get($1)", &[id])
            .unwrap_or_else(|error| panic!("{id} is lost: {error:?}"));
        assert_eq!(state.get::<_, &str>(0), "completed", "{id}");
        unheard += usize::from(!completed.contains_key(id));
    }
    let total =
        number(client, "SELECT sum(completed_last_hour)::bigint FROM queue.stats WHERE queue = 'load'")
            as usize;
    let cut = account.cut.load(Ordering::Relaxed);
    println!(
        "{} pushed, {} completed, {total} in all; {cut} calls were cut off",
        pushed.len(),
        completed.len()
    );
    // A completion, or a push, that was done although its answer got lost.
    assert!(unheard <= cut, "{unheard} completions that nobody heard of, {cut} calls cut off");
    assert!((pushed.len()..=pushed.len() + cut).contains(&total), "{total} tasks");
}
