//! From the SQL-only edition to the extension and back, with work under way.

use super::*;
use queue_ext_tests::brief;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

const CATALOG: &str = include_str!("catalog.sql");

/// Everything that is in the queues, as text.
const EVERYTHING: &str = "
    SELECT 'task ' || to_jsonb(t)::text FROM queue.tasks AS t
    UNION ALL SELECT 'past ' || to_jsonb(h)::text FROM queue.history AS h
    UNION ALL SELECT 'dead ' || to_jsonb(d)::text FROM queue.dead_letters AS d
    UNION ALL SELECT 'queue ' || to_jsonb(q)::text FROM queue.queues AS q
    UNION ALL SELECT 'schedule ' || to_jsonb(s)::text FROM queue.schedules AS s
    UNION ALL SELECT 'binding ' || to_jsonb(b)::text FROM queue.bindings AS b
    UNION ALL SELECT 'handler ' || to_jsonb(h)::text FROM queue.handlers AS h
    UNION ALL SELECT 'right ' || to_jsonb(r)::text FROM queue.rights AS r
    UNION ALL SELECT 'key ' || to_jsonb(k)::text FROM queue_internal.keys AS k
    UNION ALL SELECT 'slot ' || to_jsonb(s)::text FROM queue_internal.slots AS s
    UNION ALL SELECT 'token ' || to_jsonb(s)::text FROM queue_internal.rate_buckets AS s
    UNION ALL SELECT 'start ' || to_jsonb(s)::text FROM queue_internal.group_starts AS s
    UNION ALL SELECT 'dependency ' || to_jsonb(d)::text FROM queue_internal.dependencies AS d
    UNION ALL SELECT 'step ' || to_jsonb(s)::text FROM queue_internal.steps AS s
    UNION ALL SELECT 'await ' || to_jsonb(a)::text FROM queue_internal.awaits AS a
    UNION ALL SELECT 'emitted ' || to_jsonb(e)::text FROM queue_internal.emitted AS e
    UNION ALL SELECT 'batch ' || to_jsonb(b)::text FROM queue_internal.batches AS b
    UNION ALL SELECT 'day ' || p.name || p.attached FROM queue_internal.history_partitions() AS p
    UNION ALL SELECT 'sequence ' || s.last_value || s.is_called FROM queue.tasks_id_seq AS s
    ORDER BY 1";

/// Rows in every table.
const SOMETHING: &str = r#"
    SELECT queue.create('mail', '{"max_running": 5, "rate_limit": 100, "group_rate_limit": 2, "rate_period": "1 hour", "key_ttl": "1 day"}'),
           queue.create('bare', '{"keep_history": false, "durable_leases": "on"}'), queue.configure('default', '{"lease": "7 minutes", "timeout": "3 hours", "ttl": "1 week", "on_expired": "cancel", "max_queued": 1000}');
    SELECT queue.push('mail', '{"n": 1}', key => 'k1'), queue.push('mail', group_key => 'g'),
           queue.push('mail', group_key => 'g'), queue.push('default', delay => '1 hour'),
           queue.push('default', to_jsonb(repeat('x', 20000)), priority => 3),
           queue.push('bare', kind => 'letter', lease => '2 minutes', timeout => '1 hour', start_by => '2100-01-01', weight => 3);
    SELECT queue.push('mail', after => ARRAY[1, 2]);
    SELECT queue.claim('10 minutes', 'mail', 2);
    SELECT queue.complete(id, token, '{"done": true}') FROM queue.claim('10 minutes');
    SELECT queue.push('default');
    SELECT queue.fail(id, token, 'no', permanent => true) FROM queue.claim('10 minutes');
    SELECT queue.push('mail', key => 'k1', on_duplicate => 'replace');
    SELECT queue.extend(1, 1, '20 minutes');
    SELECT queue.schedule('nightly', '30 2 * * *', 'mail', '{"k": 1}', 'Europe/Berlin'), queue.bind('a.#', 'mail');
    SELECT queue.create('flows'), queue.emit('flows', 'early'), queue.push('flows'), queue.push('flows');
    SELECT queue.step(id, token, 's', '1'), queue.await_event(id, token, 'late') FROM queue.claim('10 minutes', 'flows');
    SELECT queue.await_task(id, token, 1, '1 day') FROM queue.claim('10 minutes', 'flows');
    SELECT queue.push('bare', delay => '1 hour', batch => queue.create_batch('bare'));
    SELECT queue.seal_batch(max(batch)) FROM queue.batches"#;

