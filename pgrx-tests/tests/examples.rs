//! The programs in `examples/`, run unchanged: killed, suspended, cancelled, stopped, and every letter accounted for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use queue_ext_tests::cluster::{own_address, signal};
use queue_ext_tests::languages::{self, Start};
use queue_ext_tests::{Cluster, Settings, brief, eventually};

#[path = "examples/post.rs"]
mod post;
use post::{MAILER, Post};

/// How often a worker of each program is killed while it holds a task.
const KILLS: usize = 4;

/// One of the programs.
struct Example {
    language: &'static str,
    driver: &'static str,
    program: &'static str,
    start: fn(&Path) -> Option<Start>,
    /// DATABASE_URL in the format of the driver, from host and database.
    url: fn(&str, &str) -> String,
}

fn uri(host: &str, database: &str) -> String {
    format!("postgresql://{MAILER}@{host}/{database}")
}

fn jdbc(host: &str, database: &str) -> String {
    format!("jdbc:postgresql://{host}/{database}?user={MAILER}")
}

fn pdo(host: &str, database: &str) -> String {
    format!("pgsql:host={host};dbname={database};user={MAILER}")
}

#[rustfmt::skip]
const EXAMPLES: &[Example] = &[
    Example { language: "Python", driver: "psycopg 3", program: "python-psycopg/worker.py", start: languages::python, url: uri },
    Example { language: "bash", driver: "psql", program: "bash-psql/worker.sh", start: languages::bash, url: uri },
    Example { language: "Python", driver: "asyncpg", program: "python-asyncpg/worker.py", start: languages::python, url: uri },
    Example { language: "JavaScript", driver: "pg", program: "node-pg/worker.mjs", start: languages::node, url: uri },
    Example { language: "Go", driver: "pgx", program: "go-pgx/main.go", start: languages::go, url: uri },
    Example { language: "Rust", driver: "tokio-postgres", program: "rust/src/bin/tokio_postgres.rs", start: languages::rust, url: uri },
    Example { language: "Rust", driver: "sqlx", program: "rust/src/bin/sqlx.rs", start: languages::rust, url: uri },
    Example { language: "Java", driver: "JDBC", program: "java-jdbc/Worker.java", start: languages::java, url: jdbc },
    Example { language: "Ruby", driver: "pg", program: "ruby-pg/worker.rb", start: languages::ruby, url: uri },
    Example { language: "PHP", driver: "PDO", program: "php-pdo/worker.php", start: languages::php, url: pdo },
];

/// The worker that README.md quotes, with the client library.
const QUOTED: &str = "python-client/worker.py";

/// The shortest worker without it.
const SMALL: &str = "python-psycopg/small.py";
/// The one that docs/workers.md quotes.
const SMALL_GO: &str = "go-pgx/small/main.go";

/// Programs that the tests cannot run.
const NOT_RUN: &[&str] = &["csharp-npgsql/Program.cs"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(folder().join(path)).expect("read a file")
}

/// Runs workers of one example in a database of its own, and disturbs them.
fn disturb(cluster: &Cluster, host: &str, number: usize, example: &Example) -> Option<String> {
    let Some(start) = (example.start)(&folder().join(example.program)) else {
        println!("{} is skipped: its language is not installed", example.program);
        return None;
    };
    let database = format!("post_{number}");
    let mut post = Post::open(cluster, &database, start, (example.url)(host, &database));
    // Two workers. One at a time is killed while it holds a letter, and replaced.
    let mut workers = vec![post.hire(), post.hire()];
    for _ in 0..KILLS {
        let mut victim = workers.remove(0);
        loop {
            post.await_claim_by(&victim);
            victim.kill();
            if post.holds(&victim) {
                break;
            }
            victim = post.hire();
        }
        workers.push(post.hire());
    }
    // The signal below would end a worker that has only just been started.
    for worker in &workers {
        post.await_claim_by(worker);
    }
    post.drain();
    // An idle worker stops.
    post.stop(workers.remove(0));
    let worker = workers.remove(0);
    // It extends its lease. When it was suspended for too long, it drops the letter and claims again. It stops working
    // on a letter that is cancelled.
    let book = post.push_book("a book");
    post.outlive_a_lease(book);
    let token = post.token(book);
    signal(worker.pid(), libc::SIGSTOP);
    post.await_state(book, "queued");
    signal(worker.pid(), libc::SIGCONT);
    post.await_claim(book, token);
    post.cancel(book);
    // A letter that another worker has finished is unknown to the server (QX003): the worker goes on to the next one.
    let lost = post.push_book("a lost book");
    post.await_claim(lost, 0);
    signal(worker.pid(), libc::SIGSTOP);
    post.finish_without_a_trace(lost);
    signal(worker.pid(), libc::SIGCONT);
    // While it works, it releases its letter and stops.
    let book = post.push_book("another book");
    post.await_claim(book, 0);
    post.stop(worker);
    post.gave_back(book);
    Some(format!(
        "| {} | {} | [{}]({}) | {} | {KILLS} times; each letter sent once |",
        example.language,
        example.driver,
        example.program,
        example.program,
        read(example.program).lines().count(),
    ))
}

