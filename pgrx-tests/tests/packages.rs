//! The release files: the Debian package, installed on a server that never had the extension, and the metadata for
//! PGXN.

use std::fs;
use std::path::Path;
use std::process::Command;

use queue_ext_tests::cluster::{major_version, run_folder};
use queue_ext_tests::installation::Installation;
use queue_ext_tests::{Cluster, Settings, brief};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent")
}

fn run(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let done = Command::new(program.as_ref()).args(arguments).output().expect("run it");
    let said = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    assert!(done.status.success(), "{:?}: {said}{}", program.as_ref(), String::from_utf8_lossy(&done.stderr));
    said
}

#[test]
fn the_package_installs_on_a_server_without_the_extension() {
    let folder = run_folder("packages-server");
    let server = Installation::copy(&folder);
    assert!(server.remove("queue_ext") >= 3, "the library, the control file and the script");
    let out = run_folder("packages");
    let _ = fs::remove_dir_all(&out);
    // Built from the files installed for the tests, which are those of make install.
    let package = run(
        root().join("packaging/deb"),
        &[&std::env::var("PG_CONFIG").expect("PG_CONFIG"), "", out.to_str().expect("a path")],
    );
    let major = major_version();
    assert!(
        package.contains(&format!("postgresql-{major}-queue-ext_{}-1_", env!("CARGO_PKG_VERSION"))),
        "{package}"
    );
    let unpacked = out.join("unpacked");
    run("dpkg-deb", &["-x", &package, unpacked.to_str().expect("a path")]);
    // The folders of Debian's servers; the test servers may use others.
    for (from, to) in [
        (unpacked.join(format!("usr/lib/postgresql/{major}/lib")), &server.modules),
        (unpacked.join(format!("usr/share/postgresql/{major}/extension")), &server.extensions),
    ] {
        for file in fs::read_dir(&from).expect("read").map(|entry| entry.expect("a file").path()) {
            fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("copy");
        }
    }
    smoke(&server);
    fs::remove_dir_all(&folder).expect("remove the server");
}

/// A task's way through a server.
fn smoke(server: &Installation) {
    let folder = run_folder("packages-smoke");
    let mut cluster = Cluster::create_of(&server.programs, &folder, &Settings::default(), &[]);
    cluster.launch();
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    cluster.await_worker("postgres");
    client.batch_execute("SELECT queue.push('default', '{\"n\": 1}')").expect("push");
    let row = client.query_one("SELECT id, token FROM queue.claim('30 seconds')", &[]).expect("claim");
    client
        .execute("SELECT queue.complete($1, $2)", &[&row.get::<_, i64>(0), &row.get::<_, i64>(1)])
        .expect("complete");
    let loaded: bool = client
        .query_one(
            "SELECT (queue.engine_stats() ->> 'loaded')::bool AND count(*) = 1 FROM queue.history",
            &[],
        )
        .expect("look")
        .get(0);
    assert!(loaded, "the library is loaded, and the task is in the history");
}

#[test]
fn the_metadata_is_complete_and_of_this_version() {
    if brief() {
        return;
    }
    let text = fs::read_to_string(root().join("META.json")).expect("read META.json");
    let meta: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for key in ["name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"] {
        assert!(!meta[key].is_null(), "PGXN asks for {key}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(meta["version"], version);
    assert_eq!(meta["provides"]["queue_ext"]["version"], version);
    for key in ["file", "docfile"] {
        assert!(root().join(meta["provides"]["queue_ext"][key].as_str().expect(key)).exists(), "{key}");
    }
}
