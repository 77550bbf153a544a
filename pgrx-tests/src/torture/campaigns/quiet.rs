//! No fault at all: the load alone, for comparison and for the mutants.

use crate::torture::campaign::Campaign;

pub const CAMPAIGN: Campaign = Campaign { name: "quiet", covers: "no fault", ..Campaign::PLAIN };
