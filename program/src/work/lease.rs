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
    until: watch::Sender<Instant>,
    /// The time that the server has granted last, and the longest.
    length: Cell<Duration>,
    longest: Cell<Duration>,
    stop: watch::Sender<Option<Reason>>,
    /// Whether the handler has ended, so that the lease is held only until its outcome is reported.
    pub handled: Cell<bool>,
    /// How often, one after the other, the server has refused to extend it, and whether the log says so.
    pub refusals: Cell<u32>,
    pub is_refusal_logged: Cell<bool>,
}

impl Lease {
    pub fn new(id: i64, token: i64, queue: String, sent: Instant, length: Duration) -> Rc<Self> {
        let (until, stop) = (watch::Sender::new(sent + length), watch::Sender::new(None));
        // The claim may have waited.
        let length = (sent + length).saturating_duration_since(Instant::now()).min(length);
        Rc::new(Self {
            id,
            token,
            queue,
            until,
            length: length.into(),
            longest: length.into(),
            stop,
            handled: Cell::default(),
            refusals: Cell::default(),
            is_refusal_logged: Cell::default(),
        })
    }

    /// Whether it has run out by this machine's clock.
    pub fn has_ended(&self) -> bool {
        *self.until.borrow() <= Instant::now()
    }

    pub fn extended(&self, sent: Instant, length: Duration) {
        // The handler is woken only if the lease ends earlier than it knows.
        self.until.send_if_modified(|until| std::mem::replace(until, sent + length) > *until);
        self.length.set(length);
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
        let (mut stop, mut until) = (self.stop.subscribe(), self.until.subscribe());
        loop {
            let end = *until.borrow_and_update();
            tokio::select! {
                changed = stop.wait_for(Option::is_some) => {
                    if let Some(reason) = changed.ok().and_then(|reason| *reason) {
                        return reason;
                    }
                }
                _ = until.changed() => {}
                () = tokio::time::sleep_until(end) => {
                    if self.has_ended() {
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

    /// Those whose handlers still run.
    pub fn running(&self) -> Vec<Rc<Lease>> {
        let mut leases = self.all();
        leases.retain(|lease| !lease.handled.get());
        leases
    }

    /// Those that have not been lost.
    pub fn to_extend(&self) -> Vec<Rc<Lease>> {
        let mut leases = self.all();
        leases.retain(|lease| lease.stopped() != Some(Reason::Lost));
        leases
    }

    /// A third of the shortest lease. The last leases of a task with a timeout are short, which is no reason to extend all of them
    /// many times a second.
    pub fn third(&self) -> Option<Duration> {
        const SOONEST: Duration = Duration::from_secs(1);
        let third = |lease: &Rc<Lease>| (lease.length.get() / 3).max(SOONEST).min(lease.longest.get() / 3);
        let shortest = self.held.borrow().values().map(third).min();
        shortest.map(|shortest| shortest.max(Duration::from_millis(50)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_is_stopped_at_the_end_of_a_lease_that_became_shorter() {
        let now = Instant::now();
        let lease = Lease::new(1, 1, "mail".to_owned(), now, Duration::from_secs(3600));
        let shorten = async {
            tokio::task::yield_now().await;
            lease.extended(now, Duration::from_millis(10));
            std::future::pending::<()>().await;
        };
        let limit = Duration::from_secs(60);
        let reason = tokio::select! {
            reason = tokio::time::timeout(limit, lease.reason()) => reason,
            () = shorten => unreachable!(),
        };
        assert_eq!(reason.ok(), Some(Reason::Lost));
    }

    #[test]
    fn a_lease_whose_outcome_waits_for_its_report_has_no_running_handler() {
        let lease = |id| Lease::new(id, 1, "mail".to_owned(), Instant::now(), Duration::from_secs(60));
        let (leases, ended) = (Leases::default(), lease(1));
        leases.add(&ended);
        leases.add(&lease(2));
        ended.handled.set(true);
        assert_eq!(leases.running().iter().map(|lease| lease.id).collect::<Vec<_>>(), [2]);
        assert_eq!(leases.count(), 2);
    }

    #[test]
    fn a_shorter_lease_is_extended_more_often() {
        let (now, seconds) = (Instant::now(), Duration::from_secs);
        let (leases, lease) = (Leases::default(), Lease::new(1, 1, "mail".to_owned(), now, seconds(60)));
        leases.add(&lease);
        // A new lease is shorter by the time that its claim took.
        assert!(leases.third().is_some_and(|third| third > seconds(10) && third <= seconds(20)));
        lease.extended(now, seconds(6));
        assert_eq!(leases.third(), Some(seconds(2)));
        // The last of a task with a timeout.
        lease.extended(now, Duration::from_millis(1));
        assert_eq!(leases.third(), Some(seconds(1)));
    }
}
