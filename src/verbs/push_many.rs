//! queue.push_many

use super::Outcome;
use super::arguments::Arguments;
use super::push::{Pusher, argument};
use super::rows::Rows;
use crate::fallback::Reason;
use crate::heap::Inserter;
use pgrx::prelude::*;

/// Serves the call, or returns why it falls back to SQL.
pub unsafe fn push_many(arguments: &Arguments) -> Result<Outcome, Reason> {
    let unset =
        [argument::KEYS, argument::GROUP_KEYS, argument::PUSH_MANY_KEY_TTL_FROM, argument::PUSH_MANY_BATCH];
    if unset.iter().any(|number| arguments.get(*number).is_some()) {
        return Err(Reason::Policy);
    }
    // SAFETY: the arguments are where native.sql declares them.
    unsafe {
        let payloads = arguments.array(argument::PAYLOAD)?;
        if payloads.len() > 100_000 {
            return Err(Reason::Argument);
        }
        let mut pusher = Pusher::open(arguments, argument::PUSH_MANY_KIND, payloads.len())?;
        let rows = Rows::new(arguments)?;
        let mut inserter: Option<Inserter> = None;
        for payload in payloads {
            pgrx::check_for_interrupts!();
            let id = pusher.next(payload);
            let inserter =
                inserter.get_or_insert_with(|| Inserter::open(pusher.tables.tasks, &pusher.left_out()));
            inserter.add(&mut pusher.row);
            point!(PushNext);
            rows.add(&mut [pg_sys::Datum::from(id)], &mut [false]);
        }
        if let Some(mut inserter) = inserter {
            inserter.store();
            inserter.close();
            pg_sys::CommandCounterIncrement();
        }
        Ok(Outcome::Served(rows.done()))
    }
}
