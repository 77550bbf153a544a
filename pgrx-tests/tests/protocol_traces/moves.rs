//! The next steps of the model that the recording allows.

use super::accept::{Place, Search};
use super::player::CUT;
use super::rows::{Event, Id, Key, Level, Row, State, tasks};
use super::scenario::Statement;
use super::trace::{Asked, Call, End, Told};
use super::world::{Step, World};

impl Search<'_> {
    /// The possible actions of a client or the worker.
    pub fn session(&mut self, place: &Place, session: usize, next: &mut Vec<Place>) {
        let before = next.len();
        if session == place.world.worker() {
            self.worker(place, next);
        } else {
            self.client(place, session, next);
        }
        for place in &mut next[before..] {
            if let Step::Events(number) = place.world.sessions[session].step {
                place.left |= bit(number);
            }
            let world = &place.world;
            let written = world.sessions.iter().filter_map(|session| session.transaction.as_ref());
            let live =
                written.flat_map(|open| &open.writes).filter(|(_, row)| row.is_some()).map(|(key, _)| key);
            let live = live.chain(world.committed.keys());
            place.left &= live
                .fold(0, |live, key| if let Key::Event(number) = key { live | bit(*number) } else { live });
            let step = &world.sessions[session].step;
            let between = matches!(step, Step::Idle | Step::Done | Step::Start | Step::Commit);
            place.running = (!between).then_some(session);
        }
    }

    pub fn worker_is_due(&self, place: &Place) -> bool {
        self.next_commits(place).any(|(_, commit)| commit.by.is_none())
    }

    /// The time of a lease is over, at the next commit at the latest; if that may be one that the crash undoes, before the
    /// crash.
    pub fn leases_end(&self, place: &Place, next: &mut Vec<Place>) {
        let crash = self.trace.crash.as_ref().filter(|_| self.loses(place));
        let next_commits = self.next_commits(place).map(|(_, commit)| &commit.at);
        let Some(latest) = next_commits.chain(crash.map(|crash| &crash.at)).max() else { return };
        let world = &place.world;
        for (id, row) in tasks(&world.committed) {
            let until = self.trace.leases.get(&(id, row.token));
            let over = row.state == State::Running && until.is_some_and(|until| until <= latest);
            if over && !world.expired.contains(&id) {
                let mut place = place.clone();
                place.world.expired.push(id);
                place.world.expired.sort_unstable();
                place.world.past(id).lease = None;
                next.push(place);
            }
        }
    }

    fn client(&mut self, place: &Place, client: usize, next: &mut Vec<Place>) {
        let (transaction, statement) = place.world.sessions[client].position;
        let Some(played) = self.trace.clients[client].get(usize::from(transaction)) else { return };
        let named = self.names_lease(place, client, played.calls.get(usize::from(statement)));
        let place = named.as_ref().unwrap_or(place);
        let session = &place.world.sessions[client];
        let ending = matches!(session.step, Step::Commit | Step::Publish);
        let statement = if ending { played.calls.len() as u8 } else { statement };
        if self.begun[place.mark][client].is_none_or(|begun| begun < (transaction, statement)) {
            return;
        }
        if session.step == Step::Commit && !matches!(played.end, End::Commit | End::Crashed) {
            if played.end == End::Rollback {
                let mut place = place.clone();
                self.protocol.roll_back(&mut place.world, client);
                next.push(place);
            }
            return;
        }
        let call = played.calls.get(usize::from(statement));
        let told = call.map(|call| &call.told);
        let claims = call.is_some_and(|call| matches!(call.asked, Asked::Claim { .. }));
        let refused = |code: &str| told.is_some_and(|told| *told == Told::Refused(code.to_owned()));
        // The code refuses a predecessor that left nothing but an outcome for the sweep. The model goes by the outcome.
        if refused("QX003") && self.only_outcome(&place.world, client) {
            let mut place = place.clone();
            self.protocol.roll_back(&mut place.world, client);
            next.push(place);
        }
        // So does a claim from a limited queue at its very beginning, for the tasks that have the slots.
        if session.step == Step::Start && self.trace.shape.max_running > 0 && claims {
            for id in &place.world.expired {
                let mut place = place.clone();
                self.protocol.begin(&mut place.world, client);
                self.protocol.expire(&mut place.world, client, *id);
                place.world.sessions[client].step = Step::Events(0);
                next.push(place);
            }
        }
        // A statement that waits for a lock has its snapshot from before.
        if session.transaction.is_none() && played.level == Level::RepeatableRead {
            let mut place = place.clone();
            self.protocol.begin(&mut place.world, client);
            next.push(place);
        }
        // A claim in SQL sweeps now and then, and ends leases that are over.
        if session.step == Step::Choose {
            if self.has_leftovers(place) {
                let mut place = place.clone();
                place.world.sessions[client].step = Step::Sweep(None);
                next.push(place);
            }
            for id in &place.world.expired {
                let mut place = place.clone();
                self.protocol.expire(&mut place.world, client, *id);
                place.world.sessions[client].step = Step::Choose;
                next.push(place);
            }
            // Other sessions may take steps between its snapshot and its locks.
            if place.switches > 0 && session.transaction.is_some() {
                let mut place = place.clone();
                let found = self.protocol.claimable(&place.world, client);
                place.world.sessions[client].step = Step::ChooseFrom(found);
                next.push(place);
            }
        }
        for variant in self.variants(place, client) {
            if let Some(after) = self.step(place, variant, client, call) {
                next.extend(orders(place, after, client));
            }
        }
        // The server ends one of a deadlock, one whose snapshot is too old, and one whose session was ended.
        let cut = refused(CUT) && played.end != End::Crashed;
        if refused("40P01") || cut || refused("40001") && played.level == Level::RepeatableRead {
            let mut place = place.clone();
            self.protocol.roll_back(&mut place.world, client);
            next.push(place);
        }
    }

    /// The statement ends the lease that it names. A client of the model would end the first one that it was given, but
    /// this one knows those as well whose end a crash has undone.
    fn names_lease(&self, place: &Place, client: usize, call: Option<&Call>) -> Option<Place> {
        let (id, token) = call?.asked.lease().filter(|_| place.world.sessions[client].step == Step::Start)?;
        let mut place = place.clone();
        let number = self.trace.number_of(id).unwrap_or(Id::MAX);
        place.world.sessions[client].leases = vec![(number, self.trace.modelled_token(token))];
        Some(place)
    }

    /// Whether a push searches for a predecessor that is gone and left only an outcome.
    fn only_outcome(&self, world: &World, client: usize) -> bool {
        let (Step::PushLookAgain, Some(Statement::Push(_, after))) =
            (&world.sessions[client].step, self.protocol.statement(world, client))
        else {
            return false;
        };
        let view = world.view(client);
        after.iter().any(|id| view.contains_key(&Key::Outcome(*id)) && !view.contains_key(&Key::Ended(*id)))
    }

    /// The session as it is, and where the recording leaves open what it does next.
    fn variants(&self, place: &Place, session: usize) -> Vec<Place> {
        let at = |step: Step| {
            let mut place = place.clone();
            place.world.sessions[session].step = step;
            place
        };
        let mut variants = vec![place.clone()];
        let world = &place.world;
        let has_events =
            |from: u8| world.committed.keys().any(|key| matches!(key, Key::Event(number) if *number > from));
        match world.sessions[session].step {
            Step::Start => {
                // The fast path leaves it to SQL.
                let native = self.protocol.statement(world, session) == Some(Statement::NativeClaim);
                if native && self.protocol.scenario.max_running == 0 {
                    variants.push(at(Step::Events(0)));
                }
            }
            // An event that was postponed is not due for a while.
            Step::Events(from) => {
                let postponed = world.committed.iter().filter_map(|(key, row)| match (key, row) {
                    (Key::Event(number), Row::Event(event))
                        if *number > from
                            && place.left & bit(*number) != 0
                            && (self.was_postponed(place, *event) || self.undoes(place, session)) =>
                    {
                        Some(*number)
                    }
                    _ => None,
                });
                variants.extend(postponed.map(|number| at(Step::Events(number))));
                // A round is bounded.
                if session == world.worker() {
                    variants.push(at(Step::Commit));
                }
            }
            // A claim checks for events again.
            Step::Choose if has_events(0) => variants.push(at(Step::Events(0))),
            // The worker ends several at once.
            Step::Commit if session == world.worker() => {
                variants.extend(world.expired.iter().map(|id| at(Step::Expire(*id))));
            }
            _ => {}
        }
        variants
    }

    /// Whether a sweep may find something.
    fn has_leftovers(&self, place: &Place) -> bool {
        self.trace.leftovers || self.loses(place)
    }

    /// Whether the log may lack an event that the session's transaction has postponed, because that was rolled back.
    fn undoes(&self, place: &Place, session: usize) -> bool {
        let played = self.trace.clients.get(session);
        let played =
            played.and_then(|played| played.get(usize::from(place.world.sessions[session].position.0)));
        played.is_some_and(|played| {
            played.end != End::Commit
                || played.calls.iter().any(|call| matches!(call.asked, Asked::RollBackTo(_)))
        })
    }

    fn was_postponed(&self, place: &Place, event: Event) -> bool {
        self.loses(place)
            || self.trace.postponed.iter().any(|subject| match (event, subject) {
                (Event::Dependent(number), Some(id)) => self.trace.number_of(*id) == Some(number),
                (Event::Group, None) => true,
                _ => false,
            })
    }

    fn worker(&mut self, place: &Place, next: &mut Vec<Place>) {
        let worker = place.world.worker();
        if !self.trace.worker {
            return;
        }
        if place.world.worker_idle() {
            if place.world.committed.keys().any(|key| matches!(key, Key::Event(_))) {
                let mut place = place.clone();
                self.protocol.begin_job(&mut place.world, Step::Events(0));
                next.push(place);
            }
            if self.has_leftovers(place) && self.worker_is_due(place) {
                let mut place = place.clone();
                self.protocol.begin_job(&mut place.world, Step::Sweep(None));
                next.push(place);
            }
            for id in &place.world.expired {
                let mut place = place.clone();
                self.protocol.begin_job(&mut place.world, Step::Expire(*id));
                next.push(place);
            }
            return;
        }
        for variant in self.variants(place, worker) {
            if let Some(after) = self.step(place, variant, worker, None) {
                next.extend(self.out_of_time(place, &after));
                next.extend(orders(place, after, worker));
            }
        }
    }
}

