//! The extension's components: its scripts, checked by pgspot, and the crates it is built from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use queue_ext_tests::cluster::{home, pg_config, run_folder};
use serde_json::Value;

/// Runs pgrx-tests/lint.py; returns whether it found nothing, and its output.
fn lint(scripts: &[PathBuf]) -> (bool, String) {
    let done = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("lint.py"))
        .args(scripts)
        .env("PYTHONPATH", home().join("lint"))
        .output()
        .expect("run lint.py");
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

/// The scripts of the extension as they were installed, those of upgrades too.
fn scripts() -> Vec<PathBuf> {
    let folder = PathBuf::from(pg_config("--sharedir")).join("extension");
    let files = fs::read_dir(folder).expect("the extensions").map(|file| file.expect("a file").path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("queue_ext--") && name.ends_with(".sql")
    };
    files.filter(ours).collect()
}

#[test]
fn pgspot_finds_nothing_in_the_scripts() {
    let mut scripts = scripts();
    assert!(!scripts.is_empty());
    scripts.push(queue_ext_tests::Edition::SqlOnly.script().expect("it has one"));
    let (clean, said) = lint(&scripts);
    assert!(clean, "{said}");
}

/// The literals of a script that standard_conforming_strings = off changes: those with a backslash, unless they are E''.
fn changing_literals(script: &str) -> Vec<String> {
    let text: String = script.lines().map(|line| format!("{line}\n")).collect();
    let mut found = Vec::new();
    let (mut rest, mut before) = (text.as_str(), ' ');
    while let Some(next) = rest.chars().next() {
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if next == '\'' {
            // A quote that is doubled begins another literal here, which is as good.
            let (literal, after) = rest[1..].split_once('\'').unwrap_or((&rest[1..], ""));
            if literal.contains('\\') && !matches!(before, 'E' | 'e') {
                found.push(literal.to_owned());
            }
            rest = after;
        } else {
            rest = &rest[next.len_utf8()..];
        }
        before = next;
    }
    found
}

#[test]
fn no_setting_of_a_session_changes_the_literals_of_a_function() {
    assert_eq!(changing_literals("SELECT 'a' ~ E'\\\\d', -- it's '\\'\n '\\d'"), ["\\d"]);
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() && !entry.ends_with("releases") {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "sql") {
                files += 1;
                let script = fs::read_to_string(&entry).expect("read it");
                assert_eq!(changing_literals(&script), Vec::<String>::new(), "{}", entry.display());
            }
        }
    }
    assert!(files > 100, "{files}");
}

#[test]
fn pgspot_finds_what_is_wrong() {
    let script = fs::read_to_string(&scripts()[0]).expect("read the script");
    let bad = run_folder("security-bad.sql");
    fs::create_dir_all(bad.parent().expect("a folder")).expect("a folder");
    let mut wrong = format!(
        "{script}\nCREATE OR REPLACE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1';\n\
         CREATE SCHEMA IF NOT EXISTS queue_more;"
    );
    for (right, instead) in [
        ("LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp", "LANGUAGE plpgsql"),
        ("OPERATOR(pg_catalog.>)", ">"),
    ] {
        assert!(wrong.contains(right), "{right}");
        wrong = wrong.replacen(right, instead, 1);
    }
    fs::write(&bad, wrong).expect("write a script");
    let (clean, said) = lint(std::slice::from_ref(&bad));
    let found = ["PS001", "PS002", "PS005", "PS010"].iter().all(|code| said.contains(code));
    assert!(!clean && found, "{said}");
    fs::remove_file(&bad).expect("delete the script");
}

#[test]
fn no_substitution_of_a_name_stands_in_the_scripts() {
    // Within quotes it would let a name become code (CVE-2023-39417).
    for path in scripts() {
        let script = fs::read_to_string(&path).expect("read the script");
        assert!(!script.contains("@ext"), "{}", path.display());
    }
    let control =
        fs::read_to_string(scripts()[0].with_file_name("queue_ext.control")).expect("the control file");
    for line in ["relocatable = false", "schema = pg_catalog", "superuser = true", "trusted = false"] {
        assert!(control.lines().any(|found| found == line), "{line}");
    }
}

/// Licences that let a program be part of one under the PostgreSQL licence.
const LICENCES: &[&str] =
    &["PostgreSQL", "MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "Zlib", "Unicode-3.0", "Unlicense"];

/// Crates that occur in two versions, and the crates that depend on each.
const TWICE: &[(&str, &str)] = &[
    ("const-oid", "the certificates of the program's TLS; and the digests of the driver"),
    ("getrandom", "rand; and ring, of the program's TLS"),
    ("hashbrown", "petgraph, for pgrx's own SQL generator, itself and through indexmap"),
    ("rand", "stateright; and the tests' driver"),
    ("rand_core", "rand"),
    ("shlex", "bindgen; and cc: while building only"),
    (
        "syn",
        "the macros of pgrx and of croner's builder; and those of the tests' driver: while building only",
    ),
    ("toml", "pgrx's build; and cargo_toml: while building only"),
    ("winnow", "cargo_toml's toml, itself and through toml_parser: while building only"),
];

/// The metadata of cargo.
fn metadata() -> Value {
    let host = Command::new("rustc").arg("-vV").output().expect("rustc").stdout;
    let host = String::from_utf8_lossy(&host).into_owned();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).expect("the host").to_owned();
    let done = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", &host])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("cargo metadata");
    serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[test]
fn crates_are_pinned_from_one_registry_and_under_licences_that_fit() {
    let metadata = metadata();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let built: BTreeSet<&str> =
        metadata["resolve"]["nodes"].as_array().expect("nodes").iter().map(|node| text(node, "id")).collect();
    for package in
        metadata["packages"].as_array().expect("packages").iter().filter(|p| built.contains(text(p, "id")))
    {
        let name = text(package, "name");
        versions.entry(name).or_default().insert(text(package, "version"));
        let licence = text(package, "license").replace('/', " OR ");
        let fits = licence.split(" AND ").all(|part| {
            part.trim_matches(['(', ')']).split(" OR ").any(|one| LICENCES.contains(&one.trim()))
        });
        assert!(fits, "{name}: {licence}");
        if package["source"].is_null() {
            for dependency in package["dependencies"].as_array().expect("dependencies") {
                let pinned = text(dependency, "req").starts_with('=') || dependency["path"].is_string();
                assert!(pinned, "{name} asks for {} {}", text(dependency, "name"), text(dependency, "req"));
            }
        } else {
            assert_eq!(
                text(package, "source"),
                "registry+https://github.com/rust-lang/crates.io-index",
                "{name}"
            );
        }
    }
    assert!(versions.len() > 100, "{} crates", versions.len());
    let twice: BTreeSet<&str> =
        versions.iter().filter(|(_, found)| found.len() > 1).map(|(name, _)| *name).collect();
    assert_eq!(twice, TWICE.iter().map(|(name, _)| *name).collect());
}
