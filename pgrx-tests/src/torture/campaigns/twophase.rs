//! R17: two-phase commits with a crash in between. Transactions that are left prepared are committed or rolled back
//! by another session.

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
