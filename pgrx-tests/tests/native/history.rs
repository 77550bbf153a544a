//! One random history: calls and their results, line by line.

use postgres::{Client, SimpleQueryMessage};

/// Two queues, and a function that prints all rows without their times.
pub const SETUP: &str = r#"
SELECT queue.create('a', '{"backoff": {"base": "1 hour", "jitter": 0}, "max_attempts": 3, "max_queued": 12}');
SELECT queue.create('b', '{"backoff": {"base": "0"}, "keep_history": false, "timeout": "50 min", "ttl": "3 hours",
                           "on_expired": "cancel"}');
CREATE FUNCTION public.moment(t timestamptz) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN t < '2021-01-01' OR t > '2099-01-01' THEN t::text
                WHEN t > clock_timestamp() THEN 'later' WHEN t IS NOT NULL THEN 'now' END
$$;
-- All leases, timeouts and start deadlines are multiples of ten minutes.
CREATE FUNCTION public.ten_minutes(t timestamptz) RETURNS numeric LANGUAGE sql AS $$
    SELECT round(extract(epoch FROM t - clock_timestamp()) / 600)
$$;
CREATE FUNCTION public.plain(errors jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_agg(e - 'at' - 'claimed_at' || jsonb_build_object('was claimed', e ->> 'claimed_at' IS NOT NULL) ORDER BY n) FROM jsonb_array_elements(errors) WITH ORDINALITY AS x (e, n)
$$;
CREATE FUNCTION public.everything() RETURNS SETOF text LANGUAGE sql AS $$
    SELECT 'task ' || (to_jsonb(t) - '{run_at,start_by,lease_until,claimed_at,updated_at,created_at,cancel_requested_at,errors}'::text[])::text
           || concat_ws(' ', public.moment(t.run_at), public.ten_minutes(t.start_by), t.lease_until > clock_timestamp(), t.claimed_at <= clock_timestamp(),
                        t.updated_at <= clock_timestamp(), t.cancel_requested_at IS NOT NULL, public.plain(t.errors))
    FROM (SELECT * FROM queue.tasks ORDER BY id) AS t
    UNION ALL
    SELECT 'history ' || (to_jsonb(h) - '{run_at,start_by,claimed_at,created_at,finished_at,errors}'::text[])::text
           || concat_ws(' ', public.moment(h.run_at), public.ten_minutes(h.start_by), h.claimed_at IS NOT NULL, h.finished_at >= h.created_at,
                        public.plain(h.errors), h.partition)
    FROM (SELECT h.*, h.tableoid::regclass AS partition FROM queue.history AS h ORDER BY h.id) AS h
    UNION ALL
    SELECT 'dead ' || (to_jsonb(d) - '{run_at,start_by,claimed_at,created_at,failed_at,errors}'::text[])::text
           || concat_ws(' ', public.moment(d.run_at), public.ten_minutes(d.start_by), public.plain(d.errors))
    FROM (SELECT * FROM queue.dead_letters ORDER BY id) AS d
    UNION ALL
    SELECT 'key ' || k.queue || k.key || k.task_id FROM (SELECT * FROM queue_internal.keys ORDER BY queue, key) AS k
    UNION ALL
    -- No events: they are hints, and only what follows from them is the same.
    SELECT 'waits ' || to_jsonb(d)::text
    FROM (SELECT * FROM queue_internal.dependencies ORDER BY predecessor_id, task_id) AS d
    UNION ALL
    SELECT 'batch ' || (to_jsonb(b) - 'sealed_at')::text || (b.sealed_at IS NOT NULL)
    FROM (SELECT * FROM queue_internal.batches ORDER BY task_id) AS b
$$;
CREATE FUNCTION public.reset() RETURNS bigint LANGUAGE sql AS $$
    DELETE FROM queue.tasks; DELETE FROM queue.history; DELETE FROM queue.dead_letters;
    DELETE FROM queue_internal.keys; DELETE FROM queue_internal.events; DELETE FROM queue_internal.dependencies;
    DELETE FROM queue_internal.batches;
    UPDATE queue.queues SET paused_at = NULL WHERE paused_at IS NOT NULL;
    SELECT setval('queue.tasks_id_seq', 1, false)
$$;
"#;

const CLAIMED: &str = "id, token, queue, payload, headers, attempt, max_attempts, priority, key, group_key, progress, \
                       public.moment(run_at), created_at <= clock_timestamp(), lease_until > clock_timestamp(), kind, \
                       public.ten_minutes(lease_until)";

/// splitmix64: small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len() as u64) as usize]
    }
}

