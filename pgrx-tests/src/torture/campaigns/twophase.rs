//! R17: transactions that end in two phases, with a crash in between. What is left prepared after it is
//! ended by somebody else, one way or the other.

use super::crash;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "twophase",
    covers: "R17",
    load: Load { blocks: 60, two_phase: 60, ..Load::MIXED },
    ..crash::CAMPAIGN
};
