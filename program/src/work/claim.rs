//! The connection that claims tasks and waits for them.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::Type;

use super::Context;
use super::lease::Lease;
use super::link::Link;
use super::stop::Phase;
use super::task::Task;
use crate::connect::Session;
use crate::failure::Failure;

/// How long one call of queue.wait lasts.
const WAIT: Duration = Duration::from_secs(20);
/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How long the cancellation of a wait may take.
const CANCEL: Duration = Duration::from_secs(1);

/// The form for one queue is a function of its own.
macro_rules! claim {
    ($queues:literal) => {
        concat!(
            "SELECT id, token, queue, kind, attempt, max_attempts, payload::text, headers::text, \
             extract(epoch FROM lease_until - statement_timestamp())::float8 \
             FROM queue.claim(lease => make_interval(secs => $1), ",
            $queues,
            ", max_tasks => $3, worker => $4)"
        )
    };
}
const CLAIM_ONE: &str = claim!("queue => $2[1]");
const CLAIM_ANY: &str = claim!("queues => $2");
const CALL: &str = "CALL queue.wait(queues => $1, timeout => make_interval(secs => $2), worker => $3)";

/// Claims at most this many tasks, and gives up at this end. A claim that succeeds although it is cancelled returns its tasks:
/// without a worker, their leases would have to run out.
pub async fn claim(
    link: &mut Link,
    context: &Context,
    most: usize,
    end: impl Future<Output = ()>,
) -> Result<Vec<Task>, Failure> {
    let options = &context.options;
    let most = i32::try_from(most).unwrap_or(i32::MAX).min(100_000);
    link.run_until(end, ANSWER, async |session: &Session| {
        let lease = options.lease.map(|lease| lease.as_secs_f64());
        let query = if options.queues.len() == 1 { CLAIM_ONE } else { CLAIM_ANY };
        let sent = Instant::now();
        let rows = session
            .rows(
                query,
                &[
                    (&lease, Type::FLOAT8),
                    (&options.queues, Type::TEXT_ARRAY),
                    (&most, Type::INT4),
                    (&options.name, Type::TEXT),
                ],
            )
            .await?;
        let task = |row: &tokio_postgres::Row| Task {
            lease: Lease::new(row.get(0), row.get(1), row.get(2), sent, length(row.get(8))),
            kind: row.get(3),
            attempt: row.get(4),
            max_attempts: row.get(5),
            payload: row.get(6),
            headers: row.get(7),
        };
        let claimed = rows.len();
        let mut tasks: Vec<Task> = rows.iter().map(task).collect();
        // The claim has waited for a lock. Another worker can have these.
        tasks.retain(|task| !task.lease.has_ended());
        if tasks.len() < claimed {
            let fields = json!({"leases": claimed - tasks.len()});
            context.log.warn(
                "leases ended before the claim was answered; it waited for a lock, or the machine was busy",
                fields,
            );
        }
        Ok(tasks)
    })
    .await
}

/// Waits until there may be a task, or until the worker is to end.
pub async fn wait(link: &mut Link, context: &Rc<Context>) -> Result<(), Failure> {
    let options = &context.options;
    link.run(WAIT + ANSWER, async |session: &Session| {
        let arguments = [
            (&options.queues as _, Type::TEXT_ARRAY),
            (&WAIT.as_secs_f64() as _, Type::FLOAT8),
            (&options.name as _, Type::TEXT),
        ];
        let mut call = pin!(session.rows(CALL, &arguments));
        tokio::select! {
            answer = &mut call => match answer {
                // The server's statement_timeout is shorter than the wait.
                Err(failure) if failure.is("57014") => Ok(()),
                answer => answer.map(drop),
            },
            () = context.stop.reached(Phase::Draining) => {
                session.cancel(CANCEL).await;
                // A pooler would have to close the server connection of a client that leaves during a statement.
                let _ = timeout(CANCEL, call).await;
                Ok(())
            }
        }
    })
    .await
}

/// An interval that the server measured, in seconds.
pub fn length(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::from_secs(u32::MAX.into()))
}
