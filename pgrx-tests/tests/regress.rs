//! Runs every script in `regress/sql` with pg_regress and compares what it prints with
//! `regress/expected`; each in a database of its own, with the native verbs, without them, and without preloading;
//! where BRIEF is in the environment, only the first.

use std::fs;
use std::path::Path;
use std::process::Command;

use queue_ext_tests::cluster::{bindir, driver, home};
use queue_ext_tests::{Cluster, Settings, brief};

#[test]
fn verbs_do_what_they_say() {
    // The scripts let leases run out and look at what is left: no worker may be quicker.
    run("regress", &Settings { preload: true, extra: "queue.worker_enabled = off" });
}

#[test]
fn verbs_do_what_they_say_without_the_fast_path() {
    if !brief() {
        let extra = "queue.worker_enabled = off\nqueue.fast_path = off";
        run("regress-core", &Settings { preload: true, extra });
    }
}

#[test]
fn verbs_do_what_they_say_without_preload() {
    if !brief() {
        run("regress-no-preload", &Settings { preload: false, extra: "" });
    }
}

fn run(name: &str, settings: &Settings) {
    let cluster = Cluster::start_with(name, settings);
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("regress");
    let output = home().join("run").join(format!("{name}-output"));
    let _ = fs::remove_dir_all(&output);
    fs::create_dir_all(&output).expect("create the output folder");
    let mut names: Vec<String> = fs::read_dir(scripts.join("sql"))
        .expect("read the scripts")
        .map(|entry| entry.expect("a file").path())
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut failed = Vec::new();
    for script in &names {
        let mut client = cluster.connect();
        client.batch_execute(&format!("CREATE DATABASE \"{script}\"")).expect("create a database");
        cluster.connect_to(script).batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
        let done = Command::new(driver("regress/pg_regress"))
            .arg(format!("--inputdir={}", scripts.display()))
            .arg(format!("--outputdir={}", output.display()))
            .arg(format!("--bindir={}", bindir().display()))
            .arg(format!("--host={}", cluster.folder().display()))
            .args(["--user=postgres", "--use-existing", &format!("--dbname={script}"), script])
            .env("PG_ABS_SRCDIR", &scripts)
            .output()
            .expect("run pg_regress");
        if !done.status.success() {
            failed.push(script.clone());
            let diff = fs::read_to_string(output.join("regression.diffs")).unwrap_or_default();
            eprintln!("{}{diff}", String::from_utf8_lossy(&done.stdout));
        }
    }
    assert!(failed.is_empty(), "these scripts print something else than expected: {}", failed.join(", "));
    println!("{} scripts", names.len());
}
