//! queue.complete_many

use super::Outcome;
use super::arguments::Arguments;
use super::finish::{Finisher, Step};
use super::rows::Rows;
use crate::fallback::Reason;
use pgrx::prelude::*;

/// Serves the call, or returns why it falls back to SQL.
pub unsafe fn complete_many(arguments: &Arguments) -> Result<Outcome, Reason> {
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        let accepted = finish_all(arguments)?;
        let rows = Rows::new(arguments)?;
        for id in accepted {
            rows.add(&mut [id], &mut [false]);
        }
        Ok(Outcome::Served(rows.done()))
    }
}

/// Finishes the tasks that the first three arguments name; returns the ids of those that were accepted, in the order
/// given.
pub(super) unsafe fn finish_all(arguments: &Arguments) -> Result<Vec<pg_sys::Datum>, Reason> {
    let ids = arguments.array(0)?;
    let tokens = arguments.array(1)?;
    let results = match arguments.get(2) {
        Some(_) => Some(arguments.array(2)?),
        None => None,
    };
    let fits = ids.len() == tokens.len() && results.as_ref().is_none_or(|all| all.len() == ids.len());
    if !fits || ids.len() > 100_000 {
        return Err(Reason::Argument);
    }
    // In the order of ids, so that two batches cannot deadlock.
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_unstable_by_key(|number| ids[*number].value() as i64);
    let repeated = order.windows(2).any(|pair| ids[pair[0]].value() == ids[pair[1]].value());
    if repeated {
        return Err(Reason::Argument);
    }
    let task = |number: usize| (ids[number].value() as i64, tokens[number].value() as i64);
    let mut accepted = vec![false; ids.len()];
    // SAFETY: in a transaction. One snapshot serves all tasks: one that changed meanwhile is read again.
    unsafe {
        let mut finisher = Finisher::open()?;
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        // Before anything is written: the TIDs, and whether the native fast path can finish all of them.
        let mut tids = Vec::with_capacity(order.len());
        let plain = finisher.find(order.iter().map(|number| task(*number)), &mut tids);
        if plain.is_ok() {
            for (number, tid) in order.into_iter().zip(tids) {
                pgrx::check_for_interrupts!();
                point!(FinishNext);
                let ((id, token), result) = (task(number), results.as_ref().map(|results| results[number]));
                let step = match tid {
                    Some(tid) => finisher.finish_at(tid, id, token, result),
                    None => Step::NotRunning,
                };
                accepted[number] = match step {
                    Step::Done => true,
                    Step::NotRunning => false,
                    // It changed while this session waited for its lock: SQL finishes this one.
                    Step::Changed | Step::Fallback(_) => {
                        finisher.flush();
                        finish_in_sql(id, token, result)
                    }
                };
            }
            finisher.flush();
        }
        pg_sys::PopActiveSnapshot();
        finisher.close();
        plain?;
    }
    Ok(ids.into_iter().zip(accepted).filter(|(_, accepted)| *accepted).map(|(id, _)| id).collect())
}

/// Finishes a task with queue_internal.complete_many; returns whether it was accepted.
fn finish_in_sql(id: i64, token: i64, result: Option<pg_sys::Datum>) -> bool {
    let query =
        "SELECT pg_catalog.count(*) FROM queue_internal.complete_many(ARRAY[$1], ARRAY[$2], ARRAY[$3])";
    // SAFETY: the result is a jsonb, as it was given to us.
    let result = result.map(|value| unsafe { pgrx::datum::DatumWithOid::new(value, pg_sys::JSONBOID) });
    let result = result.unwrap_or_else(|| pgrx::datum::DatumWithOid::null_oid(pg_sys::JSONBOID));
    let count = Spi::connect_mut(|client| {
        client.update(query, Some(1), &[id.into(), token.into(), result])?.first().get_one::<i64>()
    });
    point!(FinishByCore);
    matches!(count, Ok(Some(1)))
}
