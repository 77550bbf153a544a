//! A client of a recorded world: makes up transactions, and records the answers of the server.

use super::record::{Shared, TASKS};
use super::rows::Level;
use super::trace::{Asked, Call, Crash, End, Mark, Played, Told};
use queue_ext_tests::torture::random::Random;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// The SQLSTATE of a session that was ended.
pub const CUT: &str = "57P01";

/// A client.
pub struct Player<'a> {
    pub me: usize,
    pub session: &'a mut postgres::Client,
    pub world: &'a Shared<'a>,
    pub random: Random,
    pub native: bool,
    /// Whether its session has synchronous_commit = off.
    pub asynchronous: bool,
    /// Of a hundred statements, so many have their session ended by the server.
    pub cuts: u64,
    pub leases: VecDeque<(i64, i64)>,
    /// Whether the leases whose ends a crash has undone are among these.
    pub resumed: bool,
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
            // How many savepoints to set, how many are there, and how often one may be rolled back or released.
            let mut saves = if self.random.chance(25) { self.random.between(1, 2) } else { 0 };
            let (mut saved, mut ends) = (0, saves);
            self.transaction(level, undo, &mut |player| {
                if saves > 0 && (!first || level == Level::ReadCommitted) {
                    (saves, saved, left) = (saves - 1, saved + 1, player.random.between(1, 2));
                    return Some(Asked::Save(saved - 1));
                }
                if left == 0 && saved > 0 && ends > 0 {
                    ends -= 1;
                    let number = player.random.roll(saved.into()) as u8;
                    left = player.random.roll(2);
                    if player.random.chance(75) {
                        saved = number + 1;
                        return Some(Asked::RollBackTo(number));
                    }
                    saved = number;
                    return Some(Asked::ReleaseSavepoint(number));
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
        let what = self.random.weighted(&[(push, 0), (25, 1), (end, 2), (6, 3), (6, 4), (2, 5)]);
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
            5 => Some(Asked::Purge),
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
        let mut afterwards = self.is_afterwards();
        if self.session.batch_execute(begin).is_err() {
            // The server was killed since the last transaction.
            self.reconnect();
            afterwards = self.is_afterwards();
            self.session.batch_execute(begin).expect(begin);
        }
        let had = self.had_before(&asked);
        let mut saved = Vec::new();
        let mut played = Played {
            level,
            native: self.native,
            asynchronous: self.asynchronous,
            calls: Vec::new(),
            end: End::Commit,
            xid: None,
            afterwards,
        };
        loop {
            self.mark(&played, true);
            let cut = self.random.chance(self.cuts);
            if cut {
                // The transaction may be rolled back from now on.
                let statement = (self.played.len() as u8, played.calls.len() as u8 + 1);
                lock(&self.world.marks).push(Mark { client: self.me, statement, begins: true });
            }
            let told = if cut { self.ask_and_cut(&asked) } else { self.ask(&asked) };
            match asked {
                Asked::Save(_) => saved.push(self.leases.clone()),
                Asked::RollBackTo(number) => {
                    saved.truncate(usize::from(number) + 1);
                    self.leases = saved.last().cloned().unwrap_or_default();
                }
                Asked::ReleaseSavepoint(number) => saved.truncate(number.into()),
                _ => {}
            }
            let refused = matches!(told, Told::Refused(_));
            let crashed = told == Told::Refused(CUT.to_owned()) && !cut;
            // The server reports an error before it has released the transaction's locks.
            if crashed || refused && !cut && self.session.batch_execute("ROLLBACK").is_err() {
                self.reconnect();
            }
            self.mark(&played, false);
            // The model has no request to cancel a task that runs.
            let undo = told == Told::Running;
            // Nor a transaction whose own lease is over before it commits.
            let last = matches!(asked, Asked::Claim { short: true });
            played.calls.push(Call { asked, told });
            if crashed {
                played.end = End::Crashed;
            } else if refused {
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
        if matches!(played.end, End::Commit | End::Rollback) {
            if undo {
                played.end = End::Rollback;
            }
            self.end(&mut played);
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

    /// COMMIT or ROLLBACK.
    fn end(&mut self, played: &mut Played) {
        let xid = "SELECT pg_current_xact_id_if_assigned()::text::bigint";
        let Ok(row) = self.session.query_one(xid, &[]) else {
            played.end = End::Crashed;
            return self.reconnect();
        };
        played.xid = row.get::<_, Option<i64>>(0).map(|xid| xid as u32);
        self.mark(played, true);
        let end = if played.end == End::Commit { "COMMIT" } else { "ROLLBACK" };
        if self.session.batch_execute(end).is_err() {
            self.reconnect();
            let marks = lock(&self.world.marks);
            let crash = self.world.crash.get().expect("the server was killed");
            drop(marks);
            if played.end == End::Commit && played.xid.is_none_or(|xid| !crash.survived.contains(&xid)) {
                played.end = End::Crashed;
            }
        }
        self.mark(played, false);
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

    /// Takes up the leases again whose ends a crash has undone although they had been acknowledged: the session commits
    /// asynchronously. The claims may have stayed, and then nobody else gets the tasks for an hour.
    pub fn resume_undone(&mut self) {
        let Some(crash) = self.world.crash.get().filter(|_| !self.resumed) else { return };
        self.resumed = true;
        let is_undone = |played: &&Played| {
            !played.afterwards
                && played.end == End::Commit
                && played.xid.is_some_and(|xid| !crash.survived.contains(&xid))
        };
        let undone = self.played.iter().filter(is_undone).flat_map(Played::kept);
        self.leases.extend(undone.filter_map(|call| call.asked.lease()));
    }

    /// The tasks that were pushed and committed.
    pub fn known(&self) -> Vec<i64> {
        lock(&self.world.known).clone()
    }

    /// Whether the server was killed before this moment.
    fn is_afterwards(&self) -> bool {
        // Which is known before somebody who reconnects has this lock.
        let _marks = lock(&self.world.marks);
        self.world.crash.get().is_some()
    }

    fn mark(&self, played: &Played, begins: bool) {
        let statement = (self.played.len() as u8, played.calls.len() as u8);
        let mut marks = lock(&self.world.marks);
        marks.push(Mark { client: self.me, statement, begins });
        if let Some((after, kill)) = self.world.doom
            && marks.len() == after
        {
            // Nobody else records anything meanwhile.
            let crash = Crash { mark: after, ..kill() };
            self.world.crash.set(crash).expect("there is one");
        }
    }
}
