//! Extends all leases together, from a connection of its own.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::Context;
use super::claim::length;
use super::lease::{Lease, Reason};
use super::link::Link;
use super::rights;
use super::stop::Phase;
use crate::connect::Session;
use crate::failure::Failure;

// A handler may have locked its task, for example to complete it in a transaction of its own: the others do not wait.
const EXTEND: &str = "SELECT id, extract(epoch FROM lease_until - statement_timestamp())::float8, cancel_requested, extended \
    FROM queue.extend_many($1, $2, make_interval(secs => $3), skip_locked => true)";

/// How many leases one statement extends. The server refuses more than 100,000, and a worker can hold more than that while
/// outcomes cannot be reported.
const MOST: usize = 10_000;
/// How many statements may fail before one succeeds, until the server is taken for the reason, and not the leases.
const MOST_IN_VAIN: usize = 50;

/// Runs until the worker has reported everything. It ends between two heartbeats, so that the last one logs what it has found.
pub async fn run(context: Rc<Context>, mut link: Link) {
    let mut last = Instant::now();
    let mut all_extended = true;
    while context.stop.now() < Phase::Reported {
        let divisor = if all_extended { 1 } else { 4 };
        let every = context.leases.third().map(|third| third.min(context.options.heartbeat) / divisor);
        match every {
            // A new lease can be shorter than the others.
            Some(every) => tokio::select! {
                () = tokio::time::sleep_until(last + every) => {}
                () = context.leases.added.notified() => continue,
                () = context.stop.reached(Phase::Reported) => return,
            },
            // All leases were lost in an outage. No heartbeat finds out that it is over.
            None if link.failures > 0 => tokio::select! {
                () = reconnect(&mut link) => {}
                () = context.stop.reached(Phase::Reported) => return,
            },
            None => {
                tokio::select! {
                    () = context.leases.added.notified() => {}
                    () = context.stop.reached(Phase::Reported) => return,
                }
                last = Instant::now();
                continue;
            }
        }
        let leases = context.leases.to_extend();
        last = Instant::now();
        if leases.is_empty() {
            continue;
        }
        let limit = every.unwrap_or_default().clamp(Duration::from_secs(1), Duration::from_secs(10));
        match extend_all(&mut link, &context, &leases, limit).await {
            Ok(all) => {
                all_extended = all;
                link.works();
            }
            Err(failure) => {
                let pause = link.failed(&failure);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = context.stop.reached(Phase::Reported) => return,
                }
                // The next attempt follows at once.
                let now = Instant::now();
                last = now.checked_sub(every.unwrap_or_default()).unwrap_or(now);
            }
        }
    }
}

async fn reconnect(link: &mut Link) {
    match link.open().await {
        Ok(_) => link.works(),
        Err(failure) => tokio::time::sleep(link.failed(&failure)).await,
    }
}

/// Whether all were extended. The server can refuse one lease of many, as when a trigger of the user raises an error. Then the leases
/// are halved until that one is alone. From then on it is sent by itself, after the others, and it is lost when it ends.
async fn extend_all(
    link: &mut Link,
    context: &Context,
    leases: &[Rc<Lease>],
    limit: Duration,
) -> Result<bool, Failure> {
    let (alone, together): (Vec<_>, Vec<_>) =
        leases.iter().cloned().partition(|lease| lease.refusals.get() > 0);
    // The last one is extended first.
    let mut parts: Vec<&[Rc<Lease>]> = alone.chunks(1).collect();
    parts.extend(together.chunks(MOST));
    let (mut all, mut any, mut in_vain, mut refused) = (true, false, 0, Vec::new());
    while let Some(part) = parts.pop() {
        let failure = match extend(link, context, part, limit).await {
            Ok(extended) => {
                part.iter().for_each(|lease| lease.refusals.set(0));
                all &= extended;
                any = true;
                continue;
            }
            Err(failure) if failure.is_of_the_connection() => return Err(failure),
            Err(failure) => failure,
        };
        in_vain += 1;
        if let [lease] = part {
            let first = lease.refusals.get() == 0;
            refused.push((lease, failure.clone()));
            // As likely, the server has no time for any of them. It would take long to find out.
            if first && failure.is("57014") {
                (any, in_vain) = (false, MOST_IN_VAIN);
            }
        } else {
            let (first, second) = part.split_at(part.len() / 2);
            parts.extend([second, first]);
        }
        if !any && in_vain >= MOST_IN_VAIN {
            refused.iter().for_each(|(lease, _)| lease.refusals.update(|refusals| refusals + 1));
            return Err(failure);
        }
    }
    if !any
        && let Some((_, failure)) = refused.first()
        && !refused.iter().any(|(_, failure)| failure.is_of_the_values())
    {
        return Err(failure.clone());
    }
    for (lease, failure) in refused {
        lease.refusals.update(|refusals| refusals + 1);
        if !lease.is_refusal_logged.replace(true) {
            let fields = json!({"task": lease.id, "error": failure.logged()});
            context.log.warn("the server does not extend the lease", fields);
        }
    }
    Ok(all)
}

async fn extend(
    link: &mut Link,
    context: &Context,
    leases: &[Rc<Lease>],
    limit: Duration,
) -> Result<bool, Failure> {
    let ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
    let length_wanted = context.options.lease.map(|lease| lease.as_secs_f64());
    let (sent, rows) = link
        .run(limit, async |session: &Session| {
            let sent = Instant::now();
            let arguments = [
                (&ids as _, Type::INT8_ARRAY),
                (&tokens as _, Type::INT8_ARRAY),
                (&length_wanted as _, Type::FLOAT8),
            ];
            Ok((sent, session.rows(EXTEND, &arguments).await?))
        })
        .await?;
    let held: BTreeMap<i64, (f64, bool)> =
        rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    let mut gone = Vec::new();
    for lease in leases {
        match held.get(&lease.id) {
            Some((seconds, cancel_requested)) => {
                lease.extended(sent, length(*seconds));
                if *cancel_requested {
                    lease.stop(Reason::Cancelled);
                }
            }
            None => {
                // The report of one whose handler has ended may have been accepted meanwhile.
                if lease.stopped() != Some(Reason::Lost) && !lease.handled.get() {
                    context.log.warn("the lease is lost", json!({"task": lease.id}));
                }
                lease.stop(Reason::Lost);
                gone.push(&**lease);
            }
        }
    }
    rights::check(link, context, gone.into_iter()).await;
    Ok(rows.iter().all(|row| row.get(3)))
}
