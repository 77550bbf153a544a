//! Ends tasks whose start deadline has passed: first those whose deadline has just passed, and then older ones. Older ones
//! are left if their tasks were pushed after the deadline, were announced by no session, or could not be ended, mostly
//! because they were locked. Those are tried again after pauses that grow. A flood of older ones does not delay the others.

use super::{BATCH, EXPIRE_UNSTARTED, Worker, core, microseconds};
use crate::clock::now;
use crate::extension::Installed;
use crate::settings;
use crate::shared::{AT_ONCE, NEVER, QueueBits};
use std::time::{Duration, Instant};

/// How many index entries a piece has, and how long a step reads one piece of either kind after the other.
const PIECE: i32 = 5_000;
const STEP: Duration = Duration::from_millis(25);
/// After a sweep, or trying again what could not be ended, comes a pause from both of at least this many times the time
/// that it spent without ending a task.
const SHARE: i64 = 8;
/// The first pause before tasks that could not be ended are tried again, in microseconds. Each one is twice as long as the
/// one before, until the next sweep comes first.
const FIRST_PAUSE: i64 = 100_000;

/// An entry of the index: a deadline and the id of its task.
type Entry = (i64, i64);

/// Before every entry.
const FIRST: Entry = (i64::MIN, 0);

/// After the entries of this time.
fn after(time: i64) -> Entry {
    (time, i64::MAX)
}

/// How far the worker has read the start deadlines.
pub(super) struct Deadlines {
    /// All up to this entry have been read once, and the next one.
    read: Entry,
    next: i64,
    /// The entry after which the older ones have to be read.
    behind: Option<Entry>,
    /// The same for the next time. Otherwise an announcement would send the worker back before it came to the last.
    behind_again: Option<Entry>,
    /// Whether the older ones are being read because of a sweep, which reads all that have passed, or to try again, and how
    /// long that has taken without ending a task.
    repeats: bool,
    in_vain: Duration,
    /// When the last sweep began, and the earliest start of the next such reading.
    swept_at: i64,
    repeat_from: i64,
    /// The entry after which tasks could not be ended, when they are tried again, and the pause after that.
    skipped: Option<Entry>,
    retry_at: i64,
    pause: i64,
}

impl Deadlines {
    pub(super) fn new() -> Self {
        Self {
            read: after(now()),
            next: AT_ONCE,
            behind: None,
            behind_again: None,
            repeats: false,
            in_vain: Duration::ZERO,
            swept_at: i64::MIN,
            repeat_from: AT_ONCE,
            skipped: None,
            retry_at: NEVER,
            pause: FIRST_PAUSE,
        }
    }

    /// A session has committed a task with this deadline, which may have passed.
    fn announce(&mut self, start_by: i64) {
        if start_by > self.read.0 {
            self.next = self.next.min(start_by);
        } else {
            // AT_ONCE is no time that SQL could be given.
            self.read_again(if start_by == AT_ONCE { FIRST } else { after(start_by.saturating_sub(1)) });
            self.retry_soon();
        }
    }

    /// Tries soon again what cannot be ended. A task that is locked for a moment does not wait as long as the others have
    /// been waiting.
    fn retry_soon(&mut self) {
        self.pause = FIRST_PAUSE;
        self.retry_at = self.retry_at.min(now().saturating_add(FIRST_PAUSE));
    }

    fn read_again(&mut self, after: Entry) {
        self.behind_again = earliest(self.behind_again, after);
    }

    /// The time up to which all have been read.
    pub(super) fn read_until(&self) -> i64 {
        self.read.0
    }

    /// Computed at each use, so that a changed setting applies at once.
    fn next_sweep(&self) -> i64 {
        self.swept_at.saturating_add(microseconds(settings::sweep_interval())).max(self.repeat_from)
    }

    fn next_retry(&self) -> i64 {
        self.retry_at.max(self.repeat_from)
    }

    /// When deadlines have to be read next.
    fn due(&self) -> i64 {
        match self.behind.or(self.behind_again) {
            Some(_) => AT_ONCE,
            None => self.next.min(self.next_sweep()).min(self.next_retry()),
        }
    }

    /// Begins to read the older ones again if it is time.
    fn begin(&mut self, moment: i64) {
        let (retries, sweeps) = (self.next_retry() <= moment, self.next_sweep() <= moment);
        if retries {
            self.skipped.into_iter().for_each(|skipped| self.read_again(skipped));
        }
        self.behind = self.behind_again.take();
        if sweeps {
            (self.behind, self.swept_at) = (Some(FIRST), moment);
        }
        if retries || sweeps {
            (self.skipped, self.retry_at) = (None, NEVER);
        }
        (self.repeats, self.in_vain) = (retries || sweeps, Duration::ZERO);
    }

    /// The older ones have been read.
    fn finish(&mut self, moment: i64) {
        if std::mem::take(&mut self.repeats) {
            let share = SHARE.saturating_mul(microseconds(self.in_vain));
            self.repeat_from = moment.saturating_add(share);
        }
        if self.skipped.is_none() {
            (self.retry_at, self.pause) = (NEVER, FIRST_PAUSE);
        } else if self.retry_at == NEVER {
            self.retry_at = moment.saturating_add(self.pause);
            self.pause = self.pause.saturating_mul(2);
        }
    }
}

fn earliest(one: Option<Entry>, other: Entry) -> Option<Entry> {
    Some(one.map_or(other, |one| one.min(other)))
}

impl Worker {
    /// When deadlines have to be read next.
    pub(super) fn next_deadline(&self) -> i64 {
        self.deadlines.due().min(self.database.next_deadline.get())
    }

    /// Ends tasks whose deadline has passed.
    pub(super) fn expire_unstarted(&mut self, _pushed: &QueueBits) -> Installed {
        // Before the snapshots below, which show all tasks that have been announced.
        self.deadlines.announce(self.database.next_deadline.take());
        let moment = now();
        if self.deadlines.behind.is_none() {
            self.deadlines.begin(moment);
        }
        // Monotonic, because the clock may be set meanwhile.
        let started = Instant::now();
        while self.deadlines.next <= now() && started.elapsed() < STEP {
            let piece = match self.expire_piece(self.deadlines.read) {
                Ok(piece) => piece,
                Err(installed) => return installed,
            };
            if piece.skipped {
                self.deadlines.retry_soon();
            }
            match piece.last {
                Some(last) => self.deadlines.read = last,
                None => (self.deadlines.read, self.deadlines.next) = (after(piece.until), piece.next),
            }
        }
        let started = Instant::now();
        while let Some(behind) = self.deadlines.behind.filter(|_| started.elapsed() < STEP) {
            let begun = Instant::now();
            match self.expire_piece(behind) {
                Ok(piece) => {
                    if piece.expired == 0 {
                        self.deadlines.in_vain += begun.elapsed();
                    }
                    self.deadlines.behind = piece.last;
                    // Only the earliest of several deadlines is announced, and that one may be behind.
                    self.deadlines.next = self.deadlines.next.min(piece.next);
                }
                Err(installed) => return installed,
            }
        }
        if self.deadlines.behind.is_none() {
            self.deadlines.finish(now());
        }
        Installed::Yes
    }

    fn expire_piece(&mut self, after: Entry) -> Result<core::Expired, Installed> {
        let step = self.attempt(EXPIRE_UNSTARTED, c"ending tasks that were not started in time", || {
            core::expire_unstarted(BATCH, after, PIECE)
        });
        let piece = step.result.ok_or(step.installed)?;
        if piece.skipped {
            self.deadlines.skipped = earliest(self.deadlines.skipped, after);
        }
        Ok(piece)
    }
}
