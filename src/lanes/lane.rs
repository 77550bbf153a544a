//! What the engine knows of the tasks of one queue.
//!
//! All of it is hints: every claim looks at the row, and losing a lane costs a walk of the order index.
//! What a hint must not do is hide a task. So a lane keeps to these promises, as of the last commit
//! that was told to it:
//!
//! - A task that can be claimed and stands before `known_below` in the order is in the line, or among
//!   the timed ones, or in the hands of a claim that gives it back if it rolls back.
//! - A task whose run_at is to come, and before `timed_until`, is among the timed ones.
//! - A running task before `known_below` has its lease in `leases`, or counts in their `unknown`.
//!
//! Where room is short, or anything is in doubt, the two bounds are lowered; that is always right.
//! A refill raises them. While it reads the table, commits go on: what they tell and the bounds leave
//! out is noted in `missed`, beyond which the refill must not raise them.

use super::NEVER;
use super::leases::{Lease, Leases};
use super::ordered::{Added, Ordered};

/// How many tasks stand in the line of a lane.
pub const LINE: usize = 1024;
/// How many tasks for later, and tasks to be looked at again, a lane knows.
pub const TIMED: usize = 256;
/// How many running tasks a lane knows.
pub const LEASES: usize = 2048;
/// With fewer in the line, the claim that finds it so refills it, while others go on.
const LOW: usize = LINE / 4;

/// A reading that seems to have taken longer was not that long.
const LONGEST_READING: i64 = 60_000_000;
/// Reading the table anew may take one part of so many of the time.
const READING_SHARE: i64 = 50;

/// The place of a task in the order of its queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Smaller is sooner.
    pub priority: i32,
    /// Then by time, in microseconds since 2000.
    pub run_at: i64,
    /// Then by id.
    pub id: i64,
}

impl Key {
    /// Before every task.
    pub const FIRST: Self = Self { priority: i32::MIN, run_at: i64::MIN, id: i64::MIN };
    /// Behind every task.
    pub const LAST: Self = Self { priority: i32::MAX, run_at: i64::MAX, id: i64::MAX };
}

/// A task that is to stand in the line from `at` on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timed {
    /// Its run_at; or later, if it was locked when somebody tried to claim it.
    pub at: i64,
    /// Its place in the order.
    pub key: Key,
}

/// See the head of this file.
#[repr(C)]
pub struct Lane {
    known_below: Key,
    timed_until: i64,
    line: Ordered<Key, LINE>,
    timed: Ordered<Timed, TIMED>,
    /// The running tasks.
    pub leases: Leases<LEASES>,
    /// The process that refills, 0 if none does.
    refiller: i32,
    missed: Key,
    missed_run: i64,
    /// When the table was last read from the first task on, and how long that took.
    read_at: i64,
    read_for: i64,
}

/// What a claim gets from a lane.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is no more, as far as anybody knows.
    Complete,
    /// There may be more: a refill has to be made by whoever gets this.
    Refill(Bounds),
    /// There may be more, and the process of this id is refilling.
    Refilling(i32),
}

/// What a refill has to read: the due tasks from `from` on, and the tasks that come due from
/// `timed_from` on, if that is not null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Every claimable task before it is known.
    pub from: Key,
    /// Every task to come before it is known.
    pub timed_from: Option<i64>,
    /// How many due tasks there is room for.
    pub room: usize,
    /// When the refill began.
    pub began: i64,
}

/// What a refill has read.
#[derive(Debug)]
pub struct Findings {
    /// Claimable tasks in the order.
    pub due: Vec<Key>,
    /// There is no further one from `Bounds::from` up to here.
    pub due_below: Key,
    /// Tasks that came due lately, and stand before `Bounds::from`.
    pub came_due: Vec<Key>,
    /// From here on there may be more of them.
    pub came_due_cut: Option<Key>,
    /// Tasks for later.
    pub timed: Vec<Timed>,
    /// There is no further one before this time.
    pub timed_before: i64,
    /// Leases of tasks that run, those that end first.
    pub leases: Vec<Lease>,
    /// No lease that was left out ends before this.
    pub leases_before: i64,
}

impl Lane {
    /// Knows nothing, as of now.
    pub fn clear(&mut self, now: i64) {
        self.line.clear();
        self.timed.clear();
        self.leases.clear();
        (self.refiller, self.missed, self.missed_run) = (0, Key::LAST, NEVER);
        (self.known_below, self.timed_until) = (Key::FIRST, i64::MIN);
        (self.read_at, self.read_for) = (now, 0);
    }

    /// Trusts nothing that it was told: everything will be read again. What runs stays known.
    pub fn doubt(&mut self) {
        self.line.clear();
        self.timed.clear();
        (self.known_below, self.timed_until) = (Key::FIRST, i64::MIN);
        (self.missed, self.missed_run) = (Key::FIRST, i64::MIN);
    }

