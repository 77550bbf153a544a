//! A database with letters to send, and the worker processes that send them.

use std::cell::RefCell;
use std::process::{Child, Stdio};
use std::time::Duration;

use postgres::Client;
use queue_ext_tests::cluster::signal;
use queue_ext_tests::languages::Start;
use queue_ext_tests::{Cluster, eventually};

/// How long to wait for a worker: compilers and virtual machines of ten languages run at the same time.
const SOON: Duration = Duration::from_secs(120);
/// More pages than a worker prints in that time.
const BOOK: i32 = 10_000;

/// The role of the workers. It has a worker's right, and may insert into their table.
pub const MAILER: &str = "mailer";

pub struct Post {
    client: RefCell<Client>,
    start: Start,
    url: String,
    hired: usize,
    pushed: i64,
}

pub struct Worker {
    name: String,
    child: Child,
}

impl Worker {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("it is gone");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Post {
    pub fn open(cluster: &Cluster, database: &str, start: Start, url: String) -> Self {
        cluster.connect().batch_execute(&format!("CREATE DATABASE {database}")).expect("create");
        let mut client = cluster.connect_to(database);
        client
            .batch_execute(
                "CREATE EXTENSION queue_ext;
                 CREATE TABLE letters_sent (address text NOT NULL);
                 -- The first worker that sends this letter is so slow that another one claims it before the completion.
                 CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
                 BEGIN
                     WHILE EXISTS (SELECT FROM queue.tasks WHERE payload ->> 'to' = 'slow' AND token = 1) LOOP
                         PERFORM pg_sleep(0.05);
                     END LOOP;
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER dawdle BEFORE INSERT ON letters_sent FOR EACH ROW
                     WHEN (NEW.address = 'slow') EXECUTE FUNCTION dawdle();
                 SELECT queue.configure('default',
                     '{\"lease\": \"2 s\", \"max_attempts\": 100, \"backoff\": {\"base\": \"0\"}}');
                 SELECT queue.push('default', '{\"to\": null}', max_attempts => 2),
                        queue.push('default', '{}', max_attempts => 2),
                        queue.push('default', '{\"to\": \"slow\"}')",
            )
            .expect("open");
        client
            .batch_execute(&format!(
                "GRANT INSERT ON letters_sent TO {MAILER}; SELECT queue.grant_worker('{MAILER}')"
            ))
            .expect("the workers' rights");
        Self { client: RefCell::new(client), start, url, hired: 0, pushed: 0 }
    }

    pub fn hire(&mut self) -> Worker {
        self.hired += 1;
        let name = format!("worker {}", self.hired);
        let mut command = (self.start)();
        command.arg(&name).env("DATABASE_URL", &self.url).stdin(Stdio::null());
        Worker { name, child: command.spawn().expect("start a worker") }
    }

    fn ask<T: for<'a> postgres::types::FromSql<'a>>(
        &self,
        query: &str,
        arguments: &[&(dyn postgres::types::ToSql + Sync)],
    ) -> T {
        self.client
            .borrow_mut()
            .query_one(query, arguments)
            .unwrap_or_else(|error| panic!("{query}: {error:?}"))
            .get(0)
    }

    fn await_true(&self, what: &str, query: &str, arguments: &[&(dyn postgres::types::ToSql + Sync)]) {
        eventually(&format!("{what} ({})", self.url), SOON, || self.ask(query, arguments));
    }

    pub fn holds(&self, worker: &Worker) -> bool {
        self.ask(
            "SELECT EXISTS (SELECT FROM queue.tasks WHERE worker = $1 AND state = 'running')",
            &[&worker.name],
        )
    }

    /// Pushes letters until the worker holds one.
    pub fn await_claim_by(&mut self, worker: &Worker) {
        let mut pushed = self.pushed;
        eventually(&format!("{} works ({})", worker.name, self.url), SOON, || {
            if self.ask("SELECT NOT EXISTS (SELECT FROM queue.tasks WHERE state = 'queued')", &[]) {
                let push =
                    "SELECT count(queue.push('default', jsonb_build_object('to', 'a' || n, 'pages', 2)))
                            FROM generate_series($1::bigint + 1, $1 + 10) AS n";
                pushed += self.ask::<i64>(push, &[&pushed]);
            }
            self.holds(worker)
        });
        self.pushed = pushed;
    }

