//! A client of a recorded world: makes up transactions, and records the answers of the server.

use crate::record::{Shared, TASKS};
use crate::rows::Level;
use crate::trace::{Asked, Call, End, Mark, Played, Told};
use postgres::error::SqlState;
use queue_ext_tests::torture::random::Random;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The SQLSTATE of a session that was ended.
pub const CUT: &str = "57P01";

/// A client.
pub struct Player<'a> {
    pub me: usize,
    pub session: &'a mut postgres::Client,
    pub world: &'a Shared<'a>,
    pub random: Random,
    pub native: bool,
    pub leases: VecDeque<(i64, i64)>,
    pub played: Vec<Played>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no client panics with the lock")
}

impl Player<'_> {
    pub fn act(&mut self) {
        for number in 0..self.random.between(2, 3) {
            let level = if self.random.chance(15) { Level::RepeatableRead } else { Level::ReadCommitted };
            let undo = self.random.chance(12);
            let mut left = self.random.between(1, 2) + u64::from(level == Level::RepeatableRead);
            let mut first = true;
            // A savepoint, and whether to roll back to it.
            let (mut save, mut saved) = (self.random.chance(25), false);
            self.transaction(level, undo, &mut |player| {
                if save && (!first || level == Level::ReadCommitted) {
                    (save, saved, left) = (false, true, player.random.between(1, 2));
                    return Some(Asked::Save);
                }
                if left == 0 && std::mem::take(&mut saved) && player.random.chance(75) {
                    left = player.random.roll(2);
                    return Some(Asked::RollBackTo);
                }
                left = left.checked_sub(1)?;
                if std::mem::take(&mut first) && level == Level::RepeatableRead && player.random.chance(50) {
                    return Some(Asked::Look);
                }
                player.choose(number == 0)
            });
        }
    }

    /// The next statement.
    fn choose(&mut self, early: bool) -> Option<Asked> {
        let push =
            if self.world.pushed.load(Ordering::Relaxed) < TASKS { if early { 70 } else { 15 } } else { 0 };
        let end = if self.leases.is_empty() { 0 } else { 40 };
        let what = self.random.weighted(&[(push, 0), (25, 1), (end, 2), (6, 3), (6, 4)]);
        match what {
            0 if self.world.pushed.fetch_add(1, Ordering::Relaxed) < TASKS => {
                let known = lock(&self.world.known).clone();
                let mut after = Vec::new();
                for _ in 0..self.random.weighted(&[(55, 0), (30, 1), (15, 2)]) {
                    if !known.is_empty() {
                        let id = known[self.random.roll(known.len() as u64) as usize];
                        if !after.contains(&id) {
                            after.push(id);
                        }
                    }
                }
                after.sort_unstable();
                Some(Asked::Push { grouped: self.world.shape.grouped && self.random.chance(80), after })
            }
            2 => self.end_of_lease(false),
            3 => {
                let known = lock(&self.world.known);
                (!known.is_empty())
                    .then(|| Asked::Cancel(known[self.random.roll(known.len() as u64) as usize]))
            }
            4 => {
                let dead = lock(&self.world.dead);
                (!dead.is_empty()).then(|| Asked::Retry(dead[self.random.roll(dead.len() as u64) as usize]))
            }
            _ => Some(Asked::Claim { short: self.world.expiring && self.random.chance(50) }),
        }
    }

    pub fn end_of_lease(&mut self, complete: bool) -> Option<Asked> {
        let (id, token) = self.leases.pop_front()?;
        Some(match self.random.roll(10) {
            7 if !complete => Asked::Discard(id, token),
            8.. if !complete => Asked::Release(id, token),
            _ => Asked::Complete(id, token),
        })
    }

    /// A transaction of statements that `next` makes up one after the other.
    pub fn transaction(
        &mut self,
        level: Level,
        undo: bool,
        next: &mut dyn FnMut(&mut Self) -> Option<Asked>,
    ) {
        let Some(mut asked) = next(self) else { return };
        let begin = match level {
            Level::ReadCommitted => "BEGIN",
            Level::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        };
        self.session.batch_execute(begin).expect("BEGIN");
        let had = self.had_before(&asked);
        let mut saved = VecDeque::new();
        let mut played =
            Played { level, native: self.native, calls: Vec::new(), end: End::Commit, xid: None };
        loop {
            self.mark(&played, true);
            let cut = self.random.chance(2);
            if cut {
                // The transaction may be rolled back from now on.
                let statement = (self.played.len() as u8, played.calls.len() as u8 + 1);
                lock(&self.world.marks).push(Mark { client: self.me, statement, begins: true });
            }
            let told = if cut { self.ask_and_cut(&asked) } else { self.ask(&asked) };
            match asked {
                Asked::Save => saved.clone_from(&self.leases),
                Asked::RollBackTo => self.leases.clone_from(&saved),
                _ => {}
            }
            let refused = matches!(told, Told::Refused(_));
            if refused && !cut {
                // The server reports an error before it has released the transaction's locks.
                self.session.batch_execute("ROLLBACK").expect("ROLLBACK");
            }
            self.mark(&played, false);
            // The model has no request to cancel a task that runs.
            let undo = told == Told::Running;
            // Nor a transaction whose own lease is over before it commits.
            let last = matches!(asked, Asked::Claim { short: true });
            played.calls.push(Call { asked, told });
            if refused {
                played.end = End::Failed;
            } else if undo || cut {
                played.end = End::Rollback;
            } else if last {
            } else if let Some(more) = next(self) {
                asked = more;
                continue;
            }
            break;
        }
        if played.end != End::Failed {
            if undo {
                played.end = End::Rollback;
            }
            let xid = "SELECT pg_current_xact_id_if_assigned()::text::bigint";
            let xid: Option<i64> = self.session.query_one(xid, &[]).expect("its own number").get(0);
            played.xid = xid.map(|xid| xid as u32);
            self.mark(&played, true);
            let end = if played.end == End::Commit { "COMMIT" } else { "ROLLBACK" };
            self.session.batch_execute(end).expect(end);
            self.mark(&played, false);
        }
        if played.end == End::Commit {
            self.note(&played);
        } else {
            self.leases = had;
            // A serialization failure or a deadlock is tried again.
            if let Some(Call { asked, told: Told::Refused(code) }) = played.calls.last()
                && !code.starts_with("40")
                && code != CUT
            {
                let refused = asked.lease();
                self.leases.retain(|lease| Some(*lease) != refused);
            }
        }
        self.played.push(played);
    }

    /// The leases before a transaction that begins with this statement.
    fn had_before(&self, first: &Asked) -> VecDeque<(i64, i64)> {
        first.lease().into_iter().chain(self.leases.iter().copied()).collect()
    }

    /// The tasks that a committed transaction has returned.
    fn note(&mut self, played: &Played) {
        let mut leases = Vec::new();
        for call in played.kept() {
            match (&call.asked, &call.told) {
                (_, Told::Pushed(id)) => lock(&self.world.known).push(*id),
                (_, Told::Claimed(Some(lease))) => leases.push(*lease),
                (Asked::Discard(id, _), _) => lock(&self.world.dead).push(*id),
                _ => {}
            }
        }
        leases.sort_unstable();
        self.leases.extend(leases);
    }

    /// Sets whether this client uses the native fast path.
    pub fn choose_path(&mut self) {
        let switch = if self.native { "SET queue.fast_path = on" } else { "SET queue.fast_path = off" };
        self.session.batch_execute(switch).expect("choose between native verbs and SQL");
    }

    /// Asks, and has the server end the session meanwhile or afterwards, which rolls its transaction back.
    fn ask_and_cut(&mut self, asked: &Asked) -> Told {
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
        *self.session = (self.world.connect)();
        self.choose_path();
        told
    }

    fn mark(&self, played: &Played, begins: bool) {
        let statement = (self.played.len() as u8, played.calls.len() as u8);
        lock(&self.world.marks).push(Mark { client: self.me, statement, begins });
    }

    fn ask(&mut self, asked: &Asked) -> Told {
        let (queue, session) = (&self.world.queue, &mut *self.session);
        let worked = |result: Result<u64, postgres::Error>| result.map(|_| Told::Done);
        let told = match asked {
            Asked::Look => worked(session.execute("SELECT 1", &[])),
            Asked::Save => worked(session.execute("SAVEPOINT here", &[])),
            Asked::RollBackTo => worked(session.execute("ROLLBACK TO SAVEPOINT here", &[])),
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
