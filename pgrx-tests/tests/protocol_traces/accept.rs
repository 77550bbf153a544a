//! Whether the model can do what was recorded.
//!
//! The search begins with the world as it was, empty, and does the model's own steps, in any order that the recording
//! allows: a client's statement takes its steps between the two marks of the recording, and must lead to what the client
//! was told; each commit that changes rows must be the next one of the log, by the same client or by the worker, and lead
//! to the very rows. What nobody records, such as row locks, snapshots, the lane and the worker's rounds, is free: the
//! trace is accepted if some order of steps leads to its end.

use crate::protocol::Protocol;
use crate::rows::{Event, Id, Key, Level, Note, Row, State, task, tasks};
use crate::rules::Rules;
use crate::scenario::Statement;
use crate::script::{scenario, sweeps};
use crate::trace::{Asked, Call, Commit, End, Told, Trace, changes};
use crate::wal::visible;
use crate::world::{Step, World};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// More states than any trace should need.
const MOST: usize = 200_000;

/// What came of a search.
#[derive(Debug)]
pub enum Verdict {
    /// After so many states.
    Accepted(usize),
    /// How far the model could follow.
    Rejected(String),
    /// Too many states.
    Undecided(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    world: World,
    /// How many marks of the trace lie behind, and which commits: a bit each.
    mark: usize,
    done: u128,
}

struct Search<'a> {
    trace: &'a Trace,
    protocol: Protocol,
    /// After so many marks, the last statement that each client began.
    begun: Vec<Vec<Option<(u8, u8)>>>,
    broken: bool,
    /// Whether an end may not have seen who waits for it, so that a sweep has something to find.
    sweeps: bool,
}

/// Looks for a way of the model through the trace.
pub fn accept(trace: &Trace) -> Verdict {
    let scenario = scenario(trace);
    let mut begun = vec![vec![None; trace.clients.len()]];
    for mark in &trace.marks {
        let mut next = begun[begun.len() - 1].clone();
        if mark.begins {
            next[mark.client] = Some(mark.statement);
        }
        begun.push(next);
    }
    let protocol = Protocol { scenario, rules: Rules::ALL, wanted: None };
    let mut search = Search { trace, protocol, begun, broken: false, sweeps: sweeps(trace) };
    if !trace.drained {
        let end = (trace.marks.len(), trace.commits.len());
        return Verdict::Rejected(format!("not all tasks came to their end: {}", trace.describe(end)));
    }
    if trace.commits.len() > 128 {
        return Verdict::Undecided(trace.describe((0, 0)));
    }
    // The lane may have forgotten the queue, or know that it is empty. A guess that is wrong is given up soon, as a rule.
    let beginnings = [(0, true), (crate::lane::END, true), (crate::lane::END, false)];
    let (mut states, mut furthest) = (0, (0, 0));
    for most in [1_000, MOST] {
        let mut decided = true;
        for (known_below, events) in beginnings {
            let mut world = scenario.begin();
            (world.lane.known_below, world.lane.events) = (known_below, events);
            let came = search.from(world, most);
            states += came.states;
            furthest = furthest.max(came.furthest);
            if came.accepted {
                return Verdict::Accepted(states);
            }
            decided &= came.states < most;
        }
        if decided {
            return Verdict::Rejected(search.why(furthest));
        }
    }
    Verdict::Undecided(trace.describe(furthest))
}

/// What came of a search from one beginning.
struct Came {
    accepted: bool,
    states: usize,
    furthest: (usize, usize),
}

