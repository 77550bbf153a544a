//! How many tasks of a queue are in which state.
//!
//! The counters start with a count of the tables as one snapshot sees them, and from then on add what each transaction
//! publishes at its commit. The count includes the transactions that the snapshot sees, so these are left out, and
//! every other one is added, whether it publishes during the count or after it. So the counters are exact as of the
//! last commit that was published.
//!
//! Scheduled tasks become due by time alone, which no transaction publishes. They are therefore counted by their
//! run_at, in steps that are the wider the farther they are from the time of the count.

/// Microseconds in a step of run_at, as a power of two: about a second.
const RUN_STEP: u32 = 20;
/// The same for the times at which tasks ended: about 17 seconds.
const END_STEP: u32 = 24;
/// How many steps of run_at have the same width, before the next ones are twice as wide.
const PER_WIDTH: u64 = 8;
/// Enough for the latest timestamp.
const STEPS: usize = 340;
/// A little more than an hour.
const ENDS: usize = 216;
const HOUR: i64 = 3_600_000_000;
const MINUTE: i64 = 60_000_000;
/// How many transactions may be running while the tables are counted.
pub const RUNNING: usize = 512;

/// A counted quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    kind: Kind,
    /// Its time, in steps.
    step: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Queued,
    Blocked,
    Waiting,
    Running,
    Dead,
    Completed,
    Cancelled,
    Failed,
}

impl Item {
    /// A task that is blocked in its group.
    pub const BLOCKED: Self = Self { kind: Kind::Blocked, step: 0 };
    /// A task that waits for its predecessors.
    pub const WAITING: Self = Self { kind: Kind::Waiting, step: 0 };
    /// A running task.
    pub const RUNNING: Self = Self { kind: Kind::Running, step: 0 };
    /// A dead letter.
    pub const DEAD: Self = Self { kind: Kind::Dead, step: 0 };

    /// A task that can be claimed from this time on.
    pub const fn queued(run_at: i64) -> Self {
        Self { kind: Kind::Queued, step: run_at >> RUN_STEP }
    }

    /// The end of a task, by the name of its last state. A time in the future counts as now, or it would replace the
    /// entries of the last hour.
    pub fn ended(state: &[u8], at: i64, now: i64) -> Option<Self> {
        let kind = match state {
            b"completed" => Kind::Completed,
            b"cancelled" => Kind::Cancelled,
            b"failed" => Kind::Failed,
            _ => return None,
        };
        Some(Self { kind, step: at.min(now) >> END_STEP })
    }

    /// Whether it is a queued task.
    pub fn is_queued(self) -> bool {
        matches!(self.kind, Kind::Queued | Kind::Blocked)
    }
}

/// The transactions that a snapshot sees.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Horizon {
    /// The first that was still running, and the first that had not begun.
    oldest: u64,
    next: u64,
    count: usize,
    /// Those that were running, counted from the oldest.
    running: [u32; RUNNING],
}

impl Horizon {
    /// From the transactions that were running; none if they are too many.
    pub fn new(oldest: u64, next: u64, all: impl ExactSizeIterator<Item = u64>) -> Option<Self> {
        let mut horizon = Self { oldest, next, count: all.len(), running: [0; RUNNING] };
        let places = horizon.running.get_mut(..horizon.count)?;
        for (place, transaction) in places.iter_mut().zip(all) {
            *place = u32::try_from(transaction.checked_sub(oldest)?).ok()?;
        }
        Some(horizon)
    }

    fn sees(&self, transaction: u64) -> bool {
        transaction < self.oldest
            || transaction < self.next
                && !self.running[..self.count]
                    .iter()
                    .any(|running| self.oldest + u64::from(*running) == transaction)
    }
}

/// The number of each item: in the counters, or in a snapshot count.
#[repr(C)]
#[derive(Clone)]
pub struct Counts {
    queued: [i32; STEPS],
    blocked: i64,
    waiting: i64,
    running: i64,
    dead: i64,
    /// Completed, cancelled and failed in each step of time, in a ring.
    ends: [[i32; 3]; ENDS],
    last_end: i64,
}

