//! R1 with leases that survive a crash: no second worker gets a task before the lease is over.

use super::crash;
use crate::torture::campaign::Campaign;

pub const CAMPAIGN: Campaign = Campaign {
    name: "durable",
    covers: "R1, queue.durable_leases = on",
    durable_leases: true,
    ..crash::CAMPAIGN
};
