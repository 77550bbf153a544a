//! queue.claim

use super::Outcome;
use super::arguments::Arguments;
use super::events::check_events;
use super::grant::Grant;
use super::queue::{self, Settings};
use super::rows::Rows;
use crate::clock::now;
use crate::datum::text;
use crate::durability;
use crate::expiry;
use crate::fallback::Reason;
use crate::heap::{self, Tables, Use};
use crate::lanes::{self, Answer, Queue};
use crate::refill;
use crate::rights::Kinds;
use crate::settings;
use crate::tokens;
use crate::transaction::{self, Reservation};
use pgrx::prelude::*;

/// How many expired leases one claim ends.
const EXPIRED: usize = 16;
/// If a lease ends so soon, in microseconds, the claim returns fewer tasks instead of falling back to SQL for the rest.
const SHORT: i64 = 1_000_000;
/// How many candidates are taken from a lane at a time.
const AT_ONCE: usize = 256;

/// Serves the call, or returns why it falls back to SQL.
pub unsafe fn claim(arguments: &Arguments) -> Result<Outcome, Reason> {
    let places = Places { lease: 0, queue: 1, most: 2, worker: 3 };
    let most = places.most(arguments)?;
    // SAFETY: the arguments are where native.sql declares them.
    unsafe { claim_for(arguments, places, most) }
}

/// The numbers of the arguments of a claim.
#[derive(Clone, Copy)]
pub struct Places {
    pub lease: usize,
    pub queue: usize,
    pub most: usize,
    pub worker: usize,
}

impl Places {
    /// How many tasks to claim.
    pub fn most(&self, arguments: &Arguments) -> Result<usize, Reason> {
        let most = arguments.needed(self.most)?.value() as i32;
        if (1..=100_000).contains(&most) { Ok(most as usize) } else { Err(Reason::Argument) }
    }

    /// These arguments as Postgres passes them, in the order of queue.claim.
    pub fn raw(&self, arguments: &Arguments) -> [pg_sys::NullableDatum; 4] {
        [self.lease, self.queue, self.most, self.worker].map(|number| arguments.raw(number))
    }
}

/// Claims up to `most` tasks and returns them.
pub unsafe fn claim_for(arguments: &Arguments, places: Places, most: usize) -> Result<Outcome, Reason> {
    // SAFETY: in a transaction, with the arguments as declared.
    unsafe {
        durability::before_claim();
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
        if lease.is_none() && settings.lease <= 0 {
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
            first_end: i64::MAX,
            rows: None,
            checked: 0,
        };
        let result = claim.run(arguments);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        point!(ClaimGranted);
        if claim.granted > 0 {
            pg_sys::CommandCounterIncrement();
        }
        if result.is_ok() {
            durability::after_claim();
        }
        match (result, claim.rows) {
            // SQL would end those that have run out meanwhile, and return their tasks again.
            (Err(_), Some(rows)) if claim.granted > 0 && claim.first_end <= now() + SHORT => {
                Ok(Outcome::Served(rows.done()))
            }
            // Granted leases stay granted, and only the rest falls back to SQL.
            (Err(reason), Some(rows)) if claim.granted > 0 => {
                let rest = pg_sys::Datum::from((most - claim.granted) as i32);
                let rest = pg_sys::NullableDatum { value: rest, isnull: false };
                let [lease, queue, _, worker] = places.raw(arguments);
                Ok(Outcome::FallbackRest(reason, [lease, queue, rest, worker], rows))
            }
            (Err(reason), rows) => {
                rows.into_iter().for_each(Rows::discard);
                Err(reason)
            }
            (Ok(()), Some(rows)) => Ok(Outcome::Served(rows.done())),
            (Ok(()), None) => Ok(Outcome::Served(Rows::new(arguments)?.done())),
        }
    }
}

struct Claim<'a> {
    tables: Tables,
    queue: Queue<'a>,
    settings: Settings,
    table: pg_sys::Relation,
    lease: Option<i64>,
    worker: Option<pg_sys::Datum>,
    most: usize,
    granted: usize,
    /// When the first of the leases granted ends.
    first_end: i64,
    rows: Option<Rows>,
    /// The stamp of events that this call has checked already.
    checked: u64,
}

/// How a claim handles expired leases. The states bound its work, whatever other sessions do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leases {
    /// It can still read the table for expired leases of which the lane knows only the time.
    Unread,
    /// It has read the table.
    Read,
    /// Other sessions have the tasks locked.
    Locked,
}

