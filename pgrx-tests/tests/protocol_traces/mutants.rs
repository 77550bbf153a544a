//! Breaks a rule of the code on purpose: the model must not accept the resulting traces. PROTOCOL_TRACES="the end"
//! prints the traces of the mutants whose names begin with that.

use super::accept::QUICK;
use super::record::Options;
use super::{STAGES, Server};
use std::time::{Duration, Instant};

/// A function of the SQL implementation, the text to replace, and its replacement.
struct Mutant {
    name: &'static str,
    /// Where it shows soonest; empty: anywhere.
    shape: &'static str,
    opening: &'static str,
    /// Whether it shows after a crash.
    crash: bool,
    /// Whether ROLLBACK TO SAVEPOINT does nothing within another one.
    keeps_undone: bool,
    changes: &'static [(&'static str, &'static str, &'static str)],
}

const ANY: Mutant =
    Mutant { name: "", shape: "", opening: "", crash: false, keeps_undone: false, changes: &[] };

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a completion does not check the token",
        changes: &[("queue_internal.complete", "AND t.token = complete.token AND t.state = 'running'", "")],
        ..ANY
    },
    Mutant {
        name: "a claim takes what others have leased",
        changes: &[
            ("queue_internal.claim_from", "AND t.lease_until <= moment", ""),
            ("queue_internal.end_expired", "AND t.lease_until <= clock_timestamp()", ""),
        ],
        ..ANY
    },
    Mutant {
        name: "the token stands still",
        changes: &[
            ("queue_internal.claim_from", "token = new_token,", ""),
            (
                "queue_internal.claim(interval, text, integer, text)",
                "token = greatest(t.token + 1, s.base),",
                "",
            ),
        ],
        ..ANY
    },
    Mutant {
        name: "a claim starts more than there are slots",
        shape: "limited",
        changes: &[
            ("queue_internal.claim_from", "AND NOT queue_internal.has_capacity(source)", "AND false"),
            (
                "queue_internal.claim_from",
                "EXIT walk WHEN started IS NULL;",
                "started := coalesce(started, clock_timestamp());",
            ),
        ],
        ..ANY
    },
    Mutant {
        name: "a task of a group does not wait for its turn",
        shape: "grouped",
        changes: &[("queue_internal.task_arrives", "THEN 0 ELSE 2 END", "THEN 0 ELSE 1 END")],
        ..ANY
    },
    Mutant {
        name: "a claim leaves the event of a group that nobody has locked",
        shape: "grouped",
        changes: &[("queue_internal.lock_group", "RETURN true;", "RETURN random() < 0.7;")],
        ..ANY
    },
    Mutant {
        name: "a retried task comes after a younger one",
        shape: "grouped",
        opening: "an older task is retried",
        changes: &[("queue_internal.next_admission", "ELSIF latest > first.id THEN", "ELSIF false THEN")],
        ..ANY
    },
    Mutant {
        name: "no event for the group of an unblocked task",
        shape: "grouped",
        opening: "a task of a group waits",
        changes: &[("queue_internal.unblock", "IF task.group_key IS NOT NULL THEN", "IF false THEN")],
        ..ANY
    },
    Mutant {
        name: "the end records no outcome",
        changes: &[(
            "queue_internal.notify_dependents",
            "SET outcome = notify_dependents.outcome",
            "SET outcome = d.outcome",
        )],
        ..ANY
    },
    Mutant {
        name: "the end writes no event",
        changes: &[("queue_internal.notify_dependents", "WHERE o.queue IS NOT NULL", "WHERE false")],
        ..ANY
    },
    Mutant {
        name: "cancelled means completed",
        shape: "plain",
        opening: "a predecessor is cancelled",
        changes: &[("queue_internal.process_dependent", "'{failed, cancelled, purged}'", "'{failed}'")],
        ..ANY
    },
    Mutant {
        name: "one predecessor is enough",
        shape: "plain",
        opening: "a task waits for two",
        changes: &[(
            "queue_internal.process_dependent",
            "queue_internal.waits_for_another(task.id)",
            "(SELECT count(*) > 1 FROM queue_internal.dependencies AS d WHERE d.task_id = task.id AND d.outcome IS NULL)",
        )],
        ..ANY
    },
    Mutant {
        name: "what was given back is dropped",
        changes: &[(
            "queue_internal.requeue",
            "UPDATE queue.tasks AS t",
            "DELETE FROM queue.tasks AS t WHERE t.id = task.id; UPDATE queue.tasks AS t",
        )],
        ..ANY
    },
    Mutant {
        name: "some completions leave nothing",
        changes: &[(
            "queue_internal.complete",
            "FROM ended AS e\n    )",
            "FROM ended AS e WHERE e.id % 5 > 0\n    )",
        )],
        ..ANY
    },
    Mutant {
        name: "a purge takes what runs",
        shape: "plain",
        opening: "a purge beside a running task",
        changes: &[("queue_internal.purge", "AND t.state <> 'running'", "")],
        ..ANY
    },
    Mutant {
        name: "a savepoint within another one is not rolled back",
        shape: "plain",
        opening: "savepoints within savepoints",
        keeps_undone: true,
        ..ANY
    },
    Mutant {
        name: "tokens begin again after a crash",
        crash: true,
        changes: &[(
            "queue_internal.claim_from",
            "greatest(candidate.token + 1, base)",
            "candidate.token + 1",
        )],
        ..ANY
    },
];