/// A running history. Its steps depend on the seed and on the results of earlier steps.
pub struct History<'a> {
    client: &'a mut Client,
    dice: Dice,
    log: Vec<String>,
    /// Leases that were granted, also such as were lost since.
    leases: Vec<(i64, i64)>,
    /// Whether keys, groups and predecessors occur, which fall back to SQL.
    policies: bool,
    in_transaction: bool,
    savepoints: u64,
}

impl<'a> History<'a> {
    pub fn new(client: &'a mut Client, seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x5851_F42D_4C95_7F2D));
        let policies = dice.one_in(5);
        Self {
            client,
            dice,
            log: Vec::new(),
            leases: Vec::new(),
            policies,
            in_transaction: false,
            savepoints: 0,
        }
    }

    /// Runs it, and returns the calls and their results.
    pub fn play(mut self) -> Vec<String> {
        self.client.simple_query("SELECT public.reset()").expect("reset");
        if self.policies && self.dice.one_in(2) {
            self.run("SELECT queue.create_batch('a', '\"callback\"')");
        }
        for _ in 0..1 + self.dice.roll(3) {
            if self.dice.one_in(2) { self.push() } else { self.push_many() }
        }
        for _ in 0..4 + self.dice.roll(9) {
            self.step();
        }
        if self.in_transaction {
            let end = self.dice.pick(&["COMMIT", "ROLLBACK"]);
            self.run(end);
        }
        // An expired lease is counted as soon as a session checks it, which may be another one in each database.
        self.run("SELECT queue.reap()");
        self.run("SELECT * FROM public.everything()");
        // The remaining tasks are claimed in order, so that none is missed.
        self.run("SELECT id FROM queue.claim('1 hour', 'a', 100)");
        self.run("SELECT id FROM queue.claim('1 hour', 'b', 100)");
        self.log
    }

    fn step(&mut self) {
        let roll = self.dice.roll(100);
        if (45..80).contains(&roll) && self.leases.is_empty() && !self.dice.one_in(4) {
            return self.claim();
        }
        match roll {
            0..2 => self.push_late(),
            2..12 => self.push(),
            12..22 => self.push_many(),
            22..45 => self.claim(),
            45..56 => self.finish("complete"),
            56..63 => self.complete_many(),
            63..70 => self.complete_and_claim(),
            70..75 => self.extend(),
            75..85 => self.other_verb(),
            85..91 => self.direct(),
            _ => self.transaction(),
        }
    }

