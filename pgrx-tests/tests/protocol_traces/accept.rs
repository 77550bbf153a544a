//! Whether the model can produce the recording.
//!
//! The search starts with the initial world and takes the model's own steps in any order that the recording allows: a
//! statement of a client takes its steps between its two marks in the recording, and must give the recorded answer.
//! Each commit that changes rows must be the next one in the log, by the same client or by the worker, with exactly
//! those rows. Row locks, snapshots, the lane and the worker's rounds are not recorded and therefore free. The trace
//! is accepted if some order of steps leads to its end.

use super::protocol::Protocol;
use super::rules::Rules;
use super::script::scenario;
use super::trace::{Commit, Trace};
use super::world::{Step, World};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How often a session may be interrupted in the middle of a statement, and after how many states to give up. Most traces
/// need few interruptions, and the number of states grows with each.
pub type Phases = &'static [(u8, usize)];

/// For code that is expected to be right. Most traces are accepted after some hundred states.
pub const THOROUGH: Phases = &[
    (0, 20_000),
    (1, 20_000),
    (2, 50_000),
    (0, 300_000),
    (1, 300_000),
    (3, 100_000),
    (2, 500_000),
    (u8::MAX, 300_000),
];

/// For code that is expected to be wrong. Traces that need more are of no use.
pub const QUICK: Phases = &[(0, 1_000), (1, 1_000), (u8::MAX, 40_000)];

/// The result of a search.
#[derive(Debug)]
pub enum Verdict {
    /// After so many states.
    Accepted(usize),
    /// How far the model could follow.
    Rejected(String),
    /// Too many states.
    Undecided(String),
}

/// How far a search has come.
#[derive(Clone)]
pub struct Place {
    pub world: World,
    /// How many marks of the trace lie behind, and which commits: a bit each.
    pub mark: usize,
    pub done: u128,
    /// The session that is in the middle of a statement, or between a commit and its publication.
    pub running: Option<usize>,
    /// How often it may still be interrupted by another one.
    pub switches: u8,
    /// The events that were postponed, one bit each.
    pub left: u128,
    /// Whether the crash lies behind.
    pub crashed: bool,
    /// The commits that the crash undoes, if there are some so far.
    pub lost: Option<Lost>,
}

/// From the first commit on that a crash undoes, no later commit survives. But a commit that is in the log before it may
/// become visible later, because its session still waits for the disk.
#[derive(Clone, Copy, Hash)]
pub struct Lost {
    /// How many of the commits that were not flushed are before it.
    pub survive: usize,
    /// The sessions that were about to commit, a bit each.
    pub before: u16,
}

pub struct Search<'a> {
    pub trace: &'a Trace,
    pub protocol: Protocol,
    /// After so many marks, the last statement that each client began.
    pub begun: Vec<Vec<Option<(u8, u8)>>>,
    /// Whether a promise of the model was broken somewhere.
    pub broken: bool,
    /// Whether a transaction may undo what it has written.
    pub patient: bool,
    /// Whether the crash undid something, about which the log is silent.
    pub loses: bool,
}

