//! Batches: a client creates one, pushes tasks into it, and seals it. A batch of which it lost track is sealed before the
//! drain.

use std::path::Path;

use super::client::{Client, Session};
use super::journal::{Effect, Journal, Outcome};
use super::load::QUEUES;

const CREATE: &str = "SELECT queue.create_batch($1, jsonb_build_object('value', $2::text))";
const PUSH: &str = "SELECT queue.push($1, jsonb_build_object('value', $2::text), batch => $3)";
const SEAL: &str = "SELECT queue.seal_batch($1)";

impl Client {
    /// Pushes into its oldest batch or seals it. Now and then, and if it has none, it creates one.
    pub(super) fn push_in_batch(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let queue = QUEUES[self.random.weighted(&[(60, 0), (20, 4), (20, 5)])];
        let oldest = if self.random.chance(15) { None } else { self.batches.pop_front() };
        let Some(batch) = oldest else {
            let value = self.value();
            let batch = self.push_by(session, CREATE, queue, &value, &[], &[])?;
            self.journal.effect(Effect::Open { batch });
            return Ok(());
        };
        if self.random.chance(25) {
            self.journal.effect(Effect::Seal { batch });
            session.query(SEAL, &[&batch])?;
            return Ok(());
        }
        let value = self.value();
        self.journal.effect(Effect::Join { batch, value: value.clone() });
        self.push_by(session, PUSH, queue, &value, &[], &[&batch])?;
        // After an error it is lost: its callback may be cancelled.
        self.batches.push_back(batch);
        Ok(())
    }
}

/// Seals all batches, so that their callbacks can be drained.
pub fn seal_all(client: &mut postgres::Client, journals: &Path, name: &str) -> Result<(), postgres::Error> {
    let mut journal = Journal::create(journals, name);
    let open = "SELECT task_id FROM queue_internal.batches WHERE sealed_at IS NULL ORDER BY task_id";
    for row in client.query(open, &[])? {
        let batch: i64 = row.get(0);
        journal.begin();
        journal.effect(Effect::Seal { batch });
        client.query(SEAL, &[&batch])?;
        journal.end(Outcome::Ok);
    }
    Ok(())
}