    /// Waits until all tasks have ended, and compares the letters with the tasks.
    pub fn drain(&self) {
        self.await_true("all is done", "SELECT NOT EXISTS (SELECT FROM queue.tasks)", &[]);
        let count = |query: &str| self.ask::<i64>(query, &[]);
        assert_eq!(
            [
                count("SELECT count(*) FROM letters_sent"),
                count("SELECT count(DISTINCT address) FROM letters_sent"),
                count("SELECT count(*) FROM queue.history WHERE state = 'completed'"),
                count("SELECT count(*) FROM queue.dead_letters"),
            ],
            [self.pushed + 1, self.pushed + 1, self.pushed + 1, 2],
            "letters with the slow one, addresses, completed tasks, and the two without an address ({})",
            self.url
        );
    }

    pub fn push_book(&self, to: &str) -> i64 {
        self.ask(
            "SELECT queue.push('default', jsonb_build_object('to', $1::text, 'pages', $2::int))",
            &[&to, &BOOK],
        )
    }

    /// Waits until the worker has extended a lease beyond its first end. Starts again if a worker on a busy machine was
    /// too late and the task was claimed anew.
    pub fn outlive_a_lease(&self, id: i64) {
        self.await_claim(id, 0);
        let look = "SELECT token, lease_until::text FROM queue.tasks WHERE id = $1";
        let held = "SELECT clock_timestamp() > $2::text::timestamptz + interval '0.5 s'
                    FROM queue.tasks WHERE id = $1 AND state = 'running'";
        let mut first: (i64, String) = (0, String::new());
        eventually(&format!("it keeps the task ({})", self.url), SOON, || {
            let row = self.client.borrow_mut().query_one(look, &[&id]).expect("look");
            if row.get::<_, i64>(0) != first.0 {
                first = (row.get(0), row.get(1));
            }
            let held = self.client.borrow_mut().query_opt(held, &[&id, &first.1]).expect("look");
            held.is_some_and(|row| row.get(0)) && self.token(id) == first.0
        });
    }

    pub fn token(&self, id: i64) -> i64 {
        self.ask("SELECT token FROM queue.tasks WHERE id = $1", &[&id])
    }

    pub fn await_state(&self, id: i64, state: &str) {
        self.await_true(state, "SELECT (queue.get($1)).state = $2", &[&id, &state]);
    }

    /// Waits until a worker has claimed the task with a larger token and reports progress. No worker may have reported
    /// an error before.
    pub fn await_claim(&self, id: i64, token: i64) {
        let works =
            "SELECT token > $2 AND state = 'running' AND progress IS NOT NULL FROM queue.tasks WHERE id = $1";
        self.await_true("the task is worked on", works, &[&id, &token]);
        let strange = "SELECT count(*) FROM queue.tasks AS t, jsonb_array_elements(t.errors) AS error
                       WHERE t.id = $1 AND error ->> 'error' <> 'lease expired'";
        assert_eq!(
            self.ask::<i64>(strange, &[&id]),
            0,
            "a worker reported an error of its own ({})",
            self.url
        );
    }

    pub fn cancel(&self, id: i64) {
        self.ask::<String>("SELECT queue.cancel($1)", &[&id]);
        self.await_state(id, "cancelled");
        assert!(
            self.ask::<bool>("SELECT NOT EXISTS (SELECT FROM letters_sent WHERE address LIKE '%book')", &[])
        );
    }

    /// Completes a task whose lease has expired, as another worker would, in a queue that then has no trace of it.
    pub fn finish_without_a_trace(&self, id: i64) {
        self.await_state(id, "queued");
        self.client
            .borrow_mut()
            .batch_execute("SELECT queue.configure('default', '{\"keep_history\": false}')")
            .expect("keep no history");
        let completed = "SELECT count(*) FROM queue.claim('1 minute') AS t, queue.complete(t.id, t.token) WHERE t.id = $1";
        eventually(&format!("it is completed ({})", self.url), SOON, || {
            self.ask::<i64>(completed, &[&id]) == 1
        });
    }

    /// Sends SIGTERM to a worker, and waits until it has exited with status 0.
    pub fn stop(&self, mut worker: Worker) {
        signal(worker.pid(), libc::SIGTERM);
        eventually(&format!("it stops ({})", self.url), SOON, || {
            worker.child.try_wait().expect("wait").is_some()
        });
        assert!(worker.child.wait().expect("wait").success(), "{}", self.url);
    }

    /// The task is queued again with no attempt counted, and no lease is left.
    pub fn gave_back(&self, id: i64) {
        let back =
            "SELECT state = 'queued' AND attempt = 0 AND worker IS NULL FROM queue.tasks WHERE id = $1";
        assert!(self.ask::<bool>(back, &[&id]), "{}", self.url);
        assert!(self.ask::<bool>("SELECT NOT EXISTS (SELECT FROM queue.tasks WHERE state = 'running')", &[]));
    }
}
