//! Rights: what the role that called a public function may do.
//!
//! The public functions are entry points in C. Each records its caller and then runs with the rights of the extension's
//! owner, like a SECURITY DEFINER function. PostgreSQL does not record the caller of such a function, but the public
//! functions have to check its rights. `sql/internal/rights.sql` documents the kinds of rights.

mod caller;
mod functions;
mod known;

use crate::catalog;
pub use caller::{caller, enter, in_verb, leave};
use known::known;
use pgrx::prelude::*;

/// A set of kinds of rights.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// To push tasks.
    pub const PRODUCER: Self = Self(1);
    /// To claim and to end tasks.
    pub const WORKER: Self = Self(2);
    /// To read and to manage queues, and the other two.
    pub const OPERATOR: Self = Self(4);
    const ANY: Self = Self(7);

    /// The kinds that include this one: an operator has every right.
    fn sufficing(self) -> Self {
        Self(self.0 | Self::OPERATOR.0)
    }

    fn has_any_of(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"producer" => Some(Self::PRODUCER),
            b"worker" => Some(Self::WORKER),
            b"operator" => Some(Self::OPERATOR),
            b"any" => Some(Self::ANY),
            _ => None,
        }
    }
}

/// Whether the caller of the running verb has this kind of right for the queue.
///
/// # Safety
/// In a transaction, in a verb.
pub unsafe fn allow(kind: Kinds, queue: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { is_allowed(pg_sys::GetUserId(), kind, Some(queue)) }
}

unsafe fn is_allowed(owner: pg_sys::Oid, kind: Kinds, queue: Option<&[u8]>) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let caller = caller();
        if caller == owner || pg_sys::has_privs_of_role(caller, owner) {
            return true;
        }
        let known = known(caller);
        known.everywhere.has_any_of(kind.sufficing())
            || queue
                .and_then(|queue| known.queues.get(queue))
                .is_some_and(|kinds| kinds.has_any_of(kind.sufficing()))
    }
}

/// The queues for which the caller has this kind of right; none if it has it for all. A member of pg_monitor may see
/// the numbers of all queues.
unsafe fn visible(owner: pg_sys::Oid, kind: &[u8]) -> Option<Vec<Vec<u8>>> {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let monitors = kind == b"monitor";
        let kind = if monitors { Kinds::OPERATOR } else { Kinds::named(kind).unwrap_or_default() };
        let caller = caller();
        if is_allowed(owner, kind, None) || monitors && pg_sys::has_privs_of_role(caller, MONITOR) {
            return None;
        }
        let queues = &known(caller).queues;
        let allowed = queues.iter().filter(|(_, kinds)| kinds.has_any_of(kind.sufficing()));
        Some(allowed.map(|(name, _)| name.clone()).collect())
    }
}

/// The OID of pg_monitor, which is fixed.
const MONITOR: pg_sys::Oid = pg_sys::Oid::from_u32(pg_sys::ROLE_PG_MONITOR);

/// Whether the caller may see the numbers of a queue's tasks.
///
/// # Safety
/// In a transaction, in a function whose owner is `owner`.
pub unsafe fn sees_numbers(owner: pg_sys::Oid, queue: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::has_privs_of_role(caller(), MONITOR) || is_allowed(owner, Kinds::OPERATOR, Some(queue)) }
}

/// The owner of a function.
unsafe fn owner_of(function: pg_sys::Oid) -> pg_sys::Oid {
    let owner = |row: &pg_sys::FormData_pg_proc| row.proowner;
    // SAFETY: in a transaction; the layout is that of the cache.
    let owner = unsafe { catalog::row(pg_sys::SysCacheIdentifier::PROCOID, function, owner) };
    owner.unwrap_or_else(|| error!("function {} does not exist", function.to_u32()))
}
