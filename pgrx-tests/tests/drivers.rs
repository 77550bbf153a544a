//! The functions as drivers see them: each call of a worker and a producer, from eight drivers, as prepared, simple
//! and pipelined statements, and through PgBouncer in transaction mode.
//!
//! `drivers/` has a program for each driver, which runs the calls that it is sent, so that the calls are defined only
//! here.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use queue_ext_tests::cluster::own_address;
use queue_ext_tests::languages::{self, Start};
use queue_ext_tests::{Cluster, PgBouncer, Settings, brief, pgbouncer};

#[path = "drivers/calls.rs"]
mod calls;
#[path = "drivers/contract.rs"]
mod contract;
#[path = "drivers/tokio_postgres.rs"]
mod with_tokio_postgres;

use calls::{Answer, Call};

/// How the statements are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Prepared,
    Simple,
    Pipelined,
    /// Through PgBouncer, as the docs advise users of the driver.
    Pooled,
}
use Mode::{Pipelined, Pooled, Prepared, Simple};

/// One of the drivers.
struct Driver {
    name: &'static str,
    program: &'static str,
    start: fn(&Path) -> Option<Start>,
    /// The parts of its URL before and after the address.
    url: (&'static str, &'static str),
    modes: &'static [Mode],
    /// Whether it can put values into a simple statement by itself.
    interpolates: bool,
    /// The types in which a bigint, an integer, jsonb, a timestamptz, a boolean and a text arrive.
    types: [&'static str; 5],
}

const URI: (&str, &str) = ("postgresql://postgres@", "/postgres");
const ALL: &[Mode] = &[Prepared, Simple, Pipelined, Pooled];

#[rustfmt::skip]
const DRIVERS: &[Driver] = &[
    Driver { name: "psycopg 3", program: "with_psycopg.py", start: languages::python, url: URI, modes: ALL, interpolates: true,
        types: ["int", "dict", "datetime", "bool", "str"] },
    Driver { name: "asyncpg", program: "with_asyncpg.py", start: languages::python, url: URI, modes: &[Prepared, Pooled], interpolates: false,
        types: ["int", "str", "datetime", "bool", "str"] },
    Driver { name: "pg (JavaScript)", program: "with_pg.mjs", start: languages::node, url: URI, modes: ALL, interpolates: false,
        types: ["string", "Object", "Date", "boolean", "string"] },
    Driver { name: "pgx (Go)", program: "with_pgx/main.go", start: languages::go, url: URI, modes: ALL, interpolates: true,
        types: ["int64", "map", "time.Time", "bool", "string"] },
    Driver { name: "JDBC", program: "WithJdbc.java", start: languages::java, url: ("jdbc:postgresql://", "/postgres?user=postgres"), modes: &[Prepared, Simple, Pooled], interpolates: true,
        types: ["Long", "PGobject", "Timestamp", "Boolean", "String"] },
    Driver { name: "pg (Ruby)", program: "with_pg.rb", start: languages::ruby, url: URI, modes: ALL, interpolates: false,
        types: ["String", "String", "String", "String", "String"] },
    Driver { name: "PDO (PHP)", program: "with_pdo.php", start: languages::php, url: ("pgsql:user=postgres;dbname=postgres;host=", ""), modes: &[Prepared, Simple, Pooled], interpolates: true,
        types: ["int", "string", "string", "bool", "string"] },
];

/// A running driver program.
struct Conversation {
    child: Child,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Conversation {
    fn say(&mut self, batch: &[Call], literal: bool) -> Vec<Answer> {
        let lines: String = batch.iter().map(|call| call.line(literal) + "\n").collect();
        let input = self.child.stdin.as_mut().expect("its input");
        input.write_all((lines + "\n").as_bytes()).and_then(|()| input.flush()).expect("it listens");
        let mut answers = Vec::new();
        while answers.len() < batch.len() {
            let line = self.answers.next().expect("it answers every call").expect("it can be read");
            answers.push(Answer::read(&line));
        }
        answers
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers")
}

/// All modes of a driver; nothing if it cannot be run here.
fn hold_to_contract(driver: &Driver, host: &str) -> Option<()> {
    let start = (driver.start)(&programs().join(driver.program)).or_else(|| {
        println!("{} is skipped: the machine lacks what it takes", driver.name);
        None
    })?;
    for mode in driver.modes {
        let port = if *mode == Pooled { pgbouncer::PORT } else { 5432 };
        // PDO has its port as a word.
        let address = match driver.url.1 {
            "" => format!("{host};port={port}"),
            _ => format!("{host}:{port}"),
        };
        let url = format!("{}{address}{}", driver.url.0, driver.url.1);
        let mut command = start();
        command.arg(format!("{mode:?}").to_lowercase()).env("DATABASE_URL", url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start it");
        let answers = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut conversation = Conversation { child, answers };
        let literal = *mode == Simple && !driver.interpolates;
        let who = format!("{}, {mode:?}", driver.name);
        contract::hold(&who, &driver.types, |batch| conversation.say(batch, literal));
    }
    Some(())
}

/// A server and a PgBouncer, both reached by TCP, since not every driver can use Unix sockets.
fn servers(name: &str) -> (Cluster, PgBouncer, String) {
    let host = own_address();
    let extra = format!("listen_addresses = '{host}'").leak();
    let cluster = Cluster::start_with(name, &Settings { preload: true, extra });
    cluster.connect().batch_execute("CREATE EXTENSION queue_ext").expect("create");
    // Each transaction gets another of its connections.
    let bouncer = PgBouncer::start(&cluster, 3, &format!("listen_addr = {host}\nserver_round_robin = 1"));
    let mut clients: Vec<_> = (0..3).map(|_| bouncer.connect()).collect();
    clients.iter_mut().for_each(|client| client.batch_execute("BEGIN").expect("begin"));
    clients.iter_mut().for_each(|client| client.batch_execute("COMMIT").expect("commit"));
    (cluster, bouncer, host)
}

#[test]
fn every_driver_makes_every_call_in_every_way_it_has() {
    let (_cluster, _bouncer, host) = servers("drivers");
    let chosen = if brief() { &DRIVERS[..1] } else { DRIVERS };
    let run = thread::scope(|scope| {
        let host = &host;
        let threads: Vec<_> =
            chosen.iter().map(|driver| scope.spawn(move || hold_to_contract(driver, host))).collect();
        with_tokio_postgres::hold_to_contract(host);
        threads.into_iter().filter_map(|thread| thread.join().expect("a driver failed")).count()
    });
    assert!(run > 0, "psycopg can be run anywhere");
}

#[test]
fn the_documented_types_match_those_that_arrive() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/drivers.md");
    let page = std::fs::read_to_string(page).expect("docs/drivers.md");
    let own = (with_tokio_postgres::NAME, with_tokio_postgres::TYPES, with_tokio_postgres::MODES);
    for (name, types, modes) in
        DRIVERS.iter().map(|driver| (driver.name, driver.types, driver.modes)).chain([own])
    {
        let modes: Vec<_> = modes.iter().map(|mode| format!("{mode:?}").to_lowercase()).collect();
        let row = format!("| {name} | {} | {} |", types.join(" | "), modes.join(", "));
        assert!(page.contains(&row), "docs/drivers.md lacks this row: {row}");
    }
}

#[test]
fn a_statement_prepared_through_pgbouncer_is_unknown_to_the_next_connection() {
    // Else the mode "pooled" would prove nothing.
    let (_cluster, bouncer, _) = servers("drivers-bouncer");
    let mut client = bouncer.connect();
    client.batch_execute("PREPARE s AS SELECT 1").expect("prepare");
    let error = client.batch_execute("EXECUTE s").expect_err("another connection");
    assert_eq!(error.code().map(|code| code.code()), Some("26000"), "{error}");
}
