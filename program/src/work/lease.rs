//! The leases that this worker holds, and how a handler learns that it should stop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Why a handler should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// queue.cancel was called.
    Cancelled,
    /// The lease is gone, or has run out by this machine's clock.
    Lost,
    /// The worker is ending.
    Shutdown,
    /// The handler took longer than --timeout.
    TimedOut,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
            Self::Shutdown => "shutdown",
            Self::TimedOut => "timed out",
        }
    }
}

/// The lease of one attempt.
pub struct Lease {
    pub id: i64,
    pub token: i64,
    pub queue: String,
    /// When it runs out, by this machine's monotonic clock. Never later than on the server, because it is counted from
    /// before the statement was sent.
    until: Cell<Instant>,
    /// The longest time that the server has granted. A timeout of the task shortens the last ones.
    longest: Cell<Duration>,
    stop: watch::Sender<Option<Reason>>,
}

impl Lease {
    pub fn new(id: i64, token: i64, queue: String, sent: Instant, length: Duration) -> Rc<Self> {
        let (until, longest) = (Cell::new(sent + length), Cell::new(length));
        Rc::new(Self { id, token, queue, until, longest, stop: watch::Sender::new(None) })
    }

    pub fn extended(&self, sent: Instant, length: Duration) {
        self.until.set(sent + length);
        self.longest.set(length.max(self.longest.get()));
    }

    /// Asks the handler to stop. The first reason counts.
    pub fn stop(&self, reason: Reason) {
        self.stop.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(reason);
            first
        });
    }

    pub fn stopped(&self) -> Option<Reason> {
        *self.stop.borrow()
    }

    /// Waits until the handler should stop, also because the lease has run out and could not be extended.
    pub async fn reason(&self) -> Reason {
        let mut receiver = self.stop.subscribe();
        loop {
            let until = self.until.get();
            tokio::select! {
                changed = receiver.wait_for(Option::is_some) => {
                    if let Some(reason) = changed.ok().and_then(|reason| *reason) {
                        return reason;
                    }
                }
                () = tokio::time::sleep_until(until) => {
                    if self.until.get() <= Instant::now() {
                        self.stop(Reason::Lost);
                    }
                }
            }
        }
    }
}

/// The leases from their claim until their acknowledgement.
#[derive(Default)]
pub struct Leases {
    held: RefCell<BTreeMap<(i64, i64), Rc<Lease>>>,
    pub added: Notify,
    pub removed: Notify,
}

impl Leases {
    pub fn add(&self, lease: &Rc<Lease>) {
        let mut held = self.held.borrow_mut();
        // This worker has claimed a task again whose earlier attempt still runs here: that one has lost its lease. Answers of
        // the server about both name the task alone.
        held.range((lease.id, i64::MIN)..(lease.id, lease.token))
            .for_each(|(_, earlier)| earlier.stop(Reason::Lost));
        held.insert((lease.id, lease.token), Rc::clone(lease));
        drop(held);
        self.added.notify_one();
    }

    pub fn remove(&self, lease: &Lease) {
        self.held.borrow_mut().remove(&(lease.id, lease.token));
        self.removed.notify_one();
    }

    pub fn count(&self) -> usize {
        self.held.borrow().len()
    }

    pub fn all(&self) -> Vec<Rc<Lease>> {
        self.held.borrow().values().cloned().collect()
    }

    /// Those that have not been lost.
    pub fn to_extend(&self) -> Vec<Rc<Lease>> {
        let mut leases = self.all();
        leases.retain(|lease| lease.stopped() != Some(Reason::Lost));
        leases
    }

    /// A third of the shortest lease.
    pub fn third(&self) -> Option<Duration> {
        let shortest = self.held.borrow().values().map(|lease| lease.longest.get()).min();
        shortest.map(|shortest| (shortest / 3).max(Duration::from_millis(50)))
    }
}
