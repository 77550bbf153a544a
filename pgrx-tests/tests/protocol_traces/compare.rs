//! Whether a step of the model agrees with the recording: the answers of clients, and the commits.

use super::accept::{Lost, Place, Search};
use super::player::CUT;
use super::protocol::Protocol;
use super::rows::{Id, Key, Note, State, task};
use super::trace::{Asked, Call, Commit, End, Told, changes};
use super::wal::visible;
use super::world::{Step, World};

impl Search<'_> {
    /// The commits that may be the next to become visible: that of the log, and where a session is about to commit, those
    /// behind it as well.
    pub fn next_commits<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (usize, &'a Commit)> {
        let mut blocked = false;
        let left = self.trace.commits.iter().enumerate();
        let left = left
            .filter(|(number, commit)| place.done & 1 << number == 0 && commit.afterwards <= place.crashed);
        left.take_while(move |(_, commit)| {
            let session = commit.by.map_or(place.world.worker(), |(client, _)| client);
            let here = !blocked;
            blocked |= place.world.sessions[session].step != Step::Commit;
            here
        })
    }

    /// Whether the rows that a transaction has written are among those that it will have changed.
    fn plausible(&self, place: &Place, session: usize) -> bool {
        let world = &place.world;
        let Some(open) = &world.sessions[session].transaction else { return true };
        let written = open.writes.iter().filter(|(key, row)| {
            matches!(key, Key::Task(_) | Key::Ended(_) | Key::Dependency(..))
                && world.committed.get(key) != row.as_ref()
        });
        let left = self.trace.commits.iter().enumerate().filter(|(number, _)| place.done & 1 << number == 0);
        let mut left = left.map(|(_, commit)| commit);
        let commit = if session == world.worker() {
            left.find(|commit| commit.by.is_none())
        } else {
            let (transaction, statement) = world.sessions[session].position;
            let (by, played) =
                ((session, transaction), &self.trace.clients[session][usize::from(transaction)]);
            let mut later = played.calls.iter().skip(usize::from(statement));
            // What it has written, it may undo or delete.
            let undone = later.any(|call| matches!(call.asked, Asked::RollBackTo(_) | Asked::Purge));
            if played.end != End::Commit || undone {
                return true;
            }
            if self.trace.is_lost(by) {
                return true;
            }
            left.find(|commit| commit.by == Some(by))
        };
        let mut keys = written.map(|(key, _)| key);
        keys.all(|key| commit.is_some_and(|commit| commit.changes.contains_key(key)))
    }

    /// The session has committed what the crash undoes: only one that does not wait for the disk can.
    fn lose(&self, place: &Place, after: &mut Place, session: usize) -> bool {
        let world = &place.world;
        let survive = world.unflushed.len();
        let is_committing = |other: &usize| {
            let step = &world.sessions[*other].step;
            *step == Step::Commit && (*other == world.worker() || self.is_ending(place, *other))
        };
        let others = (0..world.sessions.len()).filter(|other| *other != session);
        let before = others.filter(is_committing).fold(0, |before, other| before | 1 << other);
        after.lost = place.lost.or(Some(Lost { survive, before }));
        self.protocol.is_asynchronous(world, session) && after.world.unflushed.len() > survive
    }

    /// The session has committed after one that the crash undoes, and the crash leaves what it wrote: it is before that
    /// in the log.
    fn come_before(&self, place: &Place, after: &mut Place, session: usize) -> bool {
        let Some(lost) = after.lost.as_mut().filter(|lost| lost.before & 1 << session != 0) else {
            return false;
        };
        lost.before &= !(1 << session);
        let open = place.world.sessions[session].transaction.as_ref();
        after.world.unflushed.clone_from(&place.world.unflushed);
        for table in &mut after.world.unflushed {
            for (key, row) in open.into_iter().flat_map(|open| &open.writes) {
                match row {
                    Some(row) => table.insert(*key, *row),
                    None => table.remove(key),
                };
            }
        }
        true
    }

    /// One step of the model, if it is possible and goes with the recording.
    pub fn step(
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
        if !committing && !self.patient && !self.plausible(&place_after, session) {
            return None;
        }
        let world = &mut place_after.world;
        if committing {
            let flushes = world.unflushed.len() < place.world.unflushed.len();
            let (old, new) = (visible(&place.world.committed), visible(&world.committed));
            let changes = changes(&old, &new);
            let by = (session != world.worker()).then_some((session, before.position.0));
            if !changes.is_empty() && by.is_some_and(|by| self.trace.is_lost(by)) {
                return self.lose(place, &mut place_after, session).then_some(place_after);
            }
            if place.lost.is_some()
                && (flushes || !changes.is_empty())
                && !self.come_before(place, &mut place_after, session)
            {
                return None;
            }
            if !changes.is_empty() {
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

    /// The statement has ended: whether it gave the recorded answer.
    fn told(&self, before: &Place, after: &mut Place, session: usize, call: &Call) -> bool {
        let leased = |world: &World| -> Vec<Note> {
            let open = world.sessions[session].transaction.as_ref();
            let notes = open.into_iter().flat_map(|open| &open.notes);
            notes.filter(|note| matches!(note, Note::Leased(..))).copied().collect()
        };
        let granted: Vec<_> = leased(&after.world).into_iter().skip(leased(&before.world).len()).collect();
        match (&call.asked, &call.told) {
            // The server was killed before it could answer.
            (_, Told::Refused(code)) if code == CUT && self.trace.crash.is_some() => true,
            (Asked::Claim { .. }, Told::Claimed(None)) => granted.is_empty(),
            (Asked::Claim { .. }, Told::Claimed(Some((id, token)))) => {
                let number = self.trace.number_of(*id).unwrap_or(Id::MAX);
                granted == [Note::Leased(number, self.trace.modelled_token(*token))]
            }
            (Asked::Cancel(id), told) => {
                let number = self.trace.number_of(*id).unwrap_or(Id::MAX);
                let at_once = matches!(before.world.sessions[session].step, Step::Cancel(..));
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
