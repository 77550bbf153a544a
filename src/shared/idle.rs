//! Prepared transactions that have nothing to publish to the lanes. Their ends do not invalidate the lanes and counters
//! of the database, because any role could prepare such transactions again and again.
//!
//! They are found by the hash of their names. A transaction that is not here may have changed tasks: after a restart,
//! or after its entry was reused for a later one.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const PLACES: usize = 256;

/// The keys of the hash, which all processes inherit from the postmaster. Random, so that no role can choose a name
/// with the hash of another one.
static KEYS: OnceLock<RandomState> = OnceLock::new();

/// Creates the keys, while the postmaster preloads libraries.
pub fn make_keys() {
    let _ = KEYS.set(RandomState::new());
}

/// The hash of a name, never 0.
pub fn hash(name: &[u8]) -> u64 {
    KEYS.get_or_init(RandomState::new).hash_one(name).max(1)
}

/// See the head of this file.
pub struct IdleTransactions {
    /// The entry that is reused next if none is free.
    next: AtomicUsize,
    places: [AtomicU64; PLACES],
}

impl Default for IdleTransactions {
    fn default() -> Self {
        Self { next: AtomicUsize::new(0), places: [const { AtomicU64::new(0) }; PLACES] }
    }
}

impl IdleTransactions {
    /// Adds a transaction that has been prepared under this name and cannot have ended yet.
    pub fn prepared(&self, name: u64, is_idle: bool) {
        // An earlier one of the same name.
        while self.forget(name) {}
        if is_idle && name != 0 {
            let put = |place: &AtomicU64| {
                place.compare_exchange(0, name, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            };
            if !self.places.iter().any(put) {
                let place = self.next.fetch_add(1, Ordering::SeqCst) % PLACES;
                self.places[place].store(name, Ordering::SeqCst);
            }
        }
    }

    /// Whether the transaction of this name is here.
    pub fn knows(&self, name: u64) -> bool {
        self.places.iter().any(|place| place.load(Ordering::SeqCst) == name)
    }

    /// The transaction of this name has ended; whether it was here.
    pub fn forget(&self, name: u64) -> bool {
        let take =
            |place: &AtomicU64| place.compare_exchange(name, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        name != 0 && self.places.iter().any(take)
    }
}
