//! The order of `examples/order` in each language, run unchanged: the worker is killed before and after each step is stored,
//! and each effect happens once.

use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use postgres::Client;
use postgres::types::{FromSql, ToSql};
use queue_ext_tests::cluster::{bindir, own_address, signal};
use queue_ext_tests::languages::{self, Start};
use queue_ext_tests::{Cluster, SOON, Settings, brief, eventually};

/// The role of the workers.
const CLERK: &str = "clerk";

/// The lease of an order, after which another worker claims it.
const LEASE: &str = "2 seconds";

/// The time until the reminder.
const WEEK: &str = "0.5 seconds";

/// When the payment's webhook comes.
#[derive(Clone, Copy, PartialEq)]
enum Webhook {
    Before,
    WhileAwaited,
    Never,
}

/// Where a worker is when it is killed.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// It needs this table, which the test has locked.
    Table(&'static str),
    /// It is about to make a change of this name: a trigger calls `stop()`.
    Effect(&'static str),
    /// It is about to store this step, and has made its changes.
    Store(&'static str),
    /// It has nothing to do: the order waits for what has this name.
    Suspended(&'static str),
}
use Point::{Effect, Store, Suspended, Table};

const PAYMENT: &str = "payment";
const NAP: &str = "before the reminder";

/// Each point at which a worker is killed, with the number of steps that are stored by then. A point after that at which a
/// step is stored is the first thing that the worker does after the commit.
#[rustfmt::skip]
const KILLS: &[(Webhook, Point, usize)] = &[
    (Webhook::WhileAwaited, Effect("reserve"), 0),
    (Webhook::WhileAwaited, Store("reserve"), 0),
    (Webhook::WhileAwaited, Effect("charge"), 1),
    (Webhook::WhileAwaited, Store("charge"), 1),
    (Webhook::WhileAwaited, Table("queue_internal.awaits IN EXCLUSIVE MODE"), 2),
    (Webhook::WhileAwaited, Suspended(PAYMENT), 2),
    (Webhook::WhileAwaited, Store(PAYMENT), 2),
    (Webhook::WhileAwaited, Effect("ship"), 3),
    (Webhook::WhileAwaited, Store("ship"), 3),
    (Webhook::WhileAwaited, Store(NAP), 4),
    (Webhook::WhileAwaited, Suspended(NAP), 5),
    (Webhook::WhileAwaited, Table("reviews"), 5),
    (Webhook::WhileAwaited, Store("remind"), 5),
    (Webhook::WhileAwaited, Table("queue.history IN EXCLUSIVE MODE"), 6),
    (Webhook::Before, Store(PAYMENT), 2),
    (Webhook::Before, Effect("ship"), 3),
    (Webhook::Never, Store(PAYMENT), 2),
    (Webhook::Never, Effect("cancel"), 3),
    (Webhook::Never, Store("cancel"), 3),
    (Webhook::Never, Table("queue.history IN EXCLUSIVE MODE"), 4),
];

/// The steps of an order that is paid, and of one that is not.
const PAID: &[&str] = &["reserve", "charge", PAYMENT, "ship", NAP, "remind"];
const UNPAID: &[&str] = &["reserve", "charge", PAYMENT, "cancel"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/order")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).expect("read a file")
}

/// As examples/README.md starts it.
fn psql(_: &Path) -> Option<Start> {
    let path = format!("{}:{}", bindir().display(), std::env::var("PATH").expect("PATH"));
    Some(Box::new(move || {
        let mut command = Command::new("bash");
        command
            .args(["-c", r#"yes '\i worker.sql' | psql -X -q "$DATABASE_URL""#])
            .current_dir(folder())
            .env("PATH", &path);
        command
    }))
}

#[rustfmt::skip]
const LANGUAGES: &[(&str, fn(&Path) -> Option<Start>)] = &[
    ("order.py", languages::python),
    ("worker.sql", psql),
    ("order.mjs", languages::node),
];

/// A worker, with all its processes.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        signal(-(self.0.id() as i32), libc::SIGKILL);
        self.0.wait().expect("it is gone");
    }
}

/// A shop in a database of its own, with workers in one language.
struct Shop<'a> {
    cluster: &'a Cluster,
    database: String,
    client: std::cell::RefCell<Client>,
    start: Start,
    url: String,
    orders: Cell<i64>,
}

/// An order, and its task.
struct Order {
    number: i64,
    task: i64,
    webhook: Webhook,
    /// Whether the webhook comes as soon as the order waits for it.
    due: Cell<bool>,
}

impl<'a> Shop<'a> {
    fn open(cluster: &'a Cluster, host: &str, program: &str, start: Start) -> Self {
        let database = format!("shop_{}", program.replace('.', "_"));
        cluster.connect().batch_execute(&format!("CREATE DATABASE {database}")).expect("create");
        let mut client = cluster.connect_to(&database);
        let schema = [
            "CREATE EXTENSION queue_ext",
            &read("schema.sql"),
            &read("order.sql"),
            &format!(
                "SELECT queue.configure('orders', '{{\"lease\": \"{LEASE}\", \"backoff\": {{\"base\": \"0\"}}}}'),
                        queue.grant_worker('{CLERK}', 'orders'), queue.grant_producer('{CLERK}', 'mail');
                 GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {CLERK};
                 -- A worker that comes here waits while the test holds the lock.
                 CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
                 BEGIN
                     PERFORM pg_advisory_xact_lock_shared(hashtext(concat(TG_ARGV[0], to_jsonb(NEW) ->> TG_ARGV[1])));
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER stop BEFORE INSERT ON queue_internal.steps FOR EACH ROW EXECUTE FUNCTION stop('store ', 'name');
                 ALTER TABLE queue_internal.steps ENABLE ALWAYS TRIGGER stop;
                 CREATE TRIGGER stop BEFORE INSERT ON service_requests FOR EACH ROW EXECUTE FUNCTION stop('', 'service');
                 CREATE TRIGGER reserve BEFORE UPDATE ON stock FOR EACH ROW WHEN (NEW.available < OLD.available)
                     EXECUTE FUNCTION stop('reserve');
                 CREATE TRIGGER cancel BEFORE UPDATE ON stock FOR EACH ROW WHEN (NEW.available > OLD.available)
                     EXECUTE FUNCTION stop('cancel')"
            ),
        ];
        for script in schema {
            client.batch_execute(script).expect(script);
        }
        let url = format!("postgresql://{CLERK}@{host}/{database}");
        Self { cluster, database, client: client.into(), start, url, orders: Cell::new(0) }
    }

    fn ask<T: for<'b> FromSql<'b>>(&self, query: &str, arguments: &[&(dyn ToSql + Sync)]) -> T {
        let row = self.client.borrow_mut().query_one(query, arguments);
        row.unwrap_or_else(|error| panic!("{}: {query}: {error:?}", self.database)).get(0)
    }

    fn hire(&self, webhook: Webhook, remind_after: &str) -> Worker {
        let mut command = (self.start)();
        let timeout = if webhook == Webhook::Never { "0.5 seconds" } else { "1 hour" };
        command
            .env("DATABASE_URL", &self.url)
            .env("PAYMENT_TIMEOUT", timeout)
            .env("REMIND_AFTER", remind_after);
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        Worker(command.spawn().expect("start a worker"))
    }

    /// The last ten of an item are on sale.
    fn order(&self, webhook: Webhook) -> Order {
        let number = self.orders.get() + 1;
        self.orders.set(number);
        let task = self.ask(
            "WITH item AS (INSERT INTO stock VALUES ('item ' || $1::bigint, 10) RETURNING item)
             SELECT queue.push('orders', jsonb_build_object('order', $1, 'item', item)) FROM item",
            &[&number],
        );
        let due = Cell::new(webhook == Webhook::WhileAwaited);
        let order = Order { number, task, webhook, due };
        if webhook == Webhook::Before {
            self.pay(&order);
        }
        order
    }

    fn pay(&self, order: &Order) {
        let emitted: bool =
            self.ask("SELECT queue.emit('orders', 'payment:' || $1::bigint)", &[&order.number]);
        assert!(emitted, "once");
    }

    fn waits_for(&self, order: &Order, name: &str) -> bool {
        let waits = "SELECT (queue.get($1)).state = 'queued' AND EXISTS
                         (SELECT FROM queue.steps($1) AS s WHERE s.kind <> 'step' AND split_part(s.name, ':', 1) = $2)";
        self.ask(waits, &[&order.task, &name])
    }

    /// The names of the steps that are stored.
    fn steps(&self, order: &Order) -> Vec<String> {
        let steps = "SELECT coalesce(array_agg(split_part(name, ':', 1)), '{}') FROM queue.steps($1) WHERE stored_at IS NOT NULL";
        self.ask(steps, &[&order.task])
    }

    /// Waits, while the webhook comes when it is due.
    fn until(&self, what: &str, order: &Order, mut condition: impl FnMut() -> bool) {
        eventually(&format!("{what} ({}, order {})", self.database, order.number), SOON, || {
            if order.due.get() && self.waits_for(order, PAYMENT) {
                self.pay(order);
                order.due.set(false);
            }
            condition()
        });
    }

    /// Kills the worker of an order at a point, and has another one finish it.
    fn kill_at(&self, webhook: Webhook, point: Point, stored: usize) {
        let mut session = self.cluster.connect_to(&self.database);
        let mut lock = session.transaction().expect("begin");
        let number = self.orders.get() + 1;
        let name = match point {
            Table(table) => {
                lock.batch_execute(&format!("LOCK TABLE {table}")).expect("lock");
                String::new()
            }
            Effect(name) => name.to_owned(),
            Store(PAYMENT) => format!("store {PAYMENT}:{number}"),
            Store(name) => format!("store {name}"),
            Suspended(_) => String::new(),
        };
        let locked = lock.query_one("SELECT pg_backend_pid(), pg_advisory_xact_lock(hashtext($1))", &[&name]);
        let holder: i32 = locked.expect("lock").get(0);
        let order = self.order(webhook);
        if let Suspended(PAYMENT) = point {
            order.due.set(false);
        }
        // Long enough to be seen, where that matters.
        let remind_after = if let Suspended(NAP) = point { "3 seconds" } else { WEEK };
        let worker = self.hire(webhook, remind_after);
        self.until("the worker comes to the point", &order, || match point {
            Suspended(event) => self.waits_for(&order, event),
            _ => self.ask(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND $2 = ANY (pg_blocking_pids(pid)))",
                &[&CLERK, &holder],
            ),
        });
        drop(worker);
        eventually("its session ends", SOON, || {
            let gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = $1 AND datname = current_database())";
            self.ask(gone, &[&CLERK])
        });
        lock.rollback().expect("unlock");
        if let Suspended(PAYMENT) = point {
            order.due.set(true);
        }
        let all = if webhook == Webhook::Never { UNPAID } else { PAID };
        assert_eq!(self.steps(&order), all[..stored], "{}, killed at {point:?}", self.database);
        self.finish(&order);
        // Nothing can undo a call of another service, so it was repeated, with the same key.
        if let Store(service @ ("charge" | "ship")) = point {
            let times = "SELECT times FROM service_requests WHERE order_number = $1 AND service = $2";
            assert!(self.ask::<i32>(times, &[&order.number, &service]) > 1, "{}: {service}", self.database);
        }
    }

    /// Waits for the end of an order, and counts its effects.
    fn finish(&self, order: &Order) {
        let _worker = self.hire(order.webhook, WEEK);
        self.until("the order is done", order, || {
            self.ask("SELECT (queue.get($1)).state = 'completed'", &[&order.task])
        });
        let number = order.number;
        let reviewed: bool =
            self.ask("SELECT EXISTS (SELECT FROM reviews WHERE order_number = $1)", &[&number]);
        let (result, steps, available, services, mails) = match order.webhook {
            Webhook::Never => ("cancelled", UNPAID, 10, vec!["charge"], 0),
            _ => ("shipped", PAID, 9, vec!["charge", "ship"], i64::from(!reviewed)),
        };
        assert_eq!(self.steps(order), steps, "{}", self.database);
        let done: String =
            self.ask("SELECT result #>> '{}' FROM queue.history WHERE id = $1", &[&order.task]);
        assert_eq!(done, result, "{}", self.database);
        let in_stock: i32 =
            self.ask("SELECT available FROM stock WHERE item = 'item ' || $1::bigint", &[&number]);
        assert_eq!(in_stock, available, "{}: reserved once, and released once", self.database);
        let asked: Vec<String> = self.ask(
            "SELECT array_agg(service ORDER BY receipt) FROM service_requests WHERE order_number = $1",
            &[&number],
        );
        assert_eq!(asked, services, "{}: one key for each service", self.database);
        let reminded: i64 = self.ask(
            "SELECT count(*) FROM queue.tasks WHERE queue = 'mail' AND payload -> 'review_order' = to_jsonb($1::bigint)",
            &[&number],
        );
        assert_eq!(reminded, mails, "{}: reminded once", self.database);
    }
}