/// The rights, which are policies and privileges in the catalog.
const GRANTS: &str = "SELECT queue.grant_worker('tenant', 'mail'), queue.grant_producer('producer'), queue.grant_operator('operator')";

fn lines(client: &mut Client, query: &str) -> Vec<String> {
    client.query(query, &[]).expect("read").iter().map(|row| row.get(0)).collect()
}

fn assert_same(what: &str, before: &[String], after: &[String]) {
    let only = |one: &[String], other: &[String]| {
        one.iter().filter(|line| !other.contains(line)).take(5).cloned().collect::<Vec<_>>().join("\n")
    };
    assert!(
        before == after,
        "{what}: only before:\n{}\nonly after:\n{}",
        only(before, after),
        only(after, before)
    );
}

fn move_to(cluster: &Cluster, role: &str, to: &str) -> Output {
    psql(cluster, role, "postgres", &made("move"), &["-v", "ON_ERROR_STOP=1", "-v", &format!("to={to}")])
}

/// What an owner can add to the edition, what the refusal says of it, and how it is dropped.
const ADDITIONS: [(&str, &str, &str); 13] = [
    ("CREATE VIEW public.mine AS SELECT id FROM queue.tasks", "view public.mine", "DROP VIEW public.mine"),
    ("CREATE VIEW queue.mine AS SELECT id FROM queue.history", "view queue.mine", "DROP VIEW queue.mine"),
    ("CREATE TABLE queue.mine ()", "table queue.mine", "DROP TABLE queue.mine"),
    ("CREATE INDEX mine ON queue.tasks (worker)", "index queue.mine", "DROP INDEX queue.mine"),
    (
        "ALTER TABLE queue.tasks ADD mine int",
        "column mine of queue.tasks",
        "ALTER TABLE queue.tasks DROP mine",
    ),
    (
        "CREATE POLICY mine ON queue.dead_letters USING (true)",
        "policy mine on table queue.dead_letters",
        "DROP POLICY mine ON queue.dead_letters",
    ),
    (
        "ALTER POLICY operators_read ON queue.bindings RENAME TO aside;
         CREATE POLICY operators_read ON queue.bindings FOR SELECT USING (queue <> 'mine')",
        "policy operators_read of queue.bindings",
        "DROP POLICY operators_read ON queue.bindings; ALTER POLICY aside ON queue.bindings RENAME TO operators_read",
    ),
    (
        "CREATE PUBLICATION mine FOR TABLE queue.history",
        "publication of table queue.history in publication mine",
        "DROP PUBLICATION mine",
    ),
    (
        "CREATE TABLE public.mine (task bigint REFERENCES queue.tasks)",
        "constraint mine_task_fkey on table public.mine",
        "DROP TABLE public.mine",
    ),
    (
        "CREATE TRIGGER mine BEFORE UPDATE ON queue.queues FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "trigger mine on table queue.queues",
        "DROP TRIGGER mine ON queue.queues",
    ),
    (
        "CREATE FUNCTION queue_internal.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER mine AFTER INSERT ON queue.tasks EXECUTE FUNCTION queue_internal.mine()",
        "trigger mine on table queue.tasks",
        "DROP TRIGGER mine ON queue.tasks; DROP FUNCTION queue_internal.mine()",
    ),
    (
        "CREATE FUNCTION public.mine(queue.tasks) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "function public.mine(queue.tasks)",
        "DROP FUNCTION public.mine(queue.tasks)",
    ),
    (
        "CREATE TABLE public.mine (task queue.claimed_task, id bigint DEFAULT queue.push('default'))",
        "default value for column id of table public.mine",
        "DROP TABLE public.mine",
    ),
];

