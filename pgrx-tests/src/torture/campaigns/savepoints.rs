//! R16: blocks of up to a hundred subtransactions, many of them rolled back.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "savepoints",
    covers: "R16",
    load: Load { blocks: 60, parts: 100, savepoints: 90, ..Load::MIXED },
    ..Campaign::PLAIN
};
