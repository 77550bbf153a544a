//! queue.claim

use super::Outcome;
use super::arguments::{Arguments, Rows};
use super::grant::Grant;
use super::queue::{self, Settings};
use crate::clock::now;
use crate::datum::text;
use crate::expiry;
use crate::fallback::Reason;
use crate::heap::columns::{self, event};
use crate::heap::row::Row;
use crate::heap::scan::{Compare, Condition, Scan, open_by_key};
use crate::heap::{self, Tables, Use};
use crate::lanes::{self, Answer, Bounds, Queue};
use crate::refill;
use crate::rights::Kinds;
use crate::settings;
use crate::tokens;
use crate::transaction::{self, Hands};
use pgrx::prelude::*;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How many leases that ran out one claim ends.
const EXPIRED: usize = 16;
/// How many candidates are taken from a lane at a time.
const AT_ONCE: usize = 256;

/// Serves the call, or says why the core has to.
pub unsafe fn claim(arguments: &Arguments) -> Result<Outcome, Reason> {
    let most = arguments.needed(2)?.value() as i32;
    if !(1..=100_000).contains(&most) {
        return Err(Reason::Argument);
    }
    // SAFETY: the arguments are where native.sql declares them.
    unsafe { claim_for(arguments, Places { lease: 0, queue: 1, worker: 3 }, most as usize) }
}

/// Which argument is which.
pub struct Places {
    pub lease: usize,
    pub queue: usize,
    pub worker: usize,
}

impl Places {
    /// These arguments as Postgres passes them.
    pub fn raw(&self, arguments: &Arguments) -> [pg_sys::NullableDatum; 3] {
        [self.lease, self.queue, self.worker].map(|place| arguments.raw(place))
    }
}

/// Claims up to `most` tasks and returns them.
pub unsafe fn claim_for(arguments: &Arguments, places: Places, most: usize) -> Result<Outcome, Reason> {
    // SAFETY: in a transaction, with the arguments as declared.
    unsafe {
        let name = arguments.name(places.queue)?;
        let worker = arguments.get(places.worker).map(|_| arguments.name(places.worker)).transpose()?;
        let lease = arguments.span(places.lease, settings::max_lease())?;
        let tables = heap::open(Use::Claim)?;
        let settings = queue::settings(&tables, name, Kinds::WORKER)?;
        if settings.paused {
            return Err(Reason::Queue);
        } else if !settings.plain_to_claim {
            return Err(Reason::Policy);
        }
        let queue = Queue::new(tables.tasks, name);
        if transaction::has_own(queue.hash()) {
            return Err(Reason::OwnTasks);
        }
        let lease = lease.unwrap_or(settings.lease);
        if lease <= 0 {
            return Err(Reason::Argument);
        }
        let table = pg_sys::table_open(tables.tasks, pg_sys::NoLock as i32);
        let worker = worker.map(text);
        point!(ClaimOpened);
        let mut claim = Claim {
            tables,
            queue,
            settings,
            table,
            lease,
            worker,
            most,
            granted: 0,
            rows: None,
            looked_for: 0,
        };
        let result = claim.run(arguments);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        point!(ClaimGranted);
        if claim.granted > 0 {
            pg_sys::CommandCounterIncrement();
        }
        match (result, claim.rows) {
            // What is granted is granted, whatever came next; the rest is for the core.
            (Err(reason), Some(rows)) if claim.granted > 0 => {
                let rest = pg_sys::Datum::from((most - claim.granted) as i32);
                let rest = pg_sys::NullableDatum { value: rest, isnull: false };
                let [lease, queue, worker] = places.raw(arguments);
                Ok(Outcome::CoreRest(reason, [lease, queue, rest, worker], rows))
            }
            (Err(reason), rows) => {
                rows.into_iter().for_each(Rows::discard);
                Err(reason)
            }
            (Ok(()), Some(rows)) => Ok(Outcome::Served(rows.done())),
            (Ok(()), None) => Ok(Outcome::Served(arguments.rows()?.done())),
        }
    }
}

/// What a look at a lane found.
enum Look {
    Ready,
    Events(u64),
    Answer(Answer),
}