/// If the move would lose an object, it is refused and changes nothing.
fn additions_are_refused(cluster: &Cluster, owner: &mut Client, to: &str) {
    let edition = "SELECT coalesce(queue.engine_stats() ->> 'edition', 'native')";
    let before: String = ask(owner, edition);
    for (make, named, undo) in ADDITIONS {
        owner.batch_execute(make).unwrap_or_else(|error| panic!("{make}: {error:?}"));
        let refused = move_to(cluster, "postgres", to);
        let text = said(&refused);
        assert!(!refused.status.success(), "{make}");
        assert!(text.contains("the move would lose additions to queue_ext"), "{make}: {text}");
        assert!(text.contains(named) && text.contains("HINT:  Drop them"), "{make}: {text}");
        assert_eq!(ask::<String>(owner, edition), before);
        owner.batch_execute(undo).unwrap_or_else(|error| panic!("{undo}: {error:?}"));
    }
}

#[test]
fn moving_keeps_everything_and_leaves_the_catalog_of_a_fresh_install() {
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with("portable-moving", &settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE ROLE tenant; CREATE ROLE producer; CREATE ROLE operator").expect("roles");
    let mut fresh = Vec::new();
    for (edition, database) in [(Edition::FastPath, "native"), (Edition::SqlOnly, "sql_only")] {
        client.batch_execute(&format!("CREATE DATABASE {database}")).expect("a database");
        edition.install(&cluster, database);
        let mut other = if edition == Edition::SqlOnly {
            as_owner(&cluster, database)
        } else {
            cluster.connect_to(database)
        };
        other.batch_execute("SELECT queue.create('mail')").expect("a queue");
        other.batch_execute(GRANTS).expect("rights");
        fresh.push(lines(&mut other, CATALOG));
    }
    let [native, sql_only] = &fresh[..] else { unreachable!("two") };
    assert!(native.len() > 400 && sql_only.len() > 300);
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut owner = as_owner(&cluster, "postgres");
    owner.batch_execute(SOMETHING).expect("some of everything");
    owner.batch_execute(GRANTS).expect("rights");
    owner.batch_execute("CALL queue.maintain()").expect("partitions");
    owner.batch_execute("SELECT queue.set('history_retention', '3 days')").expect("a setting");
    assert_same("a fresh install with rights", sql_only, &lines(&mut owner, CATALOG));
    let before = lines(&mut client, EVERYTHING);
    assert!(before.iter().filter(|line| line.starts_with("day ")).count() >= 4, "{before:?}");

    additions_are_refused(&cluster, &mut owner, "native");
    let output = move_to(&cluster, "postgres", "native");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("queue.history_retention = '3 days'"), "{}", said(&output));
    assert_same("everything", &before, &lines(&mut client, EVERYTHING));
    assert_same("the catalog of the extension", native, &lines(&mut client, CATALOG));
    // The old lease stays valid in an old session, and no other worker gets its task.
    let mut owner_now = cluster.connect();
    assert_eq!(ask::<i64>(&mut owner_now, "SELECT count(*) FROM queue.claim('1 minute', 'mail')"), 0);
    client.batch_execute("SELECT queue.complete(1, 1)").expect("the token from before");
    let stale = client.batch_execute("SELECT queue.complete(2, 2)").expect_err("not a token");
    assert_eq!(stale.code().map(|code| code.code()), Some("QX001"));
    let next: i64 = ask(&mut client, "SELECT queue.push('default')");
    assert_eq!(next, 15, "ids go on");

    additions_are_refused(&cluster, &mut client, "sql_only");
    let before = lines(&mut client, EVERYTHING);
    let output = move_to(&cluster, "postgres", "sql_only");
    assert!(output.status.success(), "{}", said(&output));
    assert_same("everything", &before, &lines(&mut client, EVERYTHING));
    assert_same("the catalog of the SQL-only edition", sql_only, &lines(&mut owner, CATALOG));
    client.batch_execute("SELECT queue.complete(2, 1)").expect("the token from before");
    // Now the two that waited for it, in its group and for its end, and the one that replaced the first.
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM queue.claim('1 minute', 'mail', 5)"), 3);

    // A newer file over an older version, by a role without special attributes.
    let again = move_to(&cluster, OWNER, "sql_only");
    assert!(said(&again).contains("is in this database already"), "{}", said(&again));
    owner
        .batch_execute(
            "SELECT queue.set('max_lease', '1 day');
             CREATE OR REPLACE FUNCTION queue.engine_stats() RETURNS jsonb LANGUAGE sql
             AS $$SELECT jsonb_build_object('version', '0.0.9')$$",
        )
        .expect("another version");
    let refused = move_to(&cluster, "postgres", "native");
    assert!(said(&refused).contains("this is version 0.0.9"), "{}", said(&refused));
    let before = lines(&mut client, EVERYTHING);
    let output = move_to(&cluster, OWNER, "sql_only");
    assert!(output.status.success(), "{}", said(&output));
    assert_same("everything", &before, &lines(&mut client, EVERYTHING));
    assert_same("the catalog of the SQL-only edition", sql_only, &lines(&mut owner, CATALOG));
    assert_eq!(ask::<String>(&mut owner, "SELECT queue_internal.setting('max_lease', '')"), "1 day");
}

