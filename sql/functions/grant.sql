-- The six functions that grant and revoke rights. They create no role: roles belong to the whole server.
--
--   Touches:  queue.rights; a trigger makes the privileges on the extension's tables and functions follow it
--   Locks:    the objects whose privileges change, for an instant; waits at most 5 s for them

CREATE FUNCTION queue.grant_producer(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.grant_right('producer', role, queue);
COMMENT ON FUNCTION queue.grant_producer IS
'Grants a role the right to push tasks, to one queue or to all. Only the owner of the extension can call it. A role can
have several rights.

- role: name of the role.
- queue: name of the queue. Null (default) means all queues, also future ones.

Errors: 42501: the caller is not the owner of the extension. 42704: the role does not exist. QX002: the queue does not
exist. 55P03: the objects were locked for more than 5 seconds. 22004, 22023 or 54000: an argument is null, invalid or
too large.';

CREATE FUNCTION queue.grant_worker(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.grant_right('worker', role, queue);
COMMENT ON FUNCTION queue.grant_worker IS
'Grants a role the right to claim and finish tasks, of one queue or of all. Only the owner of the extension can call
it. A role can have several rights.

- role: name of the role.
- queue: name of the queue. Null (default) means all queues, also future ones.

Errors: 42501: the caller is not the owner of the extension. 42704: the role does not exist. QX002: the queue does not
exist. 55P03: the objects were locked for more than 5 seconds. 22004, 22023 or 54000: an argument is null, invalid or
too large.';

CREATE FUNCTION queue.grant_operator(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.grant_right('operator', role, queue);
COMMENT ON FUNCTION queue.grant_operator IS
'Grants a role the right to see and manage tasks, schedules and the options of one queue or of all, and also to push,
claim and finish tasks there. Only the owner of
the extension can call it. A role can have several rights.

- role: name of the role.
- queue: name of the queue. Null (default) means all queues, also future ones.

Errors: 42501: the caller is not the owner of the extension. 42704: the role does not exist. QX002: the queue does not
exist. 55P03: the objects were locked for more than 5 seconds. 22004, 22023 or 54000: an argument is null, invalid or
too large.';

CREATE FUNCTION queue.revoke_producer(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.revoke_right('producer', role, queue);
COMMENT ON FUNCTION queue.revoke_producer IS
'Revokes what queue.grant_producer granted, with the same arguments. A NOTICE says if the role had no such right, or
still has the right on all queues. Only the owner of the extension can call it.

- role: name of the role.
- queue: name of the queue, which may have been dropped. Null (default) means all queues, also future ones.

Errors: 42501: the caller is not the owner of the extension. 42704: the role does not exist. 55P03: the objects were
locked for more than 5 seconds. 25000: the isolation level is not READ COMMITTED. 22004, 22023 or 54000: an argument is
null, invalid or too large.';

CREATE FUNCTION queue.revoke_worker(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.revoke_right('worker', role, queue);
COMMENT ON FUNCTION queue.revoke_worker IS
'Revokes what queue.grant_worker granted, with the same arguments. A NOTICE says if the role had no such right, or
still has the right on all queues. Only the owner of the extension can call it.

- role: name of the role.
- queue: name of the queue, which may have been dropped. Null (default) means all queues, also future ones.

Errors: 42501: the caller is not the owner of the extension. 42704: the role does not exist. 55P03: the objects were
locked for more than 5 seconds. 25000: the isolation level is not READ COMMITTED. 22004, 22023 or 54000: an argument is
null, invalid or too large.';

CREATE FUNCTION queue.revoke_operator(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.revoke_right('operator', role, queue);
COMMENT ON FUNCTION queue.revoke_operator IS
'Revokes what queue.grant_operator granted, with the same arguments. A NOTICE says if the role had no such right, or
still has the right on all queues. Only the owner of the extension can call it.

- role: name of the role.
- queue: name of the queue, which may have been dropped. Null (default) means all queues, also future ones.

Errors: 42501: the caller is not the owner of the extension. 42704: the role does not exist. 55P03: the objects were
locked for more than 5 seconds. 25000: the isolation level is not READ COMMITTED. 22004, 22023 or 54000: an argument is
null, invalid or too large.';
