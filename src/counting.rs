//! The numbers of `queue.stats`, from the counters of the lanes. If they are unknown, as after a start, the first
//! session that reads them counts the tables with a snapshot.

use crate::clock::now;
use crate::datum::text;
use crate::heap::columns::task;
use crate::heap::sequential::SeqScan;
use crate::heap::task::Task;
use crate::heap::{self, Tables};
use crate::lanes::refill_plan::{Meaning, Source};
use crate::lanes::{self, Counts, Horizon, Item, Queue, Slot, Totals};
use crate::names::Name;
use crate::refill::Rows;
use crate::rights;
use crate::settings;
use crate::transaction;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::collections::HashMap;

/// The tables are counted again if the counters leave it open for more tasks than this whether they are due.
const NEAR: i64 = 100_000;
/// How often a session tries to take a snapshot while no transaction publishes anything.
const TRIES: usize = 1000;
const HOUR: i64 = 3_600_000_000;
/// How many priorities of a queue are read from the table.
const PRIORITIES: usize = 1000;

/// A row of `queue_internal.counted`.
type Numbers = (Vec<u8>, i64, i64, i64, i64, i64, i64, Option<TimestampWithTimeZone>, i64, i64, i64, f64);

/// `queue_internal.counted`: the totals of these queues. Queues without a lane are left out, and so are all queues if
/// there are no lanes or the user may not see the numbers. A name is a text, which has the layout of the bytea that
/// pgrx passes as bytes.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn counted(
    names: pgrx::Array<'_, &[u8]>,
) -> TableIterator<
    'static,
    (
        name!(queue, Vec<u8>),
        name!(queued, i64),
        name!(blocked, i64),
        name!(scheduled, i64),
        name!(waiting, i64),
        name!(running, i64),
        name!(dead, i64),
        name!(oldest_due_at, Option<TimestampWithTimeZone>),
        name!(completed, i64),
        name!(cancelled, i64),
        name!(failed, i64),
        name!(rate, f64),
    ),
> {
    // SAFETY: reads the catalog.
    let tables = countable().filter(|tables| unsafe { may_know(tables) });
    let Some(tables) = tables else { return TableIterator::empty() };
    // SAFETY: in a transaction, and the table exists.
    let names: Vec<_> = names.iter().flatten().filter(|name| unsafe { may_know_of(&tables, name) }).collect();
    let queues: Vec<_> = names.iter().map(|name| Queue::new(tables.tasks, name)).collect();
    let moment = now();
    count_unless(&tables, &queues, |slot| {
        slot.counters.totals(moment).is_some_and(|totals| totals.near <= NEAR)
    });
    let numbers = queues.iter().filter_map(|queue| {
        let totals = lanes::with(queue.hash(), |slot| slot.counters.totals(moment)).flatten()?;
        Some(numbers_of(&tables, queue, totals, moment))
    });
    TableIterator::new(numbers.collect::<Vec<_>>())
}

/// The tables, unless this transaction sees something else in them than what is published to the lanes.
pub fn countable() -> Option<Tables> {
    // SAFETY: reads the state of the server and of the transaction, and the catalog.
    unsafe {
        let possible = lanes::available()
            && settings::fast_path()
            && !pg_sys::RecoveryInProgress()
            && pg_sys::GetTopTransactionIdIfAny() == pg_sys::InvalidTransactionId;
        if possible { heap::find().filter(|tables| heap::are_known(tables)) } else { None }
    }
}

/// `queue_internal.known_depth`: how many tasks of the queue are queued.
#[pg_extern(sql = false)]
fn known_depth(queue: &[u8]) -> Option<i64> {
    // SAFETY: reads the state of the server and the catalog.
    unsafe {
        if !lanes::available() || !settings::fast_path() || pg_sys::RecoveryInProgress() {
            return None;
        }
        let tables = heap::find().filter(|tables| heap::are_known(tables))?;
        depth(&tables, &Queue::new(tables.tasks, queue))
    }
}

/// How many tasks of the queue are queued, scheduled and blocked ones included, with those of this transaction; none if
/// that is unknown. If the counters are unknown, the tables are counted for them, unless this transaction may have changed something, or another
/// session counts.
pub fn depth(tables: &Tables, queue: &Queue<'_>) -> Option<i64> {
    let committed = lanes::with_or_free(queue, |slot| slot.counters.depth())?.or_else(|| {
        // SAFETY: plain reads of the state of the transaction and the process.
        let (me, unchanged) = unsafe {
            (pg_sys::MyProcPid, pg_sys::GetTopTransactionIdIfAny() == pg_sys::InvalidTransactionId)
        };
        let free = || lanes::with(queue.hash(), |slot| !slot.counters.is_counted_by_other(me)) == Some(true);
        if unchanged && free() {
            count(tables, &mut HashMap::from([(queue.name(), (queue.hash(), Counts::NONE))]));
        }
        lanes::with(queue.hash(), |slot| slot.counters.depth()).flatten()
    })?;
    Some(committed + transaction::queued_here(queue.hash())?)
}

