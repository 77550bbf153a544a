//! A batch: a callback that waits until the batch is sealed and all of its members have ended. There is one.
//! sql/internal/batches.sql

use super::protocol::Protocol;
use super::rows::{
    Admission, Event, Id, Key, Level, Lock, Note, Row, State, Strength, Table, Task, Transaction,
    dependencies, overlaid, task,
};
use super::rules::Rule;
use super::world::{Step, World};

impl Protocol {
    fn callback(&self) -> Id {
        self.scenario.batch.expect("a batch")
    }

    /// push of a member: locks the callback and the batch. lock_batches
    pub fn lock_batch(&self, world: &mut World, session: usize, id: Id) -> bool {
        let mut keys = vec![Key::Task(self.callback())];
        if self.has(Rule::PushLocksBatch) {
            keys.push(Key::Batch);
        }
        let view = world.view(session);
        let waits = task(&view, self.callback()).is_some_and(|row| row.state == State::Waiting);
        for key in keys {
            match world.lock(session, key, Strength::KeyShare) {
                Lock::Busy => return false,
                // QX007: it is over. QX008: it is sealed.
                Lock::Granted(None | Some(Row::Batch(true))) | Lock::Changed => {
                    self.roll_back(world, session);
                    return true;
                }
                Lock::Granted(_) => {}
            }
        }
        if waits && view.get(&Key::Batch) == Some(&Row::Batch(false)) {
            world.sessions[session].step = Step::InsertMember(id);
        } else {
            self.roll_back(world, session);
        }
        true
    }

    /// join_batch
    pub fn insert_member(&self, world: &mut World, session: usize, id: Id) -> bool {
        let row = Task { state: State::Queued, token: 0, admission: Admission::Open };
        world.write(session, Key::Task(id), Row::Task(row));
        world.write(session, Key::Dependency(id, self.callback()), Row::Dependency(None));
        let open = world.transaction(session);
        open.only_leases = false;
        open.notes.push(Note::Claimable(id));
        self.next_statement(world, session)
    }

    /// seal_batch
    pub fn seal(&self, world: &mut World, session: usize) -> bool {
        for (key, strength) in
            [(Key::Task(self.callback()), Strength::KeyShare), (Key::Batch, Strength::Update)]
        {
            match world.lock(session, key, strength) {
                Lock::Busy => return false,
                Lock::Granted(None) | Lock::Changed => {
                    self.roll_back(world, session);
                    return true;
                }
                Lock::Granted(Some(Row::Batch(true))) => return self.next_statement(world, session),
                Lock::Granted(Some(_)) => {}
            }
        }
        world.write(session, Key::Batch, Row::Batch(true));
        world.write_event(session, Event::Dependent(self.callback()));
        self.next_statement(world, session)
    }

    /// The end of a member: while others are left, an event that is there is enough, if nobody can process it before this
    /// transaction commits. notify_batch
    pub fn notify_batch(&self, world: &mut World, session: usize, callback: Id) {
        let view = world.view(session);
        let told = Event::Dependent(callback);
        let others = dependencies(&view).any(|row| row.1 == callback && row.2.is_none());
        let there = view.iter().find(|(_, row)| **row == Row::Event(told)).map(|(key, _)| *key);
        let enough = others
            && world.transaction(session).level == Level::ReadCommitted
            && there.is_some_and(|event| {
                !self.has(Rule::BatchEventIsLocked)
                    || matches!(world.lock(session, event, Strength::KeyShare), Lock::Granted(Some(_)))
            });
        if !enough {
            world.write_event(session, told);
        }
    }

    /// process_batch
    pub fn process_batch(
        &self,
        world: &mut World,
        session: usize,
        (id, row): (Id, Task),
        number: u8,
    ) -> bool {
        if !self.is_batch_over(&world.view(session)) {
            return self.next_item(world, session, number);
        }
        if !matches!(world.lock(session, Key::Batch, Strength::Update), Lock::Granted(Some(_))) {
            return self.leave_item(world, session, number);
        }
        world.delete(session, Key::Batch);
        self.unblock(world, session, (id, row));
        self.next_item(world, session, number)
    }

    /// Whether it is sealed and no member is without an outcome.
    pub fn is_batch_over(&self, table: &Table) -> bool {
        let left = dependencies(table).any(|row| Some(row.1) == self.scenario.batch && row.2.is_none());
        table.get(&Key::Batch) == Some(&Row::Batch(true)) && !left
    }

    fn is_member_left(&self, table: &Table) -> bool {
        (0..self.scenario.tasks.len() as Id)
            .any(|id| self.scenario.is_member(id) && task(table, id).is_some())
    }

    /// For the promises: whether the callback has something to wait for.
    pub fn batch_waits_rightly(&self, table: &Table) -> bool {
        match table.get(&Key::Batch) {
            Some(Row::Batch(sealed)) => !sealed || self.is_member_left(table),
            _ => false,
        }
    }

    /// For the promises: whether a member has not ended that was pushed.
    pub fn has_live_members(&self, world: &World, open: &Transaction) -> bool {
        self.is_member_left(&overlaid(&world.committed, &open.writes))
    }

    /// For the promises: whether a task becomes a member of a batch whose callback does not wait any more.
    pub fn joins_too_late(&self, world: &World, id: Id, open: &Transaction) -> bool {
        let Some(callback) = self.scenario.batch else { return false };
        let joins = open.writes.contains_key(&Key::Dependency(id, callback));
        let waits = task(&world.committed, callback).is_some_and(|row| row.state == State::Waiting);
        joins && !waits
    }
}
