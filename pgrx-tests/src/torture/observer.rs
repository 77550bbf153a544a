//! Reads the tables all the time: what must hold in every snapshot, and the leases for the checker.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::checker::{Lease, Violation};
use super::client::Target;
use super::load::{LIMITED, LINKED, METERED, MOST_OF_GROUP, MOST_RUNNING};
use super::waiting;
use postgres::Row;

const EVERY: Duration = Duration::from_millis(20);
/// Every so many snapshots, also search for tasks without an event.
const SELDOM: u64 = 25;

const BROKEN: &str = "
    SELECT 'limits', format('%s tasks of %s run', count(*), queue) FROM queue.tasks
    WHERE queue = ANY ($3) AND state = 'running' GROUP BY queue HAVING count(*) > $1
    UNION ALL
    SELECT 'I8', format('%s of group %s run', count(*), group_key) FROM queue.tasks
    WHERE group_key IS NOT NULL AND state = 'running' GROUP BY queue, group_key
    HAVING count(*) > CASE queue WHEN $4 THEN $5::bigint ELSE 1 END
    UNION ALL
    SELECT 'I9', format('%s live tasks have the key %s', count(*), key) FROM queue.tasks
    WHERE key IS NOT NULL GROUP BY queue, key
    -- Where pushes replace, one may wait for another that runs.
    HAVING count(*) FILTER (WHERE state <> 'running') > 1 OR count(*) > CASE queue WHEN $2 THEN 2 ELSE 1 END";

const LEASES: &str =
    "SELECT id, token, worker FROM queue.tasks WHERE state = 'running' AND worker IS NOT NULL";

/// The observations, and the number of snapshots.
#[derive(Default)]
pub struct Observed {
    pub violations: Vec<Violation>,
    pub leases: HashSet<Lease>,
    pub looks: u64,
}

/// Reads until the clients have ended.
pub fn observe(target: &Arc<Target>, strict: bool) -> Observed {
    let mut observed = Observed::default();
    let mut client = None;
    while !target.finished() {
        let seen = match &mut client {
            None => {
                client = target.connect();
                continue;
            }
            Some(client) => look(client),
        };
        let seldom = observed.looks % SELDOM == SELDOM - 1;
        let unannounced =
            match client.as_mut().filter(|_| seldom).map(|client| waiting::unannounced(client, strict)) {
                Some(Ok(found)) => found,
                _ => Vec::new(),
            };
        observed.violations.extend(unannounced.into_iter().map(|what| Violation { invariant: "I17", what }));
        match seen {
            Ok((broken, leases)) => {
                observed.looks += 1;
                observed.leases.extend(leases.iter().map(|row| Lease {
                    id: row.get(0),
                    token: row.get(1),
                    worker: row.get(2),
                }));
                observed.violations.extend(broken.iter().map(|row| {
                    let name = match row.get(0) {
                        "I8" => "I8",
                        "I9" => "I9",
                        _ => "limits",
                    };
                    Violation { invariant: name, what: row.get(1) }
                }));
            }
            Err(_) => client = None,
        }
        std::thread::sleep(EVERY);
    }
    observed
}

fn look(client: &mut postgres::Client) -> Result<(Vec<Row>, Vec<Row>), postgres::Error> {
    Ok((
        client.query(BROKEN, &[&MOST_RUNNING, &LINKED, &LIMITED.as_slice(), &METERED, &MOST_OF_GROUP])?,
        client.query(LEASES, &[])?,
    ))
}
