//! Breaks a rule of the code on purpose: the model must not accept the resulting traces. PROTOCOL_TRACES="the end"
//! prints the traces of the mutants whose names begin with that.

use crate::accept::{QUICK, THOROUGH};
use crate::record::Options;
use crate::{STAGES, Server, seed};
use std::time::{Duration, Instant};

/// A function of the SQL implementation, the text to replace, and its replacement.
struct Mutant {
    name: &'static str,
    /// Where it shows soonest; empty: anywhere.
    shape: &'static str,
    /// It takes many worlds, and is left out unless TRACES asks for more.
    rare: bool,
    changes: &'static [(&'static str, &'static str, &'static str)],
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a completion does not check the token",
        shape: "",
        rare: false,
        changes: &[("queue_internal.complete", "AND t.token = complete.token AND t.state = 'running'", "")],
    },
    Mutant {
        name: "a claim takes what others have leased",
        shape: "",
        rare: false,
        changes: &[
            ("queue_internal.claim_from", "AND t.lease_until <= moment", ""),
            ("queue_internal.end_expired", "AND t.lease_until <= clock_timestamp()", ""),
        ],
    },
    Mutant {
        name: "the token stands still",
        shape: "",
        rare: false,
        changes: &[("queue_internal.claim_from", "token = new_token,", "")],
    },
    Mutant {
        name: "a claim starts more than there are slots",
        shape: "limited",
        rare: false,
        changes: &[
            ("queue_internal.claim_from", "AND NOT queue_internal.has_capacity(source)", "AND false"),
            (
                "queue_internal.claim_from",
                "EXIT walk WHEN started IS NULL;",
                "started := coalesce(started, clock_timestamp());",
            ),
        ],
    },
    Mutant {
        name: "a task of a group does not wait for its turn",
        shape: "grouped",
        rare: false,
        changes: &[("queue_internal.task_arrives", "THEN 0 ELSE 2 END", "THEN 0 ELSE 1 END")],
    },
    Mutant {
        name: "a claim leaves the event of a group that nobody has locked",
        shape: "grouped",
        rare: false,
        changes: &[("queue_internal.lock_group", "RETURN true;", "RETURN random() < 0.7;")],
    },
    Mutant {
        name: "a retried task comes after a younger one",
        shape: "grouped",
        rare: true,
        changes: &[("queue_internal.next_admission", "ELSIF latest > first.id THEN", "ELSIF false THEN")],
    },
    Mutant {
        name: "no event for the group of an unblocked task",
        shape: "grouped",
        rare: true,
        changes: &[("queue_internal.unblock", "IF task.group_key IS NOT NULL THEN", "IF false THEN")],
    },
    Mutant {
        name: "the end records no outcome",
        shape: "",
        rare: false,
        changes: &[(
            "queue_internal.notify_dependents",
            "SET outcome = notify_dependents.outcome",
            "SET outcome = d.outcome",
        )],
    },
    Mutant {
        name: "the end writes no event",
        shape: "",
        rare: false,
        changes: &[("queue_internal.notify_dependents", "WHERE o.queue IS NOT NULL", "WHERE false")],
    },
    Mutant {
        name: "cancelled means completed",
        shape: "",
        rare: false,
        changes: &[("queue_internal.process_dependent", "'{failed, cancelled, purged}'", "'{failed}'")],
    },
    Mutant {
        name: "one predecessor is enough",
        shape: "",
        rare: false,
        changes: &[(
            "queue_internal.process_dependent",
            "WHERE d.task_id = task.id AND d.outcome IS NULL)",
            "WHERE d.task_id = task.id AND d.outcome IS NULL HAVING count(*) > 1)",
        )],
    },
    Mutant {
        name: "what was given back is dropped",
        shape: "",
        rare: false,
        changes: &[(
            "queue_internal.requeue",
            "UPDATE queue.tasks AS t",
            "DELETE FROM queue.tasks AS t WHERE t.id = task.id; UPDATE queue.tasks AS t",
        )],
    },
    Mutant {
        name: "some completions leave nothing",
        shape: "",
        rare: false,
        changes: &[(
            "queue_internal.archive",
            "WHERE kept IS DISTINCT FROM false",
            "WHERE kept IS DISTINCT FROM false AND task.id % 5 > 0",
        )],
    },
];

#[test]
fn the_model_refuses_what_broken_code_does() {
    let server = Server::start("traces-mutants");
    // The mutants are of the SQL implementation.
    let options = |mutant: &Mutant| Options {
        seed: seed(),
        native: 0,
        // On a slow machine, left-over tasks prove nothing.
        patience: Duration::from_secs(if mutant.rare { 20 } else { 2 }),
        phases: if mutant.rare { THOROUGH } else { QUICK },
        shape: mutant.shape,
    };
    let mut first = 0;
    let mut accepted = Vec::new();
    let all = std::env::var_os("TRACES").is_some();
    for mutant in MUTANTS.iter().filter(|mutant| all || !mutant.rare) {
        let mut clients: Vec<_> = (0..STAGES).map(|stage| server.connect(stage)).collect();
        let mut restore = Vec::new();
        for (function, old, new) in mutant.changes {
            let query = "SELECT pg_get_functiondef($1::text::regproc)";
            let definition: String = clients[0].query_one(query, &[function]).expect(function).get(0);
            assert!(definition.contains(old), "{function} has no {old}");
            let broken = definition.replace(old, new);
            clients.iter_mut().for_each(|client| client.batch_execute(&broken).expect(function));
            restore.push(definition);
        }
        let started = Instant::now();
        let (mut seen, mut events) = (None, 0);
        for _ in 0..if mutant.rare { 400 } else { 80 } {
            let came = server.round(&mut first, 12, &options(mutant));
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
        for (stage, client) in clients.iter_mut().enumerate() {
            let mut mend = |definition: &String| client.batch_execute(definition).expect("mend the function");
            restore.iter().rev().for_each(&mut mend);
            server.clean(stage);
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
}
