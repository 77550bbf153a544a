//! Pushes with a start deadline, of which some wait for other tasks. In one queue a task that was not started in time is
//! a dead letter, in the other it is cancelled.

use super::client::{Client, Session};
use super::journal::{Effect, now};
use super::load::{LONGEST_DELAY, QUEUES};

const START_BY: &str = "SELECT queue.push($1, jsonb_build_object('value', $2::text), after => $3, \
                        start_by => timestamptz 'epoch' + $4::bigint * interval '1 us')";
const TTL: &str = "SELECT queue.push($1, jsonb_build_object('value', $2::text), after => $3, \
                   ttl => $4::bigint * interval '1 us')";

impl Client {
    pub(super) fn push_with_deadline(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let queue = QUEUES[self.random.weighted(&[(60, 0), (40, 5)])];
        let value = self.value();
        let after = if self.random.chance(20) { self.predecessors() } else { Vec::new() };
        let given = Some(&after).filter(|after| !after.is_empty());
        let time = 1000 * self.random.between(1, LONGEST_DELAY) as i64;
        let from = now() + time;
        let deadline = |to| Effect::Deadline { value: value.clone(), from, to };
        if self.random.chance(50) {
            self.journal.effect(deadline(from));
            self.push_by(session, START_BY, queue, &value, &after, &[&given, &from])?;
        } else {
            // By the server's clock, during the call.
            let number = self.journal.effect(deadline(i64::MAX));
            self.push_by(session, TTL, queue, &value, &after, &[&given, &time])?;
            self.journal.settle(number, deadline(now() + time));
        }
        Ok(())
    }
}
