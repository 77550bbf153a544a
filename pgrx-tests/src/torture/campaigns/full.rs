//! R10: no space is left for the tables or for the write-ahead log. Writes are refused with 53100. Without space for
//! WAL the server stops with a PANIC, and continues when there is space.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::eventually;
use crate::torture::campaign::Campaign;
use crate::torture::load::Load;
use crate::torture::scene::Scene;

const SOON: Duration = Duration::from_secs(60);
/// Only messages about WAL may be a PANIC.
const PANIC: &str = "No space left on device";

pub const CAMPAIGN: Campaign = Campaign {
    name: "full",
    covers: "R10",
    load: Load { tolerated: &["40P01", "53100"], ..Load::MIXED },
    pause: (100, 500),
    fault,
    before,
    ..Campaign::PLAIN
};

/// Moves the tables and the write-ahead log to disks of their own.
fn before(scene: &mut Scene) {
    // Once, whatever came of it.
    if !scene.disks.is_empty() || !scene.remarks.is_empty() {
        return;
    }
    let place = |name: &str| scene.cluster.folder().with_extension(name);
    let disks = [(place("tables"), 96), (place("wal"), 32)].map(|(at, size)| Disk::new(&at, size));
    let [Ok(tables), Ok(log)] = disks else {
        scene
            .remarks
            .push(format!("nothing is full: no disk can be mounted here: {:?}", disks.map(Result::err)));
        return;
    };
    let mut client = scene.cluster.connect();
    for setting in ["min_wal_size = '2MB'", "max_wal_size = '8MB'"] {
        client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).expect("ALTER SYSTEM");
    }
    drop(client);
    scene.cluster.stop("fast");
    // Small segments, so that the next one is needed soon.
    scene.cluster.run("pg_resetwal", &["--wal-segsize=1", "-D", &scene.cluster.data()]);
    let (from, to) = (Path::new(&scene.cluster.data()).join("pg_wal"), log.folder().join("pg_wal"));
    let copied = Command::new("cp").arg("-a").args([&from, &to]).status().expect("cp");
    assert!(copied.success(), "the log could not be copied");
    std::fs::remove_dir_all(&from).expect("remove the old one");
    std::os::unix::fs::symlink(&to, &from).expect("point to the new one");
    scene.cluster.launch();
    let place = tables.folder().display();
    let mut client = scene.cluster.connect();
    client.batch_execute(&format!("CREATE TABLESPACE small LOCATION '{place}'")).expect("CREATE TABLESPACE");
    let moves = "SELECT format('ALTER %s %s SET TABLESPACE small',
                               CASE relkind WHEN 'r' THEN 'TABLE' ELSE 'INDEX' END, oid::regclass)
                 FROM pg_class WHERE relkind IN ('r', 'i')
                     AND relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)";
    for row in client.query(moves, &[]).expect("what to move") {
        client.batch_execute(row.get(0)).expect("move it");
    }
    scene.disks = vec![tables, log];
    scene.forgiven = &[PANIC, "was terminated by signal 6"];
}

fn fault(scene: &mut Scene) {
    if scene.disks.is_empty() {
        return;
    }
    let since = Instant::now();
    if scene.random.chance(60) {
        scene.struck("no room for tables");
        scene.disks[0].fill();
        let refused = refusal(scene);
        std::thread::sleep(Duration::from_millis(scene.random.between(50, 500)));
        scene.disks[0].free();
        if refused != "53100" {
            scene.complaints.push(format!("with no room for tables a push got {refused}"));
        }
    } else {
        scene.struck("no room for the log");
        let before = aborts(scene);
        scene.crash(no_room_for_the_log);
        scene.await_claim(since);
        let panics = aborts(scene);
        if panics.0 == before.0 || panics.1 > panics.0 {
            let (panics, aborts) = panics;
            scene.complaints.push(format!("{panics} PANICs for want of room, {aborts} processes aborted"));
        }
    }
}

/// Fills the WAL disk until the server stops, and frees it again.
fn no_room_for_the_log(scene: &mut Scene) {
    scene.disks[1].fill();
    // Each takes another segment.
    eventually("the server stops", SOON, || {
        let Some(mut client) = scene.cluster.try_connect("postgres") else { return true };
        let switch = "SELECT pg_logical_emit_message(false, 'torture', 'x'), pg_switch_wal()";
        (0..100).any(|_| client.batch_execute(switch).is_err())
    });
    std::thread::sleep(Duration::from_millis(scene.random.between(0, 300)));
    scene.disks[1].free();
    // It may have stopped, be about to stop, or continue by itself.
    eventually("the server goes on", SOON, || scene.cluster.is_up_or_launched());
}

/// The errors that a client gets when it pushes until the disk is full. None of these pushes stays.
fn refusal(scene: &Scene) -> String {
    let push = "SELECT queue.push('plain', to_jsonb((SELECT string_agg(md5(n::text), '')
                                                     FROM generate_series(1, 5000) AS n)))";
    let mut client = scene.cluster.connect();
    let mut work = client.transaction().expect("BEGIN");
    let refused = (0..2000).find_map(|_| work.execute(push, &[]).err());
    let code = refused.as_ref().and_then(|error| error.code()).map(|code| code.code().to_owned());
    code.unwrap_or_else(|| format!("{refused:?}"))
}

/// The number of PANICs in the log because of a full disk, and of processes that aborted.
fn aborts(scene: &Scene) -> (usize, usize) {
    let log = scene.cluster.log();
    let count =
        |signs: [&str; 2]| log.lines().filter(|line| signs.iter().all(|sign| line.contains(sign))).count();
    (count(["PANIC", PANIC]), count(["was terminated by", "signal 6"]))
}
