//! The scripts: a release is frozen, and an upgrade to a version creates the same objects as an installation.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use postgres::Client;
use queue_ext_tests::brief;
use queue_ext_tests::cluster::run_folder;

use super::{ABOUT_SITE, NEXT, laboratory, project, read, releases, run, script, version};

/// The catalog entries of the extension.
fn facts(client: &mut Client) -> BTreeSet<String> {
    let rows = client.query(include_str!("catalog.sql"), &[]).expect("the catalogs");
    assert!(rows.len() > 1000, "{} facts", rows.len());
    rows.iter().map(|row| row.get(0)).collect()
}

/// The differences between two catalogs.
fn differences(fresh: &BTreeSet<String>, upgraded: &BTreeSet<String>) -> Vec<String> {
    let missing = fresh.difference(upgraded).map(|fact| format!("- {fact}"));
    missing.chain(upgraded.difference(fresh).map(|fact| format!("+ {fact}"))).collect()
}

/// The files of an edition, in order.
fn edition(name: &str) -> Vec<String> {
    let listed =
        Command::new("sh").args(["sql/edition", name]).current_dir(project()).output().expect("sql/edition");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8(listed.stdout).expect("file names").lines().map(str::to_owned).collect()
}

/// An overlay whose name is not in the manifest would replace nothing.
#[test]
fn every_sql_file_is_part_of_an_edition() {
    let used: BTreeSet<String> =
        ["native", "sql_only", "yugabyte", "move", "pg_tle"].iter().flat_map(|name| edition(name)).collect();
    let listed = Command::new("find")
        .args("sql -name *.sql -not -path sql/releases/* -not -name queue_ext--*".split(' '))
        .current_dir(project())
        .output()
        .expect("find");
    let present = String::from_utf8(listed.stdout).expect("file names").lines().map(str::to_owned).collect();
    assert_eq!(used, present);
}

#[test]
fn the_frozen_script_is_what_the_sources_make() {
    let made: String = edition("native").iter().map(|file| read(file)).collect();
    let frozen = read(&format!("sql/releases/queue_ext--{}.sql", version()));
    assert!(made == frozen, "the sources have changed: run make freeze");
}

#[test]
fn a_release_has_its_checksum_and_a_way_to_the_next() {
    let (version, sums) = (version(), read("sql/releases/SHA256SUMS"));
    for release in releases() {
        let sealed = sums.contains(&format!("  releases/queue_ext--{release}.sql"));
        if release == version {
            let unreleased = read("CHANGELOG.md").contains(&format!("## {version} (unreleased)"));
            assert!(sealed != unreleased, "{release}: run make freeze when CHANGELOG.md says it is released");
        } else {
            assert!(sealed, "{release} has no checksum: run make freeze before raising the version");
            let begin = format!("queue_ext--{release}--");
            let scripts = fs::read_dir(project().join("sql")).expect("sql");
            let mut names = scripts.map(|file| file.expect("a file").file_name());
            let leads_on = names.any(|name| name.to_string_lossy().starts_with(&begin));
            assert!(leads_on, "nothing leads on from {release}: write sql/{begin}NEXT.sql");
        }
    }
    if !sums.is_empty() {
        let mut check = Command::new("sha256sum");
        check.args(["--quiet", "--check", "releases/SHA256SUMS"]).current_dir(project().join("sql"));
        assert!(check.status().expect("sha256sum").success(), "a released script has changed");
    }
}

