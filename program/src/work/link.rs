//! A connection that is opened again whenever it is lost, after an exponential pause with full jitter.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::Context;
use crate::connect::Session;
use crate::failure::Failure;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Of one outage: some texts have a number or a time, and differ each time.
const MOST_REASONS: usize = 10;
/// How long the cancellation of a statement may take.
const CANCEL: Duration = Duration::from_secs(1);

/// Counts the connections that do not work, so that each reason of an outage is logged once, and its end.
#[derive(Default)]
pub struct Outage {
    broken: Cell<u32>,
    since: Cell<Option<Instant>>,
    reasons: RefCell<HashSet<String>>,
}

pub struct Link {
    context: Rc<Context>,
    session: Option<Session>,
    /// How often it failed since it last worked.
    pub failures: u32,
    longest_pause: Duration,
}

impl Link {
    pub fn new(context: &Rc<Context>) -> Self {
        Self { context: Rc::clone(context), session: None, failures: 0, longest_pause: LONGEST_PAUSE }
    }

    /// With shorter pauses, for what cannot wait.
    pub fn impatient(context: &Rc<Context>) -> Self {
        Self { longest_pause: Duration::from_secs(1), ..Self::new(context) }
    }

    /// Connects, unless the connection is open.
    pub async fn open(&mut self) -> Result<&Session, Failure> {
        if self.session.as_ref().is_none_or(|session| session.client.is_closed()) {
            self.session = None;
            let context = &self.context;
            self.session = Some(context.server.connect(&context.options.name).await?);
        }
        self.session.as_ref().ok_or_else(|| Failure::new("not connected"))
    }

    /// Runs statements on the connection. A statement that gets no answer for this long is cancelled.
    pub async fn run<T>(
        &mut self,
        limit: Duration,
        statements: impl AsyncFnOnce(&Session) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.run_until(pending(), limit, statements).await
    }

    /// The same. The statements are cancelled at this end, too; if they have succeeded meanwhile, that is the result.
    pub async fn run_until<T>(
        &mut self,
        end: impl Future<Output = ()>,
        limit: Duration,
        statements: impl AsyncFnOnce(&Session) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut end = pin!(end);
        let session = tokio::select! {
            session = self.open() => session?,
            () = &mut end => return Err(Failure::new("the worker ends before it is connected")),
        };
        let late = async {
            tokio::select! {
                () = end => {}
                () = sleep(limit) => {}
            }
        };
        answer(session, late, statements).await
    }

    /// The next statement is on a new connection: the error of the last one may be that of its session, or of one server of several
    /// behind a pooler.
    pub fn renew(&mut self) {
        self.session = None;
    }

    /// Records that the connection works.
    pub fn works(&mut self) {
        if self.failures == 0 {
            return;
        }
        self.failures = 0;
        let outage = &self.context.outage;
        outage.broken.set(outage.broken.get() - 1);
        if outage.broken.get() == 0 {
            outage.reasons.borrow_mut().clear();
            let seconds = outage.since.take().map_or(0.0, |since| since.elapsed().as_secs_f64());
            self.context
                .log
                .info("the server answers again", json!({"after_seconds": (seconds * 10.0).round() / 10.0}));
        }
    }

    /// Records a failure, and returns how long to wait before the next attempt, which is on a new connection: another host may not have
    /// the same error.
    pub fn failed(&mut self, failure: &Failure) -> Duration {
        self.renew();
        let outage = &self.context.outage;
        if self.failures == 0 {
            outage.broken.set(outage.broken.get() + 1);
            if outage.broken.get() == 1 {
                outage.since.set(Some(Instant::now()));
            }
        }
        // One connection can fail by a trigger of the user on some tasks, and then all of them because the server is gone.
        let reason = failure.logged();
        let mut reasons = outage.reasons.borrow_mut();
        if reasons.len() < MOST_REASONS && reasons.insert(reason.clone()) {
            self.context.log.warn("the server cannot be used; trying again", json!({"error": reason}));
        }
        self.failures += 1;
        let ceiling = SHORTEST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(self.longest_pause);
        ceiling.mul_f64(fraction())
    }
}

/// The result of statements, which are cancelled when it is late. Without a cancellation, a statement that waits for a lock
/// would keep its backend and its locks after this program has left, and then take effect.
async fn answer<T>(
    session: &Session,
    late: impl Future<Output = ()>,
    statements: impl AsyncFnOnce(&Session) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let began = Instant::now();
    let mut running = pin!(statements(session));
    tokio::select! {
        biased;
        result = &mut running => return result,
        () = late => {}
    }
    let late = format!("the server did not answer within {:.0?}", began.elapsed());
    session.cancel(CANCEL).await;
    match timeout(CANCEL, running).await {
        Ok(result) => {
            result.map_err(|failure| Failure { message: format!("{late}: {}", failure.message), ..failure })
        }
        Err(_) => {
            session.abort();
            Err(Failure::new(late))
        }
    }
}

/// A random number between 0 and 1.
fn fraction() -> f64 {
    let number = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(number) / f64::from(u32::MAX)
}
