//! Every public function: the roles that may call it, and a call that succeeds.

use std::collections::BTreeMap;

use super::{column, run};
use postgres::Client;

/// Name; roles that may call it besides the owner and superusers (Producer, Worker, Operator, pg_Monitor); a call. A
/// function with two signatures is listed twice. For the words in capitals, see [`Stock::fill_in`].
pub const VERBS: &[(&str, &str, &str)] = &[
    ("push", "P O", "SELECT queue.push('QUEUE', '{}', key => 'k', group_key => 'g')"),
    ("try_push", "P O", "SELECT queue.try_push('QUEUE', '{}', key => 'k', group_key => 'g')"),
    ("push_many", "P O", "SELECT queue.push_many('QUEUE', '{1, 2}', keys => '{a, b}', after => '{QUEUED}')"),
    ("push_tasks", "P O", "SELECT queue.push_tasks('[{\"queue\": \"QUEUE\", \"key\": \"k\"}]')"),
    ("create_batch", "P O", "SELECT queue.create_batch('QUEUE', key => 'k', after => '{QUEUED}')"),
    ("seal_batch", "P O", "SELECT queue.seal_batch(BATCH)"),
    ("publish", "P O", "SELECT queue.publish('TOPIC')"),
    ("claim", "W O", "SELECT queue.claim('1 minute', 'QUEUE', 9, 'me')"),
    ("claim", "W O", "SELECT queue.claim('1 minute', ARRAY['QUEUE'], 9, 'me')"),
    ("complete", "W O", "SELECT queue.complete(RUNNING, 1, '{}')"),
    ("complete_many", "W O", "SELECT queue.complete_many('{RUNNING}', '{1}')"),
    ("complete_and_claim", "W O", "SELECT queue.complete_and_claim(RUNNING, 1, queue => 'QUEUE')"),
    ("complete_and_claim", "W O", "SELECT queue.complete_and_claim(RUNNING, 1, NULL, NULL, ARRAY['QUEUE'])"),
    (
        "complete_many_and_claim",
        "W O",
        "SELECT queue.complete_many_and_claim('{RUNNING}', '{1}', queue => 'QUEUE', max_tasks => 9)",
    ),
    ("fail", "W O", "SELECT queue.fail(RUNNING, 1, 'broken', permanent => true)"),
    ("fail_many", "W O", "SELECT queue.fail_many('{RUNNING}', '{1}', '{broken}', permanent => true)"),
    ("release", "W O", "SELECT queue.release(RUNNING, 1, '1 second')"),
    ("release_many", "W O", "SELECT queue.release_many('{RUNNING}', '{1}', '1 second')"),
    ("extend", "W O", "SELECT queue.extend(RUNNING, 1, '1 minute', '{}')"),
    ("extend_many", "W O", "SELECT queue.extend_many('{RUNNING}', '{1}', '1 minute')"),
    ("assert_lease", "W O", "SELECT queue.assert_lease(RUNNING, 1)"),
    ("confirm_cancel", "W O", "SELECT queue.confirm_cancel(ASKED, 1)"),
    ("step", "W O", "SELECT queue.step(RUNNING, 1, 'first', '1')"),
    ("steps", "W O", "SELECT queue.steps(RUNNING)"),
    ("sleep", "W O", "SELECT queue.sleep(RUNNING, 1, '2100-01-01')"),
    ("sleep", "W O", "SELECT queue.sleep(RUNNING, 1, 'nap', '1 hour')"),
    ("await_event", "W O", "SELECT queue.await_event(RUNNING, 1, 'event')"),
    ("await_task", "W O", "SELECT queue.await_task(RUNNING, 1, QUEUED, '1 hour')"),
    ("emit", "P O", "SELECT queue.emit('QUEUE', 'event')"),
    ("wait", "W O", "CALL queue.wait('QUEUE', '0')"),
    ("wait", "W O", "CALL queue.wait(ARRAY['QUEUE'], '0')"),
    ("take", "W O", "CALL queue.take('QUEUE', '1 minute', '0')"),
    (
        "create",
        "O",
        "SELECT queue.create('fresh', '{\"max_running\": 2, \"rate_limit\": 2, \"group_rate_limit\": 1, \"rate_period\": \"1 s\"}')",
    ),
    ("configure", "O", "SELECT queue.configure('QUEUE', '{\"fair_groups\": true, \"max_running\": 3}')"),
    ("drop", "O", "SELECT queue.drop('QUEUE', true)"),
    ("pause", "O", "SELECT queue.pause('QUEUE')"),
    ("resume", "O", "SELECT queue.resume('QUEUE')"),
    ("pause_all", "O", "SELECT queue.pause_all()"),
    ("resume_all", "O", "SELECT queue.resume_all()"),
    ("purge", "O", "SELECT queue.purge('QUEUE')"),
    ("cancel", "O", "SELECT queue.cancel(QUEUED)"),
    ("cancel", "O", "SELECT queue.cancel('QUEUE', 'queued')"),
    ("end_lease", "O", "SELECT queue.end_lease(RUNNING)"),
    ("retry", "O", "SELECT queue.retry(DEAD)"),
    ("run_again", "O", "SELECT queue.run_again(DEAD)"),
    ("redrive", "O", "SELECT queue.redrive('QUEUE')"),
    ("reap", "O", "SELECT queue.reap()"),
    ("get", "O", "SELECT queue.get(QUEUED)"),
    ("wait_result", "O", "CALL queue.wait_result(DEAD, '0')"),
    ("bind", "O", "SELECT queue.bind('b.*', 'QUEUE')"),
    ("unbind", "O", "SELECT queue.unbind('TOPIC', 'QUEUE')"),
    ("schedule", "O", "SELECT queue.schedule('fresh', '@daily', 'QUEUE', options => '{\"priority\": 1}')"),
    ("unschedule", "O", "SELECT queue.unschedule('SCHEDULE')"),
    ("pause_schedule", "O", "SELECT queue.pause_schedule('SCHEDULE')"),
    ("resume_schedule", "O", "SELECT queue.resume_schedule('SCHEDULE')"),
    ("run_schedule", "O", "SELECT queue.run_schedule('SCHEDULE')"),
    ("run_schedules", "O", "SELECT queue.run_schedules()"),
    ("schedule_preview", "O", "SELECT queue.schedule_preview('@daily', 'Europe/Berlin')"),
    ("cancel_where", "O", "CALL queue.cancel_where('{\"queue\": \"QUEUE\"}')"),
    ("run_now_where", "O", "CALL queue.run_now_where('{\"queue\": \"QUEUE\", \"older_than\": \"0\"}')"),
    ("redrive_where", "O", "CALL queue.redrive_where('{\"queue\": \"QUEUE\", \"error\": \"%\"}')"),
    ("reprioritise_where", "O", "CALL queue.reprioritise_where('{\"queue\": \"QUEUE\"}', 3)"),
    ("move_where", "O", "CALL queue.move_where('{\"ids\": [QUEUED]}', 'QUEUE')"),
    ("purge_where", "O", "CALL queue.purge_where('{\"queue\": \"QUEUE\", \"payload\": {}}')"),
    ("channel", "P W O", "SELECT queue.channel('QUEUE')"),
    ("engine_stats", "O M", "SELECT queue.engine_stats()"),
    ("health", "O M", "SELECT queue.health()"),
    // Refused after the check of the right: the function is no handler.
    ("attach", "", "SELECT queue.attach('QUEUE', 'pg_catalog.now()', CURRENT_USER::regrole)"),
    ("detach", "", "SELECT queue.detach('QUEUE')"),
    ("maintain", "", "CALL queue.maintain()"),
    ("grant_producer", "", "SELECT queue.grant_producer('nobody')"),
    ("grant_worker", "", "SELECT queue.grant_worker('nobody', 'QUEUE')"),
    ("grant_operator", "", "SELECT queue.grant_operator('nobody')"),
    ("revoke_producer", "", "SELECT queue.revoke_producer('producer')"),
    ("revoke_worker", "", "SELECT queue.revoke_worker('worker')"),
    ("revoke_operator", "", "SELECT queue.revoke_operator('operator')"),
];

