//! Pushes of tasks with weights, with and without a group, into a queue that limits how much weight may start in a period.

use super::client::{Client, Session};
use super::journal::{Effect, Link};
use super::load::METERED;

const PUSH: &str =
    "SELECT queue.push($1, jsonb_build_object('value', $2::text), group_key => $3, weight => $4)";

impl Client {
    pub(super) fn push_with_weight(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let value = self.value();
        let group = self.random.chance(60).then(|| format!("group-{}", self.random.roll(3)));
        let weight: i32 = self.random.weighted(&[(50, 1), (30, 3), (20, 10)]);
        self.journal.effect(Effect::Weight { value: value.clone(), weight: weight.into() });
        let push = |id| Effect::Push {
            queue: METERED.to_owned(),
            value: value.clone(),
            key: None,
            group: group.clone(),
            link: Link::NONE,
            id,
        };
        let number = self.journal.effect(push(None));
        let rows = session.query(PUSH, &[&METERED, &value, &group, &weight])?;
        self.journal.settle(number, push(Some(rows[0].get(0))));
        Ok(())
    }
}
