//! The commits in the order of the write-ahead log, by logical decoding with test_decoding.
//!
//! This recording needs no change of the library: it has what each transaction wrote, in SQL, natively or by the
//! worker, and nothing of transactions that rolled back. Two commits without a common row may become visible in
//! another order than that of the log; `accept.rs` allows for that.

use super::rows::{Admission, Id, Key, Outcome, Row, State, Table, Task};
use super::trace::{Commit, End, Played, Time, Trace};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A change of a row, and the task that it is about.
struct Change {
    key: Real,
    row: Option<RealRow>,
}

/// Keys as in the model, with real ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Real {
    Task(i64),
    Ended(i64),
    Dependency(i64, i64),
    Outcome(i64),
}

#[derive(Clone, Copy, Debug)]
enum RealRow {
    Task { state: State, admission: Admission, token: i64 },
    Ended(Outcome, i64),
    Dependency(Option<Outcome>),
}

/// The contents of the log, by transaction.
#[derive(Default)]
pub struct Log {
    commits: Vec<Committed>,
    postponed: Vec<Subject>,
    /// When the leases end, by task and token.
    leases: Vec<((i64, i64), Time)>,
}

struct Committed {
    xid: u32,
    at: Time,
    changes: Vec<Change>,
}

enum Subject {
    Task(i64),
    /// The worlds' groups are named after their numbers.
    Group(String),
}

/// Reads the commits since the last call.
pub fn read(client: &mut postgres::Client, slot: &str) -> Log {
    // What sessions have committed that do not wait for the disk is written with this.
    client.execute("SELECT pg_logical_emit_message(true, '', '')", &[]).expect("write the log to disk");
    let query = "SELECT xid::text::bigint, data FROM pg_logical_slot_get_changes($1, NULL, NULL, 'include-timestamp', 'on')";
    let rows = client.query(query, &[&slot]).expect("decode the write-ahead log");
    let mut log = Log::default();
    for row in &rows {
        let (xid, line): (i64, &str) = (row.get(0), row.get(1));
        if line.starts_with("BEGIN") {
            log.commits.push(Committed { xid: xid as u32, at: Time::new(), changes: Vec::new() });
        } else if let Some((_, at)) = line.strip_prefix("COMMIT").and_then(|line| line.split_once("(at ")) {
            log.commits.last_mut().expect("COMMIT comes after BEGIN").at = time(at.trim_end_matches(')'));
        } else if let Some(line) = line.strip_prefix("table ") {
            log.take(line);
        }
    }
    log
}

/// The transactions that had committed when the server was killed, which started again at this time.
pub fn survivors(client: &mut postgres::Client, slot: &str, started: &Time) -> HashSet<u32> {
    let query = "SELECT xid::text::bigint, data FROM pg_logical_slot_peek_changes($1, NULL, NULL, 'include-timestamp', 'on')
                 WHERE data LIKE 'COMMIT%'";
    let rows = client.query(query, &[&slot]).expect("decode the write-ahead log");
    let before = rows.iter().filter(|row| {
        let at = row.get::<_, &str>(1).split_once("(at ").map(|(_, at)| time(at));
        at.is_some_and(|at| at < *started)
    });
    before.map(|row| row.get::<_, i64>(0) as u32).collect()
}

