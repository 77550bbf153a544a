//! Whether a queue has a task for a claim, for queue.wait.

use super::events::check_events;
use super::{permitted, queue};
use crate::clock::now;
use crate::fallback::Reason;
use crate::heap::{self, Use};
use crate::lanes::{self, Answer, Queue};
use crate::refill;
use crate::rights::Kinds;
use crate::transaction;
use pgrx::prelude::*;

/// Whether a lane has a task.
enum Known {
    Ready,
    Events(u64),
    Answer(Answer),
}

/// Whether a claim would get a task from the queue; an error if only SQL can check that.
pub unsafe fn is_ready(name: &[u8]) -> Result<bool, Reason> {
    permitted()?;
    // SAFETY: in a transaction with a snapshot.
    unsafe {
        let tables = heap::open(Use::Claim)?;
        let settings = queue::settings(&tables, name, Kinds::WORKER)?;
        if settings.paused || !settings.plain_to_claim {
            return Err(Reason::Policy);
        }
        let queue = Queue::new(tables.tasks, name);
        if transaction::has_own(queue.hash()) {
            return Err(Reason::OwnTasks);
        }
        let mut checked = 0;
        loop {
            pgrx::check_for_interrupts!();
            point!(WaitLooks);
            let moment = now();
            let known = lanes::with_or_new(&queue, |slot| {
                // First what a claim does first. If an event is due, a claim leaves its task to SQL, and does not find out that a ready
                // one is locked.
                if slot.events != 0 && slot.events != checked {
                    return Known::Events(slot.events);
                } else if slot.lane.has_due(moment) || slot.lane.leases.any_ended(moment) {
                    return Known::Ready;
                }
                Known::Answer(slot.lane.needs(true, moment, pg_sys::MyProcPid))
            });
            match known.ok_or(Reason::NoLane)? {
                Known::Ready => return Ok(true),
                Known::Events(stamp) => checked = check_events(&tables, &queue, stamp)?,
                Known::Answer(Answer::Complete) => return Ok(false),
                Known::Answer(Answer::Refill(plan)) => refill::run(&tables, &queue, plan),
                Known::Answer(Answer::Refilling(_)) if lanes::await_refill(queue.hash()) => {}
                Known::Answer(Answer::Refilling(_)) => return Err(Reason::Busy),
            }
        }
    }
}
