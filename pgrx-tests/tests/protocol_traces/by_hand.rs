//! Recordings of crashes that are written by hand, with the verdict that each must have.

use super::accept::{QUICK, Verdict, accept};
use super::record::SHAPES;
use super::rows::{Admission, Key, Level, Outcome, Row, State, Task, Token};
use super::trace::{Asked, Call, Changes, Commit, Crash, End, Mark, Played, RESERVE, Told, Trace};
use std::collections::{HashMap, HashSet};

/// Of the tasks, which have the numbers 0 and 1 in the model.
const FIRST: i64 = 100;
const SECOND: i64 = 101;
/// The smallest token after the crash, and the model's.
const BASE: i64 = 1_000;
const NEXT: Token = RESERVE + 2;

const LATE: &str = "2026-01-01 00:00:01.000000";
const CRASHED: &str = "2026-01-01 00:00:02.000000";

/// A recording, to which one transaction is added after the other.
struct Recording(Trace);

fn push(id: i64) -> Call {
    Call { asked: Asked::Push { grouped: false, after: Vec::new() }, told: Told::Pushed(id) }
}

fn claim(short: bool, lease: Option<(i64, i64)>) -> Call {
    Call { asked: Asked::Claim { short }, told: Told::Claimed(lease) }
}

fn complete(id: i64, token: i64) -> Call {
    Call { asked: Asked::Complete(id, token), told: Told::Done }
}

fn task(number: u8, state: State, token: Token) -> Changes {
    let row = Row::Task(Task { state, token, admission: Admission::Open });
    [(Key::Task(number), Some(row))].into()
}

fn queued(number: u8) -> Changes {
    task(number, State::Queued, 0)
}

fn running(number: u8, token: Token) -> Changes {
    task(number, State::Running, token)
}

fn completed(number: u8, token: Token) -> Changes {
    let row = Row::Ended(Outcome::Completed, token);
    [(Key::Task(number), None), (Key::Ended(number), Some(row))].into()
}

impl Recording {
    /// Of three clients, in a queue without policies and without a worker.
    fn new() -> Self {
        Self(Trace {
            number: 0,
            shape: &SHAPES[0],
            clients: vec![Vec::new(), Vec::new(), Vec::new()],
            marks: Vec::new(),
            ids: vec![FIRST, SECOND],
            drained: true,
            commits: Vec::new(),
            postponed: Vec::new(),
            leftovers: false,
            leases: HashMap::new(),
            base: 1,
            worker: false,
            crash: None,
        })
    }

    fn mark(&mut self, client: usize, statement: usize, begins: bool) {
        let transaction = self.0.clients[client].len() as u8 - 1;
        self.0.marks.push(Mark { client, statement: (transaction, statement as u8), begins });
    }

    /// A statement, and COMMIT, whose answer is still to come. The log has these changes, if it has the commit.
    fn commits(&mut self, client: usize, asynchronous: bool, call: Call, changes: Option<Changes>) {
        let afterwards = self.0.crash.is_some();
        let transaction = self.0.clients[client].len() as u8;
        self.0.clients[client].push(Played {
            level: Level::ReadCommitted,
            native: false,
            asynchronous,
            calls: vec![call],
            end: End::Commit,
            xid: None,
            afterwards,
        });
        for (statement, begins) in [(0, true), (0, false), (1, true)] {
            self.mark(client, statement, begins);
        }
        if let Some(changes) = changes {
            let by = Some((client, transaction));
            self.0.commits.push(Commit { by, at: LATE.to_owned(), afterwards, rows: changes.len(), changes });
        }
    }

    fn committed(&mut self, client: usize) {
        self.mark(client, 1, false);
    }

    /// The whole transaction.
    fn does(&mut self, client: usize, asynchronous: bool, call: Call, changes: Option<Changes>) {
        self.commits(client, asynchronous, call, changes);
        self.committed(client);
    }

    fn crashes(&mut self) {
        let mark = self.0.marks.len();
        self.0.crash = Some(Crash { mark, at: CRASHED.to_owned(), survived: HashSet::new(), base: BASE });
    }

    fn is_accepted(mut self) -> bool {
        self.0.end_lost_leases();
        match accept(&self.0, QUICK) {
            Verdict::Accepted(_) => true,
            Verdict::Rejected(_) => false,
            Verdict::Undecided(why) => panic!("undecided: {why}"),
        }
    }
}