#[test]
fn every_example_sends_each_letter_once_and_survives_lost_leases() {
    // By TCP, because not every driver can use Unix sockets.
    let host = own_address();
    // Each database has a background worker.
    let extra = format!("listen_addresses = '{host}'\nmax_worker_processes = {}", EXAMPLES.len() + 8).leak();
    let cluster = Cluster::start_with("examples", &Settings { preload: true, extra });
    cluster
        .connect()
        .batch_execute(&format!("CREATE ROLE {MAILER} LOGIN"))
        .expect("create the workers' role");
    let chosen = if brief() { &EXAMPLES[..2] } else { EXAMPLES };
    let rows: Vec<String> = thread::scope(|scope| {
        let (cluster, host) = (&cluster, &host);
        let threads: Vec<_> = chosen
            .iter()
            .enumerate()
            .map(|(number, example)| scope.spawn(move || disturb(cluster, host, number, example)))
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("an example failed")).collect()
    });
    assert!(rows.len() >= 2, "Python and bash run everywhere");
    let readme = read("README.md");
    let missing: Vec<_> = rows.iter().filter(|row| !readme.contains(*row)).collect();
    assert!(missing.is_empty(), "these rows are not in the table of examples/README.md:\n{missing:#?}");
}

#[test]
fn the_table_has_every_example_and_the_pages_quote_two() {
    let readme = read("README.md");
    for entry in fs::read_dir(folder()).expect("the folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("a plain name");
        let known =
            EXAMPLES.iter().map(|example| example.program).chain(NOT_RUN.iter().copied()).chain([QUOTED]);
        let program = known.into_iter().find(|program| program.starts_with(&format!("{name}/")));
        // An example that is not a worker has a suite of its own.
        let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(&name).with_extension("rs");
        assert!(name == "README.md" || program.is_some() || suite.exists(), "no test runs {name}");
    }
    for program in NOT_RUN {
        let row = readme.lines().find(|line| line.contains(program)).expect("a row");
        assert!(row.contains("not run"), "{row}");
    }
    for (page, language, program) in [("README.md", "python", QUOTED), ("docs/workers.md", "go", SMALL_GO)] {
        let text = read(format!("../{page}"));
        let rest = text.split(&format!("```{language}\n")).nth(1).expect("a quotation");
        assert_eq!(Some(read(program).as_str()), rest.split("```").next(), "{page} quotes {program}");
    }
}

#[test]
fn short_workers_send_a_letter_and_report_what_fails() {
    let workers: [(&str, fn(&Path) -> Option<Start>, &str); 3] = [
        (QUOTED, languages::python_client, "KeyError"),
        (SMALL, languages::python, "KeyError"),
        (SMALL_GO, languages::go, "null value"),
    ];
    for (program, start, error) in workers {
        let Some(start) = start(&folder().join(program)) else {
            println!("{program} is skipped: its language is not installed");
            continue;
        };
        let cluster = Cluster::start("examples-short");
        let mut client = cluster.connect();
        client
            .batch_execute(
                "CREATE TABLE letters_sent (address text NOT NULL);
                 SELECT queue.push('default', '{}', max_attempts => 1)",
            )
            .expect("a letter without an address");
        let url = format!("postgresql://postgres@/postgres?host={}", cluster.folder().display());
        let mut worker =
            start().env("DATABASE_URL", url).stdin(Stdio::null()).spawn().expect("start the worker");
        client
            .batch_execute("SELECT queue.push('default', '{\"to\": \"ada@example.com\"}')")
            .expect("a letter");
        let done = "SELECT (SELECT array_agg(address) FROM letters_sent) = '{ada@example.com}'
                           AND EXISTS (SELECT FROM queue.history WHERE state = 'completed')
                           AND EXISTS (SELECT FROM queue.dead_letters WHERE strpos(errors::text, $1) > 0)";
        eventually("the letter is sent, and the other is a dead letter", Duration::from_secs(60), || {
            assert_eq!(worker.try_wait().expect("look"), None, "the worker ended");
            client.query_one(done, &[&error]).expect("look").get::<_, Option<bool>>(0) == Some(true)
        });
        worker.kill().expect("end it");
        worker.wait().expect("it is gone");
    }
}
