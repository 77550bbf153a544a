//! pg_upgrade, with work in flight and the library preloaded.

use std::path::PathBuf;
use std::process::Command;

use queue_ext_tests::cluster::{bindir, run_folder};
use queue_ext_tests::{Cluster, SOON, Settings, estate, eventually};

/// The programs of the servers to upgrade from: the earlier ones of `make test`, or this one if there are none.
fn sources() -> Vec<PathBuf> {
    let earlier = std::env::var("EARLIER").unwrap_or_default();
    let programs = earlier.split_whitespace().map(|config| {
        let output = Command::new(config).arg("--bindir").output().expect("run pg_config");
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    });
    let programs: Vec<_> = programs.collect();
    if programs.is_empty() { vec![bindir()] } else { programs }
}

#[test]
fn pg_upgrade_keeps_what_is_in_flight() {
    for (n, programs) in sources().iter().enumerate() {
        let folder = |side: &str| run_folder(format!("upgrades-{side}-{n}"));
        let settings = Settings { preload: true, extra: "queue.sweep_interval = '1s'" };
        let mut old = Cluster::create_of(programs, &folder("old"), &settings, &["--data-checksums"]);
        old.launch();
        let mut client = old.connect();
        client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
        old.await_worker("postgres");
        estate::fill(&mut client, 2000);
        client
            .batch_execute(
                "CREATE ROLE handler_app LOGIN; SELECT queue.create('handled'), queue.grant_worker('handler_app', 'handled');
                 CREATE FUNCTION public.handle(task queue.claimed_task) RETURNS jsonb LANGUAGE sql RETURN task.payload;
                 SELECT queue.attach('handled', 'public.handle(queue.claimed_task)', 'handler_app')",
            )
            .expect("attach a handler");
        let before = estate::everything(&mut client);
        // Some builds of PostgreSQL 15 note an option of their own at every column, which no later version knows:
        // as it is, pg_upgrade cannot take any table from there.
        let option = "UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%'";
        client.execute(option, &[]).expect("the column options");
        let held = "SELECT id, token FROM queue.tasks WHERE state = 'running'";
        let held = client.query_one(held, &[]).expect("the lease");
        let (id, token): (i64, i64) = (held.get(0), held.get(1));
        drop(client);
        old.stop("fast");

        let mut new = Cluster::create_of(&bindir(), &folder("new"), &settings, &["--data-checksums"]);
        let socket = new.folder().to_str().expect("a plain path").to_owned();
        let programs = programs.to_str().expect("a plain path");
        let new_programs = bindir();
        let new_programs = new_programs.to_str().expect("a plain path");
        let (old_data, new_data) = (old.data(), new.data());
        new.run(
            "pg_upgrade",
            &[
                "-U",
                "postgres",
                "-b",
                programs,
                "-B",
                new_programs,
                "-d",
                &old_data,
                "-D",
                &new_data,
                "-s",
                &socket,
            ],
        );
        new.launch();
        let mut client = new.connect();
        assert_eq!(estate::everything(&mut client), before, "from {programs}");
        // Leases are still held.
        client.query_one("SELECT queue.extend($1, $2, '1 day')", &[&id, &token]).expect("extend");
        estate::goes_on(&mut client);
        new.await_worker("postgres");
        estate::worker_goes_on(&mut client);
        let id: i64 = client.query_one("SELECT queue.push('handled', '1')", &[]).expect("push").get(0);
        eventually("the handler goes on", SOON, || {
            let query = "SELECT FROM queue.history WHERE id = $1 AND state = 'completed'";
            client.query_opt(query, &[&id]).expect("history").is_some()
        });
    }
}