impl Counts {
    /// All zero.
    pub const NONE: Self = Self {
        queued: [0; STEPS],
        blocked: 0,
        waiting: 0,
        running: 0,
        dead: 0,
        ends: [[0; 3]; ENDS],
        last_end: 0,
    };

    /// Adds `more` of an item to what has been counted since `since`.
    pub fn add(&mut self, item: Item, more: i32, since: i64) {
        match item.kind {
            Kind::Queued => self.queued[index_of(item.step, since)] += more,
            Kind::Blocked => self.blocked += i64::from(more),
            Kind::Waiting => self.waiting += i64::from(more),
            Kind::Running => self.running += i64::from(more),
            Kind::Dead => self.dead += i64::from(more),
            Kind::Completed => self.add_end(item.step, 0, more),
            Kind::Cancelled => self.add_end(item.step, 1, more),
            Kind::Failed => self.add_end(item.step, 2, more),
        }
    }

    fn add_end(&mut self, step: i64, outcome: usize, more: i32) {
        self.advance(step);
        if step > self.last_end - ENDS as i64 {
            self.ends[step.rem_euclid(ENDS as i64) as usize][outcome] += more;
        }
    }

    /// Provides an entry for ends in this step, and removes those of an hour before.
    fn advance(&mut self, step: i64) {
        for free in (self.last_end + 1).max(step - ENDS as i64 + 1)..=step {
            self.ends[free.rem_euclid(ENDS as i64) as usize] = [0; 3];
        }
        self.last_end = self.last_end.max(step);
    }

    fn merge(&mut self, other: &Self) {
        for (mine, more) in self.queued.iter_mut().zip(&other.queued) {
            *mine += more;
        }
        self.blocked += other.blocked;
        self.waiting += other.waiting;
        self.running += other.running;
        self.dead += other.dead;
        for step in other.last_end - ENDS as i64 + 1..=other.last_end {
            for (outcome, more) in other.ends[step.rem_euclid(ENDS as i64) as usize].iter().enumerate() {
                if *more != 0 {
                    self.add_end(step, outcome, *more);
                }
            }
        }
    }

    /// How many tasks ended since this time, by outcome; to the step.
    fn ended_since(&self, time: i64) -> [i64; 3] {
        let first = (time >> END_STEP).max(self.last_end - ENDS as i64 + 1);
        let steps = (first..=self.last_end).map(|step| self.ends[step.rem_euclid(ENDS as i64) as usize]);
        steps.fold([0; 3], |sum, ends| std::array::from_fn(|i| sum[i] + i64::from(ends[i])))
    }
}

/// What the counters show at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// Tasks that can be claimed now or later.
    pub queued: i64,
    /// Those of them that become due after `edge`.
    pub later: i64,
    /// The end of the current step: only the table shows how many tasks become due between now and this time.
    pub edge: i64,
    /// An upper bound of these.
    pub near: i64,
    /// Tasks that are blocked in their groups.
    pub blocked: i64,
    pub waiting: i64,
    pub running: i64,
    pub dead: i64,
    /// Completed, cancelled and failed in the last hour.
    pub ended: [i64; 3],
    /// Completed in each second of the last minute.
    pub rate: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The tables have not been counted yet.
    Unknown,
    /// A session is counting, and `counts` is what was published since.
    Counting,
    Known,
}

/// The counters of a queue: see the top of this file.
#[repr(C)]
pub struct TaskCounters {
    state: State,
    /// The process that counts.
    counter: i32,
    /// How many transactions have published anything, and how often the counters were invalidated.
    published: u64,
    /// The time from which on the steps of run_at are counted.
    since: i64,
    horizon: Horizon,
    counts: Counts,
}

impl TaskCounters {
    /// Invalidates the counters, so that the tables are counted again.
    pub fn invalidate(&mut self) {
        self.published += 1;
        self.state = State::Unknown;
    }

