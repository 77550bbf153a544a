//! Steps of tasks that a client holds, or no longer holds.

use super::client::{Client, Session};
use super::journal::Effect;

const STEP: &str = "SELECT queue.step($1, $2, $3, to_jsonb($4::text)) #>> '{}'";

impl Client {
    /// Stores a step, with a value that no other call has.
    pub(super) fn step(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let old = self.past.get(self.random.roll(64) as usize).copied();
        let held = if self.random.chance(10) { old } else { self.someones() };
        let Some(held) = held else { return self.push(session) };
        let (name, value) = (format!("step-{}", self.random.roll(2)), self.value());
        let effect = |stored| Effect::Step {
            id: held.id,
            token: held.token,
            name: name.clone(),
            value: value.clone(),
            stored,
        };
        let number = self.journal.effect(effect(None));
        let rows = session.query(STEP, &[&held.id, &held.token, &name, &value])?;
        self.journal.settle(number, effect(rows[0].get(0)));
        Ok(())
    }
}