#[test]
fn an_order_goes_on_after_its_worker_was_killed_at_any_step_and_each_effect_happens_once() {
    let host = own_address();
    // The server ends the session of a killed worker even while that waits for a lock of the test.
    let extra = format!("listen_addresses = '{host}'\nclient_connection_check_interval = '50ms'").leak();
    let cluster = Cluster::start_with("order", &Settings { preload: true, extra });
    cluster.connect().batch_execute(&format!("CREATE ROLE {CLERK} LOGIN")).expect("create the workers' role");
    let chosen = if brief() { &LANGUAGES[..2] } else { LANGUAGES };
    thread::scope(|scope| {
        for (program, start) in chosen {
            let Some(start) = start(&folder().join(program)) else {
                println!("{program} is skipped: its language is not installed");
                continue;
            };
            let (cluster, host) = (&cluster, &host);
            scope.spawn(move || {
                let shop = Shop::open(cluster, host, program, start);
                // One that is reviewed needs no reminder.
                shop.client.borrow_mut().batch_execute("INSERT INTO reviews VALUES (1)").expect("a review");
                shop.finish(&shop.order(Webhook::WhileAwaited));
                for (webhook, point, stored) in KILLS {
                    shop.kill_at(*webhook, *point, *stored);
                }
            });
        }
    });
}

#[test]
fn the_pages_quote_the_program_in_python_and_count_lines() {
    let program = read("order.py");
    let start = program.find("def fulfil").expect("the flow");
    let end = program.find("def change_stock").expect("what the flow calls");
    let guide = read("../../docs/steps.md");
    let quoted = guide.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(
        quoted.expect("a quotation").trim(),
        program[start..end].trim(),
        "docs/steps.md quotes order.py"
    );
    let readme = read("../README.md");
    for programs in [&["order.py"][..], &["order.mjs"], &["order.sql", "worker.sql"]] {
        let lines: usize = programs.iter().map(|program| read(program).lines().count()).sum();
        let row =
            readme.lines().find(|line| line.contains(&format!("[order/{}]", programs[0]))).expect("a row");
        assert!(row.ends_with(&format!("| {lines} |")), "{lines} lines: {row}");
    }
}