/// Whether the caller may see the numbers of a queue's tasks.
///
/// # Safety
/// In a transaction.
pub unsafe fn may_know_of_queue(queue: &[u8]) -> bool {
    // SAFETY: the caller's promise; the tables exist.
    unsafe { heap::find().is_none_or(|tables| may_know_of(&tables, queue)) }
}

/// Whether the current user may see the numbers of this queue.
unsafe fn may_know_of(tables: &Tables, queue: &[u8]) -> bool {
    // SAFETY: a catalog lookup, of a table that exists.
    unsafe {
        let table = pg_sys::relation_open(tables.tasks, pg_sys::AccessShareLock as i32);
        let owner = (*(*table).rd_rel).relowner;
        pg_sys::relation_close(table, pg_sys::AccessShareLock as i32);
        rights::sees_numbers(owner, queue)
    }
}

/// Whether the current user may read queue.stats.
unsafe fn may_know(tables: &Tables) -> bool {
    // SAFETY: catalog lookups.
    unsafe {
        let stats = pg_sys::get_relname_relid(c"stats".as_ptr(), pg_sys::get_rel_namespace(tables.tasks));
        let verdict = pg_sys::pg_class_aclcheck(stats, pg_sys::GetUserId(), pg_sys::ACL_SELECT.into());
        verdict == pg_sys::AclResult::ACLCHECK_OK
    }
}

fn numbers_of(tables: &Tables, queue: &Queue<'_>, totals: Totals, moment: i64) -> Numbers {
    // If no task is due before the edge, the table has only entries of tasks that have ended, and after them later ones.
    let (oldest, near) =
        if totals.queued > totals.later { look(tables, queue, moment, totals.edge) } else { (None, 0) };
    let scheduled = (totals.later + near).min(totals.queued);
    let [completed, cancelled, failed] = totals.ended;
    (
        queue.name().to_owned(),
        totals.queued - scheduled,
        totals.blocked,
        scheduled,
        totals.waiting,
        totals.running,
        totals.dead,
        oldest.and_then(|time| TimestampWithTimeZone::try_from(time).ok()),
        completed,
        cancelled,
        failed,
        totals.rate,
    )
}

/// The run_at of the oldest task that is due, and how many become due between now and `edge`. Only the first priorities
/// are read, so that a queue with very many priorities does not delay the others.
fn look(tables: &Tables, queue: &Queue<'_>, moment: i64, edge: i64) -> (Option<i64>, i64) {
    // No claimable task of its priority comes before it.
    let first = lanes::with(queue.hash(), |slot| slot.lane.first()).flatten();
    let (mut oldest, mut near) = (None::<i64>, 0);
    // SAFETY: in a transaction; the table is locked until its end.
    unsafe {
        let table = pg_sys::table_open(tables.tasks, pg_sys::AccessShareLock as i32);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let mut rows = Rows::begin(tables, table, text(queue.name()));
        let mut next = rows.priority_at_least(i32::MIN);
        let mut count = 0;
        while let Some(priority) = next.filter(|_| count < PRIORITIES) {
            count += 1;
            let known = first.filter(|key| key.priority == priority).map_or(i64::MIN, |key| key.run_at);
            rows.go_to(priority, known);
            let due = std::iter::from_fn(|| rows.next()).find_map(|row| match row {
                Meaning::Due(key) => Some(key.run_at),
                _ => None,
            });
            oldest = oldest.into_iter().chain(due.filter(|run_at| *run_at <= moment)).min();
            rows.go_to(priority, moment + 1);
            let soon = std::iter::from_fn(|| rows.next())
                .take_while(|row| !matches!(row, Meaning::Due(key) if key.run_at >= edge));
            near += soon.filter(|row| matches!(row, Meaning::Due(_))).count() as i64;
            next = priority.checked_add(1).and_then(|priority| rows.priority_at_least(priority));
        }
        rows.end();
        pg_sys::PopActiveSnapshot();
        pg_sys::table_close(table, pg_sys::NoLock as i32);
    }
    (oldest, near)
}

