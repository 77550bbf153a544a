//! More queues than there are lanes: those that have none are served by SQL, while leases run in all of them.

use crate::torture::campaign::{Campaign, LATIN1};
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "crowded",
    covers: "more queues than lanes",
    settings: "queue.lanes = 3",
    initdb: LATIN1,
    load: Load { clients: 12, blocks: 50, savepoints: 40, ..Load::MIXED },
    ..Campaign::PLAIN
};
