//! No token of a task is issued twice, whatever happens to the server. A lost claim has issued a token, too.
//! `TOKENS_CRASHES` sets how often each edition crashes, three times by default.

use std::collections::{HashMap, HashSet};
use std::fs;

use postgres::Client;
use queue_ext_tests::clock::Speed;
use queue_ext_tests::cluster::signal;
use queue_ext_tests::edition::{Edition, Worker};
use queue_ext_tests::{Cluster, SOON, eventually, number, run};

const DAY: i64 = 86_400;

/// A server whose commits stay in memory for long, and are lost when it is killed.
fn cluster(name: &str, edition: Edition, databases: &[&str]) -> Cluster {
    let cluster = edition.cluster(&format!("tokens-{name}"), Worker::On);
    let mut client = cluster.connect();
    run(&mut client, "ALTER SYSTEM SET wal_writer_delay = '10s'");
    run(&mut client, "ALTER SYSTEM SET wal_writer_flush_after = '1GB'");
    run(&mut client, "ALTER SYSTEM SET autovacuum = off");
    run(&mut client, "SELECT pg_reload_conf()");
    for database in databases {
        if *database != "postgres" {
            run(&mut client, &format!("CREATE DATABASE {database}"));
        }
        edition.install(&cluster, database);
    }
    cluster
}

/// A session whose commits do not wait for the disk, as far as it can choose.
fn careless(cluster: &Cluster, database: &str) -> Client {
    let mut client = cluster.connect_to(database);
    run(&mut client, "SET synchronous_commit = off; SET queue.durable_leases = off");
    client
}

/// The tokens issued so far, and the last claim of each task.
#[derive(Default)]
struct Book {
    given: HashSet<(i64, i64)>,
    largest: HashMap<i64, i64>,
    repeated: Vec<(i64, i64)>,
    /// Tokens that are not larger than one that was handed out before.
    smaller: Vec<(i64, i64)>,
}

impl Book {
    fn note(&mut self, id: i64, token: i64) {
        assert!(0 < token && token < 1 << 53, "token {token}");
        if !self.given.insert((id, token)) {
            self.repeated.push((id, token));
        }
        let largest = self.largest.entry(id).or_default();
        if token <= *largest {
            self.smaller.push((id, token));
        }
        *largest = token.max(*largest);
    }

    /// Claims all tasks, in every way.
    fn claim_all(&mut self, client: &mut Client) -> usize {
        let mut claimed = 0;
        let mut last: Option<(i64, i64)> = None;
        loop {
            let query = match (claimed % 3, last) {
                (0, Some((id, token))) => {
                    format!(
                        "SELECT id, token::bigint FROM queue.complete_and_claim({id}, {token}, lease => '1 hour')"
                    )
                }
                (1, _) => "SELECT id, token::bigint FROM queue.claim('1 hour', max_tasks => 5)".to_owned(),
                _ => "SELECT id, token::bigint FROM queue.claim('1 hour')".to_owned(),
            };
            let rows = client.query(&query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}"));
            if rows.is_empty() {
                return claimed;
            }
            claimed += rows.len();
            for row in rows {
                last = Some((row.get(0), row.get(1)));
                self.note(row.get(0), row.get(1));
            }
        }
    }

    /// How many claims the tables have forgotten.
    fn lost(&self, client: &mut Client) -> usize {
        let ended = client.query("SELECT id, token::bigint FROM queue.all_tasks", &[]).expect("look");
        let there: HashMap<i64, i64> = ended.iter().map(|row| (row.get(0), row.get(1))).collect();
        self.largest.iter().filter(|(id, token)| there.get(id).is_none_or(|there| there < token)).count()
    }

    /// A call with an older token than the last one is refused.
    fn wrong_holders_are_refused(&self, client: &mut Client) {
        let mut refused = 0;
        for (id, token) in self.given.iter().filter(|(id, token)| self.largest[id] != *token) {
            let error = client
                .execute(&format!("SELECT queue.complete({id}, {token})"), &[])
                .expect_err("the token of a lost claim");
            let code = error.code().expect("a code").code();
            assert_eq!(code, "QX001", "{id}, {token}: {error}");
            refused += 1;
        }
        println!("{refused} refused");
    }

    fn is_right(&self) {
        assert!(self.repeated.is_empty(), "handed out twice: {:?}", self.repeated);
        assert!(self.smaller.is_empty(), "not larger than those before: {:?}", self.smaller);
    }
}

fn crashes() -> usize {
    std::env::var("TOKENS_CRASHES").map_or(3, |number| number.parse().expect("a number"))
}

/// Waits until claims of this database need not be durable.
fn await_base(client: &mut Client, before: i64) -> i64 {
    let mark = "SELECT reached FROM queue_internal.token_mark";
    eventually("the worker raises the mark", SOON, || number(client, mark) > before);
    number(client, mark)
}

