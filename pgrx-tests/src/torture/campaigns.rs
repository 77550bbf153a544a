//! The campaigns, each in a file of its own.

mod crash;

use super::campaign::Campaign;

/// All of them, in the order in which they are played.
pub const ALL: [Campaign; 1] = [crash::CAMPAIGN];