    /// When the table is to be read again from the first task on, for what nobody could tell of: every
    /// `interval`, but at most a share of the time. At once, if the clock was put back since the last time.
    pub fn next_reading(&self, interval: i64, now: i64) -> i64 {
        if self.read_at > now {
            return now;
        }
        self.read_at.saturating_add(interval.max(READING_SHARE * self.read_for))
    }

    /// A task can be claimed from its run_at on. Says whether that is so by now.
    pub fn add(&mut self, key: Key, now: i64) -> bool {
        if key.run_at <= now {
            self.stand_in_line(key);
            return true;
        }
        self.wait_for(Timed { at: key.run_at, key });
        false
    }

    /// A task could not be claimed because its row was locked: it is looked at again at `at`.
    pub fn postpone(&mut self, key: Key, at: i64) {
        if key < self.known_below {
            self.wait_for(Timed { at, key });
        }
    }

    /// A task cannot be claimed any more.
    fn remove(&mut self, key: Key) {
        self.line.remove(&key);
        self.timed.remove(&Timed { at: key.run_at, key });
    }

    /// A task was leased.
    pub fn leased(&mut self, key: Key, until: i64, now: i64) {
        self.remove(key);
        self.extended(key, until, now);
    }

    /// The lease of a task ends at another time.
    pub fn extended(&mut self, key: Key, until: i64, now: i64) {
        self.leases.add(Lease { id: key.id, until });
        if until <= now {
            // Others may have ended this lease, and told what came then, before this was told.
            self.lower(key);
        }
    }

    /// A task is not there any more, or waits for something; if it ran, until then it had its lease.
    pub fn gone(&mut self, key: Key, until: i64) {
        self.remove(key);
        self.leases.remove(Lease { id: key.id, until });
    }

    /// There may be tasks, from `key` on, that nobody told of.
    pub fn lower(&mut self, key: Key) {
        self.missed = self.missed.min(key);
        if key < self.known_below {
            self.known_below = key;
            self.line.cut_from(&key);
        }
    }

    /// There may be tasks for `time` or later that nobody told of.
    pub fn lower_timed(&mut self, time: i64) {
        self.missed_run = self.missed_run.min(time);
        self.timed_until = self.timed_until.min(time);
    }

    /// Hands out up to `wanted` tasks by `take`, in order.
    pub fn take(&mut self, wanted: usize, now: i64, me: i32, mut take: impl FnMut(Key)) -> Answer {
        self.let_in(now);
        let mut taken = 0;
        // What just came due, and is not known yet, may come first.
        if now < self.timed_until {
            while taken < wanted
                && let Some(key) = self.line.take_first()
            {
                take(key);
                taken += 1;
            }
        }
        self.needs(taken < wanted, now, me)
    }

    /// A place before which no task of the same priority can be claimed, but for those in the hands of claims.
    pub fn first(&self) -> Option<Key> {
        let first = self.line.first()?;
        // Some are to be looked at again, and some came due since the last claim, or were never told of.
        let timed = self.timed.as_slice().iter().map(|timed| timed.key);
        let timed = timed.filter(|key| key.priority == first.priority).map(|key| key.run_at);
        let run_at = timed.chain([first.run_at, self.timed_until]).min()?;
        Some(Key { run_at, ..first })
    }

    /// How many stand in the line.
    pub fn line_length(&self) -> usize {
        self.line.len()
    }

    /// Lets those into the line that were locked when somebody looked, before their time.
    pub fn retry(&mut self) -> bool {
        let mut some = false;
        while let Some(timed) =
            self.timed.as_slice().iter().find(|timed| timed.at != timed.key.run_at).copied()
        {
            self.timed.remove(&timed);
            self.stand_in_line(timed.key);
            some = true;
        }
        some
    }

    /// Whether there is something to take.
    pub fn has_due(&mut self, now: i64) -> bool {
        self.let_in(now);
        self.line.len() > 0
    }

    /// Lets those into the line whose time has come; returns how many.
    pub fn let_in(&mut self, now: i64) -> usize {
        let mut count = 0;
        while self.timed.first().is_some_and(|timed| timed.at <= now) {
            let due = self.timed.take_first();
            due.into_iter().for_each(|due| self.stand_in_line(due.key));
            count += 1;
        }
        count
    }

    /// When something is to be done with the tasks for later; those that nobody told of included.
    pub fn next_time(&self) -> i64 {
        self.timed.first().map_or(NEVER, |timed| timed.at).min(self.timed_until)
    }

    /// Whether tasks are to be read that came due and that nobody told of.
    pub fn timed_unknown(&self, now: i64) -> bool {
        now >= self.timed_until
    }