/// Whether the call can only be made outside a transaction.
pub fn commits(call: &str) -> bool {
    call == "CALL queue.maintain()"
}

/// How many forms each public function has in the catalog.
pub fn in_catalog(client: &mut Client) -> BTreeMap<String, usize> {
    let mut forms = BTreeMap::new();
    for name in column(client, "SELECT proname::text FROM pg_proc WHERE pronamespace = 'queue'::regnamespace")
    {
        *forms.entry(name).or_default() += 1;
    }
    forms
}

/// A queue with one of everything in it.
pub struct Stock {
    queue: String,
    queued: i64,
    running: i64,
    asked: i64,
    dead: i64,
    waiting: i64,
    batch: i64,
}

impl Stock {
    /// Makes the queue; the marker is in every payload.
    pub fn make(client: &mut Client, queue: &str, marker: &str) -> Self {
        run(client, &format!("SELECT queue.create('{queue}', '{{\"key_ttl\": \"1 hour\"}}')"));
        let mut push = |options: &str| -> i64 {
            let push = format!("SELECT queue.push('{queue}', '\"{marker}\"'{options})");
            client.query_one(&push, &[]).expect("push").get(0)
        };
        let done = push(", key => 'done'");
        let dead = push(", key => 'dead'");
        let running = push(", key => 'running', group_key => 'g'");
        let asked = push(", key => 'asked'");
        let queued = push(", key => 'queued', group_key => 'g', priority => 1");
        let waiting = push(&format!(", after => '{{{queued}}}'"));
        let batch = client
            .query_one(&format!("SELECT queue.create_batch('{queue}', '\"{marker}\"')"), &[])
            .expect("create a batch")
            .get(0);
        run(
            client,
            &format!(
                "SELECT queue.claim('1 hour', '{queue}', 4, '{marker}'); SELECT queue.complete({done}, 1, '\"{marker}\"');
                 SELECT queue.fail({dead}, 1, '{marker}', permanent => true); SELECT queue.cancel({asked});
                 SELECT queue.schedule('at {queue}', '@yearly', '{queue}', '\"{marker}\"');
                 SELECT queue.bind('{queue}', '{queue}')"
            ),
        );
        Self { queue: queue.to_owned(), queued, running, asked, dead, waiting, batch }
    }

