//! Every kind of role against every public function: for its own queue and another one, however the role got its
//! rights, natively, in SQL, and in the SQL-only edition.

use std::collections::BTreeMap;

use super::verbs::{Stock, VERBS, commits, in_catalog};
use super::{NO_WORKER, cluster, login, refusal, run};
use postgres::{Client, NoTls, SimpleQueryMessage};
use queue_ext_tests::edition::OWNER;
use queue_ext_tests::{Cluster, Edition, Worker};

/// The rights of a role, in the letters of verbs.rs; '*' means all.
#[derive(Clone, Copy)]
struct Role {
    name: &'static str,
    /// With its own queue, with another, with all at once, and without a queue.
    own: &'static str,
    other: &'static str,
    all: &'static str,
    none: &'static str,
    /// The statement that gives these rights.
    rights: &'static [&'static str],
}

const fn role(name: &'static str, letters: [&'static str; 4], rights: &'static [&'static str]) -> Role {
    let [own, other, all, none] = letters;
    Role { name, own, other, all, none, rights }
}

const NOBODY: Role = role("nobody", ["", "", "", ""], &[]);
const OWNS: Role = role("owner", ["*", "*", "*", "*"], &[]);
const OWN_PRODUCER: &str = "SELECT queue.grant_producer('ROLE', 'own')";
const OWN_WORKER: &str = "SELECT queue.grant_worker('ROLE', 'own')";
const OWN_OPERATOR: &str = "SELECT queue.grant_operator('ROLE', 'own')";

const ROLES: [Role; 10] = [
    NOBODY,
    role("monitor", ["", "", "", "M"], &["GRANT pg_monitor TO ROLE"]),
    role("producer", ["P", "P", "P", "P"], &["SELECT queue.grant_producer('ROLE')"]),
    role("worker", ["W", "W", "W", "W"], &["SELECT queue.grant_worker('ROLE')"]),
    role("operator", ["O", "O", "O", "O"], &["SELECT queue.grant_operator('ROLE')"]),
    role("own_producer", ["P", "", "", "P"], &[OWN_PRODUCER]),
    role("own_worker", ["W", "", "", "W"], &[OWN_WORKER]),
    role("own_operator", ["O", "", "", "O"], &[OWN_OPERATOR]),
    // Rights of different kinds for different queues do not multiply,
    role("mixed", ["W", "P", "", "WP"], &[OWN_WORKER, "SELECT queue.grant_producer('ROLE', 'other')"]),
    // neither if the role inherits them, nor if one of them is for all queues.
    role("heir", ["WP", "P", "P", "WP"], &["GRANT own_worker, producer TO ROLE"]),
];

/// Functions that affect all queues, for which a right for one is not enough.
const FOR_ALL: [&str; 5] = ["create", "pause_all", "resume_all", "reap", "run_schedules"];
/// Functions that concern no queue.
const FOR_NONE: [&str; 4] = ["channel", "engine_stats", "health", "schedule_preview"];
/// Functions that leave out queues for which their caller has no right.
const SILENT: [&str; 5] = ["publish", "complete_many", "fail_many", "release_many", "extend_many"];

impl Role {
    fn may(&self, (verb, allowed, _): (&str, &str, &str), own: bool) -> bool {
        let rights = match verb {
            _ if FOR_ALL.contains(&verb) => self.all,
            _ if FOR_NONE.contains(&verb) => self.none,
            _ if own => self.own,
            _ => self.other,
        };
        rights == "*" || rights.chars().any(|right| allowed.contains(right))
    }
}

struct Grid {
    cluster: Cluster,
    owner: Client,
    owner_name: &'static str,
    own: Stock,
    other: Stock,
    wrong: Vec<String>,
    tried: usize,
}