    /// Whether tasks are to be read at all; if so, this process has to do it.
    pub fn needs(&mut self, at_once: bool, now: i64, me: i32) -> Answer {
        let timed = now >= self.timed_until;
        let more = self.known_below < Key::LAST;
        let empty = at_once && more;
        if !timed && !empty && !(more && self.refiller == 0 && self.line.len() < LOW) {
            return Answer::Complete;
        }
        if self.refiller != 0 && self.refiller != me {
            return Answer::Refilling(self.refiller);
        }
        let room = LINE - self.line.len();
        let timed_from = timed.then_some(self.timed_until);
        Answer::Refill(self.begin(Bounds { from: self.known_below, timed_from, room, began: now }, me))
    }

    /// Begins to read the table from the first task on, unless somebody reads already. What is known
    /// can be claimed meanwhile.
    pub fn reread(&mut self, now: i64, me: i32) -> Option<Bounds> {
        let timed_from = Some(self.timed_until.min(now));
        (self.refiller == 0)
            .then(|| self.begin(Bounds { from: Key::FIRST, timed_from, room: LINE, began: now }, me))
    }

    fn begin(&mut self, bounds: Bounds, me: i32) -> Bounds {
        (self.refiller, self.missed, self.missed_run) = (me, Key::LAST, NEVER);
        self.leases.begin_reading();
        bounds
    }

    /// Who refills, 0 if nobody does.
    pub fn refiller(&self) -> i32 {
        self.refiller
    }

    /// A refill ended without findings.
    pub fn give_up(&mut self) {
        self.refiller = 0;
    }

    /// Takes in what a refill has found. Returns the time at which a lease may end that the lane knew of and
    /// that the refill did not come to: somebody else has to look then.
    pub fn refilled(&mut self, bounds: Bounds, found: &Findings, now: i64) -> i64 {
        self.refiller = 0;
        let mut forgotten = NEVER;
        if bounds.from == Key::FIRST {
            // The clock may have been put forward meanwhile.
            (self.read_at, self.read_for) = (now, (now - bounds.began).clamp(0, LONGEST_READING));
            // Behind what it read may be tasks that came due, and running ones, that nobody knows of.
            self.lower(found.due_below);
            forgotten = self.leases.forget_unknown();
        }
        self.leases.add_unknown(found.leases_before);
        found.leases.iter().for_each(|lease| self.leases.learn(*lease));
        if bounds.timed_from.is_some_and(|from| from <= self.timed_until) {
            self.timed_until = self.timed_until.max(found.timed_before.min(self.missed_run));
            found.timed.iter().filter(|timed| timed.at < found.timed_before).for_each(|timed| {
                self.wait_for(*timed);
            });
        }
        if bounds.from <= self.known_below {
            self.known_below = self.known_below.max(found.due_below.min(self.missed));
        }
        let due = found.due.iter().chain(&found.came_due);
        due.for_each(|key| self.stand_in_line(*key));
        found.came_due_cut.into_iter().for_each(|key| self.lower(key));
        if bounds.timed_from.is_some() {
            // What came due and stands behind what was read is not known, whatever was known before.
            self.lower(found.due_below);
        }
        if found.due_below < Key::LAST { forgotten } else { NEVER }
    }

    /// How many stand in the line, how many wait for their time, and whether that is all.
    pub fn census(&self) -> (usize, usize, bool) {
        (self.line.len(), self.timed.len(), self.known_below == Key::LAST && self.timed_until == NEVER)
    }

    fn stand_in_line(&mut self, key: Key) {
        if key >= self.known_below {
            self.missed = self.missed.min(key);
        } else if let Added::Without(last) = self.line.add(key) {
            self.lower(last);
        }
    }

    fn wait_for(&mut self, timed: Timed) {
        let postponed = timed.at != timed.key.run_at;
        if !postponed && timed.at >= self.timed_until {
            self.missed_run = self.missed_run.min(timed.at);
        } else if let Added::Without(last) = self.timed.add(timed) {
            if last.at == last.key.run_at {
                self.lower_timed(last.at);
            } else {
                self.lower(last.key);
            }
        }
    }
}

/// What the test of the promises at the head of this file asks (pgrx-tests/tests/lane_model.rs).
#[cfg(test)]
impl Lane {
    /// Whether the lane forgot a task that can be claimed.
    pub fn hides(&self, key: Key) -> bool {
        key < self.known_below && key.run_at < self.timed_until && !self.knows(key)
    }

    /// Whether it forgot a task for later.
    pub fn hides_later(&self, key: Key) -> bool {
        key.run_at < self.timed_until && !self.knows(key)
    }

    /// Whether it would not notice in time that this lease of a running task ends.
    pub fn hides_lease(&self, key: Key, lease: Lease) -> bool {
        key < self.known_below && !self.leases.knows(lease)
    }

    fn knows(&self, key: Key) -> bool {
        self.line.as_slice().binary_search(&key).is_ok()
            || self.timed.as_slice().iter().any(|timed| timed.key == key)
    }
}
