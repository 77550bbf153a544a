//! The phases of a worker's end, and the signals that begin it.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What the worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It claims tasks.
    Working,
    /// It claims nothing more, and lets handlers finish.
    Draining,
    /// Handlers are asked to stop.
    Stopping,
    /// Handlers are killed.
    Killing,
    /// All outcomes are reported, or cannot be.
    Reported,
}

/// The current phase. It only moves forward.
pub struct Phases {
    sender: watch::Sender<Phase>,
}

impl Phases {
    pub fn new() -> Self {
        Self { sender: watch::Sender::new(Phase::Working) }
    }

    pub fn now(&self) -> Phase {
        *self.sender.borrow()
    }

    pub fn advance(&self, to: Phase) {
        self.sender.send_if_modified(|phase| {
            let moved = *phase < to;
            *phase = to.max(*phase);
            moved
        });
    }

    /// Waits until a phase has been reached.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.sender.subscribe();
        // The sender lives as long as this value.
        let _ = receiver.wait_for(|now| *now >= phase).await;
    }
}

/// The first SIGTERM or SIGINT begins the end, and the second one kills what still runs.
pub async fn signals(phases: &Phases) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    for phase in [Phase::Draining, Phase::Killing] {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        phases.advance(phase);
    }
    std::future::pending().await
}