fn crash(cluster: &mut Cluster, number: usize) {
    match number % 3 {
        0 => cluster.kill_all(),
        1 => cluster.stop("immediate"),
        _ => {
            // One session is killed, and the server restarts by itself.
            let mut victim = cluster.connect();
            let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).expect("pid").get(0);
            let told = cluster.log().matches("was terminated by signal 9").count();
            signal(pid, 9);
            eventually("the server notices", SOON, || {
                cluster.log().matches("was terminated by signal 9").count() > told
            });
            eventually("the server is back", SOON, || cluster.try_connect("postgres").is_some());
            return;
        }
    }
    cluster.launch();
}

/// Crashes an edition repeatedly, with claims that were not waited for; returns how many claims were lost.
fn brought_down(edition: Edition) -> usize {
    let mut cluster = cluster("crash", edition, &["postgres"]);
    let with_mark = matches!(edition, Edition::FastPath | Edition::Core);
    let (mut book, mut lost, mut mark) = (Book::default(), 0, 0);
    for number in 0..crashes() {
        let mut client = careless(&cluster, "postgres");
        // Before the worker, or as it comes.
        book.claim_all(&mut client);
        if with_mark {
            mark = await_base(&mut cluster.connect(), mark);
        }
        push(&mut cluster.connect(), 100);
        assert!(book.claim_all(&mut client) >= 100);
        crash(&mut cluster, number);
        lost += book.lost(&mut cluster.connect());
    }
    let mut client = careless(&cluster, "postgres");
    book.claim_all(&mut client);
    book.is_right();
    book.wrong_holders_are_refused(&mut client);
    lost
}

#[test]
fn no_token_is_issued_twice_natively() {
    assert!(brought_down(Edition::FastPath) > 0, "nothing was lost, so nothing was tested");
}

#[test]
fn no_token_is_issued_twice_without_the_fast_path() {
    assert!(brought_down(Edition::Core) > 0, "nothing was lost, so nothing was tested");
}

#[test]
fn no_claim_is_lost_without_preload() {
    assert_eq!(brought_down(Edition::NoPreload), 0);
}

#[test]
fn no_claim_is_lost_in_the_sql_only_edition() {
    assert_eq!(brought_down(Edition::SqlOnly), 0);
}

/// Pushes tasks that are due by any clock.
fn push(client: &mut Client, tasks: i64) {
    number(
        client,
        &format!(
            "SELECT count(*) FROM queue.push_many('default', array_fill('{{}}'::jsonb, ARRAY[{tasks}::int]),
                                                  run_at => '1990-01-01', max_attempts => 1000)"
        ),
    );
}

/// The standby has received the pushes and nothing later: the primary restarted twice since. The standby's clock is
/// half an hour behind.
fn taken_over(name: &str, edition: Edition) {
    let mut primary = cluster(name, edition, &["postgres"]);
    let mut client = careless(&primary, "postgres");
    let mut mark = 0;
    if edition == Edition::FastPath {
        mark = await_base(&mut client, 0);
    }
    run(&mut client, "SET synchronous_commit = on");
    push(&mut client, 40);
    run(&mut client, "SET synchronous_commit = off");
    let mut standby = primary.standby(&format!("tokens-{name}-standby-{}", edition.name()));
    let clock = standby.with_fake_clock();
    clock.set(-1800, Speed::Real);
    standby.stop("fast");
    run(&mut client, "CHECKPOINT");
    // It hears nothing from now on.
    let conf = standby.folder().join("data/postgresql.auto.conf");
    let lines = fs::read_to_string(&conf).expect("read");
    fs::write(&conf, lines.replace("primary_conninfo", "#primary_conninfo")).expect("write");
    standby.launch();
    let mut book = Book::default();
    assert_eq!(book.claim_all(&mut client), 40);
    // Another life, with a base that the standby does not know.
    primary.kill_all();
    primary.launch();
    let mut client = careless(&primary, "postgres");
    if edition == Edition::FastPath {
        await_base(&mut client, mark);
    }
    book.claim_all(&mut client);
    primary.kill_all();
    standby.promote();
    let mut client = careless(&standby, "postgres");
    // At once, before its worker is there.
    assert_eq!(book.claim_all(&mut client), 40);
    book.is_right();
    book.wrong_holders_are_refused(&mut client);
    // And again, once it has a base of its own.
    if edition == Edition::FastPath {
        standby.await_worker("postgres");
        await_base(&mut client, mark + 1_000_000);
    }
    push(&mut client, 10);
    assert!(book.claim_all(&mut client) >= 10);
    book.is_right();
}

#[test]
fn an_asynchronous_standby_that_received_nothing_issues_larger_tokens() {
    taken_over("asynchronous", Edition::FastPath);
    taken_over("asynchronous", Edition::NoPreload);
}

#[test]
fn a_synchronous_standby_issues_larger_tokens() {
    let mut primary = cluster("synchronous", Edition::FastPath, &["postgres"]);
    let mut standby = primary.standby("tokens-synchronous-standby");
    let mut client = careless(&primary, "postgres");
    run(&mut client, "ALTER SYSTEM SET synchronous_standby_names = '*'");
    run(&mut client, "SELECT pg_reload_conf()");
    await_base(&mut client, 0);
    push(&mut client, 40);
    let mut book = Book::default();
    assert_eq!(book.claim_all(&mut client), 40);
    primary.kill_all();
    standby.promote();
    let mut client = careless(&standby, "postgres");
    book.claim_all(&mut client);
    book.is_right();
    standby.await_worker("postgres");
    push(&mut client, 10);
    assert!(book.claim_all(&mut client) >= 10);
    book.is_right();
}

