//! Several servers as shards of one queue, behind a router with PL/Proxy: `examples/sharding`, unchanged.
//!
//! PL/Proxy is Debian's package for PostgreSQL 15; on another server the test is skipped.

use std::path::Path;
use std::process::Command;

use postgres::Client;
use queue_ext_tests::cluster::{bindir, has_extension};
use queue_ext_tests::{Cluster, SOON, Settings, number, run};

#[path = "sharding/away.rs"]
mod away;
#[path = "sharding/verbs.rs"]
mod verbs;

#[test]
fn three_servers_act_as_one_queue_and_losing_one_loses_no_task() {
    let Some(mut sharded) = Sharded::start("sharding") else { return };
    verbs::reach_the_shard_that_has_the_task(&sharded);
    away::what_was_cut_off_is_not_tried_elsewhere(&sharded);
    away::is_missed_by_nobody_and_loses_nothing(&mut sharded);
}

const SHARDS: usize = 3;

/// A router and its shards.
struct Sharded {
    router: Cluster,
    shards: Vec<Cluster>,
}

impl Sharded {
    /// Starts all servers; returns nothing if there is no PL/Proxy.
    fn start(name: &str) -> Option<Self> {
        if !has_extension("plproxy") {
            println!("not tested: this server has no PL/Proxy");
            return None;
        }
        let starting: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let name = format!("{name}-{shard}");
                std::thread::spawn(move || {
                    let cluster = Cluster::start(&name);
                    script(&cluster, "shard.sql", &[&format!("-vshard={shard}")]);
                    cluster
                })
            })
            .collect();
        let router = Cluster::start_with(&format!("{name}-router"), &Settings { preload: false, extra: "" });
        let shards: Vec<Cluster> =
            starting.into_iter().map(|thread| thread.join().expect("a shard")).collect();
        let parts: Vec<String> = shards
            .iter()
            .enumerate()
            .map(|(n, shard)| format!(", p{n} 'host={} dbname=postgres'", shard.folder().display()))
            .collect();
        router
            .connect()
            .batch_execute(&format!(
                "CREATE EXTENSION plproxy;
                 CREATE SERVER queue_shards FOREIGN DATA WRAPPER plproxy
                     OPTIONS (modular_mapping '1'{});
                 CREATE USER MAPPING FOR PUBLIC SERVER queue_shards;
                 GRANT USAGE ON FOREIGN SERVER queue_shards TO PUBLIC",
                parts.concat()
            ))
            .expect("name the shards");
        script(&router, "shards.sql", &[]);
        script(&router, "verbs.sql", &[]);
        Some(Self { router, shards })
    }
}

/// Runs one of the example's files with psql.
fn script(cluster: &Cluster, file: &str, options: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/sharding").join(file);
    let mut psql = Command::new(bindir().join("psql"));
    psql.args(["-X", "-q", "-U", "postgres", "-d", "postgres", "-h"]).arg(cluster.folder());
    let done = psql.args(options).arg("-f").arg(path).output().expect("run psql");
    assert!(done.status.success(), "{file}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The SQLSTATE with which a statement is refused.
fn refused(client: &mut Client, query: &str) -> String {
    let error = client.simple_query(query).expect_err(query);
    error.code().unwrap_or_else(|| panic!("{query}: {error:?}")).code().to_owned()
}

/// The shard that gave out an id, as shard.sql has it.
fn shard_of(id: i64) -> usize {
    usize::try_from(id / 10_000_000_000_000).expect("a shard")
}