impl Search<'_> {
    fn from(&mut self, world: World, most: usize) -> Came {
        let mut open = vec![Place { world, mark: 0, done: 0 }];
        let (mut seen, mut furthest) = (HashSet::new(), (0, 0));
        while let Some(mut place) = open.pop() {
            self.pass_marks(&mut place);
            furthest = furthest.max((place.mark, place.done.count_ones() as usize));
            let accepted = furthest == (self.trace.marks.len(), self.trace.commits.len());
            if accepted || seen.len() >= most {
                return Came { accepted, states: seen.len(), furthest };
            }
            let mut hasher = DefaultHasher::new();
            place.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                // The likeliest one is the first, and comes last.
                let mut next = self.next(&place);
                next.reverse();
                open.append(&mut next);
            }
        }
        Came { accepted: false, states: seen.len(), furthest }
    }

    fn why(&self, furthest: (usize, usize)) -> String {
        let broken = if self.broken { "a promise is broken on the way: " } else { "" };
        format!("{broken}{}", self.trace.describe(furthest))
    }

    /// A statement that begins may take its steps later, and one that has come to its end has ended.
    fn pass_marks(&self, place: &mut Place) {
        while let Some(mark) = self.trace.marks.get(place.mark) {
            let (at, count) =
                (place.world.sessions[mark.client].position, self.calls(mark.client, mark.statement.0));
            let last = usize::from(mark.statement.1) == count;
            let ended =
                at.0 > mark.statement.0 || at.0 == mark.statement.0 && at.1 > mark.statement.1 && !last;
            if !mark.begins && !ended {
                return;
            }
            place.mark += 1;
        }
    }

    fn calls(&self, client: usize, transaction: u8) -> usize {
        self.trace.clients[client][usize::from(transaction)].calls.len()
    }

    /// What can come next.
    fn next(&mut self, place: &Place) -> Vec<Place> {
        let mut next = Vec::new();
        // First the client that the recording waits for.
        let first = self.trace.marks.get(place.mark).map_or(0, |mark| mark.client);
        let clients = self.trace.clients.len();
        let due = self.worker_is_due(place);
        if due {
            self.worker(place, &mut next);
        }
        for turn in 0..clients {
            self.client(place, (first + turn) % clients, &mut next);
        }
        if !due {
            self.worker(place, &mut next);
        }
        self.leases_end(place, &mut next);
        next
    }

    /// The commits that may be the next to become visible: that of the log, and where a session is about to commit, those
    /// behind it as well.
    fn next_commits<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (usize, &'a Commit)> {
        let mut blocked = false;
        let left = self.trace.commits.iter().enumerate().filter(|(number, _)| place.done & 1 << number == 0);
        left.take_while(move |(_, commit)| {
            let session = commit.by.map_or(place.world.worker(), |(client, _)| client);
            let here = !blocked;
            blocked |= place.world.sessions[session].step != Step::Commit;
            here
        })
    }

    fn worker_is_due(&self, place: &Place) -> bool {
        self.next_commits(place).any(|(_, commit)| commit.by.is_none())
    }

    /// The time of a lease is over, at the next commit at the latest.
    fn leases_end(&self, place: &Place, next: &mut Vec<Place>) {
        let Some(latest) = self.next_commits(place).map(|(_, commit)| &commit.at).max() else { return };
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
        let session = &place.world.sessions[client];
        let (transaction, statement) = session.position;
        let Some(played) = self.trace.clients[client].get(usize::from(transaction)) else { return };
        let ending = matches!(session.step, Step::Commit | Step::Publish);
        let statement = if ending { played.calls.len() as u8 } else { statement };
        if self.begun[place.mark][client].is_none_or(|begun| begun < (transaction, statement)) {
            return;
        }
        if session.step == Step::Commit && played.end != End::Commit {
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
            if self.sweeps {
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
        }
        for variant in self.variants(place, client) {
            if let Some(place) = self.step(place, variant, client, call) {
                next.push(place);
            }
        }
        // The server ends one of a deadlock, and one whose snapshot is too old.
        if refused("40P01") || refused("40001") && played.level == Level::RepeatableRead {
            let mut place = place.clone();
            self.protocol.roll_back(&mut place.world, client);
            // What was refused is not tried again.
            if let Some((id, token)) = call.and_then(|call| call.asked.lease()) {
                let lease =
                    (self.trace.number_of(id).unwrap_or(Id::MAX), u8::try_from(token).unwrap_or(u8::MAX));
                place.world.sessions[client].leases.retain(|held| *held != lease);
            }
            next.push(place);
        }
    }

    /// Whether a push looks for a predecessor that is gone and left nothing but an outcome.
    fn only_outcome(&self, world: &World, client: usize) -> bool {
        let Step::PushLookAgain(place) = world.sessions[client].step else { return false };
        let Some(Statement::Push(_, after)) = self.protocol.statement(world, client) else { return false };
        let (view, id) = (world.view(client), after[usize::from(place)]);
        view.contains_key(&Key::Outcome(id)) && !view.contains_key(&Key::Ended(id))
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
                        if *number > from && self.was_postponed(*event) =>
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
            // A claim looks again for events.
            Step::Choose if has_events(0) => variants.push(at(Step::Events(0))),
            // The worker ends several at once.
            Step::Commit if session == world.worker() => {
                variants.extend(world.expired.iter().map(|id| at(Step::Expire(*id))));
            }
            _ => {}
        }
        variants
    }

    fn was_postponed(&self, event: Event) -> bool {
        self.trace.postponed.iter().any(|subject| match (event, subject) {
            (Event::Dependent(number), Some(id)) => self.trace.number_of(*id) == Some(number),
            (Event::Group, None) => true,
            _ => false,
        })
    }

    fn worker(&mut self, place: &Place, next: &mut Vec<Place>) {
        let worker = place.world.worker();
        if place.world.worker_idle() {
            if place.world.committed.keys().any(|key| matches!(key, Key::Event(_))) {
                let mut place = place.clone();
                self.protocol.begin_job(&mut place.world, Step::Events(0));
                next.push(place);
            }
            if self.sweeps && self.worker_is_due(place) {
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
            next.extend(self.step(place, variant, worker, None));
        }
    }

    /// One step of the model, if it is possible and goes with the recording.
    fn step(
        &mut self,
        place: &Place,
        mut place_after: Place,
        session: usize,
        call: Option<&Call>,
    ) -> Option<Place> {
        let before = &place.world.sessions[session];
        let committing = place_after.world.sessions[session].step == Step::Commit;
        let world = &mut place_after.world;
        let wanted = call.and_then(|call| match &call.told {
            Told::Claimed(Some((id, _))) => self.trace.number_of(*id),
            _ => None,
        });
        if !(Protocol { wanted, ..self.protocol }).step(world, session) {
            return None;
        }
        // A sweep is not for the lane here, and a claim goes on after it.
        if matches!(before.step, Step::Sweep(_)) && !matches!(world.sessions[session].step, Step::Sweep(_)) {
            if world.lane.refiller == Some(session) {
                world.lane.refiller = None;
            }
            let worker = session == world.worker();
            world.sessions[session].step = if worker { Step::Commit } else { Step::Events(0) };
        }
        if world.memory.broken != 0 {
            self.broken = true;
            return None;
        }
        if committing {
            let (old, new) = (visible(&place.world.committed), visible(&world.committed));
            let changes = changes(&old, &new);
            if !changes.is_empty() {
                let by = (session != world.worker()).then_some((session, before.position.0));
                // The worker's commits are told apart by their order.
                let (number, commit) = self.next_commits(place).find(|(_, commit)| commit.by == by)?;
                let earlier = self.next_commits(place).take_while(|(other, _)| *other < number);
                let apart = |other: &Commit| other.changes.keys().all(|key| !changes.contains_key(key));
                if commit.changes != changes || !earlier.map(|(_, other)| other).all(apart) {
                    return None;
                }
                place_after.done |= 1 << number;
            }
            return Some(place_after);
        }
        let Some(call) = call else { return Some(place_after) };
        let after = world.sessions[session].position;
        if after.0 > before.position.0 {
            return matches!(call.told, Told::Refused(_)).then_some(place_after);
        } else if after.1 == before.position.1 {
            return Some(place_after);
        }
        self.told(place, &mut place_after, session, call).then_some(place_after)
    }

    /// The statement has come to its end. Whether it led to what the client was told.
    fn told(&self, before: &Place, after: &mut Place, session: usize, call: &Call) -> bool {
        let leased = |world: &World| -> Vec<Note> {
            let open = world.sessions[session].transaction.as_ref();
            let notes = open.into_iter().flat_map(|open| &open.notes);
            notes.filter(|note| matches!(note, Note::Leased(..))).copied().collect()
        };
        let granted = leased(&after.world).split_off(leased(&before.world).len());
        match (&call.asked, &call.told) {
            (Asked::Claim { .. }, Told::Claimed(None)) => granted.is_empty(),
            (Asked::Claim { .. }, Told::Claimed(Some((id, token)))) => {
                let number = self.trace.number_of(*id).unwrap_or(Id::MAX);
                granted == [Note::Leased(number, u8::try_from(*token).unwrap_or(u8::MAX))]
            }
            (Asked::Cancel(id), told) => {
                let number = self.trace.number_of(*id).unwrap_or(Id::MAX);
                let at_once = before.world.sessions[session].step == Step::Start;
                let row = task(&after.world.view(session), number);
                match told {
                    Told::Running => at_once && row.is_some_and(|row| row.state == State::Running),
                    // It has ended, or was never there.
                    Told::Refused(code)
                        if at_once && row.is_none() && ["QX003", "QX005"].contains(&code.as_str()) =>
                    {
                        self.protocol.roll_back(&mut after.world, session);
                        true
                    }
                    told => !at_once && *told == Told::Done,
                }
            }
            (_, told) => !matches!(told, Told::Refused(_)),
        }
    }
}
