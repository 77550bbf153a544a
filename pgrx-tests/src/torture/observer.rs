//! Looks at the tables all the time: what must hold in every snapshot.

use std::sync::Arc;
use std::time::Duration;

use super::checker::Violation;
use super::client::Target;
use super::load::MOST_RUNNING;

const EVERY: Duration = Duration::from_millis(20);

const BROKEN: &str = "
    SELECT 'limits', format('%s tasks of limited run', count(*)) FROM queue.tasks
    WHERE queue = 'limited' AND state = 'running' HAVING count(*) > $1
    UNION ALL
    SELECT 'I8', format('%s of group %s run', count(*), group_key) FROM queue.tasks
    WHERE group_key IS NOT NULL AND state = 'running' GROUP BY queue, group_key HAVING count(*) > 1
    UNION ALL
    SELECT 'I9', format('%s live tasks have the key %s', count(*), key) FROM queue.tasks
    WHERE key IS NOT NULL GROUP BY queue, key HAVING count(*) > 1";

/// Looks until the clients stop; returns what it saw and how often it looked.
pub fn observe(target: &Arc<Target>) -> (Vec<Violation>, u64) {
    let (mut violations, mut looks) = (Vec::new(), 0);
    let mut client = None;
    while !target.stopping() {
        let rows = match &mut client {
            None => {
                client = target.connect();
                continue;
            }
            Some(client) => postgres::Client::query(client, BROKEN, &[&MOST_RUNNING]),
        };
        match rows {
            Ok(rows) => {
                looks += 1;
                violations.extend(rows.iter().map(|row| {
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
    (violations, looks)
}
