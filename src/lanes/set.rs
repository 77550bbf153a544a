//! Sets of lanes of any size.

/// With this many, a set of 500 lanes has about two of a hundred others.
const BITS: usize = 4096;

/// A set of lanes, by the hashes of their queues: a Bloom filter, in which four bits stand for a lane. So a set may
/// contain too many lanes, but never too few.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaneSet([u64; BITS / 64]);

impl LaneSet {
    /// No lane.
    pub const NONE: Self = Self([0; BITS / 64]);
    /// Every lane.
    pub const ALL: Self = Self([u64::MAX; BITS / 64]);

    /// Adds a lane.
    pub fn insert(&mut self, lane: u64) {
        bits_of(lane).for_each(|bit| self.0[bit / 64] |= 1 << (bit % 64));
    }

    /// Adds the lanes of another set.
    pub fn insert_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, more)| *bits |= more);
    }

    /// Whether it has the lane.
    pub fn contains(&self, lane: u64) -> bool {
        bits_of(lane).all(|bit| self.0[bit / 64] & (1 << (bit % 64)) != 0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == Self::NONE.0
    }
}

/// The bits of a lane, each from another part of its hash.
fn bits_of(lane: u64) -> impl Iterator<Item = usize> {
    (0..4).map(move |part| (lane >> (16 * part)) as usize % BITS)
}
