-- queue.grant_producer(role, queue), queue.grant_worker, queue.grant_operator
-- queue.revoke_producer(role, queue), queue.revoke_worker, queue.revoke_operator
--
--   Give a role what it needs to push; to claim and finish; to see and manage everything. With a
--   queue the right is for that queue alone, enforced by row-level security; without one it is
--   for all queues, those to come included. A role may have several of these rights.
--   API:      public; the extension owner's
--   Errors:   42704 no such role; QX002 no such queue; 22004, 22023, 54000 for the arguments;
--             55P03 the tables are busy
--   Touches:  the privileges and policies of the extension's tables and functions
--   Locks:    queue.tasks and the other tables for an instant, waiting at most 5 s for them
--   Creates no role: roles belong to the whole server.

CREATE FUNCTION queue.grant_producer(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.grant_right('producer', role, queue);
COMMENT ON FUNCTION queue.grant_producer(name, text) IS 'Lets a role push, to one queue or to all.';

CREATE FUNCTION queue.grant_worker(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.grant_right('worker', role, queue);
COMMENT ON FUNCTION queue.grant_worker(name, text) IS
    'Lets a role claim and finish tasks, of one queue or of all.';

CREATE FUNCTION queue.grant_operator(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.grant_right('operator', role, queue);
COMMENT ON FUNCTION queue.grant_operator(name, text) IS
    'Lets a role see and manage one queue or all.';

CREATE FUNCTION queue.revoke_producer(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.revoke_right('producer', role, queue);
COMMENT ON FUNCTION queue.revoke_producer(name, text) IS 'Takes back what queue.grant_producer() gave.';

CREATE FUNCTION queue.revoke_worker(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.revoke_right('worker', role, queue);
COMMENT ON FUNCTION queue.revoke_worker(name, text) IS 'Takes back what queue.grant_worker() gave.';

CREATE FUNCTION queue.revoke_operator(role name, queue text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN queue_internal.revoke_right('operator', role, queue);
COMMENT ON FUNCTION queue.revoke_operator(name, text) IS 'Takes back what queue.grant_operator() gave.';
