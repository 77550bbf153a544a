//! The leases of one queue, by task, and when the next one expires.

use super::NEVER;

/// A lease: the task, and when it ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The task; 0 in a free place.
    pub id: i64,
    /// When it ends.
    pub until: i64,
}

/// How far from its own place a lease may lie.
const REACH: usize = 32;

/// A hash table of `N` places. Where there is no place near its own, the lease that ends last gives way: it is
/// only remembered by the time at which it ends, when somebody has to look into the table of tasks. So a short
/// lease has a place however many long ones there are.
#[repr(C)]
pub struct Leases<const N: usize> {
    places: [Lease; N],
    /// Whether what is in a place was told while somebody reads the table, and so is newer than what that
    /// one finds.
    told: [bool; N],
    /// No lease in a place ends before this.
    next: i64,
    /// The earliest end of a lease that is in no place.
    unknown: i64,
    /// The same, of those that were told while somebody reads.
    unknown_since: i64,
    /// Tasks may have ended that nobody told of, and that still take up places.
    stale: bool,
}

impl<const N: usize> Leases<N> {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.places.fill(Lease { id: 0, until: 0 });
        (self.next, self.unknown, self.unknown_since, self.stale) = (NEVER, NEVER, NEVER, false);
    }

    /// No lease ends before this.
    pub fn next(&self) -> i64 {
        self.next.min(self.unknown)
    }

    /// Whether a lease has ended by now.
    pub fn any_ended(&mut self, now: i64) -> bool {
        if self.next <= now {
            // Those that were removed since count no more.
            let ends = self.places.iter().filter(|place| place.id != 0).map(|place| place.until);
            self.next = ends.min().unwrap_or(NEVER);
        }
        self.next() <= now
    }

    /// The earliest end of a lease of which only that is known.
    pub fn unknown(&self) -> i64 {
        self.unknown
    }

    /// A lease ends at `until`, and that is all there is to know.
    pub fn add_unknown(&mut self, until: i64) {
        self.unknown = self.unknown.min(until);
        self.unknown_since = self.unknown_since.min(until);
    }

    /// Somebody begins to read the table.
    pub fn begin_reading(&mut self) {
        self.told.fill(false);
        self.unknown_since = NEVER;
    }

    /// Tasks ended, and that is all there is to know.
    pub fn remove_unknown(&mut self) {
        self.stale = true;
    }

    /// The leases that were in no place when the reading of the whole table began will be learned from it;
    /// all of them, where that makes room. Returns the earliest end of those.
    pub fn forget_unknown(&mut self) -> i64 {
        let forgotten = std::mem::replace(&mut self.unknown, self.unknown_since);
        if std::mem::take(&mut self.stale) {
            let old = self.places.iter_mut().zip(&self.told).filter(|(_, told)| !**told);
            old.for_each(|(place, _)| place.id = 0);
        }
        forgotten
    }

    /// Notes a lease that was read in the table, unless something newer is known.
    pub fn learn(&mut self, lease: Lease) {
        let known = self.reach(lease.id).find(|place| self.places[*place].id == lease.id);
        if known.is_none_or(|place| !self.told[place]) {
            self.put(lease, false);
        }
    }

    /// Takes back one that [`Leases::take_expired`] gave out and that did not come to its end. Of two ends the
    /// earlier counts: looking too early costs little, and finds the right one. The lease may be newer than what a
    /// session that is reading the table finds there.
    pub fn take_back(&mut self, lease: Lease) {
        let known = self.reach(lease.id).find(|place| self.places[*place].id == lease.id);
        if known.is_none_or(|place| lease.until < self.places[place].until) {
            self.put(lease, true);
        }
    }

    /// Notes a lease that was told, or the new end of one that is known.
    pub fn add(&mut self, lease: Lease) {
        self.put(lease, true);
    }

    fn put(&mut self, lease: Lease, told: bool) {
        let known = self.reach(lease.id).find(|place| self.places[*place].id == lease.id);
        let free = || self.reach(lease.id).find(|place| self.places[*place].id == 0);
        match known.or_else(free) {
            Some(place) => {
                (self.places[place], self.told[place]) = (lease, told);
                self.next = self.next.min(lease.until);
            }
            None => {
                let last = self.reach(lease.id).max_by_key(|place| self.places[*place].until);
                match last.filter(|place| self.places[*place].until > lease.until) {
                    Some(place) => {
                        let left_out = std::mem::replace(&mut self.places[place], lease);
                        self.told[place] = told;
                        self.next = self.next.min(lease.until);
                        self.add_unknown(left_out.until);
                    }
                    None => self.add_unknown(lease.until),
                }
            }
        }
    }

    /// A task no longer runs with this lease. If it has another one by now, that one stays: commits may be
    /// told in another order than they were made.
    pub fn remove(&mut self, lease: Lease) {
        let known = self.reach(lease.id).find(|place| self.places[*place] == lease);
        if let Some(place) = known {
            self.places[place].id = 0;
        }
    }

    /// Takes out leases that ended, as many as fit into `ids`; returns how many.
    pub fn take_expired(&mut self, now: i64, ids: &mut [i64]) -> usize {
        if self.next > now {
            return 0;
        }
        let mut taken = 0;
        self.next = NEVER;
        for place in self.places.iter_mut().filter(|place| place.id != 0) {
            if place.until <= now && taken < ids.len() {
                ids[taken] = place.id;
                taken += 1;
                place.id = 0;
            } else {
                self.next = self.next.min(place.until);
            }
        }
        taken
    }

    /// Whether the end of this lease will be noticed in time.
    #[cfg(test)]
    pub fn knows(&self, lease: Lease) -> bool {
        let place = self.reach(lease.id).map(|place| self.places[place]).find(|place| place.id == lease.id);
        self.unknown <= lease.until
            || self.next <= lease.until && place.is_some_and(|place| place.until <= lease.until)
    }

    fn reach(&self, id: i64) -> impl Iterator<Item = usize> + use<N> {
        // Ids come one after the other, and so do their places.
        let own = id as usize;
        (0..REACH).map(move |step| own.wrapping_add(step) % N)
    }
}
