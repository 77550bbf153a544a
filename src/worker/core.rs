//! The worker's calls of SQL functions, which `sql/` documents.

use crate::clock::now;
use crate::names::{Name, Names};
use crate::shared::{self, NEVER, QueueBits};
use crate::{expiry, heap, lanes, refill, tokens};
use pgrx::datum::{DatumWithOid, TimestampWithTimeZone};
use pgrx::prelude::*;
use pgrx::spi::{SpiClient, SpiTupleTable};
use std::ffi::CStr;

/// Settings of the worker's own session.
const SESSION: &[(&CStr, &CStr)] = &[
    (c"search_path", c"pg_catalog, pg_temp"),
    // In a deadlock with ALTER EXTENSION, the worker's transaction is soon cancelled.
    (c"deadlock_timeout", c"100ms"),
    (c"statement_timeout", c"0"),
    // A locked row or table is left for a later round, so that it does not delay other queues.
    (c"lock_timeout", c"200ms"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    (c"transaction_timeout", c"0"),
    // With another value, the triggers that count would not fire.
    (c"session_replication_role", c"origin"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"jit", c"off"),
];

/// How many priorities of a queue one refill reads.
const PRIORITIES: usize = 1000;

/// Makes the worker's session independent of the settings of the server and the database.
pub fn prepare_session() {
    for (name, value) in SESSION {
        // SAFETY: static zero-terminated strings; a superuser may set all of these.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}

/// Logs a WARNING if the version of the library and that of the extension in this database differ, because a later
/// failure may have that cause.
pub fn compare_versions() {
    const LIBRARY: &str = env!("CARGO_PKG_VERSION");
    let query =
        "SELECT extversion FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'queue_ext'";
    let version: String = read(query, &[], |row| Ok(row.get(1)?.unwrap_or_default()));
    if version != LIBRARY {
        ereport!(
            PgLogLevel::WARNING,
            PgSqlErrorCode::ERRCODE_WARNING,
            format!(
                "this database has version {version} of queue_ext, and the library is of version {LIBRARY}"
            ),
            "If the extension is older: ALTER EXTENSION queue_ext UPDATE. \
             If the library is older: restart the server."
        );
    }
}

/// Raises the token mark. The result is valid once the transaction has committed.
pub fn raise_tokens() -> Option<tokens::Raised> {
    let raised = tokens::raised()?;
    // Waits for this server's disk but for no standby: after a promotion, the new timeline raises tokens
    // (src/tokens.rs).
    let query = "WITH before AS (DELETE FROM queue_internal.token_mark)
                 INSERT INTO queue_internal.token_mark (reached, timeline) VALUES ($1, $2)
                 RETURNING set_config('synchronous_commit', 'local', true)";
    write(query, &[raised.reached().into(), raised.timeline.into()], |_| Ok(()));
    Some(raised)
}

/// The result of scanning a piece of queue.tasks for expired leases.
pub struct Reaped {
    pub reaped: u64,
    pub next_expiry: i64,
    /// For how many microseconds it read.
    pub reading: i64,
    /// The id after which to continue; none at the end of the table.
    pub last: Option<i64>,
}

/// Requeues up to `max_tasks` tasks whose lease has expired, among the first `max_rows` after an id.
pub fn reap(max_tasks: i32, after: i64, max_rows: i32) -> Reaped {
    let query = "SELECT reaped, next_expiry, (extract(epoch FROM reading) * 1000000)::bigint, last
                 FROM queue_internal.reap($1, $2, $3)";
    write(query, &[max_tasks.into(), after.into(), max_rows.into()], |row| {
        let reaped: Option<i64> = row.get(1)?;
        let next: Option<TimestampWithTimeZone> = row.get(2)?;
        let reading: Option<i64> = row.get(3)?;
        Ok(Reaped {
            reaped: reaped.unwrap_or(0).unsigned_abs(),
            next_expiry: next.map_or(NEVER, i64::from),
            reading: reading.unwrap_or(0).max(0),
            last: row.get(4)?,
        })
    })
}

/// The result of reading a piece of the start deadlines.
pub struct Expired {
    /// The entry after which to continue; none if all deadlines up to `until` were read.
    pub last: Option<(i64, i64)>,
    pub until: i64,
    /// The next deadline after that.
    pub next: i64,
    /// How many tasks were ended, and whether some could not be.
    pub expired: i64,
    pub skipped: bool,
}

/// Ends up to `max_tasks` tasks whose start deadline has passed, among the `max_entries` index entries after an entry.
pub fn expire_unstarted(max_tasks: i32, after: (i64, i64), max_entries: i32) -> Expired {
    let query = "SELECT last, last_id, until, next_start_by, expired, skipped FROM queue_internal.expire_unstarted($1, $2, $3, $4)";
    let arguments = [max_tasks.into(), timestamp(after.0), after.1.into(), max_entries.into()];
    write(query, &arguments, |row| {
        let time = |time: Option<TimestampWithTimeZone>| time.map(i64::from);
        let last = time(row.get(1)?);
        Ok(Expired {
            last: last.zip(row.get(2)?),
            until: time(row.get(3)?).unwrap_or(i64::MIN),
            next: time(row.get(4)?).unwrap_or(NEVER),
            expired: row.get(5)?.unwrap_or(0),
            skipped: row.get(6)?.unwrap_or(false),
        })
    })
}

/// Ends the attempts of those of the tasks whose lease has expired; returns how many.
pub fn expire(lane: u64, ids: &[i64]) -> u64 {
    expiry::end(lane, ids).unwrap_or_else(|error| error!("expired leases could not be ended: {error}"))
}

/// Refills the lane of a queue from the table.
pub fn reread(queue: &lanes::Queue<'_>) {
    // SAFETY: plain reads of constants of the process.
    let (me, database) = unsafe { (pg_sys::MyProcPid, pg_sys::MyDatabaseId) };
    let Ok(tables) = heap::open(heap::Use::Claim) else {
        // Sessions claim by SQL meanwhile, and the expired leases are found by reap.
        let unknown = lanes::with(queue.hash(), |slot| slot.lane.skip_reading(now()));
        shared::leases_until(database, unknown.unwrap_or(NEVER));
        return;
    };
    if let Some(plan) = lanes::with(queue.hash(), |slot| slot.lane.reread(now(), me)).flatten() {
        // SAFETY: in a transaction of the worker's own.
        unsafe { refill::run_bounded(&tables, queue, plan, PRIORITIES) }
    }
}

/// What a call of the schedules pushed, and what is left.
pub struct Fired {
    /// When the next schedule is due.
    pub next: i64,
    /// The queue at which it stopped before each schedule had its turn.
    pub last: Option<Vec<u8>>,
    /// When all schedules have to be read, because due ones are left.
    pub retry: i64,
    /// The time up to which no other schedules are left; none if some of those on time are.
    pub until: Option<i64>,
}

/// Pushes about `max_tasks` tasks of due schedules, first those of the queues after `after`: of all schedules, or of those
/// that became due after `since`.
pub fn fire_schedules(max_tasks: i32, after: &[u8], since: Option<i64>) -> Fired {
    let query = "SELECT next_run_at, last, retry_at, until
                 FROM queue_internal.fire_schedules($1, '1 minute', $2, $3)";
    let since = since.map_or_else(DatumWithOid::null::<TimestampWithTimeZone>, timestamp);
    write(query, &[max_tasks.into(), Name(after.to_vec()).into(), since], |row| {
        let time = |time: Option<TimestampWithTimeZone>| time.map(i64::from);
        let last: Option<Name> = row.get(2)?;
        Ok(Fired {
            next: time(row.get(1)?).unwrap_or(NEVER),
            last: last.map(|last| last.0),
            retry: time(row.get(3)?).unwrap_or(NEVER),
            until: time(row.get(4)?),
        })
    })
}

/// The queues in which a task became due after `since` and up to `until`, and the next run_at.
pub fn due_queues(since: i64, until: i64) -> (Vec<Vec<u8>>, i64) {
    let query = "SELECT ready, next_run_at FROM queue_internal.due_queues($1, $2)";
    read(query, &[timestamp(since), timestamp(until)], |row| {
        let ready: Option<Names> = row.get(1)?;
        let next: Option<TimestampWithTimeZone> = row.get(2)?;
        Ok((ready.map_or_else(Vec::new, |ready| ready.0), next.map_or(NEVER, i64::from)))
    })
}

/// The queues among `bits` that are not paused.
pub fn open_queues(bits: &QueueBits) -> Vec<Vec<u8>> {
    if *bits == [0; 4] {
        return Vec::new();
    }
    let query = "SELECT pg_catalog.array_agg(name) FROM queue.queues WHERE paused_at IS NULL";
    let names: Option<Names> = read(query, &[], |row| row.get(1));
    let mut names = names.map_or_else(Vec::new, |names| names.0);
    names.retain(|name| shared::contains(bits, name));
    names
}

/// Creates the partitions of the coming days; returns whether all of them exist, none before the first task.
pub fn extend_history() -> Option<bool> {
    write("SELECT queue_internal.extend_history()", &[], |row| row.get(1))
}

/// Drops history past its retention; returns whether there may be more.
pub fn retire_history(max_tasks: i32) -> bool {
    let query = "SELECT queue_internal.retire_history($1)";
    write(query, &[max_tasks.into()], |row| Ok(row.get(1)?.unwrap_or(false)))
}

/// Deletes dead letters past their retention; returns whether there may be more.
pub fn retire_dead_letters(max_tasks: i32) -> bool {
    let query = "SELECT queue_internal.retire_dead_letters($1)";
    write(query, &[max_tasks.into()], |row| Ok(row.get(1)?.unwrap_or(false)))
}

/// Deletes expired keys; returns whether there may be more.
pub fn retire_keys(max_keys: i32) -> bool {
    let query = "SELECT queue_internal.retire_keys($1)";
    write(query, &[max_keys.into()], |row| Ok(row.get(1)?.unwrap_or(false)))
}

/// Deletes starts of groups that no longer count; returns whether there may be more.
pub fn retire_group_starts(max_starts: i32) -> bool {
    let query = "SELECT queue_internal.retire_group_starts($1)";
    write(query, &[max_starts.into()], |row| Ok(row.get(1)?.unwrap_or(false)))
}

/// Processes about `max_events` events; returns how many it checked.
pub fn process_events(max_events: i32) -> i64 {
    let query = "SELECT queue_internal.process_all_events($1)";
    write(query, &[max_events.into()], |row| Ok(row.get(1)?.unwrap_or(0)))
}

/// The result of a piece of the sweep for lost events.
pub struct Swept {
    /// Where to continue, in the encoding of the database; none if everything has been checked.
    pub position: Option<Vec<u8>>,
    /// Whether this turn has checked a piece of each table.
    pub turn_is_over: bool,
}

/// Creates the missing events for a piece of the tables, starting at a position.
pub fn sweep(position: Option<&[u8]>, max_rows: i32) -> Swept {
    let query = "SELECT CASE WHEN NOT s IS NULL THEN s::text END, s.queue IS NULL
                 FROM queue_internal.sweep($1::queue_internal.sweep_position, $2, true) AS s";
    let position = position.map(|position| Name(position.to_vec()));
    write(query, &[position.into(), max_rows.into()], |row| {
        let position: Option<Name> = row.get(1)?;
        Ok(Swept { position: position.map(|position| position.0), turn_is_over: row.get(2)?.unwrap_or(true) })
    })
}

/// A handler that is attached, and can run.
#[derive(Clone, PartialEq, Eq)]
pub struct Attached {
    pub queue: Vec<u8>,
    pub function: pg_sys::Oid,
    pub role: pg_sys::Oid,
}

/// The handlers to run, each with the number of its processes. As the owner of the tables.
pub fn runnable_handlers() -> Vec<(Attached, usize)> {
    let query = "SELECT queue, handler, role, workers FROM queue_internal.runnable_handlers()";
    let result = Spi::connect(|client: &SpiClient<'_>| {
        let mut found = Vec::new();
        for row in client.select(query, None, &[])? {
            let (queue, function, role): (Option<Name>, Option<pg_sys::Oid>, Option<pg_sys::Oid>) =
                (row.get(1)?, row.get(2)?, row.get(3)?);
            let workers: Option<i32> = row.get(4)?;
            if let (Some(queue), Some(function), Some(role)) = (queue, function, role)
                && owner_may_become(role)
            {
                let workers = usize::try_from(workers.unwrap_or(0)).unwrap_or(0);
                found.push((Attached { queue: queue.0, function, role }, workers));
            }
        }
        Ok::<_, pgrx::spi::SpiError>(found)
    });
    result.unwrap_or_else(|error| error!("the worker's query failed: {error}"))
}

/// Whether the current user, the owner of the tables, may SET ROLE to this one. Otherwise a row of queue.handlers would
/// give it the rights of any role. queue.attach checks the same, but the owner can change that function.
fn owner_may_become(role: pg_sys::Oid) -> bool {
    // SAFETY: catalog lookups in a transaction.
    unsafe {
        let owner = pg_sys::GetUserId();
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        return pg_sys::is_member_of_role(owner, role);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        return pg_sys::member_can_set_role(owner, role);
    }
}

/// Whether a claim from a queue would find a task, of which another transaction may have the row locked.
pub fn first_ready(queue: &[u8]) -> bool {
    let query = "SELECT queue_internal.first_ready(ARRAY[$1])";
    let first: Option<i64> = read(query, &[Name(queue.to_vec()).into()], |row| row.get(1));
    first.is_some()
}

/// Whether the task runs with this token, according to this transaction.
pub fn is_leased(id: i64, token: i64) -> bool {
    let query = "SELECT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id OPERATOR(pg_catalog.=) $1
                 AND t.token OPERATOR(pg_catalog.=) $2 AND t.state OPERATOR(pg_catalog.=) 'running')";
    read(query, &[id.into(), token.into()], |row| Ok(row.get(1)?.unwrap_or(false)))
}

/// Notifies the listeners of `queues` when the transaction commits.
pub fn notify(queues: Vec<Vec<u8>>) {
    let query = "SELECT pg_catalog.count(pg_catalog.pg_notify(queue.channel(name), ''))
                 FROM pg_catalog.unnest($1) AS name";
    write(query, &[Names(queues).into()], |_| Ok(()));
}

fn timestamp<'a>(time: i64) -> DatumWithOid<'a> {
    // i64::MIN and i64::MAX are -infinity and infinity.
    // SAFETY: a timestamptz is its microseconds, by value.
    unsafe { DatumWithOid::new(time, pg_sys::TIMESTAMPTZOID) }
}

/// Reads one row without taking a transaction id.
fn read<R>(
    query: &str,
    arguments: &[DatumWithOid<'_>],
    row: impl FnOnce(SpiTupleTable<'_>) -> pgrx::spi::Result<R>,
) -> R {
    let result =
        Spi::connect(|client: &SpiClient<'_>| row(client.select(query, Some(1), arguments)?.first()));
    result.unwrap_or_else(|error| error!("the worker's query failed: {error}"))
}

/// Runs a query that writes and returns one row.
fn write<R>(
    query: &str,
    arguments: &[DatumWithOid<'_>],
    row: impl FnOnce(SpiTupleTable<'_>) -> pgrx::spi::Result<R>,
) -> R {
    let result = Spi::connect_mut(|client| row(client.update(query, Some(1), arguments)?.first()));
    result.unwrap_or_else(|error| error!("the worker's query failed: {error}"))
}