/// PostgreSQL writes the definitions of a restored table a little differently.
#[test]
fn a_restored_dump_can_be_moved() {
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with("portable-moving-restored", &settings);
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE source").expect("a database");
    Edition::SqlOnly.install(&cluster, "source");
    as_owner(&cluster, "source").batch_execute(SOMETHING).expect("some of everything");
    client.batch_execute(&format!("ALTER DATABASE postgres OWNER TO {OWNER}")).expect("the owner");
    let host = cluster.folder().to_str().expect("a path").to_owned();
    let file = format!("{host}/source.sql");
    cluster.run("pg_dump", &["-h", &host, "-U", OWNER, "-f", &file, "source"]);
    let restored = psql(&cluster, OWNER, "postgres", Path::new(&file), &["-v", "ON_ERROR_STOP=1"]);
    assert!(restored.status.success(), "{}", said(&restored));
    for to in ["native", "sql_only"] {
        let before = lines(&mut client, EVERYTHING);
        let output = move_to(&cluster, "postgres", to);
        assert!(output.status.success(), "{}", said(&output));
        assert_same(to, &before, &lines(&mut client, EVERYTHING));
    }
}

/// What is created after the script has locked all tables can be changed after it was checked.
#[test]
fn a_table_that_is_created_during_a_move_is_refused() {
    let settings = Settings { preload: true, extra: "queue.worker_enabled = off" };
    let cluster = Cluster::start_with("portable-moving-meanwhile", &settings);
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut owner = as_owner(&cluster, "postgres");
    let like_a_partition: String = ask(
        &mut owner,
        "SELECT format('CREATE TABLE queue.history_20010101 (%s)', string_agg(concat_ws(' ',
             quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
             CASE WHEN a.attcollation = '\"C\"'::regcollation THEN 'COLLATE \"C\"' END,
             'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), CASE WHEN a.attnotnull THEN 'NOT NULL' END), ', '))
         FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = 'queue.history'::regclass AND a.attnum > 0 AND NOT a.attisdropped",
    );
    let host = cluster.folder().to_str().expect("a path").to_owned();
    std::fs::write(format!("{host}/create.sql"), like_a_partition).expect("write");
    let text = std::fs::read_to_string(made("move")).expect("the script");
    let place = "ALTER SCHEMA queue RENAME TO queue_before;";
    assert_eq!(text.matches(place).count(), 1);
    let create = format!("\\! psql -X -q -h '{host}' -U {OWNER} -d postgres -f '{host}/create.sql'\n{place}");
    let file = format!("{host}/move.sql");
    std::fs::write(&file, text.replace(place, &create)).expect("write the script");
    let options = ["-v", "ON_ERROR_STOP=1", "-v", "to=native"];
    let refused = psql(&cluster, "postgres", "postgres", Path::new(&file), &options);
    assert!(
        said(&refused).contains("table queue.history_20010101 was created during the move"),
        "{}",
        said(&refused)
    );
    assert_eq!(ask::<i64>(&mut owner, "SELECT queue.push('default')"), 1, "nothing was changed");
}