impl Log {
    fn take(&mut self, line: &str) {
        let Some((table, rest)) = line.split_once(": ") else { return };
        let Some((verb, rest)) = rest.split_once(": ") else { return };
        let row = columns(rest);
        let number = |name: &str| row.get(name).and_then(|text| text.parse::<i64>().ok());
        let word = |name: &str| row.get(name).map(String::as_str);
        let deleted = verb == "DELETE";
        let (key, new) = match table {
            "queue.tasks" => {
                let state = match word("state") {
                    Some("waiting") => State::Waiting,
                    Some("running") => State::Running,
                    _ => State::Queued,
                };
                let admission = match word("admission") {
                    Some("1") => Admission::Admitted,
                    Some("2") => Admission::Blocked,
                    _ => Admission::Open,
                };
                if let (Some(id), Some(token), Some(until)) =
                    (number("id"), number("token"), word("lease_until"))
                {
                    self.leases.push(((id, token), time(until)));
                }
                (
                    number("id").map(Real::Task),
                    RealRow::Task { state, admission, token: number("token").unwrap_or(0) },
                )
            }
            "queue.dead_letters" => {
                (number("id").map(Real::Ended), RealRow::Ended(Outcome::Failed, number("token").unwrap_or(0)))
            }
            "queue_internal.dependencies" => (
                number("predecessor_id")
                    .zip(number("task_id"))
                    .map(|(before, id)| Real::Dependency(before, id)),
                RealRow::Dependency(word("outcome").and_then(outcome)),
            ),
            "queue_internal.outcomes" => (
                number("task_id").map(Real::Outcome),
                RealRow::Ended(word("outcome").and_then(outcome).unwrap_or(Outcome::Cancelled), 0),
            ),
            "queue_internal.events" => {
                if verb == "UPDATE" {
                    let group = word("group_key").map(|group| Subject::Group(group.to_owned()));
                    self.postponed.extend(number("task_id").map(Subject::Task).or(group));
                }
                return;
            }
            history if history.starts_with("queue.history") => {
                let ended = word("state").and_then(outcome).unwrap_or(Outcome::Cancelled);
                (number("id").map(Real::Ended), RealRow::Ended(ended, number("token").unwrap_or(0)))
            }
            _ => return,
        };
        let change = key.map(|key| Change { key, row: (!deleted).then_some(new) });
        let commit = self.commits.last_mut().expect("a row comes after BEGIN");
        commit.changes.extend(change);
    }

    /// Gives each trace the commits that changed its rows, but for what a purge of a later world deletes of it.
    pub fn hand_out(&self, traces: &mut [Trace]) {
        let worlds: HashMap<i64, usize> = traces
            .iter()
            .enumerate()
            .flat_map(|(world, trace)| trace.ids.iter().map(move |id| (*id, world)))
            .collect();
        let numbers: HashMap<String, usize> =
            traces.iter().enumerate().map(|(world, trace)| (trace.number.to_string(), world)).collect();
        let mut owners: HashMap<u32, usize> = HashMap::new();
        for (world, trace) in traces.iter().enumerate() {
            let xids = trace.clients.iter().flatten().filter_map(|played| played.xid);
            owners.extend(xids.map(|xid| (xid, world)));
        }
        let mut tables: Vec<BTreeMap<Real, RealRow>> = traces.iter().map(|_| BTreeMap::new()).collect();
        let mut last: Vec<Table> = traces.iter().map(|_| Table::new()).collect();
        for Committed { xid, at, changes } in &self.commits {
            let mut touched: BTreeMap<usize, usize> = BTreeMap::new();
            for change in changes {
                let (Real::Task(id) | Real::Ended(id) | Real::Dependency(_, id) | Real::Outcome(id)) =
                    change.key;
                let Some(world) = worlds.get(&id) else { continue };
                if owners.get(xid).is_some_and(|owner| owner != world) {
                    continue;
                }
                *touched.entry(*world).or_default() += 1;
                match change.row {
                    Some(row) => tables[*world].insert(change.key, row),
                    None => tables[*world].remove(&change.key),
                };
            }
            for (world, rows) in touched {
                let trace = &mut traces[world];
                let afterwards = trace.crash.as_ref().is_some_and(|crash| *at >= crash.at);
                // Those that a crash has undone leave their numbers to others.
                let same = |played: &Played| {
                    played.xid == Some(*xid) && played.end == End::Commit && played.afterwards == afterwards
                };
                let by = trace.clients.iter().enumerate().find_map(|(client, played)| {
                    let place = played.iter().position(same)?;
                    Some((client, place as u8))
                });
                trace.leftovers |= leftovers(&tables[world]);
                let table = modelled(&tables[world], trace);
                let differ = super::trace::changes(&last[world], &table);
                last[world] = table;
                if !differ.is_empty() {
                    trace.commits.push(Commit { by, at: at.clone(), afterwards, rows, changes: differ });
                }
            }
        }
        for ((id, token), until) in &self.leases {
            let Some(trace) = worlds.get(id).map(|world| &mut traces[*world]) else { continue };
            let number = trace.number_of(*id).unwrap_or(Id::MAX);
            trace.leases.insert((number, trace.modelled_token(*token)), until.clone());
        }
        traces.iter_mut().for_each(Trace::end_lost_leases);
        for subject in &self.postponed {
            match subject {
                Subject::Task(id) => {
                    worlds.get(id).into_iter().for_each(|world| traces[*world].postponed.push(Some(*id)));
                }
                Subject::Group(name) => {
                    numbers.get(name).into_iter().for_each(|world| traces[*world].postponed.push(None));
                }
            }
        }
    }
}

