//! The campaigns, each in a file of its own.

mod backend;
mod cancel;
mod crash;
mod deadlock;
mod levels;
mod pinned;
mod quiet;
mod savepoints;
mod stop;
mod twophase;
mod upkeep;
mod worker;

use super::campaign::Campaign;

/// All of them, in the order in which they are played.
pub const ALL: [Campaign; 12] = [
    crash::CAMPAIGN,
    stop::CAMPAIGN,
    backend::CAMPAIGN,
    worker::CAMPAIGN,
    cancel::CAMPAIGN,
    levels::CAMPAIGN,
    deadlock::CAMPAIGN,
    savepoints::CAMPAIGN,
    twophase::CAMPAIGN,
    upkeep::CAMPAIGN,
    pinned::CAMPAIGN,
    quiet::CAMPAIGN,
];

/// The campaign of this name.
pub fn named(name: &str) -> Campaign {
    ALL.into_iter()
        .find(|campaign| campaign.name == name)
        .unwrap_or_else(|| panic!("no campaign is called {name}"))
}
