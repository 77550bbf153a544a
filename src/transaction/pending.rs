//! The pending changes of a transaction, until its end.

use super::tally::Tally;
use super::watched::Watched;
use crate::lanes::{Item, Key, LaneSet};
use crate::shared::{NEVER, QueueBits};
use pgrx::prelude::*;

/// How many changes of tasks are kept individually.
pub(super) const CHANGES: usize = 2048;
/// For how many lanes further changes are summarized.
pub(super) const SUMMARIES: usize = 8;

/// For how many tasks a transaction can interrupt the handler.
pub(super) const CANCELS: usize = 64;

/// A change of a task.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// It can be claimed from its run_at on.
    Added,
    /// This transaction leased it; it was ready before.
    Leased { until: i64 },
    /// A claim of this transaction reserved it. If it could not be leased, that may be because of an earlier change of
    /// this transaction, and so a rollback makes it ready again in any case.
    Reserved,
    /// Its lease expired at that time, and this transaction ends the attempt, if it commits.
    Ending { until: i64 },
    /// Expiry was checked; check again at `until`.
    RunsOn { until: i64 },
    /// Its lease ends at another time.
    Extended { until: i64 },
    /// It can no longer be claimed, or no longer runs. Its lease was until then.
    Removed { until: i64 },
    /// It is blocked in its group, and is not to be claimed until it is admitted again.
    Withdrawn,
    /// No change, in the end.
    Nothing,
}

impl What {
    /// When the lease ends that the change is about.
    fn lease(self) -> i64 {
        match self {
            Self::Leased { until }
            | Self::Extended { until }
            | Self::RunsOn { until }
            | Self::Ending { until } => until,
            _ => NEVER,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) lane: u64,
    pub(super) subtransaction: pg_sys::SubTransactionId,
    pub(super) key: Key,
    pub(super) what: What,
}

/// The changes of one lane that are not kept individually.
#[derive(Clone, Copy)]
pub(super) struct Summary {
    pub(super) lane: u64,
    /// Tasks that can be claimed, if it commits.
    pub(super) added: Key,
    pub(super) added_from: i64,
    /// Tasks that can be claimed again, if it rolls back.
    pub(super) leased: Key,
    pub(super) until: i64,
    /// Tasks ended, if it commits.
    pub(super) removed: bool,
}

/// The changes that do not concern a single task.
pub(super) struct Notices {
    pub(super) created: bool,
    /// Handlers were attached or detached.
    pub(super) handlers: bool,
    /// Tasks whose handlers are to be interrupted. Handlers of further tasks honour the cancellation when
    /// they end.
    pub(super) cancels: [i64; CANCELS],
    /// The first end of a lease that is in no lane.
    pub(super) lease: i64,
    /// When the next maintenance of a lane is due.
    pub(super) lane_time: i64,
    /// When the next scheduled task becomes due.
    pub(super) run: i64,
    /// The first start deadline.
    pub(super) start_by: i64,
    /// Queues that have a task to claim.
    pub(super) queues: QueueBits,
    /// Lanes whose queues have a new event, or a free slot.
    pub(super) events: [u64; SUMMARIES],
    pub(super) event_count: usize,
    /// Further lanes of this kind.
    pub(super) more_events: LaneSet,
}

const NO_NOTICES: Notices = Notices {
    created: false,
    handlers: false,
    cancels: [0; CANCELS],
    lease: NEVER,
    lane_time: NEVER,
    run: NEVER,
    start_by: NEVER,
    queues: [0; 4],
    events: [0; SUMMARIES],
    event_count: 0,
    more_events: LaneSet::NONE,
};

pub(super) struct Pending {
    pub(super) registered: bool,
    pub(super) count: usize,
    pub(super) summary_count: usize,
    /// The lanes of further changes for which there is no summary. They have to be invalidated.
    pub(super) invalidated: LaneSet,
    pub(super) notices: Notices,
    /// The lane that this process is refilling, 0 if none.
    pub(super) refilling: u64,
    /// Lanes that this transaction refilled after it had changed their tasks.
    pub(super) refilled: LaneSet,
    /// This process is counting the tables for the counters.
    pub(super) counting: bool,
    /// The name under which this transaction is going to be prepared, as a hash; 0 for none.
    pub(super) prepared_as: u64,
    pub(super) tally: Tally,
    pub(super) watched: Watched,
    pub(super) changes: [Change; CHANGES],
    pub(super) summaries: [Summary; SUMMARIES],
}

const NO_KEY: Key = Key::FIRST;
const NO_CHANGE: Change = Change { lane: 0, subtransaction: 0, key: NO_KEY, what: What::Nothing };
const NO_SUMMARY: Summary =
    Summary { lane: 0, added: Key::LAST, added_from: NEVER, leased: Key::LAST, until: NEVER, removed: false };

impl Pending {
    /// No changes.
    pub(super) const NOTHING: Self = Self {
        registered: false,
        count: 0,
        summary_count: 0,
        invalidated: LaneSet::NONE,
        notices: NO_NOTICES,
        refilling: 0,
        refilled: LaneSet::NONE,
        counting: false,
        prepared_as: 0,
        tally: Tally::NOTHING,
        watched: Watched::of(0),
        changes: [NO_CHANGE; CHANGES],
        summaries: [NO_SUMMARY; SUMMARIES],
    };

