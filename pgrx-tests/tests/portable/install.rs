//! Installs the edition as a role without special attributes.

use super::*;
use queue_ext_tests::Edition;
use std::fs;
use std::process::Stdio;

const STOP: [&str; 2] = ["-v", "ON_ERROR_STOP=1"];

#[test]
fn a_plain_owner_installs_it_and_a_second_installation_is_refused() {
    let cluster = with_library("install");
    let mut client = cluster.connect();
    client.batch_execute(&format!("CREATE ROLE {OWNER} LOGIN")).expect("a plain role");
    for database in ["empty", "foreign", "native"] {
        client.batch_execute(&format!("CREATE DATABASE \"{database}\" OWNER {OWNER}")).expect("a database");
    }
    let file = Edition::SqlOnly.script().expect("it has one");
    let first = psql(&cluster, OWNER, "empty", &file, &STOP);
    assert!(first.status.success() && said(&first).is_empty(), "{}", said(&first));
    let mut owner = as_owner(&cluster, "empty");
    let mine = "SELECT bool_and(o.owner = current_user::regrole) FROM (
            SELECT nspowner::regrole FROM pg_namespace WHERE nspname ~ '^queue'
            UNION ALL SELECT relowner FROM pg_class WHERE relnamespace = 'queue'::regnamespace
            UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^queue') AS o (owner)";
    assert!(ask::<bool>(&mut owner, mine));
    assert!(!ask::<bool>(&mut owner, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"));
    let library = "SELECT count(*) FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
                   WHERE p.pronamespace::regnamespace::text ~ '^queue' AND l.lanname NOT IN ('sql', 'plpgsql')";
    assert_eq!(ask::<i64>(&mut owner, library), 0);
    let id: i64 = ask(&mut owner, "SELECT queue.push('default')");

    // A second installation is refused and changes nothing, also if psql continues after errors.
    for options in [&STOP[..], &[]] {
        let again = psql(&cluster, OWNER, "empty", &file, options);
        let text = said(&again);
        let version = env!("CARGO_PKG_VERSION");
        assert!(text.contains(&format!("queue_ext {version} is in this database already")), "{text}");
        assert_eq!(again.status.success(), options.is_empty());
        assert_eq!(ask::<i64>(&mut owner, "SELECT id FROM queue.tasks"), id);
    }
    // Another version is refused, with a hint.
    owner
        .batch_execute(
            "CREATE OR REPLACE FUNCTION queue.engine_stats() RETURNS jsonb LANGUAGE sql
             AS $$SELECT jsonb_build_object('version', '0.0.9')$$",
        )
        .expect("another version");
    let text = said(&psql(&cluster, OWNER, "empty", &file, &STOP));
    assert!(text.contains("another version of queue_ext is in this database: 0.0.9"), "{text}");
    assert!(text.contains("docs/portable.md"), "{text}");

    // A schema of that name of another owner, and the extension.
    as_owner(&cluster, "foreign").batch_execute("CREATE SCHEMA queue").expect("a schema");
    let text = said(&psql(&cluster, OWNER, "foreign", &file, &STOP));
    assert!(text.contains("which is not queue_ext's"), "{text}");
    let mut foreign = as_owner(&cluster, "foreign");
    assert!(ask::<bool>(&mut foreign, "SELECT to_regnamespace('queue_internal') IS NULL"));
    cluster.connect_to("native").batch_execute("CREATE EXTENSION queue_ext").expect("CREATE EXTENSION");
    let text = said(&psql(&cluster, OWNER, "native", &file, &STOP));
    assert!(text.contains("the extension queue_ext is installed in this database"), "{text}");
}

#[test]
fn installing_calls_nothing_in_an_existing_schema_of_that_name() {
    for edition in [Edition::SqlOnly, Edition::Yugabyte] {
        let cluster = edition.cluster("portable-squatted", Worker::Off);
        let mut client = cluster.connect();
        client
            .batch_execute(&format!("CREATE ROLE {OWNER} LOGIN; ALTER DATABASE postgres OWNER TO {OWNER}"))
            .expect("a plain role");
        let grab = format!("BEGIN ALTER ROLE {OWNER} SUPERUSER; RETURN '{{\"version\": \"0.0.9\"}}'; END");
        as_owner(&cluster, "postgres")
            .batch_execute(&format!(
                "CREATE SCHEMA queue;
                 CREATE FUNCTION queue.engine_stats() RETURNS jsonb LANGUAGE plpgsql AS $$ {grab} $$"
            ))
            .expect("a trap");
        let text =
            said(&psql(&cluster, "postgres", "postgres", &edition.script().expect("it has one"), &STOP));
        assert!(text.contains("which is not queue_ext's"), "{text}");
        assert!(!ask::<bool>(
            &mut client,
            &format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{OWNER}'")
        ));
    }
}

/// The blocks of SQL in a section of the README.
fn blocks(section: &str) -> Vec<String> {
    let readme = fs::read_to_string(target().join("../README.md")).expect("read the README");
    let start = readme.find(&format!("\n### {section}\n")).expect("the section");
    let text = &readme[start + 5..];
    let text = &text[..text.find("\n## ").unwrap_or(text.len())];
    text.split("```sql test=portable\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("an end").to_owned())
        .collect()
}

#[test]
fn the_readme_leads_to_a_first_finished_task() {
    let cluster = Edition::SqlOnly.cluster("portable-readme", Worker::On);
    let mut client = cluster.connect();
    client
        .batch_execute(&format!("CREATE ROLE {OWNER} LOGIN; CREATE ROLE web LOGIN; CREATE ROLE mailer LOGIN"))
        .expect("roles");
    client.batch_execute(&format!("CREATE DATABASE managed OWNER {OWNER}")).expect("what a service gives");
    // pg_cron, as far as the page uses it.
    cluster
        .connect_to("managed")
        .batch_execute(
            "CREATE SCHEMA cron; CREATE TABLE cron.job (name text, schedule text, command text);
             CREATE FUNCTION cron.schedule(text, text, text) RETURNS void LANGUAGE sql SECURITY DEFINER
             AS 'INSERT INTO cron.job VALUES ($1, $2, $3)'; GRANT USAGE ON SCHEMA cron TO PUBLIC",
        )
        .expect("a stand-in for pg_cron");
    let installed = psql(&cluster, OWNER, "managed", &Edition::SqlOnly.script().expect("it has one"), &STOP);
    assert!(installed.status.success(), "{}", said(&installed));
    let blocks = blocks("On managed Postgres");
    assert!(!blocks.is_empty(), "the section has SQL");
    // Typed into psql, one session, as a reader does.
    let mut session = Command::new(bindir().join("psql"))
        .args(["-X", "-At", "-v", "ON_ERROR_STOP=1", "-U", OWNER, "-d", "managed", "-h"])
        .arg(cluster.folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start psql");
    use std::io::Write;
    session.stdin.take().expect("its input").write_all(blocks.concat().as_bytes()).expect("type");
    let output = session.wait_with_output().expect("psql ends");
    assert!(output.status.success(), "{}", said(&output));
    let mut owner = as_owner(&cluster, "managed");
    assert_eq!(ask::<String>(&mut owner, "SELECT state FROM queue.all_tasks WHERE id = 1"), "completed");
    let mut admin = cluster.connect_to("managed");
    let (schedule, command): (String, String) = admin
        .query_one("SELECT schedule, command FROM cron.job", &[])
        .map(|row| (row.get(0), row.get(1)))
        .expect("a job");
    assert_eq!(schedule, "* * * * *");
    owner.batch_execute(&command).expect("what the scheduler runs");
    let well = "SELECT string_agg(name || ': ' || detail, ', ') FROM queue.health() WHERE status <> 'ok'";
    assert_eq!(ask::<Option<String>>(&mut owner, well), None);
}

/// pg_tle keeps extensions in the database and shows them to the server as files. This stands in for it with files
/// in earnest, under a name that no other test has.
#[test]
fn a_plain_role_installs_it_with_pg_tle() {
    let cluster = Edition::SqlOnly.cluster("portable-tle", Worker::On);
    let mut client = cluster.connect();
    client
        .batch_execute(&format!(
            "CREATE ROLE {OWNER} LOGIN; ALTER DATABASE postgres OWNER TO {OWNER}; CREATE SCHEMA pgtle;
             CREATE TABLE pgtle.installed (name text, version text, comment text, script text);
             CREATE FUNCTION pgtle.install_extension(name text, version text, description text, ext text) RETURNS boolean
             LANGUAGE sql AS 'INSERT INTO pgtle.installed VALUES ($1, $2, $3, $4) RETURNING true'"
        ))
        .expect("a stand-in for pg_tle");
    let taken = psql(&cluster, "postgres", "postgres", &made("pg_tle"), &STOP);
    assert!(taken.status.success(), "{}", said(&taken));
    let row =
        client.query_one("SELECT name, version, script FROM pgtle.installed", &[]).expect("one extension");
    let (name, version, script): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((name.as_str(), version.as_str()), ("queue_ext", env!("CARGO_PKG_VERSION")));
    let folder = Path::new(&queue_ext_tests::cluster::pg_config("--sharedir")).join("extension");
    let files = [
        (
            folder.join("queue_ext_by_tle.control"),
            format!("default_version = '{version}'\nsuperuser = false\nrelocatable = false\n"),
        ),
        (folder.join(format!("queue_ext_by_tle--{version}.sql")), script),
    ];
    for (path, text) in &files {
        fs::write(path, text).expect("write into the server's folder");
    }
    client.batch_execute(&format!("CREATE DATABASE restored OWNER {OWNER}")).expect("a database");
    let mut owner = as_owner(&cluster, "postgres");
    let created = owner.batch_execute(
        "CREATE EXTENSION queue_ext_by_tle;
         SELECT queue.set('max_lease', '1 day'); UPDATE queue_internal.token_mark SET reached = 7",
    );
    let host = cluster.folder().to_str().expect("a path").to_owned();
    let dump = format!("{host}/tle.sql");
    let restored = created.map(|()| {
        let what = ["-e", "queue_ext_by_tle", "-n", "queue", "-n", "queue_internal", "-f", &dump];
        cluster.run("pg_dump", &[&["-h", &host, "-U", OWNER, "-d", "postgres"], &what[..]].concat());
        psql(&cluster, OWNER, "restored", Path::new(&dump), &STOP)
    });
    for (path, _) in &files {
        fs::remove_file(path).expect("delete it again");
    }
    let restored = restored.expect("CREATE EXTENSION");
    assert!(restored.status.success(), "{}", said(&restored));
    let mut other = as_owner(&cluster, "restored");
    assert_eq!(ask::<String>(&mut other, "SELECT queue_internal.setting('max_lease', '')"), "1 day");
    other.batch_execute("SELECT queue.push('default')").expect("push");
    assert_eq!(ask::<i64>(&mut other, "SELECT token FROM queue.claim()"), 8, "after the mark");
    assert_eq!(ask::<i64>(&mut owner, "SELECT queue.push('default')"), 1);
    owner.batch_execute("SELECT queue.complete(id, token) FROM queue.claim()").expect("it works");
    owner.batch_execute("CALL queue.maintain()").expect("and is kept going");
    let saved = "SELECT cardinality(extconfig) FROM pg_extension WHERE extname = 'queue_ext_by_tle'";
    assert!(ask::<i32>(&mut owner, saved) > 10);
    owner.batch_execute("DROP EXTENSION queue_ext_by_tle").expect("and goes whole");
    assert!(ask::<bool>(&mut owner, "SELECT to_regnamespace('queue') IS NULL"));
}
