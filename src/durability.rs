//! Whether a commit waits for the disk.
//!
//! The commit of a transaction that wrote nothing but leases does not, because a lease need not survive a crash: the task
//! is then offered again, with a token larger than any that was handed out ([`crate::tokens`]), and the holder of the lost
//! lease is refused. Every other commit is as durable as its session asks. That of a completion flushes the claims before
//! it.
//!
//! A transaction without an id has written nothing that has to be durable. After its first claim, nothing but leases was
//! written if XactLastRecEnd, the end of its last WAL record, has not changed between the end of a claim and the next claim,
//! or the commit.
//!
//! Which claims nevertheless wait: `Grant::must_last`.

use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::c_int;

unsafe extern "C" {
    // Not among pgrx's bindings.
    #[link_name = "XactLastRecEnd"]
    static mut LAST_RECORD: pg_sys::XLogRecPtr;
}

const OFF: c_int = pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as c_int;

/// What the current transaction has written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It has claimed nothing yet.
    Unknown,
    /// Leases, of which the last WAL record ends here.
    Leases(pg_sys::XLogRecPtr),
    /// Something else, or a lease that must be durable.
    More,
}

thread_local! {
    static WRITTEN: Cell<Written> = const { Cell::new(Written::Unknown) };
    /// The setting of the session while a commit does not follow it, and how many WAL records the session had written then.
    static ASKED: Cell<Option<(c_int, i64)>> = const { Cell::new(None) };
}

thread_local! {
    static REQUIRED: Cell<bool> = const { Cell::new(false) };
}

/// From now on, all leases of this process have to survive a crash, whatever settings and queues say, and whether or not SQL
/// serves the claim.
pub fn require_always() {
    REQUIRED.set(true);
}

/// Whether all leases of this process have to.
pub fn is_required() -> bool {
    REQUIRED.get()
}

/// The end of the last WAL record of this transaction, 0 if there is none.
fn last_record() -> pg_sys::XLogRecPtr {
    // SAFETY: a plain read of a variable of this process.
    unsafe { LAST_RECORD }
}

/// A native claim begins.
pub fn before_claim() {
    let only_leases = match WRITTEN.get() {
        // SAFETY: reads the state of the transaction.
        Written::Unknown => pg_sys::InvalidTransactionId == unsafe { pg_sys::GetTopTransactionIdIfAny() },
        Written::Leases(last) => last == last_record(),
        Written::More => false,
    };
    if !only_leases {
        WRITTEN.set(Written::More);
    }
}

/// A native claim has ended, and has written nothing but leases.
pub fn after_claim() {
    if WRITTEN.get() != Written::More {
        WRITTEN.set(Written::Leases(last_record()));
    }
}

/// Makes the commit of this transaction synchronous, unless a rollback to a savepoint undoes the claim. It sets both
/// the setting, which a function may set and restore, and the flag (forceSyncCommit), which does not wait for a
/// synchronous standby.
pub fn require() {
    WRITTEN.set(Written::More);
    restore();
    // SAFETY: in a transaction; as SET LOCAL.
    unsafe {
        pg_sys::ForceSyncCommit();
        if pg_sys::synchronous_commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as c_int {
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

/// The transaction is about to commit. The variable is set and not the setting, because the wait for the disk and for
/// synchronous standbys follows the variable, and it is restored at once.
pub fn before_commit() {
    let only_leases = last_record() != 0 && WRITTEN.get() == Written::Leases(last_record());
    // SAFETY: variables of this process.
    unsafe {
        if only_leases && pg_sys::synchronous_commit > OFF {
            ASKED.set(Some((pg_sys::synchronous_commit, pg_sys::pgWalUsage.wal_records)));
            pg_sys::synchronous_commit = OFF;
        }
    }
}

/// The transaction has committed. Another extension may have written something in a callback after `before_commit`; then
/// there is more than the record of the commit.
pub fn after_commit() {
    if let Some(before) = restore() {
        // SAFETY: variables of this process; the server flushes up to here in an ordinary commit, too.
        unsafe {
            if pg_sys::pgWalUsage.wal_records > before + 1 {
                pg_sys::XLogFlush(pg_sys::XactLastCommitEnd);
            }
        }
    }
    WRITTEN.set(Written::Unknown);
}

/// The transaction was rolled back, also after `before_commit`, or prepared.
pub fn after_end() {
    restore();
    WRITTEN.set(Written::Unknown);
}

/// Restores the setting of the session; returns how many WAL records it had written before the commit.
fn restore() -> Option<i64> {
    let (asked, records) = ASKED.take()?;
    // SAFETY: a variable of this process, as `before_commit` found it.
    unsafe { pg_sys::synchronous_commit = asked };
    Some(records)
}
