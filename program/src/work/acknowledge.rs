//! Reports how attempts ended, from a connection of its own.
//!
//! Everything that has gathered while the previous report was under way goes into the next one, so that a busy worker needs
//! few statements and an idle one reports at once.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Context;
use super::lease::Reason;
use super::link::Link;
use super::outcome::Outcome;
use super::postponed::Postponed;
use super::report::{Report, send};
use super::rights;
use crate::connect::Session;
use crate::failure::Failure;

const ANSWER: Duration = Duration::from_secs(30);
/// The largest number and size of what one report contains.
const MOST: usize = 1000;
const LARGEST: usize = 8 * 1024 * 1024;
/// How many statements may fail in a row, for other reasons than what they contain, until the rest of a batch is postponed.
const MOST_IN_VAIN: usize = 50;
/// How often a report is repeated that the server refuses alone for what it contains.
const REFUSALS: u32 = 10;

/// Runs until the last sender is gone, and everything is reported.
pub async fn run(context: Rc<Context>, mut link: Link, mut reports: UnboundedReceiver<Report>) {
    let (mut left, mut postponed, mut open) = (Vec::new(), Postponed::default(), true);
    loop {
        if left.is_empty() {
            tokio::select! {
                report = reports.recv(), if open => match report {
                    Some(report) => left.push(report),
                    None => {
                        open = false;
                        postponed.hurry();
                    }
                },
                () = postponed.due(), if !postponed.is_empty() => {}
                else => return,
            }
        }
        while let Ok(report) = reports.try_recv() {
            left.push(report);
        }
        let batch = take_batch(&mut left);
        report_all(&mut link, &context, batch, &mut postponed).await;
        // One at a time, so that others wait for one lock at most.
        if let Some(report) = postponed.take()
            && !report_all(&mut link, &context, vec![report], &mut postponed).await
        {
            postponed.rest();
        }
    }
}

/// Takes the first reports, no two of them about the same task: it can have been lost, claimed again, and ended twice.
fn take_batch(left: &mut Vec<Report>) -> Vec<Report> {
    let (mut batch, mut rest) = (Vec::new(), Vec::new());
    let (mut seen, mut size) = (HashSet::new(), 0);
    for report in left.drain(..) {
        size += report.size();
        let fits = batch.is_empty() || (batch.len() < MOST && size <= LARGEST);
        if fits && seen.insert(report.lease.id) { batch.push(report) } else { rest.push(report) }
    }
    *left = rest;
    batch
}

/// Reports a batch, and divides it until those that the server does not take are alone: none must suffer for the others. Returns
/// false if the server has refused the last one for other reasons than what it contains.
async fn report_all(
    link: &mut Link,
    context: &Context,
    batch: Vec<Report>,
    postponed: &mut Postponed,
) -> bool {
    let mut batches = vec![batch];
    let mut in_vain = 0;
    while let Some(batch) = batches.pop() {
        if batch.is_empty() {
            continue;
        }
        let mut accepted = HashSet::new();
        let sent =
            link.run(ANSWER, async |session: &Session| send(session, &batch, &mut accepted).await).await;
        let Err(failure) = sent else {
            link.works();
            finish(link, context, &batch, &accepted).await;
            in_vain = 0;
            continue;
        };
        // The statements before the one that failed have taken effect.
        let (reported, mut batch): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|report| accepted.contains(&report.lease.id));
        reported.iter().for_each(|report| context.leases.remove(&report.lease));
        let is_refused = failure.is_of_the_values();
        let is_locked = failure.is("55P03");
        // A report that the server does not take is postponed, and must not delay the others.
        if failure.is_of_the_connection() {
            tokio::time::sleep(link.failed(&failure)).await;
        } else {
            link.works();
            in_vain += usize::from(!(is_refused || is_locked));
        }
        if in_vain >= MOST_IN_VAIN {
            let fields = json!({"tasks": batch.len(), "error": failure.logged()});
            context.log.warn("outcomes cannot be reported now; trying again", fields);
            batch.into_iter().for_each(|report| postponed.add(report));
        } else if batch.len() > 1 {
            // Each part with a locked task would wait for its lock once more.
            let size = if is_locked { 1 } else { batch.len().div_ceil(2) };
            while batch.len() > size {
                batches.push(batch.split_off(batch.len() - size));
            }
            batches.push(batch);
        } else if failure.is_of_the_connection() {
            batches.push(batch);
        } else if let Some(report) = batch.pop() {
            batches
                .extend(not_taken(context, report, &failure, is_refused, postponed).map(|other| vec![other]));
        }
    }
    if in_vain > 0 {
        link.renew();
    }
    in_vain == 0
}

/// Decides what becomes of a report that the server has not taken alone. Returns what is reported in its place.
fn not_taken(
    context: &Context,
    mut report: Report,
    failure: &Failure,
    is_refused: bool,
    postponed: &mut Postponed,
) -> Option<Report> {
    let fields = json!({"task": report.lease.id, "error": failure.logged()});
    if is_refused {
        if let Some(outcome) = report.outcome.replacement(&failure.message) {
            return Some(Report::new(report.lease, outcome));
        }
        report.refusals += 1;
        if report.refusals >= REFUSALS {
            context.log.error("an outcome could not be reported; the lease will run out", fields);
            context.leases.remove(&report.lease);
            return None;
        }
    }
    if report.pause.is_zero() {
        context.log.warn("an outcome cannot be reported now; trying again", fields);
    }
    postponed.add(report);
    None
}

/// Gives up the leases of what was reported.
async fn finish(link: &mut Link, context: &Context, batch: &[Report], accepted: &HashSet<i64>) {
    let refused: Vec<_> = batch.iter().filter(|report| !accepted.contains(&report.lease.id)).collect();
    for report in &refused {
        let fields = json!({"task": report.lease.id, "outcome": report.outcome.name()});
        // Expected after a command has ended the task itself. That a lease was lost is in the log already.
        if matches!(report.outcome, Outcome::Done(_)) || report.lease.stopped() == Some(Reason::Lost) {
            context.log.debug("the report was refused", fields);
        } else {
            context.log.warn("the report was refused: the lease is lost, or the task has ended", fields);
        }
    }
    batch.iter().for_each(|report| context.leases.remove(&report.lease));
    let held =
        refused.iter().map(|report| &*report.lease).filter(|lease| lease.stopped() != Some(Reason::Lost));
    rights::check(link, context, held).await;
}
