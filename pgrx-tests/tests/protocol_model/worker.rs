//! The worker's rounds, and which step of a session is which.

use super::deadline::is_overdue;
use super::protocol::{Action, Protocol};
use super::rows::{Admission, Event, Key, Lock, Note, Outcome, Row, State, Strength, Task, task};
use super::rules::Rule;
use super::scenario::Statement;
use super::world::{Faults, Session, Step, World};

impl Protocol {
    /// What the worker may begin. Worker::round
    pub fn worker_starts(&self, world: &World, actions: &mut Vec<Action>) {
        if !self.scenario.worker || !world.worker_idle() {
            return;
        }
        let expired = world
            .expired
            .iter()
            .filter(|id| !world.is_locked(world.worker(), Key::Task(**id), Strength::NoKeyUpdate));
        actions.extend(expired.map(|id| Action::Expire(*id)));
        let overdue = world
            .overdue
            .iter()
            .filter(|id| is_overdue(world, &world.committed, **id))
            .filter(|id| !world.is_locked(world.worker(), Key::Task(**id), Strength::Update));
        actions.extend(overdue.map(|id| Action::ExpireUnstarted(*id)));
        if world.base.is_none() && !self.scenario.durable_claims {
            actions.push(Action::RaiseMark);
        }
        if self.events_can_be_processed(world) && (self.scenario.eager || world.clients_done()) {
            actions.push(Action::Round);
        }
        let needed = actions.is_empty() && world.clients_done() && self.scenario.sweep && !world.swept;
        if self.has(Rule::Sweep) && (needed || world.faults.sweeps > 0) {
            actions.push(Action::Sweep);
        }
    }

    /// Whether an event is there that nobody has locked, nor what it is about.
    fn events_can_be_processed(&self, world: &World) -> bool {
        let free = |key: Key| !world.is_locked(world.worker(), key, Strength::Update);
        world.committed.iter().any(|(key, row)| match row {
            Row::Event(Event::Dependent(id)) => free(*key) && free(Key::Task(*id)),
            Row::Event(Event::Group) => free(*key) && free(Key::Group),
            _ => false,
        })
    }

    /// The worker begins a transaction.
    pub fn begin_job(&self, world: &mut World, step: Step) {
        let worker = world.worker();
        world.sessions[worker].step = step;
        self.begin(world, worker);
    }

    /// The next step of a session; false if it has to wait.
    pub fn step(&self, world: &mut World, session: usize) -> bool {
        let step = world.sessions[session].step.clone();
        if matches!(step, Step::Idle | Step::Done) {
            return false;
        }
        self.begin(world, session);
        match step {
            Step::Idle | Step::Done => false,
            Step::Start => self.start(world, session),
            Step::PushPredecessor(number, live) => self.push_predecessor(world, session, number, live),
            Step::PushLookAgain => self.push_look_again(world, session),
            Step::PushInsert(live) => self.push_insert(world, session, live),
            Step::Events(from) => self.events(world, session, from),
            Step::LockDependent(event, id) => self.lock_dependent(world, session, event, id),
            Step::CheckDependent(event, id) => self.check_dependent(world, session, event, id),
            Step::LockGroup(event, counted) => self.lock_group(world, session, event, counted),
            Step::CountAdmitted(event) => self.count_admitted(world, session, event),
            Step::Admit(event, admitted) => self.admit(world, session, event, admitted),
            Step::End(id, outcome, then) => self.end(world, session, (id, outcome), then),
            Step::Notify(id, outcome, then) => self.notify(world, session, (id, outcome), then),
            Step::Cancel(id, strength) => self.lock_to_cancel(world, session, id, strength),
            Step::LockBatch(id) => self.lock_batch(world, session, id),
            Step::InsertMember(id) => self.insert_member(world, session, id),
            Step::LockEvent(id) => self.lock_event(world, session, id),
            Step::LockToEmit(seen) => self.lock_to_emit(world, session, seen),
            Step::NotifyWaiting(seen) => self.notify_waiting(world, session, seen),
            Step::Purge(left) => self.purge_tasks(world, session, left),
            Step::Sweep(place) => self.sweep(world, session, place),
            Step::Choose => self.choose(world, session),
            Step::ChooseFrom(found) => self.choose_from(world, session, &found),
            Step::FindSlot(id) => self.find_slot(world, session, id),
            Step::TakeSlot(id, slot, version) => self.take_slot(world, session, id, (slot, version)),
            Step::ClearHint => self.clear_hint(world, session),
            Step::Ask => self.ask(world, session),
            Step::Lease(id) => self.lease(world, session, id),
            Step::ReadTable(from) => self.read_table(world, session, from),
            Step::Refilled(from, found) => self.refilled(world, session, from, &found),
            Step::RaiseMark => self.raise_mark(world, session),
            Step::ExpireUnstarted(id) => self.expire_unstarted(world, session, id),
            Step::Expire(id) => self.expire(world, session, id),
            Step::FreeSlot(slot) => {
                world.write(session, Key::Slot(slot), Row::Slot(0, 0));
                world.sessions[session].step = Step::Commit;
                true
            }
            Step::Commit | Step::CommitLate => self.commit(world, session),
            Step::Publish => self.publish(world, session),
        }
    }

