//! The public functions that the process calls as its role, in SQL.

use super::failure::Failure;
use crate::clock::now;
use crate::names::Name;
use crate::transaction;
use crate::worker;
use pgrx::datum::{DatumWithOid, JsonB, TimestampWithTimeZone};
use pgrx::prelude::*;
use pgrx::spi::{OwnedPreparedStatement, SpiClient, SpiTupleTable};

/// The call is cancelled this long before the end of the lease, or a tenth of the lease if that is shorter. In the
/// remaining time the process reports the failure, before other sessions may end the lease.
const LONGEST_MARGIN: i64 = 1_000_000;

/// A task that the process has claimed.
pub struct Task {
    pub id: i64,
    token: i64,
    lease_until: i64,
    claimed_at: i64,
    /// The queue.claimed_task, in memory of its own.
    row: pg_sys::Datum,
}

impl Drop for Task {
    fn drop(&mut self) {
        // SAFETY: `Task::of` has copied it there.
        unsafe { pg_sys::pfree(self.row.cast_mut_ptr()) };
    }
}

impl Task {
    /// The first row of a claim; none if there is no row.
    fn of(rows: SpiTupleTable<'_>) -> pgrx::spi::Result<Option<Self>> {
        let rows = rows.first();
        if rows.is_empty() {
            return Ok(None);
        }
        let (Some(row), Some(id), Some(token)) = (rows.get_datum_by_ordinal(1)?, rows.get(2)?, rows.get(3)?)
        else {
            return Ok(None);
        };
        let lease_until: Option<TimestampWithTimeZone> = rows.get(4)?;
        // SAFETY: the row is a composite value. It outlives the transaction of the claim.
        let row = unsafe {
            let row = row.cast_mut_ptr::<pg_sys::varlena>();
            let size = pgrx::varlena::varsize_any(row);
            let copy = pg_sys::MemoryContextAlloc(pg_sys::TopMemoryContext, size);
            std::ptr::copy_nonoverlapping(row.cast::<u8>(), copy.cast::<u8>(), size);
            pg_sys::Datum::from(copy)
        };
        let claimed_at = now();
        let lease_until = lease_until.map_or(claimed_at, i64::from);
        Ok(Some(Self { id, token, lease_until, claimed_at, row }))
    }

    pub fn datum(&self) -> pg_sys::Datum {
        self.row
    }

    /// When the handler is cancelled.
    pub fn deadline(&self) -> i64 {
        let lease = self.lease_until - self.claimed_at;
        self.lease_until - (lease / 10).clamp(0, LONGEST_MARGIN)
    }

    /// When the process exits, if the handler still runs.
    pub fn lease_until(&self) -> i64 {
        self.lease_until
    }

    /// Whether the handler has completed, failed, released or suspended the task itself. If this transaction has
    /// changed the row of the task, no other one can have ended its lease since.
    pub fn was_ended_by_this_transaction(&self) -> bool {
        transaction::has_changed_watched() && !worker::as_owner(|| worker::is_leased(self.id, self.token))
    }
}

/// The statements, which are prepared when they are first used.
pub struct Verbs {
    queue: Vec<u8>,
    worker: String,
    claim: Statement,
    complete: Statement,
    complete_and_claim: Statement,
    fail: Statement,
    release: Statement,
}

impl Verbs {
    pub fn new(queue: &[u8]) -> Self {
        use pg_sys::{INT8OID, JSONBOID, TEXTOID};
        // SAFETY: a plain read of a constant of the process.
        let pid = unsafe { pg_sys::MyProcPid };
        Self {
            queue: queue.to_vec(),
            worker: format!("handler {pid}"),
            claim: Statement::new(
                "SELECT t, t.id, t.token, t.lease_until FROM queue.claim(queue => $1, worker => $2) AS t",
                &[TEXTOID, TEXTOID],
            ),
            complete: Statement::new("SELECT queue.complete($1, $2, $3)", &[INT8OID, INT8OID, JSONBOID]),
            complete_and_claim: Statement::new(
                "SELECT t, t.id, t.token, t.lease_until
                 FROM queue.complete_and_claim($1, $2, $3, queue => $4, worker => $5) AS t",
                &[INT8OID, INT8OID, JSONBOID, TEXTOID, TEXTOID],
            ),
            fail: Statement::new(
                "SELECT queue.fail($1, $2, $3, details => pg_catalog.jsonb_build_object('sqlstate', $4))",
                &[INT8OID, INT8OID, TEXTOID, TEXTOID],
            ),
            release: Statement::new("SELECT queue.release($1, $2)", &[INT8OID, INT8OID]),
        }
    }

    /// The name under which it claims.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    pub fn claim(&mut self) -> Option<Task> {
        let arguments = [Name(self.queue.clone()).into(), self.worker.as_str().into()];
        self.claim.run(&arguments, Task::of)
    }

    pub fn complete(&mut self, task: &Task, result: Option<pg_sys::Datum>) {
        self.complete.run(&[task.id.into(), task.token.into(), json(result)], |_| Ok(()));
    }

    pub fn complete_and_claim(&mut self, task: &Task, result: Option<pg_sys::Datum>) -> Option<Task> {
        let queue = Name(self.queue.clone()).into();
        let arguments = [task.id.into(), task.token.into(), json(result), queue, self.worker.as_str().into()];
        self.complete_and_claim.run(&arguments, Task::of)
    }

    pub fn fail(&mut self, task: &Task, failure: &Failure) {
        let error = Name(failure.text()).into();
        let arguments = [task.id.into(), task.token.into(), error, failure.sqlstate.as_str().into()];
        self.fail.run(&arguments, |_| Ok(()));
    }

    pub fn release(&mut self, task: &Task) {
        self.release.run(&[task.id.into(), task.token.into()], |_| Ok(()));
    }
}

fn json<'a>(value: Option<pg_sys::Datum>) -> DatumWithOid<'a> {
    match value {
        // SAFETY: the handler returns jsonb; the value lives until the end of the transaction.
        Some(value) => unsafe { DatumWithOid::new(value, pg_sys::JSONBOID) },
        None => DatumWithOid::null::<JsonB>(),
    }
}

/// A statement that is prepared once.
struct Statement {
    query: &'static str,
    types: Vec<PgOid>,
    prepared: Option<OwnedPreparedStatement>,
}

impl Statement {
    fn new(query: &'static str, types: &[pg_sys::Oid]) -> Self {
        Self { query, types: types.iter().map(|oid| PgOid::from(*oid)).collect(), prepared: None }
    }

    fn run<R>(
        &mut self,
        arguments: &[DatumWithOid<'_>],
        rows: impl FnOnce(SpiTupleTable<'_>) -> pgrx::spi::Result<R>,
    ) -> R {
        let result = Spi::connect_mut(|client: &mut SpiClient<'_>| {
            let prepared = match self.prepared.take() {
                Some(prepared) => prepared,
                None => client.prepare_mut(self.query, &self.types)?.keep(),
            };
            let prepared = self.prepared.insert(prepared);
            rows(client.update(&*prepared, None, arguments)?)
        });
        result.unwrap_or_else(|error| error!("a query of the handler's process failed: {error}"))
    }
}
