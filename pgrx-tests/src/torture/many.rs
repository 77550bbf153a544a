//! Calls for several tasks at once.

use super::client::{Client, Held, Session};
use super::journal::{Effect, Link, Verb};
use super::load::QUEUES;

const PUSH_MANY: &str = "SELECT queue.push_many($1, $2::text[]::jsonb[])";
const COMPLETE_MANY: &str = "SELECT queue.complete_many($1, $2)";
const EXTEND_MANY: &str = "SELECT id, (extract(epoch FROM lease_until) * 1000000)::bigint \
                           FROM queue.extend_many($1, $2, $3::text::interval, skip_locked => $4) WHERE extended";

impl Client {
    pub(super) fn push_many(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let queue = QUEUES[self.random.weighted(&[(70, 0), (20, 3), (10, 5)])];
        let values: Vec<String> = (0..self.random.between(1, 20)).map(|_| self.value()).collect();
        let payloads: Vec<String> =
            values.iter().map(|value| format!("{{\"value\": \"{value}\"}}")).collect();
        let effect = |value: &String, id| Effect::Push {
            queue: queue.to_owned(),
            value: value.clone(),
            key: None,
            group: None,
            link: Link::NONE,
            id,
        };
        let first = self.journal.effects().len();
        for value in &values {
            self.journal.effect(effect(value, None));
        }
        let rows = session.query(PUSH_MANY, &[&queue, &payloads])?;
        for (number, (value, row)) in values.iter().zip(&rows).enumerate() {
            self.journal.settle(first + number, effect(value, Some(row.get(0))));
        }
        Ok(())
    }

    /// Completes or extends several tasks at once, this one among them.
    pub(super) fn many(&mut self, session: &mut Session, first: Held) -> Result<(), postgres::Error> {
        let mut all: Vec<Held> = Vec::new();
        for held in self.held.iter().filter(|held| held.id != first.id).take(12) {
            if all.iter().all(|other| other.id != held.id) {
                all.push(*held);
            }
        }
        all.insert(self.random.roll(all.len() as u64 + 1) as usize, first);
        self.end_many(session, &all)
    }

    fn end_many(&mut self, session: &mut Session, all: &[Held]) -> Result<(), postgres::Error> {
        let ids: Vec<i64> = all.iter().map(|held| held.id).collect();
        let tokens: Vec<i64> = all.iter().map(|held| held.token).collect();
        let first = self.journal.effects().len();
        if self.random.chance(40) {
            let (lease, text) = self.lease();
            let effect = |held: &Held, until| Effect::Extend { id: held.id, token: held.token, lease, until };
            for held in all {
                self.journal.effect(effect(held, None));
            }
            let skip_locked = self.random.chance(50);
            for row in session.query(EXTEND_MANY, &[&ids, &tokens, &text, &skip_locked])? {
                let place = ids.iter().position(|id| *id == row.get::<_, i64>(0)).expect("asked for");
                self.journal.settle(first + place, effect(&all[place], Some(row.get(1))));
            }
        } else {
            let effect = |held: &Held, accepted| Effect::End {
                verb: Verb::Complete,
                id: held.id,
                token: held.token,
                accepted,
            };
            for held in all {
                self.journal.effect(effect(held, false));
            }
            for row in session.query(COMPLETE_MANY, &[&ids, &tokens])? {
                let place = ids.iter().position(|id| *id == row.get::<_, i64>(0)).expect("asked for");
                self.journal.settle(first + place, effect(&all[place], true));
            }
        }
        Ok(())
    }

    /// A batch over tasks of anybody, in any order: its own leases, and guesses.
    pub(super) fn batch(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let around = self.pushed.front().copied().unwrap_or(1);
        let mut all: Vec<Held> = self.held.first().copied().into_iter().collect();
        for _ in 0..20 {
            let id = (around + self.random.roll(60) as i64 - 30).max(1);
            if all.iter().all(|held| held.id != id) {
                // No task is claimed that often: a token that is never right, on a row that is locked.
                let place = self.random.roll(all.len() as u64 + 1) as usize;
                all.insert(place, Held { id, token: 1_000_000 });
            }
        }
        self.end_many(session, &all)
    }
}
