//! Runs the specs in `isolation/specs` with pg_isolation_regress: concurrent sessions in every order that matters,
//! with the native fast path, without it, without preloading, with the SQL-only edition, and with the edition for
//! YugabyteDB.

use std::fs;
use std::path::Path;
use std::process::Command;

use queue_ext_tests::cluster::{bindir, driver, run_folder};
use queue_ext_tests::{Edition, Worker, brief};

#[test]
fn concurrent_sessions_behave_as_expected() {
    run(Edition::FastPath);
}

#[test]
fn concurrent_sessions_behave_as_expected_without_the_fast_path() {
    if !brief() {
        run(Edition::Core);
    }
}

#[test]
fn concurrent_sessions_behave_as_expected_without_preload() {
    if !brief() {
        run(Edition::NoPreload);
    }
}

#[test]
fn concurrent_sessions_behave_as_expected_in_the_sql_only_edition() {
    if !brief() {
        run(Edition::SqlOnly);
    }
}

#[test]
fn concurrent_sessions_behave_as_expected_in_the_edition_for_yugabytedb() {
    if !brief() {
        run(Edition::Yugabyte);
    }
}

/// After a spec that failed, the others get a fresh database, so that the rows it left behind make no other fail.
fn run(edition: Edition) {
    let _run = edition.begin("isolation");
    let cluster = edition.cluster("isolation", Worker::Off);
    let name = format!("isolation-{}", edition.name());
    edition.install(&cluster, "postgres");
    edition.keep_order(&cluster, "postgres");
    let mut client = cluster.connect_to("template1");
    let specs = Path::new(env!("CARGO_MANIFEST_DIR")).join("isolation");
    let output = run_folder(format!("{name}-output"));
    let _ = fs::remove_dir_all(&output);
    fs::create_dir_all(&output).expect("create the output folder");
    let mut names: Vec<String> = fs::read_dir(specs.join("specs"))
        .expect("read the specs")
        .map(|entry| {
            entry.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned()
        })
        .collect();
    names.sort();
    let create = "CREATE DATABASE specs TEMPLATE postgres";
    client.batch_execute(create).expect("a database for the specs");
    let mut failures = String::new();
    for spec in &names {
        let done = Command::new(driver("isolation/pg_isolation_regress"))
            .arg(format!("--inputdir={}", specs.display()))
            .arg(format!("--outputdir={}", output.display()))
            .arg(format!("--bindir={}", bindir().display()))
            .arg(format!("--host={}", cluster.folder().display()))
            .args(["--user=postgres", "--use-existing", "--dbname=specs"])
            .arg(spec)
            .output()
            .expect("run pg_isolation_regress");
        if !done.status.success() {
            failures += &String::from_utf8_lossy(&done.stdout);
            failures += &String::from_utf8_lossy(&done.stderr);
            failures += &fs::read_to_string(output.join("regression.diffs")).unwrap_or_default();
            client.batch_execute("DROP DATABASE specs WITH (FORCE)").expect("drop the database");
            client.batch_execute(create).expect("another database for the specs");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
