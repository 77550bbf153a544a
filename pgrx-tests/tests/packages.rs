//! What is handed out: the Debian package, put onto a server that never had the extension, and the metadata for PGXN.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use queue_ext_tests::cluster::{home, major_version, pg_config};
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

/// A copy of the server's files, without the extension. They are linked: nothing may be written in place.
struct Server {
    top: PathBuf,
    pg_config: PathBuf,
}

impl Server {
    fn copy(name: &str) -> Self {
        // The folder that has all of it: bin, lib and share, however deep.
        let binary =
            PathBuf::from(std::env::var("PG_CONFIG").expect("PG_CONFIG")).canonicalize().expect("pg_config");
        let original =
            binary.ancestors().find(|folder| folder.parent() == Some(&home())).expect("a fetched server");
        let top = home().join("run").join(name);
        let _ = fs::remove_dir_all(&top);
        run("cp", &["-al", original.to_str().expect("a path"), top.to_str().expect("a path")]);
        let pg_config = top.join(binary.strip_prefix(original).expect("below"));
        let server = Self { top, pg_config };
        for file in
            fs::read_dir(server.extensions()).expect("read").map(|entry| entry.expect("a file").path())
        {
            if file.file_name().expect("a name").to_string_lossy().starts_with("queue_ext") {
                fs::remove_file(file).expect("remove");
            }
        }
        fs::remove_file(server.libraries().join("queue_ext.so")).expect("remove");
        server
    }

    fn libraries(&self) -> PathBuf {
        run(&self.pg_config, &["--pkglibdir"]).into()
    }

    fn extensions(&self) -> PathBuf {
        PathBuf::from(run(&self.pg_config, &["--sharedir"])).join("extension")
    }
}

#[test]
fn the_package_installs_on_a_server_that_never_had_it() {
    let server = Server::copy("packages-server");
    let out = home().join("run/packages");
    let _ = fs::remove_dir_all(&out);
    // Made of what was installed for the tests, which is what make install makes.
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
    // Where Debian's servers look for it; the servers of the tests may look elsewhere.
    for (from, to) in [
        (unpacked.join(format!("usr/lib/postgresql/{major}/lib")), server.libraries()),
        (unpacked.join(format!("usr/share/postgresql/{major}/extension")), server.extensions()),
    ] {
        for file in fs::read_dir(&from).expect("read").map(|entry| entry.expect("a file").path()) {
            fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("copy");
        }
    }
    let done = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "smoke", "--ignored", "--nocapture"])
        .env("PG_CONFIG", &server.pg_config)
        .output()
        .expect("run the smoke test");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    fs::remove_dir_all(&server.top).expect("remove the server");
}

/// On whatever server PG_CONFIG names.
#[test]
#[ignore = "run by the test above, on a server that got the package"]
fn smoke() {
    assert!(pg_config("--bindir").contains("packages-server"));
    let mut cluster = Cluster::start_with("packages-smoke", &Settings::default());
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    cluster.await_worker("postgres");
    client.batch_execute("SELECT queue.push('default', '{\"n\": 1}')").expect("push");
    let row = client.query_one("SELECT id, token FROM queue.claim('30 seconds')", &[]).expect("claim");
    client
        .execute("SELECT queue.complete($1, $2)", &[&row.get::<_, i64>(0), &row.get::<_, i32>(1)])
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
fn the_metadata_is_whole_and_of_this_version() {
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
