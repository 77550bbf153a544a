//! The cached tasks of one queue.
//!
//! All of it is hints: every claim checks the row, and losing a lane costs one scan of the order index.
//! But a hint must not hide a task. So a lane guarantees, as of the last commit that was published to it:
//!
//! - A claimable task before the ready watermark is in the ready buffer, or among the scheduled tasks, or reserved by a
//!   claim, which returns it if it rolls back; or it was locked, and left out for lack of space (`left_out`).
//! - A task that is still to become due, and does so before the scheduled watermark, is among the scheduled tasks.
//! - A running task before the ready watermark has its lease in `leases`, or counts in their `unknown`.
//!
//! If there is no space, or after a change that was not published, the two watermarks are lowered, which is always
//! correct. A refill raises them. If a transaction commits while the refill reads the table, what it publishes beyond
//! the watermarks lowers the missed low-water marks, beyond which the refill must not raise the watermarks.

use super::NEVER;
use super::key::{Key, LEASES, READY, SCHEDULED, Scheduled};
use super::leases::{Lease, Leases};
use super::ordered::{Added, Ordered};
use super::refill_plan::{Findings, RefillPlan};
use std::cmp::Ordering;

/// A claim that finds fewer tasks in the ready buffer refills it, while other claims continue.
const LOW: usize = READY / 4;

/// The longest time that is counted for one reading of the table.
const LONGEST_READING: i64 = 60_000_000;
/// Complete readings of the table take at most one of so many parts of the time.
const READING_SHARE: i64 = 50;
/// But tasks that may have become due are not left unknown for longer than this for it,
const LONGEST_UNKNOWN: i64 = 1_000_000;
/// nor locked tasks left out.
const LONGEST_LEFT_OUT: i64 = 10_000_000;
/// About how long it takes to try a task that is locked.
const TRY: i64 = 10;
/// No task is left out.
const NONE: Scheduled = Scheduled { at: NEVER, key: Key::LAST };

/// A lane: see the top of this file.
#[repr(C)]
pub struct Lane {
    /// The ready watermark: every claimable task before it is known.
    ready_watermark: Key,
    /// The scheduled watermark: every task that is still to become due before it is known.
    scheduled_watermark: i64,
    /// The ready buffer.
    ready: Ordered<Key, READY>,
    scheduled: Ordered<Scheduled, SCHEDULED>,
    /// The first key of the locked tasks for which the scheduled ones had no space, and when the first of these is tried again:
    /// from that key on the table is read again then, or later (`may_read_left_out`).
    left_out: Scheduled,
    /// When that was done last, and how much work followed, in microseconds: readings, and tasks that were still locked.
    left_out_read_at: i64,
    left_out_work: i64,
    /// The running tasks.
    pub leases: Leases<LEASES>,
    /// The process that refills, 0 if none does.
    refiller: i32,
    /// The missed low-water marks: the first task, and the first time, that a refill may not have seen.
    missed: Key,
    missed_time: i64,
    /// When the table was last read from the first task on, and how long that took.
    read_at: i64,
    read_for: i64,
}

/// What a claim gets from a lane.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// There are no further tasks.
    Complete,
    /// There may be more: the process that gets this answer has to refill the lane.
    Refill(RefillPlan),
    /// There may be more, and the process with this id is refilling.
    Refilling(i32),
}

impl Lane {
    /// An empty lane, which has to be refilled.
    pub fn clear(&mut self, now: i64) {
        self.ready.clear();
        self.scheduled.clear();
        self.left_out = NONE;
        (self.left_out_read_at, self.left_out_work) = (now, 0);
        self.leases.clear();
        (self.refiller, self.missed, self.missed_time) = (0, Key::LAST, NEVER);
        (self.ready_watermark, self.scheduled_watermark) = (Key::FIRST, i64::MIN);
        (self.read_at, self.read_for) = (now, 0);
    }

    /// Drops all candidates, so that the table is read again; leases stay.
    pub fn invalidate(&mut self) {
        self.ready.clear();
        self.scheduled.clear();
        self.left_out = NONE;
        (self.ready_watermark, self.scheduled_watermark) = (Key::FIRST, i64::MIN);
        (self.missed, self.missed_time) = (Key::FIRST, i64::MIN);
    }