/// The copy starts as after a crash, on the same timeline.
#[test]
fn a_base_backup_from_before_the_claims_issues_larger_tokens() {
    let mut cluster = cluster("backup", Edition::FastPath, &["postgres"]);
    let mut client = careless(&cluster, "postgres");
    await_base(&mut client, 0);
    run(&mut client, "SET synchronous_commit = on");
    push(&mut client, 40);
    run(&mut client, "SET synchronous_commit = off");
    let mut copies = ["tokens-restored", "tokens-restored-set-back"].map(|name| {
        let mut copy = cluster.standby(name);
        copy.stop("fast");
        fs::remove_file(copy.folder().join("data/standby.signal")).expect("remove standby.signal");
        copy
    });
    let mut book = Book::default();
    assert_eq!(book.claim_all(&mut client), 40);
    // Another life, with a base that the copies do not know.
    cluster.kill_all();
    cluster.launch();
    let mut client = careless(&cluster, "postgres");
    await_base(&mut client, 1_000_001);
    book.claim_all(&mut client);
    cluster.kill_all();
    for (copy, ahead) in copies.iter_mut().zip([0, -DAY]) {
        copy.with_fake_clock().set(ahead, Speed::Real);
        copy.launch();
        let mut client = careless(copy, "postgres");
        assert_eq!(book.claim_all(&mut client), 40);
        assert!(book.repeated.is_empty(), "handed out twice: {:?}", book.repeated);
        if ahead == 0 {
            book.is_right();
            book.wrong_holders_are_refused(&mut client);
        }
        copy.stop("immediate");
    }
}

#[test]
fn a_clock_that_was_set_back_repeats_no_token() {
    let mut cluster = cluster("clock", Edition::FastPath, &["postgres"]);
    let clock = cluster.with_fake_clock();
    let (mut book, mut mark) = (Book::default(), 0);
    for ahead in [0, -365 * DAY, -20 * 365 * DAY, 100 * 365 * DAY, 0, 2_000 * 365 * DAY, 0] {
        cluster.kill_all();
        clock.set(ahead, Speed::Real);
        cluster.launch();
        let mut client = careless(&cluster, "postgres");
        mark = await_base(&mut client, mark);
        push(&mut cluster.connect(), 20);
        book.claim_all(&mut client);
        book.is_right();
    }
}

/// One whose mark is locked claims as soon as it is not any more; the others do not wait for it.
#[test]
fn databases_do_not_wait_for_one_another() {
    let names = ["postgres", "second", "third"];
    let mut cluster = cluster("many", Edition::FastPath, &names);
    let mut books: [Book; 3] = Default::default();
    for name in names {
        let mut client = cluster.connect_to(name);
        await_base(&mut client, 0);
        push(&mut client, 50);
    }
    for (name, book) in names.iter().zip(&mut books) {
        assert_eq!(book.claim_all(&mut careless(&cluster, name)), 50);
    }
    cluster.kill_all();
    cluster.launch();
    let mut holder = cluster.connect_to("second");
    run(&mut holder, "BEGIN; LOCK TABLE queue_internal.token_mark IN ACCESS EXCLUSIVE MODE");
    for (name, book) in names.iter().zip(&mut books).filter(|(name, _)| **name != "second") {
        let mut client = careless(&cluster, name);
        book.claim_all(&mut client);
        await_base(&mut client, 1_000_001);
        push(&mut client, 10);
        assert!(book.claim_all(&mut client) >= 10);
    }
    run(&mut holder, "ROLLBACK");
    books[1].claim_all(&mut careless(&cluster, "second"));
    books.iter().for_each(Book::is_right);
}

/// A prepared claim is stored, and its token counts after the crash.
#[test]
fn a_prepared_claim_keeps_its_token() {
    let mut cluster = cluster("prepared", Edition::FastPath, &["postgres"]);
    run(&mut cluster.connect(), "ALTER SYSTEM SET max_prepared_transactions = 5");
    cluster.stop("fast");
    cluster.launch();
    let mut client = careless(&cluster, "postgres");
    await_base(&mut client, 0);
    run(&mut client, "SET synchronous_commit = on");
    push(&mut client, 10);
    run(&mut client, "SET synchronous_commit = off; BEGIN");
    let row = client.query_one("SELECT id, token FROM queue.claim('1 hour')", &[]).expect("claim");
    let (id, token): (i64, i64) = (row.get(0), row.get(1));
    run(&mut client, "PREPARE TRANSACTION 'claimed'");
    let mut book = Book::default();
    book.note(id, token);
    assert_eq!(book.claim_all(&mut client), 9);
    cluster.kill_all();
    cluster.launch();
    let mut client = careless(&cluster, "postgres");
    book.claim_all(&mut client);
    run(&mut client, "COMMIT PREPARED 'claimed'");
    book.is_right();
    run(&mut client, &format!("SELECT queue.complete({id}, {token})"));
}