/// Searches for steps of the model that produce the trace.
pub fn accept(trace: &Trace, phases: Phases) -> Verdict {
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
    let loses = trace.loses();
    let mut search = Search { trace, protocol, begun, broken: false, patient: false, loses };
    if !trace.drained {
        let end = (trace.marks.len(), trace.commits.len());
        return Verdict::Rejected(format!("not all tasks came to their end: {}", trace.describe(end)));
    }
    if trace.commits.len() > 128 {
        return Verdict::Undecided(trace.describe((0, 0)));
    }
    // The lane may have forgotten the queue, or know that it is empty.
    let beginnings = [(0, true), (super::lane::END, true), (super::lane::END, false)];
    let beginnings = &beginnings[..if scenario.lane > 0 { 3 } else { 1 }];
    let (mut states, mut furthest) = (0, (0, 0));
    for &(switches, most) in phases {
        let mut decided = switches == u8::MAX;
        search.patient = decided;
        for (known_below, events) in beginnings {
            let mut world = scenario.begin();
            (world.lane.known_below, world.lane.events) = (*known_below, *events);
            let came = search.from(world, switches, most);
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

/// The result of a search from one start.
struct Came {
    accepted: bool,
    states: usize,
    furthest: (usize, usize),
}

impl Search<'_> {
    fn from(&mut self, world: World, switches: u8, most: usize) -> Came {
        let first =
            Place { world, mark: 0, done: 0, running: None, switches, left: 0, crashed: false, lost: None };
        let mut open = vec![first];
        let (mut seen, mut furthest) = (HashMap::new(), (0, 0));
        let mut states = 0;
        while let Some(mut place) = open.pop() {
            self.pass_marks(&mut place);
            furthest = furthest.max((place.mark, place.done.count_ones() as usize));
            let accepted = furthest == (self.trace.marks.len(), self.trace.commits.len());
            if accepted || states >= most {
                return Came { accepted, states, furthest };
            }
            let mut hasher = DefaultHasher::new();
            (&place.world, place.mark, place.done, place.running, place.left).hash(&mut hasher);
            (place.crashed, place.lost).hash(&mut hasher);
            let had = seen.entry(hasher.finish()).or_insert(None);
            if had.is_none_or(|had| had < place.switches) {
                *had = Some(place.switches);
                states += 1;
                // The likeliest one is the first, and comes last.
                let mut next = self.next(&place);
                next.reverse();
                open.append(&mut next);
            }
        }
        Came { accepted: false, states, furthest }
    }

    fn why(&self, furthest: (usize, usize)) -> String {
        let broken = if self.broken { "a promise is broken on the way: " } else { "" };
        format!("{broken}{}", self.trace.describe(furthest))
    }

    /// A statement that begins may take its steps later, and one that has come to its end has ended.
    fn pass_marks(&self, place: &mut Place) {
        while let Some(mark) = self.trace.marks.get(place.mark).filter(|_| !self.is_doomed(place)) {
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

    /// What can come next. A session in the middle of a statement continues, unless it waits or is interrupted.
    fn next(&mut self, place: &Place) -> Vec<Place> {
        let mut next: Vec<_> = self.crash(place).into_iter().collect();
        let crashes = next.len();
        let mut switches = place.switches;
        if let Some(running) = place.running {
            self.session(place, running, &mut next);
            if next.len() > crashes && switches < u8::MAX {
                let Some(left) = switches.checked_sub(1) else { return next };
                switches = left;
            }
        }
        let others = next.len();
        // First the client that the recording waits for.
        let first = self.trace.marks.get(place.mark).map_or(0, |mark| mark.client);
        let clients = self.trace.clients.len();
        let mut order: Vec<_> = (0..clients).map(|turn| (first + turn) % clients).collect();
        let due = self.worker_is_due(place);
        order.insert(if due { 0 } else { clients }, place.world.worker());
        for session in order {
            if place.running != Some(session) {
                self.session(place, session, &mut next);
            }
        }
        self.leases_end(place, &mut next);
        next[others..].iter_mut().for_each(|place| place.switches = switches);
        next
    }

    /// Whether commits may happen here that the log does not have, because the crash undoes them.
    pub fn loses(&self, place: &Place) -> bool {
        self.loses && !place.crashed
    }

    /// Whether the client has sent COMMIT or ROLLBACK for the transaction that it is at.
    pub fn is_ending(&self, place: &Place, client: usize) -> bool {
        let (transaction, _) = place.world.sessions[client].position;
        let last = self.calls(client, transaction) as u8;
        self.begun[place.mark][client].is_some_and(|begun| begun >= (transaction, last))
    }

    /// Whether nothing is recorded from here on before the server is killed.
    fn is_doomed(&self, place: &Place) -> bool {
        !place.crashed && self.trace.crash.as_ref().is_some_and(|crash| crash.mark == place.mark)
    }

    /// The server is killed: of the commits, those in the log stay.
    fn crash(&self, place: &Place) -> Option<Place> {
        let waits = |(number, commit): (usize, &Commit)| !commit.afterwards && place.done & 1 << number == 0;
        if !self.is_doomed(place) || self.trace.commits.iter().enumerate().any(waits) {
            return None;
        }
        let mut place = place.clone();
        self.protocol.crash(&mut place.world, place.lost.map_or(usize::MAX, |lost| lost.survive));
        for (session, played) in place.world.sessions.iter_mut().zip(&self.trace.clients) {
            let next = usize::from(session.position.0);
            if played.get(next).is_some_and(|played| !played.afterwards) {
                session.position = (next as u8 + 1, 0);
                session.step = if next + 1 < played.len() { Step::Start } else { Step::Done };
            }
        }
        (place.crashed, place.lost, place.running) = (true, None, None);
        Some(place)
    }
}