    /// When to read the table again from the first task on, for changes that no transaction published: every
    /// `interval`, but at most for a share of the time. At once if the clock was set back since the last time.
    pub fn next_reading(&self, interval: i64, now: i64) -> i64 {
        if self.read_at > now {
            return now;
        }
        self.read_at.saturating_add(interval.max(READING_SHARE * self.read_for))
    }

    /// Adds a task that can be claimed from its run_at on. Returns whether that is now.
    pub fn add(&mut self, key: Key, now: i64) -> bool {
        if key.run_at <= now {
            self.add_ready(key);
            return true;
        }
        self.schedule(Scheduled { at: key.run_at, key });
        false
    }

    /// A task could not be claimed because its row was locked: it is tried again at `at`.
    pub fn postpone(&mut self, key: Key, at: i64) {
        if key < self.ready_watermark {
            self.schedule(Scheduled { at, key });
        }
    }

    /// A task cannot be claimed any more.
    fn remove(&mut self, key: Key) {
        self.ready.remove(&key);
        self.scheduled.remove(&Scheduled { at: key.run_at, key });
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
            // Another session may have ended this lease, and published that first.
            self.lower(key);
        }
    }

    /// A task was deleted, or is blocked; if it ran, its lease ended at `until`.
    pub fn removed(&mut self, key: Key, until: i64) {
        self.remove(key);
        self.leases.remove(Lease { id: key.id, until });
    }

    /// There may be tasks from `key` on that were not published.
    pub fn lower(&mut self, key: Key) {
        self.missed = self.missed.min(key);
        if key < self.ready_watermark {
            self.ready_watermark = key;
            self.ready.cut_from(&key);
        }
    }

    /// There may be tasks scheduled for `time` or later that were not published.
    pub fn lower_scheduled(&mut self, time: i64) {
        self.missed_time = self.missed_time.min(time);
        self.scheduled_watermark = self.scheduled_watermark.min(time);
    }

    /// Passes up to `wanted` tasks to `take`, in order.
    pub fn take(&mut self, wanted: usize, now: i64, me: i32, mut take: impl FnMut(Key)) -> Answer {
        self.move_due(now);
        let mut taken = 0;
        // A task that became due and is not known yet may come first.
        if now < self.scheduled_watermark {
            while taken < wanted
                && let Some(key) = self.ready.take_first()
            {
                take(key);
                taken += 1;
            }
        }
        self.needs(taken < wanted, now, me)
    }

    /// A position before which no task of the same priority can be claimed, except those reserved by claims.
    pub fn first(&self) -> Option<Key> {
        let first = self.ready.first()?;
        // Some are tried again later, and some became due since the last claim, or were not published.
        let scheduled = self.scheduled.as_slice().iter().map(|task| task.key);
        let scheduled = scheduled.filter(|key| key.priority == first.priority).map(|key| key.run_at);
        // It names the first of them, and others may have this priority.
        let left_out = match self.left_out.key.priority.cmp(&first.priority) {
            Ordering::Less => i64::MIN,
            Ordering::Equal => self.left_out.key.run_at,
            Ordering::Greater => NEVER,
        };
        let run_at = scheduled.chain([first.run_at, self.scheduled_watermark, left_out]).min()?;
        Some(Key { run_at, ..first })
    }

    /// Whether there may be tasks that the ready buffer has no space for, or that were not published.
    pub fn is_unread(&self) -> bool {
        self.ready_watermark < Key::LAST
    }

    /// How many tasks the ready buffer holds.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Makes the tasks ready at once that were locked when a claim tried them.
    pub fn retry(&mut self, now: i64) -> bool {
        let mut some = self.may_read_left_out(now) && self.read_left_out(now);
        while let Some(due) =
            self.scheduled.as_slice().iter().find(|task| task.at != task.key.run_at).copied()
        {
            self.scheduled.remove(&due);
            self.add_ready(due.key);
            some = true;
        }
        some
    }

    /// Whether a task is ready.
    pub fn has_due(&mut self, now: i64) -> bool {
        self.move_due(now);
        self.ready.len() > 0
    }

    /// Moves the scheduled tasks that became due to the ready buffer; returns how many. Some may have to be read first.
    pub fn move_due(&mut self, now: i64) -> usize {
        let mut count = 0;
        while self.scheduled.first().is_some_and(|task| task.at <= now) {
            let due = self.scheduled.take_first();
            due.into_iter().for_each(|due| self.add_ready(due.key));
            count += 1;
        }
        if self.left_out.at <= now && self.may_read_left_out(now) {
            count += usize::from(self.read_left_out(now));
        }
        count
    }

    /// Has the table read again from the first task on that was left out; returns whether there is one.
    fn read_left_out(&mut self, now: i64) -> bool {
        let Scheduled { key, .. } = std::mem::replace(&mut self.left_out, NONE);
        if key < Key::LAST {
            (self.left_out_read_at, self.left_out_work) = (now, 0);
            self.lower(key);
        }
        key < Key::LAST
    }

    /// The table may have many tasks that are still locked, and many that are gone and cannot be vacuumed.
    fn may_read_left_out(&self, now: i64) -> bool {
        now >= self.next_reading_of_left_out() || now < self.left_out_read_at
    }

    fn next_reading_of_left_out(&self) -> i64 {
        self.left_out_read_at.saturating_add((READING_SHARE * self.left_out_work).min(LONGEST_LEFT_OUT))
    }

    /// When the next scheduled task becomes due, including those that were not published.
    pub fn next_time(&self) -> i64 {
        let left_out = self.left_out.at.max(self.next_reading_of_left_out());
        let known = self.scheduled.first().map_or(left_out, |task| task.at.min(left_out));
        known.min(self.scheduled_watermark.max(self.next_scheduled_reading()))
    }

    /// Whether the table has to be read because tasks may have become due that are not known.
    pub fn scheduled_unknown(&self, now: i64) -> bool {
        now >= self.scheduled_watermark && (now < self.read_at || now >= self.next_scheduled_reading())
    }

    /// A reading may be unable to tell which tasks become due, and would be repeated at once.
    fn next_scheduled_reading(&self) -> i64 {
        if self.scheduled_watermark > self.read_at {
            return i64::MIN;
        }
        self.read_at.saturating_add((READING_SHARE * self.read_for).min(LONGEST_UNKNOWN))
    }

    /// Whether the table has to be read; if so, and no other process does it, this one has to.
    pub fn needs(&mut self, at_once: bool, now: i64, me: i32) -> Answer {
        let needs_scheduled = now >= self.scheduled_watermark;
        let more = self.ready_watermark < Key::LAST;
        let empty = at_once && more;
        if !needs_scheduled && !empty && !(more && self.refiller == 0 && self.ready.len() < LOW) {
            return Answer::Complete;
        }
        if self.refiller != 0 && self.refiller != me {
            return Answer::Refilling(self.refiller);
        }
        let room = READY - self.ready.len();
        let scheduled_from = needs_scheduled.then_some(self.scheduled_watermark);
        Answer::Refill(
            self.begin(RefillPlan { from: self.ready_watermark, scheduled_from, room, began: now }, me),
        )
    }

    /// Starts to read the table from the first task on, unless another process is reading it. Cached tasks can be
    /// claimed meanwhile.
    pub fn reread(&mut self, now: i64, me: i32) -> Option<RefillPlan> {
        let scheduled_from = Some(self.scheduled_watermark.min(now));
        (self.refiller == 0)
            .then(|| self.begin(RefillPlan { from: Key::FIRST, scheduled_from, room: READY, began: now }, me))
    }

    fn begin(&mut self, plan: RefillPlan, me: i32) -> RefillPlan {
        (self.refiller, self.missed, self.missed_time) = (me, Key::LAST, NEVER);
        self.leases.begin_reading();
        plan
    }

    /// The table cannot be read now: the next time is as after a reading. Returns the earliest end of a lease that the lane knew
    /// only by its time.
    pub fn skip_reading(&mut self, now: i64) -> i64 {
        (self.read_at, self.read_for) = (now, LONGEST_UNKNOWN / READING_SHARE);
        self.leases.take_unknown()
    }

    /// The process that refills, 0 if none does.
    pub fn refiller(&self) -> i32 {
        self.refiller
    }

    /// A refill ended without result.
    pub fn give_up(&mut self) {
        self.refiller = 0;
    }

    /// Adds the result of a refill. Returns the earliest end of a lease that the lane knew only by its time and that
    /// the refill did not reach. The worker has to scan for it then.
    pub fn refilled(&mut self, plan: RefillPlan, found: &Findings, now: i64) -> i64 {
        self.refiller = 0;
        let mut forgotten = NEVER;
        if plan.from == Key::FIRST {
            // The clock may have been set forward meanwhile.
            (self.read_at, self.read_for) = (now, (now - plan.began).clamp(0, LONGEST_READING));
            // After the last task that it read, there may be unknown tasks that became due or are running.
            self.lower(found.due_below);
            forgotten = self.leases.forget_unknown();
        }
        self.work_for_left_out((now - plan.began).clamp(0, LONGEST_READING));
        self.leases.add_unknown(found.leases_before);
        found.leases.iter().for_each(|lease| self.leases.learn(*lease));
        if plan.scheduled_from.is_some_and(|from| from <= self.scheduled_watermark) {
            self.scheduled_watermark =
                self.scheduled_watermark.max(found.scheduled_before.min(self.missed_time));
            found.scheduled.iter().filter(|task| task.at < found.scheduled_before).for_each(|task| {
                self.schedule(*task);
            });
        }
        if plan.from <= self.ready_watermark {
            self.ready_watermark = self.ready_watermark.max(found.due_below.min(self.missed));
        }
        let due = found.due.iter().chain(&found.came_due);
        due.for_each(|key| self.add_ready(*key));
        found.came_due_cut.into_iter().for_each(|key| self.lower(key));
        if plan.scheduled_from.is_some() {
            // A task that became due after the last task that was read is unknown, whatever was known before.
            self.lower(found.due_below);
        }
        if found.due_below < Key::LAST { forgotten } else { NEVER }
    }

    /// How many tasks are ready, how many are scheduled, and whether these are all.
    pub fn sizes(&self) -> (usize, usize, bool) {
        (
            self.ready.len(),
            self.scheduled.len(),
            self.ready_watermark == Key::LAST && self.scheduled_watermark == NEVER,
        )
    }

    fn add_ready(&mut self, key: Key) {
        if key >= self.ready_watermark {
            self.missed = self.missed.min(key);
        } else if let Added::Without(last) = self.ready.add(key) {
            self.lower(last);
        }
    }

    fn schedule(&mut self, task: Scheduled) {
        let postponed = task.at != task.key.run_at;
        if !postponed && task.at >= self.scheduled_watermark {
            self.missed_time = self.missed_time.min(task.at);
        } else if let Added::Without(last) = self.scheduled.add(task) {
            if last.at == last.key.run_at {
                self.lower_scheduled(last.at);
            } else {
                self.left_out.at = self.left_out.at.min(last.at);
                self.left_out.key = self.left_out.key.min(last.key);
                self.work_for_left_out(TRY);
            }
        }
    }

    fn work_for_left_out(&mut self, work: i64) {
        self.left_out_work = (self.left_out_work + work).min(LONGEST_LEFT_OUT);
    }
}

/// For the test of the guarantees at the top of this file (pgrx-tests/tests/lane_model.rs).
#[cfg(test)]
impl Lane {
    /// Whether the lane has lost a task that can be claimed.
    pub fn hides(&self, key: Key) -> bool {
        key < self.ready_watermark
            && key.run_at < self.scheduled_watermark
            && key < self.left_out.key
            && !self.knows(key)
    }

    /// Whether it has lost a scheduled task.
    pub fn hides_scheduled(&self, key: Key) -> bool {
        key.run_at < self.scheduled_watermark && !self.knows(key)
    }

    /// Whether it would not notice in time that this lease of a running task ends.
    pub fn hides_lease(&self, key: Key, lease: Lease) -> bool {
        key < self.ready_watermark && !self.leases.knows(lease)
    }

    fn knows(&self, key: Key) -> bool {
        self.ready.as_slice().binary_search(&key).is_ok()
            || self.scheduled.as_slice().iter().any(|task| task.key == key)
    }
}
