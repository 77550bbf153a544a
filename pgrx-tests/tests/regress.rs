//! Runs every script in `regress/sql` with pg_regress and compares the output with `regress/expected`, each in its
//! own database: with the native fast path, without it, without preloading, with the SQL-only edition, and with the
//! edition for YugabyteDB; if BRIEF is in the environment, only with the first and the SQL-only one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use queue_ext_tests::cluster::{bindir, driver, run_folder};
use queue_ext_tests::{Edition, Worker, brief};

#[test]
fn functions_return_the_expected_output() {
    run(Edition::FastPath);
}

#[test]
fn functions_return_the_expected_output_without_the_fast_path() {
    if !brief() {
        run(Edition::Core);
    }
}

#[test]
fn functions_return_the_expected_output_without_preload() {
    if !brief() {
        run(Edition::NoPreload);
    }
}

#[test]
fn functions_return_the_expected_output_in_the_sql_only_edition() {
    run(Edition::SqlOnly);
}

#[test]
fn functions_return_the_expected_output_in_the_edition_for_yugabytedb() {
    if !brief() {
        run(Edition::Yugabyte);
    }
}

/// The scripts whose output differs in the SQL-only edition or in that for YugabyteDB: features that are missing, and
/// information that the edition does not have (docs/portable.md, docs/yugabyte.md).
fn with_its_own_answers(edition: Edition, scripts: &Path) -> PathBuf {
    let input = run_folder(format!("regress-{}-input", edition.name()));
    let _ = fs::remove_dir_all(&input);
    fs::create_dir_all(input.join("expected")).expect("create the input folder");
    for file in ["sql", "prelude.sql"] {
        std::os::unix::fs::symlink(scripts.join(file), input.join(file)).expect("link the scripts");
    }
    let folders = ["expected", "sql-only", "yugabyte"];
    for answers in folders.into_iter().take(if edition == Edition::SqlOnly { 2 } else { 3 }) {
        for file in fs::read_dir(scripts.join(answers)).expect("read the answers") {
            let file = file.expect("a file");
            fs::copy(file.path(), input.join("expected").join(file.file_name())).expect("copy an answer");
        }
    }
    input
}

fn run(edition: Edition) {
    let _run = edition.begin("regress");
    // The scripts let leases expire and inspect the rows, so no worker may end them first.
    let cluster = edition.cluster("regress", Worker::Off);
    let name = format!("regress-{}", edition.name());
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("regress");
    let output = run_folder(format!("{name}-output"));
    let _ = fs::remove_dir_all(&output);
    fs::create_dir_all(&output).expect("create the output folder");
    let mut names: Vec<String> = fs::read_dir(scripts.join("sql"))
        .expect("read the scripts")
        .map(|entry| entry.expect("a file").path())
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    let is_script = edition.script().is_some();
    let input = if is_script { with_its_own_answers(edition, &scripts) } else { scripts.clone() };
    // Later databases are copies of this one. It has no background worker, which would be in use of it.
    edition.install(&cluster, "template1");
    edition.keep_order(&cluster, "template1");
    let mut failed = Vec::new();
    for script in &names {
        let mut client = cluster.connect();
        client.batch_execute(&format!("CREATE DATABASE \"{script}\"")).expect("create a database");
        let done = Command::new(driver("regress/pg_regress"))
            .arg(format!("--inputdir={}", input.display()))
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
