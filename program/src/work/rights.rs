//! Notices that the worker's role has lost its right on a queue. The server then leaves out the tasks of that queue without an
//! error, as it leaves out those whose lease is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tokio_postgres::types::Type;

use super::Context;
use super::lease::Lease;
use super::link::Link;
use crate::connect::Session;
use crate::failure::Failure;

const ANSWER: Duration = Duration::from_secs(10);
/// Checks the right and returns at once. It changes no task, so its errors are not those of a user's trigger.
const CHECK: &str = "CALL queue.wait(queue => $1, timeout => '0', worker => $2)";

/// Checks a lease in the same way.
const CHECK_LEASE: &str = "SELECT FROM queue.extend_many('{}', '{}', make_interval(secs => $1))";

/// Warns of each queue on which the right is lost, if any of the tasks that the server has left out is in it.
pub async fn check<'a>(link: &mut Link, context: &Context, left_out: impl Iterator<Item = &'a Lease>) {
    let mut queues: BTreeMap<&str, usize> = BTreeMap::new();
    left_out.for_each(|lease| *queues.entry(&lease.queue).or_default() += 1);
    for (queue, tasks) in queues {
        let checked = ask(link, context, queue);
        if let Err(failure) = checked.await
            && failure.is("42501")
        {
            let fields = json!({"queue": queue, "tasks": tasks, "error": failure.brief()});
            context.log.warn("the right on the queue is lost; these tasks will be done again", fields);
        }
    }
}

/// The error of a claim as it can be logged: with the server's message if the same error comes without a task, and otherwise
/// without, because the message can contain a payload.
pub async fn explained(link: &mut Link, context: &Context, failure: Failure) -> Failure {
    if let Some(lease) = context.options.lease {
        let arguments = [(&lease.as_secs_f64() as _, Type::FLOAT8)];
        let checked = link.run(ANSWER, async |session: &Session| session.rows(CHECK_LEASE, &arguments).await);
        if let Err(same) = checked.await
            && same.sqlstate == failure.sqlstate
        {
            return same;
        }
    }
    for queue in &context.options.queues {
        if let Err(same) = ask(link, context, queue).await
            && same.sqlstate == failure.sqlstate
        {
            return same;
        }
    }
    Failure::new(failure.logged())
}

async fn ask(link: &mut Link, context: &Context, queue: &str) -> Result<(), Failure> {
    let arguments = [(&queue as _, Type::TEXT), (&context.options.name as _, Type::TEXT)];
    link.run(ANSWER, async |session: &Session| session.rows(CHECK, &arguments).await.map(drop)).await
}
