//! What shared memory records of a prepared transaction: see `two_phase`.

use super::LaneSet;
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

unsafe extern "C" {
    // pgrx does not declare it.
    #[link_name = "max_prepared_xacts"]
    static mut MOST: c_int;
}

/// The keys of the hash, which all processes inherit from the postmaster. Random, so that no role can choose a name
/// with the hash of another one.
static KEYS: OnceLock<RandomState> = OnceLock::new();

/// Creates the keys, while the postmaster preloads libraries.
pub fn make_keys() {
    let _ = KEYS.set(RandomState::new());
}

/// The hash of a name, never 0.
pub fn hash_of_name(name: &[u8]) -> u64 {
    KEYS.get_or_init(RandomState::new).hash_one(name).max(1)
}

/// How many entries there are: more than twice as many as transactions can be prepared at a time, because an entry
/// outlives its transaction for a moment.
pub fn entries() -> usize {
    // SAFETY: a setting, which is final before libraries are preloaded.
    match usize::try_from(unsafe { MOST }) {
        Ok(most) if most > 0 => 2 * most + 16,
        _ => 0,
    }
}

/// A prepared transaction. All bytes 0 are an entry that was never used.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Prepared {
    /// The hash of its name, 0 if that is not known.
    pub name: u64,
    pub database: u32,
    pub transaction: u32,
    /// No session has found yet that it has ended, and has invalidated its lanes.
    pub open: bool,
    pub lanes: LaneSet,
    /// When the first of its leases ends, and its first start deadline.
    pub lease: i64,
    pub start_by: i64,
}
