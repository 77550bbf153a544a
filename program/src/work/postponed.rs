//! Outcomes that the server does not take now and that are reported again later, so that they do not delay the others.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::report::Report;

const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Postponed {
    reports: Vec<(Instant, Report)>,
    /// None is due earlier, because the server has just refused one as it probably refuses all.
    rests_until: Option<Instant>,
}

impl Postponed {
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Keeps a report for a pause that grows each time.
    pub fn add(&mut self, mut report: Report) {
        report.pause = (report.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.reports.push((Instant::now() + report.pause, report));
    }

    /// Tries none for a while, so that a server that refuses all has little to do.
    pub fn rest(&mut self) {
        self.rests_until = Some(Instant::now() + SHORTEST_PAUSE);
    }

    /// Waits until a report is due.
    pub async fn due(&self) {
        match self.reports.iter().map(|(due, _)| *due).min() {
            Some(due) => sleep_until(self.rests_until.map_or(due, |end| end.max(due))).await,
            None => std::future::pending().await,
        }
    }

    /// Removes a report that is due.
    pub fn take(&mut self) -> Option<Report> {
        let now = Instant::now();
        if self.rests_until.is_some_and(|end| end > now) {
            return None;
        }
        let index = self.reports.iter().position(|(due, _)| *due <= now)?;
        Some(self.reports.remove(index).1)
    }

    /// Makes all due, because the worker is ending.
    pub fn hurry(&mut self) {
        self.reports.iter_mut().for_each(|(due, _)| *due = Instant::now());
    }
}