/// What a lane has for a claim.
enum Offer {
    /// Events to process first, with their stamp.
    Events(u64),
    /// Expired leases to end first, and how many.
    Expired([i64; EXPIRED], usize),
    /// Candidates, and what to do when there are too few.
    Candidates(Answer),
}

impl Claim<'_> {
    unsafe fn run(&mut self, arguments: &Arguments) -> Result<(), Reason> {
        let mut retried = false;
        let mut leases = Leases::Unread;
        loop {
            pgrx::check_for_interrupts!();
            let mut reservation = Reservation::new(self.queue.hash());
            let wanted = (self.most - self.granted).min(reservation.room()).min(AT_ONCE);
            if wanted == 0 {
                return Err(Reason::Busy);
            }
            // SAFETY: in a transaction, with the tables open.
            unsafe {
                match self.ask(wanted, &mut reservation, &mut leases).ok_or(Reason::NoLane)? {
                    Offer::Events(stamp) => {
                        self.checked = check_events(&self.tables, &self.queue, stamp)?;
                    }
                    Offer::Expired(ids, count) => {
                        if count == 0 {
                            return Err(Reason::Expired);
                        }
                        expire(self.queue.hash(), &ids[..count])?;
                        // Another session is ending them, and a claim does not wait.
                        leases = Leases::Locked;
                    }
                    Offer::Candidates(answer) => {
                        if let Answer::Refill(_) = answer {
                            // If this transaction fails, its abort ends the refill.
                            transaction::refilling(self.queue.hash());
                        }
                        point!(ClaimAsked);
                        if reservation.len() > 0 {
                            let rows = match self.rows.take() {
                                Some(rows) => rows,
                                None => Rows::new(arguments)?,
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
                                first_end: self.first_end,
                            };
                            let leased = grant.grant(&reservation, rows);
                            if leased.is_err() && matches!(answer, Answer::Refill(_)) {
                                refill::give_up(&self.queue);
                            }
                            self.first_end = grant.first_end;
                            self.granted += leased?;
                        }
                        match answer {
                            Answer::Refill(plan) => refill::run(&self.tables, &self.queue, plan),
                            Answer::Refilling(_) if self.granted < self.most => {
                                point!(ClaimAwaits);
                                let refilled = lanes::await_refill(self.queue.hash());
                                point!(ClaimAwaited);
                                if !refilled {
                                    return Err(Reason::Busy);
                                }
                            }
                            // Before a claim returns no rows, it tries locked tasks again, except those that the lane has left out.
                            Answer::Complete if self.granted < self.most && reservation.len() == 0 => {
                                let retry = || lanes::with(self.queue.hash(), |slot| slot.lane.retry(now()));
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

    /// Takes candidates from the lane, unless there are events or expired leases to handle first.
    fn ask(&self, wanted: usize, reservation: &mut Reservation, leases: &mut Leases) -> Option<Offer> {
        let moment = now();
        // SAFETY: a plain read of a constant of the process.
        let me = unsafe { pg_sys::MyProcPid };
        lanes::with_or_new(&self.queue, |slot| {
            if slot.events != 0 && slot.events != self.checked {
                return Offer::Events(slot.events);
            }
            let mut ids = [0; EXPIRED];
            let expired = match leases {
                Leases::Locked => 0,
                _ => slot.lane.leases.take_expired(moment, &mut ids),
            };
            if expired > 0 {
                slot.activity.expired += expired as u64;
                return Offer::Expired(ids, expired);
            }
            if slot.lane.leases.unknown() <= moment {
                match leases {
                    Leases::Unread => {
                        *leases = Leases::Read;
                        slot.lane.invalidate();
                    }
                    // There are more than the lane can hold: SQL finds them.
                    Leases::Read => return Offer::Expired(ids, 0),
                    Leases::Locked => {}
                }
            }
            let mut taken = 0;
            let answer = slot.lane.take(wanted, moment, me, |key| {
                reservation.add(key);
                taken += 1;
            });
            slot.activity.offered += taken;
            Offer::Candidates(answer)
        })
    }
}

/// Ends the attempts of expired leases, and fails if there were any: SQL decides which task is next then.
fn expire(lane: u64, ids: &[i64]) -> Result<(), Reason> {
    match expiry::end(lane, ids) {
        Ok(0) => Ok(()),
        _ => Err(Reason::Expired),
    }
}