/// Counts the tables for those of these queues whose counters do not suffice, and are not being counted by another session.
pub fn count_unless(tables: &Tables, queues: &[Queue<'_>], suffice: impl Fn(&Slot) -> bool) {
    let mut counting = HashMap::new();
    for queue in queues {
        let wanting = lanes::with_or_free(queue, |slot| {
            // SAFETY: a plain read of a constant of the process.
            let other = slot.counters.is_counted_by_other(unsafe { pg_sys::MyProcPid });
            !other && !suffice(slot)
        });
        if wanting == Some(true) {
            counting.insert(queue.name(), (queue.hash(), Counts::NONE));
        }
    }
    if !counting.is_empty() {
        count(tables, &mut counting);
    }
}

/// Counts the tables for the counters of these queues.
fn count(tables: &Tables, queues: &mut HashMap<&[u8], (u64, Counts)>) {
    // SAFETY: in a transaction; the table is locked until its end, and the snapshot is active until it is
    // popped.
    unsafe {
        let table = pg_sys::table_open(tables.tasks, pg_sys::AccessShareLock as i32);
        transaction::counting(true);
        if let Some((snapshot, since)) = begin(queues) {
            point!(CountBegun);
            pg_sys::PushActiveSnapshot(snapshot);
            count_tasks(table, queues, since);
            count_ends(table, queues, since);
            point!(CountRead);
            pg_sys::PopActiveSnapshot();
            for (lane, counts) in queues.values() {
                lanes::with(*lane, |slot| slot.counters.finish(pg_sys::MyProcPid, counts));
            }
        } else {
            // Some counts may have been started.
            lanes::stop_counting();
        }
        transaction::counting(false);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
    }
}

/// Starts the count, with a snapshot that was taken while no transaction published anything.
unsafe fn begin(queues: &HashMap<&[u8], (u64, Counts)>) -> Option<(pg_sys::Snapshot, i64)> {
    let published = |lane: u64| lanes::with(lane, |slot| slot.counters.published());
    for _ in 0..TRIES {
        pgrx::check_for_interrupts!();
        let before: Vec<_> = queues.values().map(|(lane, _)| (*lane, published(*lane))).collect();
        // SAFETY: in a transaction. The next latest snapshot replaces this one.
        let (snapshot, horizon) = unsafe {
            let snapshot = pg_sys::GetLatestSnapshot();
            (snapshot, horizon_of(&*snapshot)?)
        };
        let moment = now();
        let begun = before.iter().all(|(lane, published)| {
            let begun = lanes::with(*lane, |slot| {
                let quiet = Some(slot.counters.published()) == *published;
                // SAFETY: a plain read of a constant of the process.
                let me = unsafe { pg_sys::MyProcPid };
                quiet.then(|| slot.counters.begin(me, horizon, moment)).is_some()
            });
            begun.unwrap_or(true)
        });
        if begun {
            return Some((snapshot, moment));
        }
    }
    None
}

/// The transactions that a snapshot sees, by their full transaction ids, which do not wrap around.
unsafe fn horizon_of(snapshot: &pg_sys::SnapshotData) -> Option<Horizon> {
    // SAFETY: a snapshot of this process, whose array has `xcnt` elements.
    unsafe {
        let next = pg_sys::ReadNextFullTransactionId().value;
        let full = |id: u32| next - u64::from((next as u32).wrapping_sub(id));
        let running = match snapshot.xcnt {
            0 => &[],
            count => std::slice::from_raw_parts(snapshot.xip, count as usize),
        };
        let running = running.iter().map(|id| full(u32::from(*id)));
        Horizon::new(full(u32::from(snapshot.xmin)), full(u32::from(snapshot.xmax)), running)
    }
}

/// Counts the live tasks, and has the lanes know the leases of those that run.
unsafe fn count_tasks(table: pg_sys::Relation, queues: &mut HashMap<&[u8], (u64, Counts)>, since: i64) {
    // SAFETY: the table is open and locked, and a snapshot is active.
    unsafe {
        let mut rows = SeqScan::begin(table, task::LEASE_UNTIL + 1);
        while let Some(slot) = rows.next() {
            pgrx::check_for_interrupts!();
            point!(CountRow);
            let task = Task::<{ task::LEASE_UNTIL + 1 }>::of(slot);
            let Some((lane, counts)) = queues.get_mut(task.queue()) else { continue };
            task.item().into_iter().for_each(|item| counts.add(item, 1, since));
            if task.is_running() {
                // It may have ended since, which costs a check when the lease ends.
                lanes::with(*lane, |slot| slot.lane.leases.take_back(task.lease()));
            }
        }
        rows.end();
    }
}

/// Counts the dead letters, and the tasks that ended in the last hour, as the owner of the tables, because a role that
/// can read queue.stats need not have privileges on the tables.
unsafe fn count_ends(table: pg_sys::Relation, queues: &mut HashMap<&[u8], (u64, Counts)>, since: i64) {
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: an ERROR in between restores the user at the end of the (sub)transaction.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        let restricted = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        pg_sys::SetUserIdAndSecContext((*(*table).rd_rel).relowner, context | restricted as i32);
    }
    point!(CountEnds);
    let query = "SELECT queue, state, ended_at, tasks FROM queue_internal.ended_since($1)";
    let result = Spi::connect(|client| {
        let from = TimestampWithTimeZone::try_from(since - HOUR).ok();
        for row in client.select(query, None, &[from.into()])? {
            let (Some(queue), Some(state)) = (row.get::<Name>(1)?, row.get::<&str>(2)?) else { continue };
            let Some((_, counts)) = queues.get_mut(queue.0.as_slice()) else { continue };
            let more = row.get::<i64>(4)?.unwrap_or(0) as i32;
            let ended = row.get::<TimestampWithTimeZone>(3)?.map(i64::from);
            let item = match ended {
                Some(at) => Item::ended(state.as_bytes(), at, since),
                None => Some(Item::DEAD),
            };
            item.into_iter().for_each(|item| counts.add(item, more, since));
        }
        Ok::<_, pgrx::spi::Error>(())
    });
    // SAFETY: the user and the context that were read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    result.unwrap_or_else(|error| error!("the ends of tasks could not be counted: {error}"));
}
