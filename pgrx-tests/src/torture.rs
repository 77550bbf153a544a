//! Faults under load, and an account of everything: what docs/how-it-is-tested.md says is proved here.
//!
//! A campaign is rounds of: clients work, something breaks again and again, everything is healed, the
//! queues are drained, and the account is checked. See campaign.rs; campaigns/ has one file for each.

#![allow(missing_docs, reason = "the fields say what they are; what needs words has them")]

mod account;
mod actions;
pub mod campaign;
pub mod campaigns;
pub mod checker;
mod client;
mod drain;
mod journal;
mod links;
mod load;
mod observer;
pub mod random;
mod scene;
mod waiting;
mod words;
