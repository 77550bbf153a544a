//! Which lane is assigned to another queue if no lane is free or idle.
//!
//! Lanes are shared fairly between databases, and in each database between the roles that claim and wait. So a role
//! with many queues gets the lanes that no other role needs. A lane belongs to the role that first used it.

use super::directory::{hashes, takers};
use crate::rights;
use pgrx::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A role of a database.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Taker {
    database: u32,
    role: u32,
}

impl Taker {
    /// The caller of the verb that is running.
    pub fn current() -> Self {
        // SAFETY: a plain read of a constant of the process.
        Self { database: unsafe { pg_sys::MyDatabaseId }.to_u32(), role: rights::caller().to_u32() }
    }

    /// Records that the lane belongs to it. Under the lock for assigning lanes.
    pub fn note(self, index: usize) {
        let taker = u64::from(self.database) << 32 | u64::from(self.role);
        takers()[index].store(taker, Ordering::Relaxed);
    }

    fn of(index: usize) -> Self {
        let taker = takers()[index].load(Ordering::Relaxed);
        Self { database: (taker >> 32) as u32, role: taker as u32 }
    }
}

/// The lanes of which `taker` may have one: those of the role with most lanes, in the database with most lanes. None if
/// `taker` would then have more than that role. Under the lock for assigning lanes.
pub fn to_give_up(taker: Taker) -> Vec<usize> {
    let taken = || (0..hashes().len()).filter(|index| hashes()[*index].load(Ordering::Acquire) != 0);
    let (mut databases, mut roles) = (HashMap::new(), HashMap::new());
    for taker in taken().map(Taker::of) {
        *databases.entry(taker.database).or_insert(0) += 1;
        *roles.entry(taker).or_insert(0) += 1;
    }
    let own = databases.get(&taker.database).copied().unwrap_or(0);
    let most = databases.iter().max_by_key(|(_, count)| **count).filter(|(_, count)| **count > own + 1);
    let database = most.map_or(taker.database, |(database, _)| *database);
    let in_it = roles.iter().filter(|(other, _)| other.database == database);
    let Some((from, count)) = in_it.max_by_key(|(_, count)| **count) else { return Vec::new() };
    let own = roles.get(&taker).copied().unwrap_or(0);
    if from.database == taker.database && *count <= own + 1 {
        return Vec::new();
    }
    taken().filter(|index| Taker::of(*index) == *from).collect()
}