/// Queues "own" and "other" with one object of each kind, and each role, with members that inherit its rights and
/// members that do not, and with a SECURITY DEFINER function that runs any statement.
fn grid(name: &str, edition: Edition) -> Grid {
    let (cluster, mut owner, owner_name) = if edition == Edition::SqlOnly {
        let cluster = edition.cluster(name, Worker::Off);
        edition.install(&cluster, "postgres");
        let owner = cluster.config("postgres").user(OWNER).connect(NoTls).expect("connect");
        (cluster, owner, OWNER)
    } else {
        let off = if edition == Edition::Core {
            "queue.worker_enabled = off\nqueue.fast_path = off"
        } else {
            NO_WORKER
        };
        let cluster = cluster(&format!("{name}-{}", edition.name()), off);
        run(&mut cluster.connect(), "DROP ROLE nobody, producer, worker, operator, monitor");
        let owner = login(&cluster, "owner");
        (cluster, owner, "owner")
    };
    let own = Stock::make(&mut owner, "own", "marked");
    let other = Stock::make(&mut owner, "other", "marked");
    run(&mut owner, "SELECT queue.create('third')");
    let mut admin = cluster.connect();
    run(&mut admin, "GRANT CREATE ON SCHEMA public TO PUBLIC");
    for role in ROLES {
        run(&mut admin, &format!("CREATE ROLE {} LOGIN", role.name));
        give(&mut admin, &mut owner, role, role.name);
        run(
            &mut admin,
            &format!(
                "CREATE ROLE {name}_member LOGIN IN ROLE {name};
                 CREATE ROLE {name}_guest LOGIN NOINHERIT IN ROLE {name};
                 SET ROLE {name};
                 CREATE FUNCTION public.as_{name}(statement text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
                 SET search_path = pg_catalog, pg_temp AS
                 'DECLARE done bigint; BEGIN EXECUTE statement; GET DIAGNOSTICS done = ROW_COUNT; RETURN done; END';
                 RESET ROLE",
                name = role.name
            ),
        );
    }
    Grid { cluster, owner, owner_name, own, other, wrong: Vec::new(), tried: 0 }
}

/// Rights are given by the owner, memberships by a superuser.
fn give(admin: &mut Client, owner: &mut Client, role: Role, name: &str) {
    for right in role.rights {
        let by = if right.starts_with("GRANT") { &mut *admin } else { &mut *owner };
        run(by, &right.replace("ROLE", name));
    }
}

type Tried = Result<i64, (String, String)>;

/// Runs a statement in the transaction that is open, and undoes it; returns how many rows it returned.
fn tried(client: &mut Client, statement: &str) -> Tried {
    run(client, "SAVEPOINT grid");
    let result = client.simple_query(statement).map_err(|error| refusal(&error));
    run(client, "ROLLBACK TO grid; RELEASE grid");
    let messages = result?;
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    // A function as_... returns the number in its position.
    let through = statement.starts_with("SELECT public.as_");
    Ok(rows
        .map(|row| if through { row.get(0).expect("a number").parse().expect("a number") } else { 1 })
        .sum())
}

impl Grid {
    /// All functions with both queues, as a role that is expected to have these rights.
    fn check(&mut self, how: &str, client: &mut Client, expected: Role, through: Option<&str>) {
        for verb in VERBS.iter().filter(|verb| !commits(verb.2)) {
            for (own, stock) in [(true, &self.own), (false, &self.other)] {
                let call = stock.fill_in(verb.2);
                let statement = match through {
                    Some(name) => format!("SELECT public.as_{name}({})", quoted(&call)),
                    None => call.clone(),
                };
                let result = tried(client, &statement);
                let done = match &result {
                    Ok(rows) => Some(*rows > 0 || !SILENT.contains(&verb.0)),
                    Err((code, _)) if ["42501", "QX003", "QX007", "42704"].contains(&code.as_str()) => {
                        Some(false)
                    }
                    // The owner may call it, with other arguments, and not in the SQL-only edition.
                    Err((code, _)) if verb.0 == "attach" && ["22023", "0A000"].contains(&code.as_str()) => {
                        Some(true)
                    }
                    Err(_) => None,
                };
                self.tried += 1;
                if done != Some(expected.may(*verb, own)) {
                    self.wrong.push(format!("{how}: {call}: {result:?}"));
                }
            }
        }
    }

    fn login(&self, name: &str) -> Client {
        let mut client = login(&self.cluster, name);
        run(&mut client, "BEGIN");
        client
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn every_way(edition: Edition) {
    let mut grid = grid("security-grid", edition);
    let listed = VERBS.iter().fold(BTreeMap::new(), |mut listed, (name, ..)| {
        *listed.entry((*name).to_owned()).or_default() += 1;
        listed
    });
    let mut found = in_catalog(&mut grid.owner);
    // A function for the owner is not public; the SQL-only edition has one for its settings.
    found.remove("set");
    assert_eq!(found, listed, "verbs.rs lists every public function, each of its forms");
    let mut admin = grid.cluster.connect();
    for role in ROLES {
        let name = role.name;
        let mut client = grid.login(name);
        grid.check(&format!("{name}, logged in"), &mut client, role, None);
        let mut client = grid.login(&format!("{name}_member"));
        grid.check(&format!("member of {name}"), &mut client, role, None);
        let mut client = grid.login(&format!("{name}_guest"));
        grid.check(&format!("member of {name} that does not inherit"), &mut client, NOBODY, None);
        run(&mut client, &format!("SET ROLE {name}"));
        grid.check(&format!("SET ROLE {name}"), &mut client, role, None);
        // In the SQL-only edition the role of the session counts, and EXECUTE allows its functions here.
        let seen = if edition == Edition::SqlOnly { Role { none: role.none, ..NOBODY } } else { role };
        let mut client = grid.login("nobody");
        grid.check(&format!("nobody, through a function of {name}"), &mut client, seen, Some(name));
        let mut client = grid.login(name);
        grid.check(&format!("{name}, through a function of nobody"), &mut client, NOBODY, Some("nobody"));
    }
    run(&mut admin, &format!("CREATE ROLE co_owner LOGIN IN ROLE {}", grid.owner_name));
    for name in [grid.owner_name, "co_owner", "postgres"] {
        let mut client = grid.login(name);
        grid.check(name, &mut client, OWNS, None);
    }
    revoked(&mut grid, &mut admin);
    revoked_in_part(&mut grid, &mut admin);
    for_the_owner(&grid, edition);
    println!("{}: {} calls", edition.name(), grid.tried);
    assert!(grid.wrong.is_empty(), "{} of {}:\n{}", grid.wrong.len(), grid.tried, grid.wrong.join("\n"));
}

/// A right that is revoked during a transaction is gone from the next statement on, also if the role keeps the
/// privileges that come with a right for another queue.
fn revoked(grid: &mut Grid, admin: &mut Client) {
    for (kind, letter) in [("producer", "P"), ("worker", "W"), ("operator", "O")] {
        let name = format!("former_{kind}");
        run(admin, &format!("CREATE ROLE {name} LOGIN; CREATE ROLE {name}_member LOGIN IN ROLE {name}"));
        let right = |verb: &str, queue: &str| format!("SELECT queue.{verb}_{kind}('{name}', '{queue}')");
        run(&mut grid.owner, &right("grant", "own"));
        run(&mut grid.owner, &right("grant", "third"));
        let had = Role { own: letter, none: letter, ..NOBODY };
        let [mut client, mut member] = [name.clone(), format!("{name}_member")].map(|name| grid.login(&name));
        grid.check(&name, &mut client, had, None);
        grid.check(&format!("member of {name}"), &mut member, had, None);
        run(&mut grid.owner, &right("revoke", "own"));
        let kept = Role { none: letter, ..NOBODY };
        grid.check(&format!("{name}, revoked"), &mut client, kept, None);
        grid.check(&format!("member of {name}, revoked"), &mut member, kept, None);
        run(&mut grid.owner, &right("grant", "own"));
        grid.check(&format!("{name}, granted again"), &mut client, had, None);
        run(admin, &format!("REVOKE {name} FROM {name}_member"));
        grid.check(&format!("no member of {name} any more"), &mut member, NOBODY, None);
        run(&mut client, "COMMIT; BEGIN");
        run(&mut grid.owner, &format!("{}; {}", right("revoke", "own"), right("revoke", "third")));
        grid.check(&format!("{name}, all revoked"), &mut client, NOBODY, None);
    }
}

/// The same for a role with several rights, in its own session and in those of roles that have them from it. Each step
/// changes its rights, and gives the letters that are left.
fn revoked_in_part(grid: &mut Grid, admin: &mut Client) {
    run(
        admin,
        "CREATE ROLE part LOGIN; CREATE ROLE part_heir LOGIN IN ROLE part; CREATE ROLE lender LOGIN;
         CREATE ROLE part_guest LOGIN NOINHERIT IN ROLE part",
    );
    let names = ["part", "part_heir", "part_guest"];
    let mut clients = names.map(|name| grid.login(name));
    run(&mut clients[2], "SET ROLE part");
    let all_and_own = |kind: &str, letter: &'static str| {
        let statement = |text: &str| text.replace("KIND", kind);
        [
            (statement("SELECT queue.grant_KIND('part')"), [letter; 4]),
            (statement("SELECT queue.grant_KIND('part', 'own')"), [letter; 4]),
            (statement("SELECT queue.revoke_KIND('part')"), [letter, "", "", letter]),
            (
                statement("SELECT queue.grant_KIND('part'); SELECT queue.revoke_KIND('part', 'own')"),
                [letter; 4],
            ),
            (statement("SELECT queue.revoke_KIND('part')"), ["", "", "", ""]),
        ]
    };
    let mixed = [
        (
            "SELECT queue.grant_worker('part', 'own'); SELECT queue.grant_producer('part', 'other')",
            ["W", "P", "", "WP"],
        ),
        ("SELECT queue.revoke_worker('part', 'own')", ["", "P", "", "P"]),
        ("SELECT queue.grant_worker('part')", ["W", "WP", "W", "WP"]),
        ("SELECT queue.revoke_producer('part', 'other')", ["W", "W", "W", "W"]),
        ("SELECT queue.revoke_worker('part')", ["", "", "", ""]),
    ];
    let mut steps = Vec::new();
    for (kind, letter) in [("producer", "P"), ("worker", "W"), ("operator", "O")] {
        steps.extend(all_and_own(kind, letter));
    }
    steps.extend(mixed.map(|(change, letters)| (change.to_owned(), letters)));
    for (change, letters) in steps {
        run(&mut grid.owner, &change);
        for (name, client) in names.into_iter().zip(&mut clients) {
            notice_grants(client, &change);
            grid.check(&format!("{name}, after {change}"), client, role(name, letters, &[]), None);
        }
    }
    // A role that has its rights from two others loses those of each.
    run(&mut grid.owner, "SELECT queue.grant_worker('part', 'own'); SELECT queue.grant_producer('lender')");
    run(admin, "GRANT lender TO part_heir");
    let client = &mut clients[1];
    for (change, letters) in [
        ("", ["WP", "P", "P", "WP"]),
        ("SELECT queue.revoke_producer('lender')", ["W", "", "", "W"]),
        ("SELECT queue.grant_producer('lender')", ["WP", "P", "P", "WP"]),
        ("REVOKE lender FROM part_heir", ["W", "", "", "W"]),
        ("REVOKE part FROM part_heir", ["", "", "", ""]),
    ] {
        let by = if change.starts_with("REVOKE") { &mut *admin } else { &mut grid.owner };
        run(by, change);
        notice_grants(client, change);
        grid.check(&format!("heir of two, after {change}"), client, role("part_heir", letters, &[]), None);
    }
}

/// An open transaction notices a GRANT when a statement locks a table. One that fails before that, because the role had no
/// privilege on the schema, would fail again and again.
fn notice_grants(client: &mut Client, change: &str) {
    if !change.contains("revoke") && !change.contains("REVOKE") {
        tried(client, "SELECT FROM pg_aggregate LIMIT 0").expect("a table without rights");
    }
}

/// Procedures that commit, and settings of the SQL-only edition, are not among the calls that every role tries.
fn for_the_owner(grid: &Grid, edition: Edition) {
    let mut calls = vec!["CALL queue.maintain()"];
    if edition == Edition::SqlOnly {
        calls.push("SELECT queue.set('max_lease', NULL)");
    }
    for call in calls {
        for name in ROLES.map(|role| role.name) {
            let refused = login(&grid.cluster, name).batch_execute(call).map_err(|error| refusal(&error).0);
            assert_eq!(refused, Err("42501".to_owned()), "{name}: {call}");
        }
        for name in [grid.owner_name, "co_owner"] {
            run(&mut login(&grid.cluster, name), call);
        }
    }
}

#[test]
fn every_role_can_call_exactly_what_its_rights_allow() {
    every_way(Edition::FastPath);
}

#[test]
fn every_role_can_call_exactly_what_its_rights_allow_by_sql() {
    every_way(Edition::Core);
}

#[test]
fn every_role_can_call_exactly_what_its_rights_allow_in_the_sql_only_edition() {
    every_way(Edition::SqlOnly);
}

/// Internal functions that roles may execute answer about a hidden queue as about one that does not exist.
#[test]
fn internal_functions_reveal_nothing_about_other_queues() {
    for edition in [Edition::FastPath, Edition::SqlOnly] {
        let mut grid = grid("security-internal", edition);
        run(
            &mut grid.owner,
            "SELECT queue.push('other'), queue.push('own'); INSERT INTO queue_internal.events (queue, group_key) VALUES ('other', 'g')",
        );
        let mut calls = vec![
            "queue_internal.has_right('operator', 'QUEUE')",
            "queue_internal.has_right('any', 'QUEUE')",
            "queue_internal.has_right('any', NULL)",
            "queue_internal.has_right(NULL, 'QUEUE')",
            "queue_internal.first_ready('{QUEUE}')",
            "queue_internal.outcome(QUEUED)",
            "queue_internal.check_wait('QUEUE', '0') < now()",
            "queue_internal.check_wait(ARRAY['QUEUE'], '0') < now()",
            "queue_internal.check_wait_result(QUEUED, '0') < now()",
            "(SELECT count(*) FROM queue_internal.counted('{QUEUE}'))",
            "(SELECT count(*) FROM queue_internal.count_tables('{QUEUE}'))",
            "(SELECT count(*) FROM queue_internal.running_tasks() WHERE queue = 'QUEUE')",
            "(queue_internal.next_batch('discard', '{\"queue\": \"QUEUE\"}', false, 9, NULL, NULL, 0, NULL, NULL, NULL)).tasks",
            "(queue_internal.next_batch('cancel', '{\"ids\": [QUEUED]}', false, 9, NULL, NULL, 0, NULL, NULL, NULL)).tasks",
            "(queue_internal.next_batch('move', '{\"all\": true}', false, 9, 'QUEUE', NULL, 0, NULL, NULL, NULL)).tasks",
            "(queue_internal.next_batch('x', '{\"ids\": [QUEUED]}', true, 9, 'QUEUE', NULL, 0, NULL, NULL, NULL)).tasks",
        ];
        if edition == Edition::SqlOnly {
            calls.push("queue_internal.first_pause('{QUEUE}', now())");
        }
        let missing = Stock::missing("none");
        let count = "SELECT count(*) FROM queue.all_tasks WHERE queue = 'other' AND state <> 'cancelled'";
        let before = super::number(&mut grid.owner, count);
        for role in ROLES.iter().filter(|role| role.other.is_empty() && !role.none.contains('M')) {
            let mut client = grid.login(role.name);
            for call in &calls {
                let [hidden, nothing] = [&grid.other, &missing].map(|stock| {
                    run(&mut client, "SAVEPOINT grid");
                    let answer = client.simple_query(&format!("SELECT {}", stock.fill_in(call)));
                    run(&mut client, "ROLLBACK TO grid; RELEASE grid");
                    let answer = answer.map_err(|error| refusal(&error)).map(|messages| {
                        let rows = messages.into_iter().filter_map(|message| match message {
                            SimpleQueryMessage::Row(row) => Some(row.get(0).map(str::to_owned)),
                            _ => None,
                        });
                        rows.collect::<Vec<_>>()
                    });
                    answer.map_err(|(code, said)| (code, stock.blank_out(&said)))
                });
                assert_eq!(hidden, nothing, "{}: {}: {call}", edition.name(), role.name);
            }
        }
        assert_eq!(super::number(&mut grid.owner, count), before);
    }
}

/// PostgreSQL calls functions of a table's owner in the session of the role that maintains the table.
#[test]
fn maintenance_of_a_table_lends_its_owner_no_rights() {
    // The SQL-only edition: tests/portable/rights.rs.
    let mut grid = grid("security-maintenance", Edition::FastPath);
    let count = "SELECT count(*) FROM queue.tasks WHERE queue = 'other'";
    let before = super::number(&mut grid.owner, count);
    let mut client = login(&grid.cluster, "own_operator");
    run(
        &mut client,
        "CREATE TABLE public.trap (x integer);
         CREATE FUNCTION public.spring(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS
         'BEGIN IF session_user <> ''own_operator'' THEN PERFORM queue.purge(''other''); END IF; RETURN 1; END';
         INSERT INTO public.trap VALUES (1); CREATE INDEX ON public.trap (public.spring(x))",
    );
    let mut admin = grid.cluster.connect();
    for statement in ["ANALYZE public.trap", "REINDEX TABLE public.trap", "VACUUM ANALYZE public.trap"] {
        let refused = admin.batch_execute(statement).map_err(|error| refusal(&error).0);
        assert_eq!(refused, Err("42501".to_owned()), "{statement}");
    }
    assert_eq!(super::number(&mut grid.owner, count), before);
}