/// The task has been completed, and comes back with the lease of then, or without.
fn an_end_is_undone(asynchronous: bool, the_claim_too: bool) -> bool {
    let mut recording = Recording::new();
    recording.does(0, false, push(FIRST), Some(queued(0)));
    let claimed = (!the_claim_too).then(|| running(0, 1));
    recording.does(1, asynchronous, claim(false, Some((FIRST, 1))), claimed);
    recording.does(1, asynchronous, complete(FIRST, 1), None);
    recording.crashes();
    if the_claim_too {
        recording.does(2, false, claim(false, Some((FIRST, BASE))), Some(running(0, NEXT)));
        recording.does(2, false, complete(FIRST, BASE), Some(completed(0, NEXT)));
    } else {
        recording.does(1, false, complete(FIRST, 1), Some(completed(0, 1)));
    }
    recording.is_accepted()
}

#[test]
fn a_crash_may_undo_only_what_commits_asynchronously() {
    for the_claim_too in [false, true] {
        assert!(an_end_is_undone(true, the_claim_too));
        assert!(!an_end_is_undone(false, the_claim_too));
    }
}

#[test]
fn a_completion_that_survived_is_not_repeated() {
    let mut recording = Recording::new();
    recording.does(0, false, push(FIRST), Some(queued(0)));
    recording.does(1, true, claim(false, Some((FIRST, 1))), Some(running(0, 1)));
    recording.does(1, true, complete(FIRST, 1), Some(completed(0, 1)));
    recording.crashes();
    recording.does(1, false, complete(FIRST, 1), None);
    assert!(!recording.is_accepted());
}

#[test]
fn a_claim_that_a_crash_undoes_does_not_lend_its_token_again() {
    let claims = |asynchronous, token: i64, modelled: Token| {
        let mut recording = Recording::new();
        recording.does(0, false, push(FIRST), Some(queued(0)));
        recording.does(1, asynchronous, claim(false, Some((FIRST, 1))), None);
        recording.crashes();
        recording.does(2, false, claim(false, Some((FIRST, token))), Some(running(0, modelled)));
        recording.does(2, false, complete(FIRST, token), Some(completed(0, modelled)));
        recording.is_accepted()
    };
    assert!(claims(true, BASE, NEXT));
    assert!(!claims(true, 1, 1));
    assert!(!claims(false, BASE, NEXT));
}

/// The log does not show when a lease ended whose claim it does not have.
#[test]
fn a_short_lease_that_a_crash_undoes_may_end_before_it() {
    let claims = |short| {
        let mut recording = Recording::new();
        recording.does(0, false, push(FIRST), Some(queued(0)));
        recording.does(1, true, claim(short, Some((FIRST, 1))), None);
        recording.does(2, true, claim(false, Some((FIRST, 2))), None);
        recording.crashes();
        recording.does(2, false, claim(false, Some((FIRST, BASE))), Some(running(0, NEXT)));
        recording.does(2, false, complete(FIRST, BASE), Some(completed(0, NEXT)));
        recording.is_accepted()
    };
    assert!(claims(true));
    assert!(!claims(false));
}

/// A push waits for the disk. Meanwhile another session commits without waiting, and its commit record is not among those
/// that are written. A third one sees that the push is not yet visible.
#[test]
fn a_commit_that_waits_for_the_disk_may_survive_one_that_is_visible_before_it() {
    let pushes = |meanwhile: bool| {
        let mut recording = Recording::new();
        recording.does(0, false, push(FIRST), Some(queued(0)));
        recording.does(1, true, claim(false, Some((FIRST, 1))), Some(running(0, 1)));
        if meanwhile {
            recording.commits(0, false, push(SECOND), Some(queued(1)));
            recording.does(1, true, complete(FIRST, 1), None);
            recording.does(2, false, claim(false, None), None);
            recording.committed(0);
        } else {
            recording.does(1, true, complete(FIRST, 1), None);
            recording.does(0, false, push(SECOND), Some(queued(1)));
        }
        recording.crashes();
        recording.does(1, false, complete(FIRST, 1), Some(completed(0, 1)));
        recording.does(2, false, claim(false, Some((SECOND, BASE))), Some(running(1, NEXT)));
        recording.does(2, false, complete(SECOND, BASE), Some(completed(1, NEXT)));
        recording.is_accepted()
    };
    assert!(pushes(true));
    assert!(!pushes(false));
}
