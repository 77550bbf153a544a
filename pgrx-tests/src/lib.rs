//! What the suites and the demo share: throw-away Postgres servers, waiting for conditions, and faults
//! under load with an account of everything.

pub mod clock;
pub mod cluster;
pub mod counters;
pub mod disk;
pub mod edition;
pub mod estate;
pub mod installation;
pub mod languages;
pub mod pgbouncer;
pub mod torture;
pub mod wait;

pub use cluster::{Cluster, Settings};
pub use counters::counters_agree;
pub use edition::{Edition, Worker};
pub use pgbouncer::PgBouncer;
pub use wait::eventually;

/// Whether another version is tested at length, so that what is the same on all need not be tested again.
pub fn brief() -> bool {
    std::env::var_os("BRIEF").is_some()
}