/// Whether a claim would get something from the queue; an error if only the core can tell.
pub unsafe fn is_ready(name: &[u8]) -> Result<bool, Reason> {
    super::permitted()?;
    // SAFETY: in a transaction with a snapshot.
    unsafe {
        let tables = heap::open(Use::Claim)?;
        let settings = queue::settings(&tables, name, Kinds::WORKER)?;
        if settings.paused || !settings.plain_to_claim {
            return Err(Reason::Policy);
        }
        let queue = Queue::new(tables.tasks, name);
        if transaction::has_own(queue.hash()) {
            return Err(Reason::OwnTasks);
        }
        let mut looked_for = 0;
        loop {
            pgrx::check_for_interrupts!();
            point!(WaitLooks);
            let moment = now();
            let look = lanes::with_or_new(&queue, |slot| {
                if slot.lane.has_due(moment) || slot.lane.leases.any_ended(moment) {
                    return Look::Ready;
                } else if slot.events != 0 && slot.events != looked_for {
                    return Look::Events(slot.events);
                }
                Look::Answer(slot.lane.needs(true, moment, pg_sys::MyProcPid))
            });
            match look.ok_or(Reason::NoLane)? {
                Look::Ready => return Ok(true),
                Look::Events(stamp) => looked_for = look_for_events(&tables, &queue, stamp)?,
                Look::Answer(Answer::Complete) => return Ok(false),
                Look::Answer(Answer::Refill(bounds)) => refill::run(&tables, &queue, bounds),
                Look::Answer(Answer::Refilling(_)) if lanes::await_refill(queue.hash()) => {}
                Look::Answer(Answer::Refilling(_)) => return Err(Reason::Busy),
            }
        }
    }
}

struct Claim<'a> {
    tables: Tables,
    queue: Queue<'a>,
    settings: Settings,
    table: pg_sys::Relation,
    lease: i64,
    worker: Option<pg_sys::Datum>,
    most: usize,
    granted: usize,
    rows: Option<Rows>,
    /// The stamp of events that this call has looked after already.
    looked_for: u64,
}

/// How a claim deals with leases that ran out, so that it comes to an end whatever others do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leases {
    /// The table may be read for those of which only the time is known.
    Unread,
    /// It was read.
    Read,
    /// Others have the tasks locked.
    Others,
}

/// What a lane said.
enum Said {
    Events(u64),
    Expired([i64; EXPIRED], usize),
    Answer(Answer),
}

