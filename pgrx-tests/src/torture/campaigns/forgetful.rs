//! R1 with sessions whose commits do not wait for the disk: a crash undoes what they were told, the claims among
//! it, and no token may come twice.

use super::crash;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "forgetful",
    covers: "R1, synchronous_commit = off",
    // What is not flushed by somebody's commit stays in memory; the background worker's own commits do not wait either.
    settings: "synchronous_commit = off\nwal_writer_delay = '10s'\nwal_writer_flush_after = '1GB'",
    load: Load { careless: 100, ..Load::MIXED },
    // Until the worker has raised the mark, claims wait for the disk.
    pause: (600, 2000),
    ..crash::CAMPAIGN
};
