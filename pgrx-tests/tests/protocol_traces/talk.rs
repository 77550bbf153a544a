//! The statements of a client of a recorded world, and the answers of the server.

use super::player::{CUT, Player};
use super::trace::{Asked, Told};
use postgres::error::SqlState;
use std::time::Duration;

impl Player<'_> {
    /// Sets whether this client uses the native fast path, and whether its commits wait for the disk.
    pub fn choose_path(&mut self) {
        if self.session.batch_execute(&self.path()).is_err() {
            self.reconnect();
        }
    }

    fn path(&self) -> String {
        let switch = |on| if on { "on" } else { "off" };
        let (native, synchronous) = (switch(self.native), switch(!self.asynchronous));
        format!("SET queue.fast_path = {native}; SET synchronous_commit = {synchronous}")
    }

    /// After the session was ended, or the server.
    pub fn reconnect(&mut self) {
        *self.session = (self.world.connect)();
        self.session.batch_execute(&self.path()).expect("choose between native verbs and SQL");
    }

    /// Whether there is anything left to do.
    pub fn is_left(&mut self) -> bool {
        let left = "SELECT EXISTS (SELECT FROM queue.tasks WHERE queue = $1)";
        let row = self.session.query_one(left, &[&self.world.queue]).or_else(|_| {
            self.reconnect();
            self.session.query_one(left, &[&self.world.queue])
        });
        row.expect("look").get(0)
    }

    /// Asks, and has the server end the session meanwhile or afterwards, which rolls its transaction back.
    pub fn ask_and_cut(&mut self, asked: &Asked) -> Told {
        let backend: i32 =
            self.session.query_one("SELECT pg_backend_pid()", &[]).expect("its process").get(0);
        let pause = Duration::from_micros(self.random.roll(1_500));
        let mut other = (self.world.connect)();
        let told = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(pause);
                // Once the process has exited, its locks are gone.
                let cut = "SELECT pg_terminate_backend($1, 60000)";
                assert!(other.query_one(cut, &[&backend]).expect("end the session").get::<_, bool>(0));
            });
            self.ask(asked)
        });
        self.reconnect();
        told
    }

    /// Asks.
    pub fn ask(&mut self, asked: &Asked) -> Told {
        let (queue, session) = (&self.world.queue, &mut *self.session);
        let worked = |result: Result<u64, postgres::Error>| result.map(|_| Told::Done);
        let done = |result: Result<(), postgres::Error>| result.map(|()| Told::Done);
        let told = match asked {
            Asked::Look => worked(session.execute("SELECT 1", &[])),
            Asked::Purge => worked(session.execute("SELECT queue.purge($1)", &[queue])),
            Asked::Save(number) => done(session.batch_execute(&format!("SAVEPOINT s{number}"))),
            Asked::RollBackTo(number) if self.world.keeps_undone && *number > 0 => Ok(Told::Done),
            Asked::RollBackTo(number) => {
                done(session.batch_execute(&format!("ROLLBACK TO SAVEPOINT s{number}")))
            }
            Asked::ReleaseSavepoint(number) => {
                done(session.batch_execute(&format!("RELEASE SAVEPOINT s{number}")))
            }
            Asked::Push { grouped, after } => {
                // In the order of ids, except retried tasks.
                let push = "SELECT queue.push($1, run_at => '2020-01-01', group_key => $2, after => $3)";
                let group = grouped.then(|| self.world.number.to_string());
                let after = (!after.is_empty()).then_some(after);
                session.query_one(push, &[queue, &group, &after]).map(|row| Told::Pushed(row.get(0)))
            }
            Asked::Claim { short } => {
                let claim = "SELECT id, token FROM queue.claim(queue => $1, lease => $2::text::interval)";
                let span = if *short { "3 ms" } else { "1 hour" };
                let lease = |row: postgres::Row| (row.get(0), row.get(1));
                session.query_opt(claim, &[queue, &span]).map(|row| Told::Claimed(row.map(lease)))
            }
            Asked::Complete(id, token) => {
                worked(session.execute("SELECT queue.complete($1, $2)", &[id, token]))
            }
            Asked::Discard(id, token) => {
                worked(session.execute("SELECT queue.fail($1, $2, 'no', permanent => true)", &[id, token]))
            }
            Asked::Release(id, token) => {
                worked(session.execute("SELECT queue.release($1, $2)", &[id, token]))
            }
            Asked::Cancel(id) => session
                .query_one("SELECT queue.cancel($1)", &[id])
                .map(|row| if row.get::<_, &str>(0) == "running" { Told::Running } else { Told::Done }),
            Asked::Retry(id) => worked(session.execute("SELECT queue.retry($1)", &[id])),
        };
        told.unwrap_or_else(|error| {
            // Without a SQLSTATE the connection is gone.
            Told::Refused(error.code().map_or(CUT, SqlState::code).to_owned())
        })
    }
}
