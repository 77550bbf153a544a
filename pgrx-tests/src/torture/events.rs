//! Events: a task of a client waits for an event of its own, which any client that knows the task may emit.

use super::client::{Client, Session};
use super::journal::{Effect, Verb};
use super::load::{LONGEST_DELAY, QUEUES};

/// What a journal has instead of a payload.
const TIMED_OUT: &str = "timeout";
/// The queue whose events are emitted. Tasks of other queues time out.
const EMITTED_IN: &str = QUEUES[0];

const AWAIT: &str = "SELECT coalesce(payload #>> '{}', 'timeout') \
                     FROM queue.await_event($1, $2, $3, $4::text::interval)";
const EMIT: &str = "SELECT queue.emit($1, $2, to_jsonb($3::text))";

fn event_of(id: i64) -> String {
    format!("event-{id}")
}

impl Client {
    /// Ends a lease like a release, if the event has not come.
    pub(super) fn await_event(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let Some(held) = self.someones() else { return self.emit(session) };
        let event = event_of(held.id);
        let end = |accepted| Effect::End { verb: Verb::Release, id: held.id, token: held.token, accepted };
        let step = |stored| Effect::Step {
            id: held.id,
            token: held.token,
            name: event.clone(),
            value: TIMED_OUT.to_owned(),
            stored,
        };
        let timeout = format!("{} ms", self.random.between(1, LONGEST_DELAY));
        let suspended = self.journal.effect(end(false));
        let returned = self.journal.effect(step(None));
        match session.query(AWAIT, &[&held.id, &held.token, &event, &timeout])?.first() {
            Some(row) => self.journal.settle(returned, step(Some(row.get(0)))),
            None => self.journal.settle(suspended, end(true)),
        }
        Ok(())
    }

    pub(super) fn emit(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let held = self.held.first().map(|held| held.id);
        let pushed = self.pushed.get(self.random.roll(8) as usize).copied();
        let Some(id) = (if self.random.chance(50) { held } else { pushed }) else {
            return self.push(session);
        };
        let (event, value) = (event_of(id), self.value());
        self.journal.effect(Effect::Emit { event: event.clone(), value: value.clone() });
        session.query(EMIT, &[&EMITTED_IN, &event, &value])?;
        Ok(())
    }
}
