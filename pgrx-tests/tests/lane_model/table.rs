//! The parts of the model: random numbers, tasks, published changes, and snapshots.

use super::*;

/// SplitMix64, which is as random as this needs.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 up to, and without, `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn time(&mut self, end: i64) -> i64 {
        (self.next() % end as u64) as i64
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Queued,
    /// With its lease's end.
    Running(i64),
}

#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub key: Key,
    pub state: State,
    /// The open claim that has its row locked.
    pub claim: Option<u64>,
    /// A commit that changed it was not published yet.
    pub untold: u32,
}

impl Task {
    /// Until when its lease is.
    pub fn until(&self) -> i64 {
        match self.state {
            State::Queued => NEVER,
            State::Running(until) => until,
        }
    }
}

/// The changes that a commit callback publishes, as in src/transaction.rs.
#[derive(Clone, Copy, Debug)]
pub enum Tell {
    Added(Key),
    Leased(Key, i64),
    Extended(Key, i64),
    Removed(Key, i64),
    /// Too many changes to record: only bounds are published.
    Summary {
        added: Key,
        added_from: i64,
        until: i64,
    },
    /// Of a task that a summary is about.
    Nothing(i64),
}

impl Tell {
    pub fn id(&self) -> Option<i64> {
        match self {
            Self::Added(key) | Self::Leased(key, _) | Self::Extended(key, _) | Self::Removed(key, _) => {
                Some(key.id)
            }
            Self::Nothing(id) => Some(*id),
            Self::Summary { .. } => None,
        }
    }
}

/// A claim's transaction, with the tasks that it took from the lane and leased.
#[derive(Clone)]
pub struct Claim {
    pub number: u64,
    pub taken: Vec<Key>,
}

#[derive(Clone)]
pub struct Refill {
    pub plan: RefillPlan,
    pub by: i32,
    /// The contents of its snapshot, after it has read.
    pub found: Option<std::rc::Rc<Findings>>,
}

/// The table as a snapshot sees it.
pub struct Snapshot {
    pub order: Vec<Task>,
    pub at: usize,
    pub level: i32,
}

impl Source for Snapshot {
    fn priority_at_least(&mut self, level: i32) -> Option<i32> {
        let place = self.order.partition_point(|task| task.key.priority < level);
        self.order.get(place).map(|task| task.key.priority)
    }

    fn go_to(&mut self, level: i32, run_at: i64) {
        let from = Key { priority: level, run_at, id: i64::MIN };
        self.at = self.order.partition_point(|task| task.key < from);
        self.level = level;
    }

    fn next(&mut self) -> Option<Meaning> {
        let task = self.order.get(self.at).filter(|task| task.key.priority == self.level)?;
        self.at += 1;
        Some(match task.state {
            State::Queued => Meaning::Due(task.key),
            State::Running(until) => Meaning::Runs(Lease { id: task.key.id, until }),
        })
    }
}
