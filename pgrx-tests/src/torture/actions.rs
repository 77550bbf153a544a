//! The single statements of a client: random calls, recorded with their arguments and answers. Each claim names its
//! operation as the worker, so that a lease can be traced to it.

use postgres::Row;
use postgres::types::ToSql;

use super::client::{Client, Held, Session, Unsure};
use super::journal::{Effect, Link, OnFailure, Verb};
use super::load::{LINKED, LONGEST_DELAY, LONGEST_LEASE, METERED, QUEUES};

const PUSH: &str = "SELECT queue.push($1, jsonb_build_object('value', $2::text, 'padding', $3::text), \
                    priority => $4, delay => $5::text::interval, key => $6, group_key => $7, \
                    key_ttl => $8::text::interval, on_duplicate => $9, after => $10, \
                    on_predecessor_failure => $11)";
/// The columns of a claim, with the end of the lease in microseconds since 1970.
macro_rules! claimed {
    ($from:literal) => {
        concat!(
            "SELECT id, token, queue, payload->>'value', group_key, \
             (extract(epoch FROM lease_until) * 1000000)::bigint FROM ",
            $from
        )
    };
}
const CLAIM: &str = claimed!("queue.claim($1::text::interval, $2::text, $3, $4)");
const CLAIM_QUEUES: &str = claimed!("queue.claim($1::text::interval, $2::text[], $3, $4)");
const COMPLETE_AND_CLAIM: &str =
    claimed!("queue.complete_and_claim($1, $2, '1', $3::text::interval, $4, $5)");
const COMPLETE: &str = "SELECT queue.complete($1, $2, jsonb_build_object('by', $3::text))";
const FAIL: &str = "SELECT queue.fail($1, $2, 'torture', $3::text::interval, $4)";
const RELEASE: &str = "SELECT queue.release($1, $2, $3::text::interval)";
const CANCELLED: &str = "SELECT queue.confirm_cancel($1, $2)";
const EXTEND: &str = "SELECT (extract(epoch FROM lease_until) * 1000000)::bigint, cancel_requested \
                      FROM queue.extend($1, $2, $3::text::interval, '{\"percent\": 50}')";
const CANCEL: &str = "SELECT queue.cancel($1)";

#[derive(Clone, Copy)]
enum Action {
    Push,
    PushLinked,
    PushMany,
    Claim,
    ClaimQueues,
    ClaimMetered,
    Finish,
    Batch,
    Zombie,
    Cancel,
    Deadline,
    PushInBatch,
    Timeout,
    Weight,
    Sleep,
    Step,
    Await,
    Emit,
}

impl Client {
    /// Does one thing.
    pub(super) fn act(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        use Action::*;
        let action = if self.load.only_push {
            Push
        } else if self.random.chance(self.load.batches) {
            Batch
        } else if self.random.chance(self.load.metered) {
            self.random.weighted(&[(50, Weight), (50, ClaimMetered)])
        } else {
            self.random.weighted(&[
                (28, Push),
                (5, PushLinked),
                (3, PushMany),
                (24, Claim),
                (2, ClaimQueues),
                (37, Finish),
                (4, Zombie),
                (2, Cancel),
                (4, Deadline),
                (5, PushInBatch),
                (5, Timeout),
                (1, Weight),
                (4, Sleep),
                (6, Step),
                (3, Await),
                (3, Emit),
            ])
        };
        match action {
            Push => self.push(session),
            PushLinked => self.push_linked(session),
            PushMany => self.push_many(session),
            Claim => self.claim(session),
            ClaimQueues => self.claim_queues(session),
            ClaimMetered => self.claim_from(session, METERED),
            Finish => match self.someones() {
                Some(held) => self.finish(session, held),
                None => self.claim(session),
            },
            Batch => self.batch(session),
            Zombie => match self.past.get(self.random.roll(64) as usize).copied() {
                Some(held) => self.finish(session, held),
                None => self.push(session),
            },
            Cancel => self.cancel(session),
            Deadline => self.push_with_deadline(session),
            PushInBatch => self.push_in_batch(session),
            Timeout => self.push_with_timeout(session),
            Weight => self.push_with_weight(session),
            Sleep => self.sleep(session),
            Step => self.step(session),
            Await => self.await_event(session),
            Emit => self.emit(session),
        }
    }

