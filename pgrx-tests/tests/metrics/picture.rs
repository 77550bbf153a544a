//! docs/images/metrics.png: the dashboard's queries under a load that changes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use queue_ext_tests::Cluster;

use super::stack::{Stack, file, output};
use super::{cluster, run};

/// The duration of the load, in seconds.
const LENGTH: u32 = 240;

/// Runs a statement so many times a second in each of several connections, for a part of the time.
fn load(cluster: &Cluster, name: &str, statement: &str, clients: u32, rate: u32, seconds: u32) -> Child {
    let script = cluster.folder().join(format!("{name}.sql"));
    fs::write(&script, statement).expect("write a script");
    let clients = clients.to_string();
    let (rate, seconds) = (format!("--rate={rate}"), format!("--time={seconds}"));
    let folder = cluster.folder().to_str().expect("a plain path");
    let script = script.to_str().expect("a plain path");
    let pgbench = queue_ext_tests::cluster::bindir().join("pgbench");
    let arguments =
        ["-n", "-h", folder, "-U", "postgres", "-c", &clients, &rate, &seconds, "-f", script, "postgres"];
    cluster.start_program(&pgbench, &arguments)
}

#[test]
#[ignore = "draws the picture of docs/monitoring.md for four minutes; needs matplotlib in PYTHONPATH"]
fn the_dashboard_is_drawn() {
    let cluster = cluster("metrics-picture");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT queue.create('mail', '{\"max_attempts\": 1}'), queue.create('reports');
         SELECT count(queue.push('reports', delay => n * interval '2 seconds')) FROM generate_series(1, 60) AS n",
    );
    let stack = Stack::start(&cluster);
    let work = |queue: &str| {
        format!(
            "SELECT queue.complete(id, token) FROM queue.claim('5 seconds', '{queue}', worker => 'w:client_id');"
        )
    };
    let mut all = vec![
        load(
            &cluster,
            "push",
            "SELECT queue.push('mail', '{\"to\": \"a@example.org\"}');",
            2,
            60,
            LENGTH * 3 / 4,
        ),
        // Too slow at first, with help later.
        load(&cluster, "work", &work("mail"), 4, 40, LENGTH),
        load(
            &cluster,
            "idle",
            "CALL queue.wait('reports', '1 second');\nSELECT queue.complete(id, token) FROM queue.claim('1 minute', 'reports');",
            2,
            10,
            LENGTH,
        ),
        load(
            &cluster,
            "lose",
            "SELECT FROM queue.claim('3 seconds', 'mail', worker => 'lost');",
            1,
            1,
            LENGTH / 2,
        ),
        load(
            &cluster,
            "fail",
            "SELECT queue.fail(id, token, 'no such address', permanent => true) FROM queue.claim('5 seconds', 'mail');",
            1,
            1,
            LENGTH,
        ),
        load(
            &cluster,
            "keys",
            "SELECT queue.push('default', key => 'k:client_id');\nSELECT queue.complete(id, token) FROM queue.claim('1 minute');",
            1,
            5,
            LENGTH,
        ),
    ];
    assert!(all.remove(0).wait().expect("pgbench").success());
    all.push(load(&cluster, "help", &work("mail"), 4, 60, LENGTH / 4));
    for mut child in all {
        assert!(child.wait().expect("pgbench").success());
    }
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
    fs::create_dir_all(&images).expect("a folder");
    let length = LENGTH.to_string();
    let mut draw = Command::new("python3");
    draw.arg(file("draw.py")).args([&stack.address(), &length]).arg(images.join("metrics.png"));
    output(&mut draw);
}
