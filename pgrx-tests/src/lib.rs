//! What the suites and the demo share: throw-away Postgres servers, waiting for conditions, and faults
//! under load with an account of everything.

pub mod cluster;
pub mod counters;
pub mod estate;
pub mod installation;
pub mod torture;
pub mod wait;

pub use cluster::{Cluster, Settings};
pub use counters::counters_agree;
pub use wait::eventually;

/// Whether another version is tested at length, so that what is the same on all need not be tested again.
pub fn brief() -> bool {
    std::env::var_os("BRIEF").is_some()
}
