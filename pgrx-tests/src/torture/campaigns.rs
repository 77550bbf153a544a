//! The campaigns, each in a file of its own.

mod asynchronous;
mod backend;
mod cancel;
mod chaos;
mod clock;
mod crash;
mod crowded;
mod cut;
mod deadlock;
mod durable;
mod failover;
mod forgetful;
mod full;
mod levels;
mod metered;
mod pinned;
mod quiet;
mod references;
mod savepoints;
pub mod soak;
mod stop;
mod twophase;
mod upkeep;
mod worker;
pub mod zombies;

use super::campaign::Campaign;

/// All of them, in the order in which they are played.
pub const ALL: [Campaign; 25] = [
    crash::CAMPAIGN,
    durable::CAMPAIGN,
    forgetful::CAMPAIGN,
    stop::CAMPAIGN,
    backend::CAMPAIGN,
    zombies::CAMPAIGN,
    worker::CAMPAIGN,
    cut::CAMPAIGN,
    failover::CAMPAIGN,
    asynchronous::CAMPAIGN,
    full::CAMPAIGN,
    pinned::CAMPAIGN,
    cancel::CAMPAIGN,
    levels::CAMPAIGN,
    deadlock::CAMPAIGN,
    savepoints::CAMPAIGN,
    twophase::CAMPAIGN,
    upkeep::CAMPAIGN,
    clock::CAMPAIGN,
    crowded::CAMPAIGN,
    references::CAMPAIGN,
    metered::CAMPAIGN,
    chaos::CAMPAIGN,
    soak::CAMPAIGN,
    quiet::CAMPAIGN,
];

/// The campaign of this name.
pub fn named(name: &str) -> Campaign {
    ALL.into_iter()
        .find(|campaign| campaign.name == name)
        .unwrap_or_else(|| panic!("no campaign is called {name}"))
}
