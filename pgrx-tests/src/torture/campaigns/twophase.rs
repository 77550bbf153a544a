//! R17: transactions that end in two phases, with a crash in between. What is left prepared after it is
//! ended by somebody else, one way or the other.

use super::crash;
use crate::torture::campaign::{Campaign, LATIN1};
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "twophase",
    covers: "R17",
    initdb: LATIN1,
    load: Load { blocks: 60, two_phase: 60, ..Load::MIXED },
    ..crash::CAMPAIGN
};
