//! The outcome of one attempt, and the statements that report many of them.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;

use super::lease::Lease;
use super::outcome::{Failed, Outcome};
use crate::connect::Session;
use crate::failure::Failure;

/// How long a report waits for locks: together with others, and alone. A task that another transaction has locked must not
/// delay the reports of others for long.
const WAIT: &str = "1s";
const WAIT_ALONE: &str = "50ms";

/// A call that waits for locks for $1 at most. The limit is set before the call, because the call's first argument depends on
/// it.
macro_rules! within {
    ($function:literal, $arguments:literal) => {
        concat!(
            "SELECT e.id FROM (SELECT set_config('lock_timeout', $1, true) AS set OFFSET 0) AS s, LATERAL queue.",
            $function,
            "(CASE WHEN s.set IS NOT NULL THEN $2 END, ",
            $arguments,
            ") AS e (id)"
        )
    };
}
const COMPLETE: &str = within!("complete_many", "$3, $4::text[]::jsonb[]");
const FAIL: &str = within!("fail_many", "$3, $4, make_interval(secs => $5), $6, $7::text[]::jsonb[]");
const RELEASE: &str = within!("release_many", "$3, make_interval(secs => $4)");
const CONFIRM: &str = within!("confirm_cancel", "$3");

/// The end of one attempt.
pub struct Report {
    pub lease: Rc<Lease>,
    pub outcome: Outcome,
    /// How often the server has refused it alone for what it contains.
    pub refusals: u32,
    /// How long it was postponed the last time.
    pub pause: Duration,
}

impl Report {
    pub fn new(lease: Rc<Lease>, outcome: Outcome) -> Self {
        Self { lease, outcome, refusals: 0, pause: Duration::ZERO }
    }

    pub fn size(&self) -> usize {
        match &self.outcome {
            Outcome::Done(result) => result.as_ref().map_or(0, String::len),
            Outcome::Failed(failed) => failed.error.len(),
            _ => 0,
        }
    }
}

/// Reports a batch, and adds the ids of the tasks that the server accepted: also those before a statement that fails.
pub async fn send(session: &Session, batch: &[Report], accepted: &mut HashSet<i64>) -> Result<(), Failure> {
    let wait = if batch.len() > 1 { WAIT } else { WAIT_ALONE };
    let (mut done, mut cancelled) = (Vec::new(), Vec::new());
    let mut failed: BTreeMap<_, Vec<(&Lease, &Failed)>> = BTreeMap::new();
    let mut released: BTreeMap<Duration, Vec<&Lease>> = BTreeMap::new();
    for Report { lease, outcome, .. } in batch {
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
        let arguments = [
            (&wait as _, Type::TEXT),
            (&ids as _, Type::INT8_ARRAY),
            (&tokens as _, Type::INT8_ARRAY),
            (&results as _, Type::TEXT_ARRAY),
        ];
        accepted.extend(session.rows(COMPLETE, &arguments).await?.iter().map(|row| row.get::<_, i64>(0)));
    }
    for ((retry_in, permanent), attempts) in failed {
        let (ids, tokens) = keys(attempts.iter().map(|(lease, _)| *lease));
        let errors: Vec<&str> = attempts.iter().map(|(_, how)| how.error.as_str()).collect();
        let details: Vec<Option<String>> =
            attempts.iter().map(|(_, how)| how.details.as_ref().map(Value::to_string)).collect();
        let retry_in = retry_in.map(|delay| delay.as_secs_f64());
        let arguments = [
            (&wait as _, Type::TEXT),
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
        let arguments = [
            (&wait as _, Type::TEXT),
            (&ids as _, Type::INT8_ARRAY),
            (&tokens as _, Type::INT8_ARRAY),
            (&seconds as _, Type::FLOAT8),
        ];
        accepted.extend(session.rows(RELEASE, &arguments).await?.iter().map(|row| row.get::<_, i64>(0)));
    }
    for lease in cancelled {
        let arguments =
            [(&wait as _, Type::TEXT), (&lease.id as _, Type::INT8), (&lease.token as _, Type::INT8)];
        match session.rows(CONFIRM, &arguments).await {
            Ok(_) => drop(accepted.insert(lease.id)),
            Err(failure) if failure.is("QX") => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn keys<'a>(leases: impl Iterator<Item = &'a Lease>) -> (Vec<i64>, Vec<i64>) {
    leases.map(|lease| (lease.id, lease.token)).unzip()
}
