//! A row of `queue.tasks`, and its properties.

use super::columns::task;
use super::row::Row;
use crate::datum::text_of;
use crate::lanes::{Item, Key, Lease};
use pgrx::prelude::*;
use std::ops::{Deref, DerefMut};

/// The first columns of a task, or all of them.
pub struct Task<const N: usize = { task::COUNT }>(Row<N>);

impl<const N: usize> Deref for Task<N> {
    type Target = Row<N>;

    fn deref(&self) -> &Row<N> {
        &self.0
    }
}

impl<const N: usize> DerefMut for Task<N> {
    fn deref_mut(&mut self) -> &mut Row<N> {
        &mut self.0
    }
}

impl<const N: usize> Task<N> {
    /// All columns null.
    pub fn empty() -> Self {
        const { assert!(N > task::ADMISSION) };
        Self(Row::empty())
    }

    /// The task in the slot. Values by reference belong to the slot.
    ///
    /// # Safety
    /// The slot holds a row of `queue.tasks`, deformed as far as these columns.
    pub unsafe fn of(slot: *mut pg_sys::TupleTableSlot) -> Self {
        const { assert!(N > task::ADMISSION) };
        // SAFETY: the caller's promise.
        Self(unsafe { Row::of(slot) })
    }

    /// The name of its queue.
    ///
    /// # Safety
    /// The row lives as long as the result, and its queue is not null.
    pub unsafe fn queue<'a>(&self) -> &'a [u8] {
        // SAFETY: the column is a text; the rest is the caller's promise.
        unsafe { text_of(self.values[task::QUEUE]) }
    }

    /// Its position in the order of claims.
    pub fn key(&self) -> Key {
        Key { priority: self.int(task::PRIORITY), run_at: self.long(task::RUN_AT), id: self.long(task::ID) }
    }

    /// Whether its group does not prevent that it is claimed.
    pub fn is_admitted(&self) -> bool {
        self.int(task::ADMISSION) < 2
    }

    /// Whether it is queued, due or not.
    pub fn is_queued(&self) -> bool {
        self.is(task::STATE, b"queued")
    }

    /// Whether it can be claimed from its run_at on.
    pub fn is_claimable(&self) -> bool {
        self.is_queued() && self.is_admitted()
    }

    /// By when it has to be started, unless it has been started or has no deadline.
    pub fn start_deadline(&self) -> Option<i64> {
        const { assert!(N > task::START_BY) };
        let start_by = self.get(task::START_BY)?;
        (self.long(task::TOKEN) == 0).then_some(start_by.value() as i64)
    }

    /// Whether an attempt is running.
    pub fn is_running(&self) -> bool {
        self.is(task::STATE, b"running")
    }

    /// Whether the attempt with this token is running.
    pub fn runs_with(&self, token: i64) -> bool {
        self.is_running() && self.long(task::TOKEN) == token
    }

    /// Its lease, if it is running.
    pub fn lease(&self) -> Lease {
        const { assert!(N > task::LEASE_UNTIL) };
        Lease { id: self.long(task::ID), until: self.long(task::LEASE_UNTIL) }
    }

    /// The item of the counters of its queue.
    pub fn item(&self) -> Option<Item> {
        if self.is_running() {
            Some(Item::RUNNING)
        } else if self.is(task::STATE, b"waiting") {
            Some(Item::WAITING)
        } else if !self.is_queued() {
            None
        } else if self.is_admitted() {
            Some(Item::queued(self.long(task::RUN_AT)))
        } else {
            Some(Item::BLOCKED)
        }
    }
}

impl Task {
    /// Whether its start deadline has passed before it was started. A claim raises the token.
    pub fn is_late(&self, moment: i64) -> bool {
        self.start_deadline().is_some_and(|start_by| start_by <= moment)
    }
}
