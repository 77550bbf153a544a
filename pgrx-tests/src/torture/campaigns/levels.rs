//! R14: blocks at REPEATABLE READ and SERIALIZABLE among others at READ COMMITTED.

use crate::torture::campaign::{Campaign, LATIN1};
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "levels",
    covers: "R14",
    initdb: LATIN1,
    // Only errors that a client has to retry.
    load: Load { clients: 16, blocks: 70, strict: 60, tolerated: &["40001", "40P01"], ..Load::MIXED },
    ..Campaign::PLAIN
};