    /// A number that changes whenever a transaction publishes something, if only that its changes are unknown.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Process `me` starts to count the tables with this snapshot.
    pub fn begin(&mut self, me: i32, horizon: Horizon, now: i64) {
        (self.state, self.counter, self.since) = (State::Counting, me, now);
        (self.horizon, self.counts) = (horizon, Counts::NONE);
        self.counts.last_end = (now >> END_STEP) - ENDS as i64;
    }

    /// Adds the changes of a committed transaction.
    pub fn publish(&mut self, transaction: u64, items: impl Iterator<Item = (Item, i32)>) {
        self.published += 1;
        if self.state != State::Unknown && !self.horizon.sees(transaction) {
            items.for_each(|(item, more)| self.counts.add(item, more, self.since));
        }
    }

    /// The process has counted the tables.
    pub fn finish(&mut self, me: i32, found: &Counts) {
        if self.state == State::Counting && self.counter == me {
            self.counts.merge(found);
            self.state = State::Known;
        }
    }

    /// The process stops counting.
    pub fn give_up(&mut self, me: i32) {
        if self.state == State::Counting && self.counter == me {
            self.state = State::Unknown;
        }
    }

    /// Whether another process is counting now.
    pub fn is_counted_by_other(&self, me: i32) -> bool {
        self.state == State::Counting && self.counter != me
    }

    /// How many tasks are queued, scheduled and blocked ones included, if that is known.
    pub fn depth(&self) -> Option<i64> {
        let queued = || self.counts.queued.iter().map(|count| i64::from(*count)).sum::<i64>();
        (self.state == State::Known).then(|| (queued() + self.counts.blocked).max(0))
    }

    /// How many tasks run, if that is known.
    pub fn running(&self) -> Option<i64> {
        (self.state == State::Known).then_some(self.counts.running)
    }

    /// The totals now, if they are known.
    pub fn totals(&self, now: i64) -> Option<Totals> {
        if self.state != State::Known {
            return None;
        }
        let Self { since, counts, .. } = self;
        let here = index_of(now >> RUN_STEP, *since);
        let sum = |steps: &[i32]| steps.iter().map(|count| i64::from(*count)).sum::<i64>().max(0);
        // The counted ends are rounded to steps of this width, and earlier ones were not counted.
        let minute_from = ((now - MINUTE) >> END_STEP) << END_STEP;
        let [lately, ..] = counts.ended_since(minute_from);
        Some(Totals {
            queued: sum(&counts.queued),
            later: sum(&counts.queued[here + 1..]),
            edge: start_of(here + 1, *since),
            near: if here == 0 { 0 } else { i64::from(counts.queued[here]).max(0) },
            blocked: counts.blocked.max(0),
            waiting: counts.waiting.max(0),
            running: counts.running.max(0),
            dead: counts.dead.max(0),
            ended: counts.ended_since(now - HOUR).map(|count| count.max(0)),
            rate: lately.max(0) as f64 / ((now - minute_from) as f64 / 1e6),
        })
    }
}

/// The index of the interval of a step of run_at. The first interval has everything up to the time of the count. It is
/// followed by `PER_WIDTH` intervals of one step, as many of two steps, of four, and so on.
fn index_of(step: i64, since: i64) -> usize {
    let distance = match u64::try_from(step.saturating_sub(since >> RUN_STEP)) {
        Ok(distance) if distance > 0 => distance,
        _ => return 0,
    };
    let shift = u64::BITS - (distance / PER_WIDTH).leading_zeros();
    let shift = shift.saturating_sub(1);
    let place = u64::from(shift) * PER_WIDTH + (distance >> shift);
    (place as usize).min(STEPS - 1)
}

/// The time at which an interval starts.
fn start_of(place: usize, since: i64) -> i64 {
    let place = place as u64;
    let shift = (place / PER_WIDTH).saturating_sub(1);
    let distance = (place - shift * PER_WIDTH) << shift;
    let step = i64::try_from(distance).unwrap_or(i64::MAX).saturating_add(since >> RUN_STEP);
    step.checked_mul(1 << RUN_STEP).unwrap_or(i64::MAX)
}
