//! Reports how attempts ended, from a connection of its own.
//!
//! Everything that has gathered while the previous report was under way goes into the next one, so that a busy worker needs
//! few statements and an idle one reports at once.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::types::Type;

use super::Context;
use super::lease::Lease;
use super::link::Link;
use super::outcome::{Failed, Outcome};
use crate::connect::Session;
use crate::failure::Failure;

const ANSWER: Duration = Duration::from_secs(30);
/// The largest number and size of what one report contains.
const MOST: usize = 1000;
const LARGEST: usize = 8 * 1024 * 1024;
/// How often a report is repeated that fails although the connection works.
const ATTEMPTS: u32 = 10;

const COMPLETE: &str = "SELECT * FROM queue.complete_many($1, $2, $3::text[]::jsonb[])";
const FAIL: &str =
    "SELECT id FROM queue.fail_many($1, $2, $3, make_interval(secs => $4), $5, $6::text[]::jsonb[])";
const RELEASE: &str = "SELECT * FROM queue.release_many($1, $2, make_interval(secs => $3))";
const CONFIRM: &str = "SELECT queue.confirm_cancel($1, $2)";

/// The end of one attempt.
pub struct Report {
    pub lease: Rc<Lease>,
    pub outcome: Outcome,
}

impl Report {
    fn size(&self) -> usize {
        match &self.outcome {
            Outcome::Done(result) => result.as_ref().map_or(0, String::len),
            Outcome::Failed(failed) => failed.error.len(),
            _ => 0,
        }
    }
}

/// Runs until the last sender is gone, and everything is reported.
pub async fn run(context: Rc<Context>, mut reports: UnboundedReceiver<Report>) {
    let mut link = Link::new(&context);
    let mut left = Vec::new();
    loop {
        if left.is_empty() {
            let Some(report) = reports.recv().await else { return };
            left.push(report);
        }
        while let Ok(report) = reports.try_recv() {
            left.push(report);
        }
        let batch = take_batch(&mut left);
        report_all(&mut link, &context, batch).await;
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

async fn report_all(link: &mut Link, context: &Context, batch: Vec<Report>) {
    let mut batches = vec![batch];
    let mut attempts = 0;
    while let Some(mut batch) = batches.pop() {
        let failure = match link.run(ANSWER, async |session: &Session| send(session, &batch).await).await {
            Ok(accepted) => {
                link.works();
                for report in &batch {
                    if !accepted.contains(&report.lease.id) && report.outcome != Outcome::Nothing {
                        // Expected after a command ended the task itself, and after the lease was lost.
                        let fields = json!({"task": report.lease.id, "outcome": report.outcome.name()});
                        context.log.debug("the report was refused", fields);
                    }
                    context.leases.remove(&report.lease);
                }
                continue;
            }
            Err(failure) => failure,
        };
        let is_about_data = ["22", "54", "23"].iter().any(|class| failure.is(class));
        attempts += u32::from(!failure.is_of_the_connection());
        let is_hopeless = is_about_data || attempts > ATTEMPTS;
        if batch.len() > 1 && (is_about_data || attempts >= 2) {
            // One of them is refused for what it contains, or all take longer than a statement may. None must suffer for the
            // others.
            let half = batch.split_off(batch.len() / 2);
            batches.extend([half, batch]);
            continue;
        }
        if is_hopeless && batch.iter().any(|report| matches!(report.outcome, Outcome::Done(Some(_)))) {
            for report in &mut batch {
                report.outcome =
                    Outcome::failed(format!("the server refused the result: {}", failure.message));
            }
            attempts = 0;
            batches.push(batch);
            continue;
        }
        if is_hopeless {
            for report in &batch {
                let fields = json!({"task": report.lease.id, "error": failure.to_string()});
                context.log.error("an outcome could not be reported; the lease will run out", fields);
                context.leases.remove(&report.lease);
            }
            continue;
        }
        let pause = link.failed(&failure);
        tokio::time::sleep(pause).await;
        batches.push(batch);
    }
}

/// Reports a batch, and returns the ids of the tasks that the server accepted.
async fn send(session: &Session, batch: &[Report]) -> Result<HashSet<i64>, Failure> {
    let mut accepted = HashSet::new();
    let (mut done, mut cancelled) = (Vec::new(), Vec::new());
    let mut failed: BTreeMap<_, Vec<(&Lease, &Failed)>> = BTreeMap::new();
    let mut released: BTreeMap<Duration, Vec<&Lease>> = BTreeMap::new();
    for Report { lease, outcome } in batch {
        match outcome {
            Outcome::Done(result) => done.push((&**lease, result)),
            Outcome::Failed(how) => {
                failed.entry((how.retry_in, how.permanent)).or_default().push((lease, how));
            }
            Outcome::Released(delay) => released.entry(*delay).or_default().push(lease),
            Outcome::Cancelled => cancelled.push(lease),
            Outcome::Nothing => {}
        }
    }
    if !done.is_empty() {
        let (ids, tokens) = keys(done.iter().map(|(lease, _)| *lease));
        let results: Vec<&Option<String>> = done.iter().map(|(_, result)| *result).collect();
        let results = (&results as _, Type::TEXT_ARRAY);
        let rows =
            session.rows(COMPLETE, &[(&ids, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY), results]).await?;
        accepted.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    }
    for ((retry_in, permanent), attempts) in failed {
        let (ids, tokens) = keys(attempts.iter().map(|(lease, _)| *lease));
        let errors: Vec<&str> = attempts.iter().map(|(_, how)| how.error.as_str()).collect();
        let details: Vec<Option<String>> =
            attempts.iter().map(|(_, how)| how.details.as_ref().map(Value::to_string)).collect();
        let retry_in = retry_in.map(|delay| delay.as_secs_f64());
        let arguments = [
            (&ids as _, Type::INT8_ARRAY),
            (&tokens as _, Type::INT8_ARRAY),
            (&errors as _, Type::TEXT_ARRAY),
            (&retry_in as _, Type::FLOAT8),
            (&permanent as _, Type::BOOL),
            (&details as _, Type::TEXT_ARRAY),
        ];
        accepted.extend(session.rows(FAIL, &arguments).await?.iter().map(|row| row.get::<_, i64>(0)));
    }
    for (delay, leases) in released {
        let (ids, tokens) = keys(leases.into_iter());
        let seconds = delay.as_secs_f64();
        let rows = session
            .rows(RELEASE, &[(&ids, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY), (&seconds, Type::FLOAT8)])
            .await?;
        accepted.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    }
    for lease in cancelled {
        match session.rows(CONFIRM, &[(&lease.id, Type::INT8), (&lease.token, Type::INT8)]).await {
            Ok(_) => drop(accepted.insert(lease.id)),
            Err(failure) if failure.is("QX") => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(accepted)
}

fn keys<'a>(leases: impl Iterator<Item = &'a Lease>) -> (Vec<i64>, Vec<i64>) {
    leases.map(|lease| (lease.id, lease.token)).unzip()
}
