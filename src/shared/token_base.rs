//! The base of the tokens of a database (src/tokens.rs), as the worker publishes it to claims.

use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

/// The base that the worker has published for a database, for as long as its mark is this table.
#[derive(Default)]
pub struct TokenBase {
    mark: AtomicU32,
    base: AtomicI64,
    /// The first transaction id after it was published.
    first: AtomicU32,
    /// A claim found no base for its table.
    unknown: AtomicBool,
}

impl TokenBase {
    /// The base, if it was published for this table, and the first transaction id after that.
    pub fn get(&self, mark: pg_sys::Oid) -> Option<(i64, pg_sys::TransactionId)> {
        let known = mark != pg_sys::InvalidOid && self.mark.load(Ordering::Acquire) == mark.to_u32();
        let (base, first) = (self.base.load(Ordering::Acquire), self.first.load(Ordering::Acquire));
        known.then_some((base, first.into()))
    }

    /// Whether the worker has to raise the mark.
    pub fn wanted(&self) -> bool {
        self.mark.load(Ordering::Acquire) == 0 || self.unknown.swap(false, Ordering::AcqRel)
    }

    /// Publishes the base.
    pub fn publish(&self, mark: pg_sys::Oid, base: i64) {
        self.mark.store(0, Ordering::Release);
        self.base.store(base, Ordering::Release);
        // SAFETY: reads shared memory of the server.
        let next = unsafe { pg_sys::ReadNextFullTransactionId() };
        // The lower half of the number.
        self.first.store(next.value as u32, Ordering::Release);
        self.mark.store(mark.to_u32(), Ordering::Release);
    }

    /// Records that a claim found no base for its table; returns whether it is the first to.
    pub fn ask(&self) -> bool {
        !self.unknown.swap(true, Ordering::AcqRel)
    }

    /// Removes the base.
    pub fn clear(&self) {
        self.mark.store(0, Ordering::Release);
        self.unknown.store(false, Ordering::Release);
    }
}
