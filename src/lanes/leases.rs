//! The leases of one queue, by task, and when the next one expires.

use super::NEVER;

/// A lease: the task, and when it ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The task; 0 in a free slot.
    pub id: i64,
    /// When it ends.
    pub until: i64,
}

/// How far from its own slot a lease may be stored.
const REACH: usize = 32;

/// A hash table of `N` slots. If no slot near its own is free, the lease that ends last is dropped, and only its end is
/// kept: at that time queue.tasks has to be read. So a short lease has a slot however many long ones there are.
#[repr(C)]
pub struct Leases<const N: usize> {
    slots: [Lease; N],
    /// Whether the lease in a slot was published while a process reads the table, and so is newer than what that
    /// process reads.
    fresh: [bool; N],
    /// No lease in a slot ends before this.
    next: i64,
    /// The earliest end of a lease that is in no slot.
    unknown: i64,
    /// The same, of those that were published while a process reads.
    unknown_since: i64,
    /// Tasks may have ended without being removed, and still occupy slots.
    stale: bool,
}

impl<const N: usize> Leases<N> {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.slots.fill(Lease { id: 0, until: 0 });
        (self.next, self.unknown, self.unknown_since, self.stale) = (NEVER, NEVER, NEVER, false);
    }

    /// No lease ends before this.
    pub fn next(&self) -> i64 {
        self.next.min(self.unknown)
    }

    /// Whether a lease has ended by now.
    pub fn any_ended(&mut self, now: i64) -> bool {
        if self.next <= now {
            // Without those that were removed since.
            let ends = self.slots.iter().filter(|slot| slot.id != 0).map(|slot| slot.until);
            self.next = ends.min().unwrap_or(NEVER);
        }
        self.next() <= now
    }

    /// The tasks of the leases in the slots, and how many there are. Some may have ended.
    pub fn ids(&self) -> ([i64; N], usize) {
        let (mut ids, mut count) = ([0; N], 0);
        for slot in self.slots.iter().filter(|slot| slot.id != 0) {
            ids[count] = slot.id;
            count += 1;
        }
        (ids, count)
    }

    /// The earliest end of a lease of which only that is known.
    pub fn unknown(&self) -> i64 {
        self.unknown
    }

    /// A lease ends at `until`, and only that is known.
    pub fn add_unknown(&mut self, until: i64) {
        self.unknown = self.unknown.min(until);
        self.unknown_since = self.unknown_since.min(until);
    }

    /// A process starts to read the table.
    pub fn begin_reading(&mut self) {
        self.fresh.fill(false);
        self.unknown_since = NEVER;
    }

    /// Tasks ended, and only that is known.
    pub fn remove_unknown(&mut self) {
        self.stale = true;
    }

    /// Prepares for the result of reading the whole table, which has the leases that were in no slot when it started,
    /// or all leases if tasks ended without being removed. Returns the earliest end of the former.
    pub fn forget_unknown(&mut self) -> i64 {
        let forgotten = std::mem::replace(&mut self.unknown, self.unknown_since);
        if std::mem::take(&mut self.stale) {
            let old = self.slots.iter_mut().zip(&self.fresh).filter(|(_, fresh)| !**fresh);
            old.for_each(|(slot, _)| slot.id = 0);
        }
        forgotten
    }

    /// Returns the earliest end of a lease of which only that is known. Others have to find it from now on.
    pub fn take_unknown(&mut self) -> i64 {
        self.unknown_since = NEVER;
        std::mem::replace(&mut self.unknown, NEVER)
    }

    /// Adds a lease that was read in the table, unless a newer one is known.
    pub fn learn(&mut self, lease: Lease) {
        let known = self.reach(lease.id).find(|slot| self.slots[*slot].id == lease.id);
        if known.is_none_or(|slot| !self.fresh[slot]) {
            self.put(lease, false);
        }
    }

    /// Adds a lease again that [`Leases::take_expired`] removed and whose attempt was not ended. Of two ends the
    /// earlier one is kept, because checking too early costs little. The lease may be newer than what a session that is
    /// reading the table finds there.
    pub fn take_back(&mut self, lease: Lease) {
        let known = self.reach(lease.id).find(|slot| self.slots[*slot].id == lease.id);
        if known.is_none_or(|slot| lease.until < self.slots[slot].until) {
            self.put(lease, true);
        }
    }

    /// Adds a lease that was published, or the new end of one that is known.
    pub fn add(&mut self, lease: Lease) {
        self.put(lease, true);
    }

    fn put(&mut self, lease: Lease, fresh: bool) {
        let known = self.reach(lease.id).find(|slot| self.slots[*slot].id == lease.id);
        let free = || self.reach(lease.id).find(|slot| self.slots[*slot].id == 0);
        match known.or_else(free) {
            Some(slot) => {
                (self.slots[slot], self.fresh[slot]) = (lease, fresh);
                self.next = self.next.min(lease.until);
            }
            None => {
                let last = self.reach(lease.id).max_by_key(|slot| self.slots[*slot].until);
                match last.filter(|slot| self.slots[*slot].until > lease.until) {
                    Some(slot) => {
                        let left_out = std::mem::replace(&mut self.slots[slot], lease);
                        self.fresh[slot] = fresh;
                        self.next = self.next.min(lease.until);
                        self.add_unknown(left_out.until);
                    }
                    None => self.add_unknown(lease.until),
                }
            }
        }
    }

    /// Removes a lease. If the task has another one by now, that one stays, because transactions may publish in another
    /// order than they committed.
    pub fn remove(&mut self, lease: Lease) {
        let known = self.reach(lease.id).find(|slot| self.slots[*slot] == lease);
        if let Some(slot) = known {
            self.slots[slot].id = 0;
        }
    }

    /// Removes leases that have expired, as many as fit into `ids`; returns how many.
    pub fn take_expired(&mut self, now: i64, ids: &mut [i64]) -> usize {
        if self.next > now {
            return 0;
        }
        let mut taken = 0;
        self.next = NEVER;
        for slot in self.slots.iter_mut().filter(|slot| slot.id != 0) {
            if slot.until <= now && taken < ids.len() {
                ids[taken] = slot.id;
                taken += 1;
                slot.id = 0;
            } else {
                self.next = self.next.min(slot.until);
            }
        }
        taken
    }

    /// Whether the end of this lease will be noticed in time.
    #[cfg(test)]
    pub fn knows(&self, lease: Lease) -> bool {
        let slot = self.reach(lease.id).map(|slot| self.slots[slot]).find(|slot| slot.id == lease.id);
        self.unknown <= lease.until
            || self.next <= lease.until && slot.is_some_and(|slot| slot.until <= lease.until)
    }

    fn reach(&self, id: i64) -> impl Iterator<Item = usize> + use<N> {
        // Ids are consecutive, and so are their slots.
        let own = id as usize;
        (0..REACH).map(move |step| own.wrapping_add(step) % N)
    }
}
