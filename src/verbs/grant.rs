//! Granting leases: turns the candidates of a claim into running tasks.

use super::queue::Settings;
use super::rows::Rows;
use crate::clock::now;
use crate::datum::text;
use crate::durability;
use crate::fallback::Reason;
use crate::heap::columns::task;
use crate::heap::scan::{Condition, Scan};
use crate::heap::task::Task;
use crate::heap::write::{self, Change};
use crate::heap::{Tables, tid};
use crate::lanes::{self, Key, Queue};
use crate::settings::DurableLeases;
use crate::shared;
use crate::tokens::Range;
use crate::transaction::Reservation;
use pgrx::prelude::*;

/// A task that another session has locked, or that SQL could not claim either, is tried again after a tenth of the time
/// for which it has been due, within these bounds, so that a lock that is held for long is rarely tried.
const POSTPONE: std::ops::RangeInclusive<i64> = 20_000..=1_000_000;

/// The properties that all leases of a claim share.
pub struct Grant<'a> {
    pub tables: &'a Tables,
    pub queue: &'a Queue<'a>,
    pub settings: &'a Settings,
    pub table: pg_sys::Relation,
    /// The lease that the claim names.
    pub lease: Option<i64>,
    pub worker: Option<pg_sys::Datum>,
    pub tokens: Range,
    /// When the first of the leases granted ends.
    pub first_end: i64,
}