    /// A lease of this very transaction, or another one that the client holds.
    pub(super) fn someones(&mut self) -> Option<Held> {
        let own = self.journal.effects().iter().rev().find_map(|(effect, undone)| match effect {
            Effect::Claim { id, token, .. } if !undone => Some(Held { id: *id, token: *token }),
            _ => None,
        });
        if own.is_some() && self.random.chance(50) {
            return own;
        }
        let count = self.held.len() as u64;
        (count > 0).then(|| self.held[self.random.roll(count) as usize])
    }

    pub(super) fn value(&mut self) -> String {
        self.values += 1;
        format!("{}-{}", self.name, self.values)
    }

    pub(super) fn push(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let value = self.value();
        let queue = self.random.weighted(&[(55, 0), (10, 1), (12, 2), (8, 3), (5, 4), (10, 5)]);
        let (key, group) = match QUEUES[queue] {
            // A key of its own makes a push one that can be repeated.
            "plain" if self.random.chance(30) => (Some(value.clone()), None),
            "hot" => (Some(format!("key-{}", self.random.roll(12))), None),
            "grouped" => (None, Some(format!("group-{}", self.random.roll(8)))),
            _ => (None, None),
        };
        let on_duplicate = self.random.weighted(&[(90, "skip"), (10, "reschedule")]);
        self.push_this(session, QUEUES[queue], value, key, group, Link::NONE, on_duplicate)
    }

    /// Repeats a push that may have gone through.
    pub(super) fn push_again(
        &mut self,
        session: &mut Session,
        push: &Unsure,
    ) -> Result<super::journal::Outcome, postgres::Error> {
        let Unsure { queue, value, key } = push.clone();
        self.push_this(session, &queue, value, Some(key), None, Link::NONE, "skip")?;
        Ok(super::journal::Outcome::Ok)
    }

    #[allow(clippy::too_many_arguments, reason = "they are what a push has")]
    pub(super) fn push_this(
        &mut self,
        session: &mut Session,
        queue: &str,
        value: String,
        key: Option<String>,
        group: Option<String>,
        link: Link,
        on_duplicate: &str,
    ) -> Result<(), postgres::Error> {
        let priority = self.random.roll(3) as i32 - 1;
        let delay = self.random.chance(10).then(|| format!("{} ms", self.random.between(1, LONGEST_DELAY)));
        let padding = "x".repeat(self.random.weighted(&[(80, 30), (15, 700), (5, 5000)]));
        let time_to_live = key.as_ref().filter(|key| **key == value).map(|_| "1 day");
        let mut effect = Effect::Push {
            queue: queue.to_owned(),
            value: value.clone(),
            key: key.clone(),
            group: group.clone(),
            link: link.clone(),
            id: None,
        };
        let number = self.journal.effect(effect.clone());
        let after = Some(link.after).filter(|after| !after.is_empty());
        let on_duplicate = if key.is_some() { on_duplicate } else { "skip" };
        let on_failure = match link.on_failure {
            _ if after.is_none() => None,
            OnFailure::Cancel => None,
            OnFailure::Fail => Some("fail"),
            OnFailure::Continue => Some("continue"),
        };
        let rows = session.query(
            PUSH,
            &[
                &queue,
                &value,
                &padding,
                &priority,
                &delay,
                &key,
                &group,
                &time_to_live,
                &on_duplicate,
                &after,
                &on_failure,
            ],
        )?;
        if let Effect::Push { id, .. } = &mut effect {
            *id = Some(rows[0].get(0));
        }
        self.journal.settle(number, effect);
        Ok(())
    }

