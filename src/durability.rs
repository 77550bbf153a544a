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
//! A task that crashes the server must not be claimed again and again without an attempt being counted. So, unless
//! `queue.durable_leases` says otherwise, claims wait for the disk for a minute after the first one since the server
//! started.

use crate::clock::now;
use crate::settings::{self, DurableLeases};
use crate::shared;
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
    /// The setting of the session while a commit does not follow it.
    static ASKED: Cell<Option<c_int>> = const { Cell::new(None) };
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

/// The transaction is about to commit. The variable is set and not the setting: nobody sees it in between, and the wait for
/// synchronous standbys follows the variable.
pub fn before_commit() {
    let only_leases = last_record() != 0 && WRITTEN.get() == Written::Leases(last_record());
    // SAFETY: a variable of this process, whose value is restored before anything else can run.
    unsafe {
        if only_leases && pg_sys::synchronous_commit > OFF && may_be_lost() {
            ASKED.set(Some(pg_sys::synchronous_commit));
            pg_sys::synchronous_commit = OFF;
        }
    }
}

/// The transaction has ended, or failed after `before_commit`.
pub fn after_end() {
    if let Some(asked) = ASKED.take() {
        // SAFETY: a variable of this process, as `before_commit` found it.
        unsafe { pg_sys::synchronous_commit = asked };
    }
    WRITTEN.set(Written::Unknown);
}

/// Whether a crash may lose the leases that are committed now.
fn may_be_lost() -> bool {
    // SAFETY: a plain read of a constant of the process.
    let database = || shared::get().and_then(|shared| shared.database(unsafe { pg_sys::MyDatabaseId }));
    match settings::durable_leases() {
        DurableLeases::On => false,
        DurableLeases::Off => true,
        DurableLeases::AfterStart => database().is_some_and(|database| database.has_started(now())),
    }
}