impl Grant<'_> {
    /// Leases the candidates that are still claimable; returns how many.
    pub unsafe fn grant(&mut self, reservation: &Reservation, rows: &Rows) -> Result<usize, Reason> {
        let mut granted = 0;
        // SAFETY: the snapshot is taken after the candidates, and so sees the commits that made them candidates.
        unsafe {
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let mut scan =
                Scan::begin(self.table, self.tables.tasks_pkey, &Condition::id(reservation.get(0).id));
            point!(LeaseBegun);
            let mut result = Ok(());
            let mut refused = None;
            for number in 0..reservation.len() {
                let key = reservation.get(number);
                if result.is_err() {
                    lanes::with(self.queue.hash(), |slot| slot.lane.add(key, i64::MAX));
                    continue;
                }
                if number > 0 {
                    point!(LeaseNext);
                    scan.restart(&Condition::id(key.id));
                }
                match self.grant_one(&mut scan, key, rows) {
                    Ok(Some(until)) => {
                        reservation.leased(number, until);
                        self.first_end = self.first_end.min(until);
                        granted += 1;
                    }
                    Ok(None) => {}
                    Err(reason) => {
                        refused = Some(key);
                        result = Err(reason);
                    }
                }
            }
            scan.end();
            pg_sys::PopActiveSnapshot();
            if let Some(key) = refused {
                // SQL now looks at a task that only it can claim. If it cannot claim it either, because the row is locked
                // or an error prevents it, a session that waits would find the task ready again and again.
                if granted == 0 && matches!(result, Err(Reason::Policy)) {
                    self.postpone(key, now());
                } else {
                    lanes::with(self.queue.hash(), |slot| slot.lane.add(key, i64::MAX));
                }
            }
            point!(LeaseEnded);
            if granted == 0 { result.map(|()| 0) } else { Ok(granted) }
        }
    }

    /// Whether the lease with this token has to survive a crash. By default that of a task with a start deadline, which
    /// would not be offered again after it; and of one that was tried before, or was there before the last start of the
    /// server: that may have crashed the server, and has to count an attempt this time.
    unsafe fn must_last(&self, row: &Task, slot: *mut pg_sys::TupleTableSlot, token: i64) -> bool {
        self.tokens.must_last(token)
            || durability::is_required()
            || match self.settings.durable_leases {
                DurableLeases::On => true,
                DurableLeases::Off => false,
                DurableLeases::Auto => {
                    row.start_deadline().is_some()
                        || row.int(task::ATTEMPT) > 0
                        // SAFETY: the slot holds the row.
                        || unsafe { self.tokens.is_older(slot) }
                }
            }
    }

    /// Leases a task, if it is still claimable; returns until when.
    unsafe fn grant_one(&self, found: &mut Scan, key: Key, rows: &Rows) -> Result<Option<i64>, Reason> {
        let Some(slot) = found.next() else { return Ok(None) };
        point!(LeaseFound);
        // SAFETY: the scan has deformed a row of queue.tasks.
        unsafe {
            let mut row = Task::of(slot);
            let same = row.is_claimable() && row.key() == key && row.is(task::QUEUE, self.queue.name());
            if !same {
                return Ok(None);
            }
            let moment = now();
            if key.run_at > moment {
                lanes::with(self.queue.hash(), |slot| slot.lane.add(key, moment));
                return Ok(None);
            }
            let grouped = row.get(task::GROUP_KEY).is_some();
            // The worker ends it. It would hold up its group until then, so that SQL ends it at once.
            if row.is_late(moment) {
                return if grouped { Err(Reason::Policy) } else { Ok(None) };
            }
            // SQL decides which task of the group is next.
            if grouped && row.int(task::ADMISSION) == 0 {
                return Err(Reason::Policy);
            }
            // SQL handles a task whose token is the largest.
            let token = self.tokens.after(row.long(task::TOKEN)).ok_or(Reason::Policy)?;
            let lease = self.lease.unwrap_or_else(|| self.settings.lease_of(&row));
            let until = moment.saturating_add(lease).min(self.settings.timeout_of(&row, moment));
            if until <= moment {
                return Err(Reason::Argument);
            }
            let must_last = self.must_last(&row, slot, token);
            row.set(task::STATE, text(b"running"));
            let attempt = row.int(task::ATTEMPT) + 1;
            row.set(task::ATTEMPT, attempt);
            row.set(task::TOKEN, token);
            row.set(task::LEASE_UNTIL, until);
            row.set_option(task::WORKER, self.worker);
            row.set(task::CLAIMED_AT, moment);
            row.set(task::UPDATED_AT, moment);
            let wanted = |index| self.tables.indexed(&row, index);
            let mut tid = (*slot).tts_tid;
            match write::update_at_once(self.table, slot, &mut tid, &row, CHANGED, wanted) {
                Change::Done => {
                    if must_last {
                        durability::require();
                    }
                    tid::remember(key.id, tid);
                }
                Change::Stale | Change::Own => return Ok(None),
                Change::Locked => {
                    self.postpone(key, moment);
                    point!(LeaseLocked);
                    return Ok(None);
                }
            }
            if row.get(task::MAX_ATTEMPTS).is_none() {
                row.set(task::MAX_ATTEMPTS, self.settings.max_attempts);
            }
            let mut values = CLAIMED.map(|column| row.values[column]);
            let mut nulls = CLAIMED.map(|column| row.nulls[column]);
            rows.add(&mut values, &mut nulls);
            point!(LeaseAdded);
            Ok(Some(until))
        }
    }

    /// Offers a task again after a pause.
    fn postpone(&self, key: Key, moment: i64) {
        let pause = ((moment - key.run_at) / 10).clamp(*POSTPONE.start(), *POSTPONE.end());
        lanes::with(self.queue.hash(), |slot| slot.lane.postpone(key, moment + pause));
        // SAFETY: MyDatabaseId is set as long as the backend runs.
        let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
        database.into_iter().for_each(|database| database.run_at(moment + pause));
    }
}

/// The columns that a claim changes.
const CHANGED: &[usize] = &[
    task::STATE,
    task::ATTEMPT,
    task::TOKEN,
    task::LEASE_UNTIL,
    task::WORKER,
    task::CLAIMED_AT,
    task::UPDATED_AT,
];

/// The columns of queue.claimed_task.
const CLAIMED: [usize; 15] = [
    task::ID,
    task::TOKEN,
    task::QUEUE,
    task::PAYLOAD,
    task::HEADERS,
    task::ATTEMPT,
    task::MAX_ATTEMPTS,
    task::PRIORITY,
    task::KEY,
    task::GROUP_KEY,
    task::PROGRESS,
    task::RUN_AT,
    task::CREATED_AT,
    task::LEASE_UNTIL,
    task::KIND,
];