#[test]
fn moving_runs_no_code_of_the_owner() {
    let cluster = Cluster::start_with(
        "portable-hostile",
        &Settings { preload: true, extra: "queue.worker_enabled = off" },
    );
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut owner = as_owner(&cluster, "postgres");
    owner.batch_execute("SELECT queue.push('default')").expect("push");
    owner.batch_execute("CALL queue.maintain()").expect("partitions");
    let today = "SELECT 'queue.' || min(name) FROM queue_internal.history_partitions()";
    let today: String = ask(&mut owner, today);
    let grab = format!(
        "BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE {OWNER} SUPERUSER; END IF"
    );
    owner
        .batch_execute(&format!(
            "CREATE FUNCTION public.grab() RETURNS trigger LANGUAGE plpgsql AS $$ {grab}; RETURN NULL; END $$;
             CREATE FUNCTION public.grab(id bigint) RETURNS bigint LANGUAGE plpgsql AS $$ {grab}; RETURN id; END $$;
             CREATE FUNCTION public.grab(queue text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
             BEGIN PERFORM public.grab(1::bigint); RETURN queue; END $$"
        ))
        .expect("traps");
    owner
        .batch_execute(
            "CREATE DOMAIN public.mine AS text CHECK (public.grab(VALUE) IS NOT NULL);
             CREATE DOMAIN public.my_json AS jsonb CHECK (public.grab(VALUE::text) IS NOT NULL);
             CREATE TABLE public.parked (LIKE queue.history_default)",
        )
        .expect("more traps");
    let mut client = cluster.connect();
    let mut is_superuser =
        move || ask::<bool>(&mut client, &format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{OWNER}'"));
    let replaced = |name: &str, columns: &str| {
        let (schema, table) = name.split_once('.').expect("with its schema");
        (
            format!(
                "ALTER TABLE {name} RENAME TO aside; CREATE VIEW {name} AS SELECT {columns} FROM {schema}.aside"
            ),
            format!("DROP VIEW {name}; ALTER TABLE {schema}.aside RENAME TO {table}"),
        )
    };
    let day = &today[6..];
    // In objects that are read or moved: refused.
    let mut traps = vec![
        replaced(
            "queue.bindings",
            "public.grab(topic_pattern) AS topic_pattern, queue, topic_regex, created_at",
        ),
        replaced("queue.rights", "role, public.grab(kind) AS kind, queue"),
        // The extension has no such table. Its rows are printed.
        replaced("queue_internal.settings", "public.grab(name) AS name, value"),
    ];
    traps.extend(
        [
            (
                "ALTER SEQUENCE queue.tasks_id_seq OWNED BY NONE; ALTER SEQUENCE queue.tasks_id_seq RENAME TO aside;
                 CREATE VIEW queue.tasks_id_seq AS
                 SELECT public.grab(last_value) AS last_value, is_called FROM queue.aside",
                "DROP VIEW queue.tasks_id_seq; ALTER SEQUENCE queue.aside RENAME TO tasks_id_seq;
                 ALTER SEQUENCE queue.tasks_id_seq OWNED BY queue.tasks.id",
            ),
            // The planner calls the functions of an index expression.
            (
                "DROP INDEX queue.tasks_order;
                 CREATE INDEX tasks_order ON queue.tasks (public.grab(queue)) WHERE admission < 2",
                "DROP INDEX queue.tasks_order;
                 CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE admission < 2",
            ),
            (
                "CREATE POLICY grab ON queue.tasks USING (public.grab(id) > 0);
                 ALTER TABLE queue.tasks ENABLE ROW LEVEL SECURITY; ALTER TABLE queue.tasks FORCE ROW LEVEL SECURITY",
                "DROP POLICY grab ON queue.tasks;
                 ALTER TABLE queue.tasks DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY",
            ),
            (
                "ALTER TABLE queue.schedules ALTER payload TYPE public.my_json",
                "ALTER TABLE queue.schedules ALTER payload TYPE jsonb",
            ),
            (
                "ALTER TABLE queue.tasks ALTER worker SET DEFAULT public.grab('x')",
                "ALTER TABLE queue.tasks ALTER worker DROP DEFAULT",
            ),
            (
                "CREATE TABLE public.child (CHECK (public.grab(id) > 0)) INHERITS (queue.tasks)",
                "DROP TABLE public.child",
            ),
            (
                "ALTER TABLE queue.history ATTACH PARTITION public.parked FOR VALUES FROM ('2001-01-01') TO ('2001-01-02')",
                "ALTER TABLE queue.history DETACH PARTITION public.parked",
            ),
            (
                "CREATE RULE grab AS ON INSERT TO queue.tasks DO ALSO SELECT public.grab(1)",
                "DROP RULE grab ON queue.tasks",
            ),
        ]
        .map(|(lay, lift)| (lay.to_owned(), lift.to_owned())),
    );
    traps.extend([
        (
            format!("CREATE TRIGGER grab AFTER INSERT ON {today} EXECUTE FUNCTION public.grab()"),
            format!("DROP TRIGGER grab ON {today}"),
        ),
        (format!("CREATE INDEX grab ON {today} (public.grab(queue))"), "DROP INDEX queue.grab".to_owned()),
        (
            format!("CREATE STATISTICS queue.grab ON (public.grab(queue)), id FROM {today}"),
            "DROP STATISTICS queue.grab".to_owned(),
        ),
        (
            format!("ALTER TABLE {today} ADD CHECK (public.grab(id) = id)"),
            format!("ALTER TABLE {today} DROP CONSTRAINT {day}_id_check"),
        ),
        // One that is not attached could be of any shape.
        (
            "CREATE TABLE queue.history_20010101 (LIKE queue.history_default, mine public.mine)".to_owned(),
            "DROP TABLE queue.history_20010101".to_owned(),
        ),
    ]);
    for (lay, lift) in &traps {
        owner.batch_execute(lay).unwrap_or_else(|error| panic!("{lay}: {error:?}"));
        let refused = move_to(&cluster, "postgres", "native");
        let text = said(&refused);
        assert!(!is_superuser(), "{lay}");
        assert!(!refused.status.success(), "{lay}");
        assert!(
            ["would lose additions", "not what it should be"].iter().any(|word| text.contains(word)),
            "{lay}: {text}"
        );
        owner.batch_execute(lift).unwrap_or_else(|error| panic!("{lift}: {error:?}"));
    }
    // A role with a privilege on a partition cannot make code of its own run there after the superuser owns it.
    owner
        .batch_execute(&format!("GRANT ALL ON {today} TO PUBLIC; GRANT UPDATE (queue) ON {today} TO PUBLIC"))
        .expect("grant");
    // In functions that could be called: not called.
    let traps = format!(
        "CREATE OR REPLACE FUNCTION queue_internal.announce_rights() RETURNS void LANGUAGE plpgsql AS $$ {grab}; END $$;
         CREATE OR REPLACE FUNCTION queue_internal.rights_changed() RETURNS trigger LANGUAGE plpgsql AS $$ {grab}; END $$;
         CREATE OR REPLACE FUNCTION queue.engine_stats() RETURNS jsonb LANGUAGE plpgsql AS $$
         {grab}; RETURN jsonb_build_object('version', '{}'); END $$",
        env!("CARGO_PKG_VERSION")
    );
    owner.batch_execute(&traps).expect("traps");
    let output = move_to(&cluster, "postgres", "native");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!is_superuser());
    let mut client = cluster.connect();
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM queue.tasks"), 1);
    let open = format!("SELECT has_table_privilege('{OWNER}', '{today}', 'INSERT, TRIGGER')");
    assert!(!ask::<bool>(&mut client, &open));
}

#[test]
fn code_of_the_owner_runs_only_with_the_owners_rights() {
    // An index may differ between versions, and the planner calls the functions of its expressions.
    let cluster = started("restricted");
    let mut owner = as_owner(&cluster, "postgres");
    owner
        .batch_execute(&format!(
            "CREATE TABLE public.ran (by name);
             CREATE FUNCTION public.grab() RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
                 BEGIN SET ROLE postgres; EXCEPTION WHEN OTHERS THEN NULL; END;
                 BEGIN RESET ROLE; EXCEPTION WHEN OTHERS THEN NULL; END;
                 BEGIN ALTER ROLE {OWNER} SUPERUSER; EXCEPTION WHEN insufficient_privilege THEN NULL; END;
                 INSERT INTO public.ran VALUES (current_user);
             END $$;
             CREATE FUNCTION public.grab(queue text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
             BEGIN PERFORM public.grab(); RETURN queue; END $$;
             INSERT INTO queue.tasks (queue) SELECT 'default' FROM generate_series(1, 1000);
             DROP INDEX queue.tasks_order;
             CREATE INDEX tasks_order ON queue.tasks (queue) WHERE public.grab('x') = 'x';
             CREATE OR REPLACE FUNCTION queue.engine_stats() RETURNS jsonb LANGUAGE sql
             AS $$SELECT jsonb_build_object('version', '0.0.9')$$;
             DROP POLICY operators_read ON queue.queues;
             CREATE POLICY operators_read ON queue.queues USING (public.grab(name) <> '');
             ALTER TABLE queue.queues ENABLE ROW LEVEL SECURITY; TRUNCATE public.ran"
        ))
        .expect("traps");
    let output = move_to(&cluster, "postgres", "sql_only");
    assert!(output.status.success(), "{}", said(&output));
    let mut client = cluster.connect();
    assert!(!ask::<bool>(&mut client, &format!("SELECT rolsuper FROM pg_roles WHERE rolname = '{OWNER}'")));
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM public.ran WHERE by <> 'keeper'"), 0);
    assert!(ask::<bool>(&mut client, "SELECT EXISTS (SELECT FROM public.ran)"), "else this shows nothing");
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM queue.tasks"), 1000);
}

/// A client that retries every error of an edition that is being replaced.
fn persist(
    cluster: &Cluster,
    until: &AtomicBool,
    mut step: impl FnMut(&mut Client) -> Result<(), postgres::Error>,
) -> usize {
    let mut client = cluster.connect();
    let mut failures = 0;
    while !until.load(Ordering::Relaxed) {
        if step(&mut client).is_err() {
            failures += 1;
        }
        if client.is_closed() {
            client = cluster.connect();
        }
    }
    failures
}

#[test]
fn moving_under_load_loses_nothing_and_does_nothing_twice() {
    if brief() {
        return;
    }
    let cluster = Arc::new(with_library("moving-under-work"));
    Edition::SqlOnly.install(&cluster, "postgres");
    let mut client = cluster.connect();
    client.batch_execute("CREATE TABLE effects (id bigint)").expect("a table");
    let done = Arc::new(AtomicBool::new(false));
    let pushed = Arc::new(AtomicI64::new(0));
    let mut threads = Vec::new();
    for number in 0..4 {
        let (cluster, done, pushed) = (Arc::clone(&cluster), Arc::clone(&done), Arc::clone(&pushed));
        threads.push(std::thread::spawn(move || {
            persist(&cluster, &done, |client| {
                if number < 2 {
                    client.query("SELECT queue.push('default')", &[])?;
                    pushed.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                // The effect and the completion are one.
                for task in client.query("SELECT id, token FROM queue.claim('2 seconds')", &[])? {
                    let (id, token): (i64, i64) = (task.get(0), task.get(1));
                    let mut transaction = client.transaction()?;
                    transaction.execute("INSERT INTO effects VALUES ($1)", &[&id])?;
                    transaction.execute("SELECT queue.complete($1, $2)", &[&id, &token])?;
                    transaction.commit()?;
                }
                Ok(())
            })
        }));
    }
    for to in ["native", "sql_only", "native"] {
        // Enough of each, and then to the other under way.
        let enough = pushed.load(Ordering::Relaxed) + 100;
        queue_ext_tests::eventually("a hundred more are pushed", std::time::Duration::from_secs(60), || {
            pushed.load(Ordering::Relaxed) > enough
        });
        let output = move_to(&cluster, "postgres", to);
        assert!(output.status.success(), "{to}: {}", said(&output));
    }
    done.store(true, Ordering::Relaxed);
    let failures: usize = threads.into_iter().map(|thread| thread.join().expect("a client")).sum();
    println!("{} pushed, {failures} calls failed", pushed.load(Ordering::Relaxed));
    // The remaining tasks, with the leases of clients whose completion failed.
    queue_ext_tests::eventually("all is done", std::time::Duration::from_secs(60), || {
        let mut transaction = client.transaction().expect("begin");
        transaction
            .batch_execute(
                "INSERT INTO effects SELECT d.id FROM queue.claim('2 seconds', 'default', 1000) AS d,
                            LATERAL queue.complete(d.id, d.token)",
            )
            .expect("finish");
        transaction.commit().expect("commit");
        ask::<i64>(&mut client, "SELECT count(*) FROM queue.tasks") == 0
    });
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM effects"), pushed.load(Ordering::Relaxed));
    assert_eq!(
        ask::<i64>(&mut client, "SELECT count(DISTINCT id) FROM effects"),
        pushed.load(Ordering::Relaxed)
    );
    assert_eq!(ask::<i64>(&mut client, "SELECT count(*) FROM queue.history"), pushed.load(Ordering::Relaxed));
}
