//! Compares the answers that the clients got with the tables after the drain.
//!
//! Each check is sound: it only reports what no interleaving of correct transactions can produce. An operation took
//! effect somewhere between its begin and its end. One whose outcome is unknown may have taken effect or not.

mod batches;
mod deadlines;
mod endings;
mod facts;
mod found;
mod leases;
mod links;
mod order;
mod owners;
mod pushes;
mod server;
mod sleeps;
mod steps;
mod timeouts;
mod weights;

pub use facts::Facts;
pub use found::{Found, found};
pub use server::{Log, corruption, damaged_pages, wrong_stats};

use std::collections::HashSet;
use std::fmt;

use super::account::Account;
use super::journal::{Effect, OnFailure, Outcome, Verb};
use facts::{Claim, End, Push, Task};

/// A broken promise.
#[derive(Debug)]
pub struct Violation {
    /// Which one: I1 and so on, see docs/how-it-is-tested.md.
    pub invariant: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// Counts for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    /// Whose COMMIT returned.
    pub acknowledged: u64,
    pub unknown: u64,
    pub pushes: u64,
    pub claims: u64,
    pub completions: u64,
    /// Statements that were cancelled or timed out.
    pub cut_short: u64,
    /// Leases that an observer saw.
    pub leases_seen: u64,
    /// Tasks whose push had an unknown outcome, and which were found.
    pub recovered: u64,
    /// Acknowledged pushes that were not found.
    pub lost: u64,
    /// Operations that were acknowledged with synchronous_commit = off, and that a crash may have undone.
    pub forgotten: u64,
    /// Tasks that waited for the sweep.
    pub left_to_the_sweep: u64,
}

/// A lease as the observer saw it: its worker is the name of the operation that claimed it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub id: i64,
    pub token: i64,
    pub worker: String,
}

/// Checks the journals against the tables at the end and the observations in between. `timed` says whether the
/// server's clock can be compared with that of the clients.
pub fn check(
    account: &Account,
    found: &[Found],
    seen: &HashSet<Lease>,
    timed: bool,
) -> (Vec<Violation>, Counts) {
    let facts = Facts::gather(account, found);
    let (cut_short, leases_seen) = (account.cut_short, seen.len() as u64);
    let mut counts = Counts { cut_short, leases_seen, ..Counts::default() };
    for operation in &account.operations {
        counts.operations += 1;
        counts.acknowledged += u64::from(operation.outcome == Outcome::Ok);
        counts.forgotten += u64::from(operation.forgotten);
        counts.unknown += u64::from(operation.outcome == Outcome::Unknown && !operation.forgotten);
    }
    for task in facts.tasks.values() {
        counts.claims += task.claims.len() as u64;
        counts.completions += task.ends.iter().filter(|end| end.surely(Verb::Complete)).count() as u64;
    }
    let mut violations = Vec::new();
    let mut say = |invariant, what| violations.push(Violation { invariant, what });
    pushes::check(&facts, &mut counts, &mut say);
    endings::check(&facts, &mut say);
    leases::check(&facts, timed, &mut say);
    links::check(&facts, timed, &mut say);
    deadlines::check(&facts, timed, &mut say);
    batches::check(&facts, timed, &mut say);
    steps::check(&facts, &mut say);
    if timed {
        order::check(&facts, &mut say);
        timeouts::check(&facts, &mut say);
        sleeps::check(&facts, &mut say);
        weights::check(&facts, &mut say);
    }
    owners::check(account, seen.iter(), &mut say);
    account.errors.iter().for_each(|error| say("errors", error.clone()));
    (violations, counts)
}
