//! No fault at all: the load alone, for comparison and for the mutants.

use crate::torture::campaign::Campaign;
use crate::torture::load::Load;

pub const CAMPAIGN: Campaign = Campaign {
    name: "quiet",
    covers: "no fault",
    settings: "",
    load: Load::MIXED,
    pause: (1000, 1000),
    fault: Campaign::nothing,
    before: Campaign::nothing,
    after: Campaign::nothing,
    lossy: false,
};
