//! R14: blocks at REPEATABLE READ and SERIALIZABLE among others at READ COMMITTED.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "levels",
    covers: "R14",
    settings: "",
    // Nothing but what a client is to retry.
    load: Load { clients: 16, blocks: 70, strict: 60, tolerated: &["40001", "40P01"], ..Load::MIXED },
    pause: (1000, 1000),
    fault: Campaign::nothing,
    before: Campaign::nothing,
    after: Campaign::nothing,
    lossy: false,
};