#[test]
fn the_model_refuses_what_broken_code_does() {
    let servers = [Server::start("traces-mutants", true), Server::start("traces-mutants-alone", false)];
    let options = |mutant: &Mutant| Options {
        // The mutants are of the SQL implementation.
        native: 0,
        // On a slow machine, left-over tasks prove nothing.
        patience: Duration::from_secs(if mutant.opening.is_empty() { 2 } else { 20 }),
        phases: QUICK,
        shape: mutant.shape,
        opening: mutant.opening,
        worker: mutant.opening.is_empty(),
        crash: mutant.crash,
        keeps_undone: mutant.keeps_undone,
        ..super::options()
    };
    let mut first = 0;
    let mut accepted = Vec::new();
    for mutant in MUTANTS {
        // Whatever a client does not do could be what a worker is about to do.
        let server = &servers[usize::from(!mutant.opening.is_empty())];
        let mut clients: Vec<_> = (0..STAGES).map(|stage| server.connect(stage)).collect();
        let mut restore = Vec::new();
        for (function, old, new) in mutant.changes {
            let query = "SELECT pg_get_functiondef(CASE WHEN $1 LIKE '%)' THEN $1::text::regprocedure::oid
                                                   ELSE $1::text::regproc::oid END)";
            let definition: String = clients[0].query_one(query, &[function]).expect(function).get(0);
            assert!(definition.contains(old), "{function} has no {old}");
            let broken = definition.replace(old, new);
            clients.iter_mut().for_each(|client| client.batch_execute(&broken).expect(function));
            restore.push(definition);
        }
        let started = Instant::now();
        let (mut seen, mut events) = (None, 0);
        for _ in 0..80 {
            let came = server.round(&mut first, if mutant.crash { 1 } else { 12 }, &options(mutant));
            events += came.events;
            seen = came.rejected.into_iter().next();
            if seen.is_some() {
                break;
            }
        }
        match seen {
            Some(why) => {
                let seconds = started.elapsed().as_secs_f64();
                println!("{:60} refused after {events} events, {seconds:.1} s", mutant.name);
                if std::env::var("PROTOCOL_TRACES").is_ok_and(|name| mutant.name.starts_with(&name)) {
                    println!("{why}");
                }
            }
            None => accepted.push(mutant.name),
        }
        // The last one first: a function may have been changed twice.
        for stage in 0..STAGES {
            let mut client = server.connect(stage);
            let mut mend = |definition: &String| client.batch_execute(definition).expect("mend the function");
            restore.iter().rev().for_each(&mut mend);
            server.clean(stage);
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
}