    /// One that does not exist, under a name of its own.
    pub fn missing(queue: &str) -> Self {
        Self {
            queue: queue.to_owned(),
            queued: 999_991,
            running: 999_992,
            asked: 999_993,
            dead: 999_994,
            waiting: 999_995,
            batch: 999_996,
        }
    }

    /// Puts the names and ids of existing objects into a call.
    pub fn fill_in(&self, call: &str) -> String {
        call.replace("QUEUED", &self.queued.to_string())
            .replace("RUNNING", &self.running.to_string())
            .replace("ASKED", &self.asked.to_string())
            .replace("DEAD", &self.dead.to_string())
            .replace("WAITING", &self.waiting.to_string())
            .replace("BATCH", &self.batch.to_string())
            .replace("SCHEDULE", &format!("at {}", self.queue))
            .replace("QUEUE", &self.queue)
            .replace("TOPIC", &self.queue)
    }

    /// The reverse: a message without the names and ids.
    pub fn blank_out(&self, said: &str) -> String {
        said.replace(&self.queued.to_string(), "N")
            .replace(&self.running.to_string(), "N")
            .replace(&self.asked.to_string(), "N")
            .replace(&self.dead.to_string(), "N")
            .replace(&self.batch.to_string(), "N")
            .replace(&self.queue, "QUEUE")
    }
}
