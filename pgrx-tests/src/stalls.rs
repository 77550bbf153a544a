//! When the machine itself stood still. A virtual machine can be suspended for minutes, and nothing is on time then.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A thread that only sleeps is never late by more, however many others want the processors.
const STALL: Duration = Duration::from_secs(1);

/// The stalls since [`watch`] was called first.
pub struct Stalls {
    began: (Instant, SystemTime),
    seen: Mutex<Seen>,
}

struct Seen {
    /// When the watching thread last ran.
    last: Instant,
    stalls: Vec<(Instant, Instant)>,
}

/// Watches from the first call to the end of the process.
pub fn watch() -> &'static Stalls {
    static WATCHED: OnceLock<Stalls> = OnceLock::new();
    WATCHED.get_or_init(|| {
        std::thread::spawn(|| watch().note());
        let now = Instant::now();
        let seen = Mutex::new(Seen { last: now, stalls: Vec::new() });
        Stalls { began: (now, SystemTime::now()), seen }
    })
}

impl Stalls {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes stalls for ever.
    fn note(&self) {
        loop {
            std::thread::sleep(Duration::from_millis(10));
            let mut seen = self.seen();
            let (before, now) = (seen.last, Instant::now());
            if now - before > STALL {
                seen.stalls.push((before, now));
            }
            seen.last = now;
        }
    }

    /// For how long the machine stood still between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen();
        // One that is just over, and that the watching thread has not noted yet.
        let now = Instant::now();
        let current = (now.saturating_duration_since(seen.last) > STALL).then_some((seen.last, now));
        let stalls = seen.stalls.iter().copied().chain(current);
        stalls.map(|(began, ended)| to.min(ended).saturating_duration_since(from.max(began))).sum()
    }

    /// The moment of a time of the server, in seconds since 1970.
    pub fn moment(&self, seconds: f64) -> Instant {
        let began = self.began.1.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
        self.began.0 + Duration::from_secs_f64((seconds - began).max(0.0))
    }
}

/// How long it took from one moment to the other, without the time in which the machine stood still.
pub fn took(from: Instant, to: Instant) -> Duration {
    to.saturating_duration_since(from).saturating_sub(watch().between(from, to))
}

/// The same until now.
pub fn since(from: Instant) -> Duration {
    took(from, Instant::now())
}

/// Time that a process lost through no fault of its own: the machine stood still, or other processes used the processors
/// while it was ready to run. What must happen within seconds may be late by so much on a busy machine.
pub struct Excuse {
    pid: i32,
    began: Instant,
    waited: Duration,
}

impl Excuse {
    /// From now on, for a process of this machine.
    pub fn of(pid: i32) -> Self {
        watch();
        Self { pid, began: Instant::now(), waited: waited(pid) }
    }

    /// The time lost so far.
    pub fn so_far(&self) -> Duration {
        waited(self.pid).saturating_sub(self.waited) + watch().between(self.began, Instant::now())
    }
}

/// For how long a process was ready to run and had no processor; zero for one that has ended.
fn waited(pid: i32) -> Duration {
    schedstat(pid, 1)
}

/// For how long a process had a processor. Unlike the time that passes, it does not depend on what else the machine does,
/// nor on how long it takes to wake a process on another processor.
pub fn processor_time(pid: i32) -> Duration {
    schedstat(pid, 0)
}

/// A field of what Linux counts for a process, in nanoseconds; zero where there is no such file.
fn schedstat(pid: i32, field: usize) -> Duration {
    let counted = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let nanoseconds = counted.split_whitespace().nth(field).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}
