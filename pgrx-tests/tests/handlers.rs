//! Handlers in the database: exactly once whatever is killed, failures, timeouts, cancellation, limits, rights, and the
//! life of their processes.

mod attachments;
mod ends;
mod exactly_once;
mod processes;
mod work;

use postgres::Client;
use queue_ext_tests::{Cluster, SOON, Settings, eventually, run};

/// A server with enough processes, and what every test needs: a role `app`, which handles the queue `work`, and a table
/// `done`, in which its handlers note each task.
fn start(name: &str) -> (Cluster, Client) {
    let settings = Settings { preload: true, extra: "max_worker_processes = 16" };
    let mut cluster = Cluster::start_with(name, &settings);
    let mut client = cluster.connect();
    prepare(&mut client);
    cluster.await_worker("postgres");
    (cluster, client)
}

fn prepare(client: &mut Client) {
    run(client, "CREATE EXTENSION queue_ext; CREATE ROLE app LOGIN");
    prepare_database(client);
}

fn prepare_database(client: &mut Client) {
    run(
        client,
        "CREATE TABLE public.done (id bigint, attempt integer, note text);
         GRANT ALL ON public.done TO app;
         SELECT queue.create('work', '{\"backoff\": {\"kind\": \"fixed\", \"base\": \"10 ms\"}, \"max_attempts\": 3}');
         SELECT queue.grant_worker('app', 'work')",
    );
}

/// Creates `handle`, with a body that has a variable `task` and ends with a result, and attaches it.
fn attach(client: &mut Client, body: &str, workers: i32) {
    create(client, body);
    run(
        client,
        &format!("SELECT queue.attach('work', 'public.handle(queue.claimed_task)', 'app', {workers})"),
    );
    eventually("its processes are there", SOON, || processes(client).len() == workers as usize);
}

fn create(client: &mut Client, body: &str) {
    run(
        client,
        &format!(
            "CREATE OR REPLACE FUNCTION public.handle(task queue.claimed_task) RETURNS jsonb LANGUAGE plpgsql AS $handler$
             BEGIN {body} END $handler$"
        ),
    );
}

const NOTE: &str =
    "INSERT INTO public.done VALUES (task.id, task.attempt, current_user); RETURN task.payload;";

/// The processes of handlers in this database.
fn processes(client: &mut Client) -> Vec<i32> {
    let query = "SELECT pid FROM pg_stat_activity
                 WHERE backend_type = 'queue_ext handler' AND datname = current_database() ORDER BY backend_start";
    client.query(query, &[]).expect("pg_stat_activity").iter().map(|row| row.get(0)).collect()
}

/// The only value of a query.
fn one<T: for<'a> postgres::types::FromSql<'a>>(client: &mut Client, query: &str) -> T {
    client.query_one(query, &[]).unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
}

fn push(client: &mut Client, options: &str) -> i64 {
    one(client, &format!("SELECT queue.push('work', '{{\"n\": 1}}'{options})"))
}

fn await_state(client: &mut Client, id: i64, state: &str) {
    let what = format!("task {id} is {state}");
    eventually(&what, SOON, || {
        let row = client.query_opt("SELECT state FROM queue.all_tasks WHERE id = $1", &[&id]).expect("state");
        row.is_some_and(|row| row.get::<_, String>(0) == state)
    });
}

/// Waits until the only process sleeps, without a transaction and without a snapshot.
fn await_idle(client: &mut Client) {
    eventually("it sleeps", SOON, || {
        one(
            client,
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue_ext handler' AND state = 'idle'
             AND wait_event_type = 'Extension' AND xact_start IS NULL AND backend_xmin IS NULL",
        )
    });
}

/// Waits until a handler has begun: a row of `done` would not be visible, so it takes an advisory lock.
fn await_lock(client: &mut Client, key: i64) {
    eventually("the handler has begun", SOON, || {
        let query =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid::bigint = $1";
        client.query_one(query, &[&key]).expect("pg_locks").get::<_, i64>(0) > 0
    });
}

/// A body that takes advisory lock 7 and hangs.
const HANG: &str =
    "PERFORM pg_advisory_xact_lock(7); INSERT INTO public.done VALUES (task.id, task.attempt, 'hung');
                    PERFORM pg_sleep(3600); RETURN NULL;";
