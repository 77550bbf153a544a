//! The contract of the client runtimes (docs/clients.md): each is driven in the same way, and each task is accounted for.
//!
//! A runtime's program, in pgrx-tests/tests/runtimes, has the same handlers by kind in every language. What they do is in
//! the table `effects`.

#[path = "runtimes/stage.rs"]
mod stage;

use std::path::Path;
use std::process::{Command, Stdio};

use queue_ext_tests::cluster::signal;
use queue_ext_tests::{Cluster, PgBouncer, SOON, Settings, eventually, languages, pgbouncer};
use stage::{Stage, each, each_sql_only};

const SERVER: Settings = Settings { preload: true, extra: "max_connections = 200" };

/// As many as the workers of the tests handle at a time.
const AT_ONCE: usize = 100;

#[test]
fn a_worker_runs_a_hundred_tasks_at_a_time() {
    each("runtimes-hundred", &SERVER, |stage| {
        let worker = stage.start(&[]);
        stage.push(AT_ONCE + 20, "sleep", r#"{"seconds": 3}"#);
        stage.eventually("100 run, and no more", |stage| stage.running() == AT_ONCE as i64);
        stage.drained();
        assert_eq!(stage.count("begun"), AT_ONCE as i64 + 20);
        assert_eq!(stage.count("ended"), AT_ONCE as i64 + 20);
        let at_a_time = "SELECT max(n) FROM (
            SELECT sum(CASE e.what WHEN 'begun' THEN 1 ELSE -1 END) OVER (ORDER BY e.at) AS n
            FROM effects AS e JOIN queue.all_tasks AS t ON t.id = e.task WHERE t.queue = $1) AS running";
        assert_eq!(stage.ask(at_a_time), AT_ONCE as i64);
        assert_eq!(stage.ask("SELECT max(attempt) FROM queue.history WHERE queue = $1"), 1);
        worker.stop();
    });
}

#[test]
fn results_and_failures_are_reported_as_the_handler_says() {
    each("runtimes-outcomes", &SERVER, outcomes_are_reported);
}

#[test]
fn results_and_failures_are_reported_in_the_sql_only_edition() {
    each_sql_only("runtimes-outcomes", outcomes_are_reported);
}