    fn queue(&mut self) -> &'static str {
        // An unknown one now and then.
        if self.dice.one_in(60) { "c" } else { self.dice.pick(&["a", "a", "a", "b"]) }
    }

    fn options(&mut self) -> String {
        let mut options = String::new();
        if self.dice.one_in(3) {
            options += &format!(", priority => {}", self.dice.roll(5) as i64 - 2);
        }
        options += match self.dice.roll(10) {
            0 => ", run_at => '2020-01-01 00:00:01'",
            1 => ", run_at => '2020-01-01 00:00:02'",
            2 => ", run_at => '2100-01-01'",
            3 => ", delay => '1 hour'",
            4 => ", delay => '0'",
            _ => "",
        };
        if self.dice.one_in(4) {
            options +=
                self.dice.pick(&[", headers => '{\"h\": 1}'", ", headers => '[]'", ", headers => '{}'"]);
        }
        if self.dice.one_in(6) {
            options += self.dice.pick(&[", max_attempts => 1", ", max_attempts => 2", ", max_attempts => 0"]);
        }
        if self.dice.one_in(4) {
            options += self.dice.pick(&[
                ", kind => 'letter'",
                ", kind => ''",
                ", lease => '20 min'",
                ", lease => '1 day'",
                ", lease => '1 mon'",
                ", timeout => '40 min'",
                ", timeout => '1 day', kind => 'é'",
                ", timeout => '0'",
                ", lease => '3 hours', timeout => '1 mon -29 days'",
                ", weight => 3",
                ", weight => 7, kind => 'letter'",
                ", weight => 0",
                ", weight => 1000001",
            ]);
        }
        if self.dice.one_in(8) {
            options += self.dice.pick(&[
                ", ttl => '20 min'",
                ", ttl => '20 min'",
                ", ttl => '1 hour'",
                ", ttl => '1 mon'",
                ", start_by => now() + '20 min'::interval",
                ", ttl => '0'",
                ", start_by => now() + '40 min'::interval",
                ", start_by => 'infinity'",
                ", start_by => now() + '40 min'::interval, ttl => '1 hour'",
            ]);
        }
        if self.policies && self.dice.one_in(3) {
            options += self.dice.pick(&[
                ", key => 'k'",
                ", key => 'l', on_duplicate => 'replace'",
                ", group_key => 'g'",
                ", after => ARRAY[1]::bigint[]",
                ", backoff => '{\"base\": \"0\"}'",
                ", batch => 1",
                ", batch => 1, key => 'k'",
            ]);
        }
        options
    }

    fn push(&mut self) {
        let (queue, options, n) = (self.queue(), self.options(), self.dice.roll(1000));
        self.run(&format!("SELECT queue.push('{queue}', '{{\"n\": {n}}}'{options})"));
    }

    /// A task that can no longer be started. SQL ends it with the next claim; natively the worker does, or reap.
    fn push_late(&mut self) {
        let (queue, n) = (self.queue(), self.dice.roll(1000));
        self.run(&format!(
            "SELECT queue.push('{queue}', '{{\"n\": {n}}}', start_by => now() - '10 min'::interval)"
        ));
        if self.dice.one_in(2) {
            self.lease(&format!("SELECT {CLAIMED} FROM queue.claim('1 hour', '{queue}', 1000) ORDER BY id"));
        }
        self.run("SELECT queue.reap() >= 0 AS reaped");
    }

    fn push_many(&mut self) {
        let (queue, options) = (self.queue(), self.options());
        let payloads: Vec<String> = (0..self.dice.roll(6)).map(|n| format!("\"{n}\"")).collect();
        self.run(&format!(
            "SELECT queue.push_many('{queue}', ARRAY[{}]::jsonb[]{options})",
            quoted(&payloads)
        ));
    }

    fn claim(&mut self) {
        let (queue, most) = (self.queue(), self.dice.pick(&["1", "1", "2", "3", "10", "100", "0"]));
        let worker = self.dice.pick(&["", "", ", 'w'", ", NULL"]);
        match self.dice.roll(12) {
            0 => self.run(&format!(
                "SELECT id, queue.complete(id, token, '1') FROM queue.claim('1 hour', '{queue}', {most}{worker})"
            )),
            1 => {
                // Expires at once; ended by the next claim or by another session.
                self.claim_with(&format!("'1 us', '{queue}', {most}{worker}"));
                if self.dice.one_in(2) {
                    self.run("SELECT queue.reap()");
                } else {
                    // SQL returns requeued tasks after the queued ones that it found.
                    self.lease(&format!("SELECT {CLAIMED} FROM queue.claim('1 hour', '{queue}', 1000) ORDER BY id"));
                }
            }
            2 => self.claim_with(&format!("NULL, '{queue}', {most}{worker}")),
            3 => self.claim_with(&format!("'1 day', '{queue}', {most}{worker}")),
            _ => self.claim_with(&format!("'1 hour', '{queue}', {most}{worker}")),
        }
    }

    fn claim_with(&mut self, arguments: &str) {
        self.lease(&format!("SELECT {CLAIMED} FROM queue.claim({arguments})"));
    }

    /// A lease, most often one that still holds.
    fn leased(&mut self) -> (i64, i64) {
        if self.leases.is_empty() || self.dice.one_in(20) {
            return (1 + self.dice.roll(9) as i64, self.dice.roll(3) as i64);
        }
        let count = self.leases.len();
        let back = if self.dice.one_in(4) { self.dice.roll(count as u64) as usize } else { 0 };
        self.leases[count - 1 - back]
    }

    fn given_up(&mut self) -> (i64, i64) {
        let (id, token) = self.leased();
        if !self.dice.one_in(5) {
            self.leases.retain(|lease| *lease != (id, token));
        }
        (id, token)
    }

    fn finish(&mut self, verb: &str) {
        let (id, token) = self.given_up();
        let result = self.dice.pick(&["", ", '{\"r\": [1, 2]}'", ", NULL"]);
        self.run(&format!("SELECT queue.{verb}({id}, {token}{result})"));
    }

    fn complete_many(&mut self) {
        let leases: Vec<(i64, i64)> = (0..self.dice.roll(5)).map(|_| self.leased()).collect();
        let list =
            |each: &dyn Fn(&(i64, i64)) -> String| leases.iter().map(each).collect::<Vec<_>>().join(",");
        let (ids, tokens) = (list(&|lease| lease.0.to_string()), list(&|lease| lease.1.to_string()));
        let results = match self.dice.roll(4) {
            0 => format!(", ARRAY[{}]::jsonb[]", list(&|lease| format!("'{}'", lease.0))),
            1 => format!(", ARRAY[{}]::jsonb[]", list(&|_| "NULL".to_owned())),
            _ => String::new(),
        };
        let arguments = format!("ARRAY[{ids}]::bigint[], ARRAY[{tokens}]::bigint[]{results}");
        if self.dice.one_in(3) {
            let queue = self.queue();
            self.lease(&format!(
                "SELECT {CLAIMED} FROM queue.complete_many_and_claim({arguments}, lease => '1 hour', queue => '{queue}',
                     max_tasks => 2)"
            ));
        } else {
            self.run(&format!("SELECT queue.complete_many({arguments})"));
        }
    }

    fn complete_and_claim(&mut self) {
        let (id, token) = self.given_up();
        let (queue, lease) = (self.queue(), self.dice.pick(&["'1 hour'", "'1 hour'", "NULL", "'-1 hour'"]));
        let most = self.dice.pick(&["", "", ", 3", ", 0"]);
        self.lease(&format!(
            "SELECT {CLAIMED} FROM queue.complete_and_claim({id}, {token}, '[]', {lease}, '{queue}', 'w'{most})"
        ));
    }

    fn extend(&mut self) {
        let (id, token) = self.leased();
        let rest = self.dice.pick(&["", ", '2 hours'", ", '2 hours', '{\"p\": 1}'", ", NULL, '2'", ", '0'"]);
        self.run(&format!(
            "SELECT lease_until > clock_timestamp(), cancel_requested,
                    public.ten_minutes(lease_until) FROM queue.extend({id}, {token}{rest})"
        ));
    }

    fn other_verb(&mut self) {
        let id = 1 + self.dice.roll(12);
        let queue = self.queue();
        if self.policies && self.dice.one_in(4) {
            return self.run("SELECT queue.seal_batch(1)");
        }
        match self.dice.roll(10) {
            0..3 => {
                let (id, token) = self.given_up();
                let rest = self.dice.pick(&["", ", '0'", ", '1 hour'", ", NULL, true"]);
                self.run(&format!("SELECT queue.fail({id}, {token}, 'no'{rest})"));
            }
            3..5 => {
                let (id, token) = self.given_up();
                let rest = self.dice.pick(&["", "", ", '1 hour'"]);
                self.run(&format!("SELECT queue.release({id}, {token}{rest})"));
            }
            5 => self.run(&format!("SELECT queue.cancel({id})")),
            6 => self.finish("confirm_cancel"),
            7 => self.run(&format!("SELECT queue.retry({id})")),
            8 => self.run(&format!("SELECT queue.redrive('{queue}')")),
            _ => {
                self.run(&format!("SELECT queue.pause('{queue}')"));
                self.claim();
                if !self.dice.one_in(4) {
                    self.run(&format!("SELECT queue.resume('{queue}')"));
                }
            }
        }
    }

    /// Direct changes of users to the table.
    fn direct(&mut self) {
        let (id, priority) = (1 + self.dice.roll(12), self.dice.roll(4));
        let run_at = self.dice.pick(&["'2020-01-01'", "'2020-02-02'", "'2101-01-01'"]);
        let queued = format!("WHERE id = {id} AND state = 'queued'");
        match self.dice.roll(6) {
            0..2 => self.run(&format!(
                "INSERT INTO queue.tasks (queue, priority, run_at) SELECT 'a', {priority}, {run_at} \
                 FROM generate_series(1, {id})"
            )),
            2 => self.run(&format!("UPDATE queue.tasks SET priority = {priority}, run_at = {run_at} {queued}")),
            3 => self.run(&format!("UPDATE queue.tasks SET run_at = {run_at} WHERE state = 'queued'")),
            4 => self.run(&format!(
                "UPDATE queue.tasks SET state = 'running', lease_until = '2100-01-01', token = token + 1 {queued}"
            )),
            _ => self.run(&format!("DELETE FROM queue.tasks {queued}")),
        }
    }

    fn transaction(&mut self) {
        if !self.in_transaction {
            self.in_transaction = true;
            self.run("BEGIN");
            return;
        }
        match self.dice.roll(6) {
            0..2 => {
                self.savepoints += 1;
                let name = self.savepoints;
                self.run(&format!("SAVEPOINT s{name}"));
            }
            2 if self.savepoints > 0 => {
                let name = self.savepoints;
                self.savepoints -= 1;
                self.run(&format!("RELEASE s{name}"));
            }
            2..4 if self.savepoints > 0 => {
                let name = 1 + self.dice.roll(self.savepoints);
                self.savepoints = name;
                self.run(&format!("ROLLBACK TO s{name}"));
            }
            4 => self.end("ROLLBACK"),
            _ => self.end("COMMIT"),
        }
    }

    fn end(&mut self, command: &str) {
        (self.in_transaction, self.savepoints) = (false, 0);
        self.run(command);
    }

    /// Runs a statement whose first two columns are leases.
    fn lease(&mut self, statement: &str) {
        let rows = self.note(statement);
        for row in rows {
            let mut columns = row.split('|');
            let number = columns.next().and_then(|id| id.parse().ok());
            if let (Some(id), Some(token)) = (number, columns.next().and_then(|token| token.parse().ok())) {
                self.leases.push((id, token));
            }
        }
    }

    fn run(&mut self, statement: &str) {
        self.note(statement);
    }

    /// Runs a statement and records its result. After an error, the transaction rolls back.
    fn note(&mut self, statement: &str) -> Vec<String> {
        let result = self.client.simple_query(statement);
        let statement = statement.replace(CLAIMED, "...");
        match result {
            Ok(messages) => {
                let rows: Vec<String> = messages.iter().filter_map(line).collect();
                self.log.push(format!("{statement}: {}", rows.join("\n  ")));
                rows
            }
            Err(error) => {
                let code = error.code().unwrap_or_else(|| panic!("{statement}: {error}")).code();
                self.log.push(format!("{statement}: {code}"));
                if self.in_transaction {
                    if self.savepoints > 0 && !self.dice.one_in(3) {
                        let name = self.savepoints;
                        self.run(&format!("ROLLBACK TO s{name}"));
                    } else {
                        self.end("ROLLBACK");
                    }
                }
                Vec::new()
            }
        }
    }
}

fn quoted(items: &[String]) -> String {
    items.iter().map(|item| format!("'{item}'")).collect::<Vec<_>>().join(",")
}

fn line(message: &SimpleQueryMessage) -> Option<String> {
    match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|i| row.get(i).unwrap_or("null")).collect::<Vec<_>>().join("|"))
        }
        SimpleQueryMessage::CommandComplete(count) => Some(format!("({count})")),
        _ => None,
    }
}
