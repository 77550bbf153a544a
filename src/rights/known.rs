//! The rights of roles, which a session caches until an invalidation arrives.

use super::Kinds;
use crate::datum::text_of;
use crate::invalidation::Listener;
use pgrx::prelude::*;
use std::cell::UnsafeCell;
use std::collections::HashMap;

/// How many roles are cached, and how often rights are read again if they change meanwhile.
const MOST_KNOWN: usize = 64;
const MOST_READINGS: usize = 10;

/// The rights of a role that does not own the extension.
pub struct Known {
    role: pg_sys::Oid,
    /// An invalidation arrived while they were read.
    outdated: bool,
    pub everywhere: Kinds,
    pub queues: HashMap<Vec<u8>, Kinds>,
}

struct State {
    /// The cached rights.
    known: Vec<Known>,
    /// The OID of queue.rights, once it is known.
    table: pg_sys::Oid,
    /// The number of invalidations.
    changes: u64,
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State { known: Vec::new(), table: pg_sys::InvalidOid, changes: 0 })
    };
}

fn state() -> *mut State {
    STATE.with(UnsafeCell::get)
}

static CHANGES: Listener = Listener::new(relation_changed, forget);

/// The rights of a role, read again if they may have changed.
pub unsafe fn known<'a>(role: pg_sys::Oid) -> &'a Known {
    CHANGES.register();
    // SAFETY: one thread. The reference is used before anything is called that could read the rights again.
    unsafe {
        pg_sys::AcceptInvalidationMessages();
        let state = state();
        let mut rounds = 0;
        loop {
            if let Some(known) = (*state).known.iter().find(|known| known.role == role && !known.outdated) {
                return known;
            }
            let changes = (*state).changes;
            let mut read = read(role);
            // Reading takes locks, which process invalidations. If they do not end, the last result is used once and
            // not cached.
            read.outdated = changes != (*state).changes;
            rounds += 1;
            let known = &mut (*state).known;
            known.retain(|known| known.role != role);
            if known.len() == MOST_KNOWN {
                known.clear();
            }
            known.push(read);
            if rounds == MOST_READINGS {
                return &known[known.len() - 1];
            }
            check_for_interrupts!();
        }
    }
}

/// Reads queue.rights with a current snapshot, so that a revoke applies to older transactions too.
unsafe fn read(role: pg_sys::Oid) -> Known {
    let mut known = Known { role, outdated: false, everywhere: Kinds::default(), queues: HashMap::new() };
    // SAFETY: the table has the columns role, kind and queue, as tables.sql declares it; a role's OID is not toasted.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"queue".as_ptr(), false);
        let table = pg_sys::get_relname_relid(c"rights".as_ptr(), schema);
        if table == pg_sys::InvalidOid {
            return known;
        }
        (*state()).table = table;
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        // Without a snapshot, systable_beginscan takes a catalog snapshot, which is current; GetLatestSnapshot cannot
        // be called in parallel mode.
        let (snapshot, keys) = (std::ptr::null_mut(), std::ptr::null_mut());
        let scan = pg_sys::systable_beginscan(relation, pg_sys::InvalidOid, false, snapshot, 0, keys);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0); 3], [true; 3]);
            if (*(*relation).rd_att).natts != 3 {
                break;
            }
            pg_sys::heap_deform_tuple(tuple, (*relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            let granted = pg_sys::Oid::from(values[0].value() as u32);
            let Some(kind) = Kinds::named(text_of(values[1])) else { continue };
            if !pg_sys::has_privs_of_role(role, granted) {
                continue;
            }
            let kinds = if nulls[2] {
                &mut known.everywhere
            } else {
                known.queues.entry(text_of(values[2]).to_vec()).or_default()
            };
            kinds.add(kind);
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
    }
    known
}

fn relation_changed(relation: pg_sys::Oid) {
    // SAFETY: one thread.
    if relation == pg_sys::InvalidOid || relation == unsafe { (*state()).table } {
        forget();
    }
}

/// Drops the cached rights of all roles.
pub fn forget() {
    // SAFETY: one thread. A reference that `known` gave is not in use while the server calls back.
    let state = unsafe { &mut *state() };
    state.known.clear();
    state.changes += 1;
}
