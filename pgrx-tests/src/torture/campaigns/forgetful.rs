//! R1 with sessions whose commits do not wait for the disk: a crash undoes acknowledged operations, claims among
//! them, and no token may repeat.

use super::crash;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "forgetful",
    covers: "R1, synchronous_commit = off",
    // WAL that no commit has flushed stays in memory; the background worker's own commits do not wait either.
    settings: "synchronous_commit = off\nwal_writer_delay = '10s'\nwal_writer_flush_after = '1GB'",
    load: Load { careless: 100, ..Load::MIXED },
    // Until the worker has raised the mark, claims wait for the disk.
    pause: (600, 2000),
    ..crash::CAMPAIGN
};
