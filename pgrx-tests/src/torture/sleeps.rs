//! Tasks that sleep: until a time, or for a duration, which each call for the same task repeats.

use super::client::{Client, Held, Session};
use super::journal::{Effect, Verb, now};
use super::load::LONGEST_DELAY;

const UNTIL: &str = "SELECT queue.sleep($1, $2, timestamptz 'epoch' + $3::bigint * interval '1 us')";
const NAMED: &str = "SELECT queue.sleep($1, $2, 'nap', $3::bigint * interval '1 us')";

impl Client {
    /// Ends a lease like a release, if the time has not passed.
    pub(super) fn sleep(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        // All clients prefer some tasks, so that these are sent to sleep again.
        let sleeper = self.held.iter().find(|held| held.id % 8 == 0).copied();
        let Some(Held { id, token }) = sleeper.or_else(|| self.someones()) else { return self.push(session) };
        let named = sleeper.is_some() || self.random.chance(50);
        let (statement, time) = if named {
            (NAMED, 1000 * (id * 37 % LONGEST_DELAY as i64 + 1))
        } else {
            (UNTIL, now() + 1000 * self.random.roll(LONGEST_DELAY) as i64)
        };
        let sleep = |over| Effect::Sleep { id, token, named, time, over };
        let end = |accepted| Effect::End { verb: Verb::Release, id, token, accepted };
        let returned = self.journal.effect(sleep(None));
        let suspended = self.journal.effect(end(false));
        let over: bool = session.query(statement, &[&id, &token, &time])?[0].get(0);
        self.journal.settle(returned, sleep(Some(over)));
        self.journal.settle(suspended, end(!over));
        Ok(())
    }
}