impl Claim<'_> {
    unsafe fn run(&mut self, arguments: &Arguments) -> Result<(), Reason> {
        let mut retried = false;
        let mut leases = Leases::Unread;
        loop {
            pgrx::check_for_interrupts!();
            let mut hands = Hands::new(self.queue.hash());
            let wanted = (self.most - self.granted).min(hands.room()).min(AT_ONCE);
            if wanted == 0 {
                return Err(Reason::Busy);
            }
            // SAFETY: in a transaction, with the tables open.
            unsafe {
                match self.ask(wanted, &mut hands, &mut leases).ok_or(Reason::NoLane)? {
                    Said::Events(stamp) => {
                        self.looked_for = look_for_events(&self.tables, &self.queue, stamp)?;
                    }
                    Said::Expired(ids, count) => {
                        if count == 0 {
                            return Err(Reason::Expired);
                        }
                        expire(self.queue.hash(), &ids[..count])?;
                        // Somebody else is at it, and a claim does not wait.
                        leases = Leases::Others;
                    }
                    Said::Answer(answer) => {
                        if let Answer::Refill(_) = answer {
                            // Whatever comes in between, the lane will not wait for this process.
                            transaction::refilling(self.queue.hash());
                        }
                        point!(ClaimAsked);
                        if hands.len() > 0 {
                            let rows = match self.rows.take() {
                                Some(rows) => rows,
                                None => arguments.rows()?,
                            };
                            let rows = self.rows.insert(rows);
                            let mut grant = Grant {
                                tables: &self.tables,
                                queue: &self.queue,
                                settings: &self.settings,
                                table: self.table,
                                lease: self.lease,
                                worker: self.worker,
                                tokens: tokens::range(self.tables.token_mark),
                            };
                            let leased = grant.grant(&hands, rows);
                            if leased.is_err() && matches!(answer, Answer::Refill(_)) {
                                refill::give_up(&self.queue);
                            }
                            self.granted += leased?;
                        }
                        match answer {
                            Answer::Refill(bounds) => self.refill(bounds),
                            Answer::Refilling(_) if self.granted < self.most => {
                                point!(ClaimAwaits);
                                let refilled = lanes::await_refill(self.queue.hash());
                                point!(ClaimAwaited);
                                if !refilled {
                                    return Err(Reason::Busy);
                                }
                            }
                            // Before there is nothing: whether what was locked still is.
                            Answer::Complete if self.granted < self.most && hands.len() == 0 => {
                                let retry = || lanes::with(self.queue.hash(), |slot| slot.lane.retry());
                                if std::mem::replace(&mut retried, true) || retry() != Some(true) {
                                    return Ok(());
                                }
                            }
                            _ => {}
                        }
                        if self.granted == self.most {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Takes candidates from the lane, and whatever else it has to say first.
    fn ask(&self, wanted: usize, hands: &mut Hands, leases: &mut Leases) -> Option<Said> {
        let moment = now();
        // SAFETY: a plain read of a constant of the process.
        let me = unsafe { pg_sys::MyProcPid };
        lanes::with_or_new(&self.queue, |slot| {
            if slot.events != 0 && slot.events != self.looked_for {
                return Said::Events(slot.events);
            }
            let mut ids = [0; EXPIRED];
            let expired = match leases {
                Leases::Others => 0,
                _ => slot.lane.leases.take_expired(moment, &mut ids),
            };
            if expired > 0 {
                slot.counters.expired += expired as u64;
                return Said::Expired(ids, expired);
            }
            if slot.lane.leases.unknown() <= moment {
                match leases {
                    Leases::Unread => {
                        *leases = Leases::Read;
                        slot.lane.doubt();
                    }
                    // There are more than the lane has room for: the core finds them.
                    Leases::Read => return Said::Expired(ids, 0),
                    Leases::Others => {}
                }
            }
            let mut taken = 0;
            let answer = slot.lane.take(wanted, moment, me, |key| {
                hands.take(key);
                taken += 1;
            });
            slot.counters.offered += taken;
            Said::Answer(answer)
        })
    }

    fn refill(&self, bounds: Bounds) {
        // SAFETY: in a transaction, with the tables open.
        unsafe { refill::run(&self.tables, &self.queue, bounds) };
    }
}

/// Fails if there are due events for SQL to process. If there are none at all, the lane forgets that there might be,
/// unless another one came meanwhile, or this transaction itself may have processed them and may yet roll back.
/// Returns the stamp, for which this call need not look again.
///
/// While an old snapshot keeps vacuum from removing processed events, a look passes over all of them. After one that
/// took long SQL looks instead, for twenty times as long: it knows where to begin (sql/internal/mark.sql).
unsafe fn look_for_events(tables: &Tables, queue: &Queue<'_>, stamp: u64) -> Result<u64, Reason> {
    thread_local!(static LEFT_TO_SQL: Cell<Option<Instant>> = const { Cell::new(None) });
    let started = Instant::now();
    if LEFT_TO_SQL.get().is_some_and(|until| started < until) {
        return Err(Reason::Events);
    }
    // SAFETY: the snapshot is newer than the stamp; the index begins with the queue and the time, so that the first
    // event is the first that is due. Its columns are compared before it is read.
    let left = unsafe {
        let (table, key) = open_by_key(tables.events, &columns::EVENTS_KEY)?;
        let known = columns::begins_with((*table).rd_att, columns::EVENTS);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let value = text(queue.name());
        let conditions = [Condition { column: 1, compare: Compare::TextEquals, value }];
        let mut scan = Scan::begin(table, key, &conditions);
        let first = scan.next().map(|slot| {
            let due_at = known.then(|| Row::<{ event::COUNT }>::of(slot).long(event::DUE_AT));
            due_at.is_none_or(|due_at| due_at <= now())
        });
        point!(EventsSought);
        scan.end();
        pg_sys::PopActiveSnapshot();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        let took = started.elapsed();
        LEFT_TO_SQL.set((took > Duration::from_millis(5)).then(|| started + 20 * took));
        if first == Some(true) {
            return Err(Reason::Events);
        }
        first.is_some()
    };
    // SAFETY: reads the state of the transaction.
    let has_written = unsafe { pg_sys::GetTopTransactionIdIfAny() } != pg_sys::InvalidTransactionId;
    if !has_written && !left {
        lanes::with(queue.hash(), |slot| {
            if slot.events == stamp {
                slot.events = 0;
            }
        });
    }
    Ok(stamp)
}

/// Ends attempts whose lease ran out, and hands over to the core if there were any: it knows whose turn
/// it is then.
fn expire(lane: u64, ids: &[i64]) -> Result<(), Reason> {
    match expiry::end(lane, ids) {
        Ok(0) => Ok(()),
        _ => Err(Reason::Expired),
    }
}
