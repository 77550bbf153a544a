//! A trace as a case of the model: its clients with their statements.

use super::rows::Id;
use super::scenario::{Initial, Scenario, Script, Statement};
use super::trace::{Asked, Call, Played, RESERVE, Told, Trace};
use super::world::Faults;

/// The world that the clients made up as they went.
pub fn scenario(trace: &Trace) -> Scenario {
    let number = |id: &i64| trace.number_of(*id).unwrap_or(Id::MAX);
    let mut group = Vec::new();
    let mut statement = |played: &Played, call: &Call| match &call.asked {
        Asked::Look => Statement::Look,
        Asked::Push { grouped, after } => {
            let predecessors: Vec<Id> = after.iter().map(number).collect();
            // One that was refused has no id, and is never seen.
            let id = if let Told::Pushed(id) = &call.told { number(id) } else { trace.ids.len() as Id };
            if *grouped {
                group.push(id);
            }
            Statement::Push(id, predecessors.leak())
        }
        Asked::Claim { .. } if played.native => Statement::NativeClaim,
        Asked::Claim { .. } => Statement::Claim,
        Asked::Complete(..) => Statement::Complete,
        Asked::Discard(..) => Statement::Discard,
        Asked::Release(..) => Statement::Release,
        Asked::Cancel(id) => Statement::Cancel(number(id)),
        Asked::Retry(id) => Statement::Retry(number(id)),
        Asked::Purge => Statement::Purge,
        Asked::Save(_) => Statement::Save,
        Asked::RollBackTo(number) => Statement::RollBackTo(*number),
        Asked::ReleaseSavepoint(number) => Statement::ReleaseSavepoint(*number),
    };
    let mut clients: Vec<&'static [Script]> = Vec::new();
    for client in &trace.clients {
        let mut scripts = Vec::new();
        for played in client {
            let statements: Vec<_> = played.calls.iter().map(|call| statement(played, call)).collect();
            scripts.push(Script {
                level: played.level,
                statements: statements.leak(),
                asynchronous: played.asynchronous,
            });
        }
        clients.push(scripts.leak());
    }
    // They are as constant as those of the model's own worlds.
    Scenario {
        name: "recorded",
        tasks: vec![Initial::Absent; trace.ids.len() + 1].leak(),
        clients: clients.leak(),
        group: group.leak(),
        group_limit: trace.shape.group_limit,
        max_running: trace.shape.max_running,
        keep_history: trace.shape.keep_history,
        worker: trace.worker,
        reserve: RESERVE,
        faults: Faults { crashes: trace.crash.is_some().into(), ..Scenario::PLAIN.faults },
        lane: if trace.clients.iter().flatten().any(|played| played.native) { 16 } else { 0 },
        ..Scenario::PLAIN
    }
}