    /// Pushes a task with a value alone by a statement with more arguments: $1 is the queue, $2 the value.
    pub(super) fn push_by(
        &mut self,
        session: &mut Session,
        statement: &'static str,
        queue: &str,
        value: &str,
        after: &[i64],
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<i64, postgres::Error> {
        let effect = |id| Effect::Push {
            queue: queue.to_owned(),
            value: value.to_owned(),
            key: None,
            group: None,
            link: Link { after: after.to_vec(), ..Link::NONE },
            id,
        };
        let number = self.journal.effect(effect(None));
        let mut arguments: Vec<&(dyn ToSql + Sync)> = vec![&queue, &value];
        arguments.extend(more);
        let id = session.query(statement, &arguments)?[0].get(0);
        self.journal.settle(number, effect(Some(id)));
        Ok(id)
    }

    fn claim(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let queue = QUEUES[self.random.weighted(&[
            (43, 0),
            (11, 1),
            (13, 2),
            (9, 3),
            (7, 4),
            (8, 5),
            (9, 6),
            (8, 7),
            (10, 8),
        ])];
        self.claim_from(session, queue)
    }

    pub(super) fn claim_from(&mut self, session: &mut Session, queue: &str) -> Result<(), postgres::Error> {
        let most = self.most();
        let (lease, text) = self.lease();
        let rows = session.query(CLAIM, &[&text, &queue, &most, &self.journal.operation()])?;
        self.note_claims(&rows, lease);
        Ok(())
    }

    fn claim_queues(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let count = QUEUES.len();
        let first = self.random.roll(count as u64) as usize;
        let queues: Vec<&str> = (0..3).map(|n| QUEUES[(first + n) % count]).collect();
        let most = self.most();
        let (lease, text) = self.lease();
        let rows = session.query(CLAIM_QUEUES, &[&text, &queues, &most, &self.journal.operation()])?;
        self.note_claims(&rows, lease);
        Ok(())
    }

    fn most(&mut self) -> i32 {
        self.random.weighted(&[(70, 1), (20, 4), (10, 20)])
    }

    /// In microseconds, and as text.
    pub(super) fn lease(&mut self) -> (i64, String) {
        let lease = self.random.between(150, LONGEST_LEASE);
        (lease as i64 * 1000, format!("{lease} ms"))
    }

    fn note_claims(&mut self, rows: &[Row], lease: i64) {
        for row in rows {
            self.journal.effect(Effect::claimed(row, lease));
        }
    }

    /// Ends an attempt in one way or another, extends it, or lets it be.
    pub(super) fn finish(&mut self, session: &mut Session, held: Held) -> Result<(), postgres::Error> {
        let Held { id, token } = held;
        let verb = self.random.weighted(&[
            (60, Some(Verb::Complete)),
            (8, Some(Verb::Fail)),
            (2, Some(Verb::FailForGood)),
            (8, Some(Verb::Release)),
            (2, Some(Verb::Cancelled)),
            (20, None),
        ]);
        let Some(verb) = verb else {
            return match self.random.roll(10) {
                0..4 => self.extend(session, held),
                4..7 => self.many(session, held),
                // Lets the lease expire.
                _ => {
                    self.forget(held);
                    self.claim(session)
                }
            };
        };
        let number = self.journal.effect(Effect::End { verb, id, token, accepted: false });
        let accepted = Effect::End { verb, id, token, accepted: true };
        let delay = format!("{} ms", self.random.roll(100));
        match verb {
            Verb::Complete if self.random.chance(25) => {
                let queue = self.random.weighted(&[(70, QUEUES[0]), (15, QUEUES[2]), (15, LINKED)]);
                let (lease, text) = self.lease();
                let worker = self.journal.operation();
                let rows = session.query(COMPLETE_AND_CLAIM, &[&id, &token, &text, &queue, &worker])?;
                self.journal.settle(number, accepted);
                self.note_claims(&rows, lease);
                return Ok(());
            }
            Verb::Complete => session.query(COMPLETE, &[&id, &token, &self.name])?,
            Verb::Fail => session.query(FAIL, &[&id, &token, &delay, &false])?,
            Verb::FailForGood => session.query(FAIL, &[&id, &token, &None::<String>, &true])?,
            Verb::Release => session.query(RELEASE, &[&id, &token, &delay])?,
            Verb::Cancelled => session.query(CANCELLED, &[&id, &token])?,
        };
        self.journal.settle(number, accepted);
        Ok(())
    }

    fn extend(&mut self, session: &mut Session, Held { id, token }: Held) -> Result<(), postgres::Error> {
        let (lease, text) = self.lease();
        let number = self.journal.effect(Effect::Extend { id, token, lease, until: None });
        let rows = session.query(EXTEND, &[&id, &token, &text])?;
        self.journal.settle(number, Effect::Extend { id, token, lease, until: Some(rows[0].get(0)) });
        Ok(())
    }

    fn cancel(&mut self, session: &mut Session) -> Result<(), postgres::Error> {
        let Some(id) = self.pushed.get(self.random.roll(64) as usize).copied() else {
            return self.push(session);
        };
        let number = self.journal.effect(Effect::Cancel { id, state: None });
        let rows = session.query(CANCEL, &[&id])?;
        self.journal.settle(number, Effect::Cancel { id, state: Some(rows[0].get(0)) });
        Ok(())
    }
}