    pub(super) fn change(&mut self, lane: u64, key: Key, what: What) {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        if matches!(what, What::Removed { .. }) {
            self.watched.change(key.id, subtransaction);
        }
        if self.count < CHANGES {
            self.changes[self.count] = Change { lane, subtransaction, key, what };
            self.count += 1;
            return;
        }
        let known = self.summaries[..self.summary_count].iter().position(|summary| summary.lane == lane);
        let Some(place) = known.or_else(|| (self.summary_count < SUMMARIES).then_some(self.summary_count))
        else {
            self.invalidated.insert(lane);
            self.notices.lease = self.notices.lease.min(what.lease());
            return;
        };
        if place == self.summary_count {
            self.summaries[place] = Summary { lane, ..NO_SUMMARY };
            self.summary_count += 1;
        }
        let summary = &mut self.summaries[place];
        match what {
            What::Added => {
                summary.added = summary.added.min(key);
                summary.added_from = summary.added_from.min(key.run_at);
            }
            What::Leased { .. } | What::Extended { .. } | What::RunsOn { .. } | What::Ending { .. } => {
                summary.leased = summary.leased.min(key);
                summary.until = summary.until.min(what.lease());
            }
            What::Removed { .. } => summary.removed = true,
            What::Reserved | What::Withdrawn | What::Nothing => {}
        }
    }

    pub(super) fn count_item(&mut self, lane: u64, item: Item, more: i32) {
        // SAFETY: reads the state of the transaction.
        let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
        self.tally.note(lane, subtransaction, item, more);
    }

    /// The lanes that the transaction concerns, whichever way it ends.
    pub(super) fn lanes(&self) -> LaneSet {
        let mut lanes = LaneSet::NONE;
        for more in [&self.invalidated, &self.refilled, &self.notices.more_events, self.tally.unknown()] {
            lanes.insert_all(more);
        }
        let changes = self.changes[..self.count].iter().map(|change| change.lane);
        let summaries = self.summaries[..self.summary_count].iter().map(|summary| summary.lane);
        let events = self.notices.events[..self.notices.event_count].iter().copied();
        changes.chain(summaries).chain(events).chain(self.tally.lanes()).for_each(|lane| lanes.insert(lane));
        lanes
    }

    /// When the first of its leases ends that a lane may not know, whichever way the transaction ends.
    pub(super) fn lease(&self) -> i64 {
        let changes = self.changes[..self.count].iter().map(|change| change.what.lease());
        let summaries = self.summaries[..self.summary_count].iter().map(|summary| summary.until);
        changes.chain(summaries).fold(self.notices.lease, i64::min)
    }

    pub(super) fn clear(&mut self) {
        self.prepared_as = 0;
        self.watched = Watched::of(0);
        self.tally.clear();
        (self.count, self.summary_count, self.notices) = (0, 0, NO_NOTICES);
        (self.invalidated, self.refilled) = (LaneSet::NONE, LaneSet::NONE);
    }
}

impl Change {
    /// Whether a claim of the same transaction may get the task because of this.
    pub(super) fn may_add(&self, now: i64) -> bool {
        match self.what {
            What::Added | What::Extended { .. } => true,
            What::Leased { until } => until <= now,
            _ => false,
        }
    }

    /// When the lease ends that is published at the commit.
    pub(super) fn lease(&self) -> i64 {
        match self.what {
            What::Ending { .. } => NEVER,
            what => what.lease(),
        }
    }
}
