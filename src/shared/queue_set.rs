//! Sets of queues.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

const QUEUE_BITS: usize = 256;

/// A set of queues, as bits that a hash of their names chooses. Two queues may share a bit, so a set may contain too
/// many queues, but never too few.
pub type QueueBits = [u64; QUEUE_BITS / 64];

/// The bit of the queue `name`.
pub fn queue_bit(name: &[u8]) -> usize {
    // Without random keys: every process must find the same bit.
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (hasher.finish() % QUEUE_BITS as u64) as usize
}

/// Adds a bit to a set of queues.
pub fn set_bit(bits: &mut QueueBits, bit: usize) {
    bits[bit / 64] |= 1 << (bit % 64);
}

/// Whether a set of queues has the bit of the queue `name`.
pub fn contains(bits: &QueueBits, name: &[u8]) -> bool {
    let bit = queue_bit(name);
    bits[bit / 64] & (1 << (bit % 64)) != 0
}

/// A set of queues in shared memory.
#[derive(Default)]
pub struct QueueSet([AtomicU64; QUEUE_BITS / 64]);

impl QueueSet {
    /// Adds queues; returns whether any of them was new.
    pub fn insert(&self, bits: &QueueBits) -> bool {
        let words = self.0.iter().zip(bits).filter(|(_, bits)| **bits != 0);
        words.fold(false, |new, (word, bits)| new | (word.fetch_or(*bits, Ordering::SeqCst) & bits != *bits))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Returns the queues and empties the set.
    pub fn take(&self) -> QueueBits {
        std::array::from_fn(|i| self.0[i].swap(0, Ordering::SeqCst))
    }
}
