//! Code that the suites and the demo share: temporary Postgres servers, waiting for conditions, and the fault
//! campaigns.

pub mod built;
pub mod clock;
pub mod cluster;
pub mod counters;
pub mod disk;
pub mod edition;
pub mod estate;
pub mod installation;
pub mod languages;
pub mod pgbouncer;
pub mod query;
pub mod relay;
pub mod secured;
pub mod stalls;
pub mod torture;
pub mod wait;

pub use cluster::{Cluster, Settings};
pub use counters::counters_agree;
pub use edition::{Edition, Worker};
pub use pgbouncer::PgBouncer;
pub use query::{number, run, text};
pub use wait::{SOON, WOKEN, at_best, eventually};

/// Whether only the brief form of tests is to run, because another version runs the long one.
pub fn brief() -> bool {
    std::env::var_os("BRIEF").is_some()
}
