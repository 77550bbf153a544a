//! What one client does alone before a world begins, because random transactions seldom come to it. Each world has one of
//! these now and then, and some mutants show in nothing else.

use super::player::Player;
use super::rows::Level;
use super::trace::Asked;
use std::sync::atomic::Ordering;

/// A name, whether it takes a group, and what it does.
pub type Opening = (&'static str, bool, fn(&mut Player<'_>));

pub const OPENINGS: &[Opening] = &[
    ("an older task is retried", true, an_older_task_is_retried),
    ("a task of a group waits", true, a_task_of_a_group_waits),
    ("a task waits for two", false, a_task_waits_for_two),
    ("a predecessor is cancelled", false, a_predecessor_is_cancelled),
    ("a purge beside a running task", false, a_purge_beside_a_running_task),
    ("savepoints within savepoints", false, savepoints_within_savepoints),
];

/// For a server that is killed when nobody has anything to do but to end the tasks that are left.
pub const UNDONE_END: Opening = ("an end is undone", false, an_end_is_undone);

/// So many marks are recorded until the end has committed: two for each statement and each COMMIT.
pub const UNTIL_UNDONE: usize = 12;

const CLAIM: Asked = Asked::Claim { short: false };

fn push(grouped: bool, after: &[i64]) -> Asked {
    Asked::Push { grouped, after: after.to_vec() }
}

impl Player<'_> {
    /// A transaction of these statements.
    fn does(&mut self, asked: &[Asked]) {
        let pushes = asked.iter().filter(|asked| matches!(asked, Asked::Push { .. })).count();
        self.world.pushed.fetch_add(pushes, Ordering::Relaxed);
        let mut asked = asked.iter().cloned();
        self.transaction(Level::ReadCommitted, false, &mut |_| asked.next());
    }

    /// Ends the oldest lease.
    fn ends(&mut self, how: fn(i64, i64) -> Asked) {
        if let Some((id, token)) = self.leases.pop_front() {
            self.does(&[how(id, token)]);
        }
    }

    fn last_pushed(&self) -> i64 {
        self.known().last().copied().unwrap_or_default()
    }
}

/// The younger one is admitted and does not run when the older one comes back.
fn an_older_task_is_retried(player: &mut Player<'_>) {
    player.does(&[push(true, &[])]);
    let older = player.last_pushed();
    player.does(&[push(true, &[])]);
    player.does(&[CLAIM]);
    player.ends(Asked::Discard);
    player.does(&[CLAIM]);
    player.ends(Asked::Release);
    player.does(&[Asked::Retry(older)]);
    player.does(&[CLAIM]);
}

/// The claim that finds nothing sweeps, and so the last one does not: it finds the unblocked task only by an event.
fn a_task_of_a_group_waits(player: &mut Player<'_>) {
    player.does(&[push(false, &[])]);
    let first = player.last_pushed();
    player.does(&[push(true, &[first])]);
    player.does(&[CLAIM]);
    player.does(&[CLAIM]);
    player.ends(Asked::Complete);
    player.does(&[CLAIM]);
}

fn a_task_waits_for_two(player: &mut Player<'_>) {
    player.does(&[push(false, &[])]);
    let first = player.last_pushed();
    player.does(&[push(false, &[])]);
    let second = player.last_pushed();
    player.does(&[push(false, &[first, second])]);
    player.does(&[CLAIM]);
    player.ends(Asked::Complete);
    player.does(&[CLAIM]);
    player.ends(Asked::Complete);
}

fn a_predecessor_is_cancelled(player: &mut Player<'_>) {
    player.does(&[push(false, &[])]);
    let first = player.last_pushed();
    player.does(&[push(false, &[first])]);
    player.does(&[Asked::Cancel(first)]);
    player.does(&[CLAIM]);
}

fn a_purge_beside_a_running_task(player: &mut Player<'_>) {
    player.does(&[push(false, &[])]);
    let first = player.last_pushed();
    player.does(&[push(false, &[])]);
    player.does(&[push(false, &[first])]);
    player.does(&[CLAIM]);
    player.does(&[Asked::Purge]);
    player.ends(Asked::Complete);
}

/// The claim is on disk. The end, which comes when the opening is over, is acknowledged and is not.
fn an_end_is_undone(player: &mut Player<'_>) {
    player.asynchronous = false;
    player.choose_path();
    player.does(&[push(false, &[])]);
    player.does(&[CLAIM]);
    player.asynchronous = true;
    player.choose_path();
}

/// Of the tasks, the first two stay.
fn savepoints_within_savepoints(player: &mut Player<'_>) {
    player.does(&[
        push(false, &[]),
        Asked::Save(0),
        push(false, &[]),
        Asked::Save(1),
        push(false, &[]),
        Asked::RollBackTo(1),
        Asked::ReleaseSavepoint(1),
        Asked::Save(1),
        push(false, &[]),
        Asked::RollBackTo(1),
        Asked::ReleaseSavepoint(0),
    ]);
}
