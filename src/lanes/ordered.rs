//! A bounded, ordered set in one flat array, for shared memory.

/// Up to `N` different items in ascending order. Removing the first and appending take constant time; all other
/// operations move the following items.
#[repr(C)]
pub struct Ordered<T, const N: usize> {
    start: usize,
    len: usize,
    items: [T; N],
}

/// The result of adding an item.
#[derive(Debug, PartialEq, Eq)]
pub enum Added<T> {
    /// It was added.
    Yes,
    /// It was in the set already.
    Before,
    /// The set was full, and the largest item, perhaps this one, was dropped.
    Without(T),
}

impl<T: Copy + Ord, const N: usize> Ordered<T, N> {
    /// Removes all items.
    pub fn clear(&mut self) {
        (self.start, self.len) = (0, 0);
    }

    /// The items, the smallest first.
    pub fn as_slice(&self) -> &[T] {
        &self.items[self.start..self.start + self.len]
    }

    /// The smallest item.
    pub fn first(&self) -> Option<T> {
        self.as_slice().first().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes the smallest item out.
    pub fn take_first(&mut self) -> Option<T> {
        let first = self.first()?;
        self.start += 1;
        self.len -= 1;
        Some(first)
    }

    /// Adds an item.
    pub fn add(&mut self, item: T) -> Added<T> {
        let Err(place) = self.as_slice().binary_search(&item) else { return Added::Before };
        let mut left_out = None;
        if self.len == N {
            if place == N {
                return Added::Without(item);
            }
            left_out = self.as_slice().last().copied();
            self.len -= 1;
        }
        if self.start + self.len == N {
            self.items.copy_within(self.start..N, 0);
            self.start = 0;
        }
        let place = self.start + place;
        self.items.copy_within(place..self.start + self.len, place + 1);
        self.items[place] = item;
        self.len += 1;
        left_out.map_or(Added::Yes, Added::Without)
    }

    /// Takes an item out, if it is there.
    pub fn remove(&mut self, item: &T) -> bool {
        let Ok(place) = self.as_slice().binary_search(item) else { return false };
        let place = self.start + place;
        self.items.copy_within(place + 1..self.start + self.len, place);
        self.len -= 1;
        true
    }

    /// Takes out every item that is not smaller than `bound`.
    pub fn cut_from(&mut self, bound: &T) {
        self.len = self.as_slice().partition_point(|item| item < bound);
    }
}