fn outcomes_are_reported(stage: &Stage) {
    let worker = stage.start(&[]);
    for kind in ["plain", "raise", "retry", "discard", "snooze", "unheard of"] {
        stage.push(2, kind, r#"{"n": 7, "seconds": 0.1}"#);
    }
    stage.eventually("all have ended", |stage| stage.live() == 0);
    let dead = "SELECT count(*) FROM queue.dead_letters WHERE queue = $1 AND kind";
    let done = "SELECT count(*) FROM queue.history WHERE queue = $1 AND state = 'completed' AND kind";
    assert_eq!(stage.ask(&format!("{done} = 'plain' AND result = '{{\"n\": 7}}' AND attempt = 1")), 2);
    assert_eq!(
        stage.ask(&format!("{done} = 'retry' AND attempt = 2 AND errors -> 0 ->> 'error' ~ 'later'")),
        2
    );
    assert_eq!(stage.ask(&format!("{done} = 'snooze' AND attempt = 1")), 2);
    assert_eq!(stage.count("snoozed"), 2);
    assert_eq!(
        stage.ask(&format!("{dead} = 'raise' AND attempt = 3 AND errors -> 0 ->> 'error' ~ 'boom'")),
        2
    );
    assert_eq!(
        stage.ask(&format!("{dead} = 'discard' AND attempt = 1 AND errors -> 0 ->> 'error' ~ 'never'")),
        2
    );
    assert_eq!(
        stage.ask(&format!(
            "{dead} = 'unheard of' AND attempt = 3 AND errors -> 0 ->> 'error' ~ 'unheard of'"
        )),
        2
    );
    assert_eq!(stage.ask(&format!("{dead} IS NOT NULL")), 6);
    worker.stop();
}

#[test]
fn a_killed_worker_loses_no_task_and_repeats_no_effect() {
    each("runtimes-killed", &SERVER, |stage| {
        stage.configure(r#"{"max_attempts": 100, "lease": "4 seconds", "backoff": {"base": "0"}}"#);
        let at_once = AT_ONCE.min(stage.scaled(200));
        let concurrency = at_once.to_string();
        let options = [("CONCURRENCY", &*concurrency)];
        let effects = stage.scaled(1_000);
        stage.push(effects, "effect", "{}");
        stage.push(at_once, "sleep", r#"{"seconds": 0.2}"#);
        let mut kills = 0;
        while stage.live() > 0 {
            let mut worker = stage.start(&options);
            stage.eventually("it has work in hand, or nothing is left", |stage| {
                stage.running() >= at_once as i64 / 2 || stage.live() == 0
            });
            worker.kill();
            kills += 1;
            // The last ones need a worker that lives long enough.
            if kills >= 4 {
                let worker = stage.start(&options);
                stage.drained();
                worker.stop();
            }
        }
        assert!(kills >= 4, "{kills}");
        assert_eq!(stage.count("effect"), effects as i64);
        assert_eq!(stage.ask("SELECT count(DISTINCT e.task) FROM effects AS e JOIN queue.history AS h ON h.id = e.task WHERE h.queue = $1 AND e.what = 'effect'"), effects as i64);
        assert_eq!(stage.ended(), (effects + at_once) as i64);
    });
}

#[test]
fn sigterm_lets_short_work_end_and_gives_long_work_back() {
    each("runtimes-sigterm", &SERVER, |stage| {
        stage.push(20, "sleep", r#"{"seconds": 2}"#);
        stage.push(20, "sleep", r#"{"seconds": 600}"#);
        let worker = stage.start(&[("SHUTDOWN", "4")]);
        stage.eventually("all run", |stage| stage.count("begun") == 40 && stage.waiting() == 1);
        signal(worker.pid(), libc::SIGTERM);
        stage.eventually("it no longer waits", |stage| stage.waiting() == 0);
        stage.push(5, "plain", r#"{"n": 1}"#);
        worker.ended();
        assert_eq!(stage.ended(), 20);
        assert_eq!(stage.count("stopped: shutdown"), 20);
        // Given back at once, without spending the attempt; and nothing more was claimed.
        assert_eq!(
            stage.ask(
                "SELECT count(*) FROM queue.tasks WHERE queue = $1 AND state = 'queued' AND attempt = 0"
            ),
            25
        );
        // An idle worker ends at once.
        stage.execute("CALL queue.purge_where(jsonb_build_object('queue', $1::text))");
        let worker = stage.start(&[]);
        stage.eventually("it waits", |stage| stage.waiting() == 1);
        worker.stop();
    });
}

#[test]
fn work_that_does_not_stop_is_given_back_when_the_worker_ends() {
    each("runtimes-stubborn", &SERVER, |stage| {
        stage.push(3, "stubborn", r#"{"seconds": 600}"#);
        let worker = stage.start(&[("SHUTDOWN", "1")]);
        stage.eventually("all run", |stage| stage.count("begun") == 3);
        worker.stop();
        assert_eq!(
            stage.ask(
                "SELECT count(*) FROM queue.tasks WHERE queue = $1 AND state = 'queued' AND attempt = 0"
            ),
            3
        );
    });
}

#[test]
fn lost_connections_cost_no_task_and_no_worker() {
    each("runtimes-connections", &SERVER, |stage| {
        stage.configure(r#"{"max_attempts": 100, "lease": "5 seconds", "backoff": {"base": "0"}}"#);
        let worker = stage.start(&[]);
        let many = stage.scaled(100);
        for _ in 0..10 {
            stage.push(many, "effect", "{}");
            stage.push(many, "plain", r#"{"n": 1}"#);
            stage.eventually("it works", |stage| stage.ended() > 0);
            stage.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND $1 <> ''",
            );
        }
        stage.drained();
        assert_eq!(stage.count("effect"), 10 * many as i64);
        assert_eq!(stage.ended(), 20 * many as i64);
        a_report_whose_answer_is_lost_is_repeated(stage);
        worker.stop();
    });
}

fn a_report_whose_answer_is_lost_is_repeated(stage: &Stage) {
    let before = stage.ask("SELECT max(id) FROM queue.history WHERE queue = $1");
    let mut locking = stage.cluster().connect();
    locking.batch_execute("BEGIN; LOCK TABLE queue.history").expect("lock");
    stage.push(10, "plain", r#"{"n": 1}"#);
    for _ in 0..3 {
        stage.eventually("a report waits, and its connection is cut", |stage| {
            stage.ask(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND $1 <> ''",
            ) > 0
        });
    }
    locking.batch_execute("COMMIT").expect("unlock");
    stage.drained();
    let later = format!("FROM queue.history WHERE queue = $1 AND id > {before}");
    assert_eq!(stage.ask(&format!("SELECT count(*) {later}")), 10);
    assert_eq!(stage.ask(&format!("SELECT max(attempt) {later}")), 1);
}

#[test]
fn a_worker_works_through_pgbouncer_in_transaction_mode() {
    each("runtimes-pgbouncer", &SERVER, |stage| {
        let _bouncer = PgBouncer::start(&stage.cluster(), 40, "");
        stage.connect_through(pgbouncer::PORT);
        let worker = stage.start(&[]);
        let many = stage.scaled(300);
        stage.push(many, "effect", "{}");
        stage.push(many, "plain", r#"{"n": 1}"#);
        stage.push(100, "sleep", r#"{"seconds": 3}"#);
        stage.drained();
        assert_eq!(stage.count("effect"), many as i64);
        assert_eq!(stage.ask("SELECT max(attempt) FROM queue.history WHERE queue = $1"), 1);
        stage.eventually("it waits", |stage| stage.waiting() == 1);
        worker.stop();
    });
}

#[test]
fn a_lost_lease_stops_the_handler_and_its_completion_is_refused() {
    each("runtimes-lost", &SERVER, |stage| {
        let worker = stage.start(&[]);
        stage.push(1, "sleep", r#"{"seconds": 600}"#);
        stage.push(1, "stubborn", r#"{"seconds": 3}"#);
        stage.push(1, "stale", "{}");
        stage.eventually("both run", |stage| stage.count("begun") == 2);
        stage.execute("SELECT queue.end_lease(id) FROM queue.tasks WHERE queue = $1 AND state = 'running' AND kind <> 'stale'");
        // The next attempts begin at once. That of the stubborn task is accepted, after the first was refused.
        stage.eventually("the stubborn task is completed", |stage| stage.ended() == 1);
        // A command that does not stop is killed; the other runtimes let their handlers end.
        assert!((1..=2).contains(&stage.count("ended")));
        assert_eq!(stage.ask("SELECT attempt FROM queue.history WHERE queue = $1"), 2);
        stage.eventually("the other was told", |stage| stage.count("stopped: lost") == 1);
        // Each of its attempts ends its own lease before it completes.
        stage.eventually("the third is a dead letter", |stage| stage.live() == 1);
        assert_eq!(stage.count("stale"), 0, "what a refused completion has written");
        stage.push(10, "effect", "{}");
        stage.eventually("the worker goes on", |stage| stage.count("effect") == 10);
        stage.execute("SELECT queue.cancel(id) FROM queue.tasks WHERE queue = $1");
        stage.eventually("nothing is left", |stage| stage.live() == 0);
        // A worker that does not claim the task again learns of it, too, and not only from its own clock.
        stage.configure(r#"{"lease": "10 minutes"}"#);
        let (begun, stopped) = (stage.count("begun"), stage.count("stopped: lost"));
        stage.push(1, "sleep", r#"{"seconds": 600}"#);
        stage.eventually("it has begun", |stage| stage.count("begun") == begun + 1);
        stage.execute("SELECT queue.pause($1)");
        stage.execute("SELECT queue.end_lease(id) FROM queue.tasks WHERE queue = $1 AND state = 'running'");
        stage.eventually("it was told", |stage| stage.count("stopped: lost") == stopped + 1);
        worker.stop();
    });
}

#[test]
fn a_cancelled_task_stops() {
    each("runtimes-cancelled", &SERVER, |stage| {
        let worker = stage.start(&[]);
        stage.push(3, "sleep", r#"{"seconds": 600}"#);
        stage.eventually("all run", |stage| stage.count("begun") == 3);
        stage.execute("SELECT queue.cancel(id) FROM queue.tasks WHERE queue = $1");
        stage.eventually("all are cancelled", |stage| stage.live() == 0);
        assert_eq!(stage.count("stopped: cancelled"), 3);
        assert_eq!(
            stage.ask("SELECT count(*) FROM queue.history WHERE queue = $1 AND state = 'cancelled'"),
            3
        );
        worker.stop();
    });
}

#[test]
fn a_task_that_kills_its_worker_becomes_a_dead_letter() {
    each("runtimes-poison", &SERVER, |stage| {
        stage.configure(r#"{"max_attempts": 3, "lease": "1 second", "backoff": {"base": "0"}}"#);
        stage.push(1, "die", "{}");
        let mut deaths = 0;
        while stage.live() > 0 {
            stage.start(&[]).killed_itself();
            deaths += 1;
            stage.eventually("its lease has ended", |stage| stage.running() == 0);
        }
        assert_eq!(deaths, 3);
        let worker = stage.start(&[]);
        stage.push(10, "effect", "{}");
        stage.eventually("the next worker works", |stage| stage.count("effect") == 10);
        worker.stop();
        assert_eq!(stage.ask("SELECT count(*) FROM queue.dead_letters WHERE queue = $1"), 1);
    });
}

#[test]
fn a_worker_outlives_its_server() {
    each("runtimes-restart", &SERVER, |stage| {
        stage.configure(r#"{"max_attempts": 100, "lease": "5 seconds", "backoff": {"base": "0"}}"#);
        stage.stop_server();
        let worker = stage.start(&[]);
        stage.start_server();
        let many = stage.scaled(200);
        for crash in [false, true, true] {
            stage.push(many, "effect", "{}");
            stage.push(many, "plain", r#"{"n": 1}"#);
            stage.eventually("it works", |stage| stage.running() > 0);
            if crash {
                stage.crash_server();
            } else {
                stage.stop_server();
            }
            stage.start_server();
        }
        stage.drained();
        assert_eq!(stage.count("effect"), 3 * many as i64);
        assert_eq!(stage.ended(), 6 * many as i64);
        worker.stop();
    });
}

#[test]
fn each_outage_is_logged_with_its_end() {
    each("runtimes-outages", &SERVER, |stage| {
        stage.configure(r#"{"max_attempts": 1, "lease": "2 seconds"}"#);
        let worker = stage.start_logged(&[]);
        let count =
            |words: &[&str]| words.iter().map(|words| stage.log().matches(words).count()).sum::<usize>();
        for outages in 1..=3 {
            // Its lease is lost in the outage, and then there is nothing to extend.
            stage.push(1, "sleep", r#"{"seconds": 1000}"#);
            stage.eventually("it runs", |stage| stage.count("begun") == outages as i64);
            let before = count(&["trying again"]);
            stage.stop_server();
            eventually("the lease is lost", SOON, || count(&["lost"]) >= outages);
            eventually("the outage is logged", SOON, || count(&["trying again"]) > before);
            stage.start_server();
            let ends = ["available again", "working again", "answers again"];
            eventually("its end is logged", SOON, || count(&ends) >= outages);
            assert_eq!(count(&ends), outages, "{}", stage.log());
        }
        worker.stop();
    });
}

#[test]
fn a_handler_that_blocks_the_event_loop_costs_no_lease() {
    each("runtimes-blocked", &SERVER, |stage| {
        stage.configure(r#"{"lease": "2 seconds"}"#);
        let worker = stage.start(&[]);
        stage.push(20, "sleep", r#"{"seconds": 1}"#);
        stage.push(1, "block", r#"{"seconds": 7}"#);
        stage.push(20, "sleep", r#"{"seconds": 1}"#);
        stage.drained();
        assert_eq!(stage.ask("SELECT max(attempt) FROM queue.history WHERE queue = $1"), 1);
        assert_eq!(stage.ended(), 41);
        worker.stop();
    });
}

#[test]
fn a_handler_that_locks_its_task_costs_no_lease() {
    each("runtimes-locked", &SERVER, |stage| {
        stage.configure(r#"{"lease": "2 seconds"}"#);
        let worker = stage.start(&[]);
        stage.execute(
            "SELECT queue.push($1, '{\"seconds\": 7}', kind => 'lock', lease => '1 minute') FROM generate_series(1, 3)",
        );
        stage.push(20, "sleep", r#"{"seconds": 5}"#);
        stage.drained();
        assert_eq!(stage.ask("SELECT max(attempt) FROM queue.history WHERE queue = $1"), 1);
        assert_eq!((stage.count("effect"), stage.count("ended")), (3, 20));
        worker.stop();
    });
}

#[test]
fn a_lease_that_a_trigger_refuses_to_extend_costs_no_other() {
    each("runtimes-unextended", &SERVER, |stage| {
        stage.configure(r#"{"lease": "3 seconds"}"#);
        stage.refuse();
        let worker = stage.start(&[]);
        let codes =
            ["P0001", "QX001", "42501", "57014", "08006", "XX000", "3F000", "40001", "53100", "25006"];
        for code in codes {
            let payload = format!(r#"{{"seconds": 10, "at": "extend", "code": "{code}"}}"#);
            stage.push(1, "sleep", &payload);
        }
        stage.push(20, "sleep", r#"{"seconds": 10}"#);
        stage.eventually("the others have ended", |stage| stage.ended() == 20);
        assert_eq!(stage.ask("SELECT max(attempt) FROM queue.history WHERE queue = $1"), 1);
        stage.eventually("the ten are dead letters", |stage| stage.live() == 0);
        assert_eq!(stage.ask("SELECT count(*) FROM queue.dead_letters WHERE queue = $1"), codes.len() as i64);
        assert_eq!(stage.count("ended"), 20);
        stage.accept();
        worker.stop();
    });
}

#[test]
fn a_completion_that_a_trigger_refuses_is_a_failed_attempt() {
    each("runtimes-refused", &SERVER, |stage| {
        stage.refuse();
        let worker = stage.start(&[]);
        let codes = ["P0001", "QX001", "QX003", "23514", "APP01"];
        for code in codes {
            stage.push(1, "plain", &format!(r#"{{"n": 1, "at": "complete", "code": "{code}"}}"#));
        }
        stage.push(20, "plain", r#"{"n": 1}"#);
        stage.eventually("all have ended", |stage| stage.live() == 0);
        let dead = "SELECT count(*) FROM queue.dead_letters WHERE queue = $1 AND attempt = 3 AND errors::text ~ 'refused: '";
        assert_eq!((stage.ended(), stage.ask(dead)), (20, codes.len() as i64));
        stage.accept();
        worker.stop();
    });
}

#[test]
fn a_report_that_the_server_cannot_take_now_delays_no_other() {
    each("runtimes-postponed", &SERVER, |stage| {
        stage.configure(r#"{"lease": "1 minute"}"#);
        stage.refuse();
        let worker = stage.start(&[]);
        let codes = ["25006", "3F000", "40001", "42P01", "53100", "55000", "57014", "58030", "XX000"];
        for code in codes {
            stage.push(1, "plain", &format!(r#"{{"n": 1, "at": "complete", "code": "{code}"}}"#));
        }
        stage.push(20, "plain", r#"{"n": 1}"#);
        stage.eventually("the others have ended", |stage| stage.ended() == 20);
        stage.push(20, "plain", r#"{"n": 1}"#);
        stage.eventually("later ones have ended", |stage| stage.ended() == 40);
        assert_eq!(stage.live(), codes.len() as i64);
        stage.accept();
        stage.drained();
        assert_eq!(stage.ask("SELECT max(attempt) FROM queue.history WHERE queue = $1"), 1);
        worker.stop();
    });
}

#[test]
fn a_lease_that_ends_before_the_claim_is_answered_starts_no_handler() {
    // In SQL, a lease counts from the beginning of the call.
    each_sql_only("runtimes-late", |stage| {
        stage.configure(r#"{"lease": "1 second", "max_attempts": 10}"#);
        stage.push(3, "sleep", r#"{"seconds": 0}"#);
        let cluster = stage.cluster();
        let mut locking = cluster.connect();
        locking.batch_execute("BEGIN; LOCK TABLE queue.tasks IN EXCLUSIVE MODE").expect("a lock");
        let worker = stage.start_logged(&[]);
        let late = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%queue.claim%' AND wait_event_type = 'Lock' \
                    AND query_start < clock_timestamp() - interval '2 seconds' AND $1 <> ''";
        stage.eventually("the claim has waited for longer than the lease", |stage| stage.ask(late) == 1);
        locking.batch_execute("ROLLBACK").expect("unlock");
        stage.drained();
        let attempts = stage.ask("SELECT sum(attempt) FROM queue.history WHERE queue = $1");
        assert!(attempts >= 6, "{attempts} attempts");
        assert!(stage.count("begun") <= attempts - 3, "{}", stage.log());
        assert!(stage.log().contains("ended before the claim was answered"), "{}", stage.log());
        worker.stop();
    });
}

#[test]
fn no_log_has_a_payload() {
    each("runtimes-logs", &SERVER, |stage| {
        stage.configure(r#"{"lease": "3 seconds", "max_attempts": 100}"#);
        let worker = stage.start_logged(&[]);
        stage.eventually("it waits", |stage| stage.waiting() == 1);
        for (at, code, kind) in [
            ("claim", "P0001", "plain"),
            ("claim", "53100", "plain"),
            ("extend", "57014", "sleep"),
            ("extend", "P0001", "sleep"),
            ("complete", "XX000", "plain"),
            ("complete", "53400", "plain"),
        ] {
            stage.refuse();
            let before = stage.log().matches(code).count();
            let payload =
                format!(r#"{{"n": 1, "seconds": 4, "name": "s3cret", "at": "{at}", "code": "{code}"}}"#);
            stage.push(1, kind, &payload);
            stage
                .eventually(&format!("{code} is logged"), |stage| stage.log().matches(code).count() > before);
            stage.accept();
            stage.drained();
        }
        stage.stop_server();
        // The words of an error of the system, by which people find out what is wrong.
        let unreachable = ["No such file or directory", "ENOENT", "terminating connection", "shutting down"];
        eventually("the server is missed", SOON, || {
            unreachable.iter().any(|words| stage.log().contains(words))
        });
        stage.start_server();
        stage.push(1, "plain", r#"{"n": 1}"#);
        stage.drained();
        worker.stop();
        assert!(!stage.log().contains("s3cret"), "{}", stage.log());
    });
}

/// The functions of each library one by one, in its own language.
#[test]
fn the_libraries_do_what_their_functions_say() {
    let cluster = Cluster::start_with("runtimes-libraries", &SERVER);
    cluster.connect().batch_execute("CREATE EXTENSION queue_ext").expect("create");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtimes");
    let url = stage::url(&cluster, 5432);
    for (start, program, arguments) in [
        (
            languages::python_client(&tests.join("python")),
            "python",
            &["-m", "unittest", "discover", "-s"][..],
        ),
        (languages::node_client(&tests.join("test_typescript.mjs")), "test_typescript.mjs", &["--test"][..]),
    ] {
        let Some(start) = start else {
            println!("{program} is skipped: its language is not installed");
            continue;
        };
        // The environment of the program, which a runner for tests loads.
        let with = start();
        let mut runner = Command::new(with.get_program());
        runner.args(arguments).arg(tests.join(program)).env("DATABASE_URL", &url);
        runner.envs(with.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let done = runner.stdin(Stdio::null()).output().expect("start the tests");
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{program}:\n{said}");
        println!("{program}:\n{said}");
    }
}
