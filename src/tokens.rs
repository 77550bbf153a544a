//! The base of tokens: a claim hands out `greatest(row.token + 1, base)`.
//!
//! A claim that a crash or a failover has lost has handed out a token that is not in its row. So the first token after
//! a start must be larger than any that a lost claim can have handed out. Here a *life* of a database is the lifetime
//! of shared memory: it ends with a crash or a stop, and a promotion starts one too, because there are no claims during
//! recovery.
//!
//! Tokens are counted in microseconds since 2025. The clock fits into 52 bits until 2167, and tokens may be twice as
//! large and are still exact in a double. Within a life the token of a task increases by one with each claim. A task
//! cannot be claimed more than once in a microsecond, because a claim takes several and has to end before the next one.
//! So tokens never overtake the clock.
//!
//! Two upper bounds of earlier tokens are known. Each is enough if the other one fails:
//!
//! - The row of queue_internal.token_mark. The worker writes it before any claim of its life can be lost. Lost claims
//!   have tokens from `base` to `reached`, because claims with larger tokens are made durable. The row does not depend
//!   on the clock. Crash recovery, standbys and base backups have it, but perhaps an older version.
//! - The clock, if the row may be older than the tokens: on an asynchronous standby and in a base backup, which a new
//!   timeline shows. The clock may be behind that of the lost server by [`SKEW`].
//!
//! Until the base of this life is published, each claim makes its commit synchronous and computes the base from the
//! mark and the clock as the worker would, so that its token is durable. Without a worker, or if the library is not
//! preloaded, the base is never published.
//!
//! A mark of 0 means that no claim could be lost so far. Then tokens start at 1.

use crate::clock::now;
use crate::durability;
use crate::heap::columns::{self, token_mark};
use crate::shared;
use pgrx::prelude::*;

/// The largest token: 2^53 - 1.
const LARGEST: i64 = (1 << 53) - 1;
/// The largest time of the clock that is used: 2^52 microseconds, the year 2167. Beyond it only the mark counts.
const LATEST: i64 = 1 << 52;
/// 2025-01-01, in microseconds since 2000-01-01.
const EPOCH: i64 = 9_132 * 86_400_000_000;
/// How many tokens above the base may be handed out by claims that can be lost: more than a task is ever claimed. The
/// same number is in sql/internal/claim_from.sql.
const RESERVE: i64 = 1_000_000;
/// How far the clock of a promoted standby may be behind that of the lost server: an hour.
const SKEW: i64 = 3_600_000_000;

/// Which tokens a claim may hand out.
#[derive(Clone, Copy)]
pub struct Range {
    base: i64,
    /// Claims with larger tokens must be durable.
    reached: i64,
    /// The first transaction id after the base was published.
    first: pg_sys::TransactionId,
}

impl Range {
    /// The token after this one; none if it is the largest.
    pub fn after(&self, token: i64) -> Option<i64> {
        Some(token.saturating_add(1).max(self.base)).filter(|token| *token <= LARGEST)
    }

    /// Whether the claim with this token must be durable.
    pub fn must_last(&self, token: i64) -> bool {
        token > self.reached
    }

    /// Whether the row in a slot may have been written before this life, so that a claim of it may have been lost.
    ///
    /// # Safety
    /// The slot holds a row.
    pub unsafe fn is_older(&self, slot: *mut pg_sys::TupleTableSlot) -> bool {
        // SAFETY: the slots of a heap are of this kind.
        unsafe {
            if !std::ptr::eq((*slot).tts_ops, &raw const pg_sys::TTSOpsBufferHeapTuple) {
                return true;
            }
            let header = (*(*slot.cast::<pg_sys::BufferHeapTupleTableSlot>()).base.tuple).t_data;
            let frozen =
                u32::from((*header).t_infomask) & pg_sys::HEAP_XMIN_FROZEN == pg_sys::HEAP_XMIN_FROZEN;
            frozen || pg_sys::TransactionIdPrecedes((*header).t_choice.t_heap.t_xmin, self.first)
        }
    }
}

/// A base for this life, with its mark.
pub struct Raised {
    pub mark: pg_sys::Oid,
    pub base: i64,
    pub timeline: i64,
}

impl Raised {
    pub fn reached(&self) -> i64 {
        self.base + RESERVE
    }
}

