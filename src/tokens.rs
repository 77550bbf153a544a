//! The base of tokens: a claim hands out `greatest(row.token + 1, base)`.
//!
//! A claim that a crash or a failover takes back has handed out a token all the same, and its row does not tell of it. So
//! the first token after a start is larger than any that a lost claim can have handed out. A *life* of a database is the
//! time for which shared memory lives: it ends with a crash or a stop, and a promoted standby begins one too, since nobody
//! claims during recovery.
//!
//! The unit is a microsecond, and the epoch 2025: the clock fits into 52 bits until 2167 and leaves as much again above
//! it, so tokens are exact in a double. Within a life the tokens of a task go up by one with each claim. No task can
//! be claimed more than once in a microsecond, since a claim takes several and must be ended before the next one: tokens
//! never overtake the clock by counting.
//!
//! Two things tell how far earlier lives have come. Each is enough where the other one fails:
//!
//! - the row of queue_internal.token_mark. A worker writes it before any claim of its life may be lost; lost claims have
//!   tokens between `base` and `reached`, because those beyond are made durable. A clock that was set back does not
//!   matter to it. It is a row as others: crash recovery, standbys and base backups have it, but maybe an older version.
//! - the clock, where the mark is older than the tokens: on an asynchronous standby, in a base backup. A new timeline tells
//!   of it, and the clock may then lag behind that of the lost server by [`SKEW`].
//!
//! As long as nobody has published the base of this life, each claim makes its own commit synchronous. It computes the
//! base from the mark and the clock as the worker would, and its token is then in the row. That is how it stays where there
//! is no worker and where the library is not preloaded.
//!
//! A mark of 0 says that no claim could be lost so far: then tokens begin at 1.

use crate::clock::now;
use crate::heap::columns::{self, token_mark};
use crate::shared;
use pgrx::prelude::*;

/// The largest token: 2^53 - 1.
const LARGEST: i64 = (1 << 53) - 1;
/// A clock that says more than this is wrong, and the mark alone counts: 2^52 microseconds, the year 2167.
const LATEST: i64 = 1 << 52;
/// 2025-01-01, in microseconds since 2000-01-01.
const EPOCH: i64 = 9_132 * 86_400_000_000;
/// How many tokens beyond the base may be handed out in claims that can be lost: more than a task is ever claimed.
/// Written in sql/internal/claim_from.sql, too.
const RESERVE: i64 = 1_000_000;
/// How far the clock of a promoted standby may be behind: an hour.
const SKEW: i64 = 3_600_000_000;

/// Which tokens a claim may hand out.
#[derive(Clone, Copy)]
pub struct Range {
    base: i64,
    /// A larger token must not be lost.
    reached: i64,
}

impl Range {
    /// The token that comes after this one, if there is one.
    pub fn after(&self, token: i64) -> Option<i64> {
        Some(token.saturating_add(1).max(self.base)).filter(|token| *token <= LARGEST)
    }

    /// Makes sure that the claim that hands out this token is not lost, if it must not be.
    pub fn keep(&self, token: i64) {
        if token > self.reached {
            make_durable();
        }
    }
}

/// A base for the rest of this life, and the mark that goes with it.
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

/// Which tokens a claim may hand out now; the mark is a table, if there is any. In a transaction.
pub fn range(mark: pg_sys::Oid) -> Range {
    // SAFETY: a plain read of a constant of the process.
    let database = shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    if let Some(range) = database
        .and_then(|database| database.tokens.get(mark))
        .map(|base| Range { base, reached: base + RESERVE })
    {
        return range;
    }
    if let Some(database) = database
        && database.tokens.ask()
    {
        database.worker.wake();
    }
    Range { base: base(mark), reached: 0 }
}

/// What the worker raises the mark to; nothing without a mark, or if that is done.
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
    // Where the mark decides, two servers that lost their clocks, or a server and its restored copy, do not
    // choose the same base.
    let beyond = reached + 1 + (moment & 0xf_ffff);
    let by_clock = Some(moment - EPOCH).filter(|time| (0..LATEST).contains(time)).unwrap_or(0);
    by_clock.max(beyond) + if same { 0 } else { SKEW }
}

/// The table with the mark.
fn mark() -> Option<pg_sys::Oid> {
    // SAFETY: a catalog lookup in a transaction.
    let found = unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue_internal".as_ptr(), true);
        pg_sys::get_relname_relid(c"token_mark".as_ptr(), schema)
    };
    (found != pg_sys::InvalidOid).then_some(found)
}

/// The mark as it is now, whatever the transaction's snapshot. Whoever claims need not have the right to read it.
fn read(mark: pg_sys::Oid) -> Option<(i64, i64)> {
    if mark == pg_sys::InvalidOid {
        return None;
    }
    // SAFETY: the table is open and locked while it is read, and has the columns that are read from it.
    unsafe {
        let table = pg_sys::table_open(mark, pg_sys::AccessShareLock as i32);
        let shape = (*table).rd_att;
        let mut found = None;
        if columns::begins_with(shape, columns::TOKEN_MARK) {
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
                let count = (*shape).natts as usize;
                let (mut values, mut nulls) = (vec![pg_sys::Datum::from(0); count], vec![true; count]);
                pg_sys::heap_deform_tuple(tuple, shape, values.as_mut_ptr(), nulls.as_mut_ptr());
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

/// The timeline of the WAL that is written.
fn timeline() -> i64 {
    // SAFETY: no transaction that may write is in recovery.
    unsafe {
        #[cfg(feature = "pg14")]
        let timeline = pg_sys::ThisTimeLineID;
        #[cfg(not(feature = "pg14"))]
        let timeline = pg_sys::GetWALInsertionTimeLine();
        i64::from(timeline)
    }
}

/// Makes the commit of this transaction synchronous, unless a rollback to a savepoint takes back what it is for. Not by
/// the setting alone, which ends with a function that sets it for itself; and not by the flag alone, which does not wait for
/// a synchronous standby.
fn make_durable() {
    // SAFETY: in a transaction; as SET LOCAL does it.
    unsafe {
        pg_sys::ForceSyncCommit();
        if pg_sys::synchronous_commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as i32 {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"on".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// The smallest token of a claim by the core. See sql/engine.sql.
#[pg_extern(sql = false)]
fn token_base() -> i64 {
    let range = range(mark().unwrap_or(pg_sys::InvalidOid));
    range.keep(range.base);
    range.base
}

/// See sql/engine.sql.
#[pg_extern(sql = false)]
fn claim_durably() {
    make_durable();
}