impl Search<'_> {
    /// The worker's time is over after it has admitted a task: it leaves an event about the others of the group
    /// (admit_next).
    fn out_of_time(&self, before: &Place, after: &Place) -> Option<Place> {
        let worker = after.world.worker();
        let (Step::Admit(..), Step::Admit(event, _)) =
            (&before.world.sessions[worker].step, &after.world.sessions[worker].step)
        else {
            return None;
        };
        let (event, mut place) = (*event, after.clone());
        self.protocol.next_item(&mut place.world, worker, event);
        place.world.write_event(worker, Event::Group);
        place.world.sessions[worker].step = Step::Commit;
        Some(place)
    }
}

/// The end of a task writes the events of those that wait for it in any order (notify_dependents).
fn orders(before: &Place, after: Place, session: usize) -> Vec<Place> {
    if !matches!(before.world.sessions[session].step, Step::Notify(..)) {
        return vec![after];
    }
    let written = |place: &Place| {
        let open = place.world.sessions[session].transaction.as_ref();
        let writes = open.map(|open| open.writes.clone()).unwrap_or_default();
        let dependent = |(key, row)| match row {
            Some(row @ Row::Event(Event::Dependent(_))) => Some((key, row)),
            _ => None,
        };
        writes.into_iter().filter_map(dependent).collect::<Vec<_>>()
    };
    let had = written(before);
    let new: Vec<_> = written(&after).into_iter().filter(|event| !had.contains(event)).collect();
    let mut orders = vec![after];
    // Each event stays where it is, or changes places with one before it: that leads to every order once.
    for (last, (key, _)) in new.iter().enumerate() {
        let shorter = orders.clone();
        for (other, _) in &new[..last] {
            orders.extend(shorter.iter().cloned().map(|mut place| {
                let writes = &mut place.world.transaction(session).writes;
                let (one, two) = (writes[key], writes[other]);
                writes.insert(*key, two);
                writes.insert(*other, one);
                place
            }));
        }
    }
    orders
}

fn bit(number: u8) -> u128 {
    1_u128.checked_shl(number.into()).unwrap_or(0)
}