    fn start(&self, world: &mut World, session: usize) -> bool {
        let Some(statement) = self.statement(world, session) else { return false };
        let go = |sessions: &mut Vec<Session>, step| {
            sessions[session].step = step;
            true
        };
        match statement {
            Statement::Look => self.next_statement(world, session),
            Statement::Push(..) => go(&mut world.sessions, Step::PushPredecessor(0, true)),
            Statement::Claim => self.begin_claim(world, session),
            Statement::NativeClaim => self.native_claim(world, session),
            Statement::Complete => self.end_leased(world, session, Some(Outcome::Completed)),
            Statement::Discard => self.end_leased(world, session, Some(Outcome::Failed)),
            Statement::Release => self.end_leased(world, session, None),
            Statement::Cancel(id) => self.cancel(world, session, id),
            Statement::Purge => self.purge_dead(world, session),
            Statement::Retry(id) => self.retry(world, session, id),
            Statement::PushInto(id) => go(&mut world.sessions, Step::LockBatch(id)),
            Statement::Seal => self.seal(world, session),
            Statement::Await => self.await_event(world, session),
            Statement::Emit => self.emit(world, session),
            Statement::Save => self.save(world, session),
            Statement::RollBackTo(number) => self.roll_back_to(world, session, number),
            Statement::ReleaseSavepoint(number) => self.release_savepoint(world, session, number),
        }
    }

    /// Writes how far tokens may go. The base is published once that is durable. Worker::raise_tokens, tokens::raised
    fn raise_mark(&self, world: &mut World, session: usize) -> bool {
        let base = self.base(world);
        world.write(session, Key::Mark, Row::Mark(base + self.scenario.reserve));
        let open = world.transaction(session);
        open.only_leases = false;
        if self.has(Rule::MarkBeforeBase) {
            open.raises = Some(base);
        } else {
            world.base = Some(base);
        }
        world.sessions[session].step = Step::Commit;
        true
    }

    /// Ends the attempt of a task whose lease is over, without waiting for its lock. expiry::end, end_expired
    pub fn expire(&self, world: &mut World, session: usize, id: super::rows::Id) -> bool {
        world.sessions[session].step = Step::Commit;
        let locked = world.lock(session, Key::Task(id), Strength::NoKeyUpdate);
        let Lock::Granted(Some(Row::Task(row))) = locked else {
            return true;
        };
        if row.state != State::Running || !world.expired.contains(&id) {
            return true;
        }
        world.write(session, Key::Task(id), Row::Task(Task { state: State::Queued, ..row }));
        let open = world.transaction(session);
        open.only_leases = false;
        if row.admission != Admission::Blocked {
            open.notes.push(Note::Claimable(id));
        }
        if self.scenario.grouped(id) {
            world.write_event(session, Event::Group);
        }
        if !self.has(Rule::SlotsFreeThemselves) {
            let held = world.committed.iter().find_map(|(key, slot)| match (key, slot) {
                (Key::Slot(slot), Row::Slot(holder, _)) if *holder == id => Some(*slot),
                _ => None,
            });
            world.transaction(session).frees = held;
        }
        true
    }

    /// Whether nothing goes on any more, so that what waits now waits for ever.
    pub fn resting(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        if world.clients_done() {
            let unneeded = Faults { sweeps: 0, ..world.faults };
            self.worker_starts(&World { faults: unneeded, ..world.clone() }, &mut actions);
        }
        world.clients_done() && world.worker_idle() && actions.is_empty()
    }

    /// Whether a claim that came now would look at the task, and lease it.
    pub fn is_offered(&self, world: &World, id: u8) -> bool {
        let open = task(&world.committed, id)
            .is_some_and(|row| row.state == State::Queued && row.admission != Admission::Blocked);
        open && (self.scenario.lane == 0 || world.lane.offers(id))
    }
}
