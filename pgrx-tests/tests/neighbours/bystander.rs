//! Queue b, whose tasks are in its lane and its counters. Whatever happens in other queues, they are not read again.

use super::*;
use postgres::NoTls;

pub const STATS: &str = "SELECT * FROM queue.stats";
/// A session that reads fewer tasks has not counted the table.
const FEW: i64 = 1000;

/// A server without sweeps, with queues a and m1 to m10, and queue b beside them.
pub fn server(name: &str) -> (Cluster, Client, Bystander) {
    let extra = "queue.sweep_interval = '1h'\nmax_prepared_transactions = 10";
    let mut cluster = Cluster::start_with(&format!("neighbours-{name}"), &Settings { preload: true, extra });
    let mut client = cluster.connect();
    run(
        &mut client,
        "CREATE EXTENSION queue_ext; SELECT queue.create('a');
         SELECT queue.create('m' || n) FROM generate_series(1, 10) AS n",
    );
    cluster.await_worker("postgres");
    let b = Bystander::new(&cluster, &mut client);
    (cluster, client, b)
}

/// The role that works for queue b and reads its numbers.
pub struct Bystander {
    worker: Client,
    reader: Client,
    refills: i64,
}

impl Bystander {
    /// Creates the role, and the queue with tasks.
    fn new(cluster: &Cluster, admin: &mut Client) -> Self {
        run(
            admin,
            "SELECT queue.create('b'); SELECT count(queue.push('b')) FROM generate_series(1, 5000);
             CREATE ROLE bystander LOGIN;
             SELECT queue.grant_worker('bystander', 'b'), queue.grant_operator('bystander', 'b')",
        );
        let connect = || cluster.config("postgres").user("bystander").connect(NoTls).expect("connect");
        let mut b = Self { worker: connect(), reader: connect(), refills: 0 };
        b.claim();
        b.refills = refills(admin);
        eventually("stats reads counters", SOON, || reads(&mut b.reader, STATS) < FEW);
        b
    }

    fn claim(&mut self) {
        assert_eq!(number(&mut self.worker, "SELECT count(*) FROM queue.claim('1 hour', 'b')"), 1);
    }

    /// Claims a task and reads the numbers, without reading the tasks again.
    pub fn is_left_alone(&mut self, admin: &mut Client, after: &str) {
        self.claim();
        assert_eq!(refills(admin), self.refills, "the lane of b was read again after {after}");
        let reads = reads(&mut self.reader, STATS);
        assert!(reads < FEW, "{reads} tasks were read for the numbers of b after {after}");
    }
}

fn refills(admin: &mut Client) -> i64 {
    number(admin, "SELECT (queue.engine_stats() #>> '{lanes,b,refills}')::bigint")
}

/// How many tasks a session reads for this.
pub fn reads(client: &mut Client, statement: &str) -> i64 {
    let so_far = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables WHERE relid = 'queue.tasks'::regclass";
    run(client, "BEGIN");
    let before = number(client, so_far);
    run(client, statement);
    let reads = number(client, so_far) - before;
    run(client, "COMMIT");
    reads
}
