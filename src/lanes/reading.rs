//! What a refill reads, and in which order; from where, it does not know.

use super::NEVER;
use super::lane::{Bounds, Findings, Key, LEASES, LINE, TIMED, Timed};
use super::leases::Lease;

/// What a row of the table means to a lane.
pub enum Meaning {
    /// It can be claimed from its run_at on.
    Due(Key),
    /// It runs.
    Runs(Lease),
    /// Neither.
    Neither,
}

/// The tasks of one queue as one snapshot has them, in their order.
pub trait Source {
    /// The first priority that is this or comes behind, if there is one.
    fn level_at_least(&mut self, level: i32) -> Option<i32>;
    /// Goes to the first task of this priority whose run_at is this or later.
    fn go_to(&mut self, level: i32, run_at: i64);
    /// The next task of that priority.
    fn next(&mut self) -> Option<Meaning>;
}

/// Reads what the bounds ask for, as of `moment`, of `most_levels` priorities at most.
pub fn read(source: &mut impl Source, bounds: Bounds, moment: i64, most_levels: usize) -> Findings {
    let mut reading = Reading { source, bounds, moment, full: false, found: Findings::default() };
    let Bounds { from, timed_from, .. } = bounds;
    // Without tasks to come to look for, those before `from` need no look.
    let mut next = reading.source.level_at_least(if timed_from.is_some() { i32::MIN } else { from.priority });
    let mut levels = 0;
    while let Some(level) = next {
        levels += 1;
        if levels > most_levels {
            reading.stop_at(level);
            break;
        }
        if let Some(since) = timed_from
            && level <= from.priority
            && reading.found.came_due_cut.is_none()
        {
            reading.read_came_due(level, since);
        }
        if level >= from.priority && !reading.full {
            reading.read_due(level);
        }
        if timed_from.is_some() {
            reading.read_timed(level);
        } else if reading.full {
            break;
        }
        next = level.checked_add(1).and_then(|level| reading.source.level_at_least(level));
    }
    let mut found = reading.found;
    found.timed.sort_unstable();
    if found.timed.len() > TIMED {
        found.timed_before = found.timed_before.min(found.timed[TIMED].at);
        found.timed.truncate(TIMED);
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

    /// Leaves out the leases for which a lane has no room anyway, here and not while the lane is locked.
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
    bounds: Bounds,
    moment: i64,
    /// There is no room for more due tasks.
    full: bool,
    found: Findings,
}

impl<S: Source> Reading<'_, S> {
    fn read_due(&mut self, level: i32) {
        let Bounds { from, room, .. } = self.bounds;
        self.source.go_to(level, if level == from.priority { from.run_at } else { i64::MIN });
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

    /// From this priority on nothing is known; nor of tasks for later, which may have any priority.
    fn stop_at(&mut self, level: i32) {
        let rest = Key { priority: level, ..Key::FIRST };
        self.found.due_below = self.found.due_below.min(rest);
        self.found.timed.clear();
        self.found.timed_before = self.bounds.timed_from.unwrap_or(NEVER);
    }

    /// Tasks that stand before `from`, and came due since they were last read.
    fn read_came_due(&mut self, level: i32, since: i64) {
        self.source.go_to(level, since);
        while let Some(row) = self.source.next() {
            match row {
                Meaning::Due(key) if key.run_at > self.moment || key >= self.bounds.from => break,
                Meaning::Due(key) => {
                    if self.found.came_due.len() == LINE {
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

    fn read_timed(&mut self, level: i32) {
        self.source.go_to(level, self.moment.saturating_add(1));
        let mut count = 0;
        while let Some(row) = self.source.next() {
            let Meaning::Due(key) = row else { continue };
            if count == TIMED {
                self.found.timed_before = self.found.timed_before.min(key.run_at);
                break;
            }
            self.found.timed.push(Timed { at: key.run_at, key });
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
            timed: Vec::new(),
            timed_before: NEVER,
            leases: Vec::new(),
            leases_before: NEVER,
        }
    }
}
