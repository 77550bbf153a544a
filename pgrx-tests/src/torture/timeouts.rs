//! Pushes of tasks with a timeout of their own, and of tasks to which that of their queue applies. Clients hold some of
//! them for longer than that.

use super::client::{Client, Session};
use super::journal::Effect;
use super::load::{QUEUES, TIMED};

const PUSH: &str = "SELECT queue.push($1, jsonb_build_object('value', $2::text), \
                    timeout => $3::bigint * interval '1 us')";
/// In milliseconds. Some leases are longer, others are extended beyond it.
const SHORTEST: u64 = 50;
const LONGEST: u64 = 1000;

impl Client {
    pub(super) fn push_with_timeout(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let queue = self.random.weighted(&[(50, QUEUES[0]), (50, TIMED)]);
        let value = self.value();
        let own = (queue != TIMED || self.random.chance(40))
            .then(|| 1000 * self.random.between(SHORTEST, LONGEST) as i64);
        if let Some(timeout) = own {
            self.journal.effect(Effect::Timeout { value: value.clone(), timeout });
        }
        self.push_by(session, PUSH, queue, &value, &[], &[&own])?;
        Ok(())
    }
}
