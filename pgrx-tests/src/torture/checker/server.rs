//! I10 the statistics, I14 the pages of tables and indexes, I15 the server's log.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use postgres::Client;

use crate::cluster::has_extension;
use crate::{Cluster, WOKEN, stalls};

/// Lasting differences between queue.stats and a recount.
pub fn wrong_stats(client: &mut Client) -> Vec<String> {
    let query = "
        WITH live AS (
            SELECT t.queue,
                   count(*) FILTER (WHERE t.state = 'queued') AS queued,
                   count(*) FILTER (WHERE t.state = 'waiting') AS waiting,
                   count(*) FILTER (WHERE t.state = 'running') AS running
            FROM queue.tasks AS t GROUP BY 1
        ), dead AS (SELECT d.queue, count(*) AS dead FROM queue.dead_letters AS d GROUP BY 1
        ), said AS (
            SELECT s.queue, format('%s queued, %s waiting, %s running, %s dead',
                                   s.queued + s.blocked + s.scheduled, s.waiting, s.running, s.dead) AS said
            FROM queue.stats AS s
        ), there AS (
            SELECT q.name AS queue, format('%s queued, %s waiting, %s running, %s dead', coalesce(l.queued, 0),
                                           coalesce(l.waiting, 0), coalesce(l.running, 0), coalesce(d.dead, 0)) AS there
            FROM queue.queues AS q LEFT JOIN live AS l ON l.queue = q.name LEFT JOIN dead AS d ON d.queue = q.name
        )
        SELECT format('of %s it says: %s; there are: %s', queue, said, there)
        FROM there LEFT JOIN said USING (queue) WHERE said IS DISTINCT FROM there";
    let started = Instant::now();
    loop {
        let rows = client.query(query, &[]).expect("compare the statistics");
        if rows.is_empty() || stalls::since(started) > WOKEN {
            return rows.iter().map(|row| row.get(0)).collect();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Pages that were written to without being initialized: they are invalid once they are read from disk. amcheck skips
/// them.
pub fn damaged_pages(client: &mut Client) -> Vec<String> {
    if !has_extension("pageinspect") {
        return Vec::new();
    }
    client.batch_execute("CREATE EXTENSION IF NOT EXISTS pageinspect").expect("pageinspect");
    let query = "
        SELECT format('page %s of %s is new and has the LSN %s', b.n, c.oid::regclass, h.lsn)
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace,
             generate_series(0, pg_relation_size(c.oid) / current_setting('block_size')::bigint - 1) AS b (n),
             page_header(get_raw_page(c.oid::regclass::text, b.n)) AS h
        WHERE n.nspname IN ('queue', 'queue_internal') AND c.relkind = 'r' AND h.upper = 0 AND h.lsn <> '0/0'";
    let rows = client.query(query, &[]).expect("look at the pages");
    rows.iter().map(|row| row.get(0)).collect()
}

/// The findings of amcheck, if the server has it.
pub fn corruption(client: &mut Client) -> Vec<String> {
    if !has_extension("amcheck") {
        return Vec::new();
    }
    client.batch_execute("CREATE EXTENSION IF NOT EXISTS amcheck").expect("amcheck");
    let relations = "SELECT c.oid::regclass::text, c.relkind::text FROM pg_class AS c
                     JOIN pg_namespace AS n ON n.oid = c.relnamespace LEFT JOIN pg_am AS a ON a.oid = c.relam
                     WHERE n.nspname IN ('queue', 'queue_internal')
                       AND (c.relkind = 'r' OR c.relkind = 'i' AND a.amname = 'btree')";
    let mut wrong = Vec::new();
    for row in client.query(relations, &[]).expect("list the tables") {
        let (name, kind): (String, String) = (row.get(0), row.get(1));
        if kind == "r" {
            let query = "SELECT blkno::text || ': ' || msg FROM verify_heapam($1::text::regclass)";
            let rows = client.query(query, &[&name]).expect("verify_heapam");
            wrong.extend(rows.iter().map(|row| format!("{name}: {}", row.get::<_, String>(0))));
        } else if let Err(error) = client.query("SELECT bt_index_check($1::text::regclass, true)", &[&name]) {
            wrong.push(format!("{name}: {error}"));
        }
    }
    wrong
}

/// The parts of the servers' logs that were not read yet.
#[derive(Default)]
pub struct Log {
    read: HashMap<PathBuf, usize>,
}

impl Log {
    /// The lines that should not be there.
    pub fn alarms(&mut self, cluster: &Cluster) -> Vec<String> {
        let log = cluster.log();
        let read = self.read.entry(cluster.folder().to_owned()).or_default();
        // A log that became shorter belongs to a new server in the same folder.
        let fresh = log.get(*read..).unwrap_or(&log);
        *read = log.len();
        let bad = [
            "PANIC",
            "TRAP:",
            "signal 6",
            "signal 7",
            "signal 11",
            " leak",
            "unexpected",
            "panicked",
            " XX0",
        ];
        // Clients, servers and postmasters that are gone, and the end of the log that recovery reads.
        let fine = [
            "unexpected EOF on client connection",
            "closed the connection unexpectedly",
            "unexpected postmaster exit",
            "unexpected pageaddr",
        ];
        let alarming = |line: &&str| {
            bad.iter().any(|bad| line.contains(bad)) && !fine.iter().any(|fine| line.contains(fine))
        };
        fresh.lines().filter(alarming).map(str::to_owned).collect()
    }
}
