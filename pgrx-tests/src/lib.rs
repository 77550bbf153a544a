//! What the suites and the demo share: throw-away Postgres servers, and waiting for conditions.

pub mod cluster;
pub mod counters;
pub mod wait;

pub use cluster::{Cluster, Settings};
pub use counters::counters_agree;
pub use wait::eventually;