#[test]
fn make_freeze_follows_the_sources_until_the_release_and_never_after() {
    let root = run_folder("upgrades-freeze");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("sql/releases")).expect("folders");
    let write = |path: &str, text: &str| fs::write(root.join(path), text).expect("write");
    let frozen = |name: &str| fs::read_to_string(root.join("sql/releases").join(name)).expect("frozen");
    fs::copy(project().join("sql/releases/freeze"), root.join("sql/releases/freeze")).expect("copy");
    write("sql/releases/SHA256SUMS", "");
    let freeze = |version: &str, made: &str, changes: &str| {
        write("made.sql", made);
        write("CHANGELOG.md", changes);
        // Not by itself: a process that another test begins just now may still have the copy open.
        let mut command = Command::new("bash");
        let output = command
            .arg(root.join("sql/releases/freeze"))
            .arg(version)
            .arg(root.join("made.sql"))
            .output()
            .expect("freeze");
        (output.status.success(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    // While it is in the making, it follows the sources.
    assert!(freeze("1.0.0", "one", "## 1.0.0 (unreleased)").0);
    assert!(freeze("1.0.0", "two", "## 1.0.0 (unreleased)").0);
    assert_eq!(frozen("queue_ext--1.0.0.sql"), "two");
    // The release is final, also when it is frozen again.
    assert!(freeze("1.0.0", "three", "## 1.0.0 (2026-01-01)").0);
    assert!(freeze("1.0.0", "three", "## 1.0.0 (2026-01-01)").0);
    let (done, said) = freeze("1.0.0", "four", "## 1.0.0 (2026-01-01)");
    assert!(!done && said.contains("raise the version"), "{said}");
    assert_eq!(frozen("queue_ext--1.0.0.sql"), "three");
    // The next one has a script that leads to it, which is final with it.
    write("sql/queue_ext--1.0.0--1.1.0.sql", "upgrade");
    assert!(freeze("1.1.0", "four", "## 1.1.0 (unreleased)\n## 1.0.0 (2026-01-01)").0);
    assert!(freeze("1.1.0", "five", "## 1.1.0 (2026-02-02)\n## 1.0.0 (2026-01-01)").0);
    assert_eq!(
        (frozen("queue_ext--1.0.0.sql"), frozen("queue_ext--1.1.0.sql")),
        ("three".into(), "five".into())
    );
    for path in ["sql/queue_ext--1.0.0--1.1.0.sql", "sql/releases/queue_ext--1.0.0.sql"] {
        let before = fs::read_to_string(root.join(path)).expect("read");
        write(path, "another");
        let (done, said) = freeze("1.2.0", "six", "## 1.2.0 (unreleased)");
        assert!(!done && said.contains("released scripts do not change"), "{path}: {said}");
        write(path, &before);
    }
    let _ = fs::remove_dir_all(&root);
}

#[test]
fn an_upgrade_creates_what_a_fresh_install_creates() {
    let (cluster, extensions) = laboratory("upgrades-catalog");
    let now = version();
    let database = |name: &str, statements: &str| {
        run(&mut cluster.connect(), &format!("CREATE DATABASE {name}"));
        let mut client = cluster.connect_to(name);
        run(&mut client, statements);
        client
    };
    // From every release to the current sources.
    let fresh = facts(&mut database("fresh", "CREATE EXTENSION queue_ext"));
    for (n, release) in releases().iter().enumerate() {
        let create =
            format!("CREATE EXTENSION queue_ext VERSION '{release}'; ALTER EXTENSION queue_ext UPDATE");
        let upgraded = facts(&mut database(&format!("upgraded_{n}"), &create));
        assert_eq!(differences(&fresh, &upgraded), [""; 0], "an upgrade from {release} is not {now}");
    }
    // And to a version that changes a thing of every kind.
    let fresh = facts(&mut database("fresh_next", "CREATE EXTENSION queue_ext VERSION '99.0'"));
    let mut client = database("next", "CREATE EXTENSION queue_ext");
    let mut upgrade = |script: &str| {
        fs::write(extensions.join(format!("queue_ext--{now}--99.1.sql")), script).expect("write a script");
        run(&mut client, "BEGIN; ALTER EXTENSION queue_ext UPDATE TO '99.1'");
        let upgraded = facts(&mut client);
        run(&mut client, "ROLLBACK");
        differences(&fresh, &upgraded)
    };
    assert_eq!(upgrade(&script(|_| false)), [""; 0], "the right script");
    if brief() {
        return;
    }
    // A script that lacks a statement, or has an additional one, is detected, and the difference is named.
    let (site, _) = NEXT[0];
    for third in 0..3 {
        let left_out: Vec<_> =
            NEXT.iter().enumerate().filter(|(n, _)| n % 3 == third).map(|(_, it)| *it).collect();
        let needs_site = |it: &str| third == 0 && ABOUT_SITE.iter().any(|name| it.contains(name));
        assert_eq!(left_out.iter().any(|(it, _)| *it == site), third == 0);
        let found = upgrade(&script(|it| needs_site(it) || left_out.iter().any(|(other, _)| it == *other)));
        for (statement, seen) in left_out {
            assert!(found.iter().any(|line| line.contains(seen)), "without {statement}: {found:#?}");
        }
    }
    for (more, seen) in [
        ("CREATE FUNCTION queue.stray() RETURNS void LANGUAGE sql AS ''", "queue.stray()"),
        ("ALTER EXTENSION queue_ext DROP VIEW queue.workers", "view queue.workers: is a member"),
        ("ALTER TABLE queue.tasks OWNER TO pg_monitor", "queue.tasks: owner"),
        ("ALTER TABLE queue.queues RENAME COLUMN ageing TO age", "queue.queues column 20"),
    ] {
        let found = upgrade(&(script(|_| false) + more));
        assert!(found.iter().any(|line| line.contains(seen)), "with {more}: {found:#?}");
    }
}
