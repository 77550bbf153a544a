//! Groups and limits under 64 claimers: at no instant more than allowed, measured from the history, and
//! nobody starves. An hour of load at 60 times the speed: a period of a minute is a second here.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_ext_tests::{Cluster, eventually};

/// These tests keep both cores busy: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

const CLAIMERS: usize = 64;

/// How a claimer ends the tasks it gets: mostly well, and in every other way now and then.
fn end(client: &mut Client, id: i64, token: i32, n: usize) {
    let ended = match n % 40 {
        7 => client.execute("SELECT queue.fail($1, $2, 'no', '20 ms')", &[&id, &token]),
        17 => client.execute("SELECT queue.release($1, $2)", &[&id, &token]),
        // Never answers: its lease runs out.
        27 => return,
        _ => client.execute("SELECT queue.complete($1, $2)", &[&id, &token]),
    };
    // Late for its lease on a busy machine.
    if let Err(error) = ended {
        assert_eq!(error.code().map(|code| code.code()), Some("QX001"), "{error}");
    }
}

/// 64 claimers work on `queue` until it is empty.
fn drain(cluster: &Cluster, queue: &'static str, limit: Duration) {
    let workers: Vec<_> = (0..CLAIMERS)
        .map(|number| {
            let config = cluster.config("postgres");
            std::thread::spawn(move || {
                let mut client = config.connect(NoTls).expect("connect");
                let started = Instant::now();
                for n in number.. {
                    assert!(started.elapsed() < limit, "the queue is not drained in time");
                    // Every fifth claim is rolled back, and has taken nothing.
                    let mut transaction = client.transaction().expect("begin");
                    let tasks = transaction
                        .query("SELECT id, token FROM queue.claim('1 second', $1, 2)", &[&queue])
                        .expect("claim");
                    if n % 5 == 4 {
                        transaction.rollback().expect("roll back");
                        continue;
                    }
                    transaction.commit().expect("commit");
                    for task in &tasks {
                        end(&mut client, task.get(0), task.get(1), n);
                    }
                    let left = "SELECT EXISTS (SELECT FROM queue.tasks WHERE queue = $1)";
                    if tasks.is_empty() && !client.query_one(left, &[&queue]).expect("left").get::<_, bool>(0)
                    {
                        return;
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("a claimer");
    }
}

/// Notes every attempt from its claim to its end, whatever end it takes.
const WATCH: &str = "
    CREATE TABLE attempts (id bigint, queue text, group_key text, token int, begun timestamptz, ended timestamptz);
    CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.state = 'running' AND (TG_OP = 'DELETE' OR NEW.state <> 'running') THEN
            INSERT INTO public.attempts VALUES (OLD.id, OLD.queue, OLD.group_key, OLD.token, OLD.claimed_at,
                                         least(clock_timestamp(), greatest(OLD.lease_until, OLD.claimed_at)));
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER watch AFTER UPDATE OR DELETE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION watch();";

/// The most that ran at one instant, of the queue or of any of its groups.
fn most_at_once(client: &mut Client, queue: &str, by_group: bool) -> i64 {
    let partition = if by_group { "group_key" } else { "queue" };
    let query = format!(
        "SELECT max(running) FROM (
             SELECT sum(change) OVER (PARTITION BY {partition} ORDER BY at, change) AS running FROM (
                 SELECT queue, group_key, begun AS at, 1 AS change FROM attempts WHERE queue = $1
                 UNION ALL SELECT queue, group_key, ended, -1 FROM attempts WHERE queue = $1) AS edges) AS sums"
    );
    client.query_one(&query, &[&queue]).expect("count").get(0)
}

fn push(client: &mut Client, queue: &str, tasks: i32, groups: i32) {
    let query = "INSERT INTO queue.tasks (queue, payload, group_key)
                 SELECT $1, to_jsonb(n), 'g' || n % nullif($3, 0) FROM generate_series(1, $2::int) AS n";
    client.execute(query, &[&queue, &tasks, &groups]).expect("push");
}

#[test]
fn no_instant_has_more_than_max_running() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("policies-max-running");
    let mut client = cluster.connect();
    client.batch_execute(WATCH).expect("watch");
    client.execute("SELECT queue.create('q', '{\"max_running\": 7}')", &[]).expect("create");
    push(&mut client, "q", 1500, 0);
    drain(&cluster, "q", Duration::from_secs(120));
    assert!(most_at_once(&mut client, "q", false) <= 7);
    assert!(most_at_once(&mut client, "q", false) >= 6, "the places are used");
    let finished: i64 = client.query_one("SELECT count(*) FROM queue.history", &[]).expect("count").get(0);
    assert_eq!(finished, 1500);
}

#[test]
fn no_instant_has_more_of_a_group_than_allowed_and_at_one_they_run_in_order() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("policies-groups");
    let mut client = cluster.connect();
    client.batch_execute(WATCH).expect("watch");
    for (queue, most) in [("one", 1), ("three", 3)] {
        let options = format!("{{\"max_running_per_group\": {most}}}");
        client.execute("SELECT queue.create($1, $2::text::jsonb)", &[&queue, &options]).expect("create");
        push(&mut client, queue, 1500, 12);
        drain(&cluster, queue, Duration::from_secs(120));
        assert_eq!(most_at_once(&mut client, queue, true), most, "{queue}");
        let query = "SELECT count(*), count(DISTINCT group_key) FROM queue.history WHERE queue = $1";
        let row = client.query_one(query, &[&queue]).expect("count");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1500, 12), "{queue}");
    }
    let query = "SELECT count(*) FROM (
                     SELECT id, lag(id) OVER (PARTITION BY group_key ORDER BY begun, token) AS earlier
                     FROM attempts WHERE queue = 'one') AS a
                 WHERE earlier > id";
    let overtaken: i64 = client.query_one(query, &[]).expect("count").get(0);
    assert_eq!(overtaken, 0, "no task begins before an earlier one of its group has finished");
    eventually("no signal is left", Duration::from_secs(15), || {
        let query = "SELECT NOT EXISTS (SELECT FROM queue_internal.signals)";
        client.query_one(query, &[]).expect("signals").get(0)
    });
}

#[test]
fn no_period_has_more_starts_than_the_rate_limit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = Cluster::start("policies-rate");
    let mut client = cluster.connect();
    client.batch_execute(WATCH).expect("watch");
    let options = "{\"rate_limit\": 100, \"rate_period\": \"1 second\", \"max_running\": 50}";
    client.execute("SELECT queue.create('q', $1::text::jsonb)", &[&options]).expect("create");
    push(&mut client, "q", 1000, 0);
    let started = Instant::now();
    drain(&cluster, "q", Duration::from_secs(120));
    let took = started.elapsed();
    // Any span of a period that begins with a start.
    let query = "SELECT max(starts) FROM (
                     SELECT count(*) OVER (ORDER BY begun RANGE BETWEEN CURRENT ROW
                                           AND interval '999999 microseconds' FOLLOWING) AS starts
                     FROM attempts WHERE queue = 'q') AS spans";
    let most: i64 = client.query_one(query, &[]).expect("count").get(0);
    assert!(most <= 100, "{most} starts in a second");
    let attempts: i64 = client.query_one("SELECT count(*) FROM attempts", &[]).expect("count").get(0);
    let least = Duration::from_secs((attempts as u64 - 1) / 100);
    assert!(took >= least, "{attempts} starts in {took:?}");
    assert!(took < 2 * least + Duration::from_secs(5), "the rate is used: {attempts} starts in {took:?}");
}
