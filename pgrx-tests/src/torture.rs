//! The fault campaigns of docs/how-it-is-tested.md.
//!
//! A campaign consists of rounds: clients work while something breaks repeatedly, then the faults end, the queues are
//! drained, and the results are checked. See campaign.rs; campaigns/ has one file for each.

#![allow(missing_docs, reason = "the fields say what they are; what needs words has them")]

mod account;
mod actions;
mod batches;
pub mod campaign;
pub mod campaigns;
pub mod checker;
mod client;
mod deadlines;
mod drain;
mod events;
mod journal;
mod links;
pub mod load;
mod many;
mod observer;
pub mod random;
pub mod scene;
mod sleeps;
mod steps;
mod timeouts;
mod waiting;
mod weights;
mod words;
