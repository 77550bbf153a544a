//! R17: transactions that end in two phases, with a crash in between. Those that are left prepared are
//! ended before the drain.

use super::crash;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "twophase",
    covers: "R17",
    load: Load { blocks: 60, two_phase: 60, ..Load::MIXED },
    ..crash::CAMPAIGN
};