/// Whether a sweep would find something.
fn leftovers(rows: &BTreeMap<Real, RealRow>) -> bool {
    let waits = |id| matches!(rows.get(&Real::Task(id)), Some(RealRow::Task { state: State::Waiting, .. }));
    let gone = |id| !rows.contains_key(&Real::Task(id));
    rows.iter().any(|(key, row)| match (key, row) {
        (Real::Dependency(before, id), RealRow::Dependency(outcome)) => {
            !waits(*id) || outcome.is_none() && gone(*before)
        }
        _ => false,
    })
}

/// The rows as the model has them.
fn modelled(rows: &BTreeMap<Real, RealRow>, trace: &Trace) -> Table {
    let id = |id: i64| -> Id { trace.number_of(id).unwrap_or(Id::MAX) };
    let token = |token: i64| trace.modelled_token(token);
    let rows = rows.iter().map(|(key, row)| {
        let key = match *key {
            Real::Task(task) => Key::Task(id(task)),
            Real::Ended(task) => Key::Ended(id(task)),
            Real::Dependency(before, task) => Key::Dependency(id(before), id(task)),
            Real::Outcome(task) => Key::Outcome(id(task)),
        };
        let row = match *row {
            RealRow::Task { state, admission, token: last } => {
                Row::Task(Task { state, token: token(last), admission })
            }
            RealRow::Ended(outcome, last) => Row::Ended(outcome, token(last)),
            RealRow::Dependency(outcome) => Row::Dependency(outcome),
        };
        (key, row)
    });
    visible(&rows.collect())
}

/// With all digits of the fraction of a second.
pub fn time(text: &str) -> Time {
    let (second, rest) = text.split_at(text.len().min(19));
    let fraction: String = rest.chars().skip(1).take_while(char::is_ascii_digit).collect();
    let fraction = if rest.starts_with('.') { fraction } else { String::new() };
    format!("{second}.{fraction:0<6}")
}

/// The rows that are compared. Events and slots are not among them, only their consequences; nor are outcomes of
/// tasks that left another trace.
pub fn visible(table: &Table) -> Table {
    let kept = |(key, _): &(&Key, &Row)| match key {
        Key::Task(_) | Key::Ended(_) | Key::Dependency(..) => true,
        Key::Outcome(id) => !table.contains_key(&Key::Ended(*id)),
        _ => false,
    };
    table.iter().filter(kept).map(|(key, row)| (*key, *row)).collect()
}

fn outcome(word: &str) -> Option<Outcome> {
    match word {
        "completed" => Some(Outcome::Completed),
        "failed" => Some(Outcome::Failed),
        "cancelled" | "purged" => Some(Outcome::Cancelled),
        _ => None,
    }
}

/// The columns of a row as test_decoding writes them: name[type]:value, and texts in quotes. Nulls are left out.
fn columns(mut rest: &str) -> BTreeMap<String, String> {
    let mut columns = BTreeMap::new();
    // An update of a key has the old one first.
    if let Some((_, new)) = rest.split_once("new-tuple: ") {
        rest = new;
    }
    while let Some((name, after)) = rest.split_once('[') {
        let Some((_, after)) = after.split_once("]:") else { break };
        let (value, left) = if let Some(quoted) = after.strip_prefix('\'') {
            let mut end = 0;
            let bytes = quoted.as_bytes();
            while end < bytes.len() && (bytes[end] != b'\'' || bytes.get(end + 1) == Some(&b'\'')) {
                end += if bytes[end] == b'\'' { 2 } else { 1 };
            }
            (quoted[..end].replace("''", "'"), quoted.get(end + 1..).unwrap_or(""))
        } else {
            let end = after.find(' ').unwrap_or(after.len());
            (after[..end].to_owned(), &after[end..])
        };
        if value != "null" {
            columns.insert(name.trim().to_owned(), value);
        }
        rest = left;
    }
    columns
}
