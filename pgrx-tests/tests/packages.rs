//! What is published: the Debian package, installed on a server that never had the extension; the other files, each used
//! where nothing else of the project is; and the metadata for PGXN.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use queue_ext_tests::cluster::{home, major_version, run_folder};
use queue_ext_tests::installation::Installation;
use queue_ext_tests::{Cluster, Settings, brief, built};

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

/// Builds the files, but for the Debian packages of other versions, into a folder.
fn publish(name: &str) -> PathBuf {
    let out = run_folder(name);
    // packaging/release takes it from there.
    built::program();
    let path = |more: PathBuf| {
        let before = std::env::var("PYTHONPATH").unwrap_or_default();
        format!("{}:{before}", more.display())
    };
    let done = Command::new(root().join("packaging/release"))
        .arg(&out)
        .arg(std::env::var("PG_CONFIG").expect("PG_CONFIG"))
        .env("PYTHONPATH", path(home().join("libraries/python")))
        .output()
        .expect("run it");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    out
}

/// The one file whose name matches.
fn file(folder: &Path, begins: &str, ends: &str) -> String {
    let names = fs::read_dir(folder).expect("read").map(|entry| entry.expect("a file").file_name());
    let mut found = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(begins) && name.ends_with(ends));
    let name = found.next().unwrap_or_else(|| panic!("no {begins}*{ends}"));
    assert_eq!(found.next(), None, "{begins}*{ends}");
    folder.join(name).to_str().expect("a plain path").to_owned()
}

#[test]
fn what_is_published_can_be_used_alone_and_is_the_same_in_each_build() {
    if brief() || !home().join("libraries/node_modules").exists() {
        return;
    }
    let out = publish("packages-published");
    let again = publish("packages-published-again");
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).expect("sums");
    assert_eq!(sums(&out), sums(&again));
    assert_eq!(
        sums(&out).lines().count() + 1,
        fs::read_dir(&out).expect("read").count(),
        "each file has a sum"
    );
    let alone = run_folder("packages-alone");
    let _ = fs::remove_dir_all(&alone);
    let node = alone.join("node_modules/queue-ext");
    fs::create_dir_all(&node).expect("create");
    let in_alone = |name: &str| alone.join(name).to_str().expect("a plain path").to_owned();

    // The SQL file makes the database, on a server that the library is not loaded into.
    let mut cluster = Cluster::start_with("packages-clients", &Settings { preload: false, extra: "" });
    let psql = cluster.programs().join("psql");
    let url = format!("postgresql://postgres@/fresh?host={}", cluster.folder().display());
    cluster.connect().batch_execute("CREATE DATABASE fresh").expect("create");
    run(psql, &[&url, "-Xqv", "ON_ERROR_STOP=1", "-f", &file(&out, "queue_ext-portable--", ".sql")]);

    // A push by the program, one by the npm archive, and a worker by the wheel.
    let program = file(&out, "queue-0", "");
    run(&program, &["--url", &url, "push", "default", "{\"by\": \"program\"}"]);
    run(
        "tar",
        &[
            "-xzf",
            &file(&out, "queue-ext-", ".tgz"),
            "-C",
            node.to_str().expect("a path"),
            "--strip-components=1",
        ],
    );
    for entry in fs::read_dir(home().join("libraries/node_modules")).expect("read") {
        let entry = entry.expect("a package");
        if entry.file_name() != "queue-ext" {
            std::os::unix::fs::symlink(entry.path(), alone.join("node_modules").join(entry.file_name()))
                .expect("link");
        }
    }
    let script = "import { push } from 'queue-ext'; import pg from 'pg';
        const db = new pg.Client({ connectionString: process.argv[2] }); await db.connect();
        await push(db, 'default', { by: 'npm' }); await db.end();";
    fs::write(alone.join("push.mjs"), script).expect("write");
    run("node", &[&in_alone("push.mjs"), &url]);
    run(
        "python3",
        &[
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            &in_alone("python"),
            &file(&out, "queue_ext-", ".whl"),
        ],
    );
    let script = "import sys, queue_ext
worker = queue_ext.Worker(sys.argv[1], 'default')
assert '/python/queue_ext/' in queue_ext.__file__, queue_ext.__file__
@worker.handler()
def handle(task):
    if task.payload['by'] == 'npm':
        worker.stop()
worker.run()";
    fs::write(alone.join("work.py"), script).expect("write");
    let drivers = std::env::var("PYTHONPATH").unwrap_or_default();
    let done = Command::new("python3")
        .args([&in_alone("work.py"), &url])
        .env("PYTHONPATH", format!("{}:{drivers}", in_alone("python")))
        .output()
        .expect("run it");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let query = "SELECT array_agg(payload ->> 'by' ORDER BY id) = '{program,npm}' FROM queue.history";
    assert!(cluster.connect_to("fresh").query_one(query, &[]).expect("look").get::<_, bool>(0));
    cluster.stop("fast");

    // The sources alone make the same SQL file.
    run(
        "tar",
        &[
            "-xzf",
            &file(&out, "queue_ext-0", ".tar.gz"),
            "-C",
            alone.to_str().expect("a path"),
            "--strip-components=1",
        ],
    );
    run("make", &["-s", "-C", alone.to_str().expect("a path"), "portable"]);
    let made = file(&alone.join("target"), "queue_ext-portable--", ".sql");
    assert_eq!(
        fs::read(made).expect("read"),
        fs::read(file(&out, "queue_ext-portable--", ".sql")).expect("read")
    );
}
