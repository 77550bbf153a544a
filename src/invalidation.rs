//! The server's invalidation messages, for what a session caches of relations and roles.

use pgrx::prelude::*;
use std::sync::Once;

/// What a module does when a message arrives. That can be while the server takes a lock or reads a catalog, so it calls
/// nothing of the server and raises nothing.
pub struct Listener {
    registered: Once,
    relation_changed: fn(pg_sys::Oid),
    roles_changed: fn(),
}

impl Listener {
    /// `relation_changed` gets the OID of the relation; an invalid one means all relations. `roles_changed` is called
    /// for changes of roles and memberships.
    pub const fn new(relation_changed: fn(pg_sys::Oid), roles_changed: fn()) -> Self {
        Self { registered: Once::new(), relation_changed, roles_changed }
    }

    /// Listens from the first call on.
    pub fn register(&'static self) {
        self.registered.call_once(|| {
            let argument = pg_sys::Datum::from(std::ptr::from_ref(self).cast_mut());
            // SAFETY: the callbacks and the listener live as long as the process, since the library is never unloaded.
            unsafe {
                pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), argument);
                use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID};
                // The owner of the database is an implicit member of pg_database_owner.
                for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID] {
                    pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(roles_changed), argument);
                }
            }
        });
    }
}

unsafe extern "C-unwind" fn relation_changed(listener: pg_sys::Datum, relation: pg_sys::Oid) {
    // SAFETY: the argument that `register` passed.
    let listener = unsafe { &*listener.cast_mut_ptr::<Listener>() };
    (listener.relation_changed)(relation);
}

unsafe extern "C-unwind" fn roles_changed(listener: pg_sys::Datum, _cache: i32, _hash: u32) {
    // SAFETY: the argument that `register` passed.
    let listener = unsafe { &*listener.cast_mut_ptr::<Listener>() };
    (listener.roles_changed)();
}
