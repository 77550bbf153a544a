//! The pause after a failure, which grows.

use crate::shared::AT_ONCE;

/// The first pause. It doubles with each failure, up to the second of these.
const FIRST_PAUSE: i64 = 1_000_000;
const LONGEST_PAUSE: i64 = 60_000_000;

/// The pause of a step that failed, or of a handler whose processes exit.
#[derive(Clone, Copy)]
pub(super) struct Pause {
    pub(super) failures: u32,
    pub(super) until: i64,
}

impl Pause {
    pub(super) const NONE: Self = Self { failures: 0, until: AT_ONCE };

    pub(super) fn failed(&mut self, moment: i64) {
        let longer = FIRST_PAUSE << self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        self.until = moment + longer.min(LONGEST_PAUSE);
    }

    /// Whether the next failure is logged: the first ones, then every power of two.
    pub(super) fn is_logged(&self) -> bool {
        (self.failures + 1).is_power_of_two()
    }
}
