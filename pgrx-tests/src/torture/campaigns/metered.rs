//! No fault: rate limits, and limits on how many tasks run, of a queue and of its groups, with tasks of several weights. In
//! the load of other campaigns so few of these tasks are due at once that the limits matter seldom.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "metered",
    covers: "weights and rate limits",
    load: Load { metered: 60, ..Load::MIXED },
    ..Campaign::PLAIN
};