/// Which tokens a claim may hand out now. `mark` is the table of the mark, if any. In a transaction.
pub fn range(mark: pg_sys::Oid) -> Range {
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    if let Some(range) = database.and_then(|database| database.tokens.get(mark)).map(|(base, first)| Range {
        base,
        reached: base + RESERVE,
        first,
    }) {
        return range;
    }
    if let Some(database) = database
        && database.tokens.ask()
    {
        database.worker.wake();
    }
    Range { base: base(mark), reached: 0, first: pg_sys::InvalidTransactionId }
}

/// The value to which the worker raises the mark; none without a mark, or if it was raised already.
pub fn raised() -> Option<Raised> {
    let mark = mark()?;
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }))?;
    let known = database.tokens.get(mark).is_some();
    (!known).then(|| Raised { mark, base: base(mark), timeline: timeline() })
}

/// The smallest token that no lost claim can have handed out, by the mark and the clock.
fn base(mark: pg_sys::Oid) -> i64 {
    let moment = now();
    let (reached, written_on) = read(mark).unwrap_or((0, 0));
    let same = written_on == timeline();
    if reached == 0 && same {
        return 1;
    }
    // The low bits of the clock make it unlikely that a server and its restored copy, or two servers with wrong clocks,
    // choose the same base if the mark decides.
    let beyond = reached + 1 + (moment & 0xf_ffff);
    let by_clock = Some(moment - EPOCH).filter(|time| (0..LATEST).contains(time)).unwrap_or(0);
    by_clock.max(beyond) + if same { 0 } else { SKEW }
}

/// The OID of queue_internal.token_mark.
fn mark() -> Option<pg_sys::Oid> {
    // SAFETY: a catalog lookup in a transaction.
    let found = unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue_internal".as_ptr(), true);
        pg_sys::get_relname_relid(c"token_mark".as_ptr(), schema)
    };
    (found != pg_sys::InvalidOid).then_some(found)
}

/// Reads the current mark, independently of the transaction's snapshot and of the caller's privileges.
fn read(mark: pg_sys::Oid) -> Option<(i64, i64)> {
    if mark == pg_sys::InvalidOid {
        return None;
    }
    // SAFETY: the table is open and locked while it is read, and has the columns that are read from it.
    unsafe {
        let table = pg_sys::table_open(mark, pg_sys::AccessShareLock as i32);
        let descriptor = (*table).rd_att;
        let mut found = None;
        if columns::begins_with(descriptor, columns::TOKEN_MARK) {
            pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
            let snapshot = pg_sys::GetActiveSnapshot();
            let scan = pg_sys::systable_beginscan(
                table,
                pg_sys::InvalidOid,
                false,
                snapshot,
                0,
                std::ptr::null_mut(),
            );
            let tuple = pg_sys::systable_getnext(scan);
            if !tuple.is_null() {
                let count = (*descriptor).natts as usize;
                let (mut values, mut nulls) = (vec![pg_sys::Datum::from(0); count], vec![true; count]);
                pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
                let number = |column: usize| if nulls[column] { 0 } else { values[column].value() as i64 };
                found = Some((number(token_mark::REACHED), number(token_mark::TIMELINE)));
            }
            pg_sys::systable_endscan(scan);
            pg_sys::PopActiveSnapshot();
        }
        pg_sys::table_close(table, pg_sys::AccessShareLock as i32);
        found
    }
}

/// The timeline to which WAL is written; 0 on a standby, where a claim fails when it writes.
fn timeline() -> i64 {
    // SAFETY: a plain read, and the timeline is known outside of recovery.
    unsafe {
        if pg_sys::RecoveryInProgress() {
            return 0;
        }
        #[cfg(feature = "pg14")]
        let timeline = pg_sys::ThisTimeLineID;
        #[cfg(not(feature = "pg14"))]
        let timeline = pg_sys::GetWALInsertionTimeLine();
        i64::from(timeline)
    }
}

/// `queue_internal.token_base`: see sql/engine.sql.
#[pg_extern(sql = false)]
fn token_base(durable: bool) -> i64 {
    let range = range(mark().unwrap_or(pg_sys::InvalidOid));
    if durable || range.must_last(range.base) || durability::is_required() {
        durability::require();
    }
    range.base
}

/// See sql/engine.sql.
#[pg_extern(sql = false)]
fn claim_durably() {
    durability::require();
}
