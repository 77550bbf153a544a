//! When the machine itself stood still. A virtual machine can be suspended for minutes, and nothing is on time then.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// A thread that only sleeps is never late by more, however many others want the processors.
const STALL: Duration = Duration::from_secs(1);

/// The stalls since [`Stalls::watch`].
pub struct Stalls {
    stalls: Mutex<Vec<(Instant, Instant)>>,
    began: (Instant, SystemTime),
}

impl Stalls {
    /// Watches until it is dropped.
    pub fn watch() -> Arc<Self> {
        let stalls = Arc::new(Self { stalls: Mutex::default(), began: (Instant::now(), SystemTime::now()) });
        let watched = Arc::downgrade(&stalls);
        std::thread::spawn(move || {
            let mut before = Instant::now();
            while let Some(stalls) = watched.upgrade() {
                let now = Instant::now();
                if now - before > STALL {
                    stalls.stalls.lock().expect("no panic").push((before, now));
                }
                before = now;
                drop(stalls);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        stalls
    }

    /// For how long the machine stood still between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        let stalls = self.stalls.lock().expect("no panic");
        stalls.iter().map(|(began, ended)| to.min(*ended).saturating_duration_since(from.max(*began))).sum()
    }

    /// The same, from its beginning on.
    pub fn total(&self) -> Duration {
        self.between(self.began.0, Instant::now())
    }

    /// The moment of a time of the server, in seconds since 1970.
    pub fn moment(&self, seconds: f64) -> Instant {
        let began = self.began.1.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
        self.began.0 + Duration::from_secs_f64((seconds - began).max(0.0))
    }
}
