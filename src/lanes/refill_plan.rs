//! What a refill reads of a queue, in which order, and its result, independently of how tasks are stored.

use super::NEVER;
use super::key::{Key, LEASES, READY, SCHEDULED, Scheduled};
use super::leases::Lease;

/// What a refill has to read: the due tasks from `from` on, and the tasks that become due from
/// `scheduled_from` on, if that is not null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefillPlan {
    /// Every claimable task before it is known.
    pub from: Key,
    /// Every task that becomes due before it is known.
    pub scheduled_from: Option<i64>,
    /// How many due tasks fit into the ready buffer.
    pub room: usize,
    /// When the refill began.
    pub began: i64,
}

/// The result of a refill.
#[derive(Debug)]
pub struct Findings {
    /// Claimable tasks in the order.
    pub due: Vec<Key>,
    /// There is no further one from `RefillPlan::from` up to here.
    pub due_below: Key,
    /// Tasks that became due recently, and come before `RefillPlan::from`.
    pub came_due: Vec<Key>,
    /// From here on there may be further ones.
    pub came_due_cut: Option<Key>,
    /// Scheduled tasks.
    pub scheduled: Vec<Scheduled>,
    /// There is no further one before this time.
    pub scheduled_before: i64,
    /// Leases of running tasks, those that end first.
    pub leases: Vec<Lease>,
    /// No lease that was left out ends before this.
    pub leases_before: i64,
}

/// A row of the table.
pub enum Meaning {
    /// It can be claimed from its run_at on.
    Due(Key),
    /// It is running.
    Runs(Lease),
    /// Neither.
    Neither,
}

/// The tasks of one queue as one snapshot has them, in their order.
pub trait Source {
    /// The first priority that is this or comes after it, if there is one.
    fn priority_at_least(&mut self, priority: i32) -> Option<i32>;
    /// Goes to the first task of this priority whose run_at is this or later.
    fn go_to(&mut self, priority: i32, run_at: i64);
    /// The next task of that priority.
    fn next(&mut self) -> Option<Meaning>;
}

/// Reads the tasks of the plan as of `moment`, from at most `most_priorities` priorities.
pub fn read(source: &mut impl Source, plan: RefillPlan, moment: i64, most_priorities: usize) -> Findings {
    let mut reading = Reading { source, plan, moment, full: false, found: Findings::default() };
    let RefillPlan { from, scheduled_from, .. } = plan;
    // Priorities before that of `from` matter only if scheduled tasks are read.
    let mut next =
        reading.source.priority_at_least(if scheduled_from.is_some() { i32::MIN } else { from.priority });
    let mut count = 0;
    while let Some(priority) = next {
        count += 1;
        if count > most_priorities {
            reading.stop_at(priority);
            break;
        }
        if let Some(since) = scheduled_from
            && priority <= from.priority
            && reading.found.came_due_cut.is_none()
        {
            reading.read_came_due(priority, since);
        }
        if priority >= from.priority && !reading.full {
            reading.read_due(priority);
        }
        if scheduled_from.is_some() {
            reading.read_scheduled(priority);
        } else if reading.full {
            break;
        }
        next = priority.checked_add(1).and_then(|priority| reading.source.priority_at_least(priority));
    }
    let mut found = reading.found;
    found.scheduled.sort_unstable();
    if found.scheduled.len() > SCHEDULED {
        found.scheduled_before = found.scheduled_before.min(found.scheduled[SCHEDULED].at);
        found.scheduled.truncate(SCHEDULED);
    }
    found.keep_first_leases();
    found
}

impl Findings {
    fn note_lease(&mut self, lease: Lease) {
        self.leases.push(lease);
        if self.leases.len() >= 4 * LEASES {
            self.keep_first_leases();
        }
    }

    /// Drops the leases for which a lane has no space, here and not while the lane is locked.
    fn keep_first_leases(&mut self) {
        if self.leases.len() > LEASES {
            let (_, left_out, _) = self.leases.select_nth_unstable_by_key(LEASES, |lease| lease.until);
            self.leases_before = self.leases_before.min(left_out.until);
            self.leases.truncate(LEASES);
        }
    }
}

struct Reading<'a, S> {
    source: &'a mut S,
    plan: RefillPlan,
    moment: i64,
    /// No further due task fits into the ready buffer.
    full: bool,
    found: Findings,
}

impl<S: Source> Reading<'_, S> {
    fn read_due(&mut self, priority: i32) {
        let RefillPlan { from, room, .. } = self.plan;
        self.source.go_to(priority, if priority == from.priority { from.run_at } else { i64::MIN });
        while let Some(row) = self.source.next() {
            match row {
                Meaning::Due(key) if key.run_at > self.moment => break,
                Meaning::Due(key) if key >= from => {
                    if self.found.due.len() >= room {
                        self.found.due_below = key;
                        self.full = true;
                        break;
                    }
                    self.found.due.push(key);
                }
                Meaning::Runs(lease) => self.found.note_lease(lease),
                _ => {}
            }
        }
    }

    /// From this priority on no task is known, and no scheduled task at all, since it can have any priority.
    fn stop_at(&mut self, priority: i32) {
        let rest = Key { priority, ..Key::FIRST };
        self.found.due_below = self.found.due_below.min(rest);
        self.found.scheduled.clear();
        self.found.scheduled_before = self.plan.scheduled_from.unwrap_or(NEVER);
    }

    /// Tasks that come before `from` and became due since they were last read.
    fn read_came_due(&mut self, priority: i32, since: i64) {
        self.source.go_to(priority, since);
        while let Some(row) = self.source.next() {
            match row {
                Meaning::Due(key) if key.run_at > self.moment || key >= self.plan.from => break,
                Meaning::Due(key) => {
                    if self.found.came_due.len() == READY {
                        self.found.came_due_cut = Some(key);
                        break;
                    }
                    self.found.came_due.push(key);
                }
                Meaning::Runs(lease) => self.found.note_lease(lease),
                Meaning::Neither => {}
            }
        }
    }

    fn read_scheduled(&mut self, priority: i32) {
        self.source.go_to(priority, self.moment.saturating_add(1));
        let mut count = 0;
        while let Some(row) = self.source.next() {
            let Meaning::Due(key) = row else { continue };
            if count == SCHEDULED {
                self.found.scheduled_before = self.found.scheduled_before.min(key.run_at);
                break;
            }
            self.found.scheduled.push(Scheduled { at: key.run_at, key });
            count += 1;
        }
    }
}

impl Default for Findings {
    fn default() -> Self {
        Self {
            due: Vec::new(),
            due_below: Key::LAST,
            came_due: Vec::new(),
            came_due_cut: None,
            scheduled: Vec::new(),
            scheduled_before: NEVER,
            leases: Vec::new(),
            leases_before: NEVER,
        }
    }
}
