-- All other names without a schema in this script are those of the server. CREATE EXTENSION sets this too.

SET LOCAL search_path = pg_catalog, pg_temp;

-- Without IF NOT EXISTS, so that it fails if another role has created a schema of that name.

CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'The job queue: its public tables, views and functions.';

CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'Internal objects of queue_ext. Do not call them or rely on them.';
-- The tables:
--
--   queue.queues        one row per queue, with its options
--   queue.tasks         the tasks that are not finished: waiting, queued, running
--   queue.history       the tasks that completed or were cancelled, one partition per day
--   queue.dead_letters  the tasks that failed for good
--   queue.schedules     the schedules
--   queue.bindings      which topics each queue is bound to
--   queue.handlers      which function handles the tasks of a queue in the database
--   queue.rights        the rights of roles
--
-- and in queue_internal the state of the policies of queues; a queue without them has no rows there:
--
--   keys                which task has a key
--   dependencies        which task waits for which predecessors
--   batches             which tasks are callbacks of batches
--   outcomes            how tasks ended of which not all dependents were notified at that time
--   events              hints: which waiting tasks and which groups to check
--   locks               rows to lock
--   slots               which tasks occupy the slots of a queue with max_running
--   rate_buckets        the rate buckets of a queue with a rate limit
--   group_starts        which tasks of groups started, in a queue with a rate limit per group
--   token_mark          how far fencing tokens have been handed out
--   steps               what tasks stored, and what they waited for and got
--   awaits              what suspended tasks wait for
--   emitted             the events that were emitted, and those that tasks wait for
--
-- There are no foreign keys between them: they would lock the queue's row at every push.
--
-- Names and keys are COLLATE "C", and so is everything that is compared with them: an upgrade of the system's locales,
-- which may change the order of texts, must not corrupt the unique index on keys.

CREATE TABLE queue.queues (
    name                  text COLLATE "C" NOT NULL PRIMARY KEY,
    lease                 interval    NOT NULL DEFAULT '1 minute',
    timeout               interval,
    ttl                   interval,
    on_expired            text        NOT NULL DEFAULT 'dead',
    max_queued            integer,
    max_attempts          integer     NOT NULL DEFAULT 20,
    backoff_kind          text        NOT NULL DEFAULT 'exponential',
    backoff_base          interval    NOT NULL DEFAULT '1 second',
    backoff_max           interval    NOT NULL DEFAULT '1 hour',
    backoff_jitter        float8      NOT NULL DEFAULT 0.1,
    paused_at             timestamptz,
    max_running           integer,
    max_running_per_group integer     NOT NULL DEFAULT 1,
    rate_limit            integer,
    group_rate_limit      integer,
    rate_period           interval,
    delayed_head          text        NOT NULL DEFAULT 'block',
    fair_groups           boolean     NOT NULL DEFAULT false,
    ageing                interval,
    key_ttl               interval,
    on_predecessor_failure text       NOT NULL DEFAULT 'cancel',
    keep_history          boolean     NOT NULL DEFAULT true,
    keep_payloads         boolean     NOT NULL DEFAULT true,
    durable_leases        text,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT queues_name_check CHECK (octet_length(name) BETWEEN 1 AND 128),
    CONSTRAINT queues_lease_check CHECK (extract(epoch FROM lease) > 0),
    CONSTRAINT queues_timeout_check CHECK (extract(epoch FROM timeout) > 0),
    CONSTRAINT queues_deadlines_check CHECK (extract(epoch FROM ttl) > 0 AND on_expired IN ('dead', 'cancel')),
    CONSTRAINT queues_max_queued_check CHECK (max_queued > 0),
    CONSTRAINT queues_max_attempts_check CHECK (max_attempts > 0),
    CONSTRAINT queues_backoff_check CHECK (
        backoff_kind IN ('fixed', 'linear', 'exponential')
        AND backoff_base >= '0' AND backoff_max >= '0' AND backoff_jitter BETWEEN 0 AND 1),
    CONSTRAINT queues_limits_check CHECK (
        max_running > 0 AND max_running_per_group > 0 AND rate_limit > 0 AND group_rate_limit > 0 AND rate_period > '0'
        AND (coalesce(rate_limit, group_rate_limit) IS NULL) = (rate_period IS NULL)),
    CONSTRAINT queues_policies_check CHECK (
        delayed_head IN ('block', 'pass') AND ageing > '0' AND key_ttl > '0'
        AND on_predecessor_failure IN ('fail', 'cancel', 'continue')
        AND durable_leases IN ('auto', 'on', 'off'))
);

-- "state" is queued until a claim makes it running. A queued task whose run_at is in the future is called scheduled.
--
-- A claim changes state, attempt, token, lease_until, worker, claimed_at and updated_at. None of them is in an index
-- or in an index predicate, so a claim is a HOT update. They come before the columns that it does not change, so that
-- the WAL record of a claim does not repeat the payload.
--
-- "admission" says whether claims may take the task. Only policies change it:
--   0  open: a task without a group, or one of a group that a claim has to check
--   1  admitted: one of the tasks of its group that may run now
--   2  blocked: it waits for predecessors or for its turn in its group, and is not in tasks_order
CREATE SEQUENCE queue.tasks_id_seq AS bigint;

CREATE TABLE queue.tasks (
    id                  bigint      NOT NULL DEFAULT nextval('queue.tasks_id_seq'),
    queue               text COLLATE "C" NOT NULL,
    state               text        NOT NULL DEFAULT 'queued',
    priority            integer     NOT NULL DEFAULT 0,
    run_at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempt             integer     NOT NULL DEFAULT 0,
    max_attempts        integer,
    token               bigint      NOT NULL DEFAULT 0,
    admission           smallint    NOT NULL DEFAULT 0,
    lease_until         timestamptz,
    worker              text,
    claimed_at          timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    cancel_requested_at timestamptz,
    key                 text COLLATE "C",
    group_key           text COLLATE "C",
    backoff             jsonb,
    kind                text COLLATE "C",
    lease               interval,
    timeout             interval,
    start_by            timestamptz,
    weight              integer     NOT NULL DEFAULT 1,
    headers             jsonb,
    payload             jsonb       NOT NULL DEFAULT '{}',
    progress            jsonb,
    errors              jsonb,
    CONSTRAINT tasks_pkey PRIMARY KEY (id),
    -- The only invariant that updates can break. Everything else is checked when a row is inserted (tasks_inserted),
    -- because constraints are parsed again by every update.
    CONSTRAINT tasks_lease_check CHECK ((state = 'running') = (lease_until IS NOT NULL))
) WITH (
    -- Leaves space on each page for a second version of every row, so that claims are HOT updates, even if a batch
    -- claims all rows of a page before the first of them is finished.
    fillfactor = 50,
    -- Values that are too large for the row are moved out of it, so that a claim does not copy them.
    toast_tuple_target = 256,
    -- Every task becomes a dead tuple. Vacuuming early keeps claims fast.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1
);
ALTER SEQUENCE queue.tasks_id_seq OWNED BY queue.tasks.id;

CREATE TABLE queue.history (
    id           bigint      NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    state        text        NOT NULL,
    priority     integer     NOT NULL,
    run_at       timestamptz NOT NULL,
    attempt      integer     NOT NULL,
    max_attempts integer,
    token        bigint      NOT NULL,
    worker       text,
    claimed_at   timestamptz,
    created_at   timestamptz NOT NULL,
    finished_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    key          text COLLATE "C",
    group_key    text COLLATE "C",
    kind         text COLLATE "C",
    lease        interval,
    timeout      interval,
    start_by     timestamptz,
    weight       integer     NOT NULL DEFAULT 1,
    headers      jsonb,
    payload      jsonb,
    progress     jsonb,
    errors       jsonb,
    result       jsonb
) PARTITION BY RANGE (finished_at);

-- Takes the rows of days without a partition, so that completing never fails for lack of one. The daily partitions
-- are created like it once the extension is in use (extend_history). The indexes belong to the partitions and not to
-- the parent: a parent that belongs to an extension would create them in a partition that pg_dump is restoring, which
-- would then fail.
CREATE TABLE queue.history_default PARTITION OF queue.history (
    CONSTRAINT history_default_pkey PRIMARY KEY (id)
) DEFAULT;

CREATE TABLE queue.dead_letters (
    id           bigint      NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    priority     integer     NOT NULL,
    run_at       timestamptz NOT NULL,
    attempt      integer     NOT NULL,
    max_attempts integer,
    token        bigint      NOT NULL,
    worker       text,
    claimed_at   timestamptz,
    created_at   timestamptz NOT NULL,
    failed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    key          text COLLATE "C",
    group_key    text COLLATE "C",
    backoff      jsonb,
    kind         text COLLATE "C",
    lease        interval,
    timeout      interval,
    start_by     timestamptz,
    weight       integer     NOT NULL DEFAULT 1,
    headers      jsonb,
    payload      jsonb       NOT NULL,
    progress     jsonb,
    errors       jsonb,
    key_ttl      interval,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_weight_check CHECK (weight BETWEEN 1 AND 1000000),
    CONSTRAINT dead_letters_times_check CHECK (
        isfinite(failed_at) AND isfinite(run_at) AND isfinite(created_at) AND isfinite(coalesce(claimed_at, run_at)))
);

CREATE TABLE queue.schedules (
    name          text COLLATE "C" NOT NULL PRIMARY KEY,
    cron          text        NOT NULL,
    timezone      text        NOT NULL DEFAULT 'UTC',
    queue         text COLLATE "C" NOT NULL,
    payload       jsonb       NOT NULL DEFAULT '{}',
    options       jsonb       NOT NULL DEFAULT '{}',
    missed_runs   text        NOT NULL DEFAULT 'once',
    next_run_at   timestamptz,
    last_run_at   timestamptz,
    paused_at     timestamptz,
    last_error    text,
    last_error_at timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT schedules_missed_runs_check CHECK (missed_runs IN ('skip', 'once', 'all')),
    CONSTRAINT schedules_bounds_check CHECK (
        octet_length(name) BETWEEN 1 AND 128 AND octet_length(cron) BETWEEN 1 AND 256 AND octet_length(timezone) <= 256
        AND jsonb_typeof(options) = 'object' AND isfinite(next_run_at))
);

-- A key belongs to a live task; or, after that task finished, until expires_at. "ttl" is the key_ttl of the push, negative
-- if it counts from the push; "replaced_ttl" is that of the running task which gave up the key and may get it back
-- (resolve_duplicate).
CREATE TABLE queue_internal.keys (
    queue      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    task_id    bigint   NOT NULL,
    ttl        interval,
    replaced_ttl interval,
    expires_at timestamptz,
    CONSTRAINT keys_pkey PRIMARY KEY (queue, key)
);

-- Which tasks wait for which. "outcome" is null until the predecessor ends; the transaction that ends it writes
-- completed, failed, cancelled or purged. "on_failure" is batch if the predecessor is a member of the batch whose callback is
-- the task. "restored_at" is set in a row that comes from a dump.
CREATE TABLE queue_internal.dependencies (
    predecessor_id bigint NOT NULL,
    task_id        bigint NOT NULL,
    on_failure     text   NOT NULL,
    outcome        text COLLATE "C",
    restored_at    timestamptz,
    CONSTRAINT dependencies_pkey PRIMARY KEY (predecessor_id, task_id),
    CONSTRAINT dependencies_on_failure_check CHECK (on_failure IN ('fail', 'cancel', 'continue', 'batch'))
);

-- The callbacks that wait for the members of a batch (internal/batches.sql). "members" is set when the batch is sealed;
-- "completed", "failed" and "cancelled" count the members whose dependencies have been deleted. "is_after" says whether
-- the callback also has other predecessors.
CREATE TABLE queue_internal.batches (
    task_id   bigint  NOT NULL,
    is_after  boolean NOT NULL DEFAULT false,
    sealed_at timestamptz,
    members   bigint,
    completed bigint  NOT NULL DEFAULT 0,
    failed    bigint  NOT NULL DEFAULT 0,
    cancelled bigint  NOT NULL DEFAULT 0,
    CONSTRAINT batches_pkey PRIMARY KEY (task_id),
    CONSTRAINT batches_sealed_check CHECK ((sealed_at IS NULL) = (members IS NULL))
);

-- Outcomes of tasks with dependents that were not notified yet: because a snapshot did not show these, because another
-- transaction had them locked, or because there were too many for one transaction. Kept for a day, so that the sweep finds
-- it here (internal/sweep.sql). If there were too many, notify_rest() continues after the dependent "rest_after", which
-- comes before one of the queue "rest_queue"; both are null if there are no others.
CREATE TABLE queue_internal.outcomes (
    task_id    bigint      NOT NULL,
    outcome    text        NOT NULL,
    ended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    rest_queue text COLLATE "C",
    rest_after bigint,
    CONSTRAINT outcomes_pkey PRIMARY KEY (task_id)
);

-- Hints to check a waiting task or a group, written by the transaction that changed something about it. The next
-- claim from the queue, or the worker, processes and deletes them (internal/events.sql). A lost event only costs
-- time: the sweep finds the change. "due_at" is in the future once an event could not be processed.
CREATE TABLE queue_internal.events (
    id        bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    queue     text COLLATE "C" NOT NULL,
    group_key text COLLATE "C",
    task_id   bigint,
    due_at    timestamptz NOT NULL DEFAULT '-infinity',
    tries     integer     NOT NULL DEFAULT 0,
    error     text,
    -- Of a group: the smallest id of the tasks that have come to it, null if none have (internal/group_heads.sql).
    arrived   bigint,
    CONSTRAINT events_pkey PRIMARY KEY (queue, due_at, id),
    CONSTRAINT events_subject_check CHECK ((group_key IS NULL) <> (task_id IS NULL))
);

-- Groups with many dead index entries: no task of the group has an id smaller than "first_id" (internal/group_heads.sql). Pages
-- have room for new versions, because an admission reads all that could not be vacuumed.
CREATE TABLE queue_internal.group_heads (
    queue      text COLLATE "C" NOT NULL,
    group_key  text COLLATE "C" NOT NULL,
    first_id   bigint NOT NULL,
    changes    integer NOT NULL DEFAULT 1,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT group_heads_pkey PRIMARY KEY (queue, group_key)
) WITH (fillfactor = 20);

-- Tasks that were put back into a group, and may have a smaller id than its head (internal/group_heads.sql). With a number, so
-- that nobody waits for a transaction that deletes the row of the same task.
CREATE TABLE queue_internal.group_returns (
    queue     text COLLATE "C" NOT NULL,
    group_key text COLLATE "C" NOT NULL,
    task_id   bigint NOT NULL,
    number    bigint NOT NULL DEFAULT nextval('queue_internal.events_id_seq'),
    CONSTRAINT group_returns_pkey PRIMARY KEY (queue, group_key, task_id, number)
);

-- One row: an id, and the transactions that had the tasks locked when it was the last one (internal/settled_id.sql).
CREATE TABLE queue_internal.settling (
    number  smallint NOT NULL DEFAULT 1,
    id      bigint   NOT NULL DEFAULT 0,
    writers text[]   NOT NULL DEFAULT '{}',
    CONSTRAINT settling_pkey PRIMARY KEY (number),
    CONSTRAINT settling_number_check CHECK (number = 1)
);
INSERT INTO queue_internal.settling DEFAULT VALUES;
CREATE SEQUENCE queue_internal.settled_id_seq MINVALUE 0;
CREATE SEQUENCE queue_internal.settling_due_seq;

-- Rows that are only locked: the transaction that admits tasks of a group locks the row with the hash of the group.
-- Only the owner can lock them, unlike advisory locks. Each queue has its own rows, so that open transactions in one
-- queue do not block the groups of another: 4096 once it has had groups, and from the start the row -1, which is
-- locked to insert the others (lock_group).
CREATE TABLE queue_internal.locks (
    queue  text COLLATE "C" NOT NULL,
    number smallint NOT NULL,
    CONSTRAINT locks_pkey PRIMARY KEY (queue, number)
);

-- A slot is occupied while the task in it runs with that token. So nothing has to be written to free it, and nothing
-- can free it twice. Each use is a new version with its own index entry, so that finding the newest costs the same
-- however many old ones cannot be vacuumed yet. A row for slot 0 says that claims may have been open when the limit
-- was set (internal/limits.sql).
CREATE TABLE queue_internal.slots (
    queue   text COLLATE "C" NOT NULL,
    slot    integer NOT NULL,
    version bigint  NOT NULL DEFAULT 0,
    task_id bigint,
    token   bigint,
    CONSTRAINT slots_pkey PRIMARY KEY (queue, slot, version)
);

-- The starts of a rate limit, spread over buckets so that claims do not wait for one row. "taken" has the times of
-- the starts in the current period. Versions as in slots. A bucket has the options of the queue for which it was made: a
-- claim that has read others does not use it.
CREATE TABLE queue_internal.rate_buckets (
    queue       text COLLATE "C" NOT NULL,
    bucket      integer       NOT NULL,
    version     bigint        NOT NULL DEFAULT 0,
    rate_limit  integer       NOT NULL,
    rate_period interval      NOT NULL,
    capacity    integer       NOT NULL,
    taken       timestamptz[] NOT NULL DEFAULT '{}',
    CONSTRAINT rate_buckets_pkey PRIMARY KEY (queue, bucket, version)
);

-- The starts of tasks of groups in a queue with group_rate_limit, which count until they are rate_period old. They are
-- deleted some time after "expires_at", so that groups that are idle leave nothing.
CREATE TABLE queue_internal.group_starts (
    queue      text COLLATE "C" NOT NULL,
    group_key  text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    task_id    bigint      NOT NULL,
    weight     integer     NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT group_starts_pkey PRIMARY KEY (queue, group_key, started_at, task_id),
    CONSTRAINT group_starts_check CHECK (
        weight BETWEEN 1 AND 1000000 AND isfinite(started_at) AND isfinite(expires_at))
);

-- One row, from which the first token of a claim is computed (src/tokens.rs, internal/token_base.sql). A worker writes
-- it once after each start of the server, before any claim whose commit may be lost in a crash.
--   reached   no lost claim had a larger token
--   timeline  the timeline of the WAL when the row was written; 0 if unknown
CREATE TABLE queue_internal.token_mark (
    reached  bigint NOT NULL,
    timeline bigint NOT NULL,
    CONSTRAINT token_mark_reached_check CHECK (reached >= 0 AND reached < 9007199254740992)
);
-- Without a replica identity the row could not be updated while there is a publication FOR ALL TABLES.
ALTER TABLE queue_internal.token_mark REPLICA IDENTITY FULL;
INSERT INTO queue_internal.token_mark VALUES (0, 0);

-- The steps of tasks (internal/steps.sql). "kind" is step; sleep, whose value is a time; or what the task waited for: event,
-- with the payload, or task, with its state and result. The value is null if that timed out. A row stays as long as its
-- task is live, a dead letter or in the history. "restored_at" is set in a row that comes from a dump.
CREATE TABLE queue_internal.steps (
    task_id     bigint      NOT NULL,
    number      integer     NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    value       jsonb,
    stored_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    restored_at timestamptz,
    CONSTRAINT steps_pkey PRIMARY KEY (task_id, number),
    CONSTRAINT steps_name UNIQUE (task_id, kind, name),
    CONSTRAINT steps_kind_check CHECK (kind IN ('step', 'sleep', 'event', 'task'))
);

-- What a task waits for in the middle of its work: an event of a queue, or the end of another task. The task is suspended
-- while its token is the one here, because the next claim raises it. The row stays until the task has got what it waits
-- for, so that its timeout does not begin again with each attempt. "outcome" is how the other task ended.
CREATE TABLE queue_internal.awaits (
    task_id        bigint NOT NULL,
    token          bigint NOT NULL,
    queue          text COLLATE "C",
    event          text COLLATE "C",
    predecessor_id bigint,
    outcome        text COLLATE "C",
    until          timestamptz,
    restored_at    timestamptz,
    CONSTRAINT awaits_pkey PRIMARY KEY (task_id),
    CONSTRAINT awaits_subject_check CHECK (
        (event IS NULL) = (queue IS NULL) AND (event IS NULL) <> (predecessor_id IS NULL)),
    CONSTRAINT awaits_until_check CHECK (isfinite(until))
);

-- The events of a queue that were emitted. An event that was only awaited so far has a row without emitted_at: a task that
-- begins to wait and an emission lock the same row, so that one of them sees the other. If more tasks wait than an emission
-- wakes, wake_rest() continues after the task "rest_after".
CREATE TABLE queue_internal.emitted (
    queue      text COLLATE "C" NOT NULL,
    event      text COLLATE "C" NOT NULL,
    payload    jsonb,
    emitted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    rest_after bigint,
    CONSTRAINT emitted_pkey PRIMARY KEY (queue, event)
);

-- "topic_regex" is the pattern as queue.publish() matches it (queue_internal.topic_regex).
-- queue.drop() deletes the bindings of its queue.
CREATE TABLE queue.bindings (
    topic_pattern text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    topic_regex   text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT bindings_pkey PRIMARY KEY (queue, topic_pattern)
);

-- queue.drop() deletes the row of its queue. A function has another OID after pg_upgrade, which therefore refuses a
-- regprocedure; a role keeps its OID.
CREATE TABLE queue.handlers (
    queue      text COLLATE "C" NOT NULL PRIMARY KEY,
    handler    text COLLATE "C" NOT NULL,
    role       regrole     NOT NULL,
    workers    integer     NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT handlers_bounds_check CHECK (octet_length(queue) BETWEEN 1 AND 128 AND workers BETWEEN 1 AND 64)
);

-- The rights of roles. pg_dump saves the rows; privileges follow them (internal/rights.sql).
CREATE TABLE queue.rights (
    role  regrole NOT NULL,
    kind  text COLLATE "C" NOT NULL,
    queue text COLLATE "C",
    CONSTRAINT rights_kind_check CHECK (kind IN ('producer', 'worker', 'operator'))
);
ALTER TABLE queue.rights REPLICA IDENTITY FULL;

-- What a claim returns.
CREATE TYPE queue.claimed_task AS (
    id           bigint,
    token        bigint,
    queue        text,
    payload      jsonb,
    headers      jsonb,
    attempt      integer,
    max_attempts integer,
    priority     integer,
    key          text,
    group_key    text,
    progress     jsonb,
    run_at       timestamptz,
    created_at   timestamptz,
    lease_until  timestamptz,
    kind         text
);

INSERT INTO queue.queues (name) VALUES ('default');
INSERT INTO queue_internal.locks VALUES ('default', -1);
-- An edition may divide the order of claims into buckets. PostgreSQL needs only one; the edition for YugabyteDB has
-- several. All functions that scan the order of claims go through all buckets, so that they are written once.

CREATE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.buckets IS
    'Returns the number of buckets over which the tasks of a queue are spread.';

-- Why SQL and no search_path: so that the planner inlines the expression, and nothing of it is left in a plan. The
-- expression was parsed when the function was created.
CREATE FUNCTION queue_internal.task_in_bucket(task queue.tasks, bucket integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN true;
COMMENT ON FUNCTION queue_internal.task_in_bucket IS 'Returns whether a task is in a bucket.';
-- The indexes other than primary keys, each with the functions that need it. Those on queue.tasks must not contain
-- columns that a claim changes: see tables.sql.

-- claim: the next task of a queue. due_queues: which tasks became due, and which is next.
CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE admission < 2;
COMMENT ON INDEX queue.tasks_order IS
    'The order in which the tasks of a queue are claimed. Holds no column that a claim changes.';

-- admit_next: which tasks of a group are admitted, and which is next. sweep_groups: the groups of a queue.
CREATE INDEX tasks_group ON queue.tasks (queue, group_key, admission, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue.tasks_group IS 'The tasks of a group: the admitted, the open and the blocked ones.';

-- expire_unstarted: the tasks in the order of their start deadlines. Tasks without one have no entry.
CREATE INDEX tasks_start_by ON queue.tasks (start_by, id) WHERE start_by IS NOT NULL;
COMMENT ON INDEX queue.tasks_start_by IS 'The tasks with a start deadline. Holds no column that a claim changes.';

-- process_events: all events of a group, or of a task, at once.
CREATE INDEX events_group ON queue_internal.events (queue, group_key, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue_internal.events_group IS 'The events of a group.';
CREATE INDEX events_task ON queue_internal.events (task_id, id) WHERE task_id IS NOT NULL;
COMMENT ON INDEX queue_internal.events_task IS 'The events of a waiting task.';

-- process_dependent: whether a task still waits, and whether a predecessor failed.
CREATE INDEX dependencies_task ON queue_internal.dependencies (task_id, outcome);
COMMENT ON INDEX queue_internal.dependencies_task IS 'The predecessors of a task, by how they ended.';

-- notify_rests: the ended tasks with dependents that have not been notified.
CREATE INDEX outcomes_rest ON queue_internal.outcomes (rest_queue, task_id) WHERE rest_after IS NOT NULL;
COMMENT ON INDEX queue_internal.outcomes_rest IS 'Ended tasks with dependents that have not been notified.';

-- retire_outcomes: the oldest first.
CREATE INDEX outcomes_ended_at ON queue_internal.outcomes (ended_at);
COMMENT ON INDEX queue_internal.outcomes_ended_at IS 'Outcomes, the oldest first.';

-- emit: the tasks that wait for an event. sweep_emitted: whether any does.
CREATE INDEX awaits_event ON queue_internal.awaits (queue, event, task_id) WHERE event IS NOT NULL;
COMMENT ON INDEX queue_internal.awaits_event IS 'The tasks that wait for an event.';

-- wake_rest: the emitted events of which not all waiting tasks were woken.
CREATE INDEX emitted_rest ON queue_internal.emitted (queue, event) WHERE rest_after IS NOT NULL;
COMMENT ON INDEX queue_internal.emitted_rest IS 'Emitted events of which not all waiting tasks were woken.';

-- retire_keys: the keys whose time has passed.
CREATE INDEX keys_expiry ON queue_internal.keys (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON INDEX queue_internal.keys_expiry IS 'Keys that finished tasks keep for a time.';

-- stats: what finished in the last hour. A BRIN index costs an insert almost nothing. Each partition of the history
-- has its own, as it has its own primary key.
CREATE INDEX history_default_finished_at ON queue.history_default
    USING brin (finished_at) WITH (pages_per_range = 32);
COMMENT ON INDEX queue.history_default_finished_at IS 'Finds the tasks that finished in an interval.';

-- retire_group_starts: the starts that no longer count.
CREATE INDEX group_starts_expiry ON queue_internal.group_starts (expires_at);
COMMENT ON INDEX queue_internal.group_starts_expiry IS 'Finds the starts of groups that no longer count.';

-- fire_schedules: the schedules that became due since the last call.
CREATE INDEX schedules_next_run_at ON queue.schedules (next_run_at) WHERE paused_at IS NULL;
COMMENT ON INDEX queue.schedules_next_run_at IS 'Finds the schedules that are due.';

-- redrive, retire_dead_letters: the oldest of a queue first.
CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS
    'The dead letters of a queue, the oldest first.';

-- grant_producer and its counterparts: a role has a right once.
CREATE UNIQUE INDEX rights_once ON queue.rights (role, kind, coalesce(queue, ''));
COMMENT ON INDEX queue.rights_once IS 'A role has a right once for each queue.';
-- The functions of the library queue_ext. If it is not preloaded, announcing does nothing, and everything else works.

CREATE FUNCTION queue_internal.announce_task(queue text, run_at timestamptz) RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_task_wrapper';
COMMENT ON FUNCTION queue_internal.announce_task IS
    'Announces at commit that claims from a queue may find more than the committed tasks show.';

CREATE FUNCTION queue_internal.announce_extension() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_extension_wrapper';
COMMENT ON FUNCTION queue_internal.announce_extension IS
    'Notifies the launcher at commit that this database has the extension.';

CREATE FUNCTION queue_internal.sweep_lanes() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'sweep_lanes_wrapper';
COMMENT ON FUNCTION queue_internal.sweep_lanes IS
    'Has the lanes of this database read again, for changes that no session announced.';

CREATE FUNCTION queue_internal.token_base(durable boolean) RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'token_base_wrapper';
COMMENT ON FUNCTION queue_internal.token_base IS
    'The smallest token that a claim may hand out. Makes the commit synchronous if the claim must not be lost.';

CREATE FUNCTION queue_internal.claim_durably() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'claim_durably_wrapper';
COMMENT ON FUNCTION queue_internal.claim_durably IS 'Makes the commit of the current transaction synchronous.';

-- Commits if the CALL was issued outside a transaction block and all procedures in between can commit, else does
-- nothing.
CREATE PROCEDURE queue_internal.try_commit(INOUT committed boolean)
LANGUAGE c AS 'MODULE_PATHNAME', 'try_commit';
COMMENT ON PROCEDURE queue_internal.try_commit IS 'Commits if the caller can; returns whether it did.';

CREATE FUNCTION queue_internal.waiting_workers()
RETURNS TABLE (worker text, queue text, since timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'waiting_workers_wrapper';
COMMENT ON FUNCTION queue_internal.waiting_workers IS
    'Returns the sessions that wait for a task, each once for each of its queues.';

CREATE FUNCTION queue.engine_stats() RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'engine_stats_wrapper';
COMMENT ON FUNCTION queue.engine_stats IS
'Returns the internal statistics of the library as a JSON object: whether it is preloaded, its version, the background
worker of this database, how many calls the native fast path served, and the lanes of this database. docs/engine.md
describes them. Needs the operator''s right on any queue, or pg_monitor.';

-- Bounds of queries (due_queues, reap): they count index entries, also of dead rows, so that a query that an old snapshot
-- makes read many of these can be divided into parts.

CREATE FUNCTION queue_internal.next_level(in_bucket integer, queue text, level integer) RETURNS integer
LANGUAGE c STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'next_level_wrapper';
COMMENT ON FUNCTION queue_internal.next_level IS
    'Returns a lower bound for the first priority, from this one on, that has tasks; null if there is none.';

CREATE FUNCTION queue_internal.order_bound(
    in_bucket integer, queue text, level integer, after timestamptz, entries integer)
RETURNS TABLE (run_at timestamptz, id bigint)
LANGUAGE c STABLE STRICT PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'order_bound_wrapper';
COMMENT ON FUNCTION queue_internal.order_bound IS
    'Returns the run_at and id of the n-th index entry of a priority from a time on; no row if there are fewer, or that '
    'is unknown.';

CREATE FUNCTION queue_internal.id_bound(after bigint, entries integer) RETURNS bigint
LANGUAGE c STABLE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'id_bound_wrapper';
COMMENT ON FUNCTION queue_internal.id_bound IS
    'Returns the id of the n-th index entry after another id; null if there are fewer, or that is unknown.';

CREATE FUNCTION queue_internal.deadline_bound(after timestamptz, after_id bigint, entries integer)
RETURNS TABLE (start_by timestamptz, id bigint)
LANGUAGE c STABLE STRICT PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'deadline_bound_wrapper';
COMMENT ON FUNCTION queue_internal.deadline_bound IS
    'Returns the start deadline and id of the n-th index entry after another one; no row if there are fewer, or that is '
    'unknown.';

CREATE FUNCTION queue_internal.known_depth(queue text) RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'known_depth_wrapper';
COMMENT ON FUNCTION queue_internal.known_depth IS
    'Returns how many queued tasks the counters of a queue show, and this transaction has added; null if unknown.';

-- Rights (internal/rights.sql). They are kept in memory until queue.rights or a role changes.

CREATE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_caller';
COMMENT ON FUNCTION queue_internal.caller IS
    'Returns the role that called the public function that is running; outside of one, the current role.';

CREATE FUNCTION queue_internal.has_right(kind text, queue text) RETURNS boolean
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_has_right';
COMMENT ON FUNCTION queue_internal.has_right IS
    'Whether the caller of the verb has a kind of right (producer, worker, operator, any) for the queue; for a null '
    'queue, whether it has it for all queues.';

CREATE FUNCTION queue_internal.queues_with_right(kind text) RETURNS text[]
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_queues_with_right';
COMMENT ON FUNCTION queue_internal.queues_with_right IS
    'The queues for which the caller has a kind of right; null stands for all queues.';

CREATE FUNCTION queue_internal.announce_rights() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'queue_announce_rights';
COMMENT ON FUNCTION queue_internal.announce_rights IS
    'Makes every session read the rights again after the commit.';

CREATE FUNCTION queue_internal.cron_next(cron text, after timestamp) RETURNS timestamp
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_next_wrapper';
COMMENT ON FUNCTION queue_internal.cron_next IS
    'Returns the first local time after the given one that a cron expression matches; null if there is none.';

CREATE FUNCTION queue_internal.cron_error(cron text) RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_error_wrapper';
COMMENT ON FUNCTION queue_internal.cron_error IS
    'Returns what is wrong with a cron expression; null if it is valid.';
-- queue_internal.setting(name, fallback)
--
--   Returns the value of the setting "queue.<name>". The fallback repeats the default in src/settings.rs, because the
--   setting does not exist in a session that has not loaded the library.
--   Why PL/pgSQL: a function in SQL would be parsed at every call.

CREATE FUNCTION queue_internal.setting(name text, fallback text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(nullif(current_setting('queue.' || name, true), ''), fallback);
END
$$;
COMMENT ON FUNCTION queue_internal.setting IS 'Returns the value of a setting, or its default.';
-- The errors that several functions raise.
--
-- Messages are short and factual, details are sentences of facts, hints say what to do. They may contain the values of
-- arguments, but never payloads.

CREATE FUNCTION queue_internal.raise_null(argument text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "%" must not be null', argument
        USING ERRCODE = 'null_value_not_allowed';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_null IS 'Raises 22004.';

CREATE FUNCTION queue_internal.raise_invalid(argument text, rule text, value text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL THEN
        RAISE EXCEPTION 'argument "%" %', argument, rule USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RAISE EXCEPTION 'argument "%" %', argument, rule
        USING ERRCODE = 'invalid_parameter_value', DETAIL = format('The value is %s.', value);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_invalid IS 'Raises 22023.';

CREATE FUNCTION queue_internal.raise_too_heavy(weight integer, queue text, kind text, most integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "weight" must not be greater than the "%" of the queue', kind
        USING ERRCODE = 'invalid_parameter_value',
              DETAIL = format('The weight is %s, and "%s" of queue "%s" is %s.', weight, kind, queue, most),
              HINT = format('Use a smaller weight, or raise the option "%s" with queue.configure().', kind);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_too_heavy IS 'Raises 22023.';

CREATE FUNCTION queue_internal.raise_too_large(argument text, maximum text, value text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "%" is larger than %', argument, maximum
        USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_too_large IS 'Raises 54000.';

-- Drivers that send a list without a type, such as psycopg, call the function for one queue.
CREATE FUNCTION queue_internal.list_hint(queue text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue LIKE '{%}' THEN
        RETURN 'The name looks like a list of queues. Cast the argument to text[], which queue.claim() and queue.wait() '
               'accept.';
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.list_hint IS
    'Returns a hint if the name of a queue may be meant as an array of names, else null.';

CREATE FUNCTION queue_internal.raise_denied(kind text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'permission denied for %', CASE WHEN queue IS NULL THEN 'all queues' ELSE format('queue "%s"', queue) END
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = format('Role %I does not have the right of %s %s %s.', queue_internal.caller(),
                              CASE kind WHEN 'operator' THEN 'an' ELSE 'a' END, kind,
                              CASE WHEN queue IS NULL THEN 'for all queues' ELSE 'for the queue' END),
              HINT = coalesce(
                  queue_internal.list_hint(queue),
                  format('The owner of the extension can grant it with SELECT queue.grant_%s(%L%s).', kind,
                         queue_internal.caller(), CASE WHEN queue IS NULL THEN '' ELSE format(', %L', queue) END));
END
$$;
COMMENT ON FUNCTION queue_internal.raise_denied IS 'Raises 42501.';

CREATE FUNCTION queue_internal.raise_unknown_queue(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'queue "%" does not exist', name
        USING ERRCODE = 'QX002',
              HINT = coalesce(queue_internal.list_hint(name), format('Create it with SELECT queue.create(%L).', name));
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_queue IS 'Raises QX002.';

CREATE FUNCTION queue_internal.raise_unknown_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'schedule "%" does not exist', name
        USING ERRCODE = 'undefined_object',
              HINT = format('Create it with SELECT queue.schedule(%L, ...). Those that exist are in queue.schedules.',
                            name);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_schedule IS 'Raises 42704.';

-- Does not name the queue, because the caller may have no right on it.
CREATE FUNCTION queue_internal.raise_foreign_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'permission denied for schedule "%"', name
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = format('It belongs to a queue that role %I is not an operator of.', queue_internal.caller()),
              HINT = 'Choose another name.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_foreign_schedule IS 'Raises 42501.';

CREATE FUNCTION queue_internal.raise_unknown_task(id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'task % does not exist', id
        USING ERRCODE = 'QX003',
              HINT = 'It may be past its retention, have finished in a queue that keeps no history, or be in a queue for '
                     'which the role has no right.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_task IS 'Raises QX003.';

CREATE FUNCTION queue_internal.raise_duplicate_key(
    queue text, key text, holder bigint, expires_at timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'key "%" of queue "%" is taken', key, queue
        USING ERRCODE = 'QX004',
              DETAIL = CASE WHEN expires_at IS NULL THEN format('Task %s has it.', holder)
                            ELSE format('Task %s had it, and keeps it until %s.', holder, expires_at) END,
              HINT = 'Wait until that task has finished, cancel it, or use another key.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_duplicate_key IS 'Raises QX004.';

CREATE FUNCTION queue_internal.raise_queue_full(source queue.queues, depth bigint, more bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'queue "%" is full', source.name
        USING ERRCODE = 'QX006',
              DETAIL = format('The number of queued tasks is %s, the number of tasks to add is %s, and "max_queued" is %s.',
                              CASE WHEN depth > source.max_queued THEN 'more than ' || source.max_queued ELSE depth::text END,
                              more, source.max_queued),
              HINT = 'Push again when workers have finished some, or raise the option "max_queued" with queue.configure().';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_queue_full IS 'Raises QX006.';

CREATE FUNCTION queue_internal.raise_wrong_state(id bigint, kind text, rule text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_state text := queue_internal.state_of(id, kind);
BEGIN
    IF found_state IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RAISE EXCEPTION 'task % %', id, rule
        USING ERRCODE = 'QX005', DETAIL = format('The task is %s.', found_state), HINT = hint;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_wrong_state IS 'Raises QX005, or QX003 if the caller has no such task.';

CREATE FUNCTION queue_internal.raise_lease_lost(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    live   record;
    fact   text;
    ending text := queue_internal.state_of(id, 'worker');
BEGIN
    IF ending IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    SELECT t.token, t.state INTO live FROM queue.tasks AS t WHERE t.id = raise_lease_lost.id;
    fact := CASE
        WHEN live.token IS NULL THEN format('The task is %s.', ending)
        WHEN live.token < raise_lease_lost.token THEN
            format('The last token is %s. The claim with token %s was lost in a crash or failover, or never happened.',
                   live.token, raise_lease_lost.token)
        WHEN live.state = 'running' AND live.token = raise_lease_lost.token THEN
            'The attempt has timed out, and its lease cannot be extended.'
        WHEN live.state = 'running' THEN
            format('The lease with token %s ended; the task was claimed again with token %s.',
                   raise_lease_lost.token, live.token)
        ELSE format('The lease with token %s ended; the task is %s.', raise_lease_lost.token, live.state)
    END;
    RAISE EXCEPTION 'lease on task % is no longer held', id
        USING ERRCODE = 'QX001', DETAIL = fact,
              HINT = 'Stop working on this task. ' || CASE
                  WHEN live.state = 'running' AND live.token = raise_lease_lost.token THEN 'Push such tasks with a longer timeout.'
                  WHEN live.state IN ('queued', 'waiting') THEN
                      'Claim with a longer lease, or call queue.extend() in time. A suspended task has to be claimed again.'
                  ELSE 'Claim with a longer lease, or call queue.extend() in time.' END;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_lease_lost IS 'Raises QX001, or QX003 if there is no such task.';

CREATE FUNCTION queue_internal.raise_kept(id bigint, relation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'a trigger has suppressed the deletion of task %', id
        USING ERRCODE = 'triggered_action_exception', DETAIL = format('It is still in %s.', relation),
              HINT = 'Change the trigger so that it returns OLD, or drop the trigger.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_kept IS 'Raises 09000: a trigger of the user prevented the deletion of a task.';

CREATE FUNCTION queue_internal.check_read_committed(what text, reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION '% at isolation level READ COMMITTED', what
            USING ERRCODE = 'invalid_transaction_state', DETAIL = reason, HINT = 'Run it in a transaction that begins with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_read_committed IS 'Raises 25000 at other isolation levels than READ COMMITTED.';
-- queue_internal.may_log(kind, queue)
--
--   Whether this session may write another WARNING of this kind about the queue to the server's log. The background worker
--   logs at most five in a minute of each kind and queue, however many tasks of the queue cannot be ended or unblocked.
--   So no queue fills the log, and the warnings about other queues appear as well.
--   It is kept in a setting, because it belongs to the session. Anything else in the setting counts as nothing. A step
--   that fails as a whole after its warnings also takes back their count, and each later attempt logs them again

CREATE FUNCTION queue_internal.may_log(kind text, queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name   CONSTANT text := format('queue_log.%s_%s', kind, md5(queue));
    kept   CONSTANT text := current_setting(name, true);
    moment CONSTANT bigint := extract(epoch FROM clock_timestamp());
    since  bigint := moment;
    lines  integer := 0;
BEGIN
    IF kept ~ '^[0-9]{1,12} [1-5]$' THEN
        since := split_part(kept, ' ', 1)::bigint;
        lines := split_part(kept, ' ', 2)::integer;
    END IF;
    IF moment - since NOT BETWEEN 0 AND 59 THEN
        since := moment;
        lines := 0;
    END IF;
    IF lines = 5 THEN
        RETURN false;
    END IF;
    PERFORM set_config(name, format('%s %s', since, lines + 1), false);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.may_log IS
    'Returns whether the session may log another warning about the queue, and counts it.';
-- queue_internal.state_of(id, kind)
--
--   Returns the state of a task wherever it is; null if it does not exist, or if the caller does not have this kind of
--   right on its queue. So no role can find out which ids other queues have.
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)

CREATE FUNCTION queue_internal.state_of(id bigint, kind text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    state text;
BEGIN
    SELECT t.state INTO state FROM queue.tasks AS t
    WHERE t.id = state_of.id AND queue_internal.has_right(state_of.kind, t.queue);
    IF NOT FOUND THEN
        SELECT 'failed' INTO state FROM queue.dead_letters AS d
        WHERE d.id = state_of.id AND queue_internal.has_right(state_of.kind, d.queue);
    END IF;
    IF state IS NULL THEN
        SELECT h.state INTO state FROM queue.history AS h
        WHERE h.id = state_of.id AND queue_internal.has_right(state_of.kind, h.queue);
    END IF;
    RETURN state;
END
$$;
COMMENT ON FUNCTION queue_internal.state_of IS
    'Returns the state of a task wherever it is, if the caller has this kind of right on its queue.';
-- The checks of arguments that several functions share. Each names the argument in its error.

CREATE FUNCTION queue_internal.check_name(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF value = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(value) > 128 THEN
        PERFORM queue_internal.raise_too_large(argument, '128 bytes', octet_length(value) || ' bytes');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_name IS
    'Checks the name of a queue, a schedule, a worker or a role: 1 to 128 bytes.';

CREATE FUNCTION queue_internal.check_lease_holder(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF token IS NULL THEN
        PERFORM queue_internal.raise_null('token');
    ELSIF token < 1 THEN
        PERFORM queue_internal.raise_invalid('token', 'must be greater than zero', token::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_lease_holder IS
    'Checks the id and the token with which a worker names its lease.';

CREATE FUNCTION queue_internal.check_id(id bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF id IS NULL THEN
        PERFORM queue_internal.raise_null('id');
    ELSIF id < 1 THEN
        PERFORM queue_internal.raise_invalid('id', 'must be greater than zero', id::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_id IS 'Checks the id of a task.';

CREATE FUNCTION queue_internal.check_array(argument text, elements anyarray) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF elements IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF array_ndims(elements) > 1 THEN
        PERFORM queue_internal.raise_invalid(argument, 'must have one dimension',
                                             format('an array of %s dimensions', array_ndims(elements)));
    ELSIF cardinality(elements) > 100000 THEN
        PERFORM queue_internal.raise_too_large(argument, '100000 elements',
                                               cardinality(elements) || ' elements');
    ELSIF array_position(elements, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'argument "%" must not contain null', argument
            USING ERRCODE = 'null_value_not_allowed',
                  DETAIL = format('Element %s is null.', array_position(elements, NULL));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_array IS
    'Checks an array: one dimension, at most 100000 elements, none of them null.';

CREATE FUNCTION queue_internal.check_same_length(argument text, elements anyarray, expected integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(elements) <> expected THEN
        PERFORM queue_internal.raise_invalid(
            argument, format('must have as many elements as "ids", which has %s', expected),
            format('an array of %s', cardinality(elements)));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_same_length IS 'Checks that an array has as many elements as "ids".';

-- Months and days of an interval are stored apart. Comparisons count 360 days to a year, so that -1 year 361 days is
-- greater than zero and yet ends in the past, and 40 years -14401 days is less than zero and yet 209 days long; in
-- seconds a year has 365.25 days. So all checks of intervals compare seconds.
CREATE FUNCTION queue_internal.check_delay(argument text, delay interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT isfinite(delay) THEN
        PERFORM queue_internal.raise_invalid(argument, 'must be finite', delay::text);
    ELSIF extract(epoch FROM delay) < 0 THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be negative', delay::text);
    -- Parts that cancel each other out are added to a time one after the other, and may leave its range on the way.
    ELSIF greatest(extract(epoch FROM delay) / 31557600, abs(extract(year FROM delay)), abs(extract(day FROM delay)) / 365.25,
                   abs(extract(hour FROM delay)) / 8766) > 100 THEN
        PERFORM queue_internal.raise_too_large(argument, '100 years', delay::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_delay IS 'Checks a delay: not negative, at most 100 years; null passes.';

-- 1 month -29 days may also end in the past. The result has only seconds. The default of a queue may be from before
-- queue.max_lease was lowered: then the setting applies.
CREATE FUNCTION queue_internal.checked_lease(lease interval, otherwise interval) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest interval;
BEGIN
    IF lease IS NULL THEN
        RETURN CASE
            WHEN extract(epoch FROM otherwise) <= 60 THEN make_interval(secs => extract(epoch FROM otherwise)::float8)
            WHEN otherwise IS NOT NULL THEN make_interval(secs => least(
                extract(epoch FROM otherwise),
                extract(epoch FROM queue_internal.setting('max_lease', '7d')::interval))::float8)
        END;
    ELSIF NOT isfinite(lease) THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be finite', lease::text);
    ELSIF extract(epoch FROM lease) <= 0 THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be greater than zero', lease::text);
    END IF;
    -- The setting is never less than a minute.
    IF extract(epoch FROM lease) > 60 THEN
        longest := queue_internal.setting('max_lease', '7d')::interval;
        IF extract(epoch FROM lease) > extract(epoch FROM longest) THEN
            PERFORM queue_internal.raise_too_large('lease', format('"queue.max_lease", which is %s', longest),
                                                   lease::text);
        END IF;
    END IF;
    RETURN make_interval(secs => extract(epoch FROM lease)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.checked_lease IS
    'Checks a lease and returns it; for null, returns the second argument.';

CREATE FUNCTION queue_internal.timeout_at(began timestamptz, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- What was not written by a push can be longer than a year, and too long to be added.
    RETURN began + make_interval(secs => least(extract(epoch FROM timeout), 31557600)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.timeout_at IS
    'When an attempt that began at this time exceeds its timeout; null for never.';
-- queue_internal.check_task_options(...)
--
--   Checks the options of a task, for push and push_many.
--   Errors:   22004, 22023, 54000

CREATE FUNCTION queue_internal.check_task_options(
    queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, key_ttl_from text DEFAULT NULL, kind text DEFAULT NULL, lease interval DEFAULT NULL,
    timeout interval DEFAULT NULL, start_by timestamptz DEFAULT NULL, ttl interval DEFAULT NULL, weight integer DEFAULT 1,
    batch bigint DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A call costs more than all checks here.
    IF queue IS NULL OR octet_length(queue) NOT BETWEEN 1 AND 128 THEN
        PERFORM queue_internal.check_name('queue', queue);
    ELSIF delay IS NOT NULL THEN
        PERFORM queue_internal.check_delay('delay', delay);
    END IF;
    IF priority IS NULL THEN
        PERFORM queue_internal.raise_null('priority');
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('delay', 'cannot be combined with "run_at"', delay::text);
    ELSIF NOT isfinite(run_at) THEN
        PERFORM queue_internal.raise_invalid('run_at', 'must be finite', run_at::text);
    ELSIF max_attempts < 1 THEN
        PERFORM queue_internal.raise_invalid('max_attempts', 'must be greater than zero', max_attempts::text);
    ELSIF max_attempts > 10000 THEN
        PERFORM queue_internal.raise_too_large('max_attempts', '10000', max_attempts::text);
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('headers', 'must be a JSON object', 'of type ' || jsonb_typeof(headers));
    ELSIF on_duplicate IS NULL THEN
        PERFORM queue_internal.raise_null('on_duplicate');
    ELSIF on_duplicate NOT IN ('skip', 'replace', 'reschedule', 'error') THEN
        PERFORM queue_internal.raise_invalid(
            'on_duplicate', 'must be one of skip, replace, reschedule, error', quote_literal(left(on_duplicate, 64)));
    ELSIF key IS NULL AND on_duplicate <> 'skip' THEN
        PERFORM queue_internal.raise_invalid('on_duplicate', 'needs a key', quote_literal(on_duplicate));
    END IF;
    IF key IS NOT NULL OR group_key IS NOT NULL OR backoff IS NOT NULL OR key_ttl IS NOT NULL
       OR after IS NOT NULL OR on_predecessor_failure IS NOT NULL OR key_ttl_from IS NOT NULL THEN
        PERFORM queue_internal.check_policy_options(
            key, group_key, after, backoff, key_ttl, on_predecessor_failure, key_ttl_from);
    END IF;
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.check_batch(batch);
    END IF;
    IF weight IS DISTINCT FROM 1 THEN
        PERFORM queue_internal.check_weight(queue, group_key, weight);
    END IF;
    IF kind IS NOT NULL AND octet_length(kind) NOT BETWEEN 1 AND 128 THEN
        PERFORM queue_internal.check_name('kind', kind);
    ELSIF lease IS NOT NULL OR timeout IS NOT NULL THEN
        PERFORM queue_internal.check_times(lease, timeout);
    END IF;
    IF start_by IS NOT NULL OR ttl IS NOT NULL THEN
        PERFORM queue_internal.check_deadline(start_by, ttl);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_task_options IS 'Checks the options of a task that is pushed.';

CREATE FUNCTION queue_internal.check_policy_options(
    key text, group_key text, after bigint[], backoff jsonb, key_ttl interval, on_predecessor_failure text,
    key_ttl_from text)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_key('key', key);
    PERFORM queue_internal.check_key('group_key', group_key);
    PERFORM queue_internal.check_delay('key_ttl', key_ttl);
    PERFORM queue_internal.check_backoff(backoff);
    IF key_ttl IS NOT NULL AND key IS NULL THEN
        PERFORM queue_internal.raise_invalid('key_ttl', 'needs a key', key_ttl::text);
    ELSIF extract(epoch FROM key_ttl) = 0 THEN
        PERFORM queue_internal.raise_invalid('key_ttl', 'must be greater than zero', key_ttl::text);
    ELSIF key_ttl_from NOT IN ('end', 'push') THEN
        PERFORM queue_internal.raise_invalid(
            'key_ttl_from', 'must be one of end, push', quote_literal(left(key_ttl_from, 64)));
    ELSIF key_ttl_from IS NOT NULL AND key_ttl IS NULL THEN
        PERFORM queue_internal.raise_invalid('key_ttl_from', 'needs "key_ttl"', quote_literal(key_ttl_from));
    END IF;
    IF after IS NOT NULL THEN
        PERFORM queue_internal.check_array('after', after);
        IF 1 > ANY (after) THEN
            PERFORM queue_internal.raise_invalid('after', 'must have ids greater than zero');
        END IF;
    END IF;
    IF on_predecessor_failure NOT IN ('fail', 'cancel', 'continue') THEN
        PERFORM queue_internal.raise_invalid(
            'on_predecessor_failure', 'must be one of fail, cancel, continue',
            quote_literal(left(on_predecessor_failure, 64)));
    ELSIF on_predecessor_failure IS NOT NULL AND after IS NULL THEN
        PERFORM queue_internal.raise_invalid(
            'on_predecessor_failure', 'needs "after"', quote_literal(on_predecessor_failure));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_policy_options IS
    'Checks the options of a task that concern the policies of its queue.';

CREATE FUNCTION queue_internal.check_backoff(backoff jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(backoff) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('backoff', 'must be a JSON object', 'of type ' || jsonb_typeof(backoff));
    ELSIF backoff IS NOT NULL THEN
        PERFORM queue_internal.apply_backoff('backoff', NULL, NULL, backoff);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_backoff IS 'Checks the backoff of a task, which may be null.';

CREATE FUNCTION queue_internal.check_times(lease interval, timeout interval) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.checked_lease(lease, NULL);
    IF NOT isfinite(timeout) THEN
        PERFORM queue_internal.raise_invalid('timeout', 'must be finite', timeout::text);
    ELSIF extract(epoch FROM timeout) <= 0 THEN
        PERFORM queue_internal.raise_invalid('timeout', 'must be greater than zero', timeout::text);
    ELSIF extract(epoch FROM timeout) > extract(epoch FROM interval '1 year') THEN
        PERFORM queue_internal.raise_too_large('timeout', '1 year', timeout::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_times IS 'Checks the lease and the timeout of a task, which may be null.';

-- Reports the limits of a queue only to roles that may push to it. "queue" is null if there may be several.
CREATE FUNCTION queue_internal.check_weight(queue text, group_key text, weight integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    IF weight IS NULL THEN
        PERFORM queue_internal.raise_null('weight');
    ELSIF weight < 1 THEN
        PERFORM queue_internal.raise_invalid('weight', 'must be greater than zero', weight::text);
    ELSIF weight > 1000000 THEN
        PERFORM queue_internal.raise_too_large('weight', '1000000', weight::text);
    END IF;
    SELECT q.* INTO source FROM queue.queues AS q
    WHERE q.name = check_weight.queue AND queue_internal.has_right('producer', q.name);
    IF weight > source.rate_limit THEN
        PERFORM queue_internal.raise_too_heavy(weight, source.name, 'rate_limit', source.rate_limit);
    ELSIF weight > source.group_rate_limit AND group_key IS NOT NULL THEN
        PERFORM queue_internal.raise_too_heavy(weight, source.name, 'group_rate_limit', source.group_rate_limit);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_weight IS 'Checks the weight of a task against its bounds and the limits of its queue.';

-- For pushes that were configured or made under a larger limit, and for pushes to several queues: they do not fail because
-- a limit is smaller than the weight.
CREATE FUNCTION queue_internal.possible_weight(queue text, group_key text, weight integer) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF weight = 1 THEN
        RETURN weight;
    END IF;
    RETURN coalesce(
        (SELECT least(weight, q.rate_limit, CASE WHEN possible_weight.group_key IS NOT NULL THEN q.group_rate_limit END)
         FROM queue.queues AS q WHERE q.name = possible_weight.queue), weight);
END
$$;
COMMENT ON FUNCTION queue_internal.possible_weight IS
    'Returns the weight of a task, or the limit of its queue or group if that is smaller.';

-- For tasks that were not inserted by a push. The trigger tasks_inserted has the same conditions, in one query for all tasks.
CREATE FUNCTION queue_internal.check_columns(task queue.tasks) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT isfinite(task.run_at) THEN
        PERFORM queue_internal.raise_invalid('run_at', 'must be finite', task.run_at::text);
    ELSIF task.max_attempts NOT BETWEEN 1 AND 10000 THEN
        PERFORM queue_internal.raise_invalid('max_attempts', 'must be from 1 to 10000', task.max_attempts::text);
    ELSIF task.state NOT IN ('waiting', 'queued', 'running') THEN
        PERFORM queue_internal.raise_invalid('state', 'must be waiting, queued or running');
    ELSIF jsonb_typeof(task.headers) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('headers', 'must be a JSON object', 'of type ' || jsonb_typeof(task.headers));
    ELSIF octet_length(task.kind) NOT BETWEEN 1 AND 128 THEN
        PERFORM queue_internal.check_name('kind', task.kind);
    -- 1000 years and 1 year in seconds. queue.max_lease may have been lowered since the push.
    ELSIF extract(epoch FROM task.lease) NOT BETWEEN 0.000001 AND 31557600000 THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be from 1 microsecond to 1000 years', task.lease::text);
    ELSIF extract(epoch FROM task.timeout) NOT BETWEEN 0.000001 AND 31557600 THEN
        PERFORM queue_internal.raise_invalid('timeout', 'must be from 1 microsecond to 1 year', task.timeout::text);
    ELSIF NOT isfinite(task.start_by) THEN
        PERFORM queue_internal.raise_invalid('start_by', 'must be finite', task.start_by::text);
    ELSIF task.weight NOT BETWEEN 1 AND 1000000 THEN
        PERFORM queue_internal.raise_invalid('weight', 'must be from 1 to 1000000', task.weight::text);
    ELSIF NOT (isfinite(task.created_at) AND isfinite(task.updated_at) AND isfinite(coalesce(task.lease_until, task.run_at))
               AND isfinite(coalesce(task.claimed_at, task.run_at))
               AND isfinite(coalesce(task.cancel_requested_at, task.run_at))) THEN
        RAISE EXCEPTION 'the times of a task must be finite' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_columns IS 'Refuses a task that could never run.';
-- How rows come into queue.tasks, for the triggers of the table. PostgreSQL parses the condition of a trigger for each
-- statement, so the conditions are short.
--
--   push    by push_plain, whose row needs no check. Recognized by the search_path of this function, and by a role that may
--           truncate the table: in it, the owner
--   dump    by the restore of a dump: pg_restore with several jobs loads the tables in any order and concurrently,
--           whatever foreign keys there are, while the worker runs. So a restored row must not need another one: a task
--           is not refused because its queue is missing, and its key comes with queue_internal.keys. The sweep finds
--           waiting tasks. Recognized by two settings that every dump makes before its first row, and by a role that may
--           truncate the table. A producer who makes these settings is checked like any other
--   insert  in another way
--
--   A trigger of a user may insert other rows during a push. These count as inserted.
--   Why no search_path: to see that of the statement. So each name, and each operator, is qualified.
CREATE FUNCTION queue_internal.how_inserted() RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
BEGIN
    IF path OPERATOR(pg_catalog.=) 'pg_catalog, queue_internal, queue_internal, pg_temp' AND pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.=) 0
       AND pg_catalog.has_table_privilege('queue.tasks', 'TRUNCATE') THEN
        RETURN 'push';
    ELSIF path OPERATOR(pg_catalog.=) '' AND pg_catalog.current_setting('check_function_bodies') OPERATOR(pg_catalog.=) 'off'
          AND pg_catalog.has_table_privilege('queue.tasks', 'TRUNCATE') THEN
        RETURN 'dump';
    END IF;
    RETURN 'insert';
END
$$;
COMMENT ON FUNCTION queue_internal.how_inserted IS
    'Returns how the statement came to insert into queue.tasks: push, dump or insert.';

-- Whether the trigger task_arrives applies to the row. Raises an error if a policy would refuse the row: it must not take its
-- key first, which would show whether the key is taken. Nor may it be inserted without its key through a view, where
-- the policies for the view's owner apply. The trigger itself has the rights of the owner, to whom no policy applies.
--   Why arguments: a role that inserts may not look up names in queue_internal, but the condition of the trigger has them.
CREATE FUNCTION queue_internal.check_arrival(queue text, how text, allowed boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF how OPERATOR(pg_catalog.=) 'dump' THEN
        RETURN false;
    ELSIF NOT allowed THEN
        RAISE EXCEPTION 'permission denied for queue "%"', queue
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'The role that inserts does not have the right of a producer for the queue.';
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.check_arrival IS
    'Returns whether a row that is inserted may take its key and its place in its group, or belongs to a dump.';
-- The trigger that runs before a task with a key or a group is inserted by a push, an INSERT, a COPY or a redrive. It
-- does not run for other tasks, nor for those of a dump, which restores keys and admissions as well
-- (how_inserted.sql).
--
--   If another task has the key, the INSERT skips the row.
--   Errors:   42501 without the right to push; 22023, 54000 for invalid keys in a plain INSERT

CREATE FUNCTION queue_internal.task_arrives() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A role that could attach it to a table of its own could have its code called by the owner.
    IF TG_RELID <> 'queue.tasks'::regclass THEN
        RAISE EXCEPTION 'this trigger function is for queue.tasks alone' USING ERRCODE = 'wrong_object_type';
    END IF;
    IF NEW.state = 'waiting' THEN
        NEW.admission := 2;
    END IF;
    IF NEW.key IS NOT NULL THEN
        PERFORM queue_internal.check_key('key', NEW.key);
        IF NOT queue_internal.take_key(NEW.queue, NEW.key, NEW.id, keeps_errors => false) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.group_key IS NOT NULL AND NEW.admission = 0 THEN
        PERFORM queue_internal.check_key('group_key', NEW.group_key);
        -- If the queue has delayed_head "pass", a delayed task does not block its group.
        NEW.admission := CASE WHEN NEW.run_at > clock_timestamp() AND EXISTS (
            SELECT FROM queue.queues AS q WHERE q.name = NEW.queue AND q.delayed_head = 'pass') THEN 0 ELSE 2 END;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.task_arrives IS
    'Takes the key of a new task, and blocks it until it is its turn in its group.';

CREATE TRIGGER task_arrives BEFORE INSERT ON queue.tasks
    FOR EACH ROW WHEN ((NEW.key IS NOT NULL OR NEW.group_key IS NOT NULL OR NEW.state = 'waiting')
                       AND queue_internal.check_arrival(
                           NEW.queue, queue_internal.how_inserted(),
                           NOT row_security_active('queue.tasks'::regclass)
                           OR queue_internal.has_right('producer', NEW.queue)))
    EXECUTE FUNCTION queue_internal.task_arrives();
COMMENT ON TRIGGER task_arrives ON queue.tasks IS 'Keys and groups of new tasks, however they are inserted.';
-- Topics and patterns of topics, as in AMQP: words of letters, digits, _ and -, separated by dots. In
-- a pattern * stands for one word and # for any number of words, none included.

CREATE FUNCTION queue_internal.check_topic(argument text, value text, wildcards boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    word CONSTANT text := CASE WHEN wildcards THEN '([A-Za-z0-9_-]+|[*]|#)' ELSE '[A-Za-z0-9_-]+' END;
BEGIN
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF value = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(value) > 255 THEN
        PERFORM queue_internal.raise_too_large(argument, '255 bytes', octet_length(value) || ' bytes');
    ELSIF value !~ format('^%s([.]%s)*$', word, word) THEN
        PERFORM queue_internal.raise_invalid(
            argument, 'must be words of A-Z, a-z, 0-9, _ and -'
                      || CASE WHEN wildcards THEN ', or * or #,' ELSE '' END || ' separated by dots',
            quote_literal(left(value, 64)));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_topic IS
    'Checks a topic, or with wildcards a pattern of topics: 1 to 255 bytes of words and dots.';

-- The regular expression matches the topic with a dot before it, so that every word has one. A run of wildcards
-- stands for a number of words, or for that number and more. "More" is written once, at its end, to avoid
-- backtracking.
CREATE FUNCTION queue_internal.topic_regex(pattern text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    regex text := '';
    more  boolean := false;
    word  text;
BEGIN
    FOREACH word IN ARRAY string_to_array(pattern, '.') LOOP
        IF word = '#' THEN
            more := true;
        ELSIF word = '*' THEN
            regex := regex || '[.][^.]+';
        ELSE
            regex := regex || CASE WHEN more THEN '(?:[.][^.]+)*' ELSE '' END || '[.]' || word;
            more := false;
        END IF;
    END LOOP;
    RETURN '^' || regex || CASE WHEN more THEN '(?:[.][^.]+)*' ELSE '' END || '$';
END
$$;
COMMENT ON FUNCTION queue_internal.topic_regex IS
    'Returns the regular expression of a pattern, for a topic with a dot before it.';

-- Rows that are not written by queue.bind() must be valid too, or queue.publish() would fail for all queues.
CREATE FUNCTION queue_internal.is_topic_regex(regex text, pattern text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', pattern, true);
    RETURN regex = queue_internal.topic_regex(pattern);
END
$$;
COMMENT ON FUNCTION queue_internal.is_topic_regex IS
    'Returns whether this is the regular expression of that pattern; raises if the pattern is invalid.';

ALTER TABLE queue.bindings ADD CONSTRAINT bindings_pattern_check
    CHECK (queue_internal.is_topic_regex(topic_regex, topic_pattern));
-- What the trigger tasks_inserted does, for one row: where triggers see no transition tables, and for a plain push that a
-- trigger of the user has made less plain.
CREATE FUNCTION queue_internal.check_inserted(task queue.tasks, restored boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    PERFORM queue_internal.check_columns(task);
    IF NOT restored THEN
        SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = task.queue;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_queue(task.queue);
        ELSIF source.max_queued IS NOT NULL AND task.errors IS NULL THEN
            PERFORM queue_internal.check_depth(source, 1, (task.state = 'queued')::integer);
        END IF;
        IF source.ttl IS NOT NULL AND task.errors IS NULL AND task.token = 0 AND task.start_by IS NULL THEN
            PERFORM queue_internal.set_start_by(source, ARRAY[task.id]);
        END IF;
    END IF;
    PERFORM queue_internal.check_backoff(task.backoff);
    IF task.admission <> 0 AND task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_inserted IS
    'Checks a new task and its queue, and leaves an event for its group if it is blocked.';
-- The trigger for every way into queue.tasks: push, a plain INSERT, COPY.
--
--   Refuses tasks of unknown and full queues and tasks that could never run, gives tasks without a start deadline that of
--   their queue, and leaves an event for each group with blocked tasks. A task with errors is a dead letter that is put
--   back: it is never refused and gets no deadline.
--   Errors:   QX002 no such queue; QX006 the queue is full; 22023 for an invalid column in a plain INSERT
--   Why a statement trigger: one lookup of the queues for a million rows.

CREATE FUNCTION queue_internal.tasks_inserted() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- A plan from when there were few queues would read all of them for each row.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    arrival record;
    source  queue.queues;
    misfit  queue.tasks;
BEGIN
    -- A role that could attach it to a table of its own could have its code called by the owner.
    IF TG_RELID <> 'queue.tasks'::regclass THEN
        RAISE EXCEPTION 'this trigger function is for queue.tasks alone' USING ERRCODE = 'wrong_object_type';
    END IF;
    -- Most tasks are as simple as these, in queues without policies for pushes.
    PERFORM FROM inserted AS i LEFT JOIN queue.queues AS q ON q.name = i.queue
    WHERE q.name IS NULL OR q.max_queued IS NOT NULL OR q.ttl IS NOT NULL
       OR i.state <> 'queued' OR i.admission <> 0 OR i.weight <> 1
       OR num_nonnulls(i.max_attempts, i.backoff, i.kind, i.lease, i.timeout, i.start_by, i.headers, i.lease_until, i.claimed_at,
                       i.cancel_requested_at) > 0
       OR NOT (isfinite(i.run_at) AND isfinite(i.created_at) AND isfinite(i.updated_at))
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- The conditions of check_columns, which raises the error.
    SELECT i.* INTO misfit FROM inserted AS i
    WHERE i.state NOT IN ('waiting', 'queued', 'running') OR NOT isfinite(i.run_at)
       OR i.max_attempts NOT BETWEEN 1 AND 10000 OR jsonb_typeof(i.headers) <> 'object'
       OR NOT (isfinite(i.created_at) AND isfinite(i.updated_at) AND isfinite(coalesce(i.lease_until, i.run_at))
               AND isfinite(coalesce(i.claimed_at, i.run_at)) AND isfinite(coalesce(i.cancel_requested_at, i.run_at)))
       OR octet_length(i.kind) NOT BETWEEN 1 AND 128
       -- 1000 years and 1 year in seconds. queue.max_lease may have been lowered since the push.
       OR extract(epoch FROM i.lease) NOT BETWEEN 0.000001 AND 31557600000
       OR extract(epoch FROM i.timeout) NOT BETWEEN 0.000001 AND 31557600
       OR NOT isfinite(i.start_by)
       OR i.weight NOT BETWEEN 1 AND 1000000
    LIMIT 1;
    IF FOUND THEN
        PERFORM queue_internal.check_columns(misfit);
    END IF;
    PERFORM queue_internal.check_backoff(b.backoff)
    FROM (SELECT DISTINCT i.backoff FROM inserted AS i WHERE i.backoff IS NOT NULL) AS b;
    FOR arrival IN
        -- Those of a dump may be admitted already.
        SELECT i.queue, bool_or(i.admission <> 0) AS grouped, count(*) FILTER (WHERE i.errors IS NULL) AS fresh,
               count(*) FILTER (WHERE i.errors IS NULL AND i.state = 'queued') AS queued,
               bool_or(i.errors IS NULL AND i.token = 0 AND i.start_by IS NULL) AS undated
        FROM inserted AS i GROUP BY i.queue
    LOOP
        IF TG_NARGS = 0 THEN
            SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = arrival.queue;
            IF NOT FOUND THEN
                PERFORM queue_internal.raise_unknown_queue(arrival.queue);
            ELSIF source.max_queued IS NOT NULL AND arrival.fresh > 0 THEN
                PERFORM queue_internal.check_depth(source, arrival.fresh, arrival.queued);
            END IF;
            IF source.ttl IS NOT NULL AND arrival.undated THEN
                PERFORM queue_internal.set_start_by(source, ARRAY(
                    SELECT i.id FROM inserted AS i
                    WHERE i.queue = arrival.queue AND i.errors IS NULL AND i.token = 0 AND i.start_by IS NULL));
            END IF;
        END IF;
        IF arrival.grouped THEN
            INSERT INTO queue_internal.events (queue, group_key, arrived)
            SELECT i.queue, i.group_key, min(i.id) FROM inserted AS i
            WHERE i.queue = arrival.queue AND i.group_key IS NOT NULL AND i.admission <> 0
            GROUP BY i.queue, i.group_key;
            -- Dead letters that are put back.
            PERFORM queue_internal.note_return(f.queue, f.group_key, f.id)
            FROM (SELECT i.queue, i.group_key, min(i.id) AS id FROM inserted AS i
                  WHERE i.queue = arrival.queue AND i.group_key IS NOT NULL AND i.errors IS NOT NULL
                  GROUP BY i.queue, i.group_key) AS f;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.tasks_inserted IS
    'Refuses tasks of unknown and full queues, and leaves an event for each group with blocked tasks.';

CREATE TRIGGER tasks_inserted AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT
    WHEN (queue_internal.how_inserted() = 'insert')
    EXECUTE FUNCTION queue_internal.tasks_inserted();
COMMENT ON TRIGGER tasks_inserted ON queue.tasks IS
    'Gives a plain INSERT or COPY the same effect as a push.';

-- For the tasks of a dump: see how_inserted.sql.
CREATE TRIGGER tasks_restored AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT
    WHEN (queue_internal.how_inserted() = 'dump')
    EXECUTE FUNCTION queue_internal.tasks_inserted('restored');
COMMENT ON TRIGGER tasks_restored ON queue.tasks IS
    'Lets a dump be restored in any order.';
-- Lets a dump be restored: CREATE EXTENSION has just created the queue "default", and now the dump brings the one that
-- was configured, which replaces it. How a dump is recognized: how_inserted.sql.

CREATE FUNCTION queue_internal.restore_default_queue() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM queue.queues AS q WHERE q.name = NEW.name;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_default_queue IS
    'Lets the queue "default" of a dump replace the one that CREATE EXTENSION made.';

CREATE TRIGGER restore_default_queue BEFORE INSERT ON queue.queues
    FOR EACH ROW WHEN (
        NEW.name = 'default' AND current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.restore_default_queue();
COMMENT ON TRIGGER restore_default_queue ON queue.queues IS
    'Lets the queue "default" of a dump replace the one that CREATE EXTENSION made.';
-- queue_internal.backoff(queue, task)
--
--   Returns the delay after a failed attempt. What the push of the task did not specify comes from the options of the
--   queue. Jitter spreads the retries of tasks that failed together. The maximum is never exceeded.

CREATE FUNCTION queue_internal.backoff(source queue.queues, task queue.tasks) RETURNS interval
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base    float8;
    seconds float8;
BEGIN
    IF task.backoff IS NOT NULL THEN
        source := queue_internal.apply_backoff('backoff', source, source, task.backoff);
    END IF;
    base := extract(epoch FROM source.backoff_base);
    seconds := CASE source.backoff_kind
        WHEN 'fixed' THEN base
        WHEN 'linear' THEN base * task.attempt
        ELSE base * 2.0 ^ least(task.attempt - 1, 60)
    END;
    seconds := least(seconds, extract(epoch FROM source.backoff_max)::float8);
    RETURN make_interval(secs => seconds * (1 - source.backoff_jitter * random()));
END
$$;
COMMENT ON FUNCTION queue_internal.backoff IS 'Returns the delay after a failed attempt of a task.';
-- Which task has a key, and for how long.
--
--   A live task of the queue has the key. After the task completed or was cancelled, it keeps the key for its
--   "key_ttl". A row of queue_internal.keys only counts while its task lives or its time has not passed, so that a task
--   which somebody deletes by hand does not keep its key for ever.
--   A push that replaces a running task takes over the key, and waits for that task as for a predecessor. If it ends
--   without having run, it gives the key back.
--   At REPEATABLE READ, a transaction that has taken a key itself may still see the row of the task that had it before
--   and has ended since. Then the newer task counts. That is wrong for a dead letter that was put back meanwhile: its id
--   is smaller, and a push with its key returns the id of the task that has ended.

CREATE FUNCTION queue_internal.check_key(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(value) > 512 THEN
        PERFORM queue_internal.raise_too_large(argument, '512 bytes', octet_length(value) || ' bytes');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_key IS 'Checks a key or a group key: 1 to 512 bytes; null passes.';

CREATE FUNCTION queue_internal.stored_ttl(key_ttl interval, key_ttl_from text) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE key_ttl_from WHEN 'push' THEN - key_ttl ELSE key_ttl END;
END
$$;
COMMENT ON FUNCTION queue_internal.stored_ttl IS 'Returns a key_ttl as tables store it: negative if it counts from the push.';

-- Locks the running task that the holder of a key is to replace, the holder, and the key, in the order of the end of a task.
-- While another transaction has one of them locked, this one waits with none of them, because that transaction can need the
-- others. Returns false if the holder is gone.
CREATE FUNCTION queue_internal.lock_holder(holder bigint, queue text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    replaced bigint;
    is_live  boolean;
    awaited  text;
BEGIN
    LOOP
        replaced := (
            SELECT r.id FROM queue_internal.dependencies AS d JOIN queue.tasks AS r ON r.id = d.predecessor_id
            WHERE d.task_id = holder AND r.queue = lock_holder.queue AND r.key = lock_holder.key AND r.state = 'running'
            ORDER BY r.id LIMIT 1);
        BEGIN
            PERFORM FROM queue.tasks AS t WHERE t.id = replaced FOR KEY SHARE NOWAIT;
            PERFORM FROM queue.tasks AS t WHERE t.id = holder FOR UPDATE NOWAIT;
            is_live := FOUND;
            PERFORM FROM queue_internal.keys AS k WHERE k.queue = lock_holder.queue AND k.key = lock_holder.key
            FOR NO KEY UPDATE NOWAIT;
            RETURN is_live;
        EXCEPTION WHEN lock_not_available THEN
            -- Has unlocked all three.
        END;
        FOREACH awaited IN ARRAY ARRAY['replaced', 'holder', 'key'] LOOP
            BEGIN
                CASE awaited
                    WHEN 'replaced' THEN PERFORM FROM queue.tasks AS t WHERE t.id = replaced FOR KEY SHARE;
                    WHEN 'holder' THEN PERFORM FROM queue.tasks AS t WHERE t.id = holder FOR UPDATE;
                    ELSE PERFORM queue_internal.lock_key(queue, key, true);
                END CASE;
                RAISE SQLSTATE 'QX000';
            EXCEPTION WHEN SQLSTATE 'QX000' THEN
                -- Has unlocked it.
            END;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_holder IS
    'Locks the task that has a key, the running task that it replaces, and the key; false if the task is gone.';

-- A task past its start deadline will never run, so no other may be refused or skipped in its favour, unless its key_ttl
-- counts. If it cannot be ended, because of a constraint that somebody added, a call for one task fails; a call for many
-- leaves out the one that needs the key ("keeps_errors"). The error itself can contain the row, which a producer may not
-- read: it is not passed on.
CREATE FUNCTION queue_internal.end_late_holder(id bigint, queue text, key text, keeps_errors boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF (SELECT t.token = 0 AND t.start_by <= clock_timestamp() FROM queue.tasks AS t
        WHERE t.id = end_late_holder.id AND t.queue = end_late_holder.queue) IS NOT TRUE THEN
        RETURN false;
    ELSIF NOT queue_internal.lock_holder(id, queue, key) THEN
        RETURN true;
    END IF;
    BEGIN
        RETURN (queue_internal.end_expired(ARRAY[id], NULL)).ended > 0;
    EXCEPTION
        WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            IF keeps_errors THEN
                RETURN false;
            END IF;
            RAISE EXCEPTION 'key % of queue % cannot be taken from task %', to_json(key), to_json(queue), id
                USING ERRCODE = SQLSTATE, DETAIL = 'The start deadline of that task has passed, and an error prevents its end.',
                      HINT = 'The background worker, and CALL queue.maintain(), write the error to the server log.';
    END;
END
$$;
COMMENT ON FUNCTION queue_internal.end_late_holder IS
    'Ends the task that has a key if its start deadline has passed; returns whether it has ended.';

-- Waits for a transaction that is taking the key for another task: if that one rolls back, the key is free, and this
-- push is not lost.
CREATE FUNCTION queue_internal.take_key(
    queue text, key text, task_id bigint, ttl interval DEFAULT NULL, keeps_errors boolean DEFAULT true) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    holder record;
BEGIN
    LOOP
        INSERT INTO queue_internal.keys (queue, key, task_id, ttl)
        VALUES (take_key.queue, take_key.key, take_key.task_id, take_key.ttl)
        ON CONFLICT ON CONSTRAINT keys_pkey DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
        -- A scalar subquery, because EXISTS may be answered by reading the whole table once.
        SELECT k.task_id, k.expires_at,
               k.task_id = take_key.task_id OR k.expires_at <= clock_timestamp()
               OR k.expires_at IS NULL
                  AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = k.task_id AND t.queue = k.queue) IS NULL AS gone
        INTO holder FROM queue_internal.keys AS k
        WHERE k.queue = take_key.queue AND k.key = take_key.key
        ORDER BY k.task_id DESC LIMIT 1;
        -- Only from the holder that was read: an UPDATE that waited for another push to take the key would see its
        -- new row, but not yet the task that came with it.
        IF holder.gone THEN
            UPDATE queue_internal.keys AS k
            SET task_id = take_key.task_id, expires_at = NULL,
                replaced_ttl = CASE WHEN k.expires_at = '-infinity' OR k.task_id = take_key.task_id THEN k.replaced_ttl END,
                ttl = coalesce(take_key.ttl, CASE WHEN k.task_id = take_key.task_id THEN k.ttl END)
            WHERE k.queue = take_key.queue AND k.key = take_key.key
              AND k.task_id = holder.task_id AND k.expires_at IS NOT DISTINCT FROM holder.expires_at;
            IF FOUND THEN
                RETURN true;
            END IF;
        ELSIF holder.task_id IS NOT NULL AND NOT queue_internal.end_late_holder(
                holder.task_id, take_key.queue, take_key.key, keeps_errors) THEN
            RETURN false;
        END IF;
        -- The row changed meanwhile, or the key is free now: try again.
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.take_key IS
    'Takes a key for a task unless another task has it; returns whether the task has it now.';

-- For a new task that a trigger of the user has suppressed.
CREATE FUNCTION queue_internal.give_back_key(queue text, key text, task_id bigint, replaced bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF replaced IS NOT NULL THEN
        UPDATE queue_internal.keys AS k SET task_id = replaced, ttl = k.replaced_ttl, replaced_ttl = NULL
        WHERE k.queue = give_back_key.queue AND k.key = give_back_key.key AND k.task_id = give_back_key.task_id;
    ELSE
        DELETE FROM queue_internal.keys AS k
        WHERE k.queue = give_back_key.queue AND k.key = give_back_key.key AND k.task_id = give_back_key.task_id;
    END IF;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.give_back_key IS
    'Gives the key of a task to the running one that it was to replace, or frees it; returns whether the task had it.';

-- Without a lock: another push may take it before this one does. A task past its start deadline gives its key up. LIMIT,
-- because an old snapshot can show two tasks with the key.
CREATE FUNCTION queue_internal.is_key_free(queue text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN (SELECT k.key FROM queue_internal.keys AS k
            WHERE k.queue = is_key_free.queue AND k.key = is_key_free.key
              AND (k.expires_at > clock_timestamp()
                   OR k.expires_at IS NULL
                      AND (SELECT t.id FROM queue.tasks AS t
                           WHERE t.id = k.task_id AND t.queue = k.queue
                             AND (t.token = 0 AND t.start_by <= clock_timestamp()) IS NOT TRUE)
                          IS NOT NULL)
            LIMIT 1) IS NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.is_key_free IS 'Returns whether a push could take a key.';

-- Returns false if it would have to wait and "wait" is false. Returns true also if no task has the key.
CREATE FUNCTION queue_internal.lock_key(queue text, key text, wait boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF wait THEN
        PERFORM FROM queue_internal.keys AS k WHERE k.queue = lock_key.queue AND k.key = lock_key.key
        FOR NO KEY UPDATE;
        RETURN true;
    END IF;
    PERFORM FROM queue_internal.keys AS k WHERE k.queue = lock_key.queue AND k.key = lock_key.key
    FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (
        SELECT FROM queue_internal.keys AS k WHERE k.queue = lock_key.queue AND k.key = lock_key.key);
END
$$;
COMMENT ON FUNCTION queue_internal.lock_key IS
    'Locks the row of a key, so that no push takes it meanwhile; false if that would have to wait.';

CREATE FUNCTION queue_internal.release_key(task queue.tasks, at_once boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
BEGIN
    -- In a statement of its own: a task that replaces this one may be giving the key back, and the snapshots of the
    -- statements that follow show that. Who must not wait has locked it already (lock_to_end).
    PERFORM queue_internal.lock_key(task.queue, task.key, true);
    IF task.state = 'waiting' THEN
        UPDATE queue_internal.keys AS k SET task_id = r.id, ttl = k.replaced_ttl, replaced_ttl = NULL
        FROM queue_internal.dependencies AS d JOIN queue.tasks AS r ON r.id = d.predecessor_id
        WHERE d.task_id = task.id AND r.queue = task.queue AND r.key = task.key AND r.state = 'running'
          AND k.queue = task.queue AND k.key = task.key AND k.task_id = task.id;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF NOT at_once THEN
        UPDATE queue_internal.keys AS k
        SET expires_at = CASE WHEN extract(epoch FROM k.ttl) < 0 THEN task.created_at - k.ttl
                              ELSE now + coalesce(k.ttl, q.key_ttl) END
        FROM queue.queues AS q
        WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id
          AND q.name = task.queue AND coalesce(k.ttl, q.key_ttl) IS NOT NULL;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    DELETE FROM queue_internal.keys AS k
    WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id;
END
$$;
COMMENT ON FUNCTION queue_internal.release_key IS
    'Releases the key of a task that has ended, at once or after its key_ttl.';

-- A running task whose key has been taken over by the task that replaces it. Locks the key, so that it is not given back
-- meanwhile: a caller that must not wait has locked it already. A snapshot from before the replacement does not show it; then
-- locking the row raises 40001.
CREATE FUNCTION queue_internal.is_replaced(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- Not in one statement, because that would lock the table of keys for a task without a key.
    IF task.key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM queue_internal.lock_key(task.queue, task.key, true);
    RETURN EXISTS (
        SELECT FROM queue_internal.keys AS k
        WHERE k.queue = task.queue AND k.key = task.key AND k.task_id <> task.id
          AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = k.task_id AND t.queue = k.queue) = 'waiting');
END
$$;
COMMENT ON FUNCTION queue_internal.is_replaced IS
    'Locks the key of a running task; returns whether another task has replaced it and waits for its end.';

-- Called by a push that found its key taken. If "id" is null the push has to try again: the key is free now, or can
-- be taken over from the task in "running", which the pushed task has to wait for.
CREATE FUNCTION queue_internal.resolve_duplicate(
    pushed queue.tasks, on_duplicate text, OUT id bigint, OUT running bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder queue_internal.keys;
BEGIN
    SELECT k.* INTO holder FROM queue_internal.keys AS k
    WHERE k.queue = pushed.queue AND k.key = pushed.key
    ORDER BY k.task_id DESC LIMIT 1;
    IF on_duplicate = 'error' AND holder.task_id IS NOT NULL THEN
        PERFORM queue_internal.raise_duplicate_key(pushed.queue, pushed.key, holder.task_id, holder.expires_at);
    ELSIF on_duplicate = 'skip' OR holder.task_id IS NULL OR holder.expires_at IS NOT NULL THEN
        id := holder.task_id;
        RETURN;
    END IF;
    -- Waits for a claim in progress: if it rolls back, the task is still to be changed.
    UPDATE queue.tasks AS t SET run_at = pushed.run_at, updated_at = clock_timestamp()
    WHERE t.id = holder.task_id AND t.queue = pushed.queue AND t.state IN ('queued', 'waiting')
    RETURNING t.group_key, t.admission INTO pushed.group_key, pushed.admission;
    IF NOT FOUND THEN
        IF on_duplicate = 'reschedule' THEN
            SELECT t.id INTO id FROM queue.tasks AS t WHERE t.id = holder.task_id AND t.queue = pushed.queue;
            RETURN;
        END IF;
        -- First the task and then its key, in the same order as the end of a task.
        SELECT t.id INTO running FROM queue.tasks AS t
        WHERE t.id = holder.task_id AND t.queue = pushed.queue AND t.state = 'running' FOR KEY SHARE;
        PERFORM queue_internal.lock_key(pushed.queue, pushed.key, true);
        -- A new snapshot, because the attempt may have ended while this waited for the transaction that requeued the
        -- task and had the key locked. -infinity makes the key free for this transaction, whatever the clock does.
        UPDATE queue_internal.keys AS k SET expires_at = '-infinity', ttl = NULL, replaced_ttl = k.ttl
        WHERE k.queue = pushed.queue AND k.key = pushed.key AND k.task_id = running AND k.expires_at IS NULL
          AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = running) = 'running';
        IF NOT FOUND THEN
            running := NULL;
        END IF;
        RETURN;
    END IF;
    IF on_duplicate = 'replace' THEN
        UPDATE queue.tasks AS t
        SET payload = pushed.payload, kind = pushed.kind, lease = pushed.lease, timeout = pushed.timeout,
            start_by = pushed.start_by, weight = pushed.weight, headers = pushed.headers, priority = pushed.priority,
            -- It was admitted with its old weight (rates.sql).
            admission = CASE WHEN t.admission = 1 AND t.weight <> pushed.weight THEN 2 ELSE t.admission END
        WHERE t.id = holder.task_id
        RETURNING t.admission INTO pushed.admission;
    END IF;
    id := holder.task_id;
    pushed.id := id;
    PERFORM queue_internal.recheck_group(pushed);
END
$$;
COMMENT ON FUNCTION queue_internal.resolve_duplicate IS
    'Applies on_duplicate to the task that has the key; returns that task''s id, or the running task to wait for.';

CREATE FUNCTION queue_internal.retire_keys(max_keys integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    -- In a variable, because a volatile function is no condition for an index.
    moment  CONSTANT timestamptz := clock_timestamp();
    expired record;
    retired integer := 0;
BEGIN
    FOR expired IN
        SELECT k.queue, k.key FROM queue_internal.keys AS k WHERE k.expires_at <= moment
        ORDER BY k.expires_at LIMIT max_keys FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.keys AS k WHERE k.queue = expired.queue AND k.key = expired.key;
        retired := retired + 1;
    END LOOP;
    RETURN retired >= max_keys;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_keys IS
    'Deletes keys whose time has passed; returns whether there may be more.';
-- Groups: which tasks of a group may run.
--
--   A task of a group is pushed as blocked (admission 2), and is not in tasks_order: a claim never passes over tasks
--   that have to wait, however many there are. Where one task of a group may run at a time, the end of that task admits
--   the next one in the same transaction (hand_over.sql). Whatever else may admit one (a push, a retry) leaves an event; the
--   claim that processes it admits as many as the limit allows (admission 1), the smallest id first. So at
--   most "max_running_per_group" of a group are admitted, and only those can be claimed. A task with a smaller id that
--   comes later, by a retry or from another queue, takes the place of an admitted one that does not run yet.
--
--   A group can also have a rate limit (rates.sql), which decides together with max_running_per_group.
--
--   Where a delayed task does not hold up its group (delayed_head), it is open (admission 0) until it becomes due.
--
--   Exact, because one transaction at a time admits tasks of a group, and sees everything committed before: it holds
--   the group's row in queue_internal.locks from before it counts until its own commit. Nobody waits for that row: a
--   claim that finds it locked postpones the event. Each queue has its own rows, so that a transaction that stays open
--   after it admitted tasks of many groups does not delay other queues.

CREATE FUNCTION queue_internal.lock_group(queue text, group_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Two groups of a queue may share a row.
    wanted CONSTANT integer := hashtext(group_key) & 4095;
BEGIN
    PERFORM FROM queue_internal.locks AS l
    WHERE l.queue = lock_group.queue AND l.number = wanted FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    ELSIF EXISTS (SELECT FROM queue_internal.locks AS l WHERE l.queue = lock_group.queue AND l.number = wanted) THEN
        RETURN false;
    END IF;
    -- This is the first group of the queue. One transaction at a time inserts the rows, and no other can lock them
    -- before it commits.
    PERFORM FROM queue_internal.locks AS l
    WHERE l.queue = lock_group.queue AND l.number = -1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO queue_internal.locks (queue, number)
    SELECT lock_group.queue, i FROM generate_series(0, 4095) AS i ON CONFLICT DO NOTHING;
    PERFORM FROM queue_internal.locks AS l
    WHERE l.queue = lock_group.queue AND l.number = wanted FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_group IS
    'Makes this transaction the only one that admits tasks of the group; false if another one does.';

CREATE FUNCTION queue_internal.queue_created() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.locks (queue, number) VALUES (NEW.name, -1) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.queue_created IS
    'Inserts the row that lock_group() locks for the first group of a queue.';

CREATE TRIGGER queue_created AFTER INSERT ON queue.queues
    FOR EACH ROW EXECUTE FUNCTION queue_internal.queue_created();
COMMENT ON TRIGGER queue_created ON queue.queues IS 'Prepares the locks of a new queue''s groups.';

-- Returns how many tasks of a group are admitted, how many of those are not running yet, and the last of these. "used" is
-- how much of the group's rate limit these and the starts of the last period use up, null if it has none. This is one query,
-- so that a task that starts meanwhile is counted once. "first_id": no task of the group has a smaller id (group_heads.sql).
CREATE FUNCTION queue_internal.admitted_of(
    source queue.queues, group_key text, first_id bigint DEFAULT -9223372036854775808,
    OUT admitted bigint, OUT ready bigint, OUT latest bigint, OUT used bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, because the planner would see that it is below 2 and use tasks_order.
    is_admitted CONSTANT smallint := 1;
    since       CONSTANT timestamptz := clock_timestamp() - source.rate_period;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE t.state = 'queued'), max(t.id) FILTER (WHERE t.state = 'queued'),
           CASE WHEN source.group_rate_limit IS NOT NULL THEN
               coalesce(sum(least(t.weight, source.group_rate_limit)) FILTER (WHERE t.state = 'queued'), 0)
               + (SELECT coalesce(sum(s.weight), 0) FROM queue_internal.group_starts AS s
                  WHERE s.queue = source.name AND s.group_key = admitted_of.group_key
                    AND s.started_at > since AND s.started_at < since + 2 * source.rate_period) END
    INTO admitted, ready, latest, used
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.group_key = admitted_of.group_key
      -- Not a condition on the id alone, for which the planner would use the index on ids.
      AND (t.admission, t.id) >= (is_admitted, first_id) AND t.admission <= is_admitted;
END
$$;
COMMENT ON FUNCTION queue_internal.admitted_of IS 'How many tasks of a group are admitted, and how much of its rate limit they use up.';

CREATE FUNCTION queue_internal.waiting_before(
    source queue.queues, group_key text, id bigint, first_id bigint) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_blocked CONSTANT smallint := 2;
BEGIN
    RETURN (SELECT count(*) FROM (
                SELECT FROM queue.tasks AS t
                WHERE t.queue = source.name AND t.group_key = waiting_before.group_key
                  AND (t.admission, t.id) >= (is_blocked, first_id) AND (t.admission, t.id) < (is_blocked, waiting_before.id)
                  AND t.state = 'waiting'
                ORDER BY t.admission, t.id LIMIT source.max_running_per_group) AS b);
END
$$;
COMMENT ON FUNCTION queue_internal.waiting_before IS
    'Returns how many places of a group the waiting tasks before an id take.';

-- Returns what to do next about a group: admit a task, or withdraw the admission of one; null if nothing. "not_before" is
-- when the rate limit will allow the next task, null if the rate limit is not the reason that it waits. "opens": the task is
-- delayed and others pass it, so that it becomes open, whatever the limit.
CREATE FUNCTION queue_internal.next_admission(
    source queue.queues, group_key text, admitted bigint, ready bigint, latest bigint, used bigint,
    first_id bigint DEFAULT -9223372036854775808, OUT admit bigint, OUT opens boolean, OUT withdraw bigint, OUT not_before timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_open    CONSTANT smallint := 0;
    is_blocked CONSTANT smallint := 2;
    blocking   CONSTANT boolean := source.delayed_head = 'block';
    first      record;
    waiting    bigint := 0;
    has_room   boolean;
BEGIN
    IF admitted > source.max_running_per_group OR used > source.group_rate_limit AND ready > 0 THEN
        withdraw := latest;
        RETURN;
    END IF;
    -- Checks the first thousand of the open tasks, which are not due yet. A claim meets the others when they become
    -- due (block_due_tasks). Both are read in the order of tasks_group, because the index on ids has the tasks of all
    -- queues.
    SELECT w.id, w.state, w.weight, w.run_at INTO first FROM (
        (SELECT t.id, t.state, t.weight, t.run_at FROM queue.tasks AS t
         WHERE t.queue = source.name AND t.group_key = next_admission.group_key
           AND (t.admission, t.id) >= (is_blocked, first_id)
           AND (t.state = 'queued' OR blocking)
         ORDER BY t.admission, t.id LIMIT 1)
        UNION ALL
        (SELECT o.id, o.state, o.weight, o.run_at FROM (
             SELECT t.id, t.state, t.weight, t.run_at FROM queue.tasks AS t
             WHERE t.queue = source.name AND t.group_key = next_admission.group_key
               AND (t.admission, t.id) >= (is_open, first_id) AND t.admission <= is_open
             ORDER BY t.admission, t.id LIMIT 1000) AS o
         WHERE o.state = 'queued' AND (blocking OR o.run_at <= clock_timestamp())
         ORDER BY o.id LIMIT 1)) AS w
    ORDER BY w.id LIMIT 1;
    IF first.id IS NULL THEN
        RETURN;
    ELSIF first.state = 'waiting' THEN
        -- It waits for its predecessors or for an event, and takes a place as a task that runs does. So there is no room
        -- behind as many of them as may run.
        SELECT b.id, b.state, b.weight, b.run_at INTO first FROM (
            SELECT t.id, t.state, t.weight, t.run_at, t.admission FROM queue.tasks AS t
            WHERE t.queue = source.name AND t.group_key = next_admission.group_key
              AND (t.admission, t.id) >= (is_blocked, first_id)
            ORDER BY t.admission, t.id LIMIT source.max_running_per_group) AS b
        WHERE b.state = 'queued' ORDER BY b.admission, b.id LIMIT 1;
        waiting := CASE WHEN first.id IS NULL THEN source.max_running_per_group
                        ELSE queue_internal.waiting_before(source, group_key, first.id, first_id) END;
    END IF;
    has_room := admitted + waiting < source.max_running_per_group;
    -- A delayed task that others pass is only opened.
    opens := NOT blocking AND first.run_at > clock_timestamp();
    IF opens
       OR has_room
          -- Fair: one task of each group is in the order, and the next joins at its end.
          AND NOT (source.fair_groups AND ready > 0)
          AND (used + least(first.weight, source.group_rate_limit) > source.group_rate_limit) IS NOT TRUE THEN
        admit := first.id;
    ELSIF latest > first.id THEN
        withdraw := latest;
    ELSIF waiting > 0
          AND admitted + queue_internal.waiting_before(source, group_key, latest, first_id)
              > source.max_running_per_group THEN
        withdraw := latest;
    ELSIF has_room AND source.group_rate_limit IS NOT NULL THEN
        not_before := queue_internal.group_free_at(
            source, group_key, used + least(first.weight, source.group_rate_limit) - source.group_rate_limit);
    END IF;
    -- Otherwise the limit is reached.
END
$$;
COMMENT ON FUNCTION queue_internal.next_admission IS
    'Returns which task of a group to admit next, or whose admission to withdraw.';

-- Admits tasks of a group until its limit or the time is reached; leaves an event for the rest. Returns false if the
-- group has to be checked again, because another transaction admits its tasks or has the next task locked. "arrived" is the
-- smallest id among the tasks that have come to the group since it was last checked, null if none have. "blocked" is the first
-- blocked task if this transaction has locked the group and found it, else null.
--   Why one statement for the usual case: each further one costs as much as what it does.
CREATE FUNCTION queue_internal.admit_next(
    queue text, group_key text, until timestamptz, arrived bigint DEFAULT NULL, blocked bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In variables, as in admitted_of.
    is_open     CONSTANT smallint := 0;
    is_admitted CONSTANT smallint := 1;
    is_blocked  CONSTANT smallint := 2;
    source     queue.queues;
    entries    bigint;
    head       bigint;
    changes    integer;
    returned   bigint;
    first      bigint;
    now        record;
    step       record;
    next       queue.tasks;
    is_full    boolean := false;
BEGIN
    IF blocked IS NULL AND NOT queue_internal.lock_group(queue, group_key) THEN
        RETURN false;
    END IF;
    -- A smaller limit may have been set meanwhile. From now on this lock prevents that.
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = admit_next.queue;
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    entries := queue_internal.group_entries_passed();
    SELECT h.first_id, h.changes, r.task_id INTO head, changes, returned
    FROM (SELECT) AS one
         LEFT JOIN queue_internal.group_heads AS h ON h.queue = source.name AND h.group_key = admit_next.group_key
         LEFT JOIN LATERAL (
             SELECT r.task_id FROM queue_internal.group_returns AS r
             WHERE r.queue = source.name AND r.group_key = admit_next.group_key
             ORDER BY r.queue, r.group_key, r.task_id LIMIT 1) AS r ON true;
    arrived := least(arrived, returned);
    IF arrived < head THEN
        UPDATE queue_internal.group_heads AS h SET first_id = arrived
        WHERE (h.queue, h.group_key) IN (
            SELECT o.queue, o.group_key FROM queue_internal.group_heads AS o
            WHERE o.queue = source.name AND o.group_key = admit_next.group_key FOR UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        head := arrived;
    END IF;
    IF returned IS NOT NULL THEN
        DELETE FROM queue_internal.group_returns AS r
        WHERE (r.queue, r.group_key, r.task_id, r.number) IN (
            SELECT o.queue, o.group_key, o.task_id, o.number FROM queue_internal.group_returns AS o
            WHERE o.queue = source.name AND o.group_key = admit_next.group_key AND o.task_id >= returned
            ORDER BY o.queue, o.group_key, o.task_id LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END IF;
    first := coalesce(head, -9223372036854775808);
    IF source.max_running_per_group = 1 AND source.delayed_head = 'block' AND source.group_rate_limit IS NULL
       AND NOT source.fair_groups THEN
        -- The first task if it is blocked and queued, and nothing else in the group is admitted or open.
        UPDATE queue.tasks AS t SET admission = 1
        WHERE t.id = (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.id = (SELECT b.id FROM queue.tasks AS b
                          WHERE b.queue = source.name AND b.group_key = admit_next.group_key
                            AND (b.admission, b.id) >= (is_blocked, coalesce(blocked, first))
                          ORDER BY b.admission, b.id LIMIT 1)
              AND (SELECT a.id FROM queue.tasks AS a
                   WHERE a.queue = source.name AND a.group_key = admit_next.group_key
                     AND (a.admission, a.id) >= (is_admitted, first) AND a.admission <= is_admitted
                   ORDER BY a.admission, a.id LIMIT 1) IS NULL
              AND (SELECT o.id FROM queue.tasks AS o
                   WHERE o.queue = source.name AND o.group_key = admit_next.group_key
                     AND (o.admission, o.id) >= (is_open, first) AND o.admission <= is_open
                   ORDER BY o.admission, o.id LIMIT 1) IS NULL
              AND l.admission = is_blocked AND l.state = 'queued'
              AND l.queue = source.name AND l.group_key = admit_next.group_key
            FOR NO KEY UPDATE SKIP LOCKED)
        RETURNING t.* INTO next;
        is_full := FOUND;
    END IF;
    IF is_full THEN
        PERFORM queue_internal.move_scan_start_back(next);
    ELSE
        SELECT a.* INTO now FROM queue_internal.admitted_of(source, group_key, first) AS a;
    END IF;
    WHILE NOT is_full LOOP
        SELECT s.* INTO step
        FROM queue_internal.next_admission(source, group_key, now.admitted, now.ready, now.latest, now.used, first) AS s;
        IF step.withdraw IS NOT NULL THEN
            UPDATE queue.tasks AS t SET admission = 2
            WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                          WHERE l.id = step.withdraw AND l.admission = 1 AND l.state = 'queued'
                            AND l.queue = source.name AND l.group_key = admit_next.group_key
                          FOR NO KEY UPDATE SKIP LOCKED);
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            SELECT a.* INTO now FROM queue_internal.admitted_of(source, group_key, first) AS a;
        ELSIF step.admit IS NOT NULL THEN
            UPDATE queue.tasks AS t
            -- It may have been delayed since next_admission read it.
            SET admission = CASE WHEN step.opens OR source.delayed_head = 'pass' AND t.run_at > clock_timestamp() THEN 0 ELSE 1 END,
                run_at = CASE WHEN source.fair_groups THEN greatest(t.run_at, clock_timestamp()) ELSE t.run_at END
            WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                          WHERE l.id = step.admit AND l.admission <> 1 AND l.state = 'queued'
                            -- It may have been moved to another queue since next_admission read it.
                            AND l.queue = source.name AND l.group_key = admit_next.group_key
                          FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING t.* INTO next;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            PERFORM queue_internal.move_scan_start_back(next);
            now.admitted := now.admitted + next.admission;
            now.ready := now.ready + next.admission;
            now.used := now.used + next.admission * least(next.weight, source.group_rate_limit);
            now.latest := CASE WHEN next.admission = 1 THEN greatest(now.latest, next.id) ELSE now.latest END;
            -- Nothing to withdraw either, if no other waits to be claimed. Where delayed tasks are passed, they are opened.
            is_full := now.admitted = source.max_running_per_group AND now.ready = 1 AND source.delayed_head = 'block';
        ELSE
            IF step.not_before IS NOT NULL THEN
                PERFORM queue_internal.recheck_group_at(source, group_key, step.not_before);
            END IF;
            EXIT;
        END IF;
        IF clock_timestamp() >= until THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (source.name, admit_next.group_key);
            EXIT;
        END IF;
    END LOOP;
    IF queue_internal.group_entries_passed() > entries + 40 + 4 * coalesce(changes, 0) THEN
        PERFORM queue_internal.raise_group_head(source.name, group_key);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.admit_next IS
    'Admits tasks of a group up to its limit; false if that has to wait.';

-- Tasks of a group that became due while they were open have to be blocked like the others. Many at once, because a
-- claim would meet them one by one; but it reads no more than the next ones, most of which may not be due.
CREATE FUNCTION queue_internal.block_due_tasks(task queue.tasks) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Not written into the statement, as in admitted_of.
    is_open CONSTANT smallint := 0;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT t.id FROM queue.tasks AS t
        WHERE t.id = ANY (ARRAY(
                  SELECT o.id FROM queue.tasks AS o
                  -- In the order of tasks_group, because the index on ids has the tasks of all queues.
                  WHERE o.queue = task.queue AND o.group_key = task.group_key
                    AND (o.admission, o.id) >= (is_open, task.id) AND o.admission <= is_open
                  ORDER BY o.admission, o.id LIMIT 200))
          AND t.queue = task.queue AND t.group_key = task.group_key AND t.admission = is_open
          AND t.state = 'queued' AND t.run_at <= clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE queue.tasks AS t SET admission = 2 FROM due AS d WHERE t.id = d.id;
    INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
END
$$;
COMMENT ON FUNCTION queue_internal.block_due_tasks IS 'Blocks the due tasks of a group until it is their turn.';

-- Called when a task of a group is requeued or gets another run_at: a task behind it may run first, or it may run
-- before others. If the option of the queue says so, a delayed task lets the others pass. In a group with a rate limit,
-- a task that has run must be admitted again before its next start.
CREATE FUNCTION queue_internal.recheck_group(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF task.group_key IS NULL THEN
        RETURN;
    ELSIF task.admission = 1 THEN
        UPDATE queue.tasks AS t
        SET admission = CASE WHEN q.delayed_head = 'pass' AND task.run_at > clock_timestamp() THEN 0 ELSE 2 END
        FROM queue.queues AS q
        WHERE t.id = task.id AND q.name = task.queue
          AND (q.delayed_head = 'pass' AND task.run_at > clock_timestamp()
               OR q.group_rate_limit IS NOT NULL AND task.state = 'running');
    END IF;
    INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
END
$$;
COMMENT ON FUNCTION queue_internal.recheck_group IS
    'Has the admissions of a group checked again after a task was requeued or delayed.';
-- The settled id: no transaction that is open now, or starts later, commits a new task with this id or a smaller one.
--
--   A push takes its id before it commits. Because its transaction locks queue.tasks first, pg_locks shows every transaction
--   that may still commit a smaller id. A session stores the last id and these transactions in queue_internal.settling. Once
--   all of them have ended, a later call makes the stored id the settled one, and stores the next id. A transaction that
--   writes to queue.tasks for a long time delays the settled id. A redrive or a move can put back a task with any id.
--
--   The settled id and the time of the next check are kept in sequences. Sequences leave no dead rows while an old
--   snapshot holds back vacuum, and other sessions see a new value at once. The settled id stays correct if the transaction that
--   set it is rolled back, because the others have ended in any case. Each update of queue_internal.settling leaves a dead row, which
--   makes the next check slower. Therefore sessions pause for twenty times as long as a check takes.
--
--   A session counts its own transaction, because it may have pushed a task and call this again before it commits.

CREATE FUNCTION queue_internal.settled_id() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Microseconds. A clock can be set back.
    begun   CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    pause   CONSTANT bigint := pg_sequence_last_value('queue_internal.settling_due_seq') - begun;
    -- Read before pg_locks: a transaction that locks the table later takes a larger id.
    last    CONSTANT bigint := coalesce(pg_sequence_last_value('queue.tasks_id_seq'), 0);
    settled bigint := coalesce(pg_sequence_last_value('queue_internal.settled_id_seq'), 0);
    noted   queue_internal.settling;
    active  text[];
BEGIN
    -- The owner may have set the sequence back.
    settled := CASE WHEN settled <= last THEN settled ELSE 0 END;
    IF pause BETWEEN 0 AND 60000000 THEN
        RETURN settled;
    END IF;
    SELECT s.* INTO noted FROM queue_internal.settling AS s WHERE s.number = 1 FOR UPDATE SKIP LOCKED;
    -- With a larger cache, a session uses ids that it took earlier, when it had no lock.
    IF FOUND AND (SELECT q.seqcache = 1 FROM pg_sequence AS q WHERE q.seqrelid = 'queue.tasks_id_seq'::regclass) THEN
        -- A restart changes the virtual transaction id of a prepared transaction to -1/xid.
        active := ARRAY(
            SELECT CASE WHEN l.virtualtransaction LIKE '-1/%' THEN 'prepared' ELSE l.virtualtransaction END FROM pg_locks AS l
            WHERE l.locktype = 'relation' AND l.relation = 'queue.tasks'::regclass
              AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
              AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));
        IF noted.id > last OR NOT array_append(noted.writers, 'prepared') && active THEN
            settled := CASE WHEN noted.id <= last THEN noted.id ELSE 0 END;
            PERFORM setval('queue_internal.settled_id_seq', settled);
            UPDATE queue_internal.settling AS s SET id = last, writers = active WHERE s.number = 1;
        END IF;
    END IF;
    PERFORM setval('queue_internal.settling_due_seq', greatest(1,
        begun + least(20 * (extract(epoch FROM clock_timestamp()) * 1000000 - begun)::bigint, 60000000)));
    RETURN settled;
END
$$;
COMMENT ON FUNCTION queue_internal.settled_id IS
    'Returns the settled id: tasks that are not visible yet, or are pushed later, have larger ids.';
-- The head of a group: no task of the group has a smaller id.
--
--   Tasks that were admitted or have ended leave dead entries in tasks_group until a vacuum removes them. While an old snapshot
--   prevents that, each admission would read all of the group's. So one that has read more than forty stores the
--   group's head, where the next ones start. Each change leaves a dead row of the head itself. So the next one comes after
--   a few more entries: both together grow with the square root of the number of dead entries.
--   Exact, although tasks with smaller ids may come: a push that commits late has a larger id than the settled one, and no head is
--   raised above that (settled_id.sql). So who writes to queue.tasks for long holds up the heads of the groups.
--   A redrive or a move puts a task of the past back. It leaves a row in "group_returns", which others see with the task: until an
--   admission has lowered the head, and deleted the row, the smaller of both ids is the head. A task that came without triggers
--   is found by the sweep, whose event ("arrived") lowers the head.
--   Only the transaction that has the group locked changes its head, so nobody waits for one. Heads that
--   were not changed for an hour are deleted. They are not moved to another edition, nor dumped with the extension.

CREATE FUNCTION queue_internal.raise_group_head(queue text, group_key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Before the tasks are read: what is settled is visible then.
    head   bigint := queue_internal.settled_id();
    before bigint := (SELECT h.first_id FROM queue_internal.group_heads AS h
                      WHERE h.queue = raise_group_head.queue AND h.group_key = raise_group_head.group_key);
BEGIN
    IF head > before IS NOT FALSE THEN
        head := least(head, queue_internal.first_of_group(queue, group_key, coalesce(before, -9223372036854775808)));
    END IF;
    IF before IS NULL THEN
        INSERT INTO queue_internal.group_heads (queue, group_key, first_id)
        VALUES (raise_group_head.queue, raise_group_head.group_key, head) ON CONFLICT DO NOTHING;
    ELSIF head > before THEN
        UPDATE queue_internal.group_heads AS h
        SET first_id = head, changes = h.changes + 1, changed_at = clock_timestamp()
        WHERE (h.queue, h.group_key) IN (
            SELECT o.queue, o.group_key FROM queue_internal.group_heads AS o
            WHERE o.queue = raise_group_head.queue AND o.group_key = raise_group_head.group_key FOR UPDATE SKIP LOCKED);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_group_head IS
    'Stores that no task of a group has a smaller id than the first one there is, or than the settled one.';

CREATE FUNCTION queue_internal.note_return(queue text, group_key text, task_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.group_returns (queue, group_key, task_id)
    VALUES (note_return.queue, note_return.group_key, note_return.task_id);
END
$$;
COMMENT ON FUNCTION queue_internal.note_return IS 'Notes that a task of the past comes back to its group.';

-- Null if there is none.
CREATE FUNCTION queue_internal.group_head(queue text, group_key text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    RETURN (SELECT least(h.first_id, (
                SELECT r.task_id FROM queue_internal.group_returns AS r
                WHERE r.queue = h.queue AND r.group_key = h.group_key ORDER BY r.queue, r.group_key, r.task_id LIMIT 1))
            FROM queue_internal.group_heads AS h
            WHERE h.queue = group_head.queue AND h.group_key = group_head.group_key);
END
$$;
COMMENT ON FUNCTION queue_internal.group_head IS 'Returns an id; no task of the group has a smaller one.';

CREATE FUNCTION queue_internal.first_of_group(
    queue text, group_key text, first_id bigint DEFAULT -9223372036854775808) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (
        SELECT min(f.id)
        FROM generate_series(0, 2) AS a (admission),
             LATERAL (SELECT t.id FROM queue.tasks AS t
                      WHERE t.queue = first_of_group.queue AND t.group_key = first_of_group.group_key
                        AND (t.admission, t.id) >= (a.admission, first_of_group.first_id) AND t.admission <= a.admission
                      ORDER BY t.admission, t.id LIMIT 1) AS f);
END
$$;
COMMENT ON FUNCTION queue_internal.first_of_group IS 'Returns the smallest id of a group, from an id on; null if there is none.';

CREATE FUNCTION queue_internal.retire_groups() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    old  record;
    gone record;
BEGIN
    FOR gone IN
        SELECT r.queue, r.group_key, r.task_id, r.number FROM queue_internal.group_returns AS r
        WHERE NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = r.queue)
        LIMIT 1000 FOR UPDATE OF r SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.group_returns AS r
        WHERE r.queue = gone.queue AND r.group_key = gone.group_key AND r.task_id = gone.task_id AND r.number = gone.number;
    END LOOP;
    -- The task has left its group. Other tasks may have come back with it, with larger ids, so an admission has to delete the row.
    FOR gone IN
        SELECT DISTINCT r.queue, r.group_key FROM queue_internal.group_returns AS r
        WHERE NOT EXISTS (SELECT FROM queue.tasks AS t
                          WHERE t.id = r.task_id AND t.queue = r.queue AND t.group_key = r.group_key)
        LIMIT 1000
    LOOP
        IF NOT queue_internal.has_group_event(gone.queue, gone.group_key, true) THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (gone.queue, gone.group_key);
        END IF;
    END LOOP;
    FOR old IN
        SELECT h.queue, h.group_key FROM queue_internal.group_heads AS h
        WHERE h.changed_at NOT BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() + interval '1 hour'
        LIMIT 1000
    LOOP
        -- A drop that did not see the head has deleted its lock.
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = old.queue)
           OR queue_internal.lock_group(old.queue, old.group_key) THEN
            DELETE FROM queue_internal.group_heads AS h
            WHERE (h.queue, h.group_key) IN (
                SELECT o.queue, o.group_key FROM queue_internal.group_heads AS o
                WHERE o.queue = old.queue AND o.group_key = old.group_key FOR UPDATE SKIP LOCKED);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_groups IS 'Deletes what is left of groups in which nothing happens any more.';
-- queue_internal.hand_over(queues, group_keys, tasks_are_plain)
--
--   Admits the next tasks of groups of which tasks have ended in this transaction. Leaves an event for a group whose next
--   task cannot be admitted now: because another transaction admits its tasks, because of an error, or because the
--   snapshot may be older than the lock. Also where several tasks of a group may run, after a tenth of a second, and after fifty
--   calls with one group in a transaction: it has each group locked until the transaction ends, also against others that share
--   its lock, and a snapshot gets slower with more than 64 subtransactions.
--   Errors:   none of its own, unless "tasks_are_plain": then no trigger or constraint of the user can raise one, and it
--             needs no subtransaction

CREATE FUNCTION queue_internal.hand_over(queues text[], group_keys text[], tasks_are_plain boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_blocked CONSTANT smallint := 2;
    until      CONSTANT timestamptz := clock_timestamp() + interval '100 ms';
    single     CONSTANT boolean := cardinality(queues) = 1;
    -- One character for each call with one group, because anybody can set it to anything.
    calls      CONSTANT text := coalesce(current_setting('queue_hand_over.calls', true), '');
    committed  CONSTANT boolean := current_setting('transaction_isolation') = 'read committed';
    source     text;
    one        boolean;
    first      bigint;
    -- The groups in which a task is blocked, which this transaction has locked, and the first blocked task if it is only one group.
    -- Until it comes to the last of many, a push with a smaller id may have been committed.
    in_queues  text[] := '{}';
    keys       text[] := '{}';
    blocked    bigint[] := '{}';
BEGIN
    FOR number IN 1 .. cardinality(queues) LOOP
        IF source IS DISTINCT FROM queues[number] THEN
            source := queues[number];
            one := committed AND (SELECT q.max_running_per_group = 1 FROM queue.queues AS q WHERE q.name = source);
        END IF;
        -- The lock comes first, and is kept even if no task is blocked. A task can be pushed before this transaction commits.
        -- For the session that processes its event, the task that has ended here still runs. Without the lock it would
        -- admit nothing and delete the event.
        IF one AND clock_timestamp() < until AND NOT (single AND length(calls) >= 50)
           AND queue_internal.lock_group(source, group_keys[number]) THEN
            -- From the head of the group on, as in group_head(), but without a call: each end of a task comes here.
            first := (
                SELECT t.id FROM queue.tasks AS t
                WHERE t.queue = source AND t.group_key = group_keys[number]
                  AND (t.admission, t.id) >= (is_blocked, coalesce((
                      SELECT least(h.first_id, (
                                 SELECT r.task_id FROM queue_internal.group_returns AS r
                                 WHERE r.queue = h.queue AND r.group_key = h.group_key ORDER BY r.queue, r.group_key, r.task_id LIMIT 1))
                      FROM queue_internal.group_heads AS h
                      WHERE h.queue = source AND h.group_key = group_keys[number]), -9223372036854775808))
                ORDER BY t.admission, t.id LIMIT 1);
            CONTINUE WHEN first IS NULL;
            in_queues := in_queues || source;
            keys := keys || group_keys[number];
            blocked := blocked || first;
        ELSE
            INSERT INTO queue_internal.events (queue, group_key) VALUES (source, group_keys[number]);
        END IF;
    END LOOP;
    IF single THEN
        PERFORM set_config('queue_hand_over.calls', calls || 'x', true);
    END IF;
    blocked := CASE WHEN cardinality(keys) = 1 THEN blocked ELSE '{}' END;
    IF keys = '{}' THEN
        RETURN;
    ELSIF tasks_are_plain THEN
        PERFORM queue_internal.admit_each(in_queues, keys, blocked, until, false);
        RETURN;
    END IF;
    -- One subtransaction for all groups; one for each only if one of them raises an error.
    BEGIN
        PERFORM queue_internal.admit_each(in_queues, keys, blocked, until, false);
    EXCEPTION WHEN OTHERS THEN
        PERFORM queue_internal.admit_each(in_queues, keys, blocked, until, true);
    END;
END
$$;
COMMENT ON FUNCTION queue_internal.hand_over IS
    'Admits the next tasks of groups whose tasks have ended, or leaves events for them.';

-- "blocked" are their first blocked tasks, as far as known. With "apart", each group has a subtransaction of its own.
CREATE FUNCTION queue_internal.admit_each(
    queues text[], group_keys text[], blocked bigint[], until timestamptz, apart boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    admitted boolean;
BEGIN
    FOR number IN 1 .. cardinality(queues) LOOP
        admitted := false;
        IF clock_timestamp() >= until AND number > 1 THEN
            NULL;
        ELSIF NOT apart THEN
            admitted := queue_internal.admit_next(queues[number], group_keys[number], until, NULL, blocked[number]);
        ELSE
            BEGIN
                admitted := queue_internal.admit_next(queues[number], group_keys[number], until, NULL, blocked[number]);
            EXCEPTION WHEN OTHERS THEN
                IF queue_internal.may_log('event', queues[number]) THEN
                    RAISE WARNING 'the next task of a group of queue % cannot be admitted: %', to_json(queues[number]), SQLERRM;
                END IF;
            END;
        END IF;
        IF NOT admitted THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (queues[number], group_keys[number]);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.admit_each IS 'Admits the next task of each of these groups, or leaves an event for it.';
-- Dependencies: a task that waits for others.
--
--   Each dependency is a row, written with the push of the task that waits. The end of the predecessor writes its
--   outcome there and leaves an event for the dependent, in the same transaction. A waiting task is unblocked when all
--   of its rows have an outcome, and ends as soon as one has an outcome that its on_failure does not accept.
--
--   A push that names a predecessor and the end of that predecessor wait for each other, as with a foreign key: the
--   push holds a KEY SHARE lock on the predecessor's row until it commits. So an end either comes first, and the push
--   reads how it ended, or comes later, and sees the dependency. Whatever does not end the predecessor, such as a
--   claim, a heartbeat or a retry, does not conflict with that lock.
--   At REPEATABLE READ and SERIALIZABLE the snapshot of an end may be older than the dependency; then the sweep writes
--   the outcome (sweep.sql).
--
--   An end notifies up to a thousand dependents, and a call that ends several tasks up to ten thousand. The background
--   worker and queue.maintain() notify the remaining dependents, called the rest, in short transactions. Claims do not:
--   the transaction of a claim may stay open, and the rest would be locked for that long.
--
--   Cycles are impossible: a task can only wait for tasks that existed before it, or for the members of a batch, which
--   must not wait for it (batches.sql).

-- Locks, in the order of ids and before a push takes a key or inserts a task: the predecessors, of which it returns
-- those that are live, and the tasks with the keys, which will be changed or waited for. A single push without
-- predecessors holds no lock yet when it locks the task with its key, so it does not call this. A task of a queue on
-- which the caller has no right is treated as if it did not exist.
CREATE FUNCTION queue_internal.lock_before_push(queues text[], keys text[], on_duplicate text, after bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    live bigint[] := '{}';
    one  record;
BEGIN
    IF on_duplicate NOT IN ('replace', 'reschedule') OR after = '{}' AND cardinality(keys) <= 1 THEN
        RETURN ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (after) AND queue_internal.has_right('any', t.queue)
            ORDER BY t.id FOR KEY SHARE);
    END IF;
    -- The tasks with the keys, each with its queue, and the predecessors. An old snapshot can show two tasks with a key,
    -- one of which has ended since: then its lock raises 40001.
    FOR one IN
        SELECT u.id, min(u.queue) AS holds_in, bool_or(u.precedes) AS precedes
        FROM (SELECT k.task_id, n.queue, false
              FROM unnest(queues, keys) AS n (queue, key),
                   LATERAL (SELECT i.task_id FROM queue_internal.keys AS i
                            WHERE i.queue = n.queue AND i.key = n.key AND i.expires_at IS NULL OFFSET 0) AS k
              UNION ALL SELECT a.id, NULL, true FROM unnest(after) AS a (id)) AS u (id, queue, precedes)
        GROUP BY u.id ORDER BY u.id
    LOOP
        -- As in resolve_duplicate: of a running task only the key changes.
        IF one.holds_in IS NOT NULL THEN
            PERFORM FROM queue.tasks AS t
            WHERE t.id = one.id AND t.queue = one.holds_in AND t.state IN ('queued', 'waiting') FOR NO KEY UPDATE;
        END IF;
        PERFORM FROM queue.tasks AS t
        WHERE t.id = one.id AND (t.queue = one.holds_in OR queue_internal.has_right('any', t.queue)) FOR KEY SHARE;
        IF FOUND AND one.precedes THEN
            live := live || one.id;
        END IF;
    END LOOP;
    RETURN live;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_before_push IS
    'Locks the tasks that pushes will wait for or change; returns the live predecessors.';

-- "live" are the predecessors that lock_before_push has locked. Why a generic plan: planning for all partitions of
-- the history takes longer than pushing the task.
CREATE FUNCTION queue_internal.add_dependencies(
    task_id bigint, queue text, after bigint[], on_failure text, live bigint[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    known bigint;
    ended bigint;
BEGIN
    -- Set operations, because a plan that is not made for these arrays may compare each element with each.
    live := ARRAY(SELECT unnest(live) INTERSECT SELECT unnest(after));
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
    SELECT DISTINCT a.id, add_dependencies.task_id, add_dependencies.on_failure FROM unnest(after) AS a (id) ORDER BY a.id;
    GET DIAGNOSTICS known = ROW_COUNT;
    IF cardinality(live) = known THEN
        RETURN;
    END IF;
    -- A new snapshot: predecessors that are gone by now have ended.
    UPDATE queue_internal.dependencies AS d SET outcome = e.outcome
    FROM (SELECT a.id, f.outcome
          FROM (SELECT DISTINCT i.id FROM unnest(after) AS i (id)) AS a,
               LATERAL (SELECT 'failed' AS outcome, l.queue FROM queue.dead_letters AS l WHERE l.id = a.id
                        UNION ALL SELECT h.state, h.queue FROM queue.history AS h WHERE h.id = a.id LIMIT 1) AS f
          WHERE (SELECT t.id FROM queue.tasks AS t WHERE t.id = a.id) IS NULL
            AND queue_internal.has_right('any', f.queue)) AS e
    WHERE d.predecessor_id = e.id AND d.task_id = add_dependencies.task_id;
    GET DIAGNOSTICS ended = ROW_COUNT;
    IF cardinality(live) + ended < known THEN
        -- These are dead letters that were put back after the others were locked. The task itself exists already and
        -- cannot wait for itself.
        live := live || ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (ARRAY(SELECT unnest(after) EXCEPT SELECT unnest(live)))
              AND t.id <> add_dependencies.task_id
              AND queue_internal.has_right('any', t.queue)
            ORDER BY t.id FOR KEY SHARE);
    END IF;
    IF cardinality(live) + ended < known THEN
        PERFORM queue_internal.raise_unknown_task(min(d.predecessor_id)) FROM queue_internal.dependencies AS d
        WHERE d.task_id = add_dependencies.task_id AND d.outcome IS NULL
          AND d.predecessor_id = ANY (ARRAY(SELECT unnest(after) EXCEPT SELECT unnest(live)));
    END IF;
    INSERT INTO queue_internal.events (queue, task_id) VALUES (add_dependencies.queue, add_dependencies.task_id);
END
$$;
COMMENT ON FUNCTION queue_internal.add_dependencies IS 'Makes a task wait for its predecessors.';

-- The newest first, because of the members of a batch those usually end last. Not EXISTS, as in has_event.
CREATE FUNCTION queue_internal.waits_for_another(task_id bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    RETURN (SELECT d.task_id FROM queue_internal.dependencies AS d
            WHERE d.task_id = waits_for_another.task_id AND d.outcome IS NULL
            ORDER BY d.task_id DESC, d.outcome DESC LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.waits_for_another IS
    'Returns whether a task has a predecessor, or a batch a member, that has not ended.';

-- Used by the sweep. Null for a task that is live or left no trace.
CREATE FUNCTION queue_internal.outcome_of(task_id bigint) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = outcome_of.task_id) THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(
        (SELECT 'failed' FROM queue.dead_letters AS l WHERE l.id = outcome_of.task_id),
        (SELECT h.state FROM queue.history AS h WHERE h.id = outcome_of.task_id LIMIT 1),
        (SELECT o.outcome FROM queue_internal.outcomes AS o WHERE o.task_id = outcome_of.task_id));
END
$$;
COMMENT ON FUNCTION queue_internal.outcome_of IS 'Returns how a task ended, if it left a trace.';

-- Called in a statement after the one that deleted the tasks, so that its snapshot shows every dependency that was
-- committed while that statement waited. Rows that another transaction has locked are left out, so that no end
-- waits for them: that transaction deletes them, or rolls back, and then the sweep finds the outcome.
CREATE FUNCTION queue_internal.notify_dependents(ids bigint[], outcome text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    of_each    CONSTANT integer := 1000;
    of_all     CONSTANT integer := 10000;
    most       integer;
    ended      bigint;
    dependents bigint[];
    notified   bigint[] := '{}';
    batches    bigint[];
BEGIN
    -- One by one, because a plan for many may read all dependencies to find a few.
    FOREACH ended IN ARRAY ids LOOP
        most := least(of_each, of_all - cardinality(notified));
        dependents := ARRAY(
            SELECT d.task_id FROM queue_internal.dependencies AS d
            WHERE d.predecessor_id = ended AND d.outcome IS NULL
            ORDER BY d.predecessor_id, d.task_id LIMIT most FOR UPDATE SKIP LOCKED);
        -- With the range, because a plan made for a tiny table does not look an array up in the index.
        UPDATE queue_internal.dependencies AS d SET outcome = notify_dependents.outcome
        WHERE d.predecessor_id = ended AND d.task_id BETWEEN dependents[1] AND dependents[cardinality(dependents)]
          AND d.task_id = ANY (dependents);
        notified := notified || dependents;
        IF current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
            SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = ended AND d.outcome IS NULL) THEN
            INSERT INTO queue_internal.outcomes AS o (task_id, outcome) VALUES (ended, notify_dependents.outcome)
            ON CONFLICT ON CONSTRAINT outcomes_pkey
            DO UPDATE SET outcome = excluded.outcome, ended_at = excluded.ended_at, rest_queue = NULL, rest_after = NULL;
            IF cardinality(dependents) = most THEN
                PERFORM queue_internal.leave_rest(ended, coalesce(dependents[most], 0));
            END IF;
        END IF;
    END LOOP;
    IF notified = '{}' THEN
        RETURN;
    END IF;
    batches := ARRAY(SELECT b.task_id FROM queue_internal.batches AS b WHERE b.task_id = ANY (notified));
    PERFORM queue_internal.notify_batch(u.id) FROM unnest(batches) AS u (id);
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT o.queue, o.id
    FROM (SELECT i.id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = i.id) AS queue
          FROM (SELECT DISTINCT u.id FROM unnest(notified) AS u (id)) AS i WHERE i.id <> ALL (batches)) AS o
    WHERE o.queue IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.notify_dependents IS
    'Writes the outcome of tasks to the rows of their dependents, and leaves an event for each dependent.';

-- The queue of the next dependent pays for its notification: its rest takes turns with those of other queues. Dependents
-- without a task are left to the sweep, so that they are read once only. Null for "after" means that there is no rest.
CREATE FUNCTION queue_internal.leave_rest(ended bigint, after bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    next record;
BEGIN
    SELECT r.queue, r.task_id - 1 AS before INTO next
    FROM (SELECT d.task_id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = d.task_id) AS queue
          FROM queue_internal.dependencies AS d
          WHERE d.predecessor_id = ended AND d.task_id > after AND d.outcome IS NULL
          ORDER BY d.predecessor_id, d.task_id) AS r
    WHERE r.queue IS NOT NULL LIMIT 1;
    UPDATE queue_internal.outcomes AS o SET rest_queue = next.queue, rest_after = next.before WHERE o.task_id = ended;
END
$$;
COMMENT ON FUNCTION queue_internal.leave_rest IS
    'Records after which dependent of an ended task others still have to be notified.';

-- Notifies the next dependents of an ended task that has a rest in that queue; returns false if there is none.
--   unblock:  unblocks those that wait for nothing else and have no group nor batch, because the event of each would take
--             ten times as long. The others get an event
--   event:    each gets an event. An event that fails delays no other
--   pass:     leaves them to the sweep
-- A dependent that it has locked, and that still waits for another predecessor, needs no event: the end of that one, if
-- it has not committed yet, leaves an event itself.
CREATE FUNCTION queue_internal.notify_rest(queue text, manner text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    most       CONSTANT integer := 500;
    ended      queue_internal.outcomes;
    dependents bigint[];
    locked     bigint[] := '{}';
    unblocked  bigint[];
BEGIN
    SELECT o.* INTO ended FROM queue_internal.outcomes AS o
    WHERE o.rest_queue = notify_rest.queue AND o.rest_after IS NOT NULL
    ORDER BY o.rest_queue, o.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    dependents := ARRAY(
        SELECT d.task_id FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = ended.task_id AND d.task_id > ended.rest_after AND d.outcome IS NULL
        ORDER BY d.predecessor_id, d.task_id LIMIT most FOR UPDATE SKIP LOCKED);
    IF manner = 'pass' THEN
        PERFORM queue_internal.leave_rest(ended.task_id, dependents[most]);
        RETURN true;
    END IF;
    UPDATE queue_internal.dependencies AS d SET outcome = ended.outcome
    WHERE d.predecessor_id = ended.task_id
      AND d.task_id BETWEEN dependents[1] AND dependents[cardinality(dependents)] AND d.task_id = ANY (dependents);
    IF manner = 'unblock' THEN
        locked := ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (dependents) AND t.state = 'waiting' AND t.group_key IS NULL
              -- Those of suspended tasks are more than a change of state.
              AND (SELECT a.task_id FROM queue_internal.awaits AS a WHERE a.task_id = t.id) IS NULL
              AND (SELECT b.task_id FROM queue_internal.batches AS b WHERE b.task_id = t.id) IS NULL
            FOR NO KEY UPDATE SKIP LOCKED);
        -- A new snapshot: what other ends had committed before the locks were taken.
        WITH ready AS (
            UPDATE queue.tasks AS t SET state = 'queued', admission = 0, updated_at = clock_timestamp()
            WHERE t.id = ANY (locked) AND NOT EXISTS (
                SELECT FROM queue_internal.dependencies AS d
                WHERE d.task_id = t.id AND (d.outcome IS NULL OR d.on_failure = 'batch'
                                            OR d.outcome <> 'completed' AND d.on_failure IN ('fail', 'cancel')))
            RETURNING t.id
        )
        SELECT coalesce(array_agg(r.id), '{}') INTO unblocked FROM ready AS r;
        -- As delete_dependencies.
        WITH free AS MATERIALIZED (
            SELECT d.predecessor_id, d.task_id FROM queue_internal.dependencies AS d
            WHERE d.task_id = ANY (unblocked) FOR UPDATE SKIP LOCKED
        )
        DELETE FROM queue_internal.dependencies AS d USING free AS f
        WHERE d.predecessor_id = f.predecessor_id AND d.task_id = f.task_id;
    END IF;
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT t.queue, t.id FROM queue.tasks AS t
    WHERE t.id = ANY (dependents)
      AND (t.state = 'waiting' AND (t.id <> ALL (locked) OR EXISTS (
               SELECT FROM queue_internal.dependencies AS d
               WHERE d.task_id = t.id AND d.outcome <> 'completed' AND d.on_failure IN ('fail', 'cancel')))
           OR t.state = 'queued' AND queue_internal.is_suspended(t.id, t.token));
    PERFORM queue_internal.leave_rest(ended.task_id, dependents[most]);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.notify_rest IS
    'Notifies more of the remaining dependents of an ended task in a queue; returns whether there were any.';

-- A part of each rest, the queues in turns, for 50 ms. A constraint or a trigger of a user that refuses to unblock or
-- notify one dependent must not delay those after it. A lock is only a pause.
CREATE FUNCTION queue_internal.notify_rests() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    until  CONSTANT timestamptz := clock_timestamp() + interval '50 ms';
    before bigint;
    parts  bigint := 0;
    queue  text;
    manner text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    LOOP
        before := parts;
        FOR queue IN
            SELECT r.queue FROM (SELECT DISTINCT o.rest_queue AS queue FROM queue_internal.outcomes AS o
                                 WHERE o.rest_after IS NOT NULL) AS r ORDER BY random()
        LOOP
            FOREACH manner IN ARRAY ARRAY['unblock', 'event', 'pass'] LOOP
                BEGIN
                    parts := parts + queue_internal.notify_rest(queue, manner)::integer;
                    EXIT;
                EXCEPTION WHEN OTHERS THEN
                    IF manner = 'event' THEN
                        IF queue_internal.may_log('dependents', queue) THEN
                            RAISE WARNING 'dependents of a task, in queue %, cannot be notified: %', to_json(queue), SQLERRM;
                        END IF;
                        EXIT WHEN SQLSTATE = '55P03';
                    END IF;
                END;
            END LOOP;
            IF clock_timestamp() > until THEN
                RETURN parts;
            END IF;
        END LOOP;
        EXIT WHEN parts = before;
    END LOOP;
    RETURN parts;
END
$$;
COMMENT ON FUNCTION queue_internal.notify_rests IS
    'Notifies the remaining dependents of ended tasks for 50 ms; returns how many parts of them it notified.';

-- Returns false if the task has to be checked again, because another transaction has it locked.
CREATE FUNCTION queue_internal.process_dependent(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task    queue.tasks;
    awaited queue_internal.awaits;
    batch   queue_internal.batches;
    waits   boolean;
    ended   queue_internal.dependencies;
BEGIN
    SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = process_dependent.task_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = process_dependent.task_id) THEN
            RETURN false;
        -- A dump that is being restored may still bring a task that has left no trace. A dead letter that is put back asks
        -- again how the task that it waited for has ended.
        ELSIF queue_internal.outcome_of(process_dependent.task_id) IS NOT NULL
              AND NOT EXISTS (SELECT FROM queue_internal.awaits AS a WHERE a.task_id = process_dependent.task_id) THEN
            PERFORM queue_internal.delete_dependencies(process_dependent.task_id);
        END IF;
        RETURN true;
    END IF;
    SELECT a.* INTO awaited FROM queue_internal.awaits AS a WHERE a.task_id = task.id AND a.token = task.token;
    IF FOUND THEN
        PERFORM queue_internal.wake(task, awaited);
        RETURN true;
    ELSIF task.state <> 'waiting' THEN
        RETURN true;
    END IF;
    SELECT b.* INTO batch FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    -- First, because the statements that follow have newer snapshots: if nothing is left to wait for, they see how all have
    -- ended.
    waits := queue_internal.waits_for_another(task.id);
    -- Does not read the ended members of a batch, which may be many. Callers disable sorting, which would make the planner
    -- read the dependencies of all tasks in the order of the primary key: OFFSET prevents that.
    IF batch.task_id IS NULL OR batch.is_after THEN
        SELECT e.* INTO ended FROM (
            SELECT d.* FROM queue_internal.dependencies AS d
            WHERE d.task_id = task.id AND d.outcome = ANY ('{failed, cancelled, purged}')
              AND d.on_failure IN ('fail', 'cancel') OFFSET 0) AS e
        ORDER BY e.predecessor_id LIMIT 1;
    END IF;
    IF ended.predecessor_id IS NOT NULL THEN
        IF NOT queue_internal.lock_to_end(task.id, false) THEN
            RETURN false;
        END IF;
        task.errors := queue_internal.with_error(
            task, format('predecessor %s %s', ended.predecessor_id,
                         CASE ended.outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END));
        IF ended.on_failure = 'fail' THEN
            PERFORM queue_internal.move_to_dead_letters(task);
        ELSE
            PERFORM queue_internal.cancel_now(task);
        END IF;
    ELSIF batch.task_id IS NOT NULL AND batch.sealed_at IS NULL
          OR waits
          -- A dump that is being restored may bring the task before its dependencies or its batch.
          OR batch.task_id IS NULL AND (
             NOT EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.task_id = task.id)
             OR EXISTS (SELECT FROM queue_internal.dependencies AS d
                        WHERE d.task_id = task.id AND d.on_failure = 'batch')) THEN
        RETURN true;
    ELSIF batch.task_id IS NOT NULL THEN
        RETURN queue_internal.process_batch(task);
    ELSE
        PERFORM queue_internal.unblock(task);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.process_dependent IS
    'Unblocks or ends a waiting task if its predecessors have ended; false if it has to be checked again.';

CREATE FUNCTION queue_internal.unblock(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', updated_at = clock_timestamp(),
        admission = CASE WHEN t.group_key IS NULL THEN 0 ELSE 2 END
    WHERE t.id = task.id;
    PERFORM queue_internal.delete_dependencies(task.id);
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.unblock IS 'Makes a waiting task queued.';

-- Leaves rows that the end of a predecessor has locked to the sweep.
CREATE FUNCTION queue_internal.delete_dependencies(task_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    predecessor bigint;
BEGIN
    FOR predecessor IN
        SELECT d.predecessor_id FROM queue_internal.dependencies AS d
        WHERE d.task_id = delete_dependencies.task_id FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.dependencies AS d
        WHERE d.predecessor_id = predecessor AND d.task_id = delete_dependencies.task_id;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.delete_dependencies IS
    'Deletes the dependencies of a task that no longer waits, without waiting for a lock.';
-- Batches: a task, the callback, that waits for a group of tasks, its members, until the batch is sealed.
--
--   The id of the batch is the id of its callback. The callback waits for each member as for a predecessor: the push of
--   a member writes a row of queue_internal.dependencies with on_failure "batch", and the end of the member writes its
--   outcome there (dependencies.sql). So ends of different members touch no common row.
--   Promise:  the callback becomes queued once: after the batch was sealed and each member has an outcome. Its headers
--             count each member once
--   Promise:  a push into the batch and its sealing wait for each other. The push holds a SHARE lock on the row of the
--             batch, with which the UPDATE that seals it conflicts at every isolation level
--   Events:   while other members have not ended, the end of a member leaves an event that is due at the next tenth of
--             a second, or none if there is one already (notify_batch). So a large batch costs few events
--   Counting: once all members have ended, their rows are counted and deleted, two thousand with each event. "members"
--             is at most the number of rows when the batch was sealed: a dump that is being restored may bring the batch
--             before their rows

-- For a push. The KEY SHARE lock on the callback is that of a push after a predecessor; the locks are taken in the
-- order of ids. A batch of a queue to which the caller may not push is treated as if it did not exist.
CREATE FUNCTION queue_internal.lock_batches(ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    one       bigint;
    sealed_at timestamptz;
BEGIN
    FOR one IN SELECT DISTINCT u.id FROM unnest(ids) AS u (id) WHERE u.id IS NOT NULL ORDER BY u.id LOOP
        PERFORM FROM queue.tasks AS t
        WHERE t.id = one AND t.state = 'waiting' AND queue_internal.has_right('producer', t.queue) FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_batch(one);
        END IF;
        SELECT b.sealed_at INTO sealed_at FROM queue_internal.batches AS b WHERE b.task_id = one FOR SHARE;
        IF NOT FOUND THEN
            PERFORM queue_internal.raise_unknown_batch(one);
        ELSIF sealed_at IS NOT NULL THEN
            RAISE EXCEPTION 'batch % is sealed', one
                USING ERRCODE = 'QX008', DETAIL = format('It was sealed at %s.', sealed_at),
                      HINT = 'Push all tasks of a batch before queue.seal_batch(), or create another batch with '
                             'queue.create_batch().';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_batches IS
    'Locks open batches, so that they are not sealed before the push into them ends; raises QX007 or QX008.';

CREATE FUNCTION queue_internal.raise_unknown_batch(batch bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'batch % does not exist', batch
        USING ERRCODE = 'QX007',
              HINT = 'Its callback may have been queued already, or cancelled, or be in a queue for which the role has no '
                     'right. Create a batch with queue.create_batch().';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_batch IS 'Raises QX007.';

CREATE FUNCTION queue_internal.check_batch(batch bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF batch < 1 THEN
        PERFORM queue_internal.raise_invalid('batch', 'must be greater than zero', batch::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_batch IS 'Checks the id of a batch; null passes.';

-- A task cannot wait for the batch that waits for it. Transactions that push at the same time do not see each other's
-- tasks, so together they can still build a cycle (docs/batches.md).
-- Why a generic plan: to plan this, Postgres reads the ends of the indexes, where the rows of the same transaction are
-- not visible yet.
CREATE FUNCTION queue_internal.check_no_cycle(batch bigint, after bigint[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    -- Usually nothing waits for the callback, and so nothing that this task waits for does.
    IF after <> '{}' AND (batch = ANY (after) OR EXISTS (
        SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = batch AND d.outcome IS NULL))
       AND EXISTS (
        WITH RECURSIVE awaited (id) AS (
            SELECT u.id FROM unnest(after) AS u (id)
            UNION
            SELECT d.predecessor_id FROM awaited AS a JOIN queue_internal.dependencies AS d ON d.task_id = a.id
            WHERE d.outcome IS NULL
        )
        SELECT FROM awaited AS a WHERE a.id = batch
    ) THEN
        RAISE EXCEPTION 'argument "after" must not name a task that waits for batch %', batch
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'The task and the callback of the batch would wait for each other.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_no_cycle IS
    'Refuses a task that would wait for the batch to which it belongs.';

-- A callback that waits holds up the tasks behind it in its group, unless the group passes over it or has room for more.
CREATE FUNCTION queue_internal.check_callback_group(batch bigint, queue text, groups text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM queue.tasks AS t JOIN queue.queues AS q ON q.name = t.queue
               WHERE t.id = batch AND t.queue = check_callback_group.queue AND t.group_key = ANY (groups)
                 AND q.delayed_head = 'block' AND q.max_running_per_group = 1) THEN
        RAISE EXCEPTION 'argument "group_key" must not be the group of the callback of batch %', batch
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'The callback holds up its group until the batch has ended: it and the task would wait for each other.',
                  HINT = 'Give the callback another group, or none.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_callback_group IS
    'Refuses a task whose group is held up by the callback of its batch.';

-- Only for tasks that this transaction has pushed. A push that takes the key of the callback, because that is past its start
-- deadline, has ended it although the batch is locked.
CREATE FUNCTION queue_internal.join_batch(batch bigint, ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = batch) THEN
        PERFORM queue_internal.raise_unknown_batch(batch);
    END IF;
    PERFORM queue_internal.check_callback_group(batch, t.queue, array_agg(t.group_key))
    FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.group_key IS NOT NULL GROUP BY t.queue;
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
    SELECT u.id, batch, 'batch' FROM unnest(ids) AS u (id);
END
$$;
COMMENT ON FUNCTION queue_internal.join_batch IS 'Adds new tasks to a batch.';

-- Called with the end of a member. While other members have not ended, one event a tenth of a second is enough: an
-- event that exists already is locked, with a lock that ends share, so that it is not processed before this transaction
-- commits. Then the worker has to look at it again.
CREATE FUNCTION queue_internal.notify_batch(batch bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    source CONSTANT text := (SELECT t.queue FROM queue.tasks AS t WHERE t.id = batch);
    soon   CONSTANT timestamptz := date_bin('100 ms', clock_timestamp(), '2000-01-01Z') + interval '100 ms';
BEGIN
    IF source IS NULL THEN
        RETURN;
    ELSIF NOT queue_internal.waits_for_another(batch) THEN
        INSERT INTO queue_internal.events (queue, task_id) VALUES (source, batch);
        RETURN;
    END IF;
    -- With a snapshot of the whole transaction, the lock fails if the event has been processed since.
    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM FROM queue_internal.events AS e
        WHERE e.task_id = batch AND e.queue = source AND e.due_at <= soon ORDER BY e.task_id, e.id LIMIT 1 FOR KEY SHARE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        INSERT INTO queue_internal.events (queue, task_id, due_at) VALUES (source, batch, soon);
    END IF;
    PERFORM queue_internal.announce_task(source, soon);
END
$$;
COMMENT ON FUNCTION queue_internal.notify_batch IS
    'Leaves an event for the callback of a batch of which a member has ended, unless there is one.';

-- Called by process_dependent, which has locked the callback and found no member without an outcome. Returns false if
-- the batch has to be checked again, because another transaction has it locked.
CREATE FUNCTION queue_internal.process_batch(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    most    CONSTANT integer := 2000;
    batch   queue_internal.batches;
    counted bigint;
BEGIN
    PERFORM FROM queue_internal.batches AS b WHERE b.task_id = task.id AND b.sealed_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH part AS MATERIALIZED (
        SELECT d.predecessor_id FROM queue_internal.dependencies AS d
        WHERE d.task_id = task.id AND d.outcome IS NOT NULL AND d.on_failure = 'batch'
        LIMIT most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM queue_internal.dependencies AS d USING part AS p
        WHERE d.predecessor_id = p.predecessor_id AND d.task_id = task.id
        RETURNING d.outcome
    ), total AS (
        SELECT count(*) AS tasks, count(*) FILTER (WHERE g.outcome = 'completed') AS completed,
               count(*) FILTER (WHERE g.outcome = 'failed') AS failed
        FROM gone AS g
    )
    UPDATE queue_internal.batches AS b
    SET completed = b.completed + t.completed, failed = b.failed + t.failed,
        cancelled = b.cancelled + t.tasks - t.completed - t.failed
    FROM total AS t WHERE b.task_id = task.id
    RETURNING t.tasks INTO counted;
    IF counted = most THEN
        INSERT INTO queue_internal.events (queue, task_id) VALUES (task.queue, task.id);
        RETURN true;
    ELSIF EXISTS (SELECT FROM queue_internal.dependencies AS d
                  WHERE d.task_id = task.id AND d.on_failure = 'batch') THEN
        RETURN false;
    END IF;
    SELECT b.* INTO batch FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    -- A dump has not brought all rows yet. The sweep checks the batch again.
    IF batch.completed + batch.failed + batch.cancelled < batch.members THEN
        RETURN true;
    END IF;
    UPDATE queue.tasks AS t
    SET headers = coalesce(t.headers, '{}') || jsonb_build_object('batch', jsonb_build_object(
            'completed', batch.completed, 'failed', batch.failed, 'cancelled', batch.cancelled))
    WHERE t.id = task.id;
    DELETE FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    PERFORM queue_internal.unblock(task);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.process_batch IS
    'Counts ended members of a sealed batch; after the last one, makes the callback queued.';

-- Leaves events for sealed batches of which all members have ended, and deletes the rows of batches that are over.
-- Returns the last batch that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_batches(INOUT batch bigint, max_rows integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row     record;
BEGIN
    FOR row IN
        SELECT b.task_id, b.sealed_at,
               (SELECT t.queue FROM queue.tasks AS t WHERE t.id = b.task_id AND t.state = 'waiting') AS queue
        FROM queue_internal.batches AS b WHERE b.task_id > coalesce(sweep_batches.batch, 0)
        ORDER BY b.task_id LIMIT max_rows
    LOOP
        checked := checked + 1;
        batch := row.task_id;
        IF row.queue IS NULL THEN
            -- Its callback was deleted by hand, or a dump has not brought it yet.
            IF queue_internal.outcome_of(row.task_id) IS NOT NULL
               OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id AND t.state <> 'waiting') THEN
                DELETE FROM queue_internal.batches AS b WHERE b.task_id = (
                    SELECT l.task_id FROM queue_internal.batches AS l WHERE l.task_id = row.task_id FOR UPDATE SKIP LOCKED);
            END IF;
        ELSIF row.sealed_at IS NOT NULL AND NOT queue_internal.waits_for_another(row.task_id)
              AND NOT queue_internal.has_event(row.task_id, row.queue, true) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.queue, row.task_id);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        batch := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_batches IS
    'Leaves events for batches whose members have all ended; returns where to continue.';
-- The scan start: remembers where this session last found work, to skip dead index entries.
--
--   Finished tasks and processed events leave dead entries at the front of their indexes until a vacuum removes them.
--   While an old snapshot prevents that, each claim would read all of them. So a session whose claim read more than a
--   thousand remembers where it found its first task, and starts there for twenty times as long as that claim took, up
--   to a minute. Scans from the front then take a twentieth of its time, however many entries there are. A more urgent
--   task, an event whose transaction committed late, or a task that another session has admitted in its group, may be
--   overtaken for that long if it lies before the scan start. A claim that finds nothing after the scan start scans again
--   from the front.
--
--   The background worker uses scan starts for events, too (process_all_events). There, an event whose transaction
--   committed late is overtaken until the scan start is over, unless a claim processes it.
--
--   It is kept in a setting, because it belongs to the session; a transaction that rolls back also restores the
--   setting.

CREATE TYPE queue_internal.scan_start AS (event bigint, level integer, head timestamptz, until timestamptz);
COMMENT ON TYPE queue_internal.scan_start IS
    'A scan start: the event, the priority and the run_at, and until when it is used.';

CREATE FUNCTION queue_internal.default_scan_start() RETURNS queue_internal.scan_start
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ROW(0, -2147483648, '-infinity', NULL)::queue_internal.scan_start;
COMMENT ON FUNCTION queue_internal.default_scan_start IS
    'Returns the scan start of sessions that have none: the front of the index.';

-- If the clock was set back, no scan start is used for longer.
CREATE FUNCTION queue_internal.get_scan_start(queue text) RETURNS queue_internal.scan_start
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    kept       CONSTANT text := current_setting('queue_scan_start.q' || md5(queue), true);
    scan_start queue_internal.scan_start;
BEGIN
    IF kept <> '' THEN
        scan_start := kept;
        IF scan_start.until BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 minute' THEN
            RETURN scan_start;
        END IF;
    END IF;
    RETURN queue_internal.default_scan_start();
END
$$;
COMMENT ON FUNCTION queue_internal.get_scan_start IS 'Returns where claims of this session from a queue start to scan.';

-- At most a minute ahead, because get_scan_start ignores later times.
CREATE FUNCTION queue_internal.set_scan_start(queue text, scan_start queue_internal.scan_start) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    scan_start.until := least(scan_start.until, clock_timestamp() + interval '1 minute');
    PERFORM set_config('queue_scan_start.q' || md5(queue), scan_start::text, false);
    PERFORM set_config('queue_scan_start.any', 'true', false);
END
$$;
COMMENT ON FUNCTION queue_internal.set_scan_start IS 'Sets the scan start of this session for a queue.';

-- After a claim that began then, from this scan start. Also past the dead entries of events, unless there is an event by
-- now. What the claim has passed is read again: it cannot say which of its tasks was the first. One that
-- another session has claimed meanwhile may be before it: then fewer are skipped.
CREATE FUNCTION queue_internal.move_scan_start(
    queue text, scan_start queue_internal.scan_start, begun timestamptz) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    newest CONSTANT bigint := queue_internal.newest_event();
BEGIN
    IF NOT EXISTS (SELECT FROM queue_internal.events AS e
                   WHERE e.queue = move_scan_start.queue AND (e.due_at, e.id) > ('-infinity', scan_start.event)
                     AND e.due_at <= begun) THEN
        scan_start.event := newest;
    END IF;
    SELECT t.priority, t.run_at INTO scan_start.level, scan_start.head FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, 0) AND t.queue = move_scan_start.queue AND t.admission < 2
      AND (t.priority, t.run_at) >= (scan_start.level, scan_start.head) AND t.state = 'running' AND t.claimed_at >= begun
    ORDER BY t.priority, t.run_at LIMIT 1;
    IF FOUND THEN
        scan_start.until := coalesce(scan_start.until, clock_timestamp() + 20 * (clock_timestamp() - begun));
        PERFORM queue_internal.set_scan_start(queue, scan_start);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.move_scan_start IS
    'Sets the scan start of this session for a queue to the first task that a claim has claimed.';

-- For callers that scan the events of all queues, few of which have a scan start.
CREATE FUNCTION queue_internal.has_scan_starts() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(current_setting('queue_scan_start.any', true) = 'true', false);
END
$$;
COMMENT ON FUNCTION queue_internal.has_scan_starts IS 'Returns whether this session has set a scan start for any queue.';
-- How a claim finds out that it has read many dead index entries (scan_start.sql).
--
-- Counted and not timed, because a session that had to wait for a processor has read nothing. The count grows within a
-- transaction; between two transactions it may be flushed to the statistics.

-- Why SQL and no search_path: as with task_in_bucket.
CREATE FUNCTION queue_internal.entries_passed() RETURNS bigint
LANGUAGE sql
RETURN coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_order')), 0)
     + coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue_internal.events_pkey')), 0);
COMMENT ON FUNCTION queue_internal.entries_passed IS
    'Returns how many index entries this session has read in search of tasks and events.';

CREATE FUNCTION queue_internal.group_entries_passed() RETURNS bigint
LANGUAGE sql
RETURN coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_group')), 0);
COMMENT ON FUNCTION queue_internal.group_entries_passed IS
    'Returns how many index entries this session has read in search of the tasks of groups.';

CREATE FUNCTION queue_internal.newest_event() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(pg_sequence_last_value(to_regclass('queue_internal.events_id_seq')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.newest_event IS 'Returns the id of the newest event of any queue.';
-- The next event of a queue to process.
--
--   With many workers, most due events are locked by claims that have not committed yet. A claim that tried to lock each
--   of them would take longer for that than for its task: all sessions would meet at the locks of the same rows. So it
--   passes over a row with an xmax, which says that a transaction has locked or deleted it.
--   That transaction may also have rolled back, or have locked the row only to keep it (notify_batch). Then nobody has it
--   locked, but the xmax stays. So a claim tries to lock these after the others, until it has met a few that are locked,
--   from the first one on and from there on in random places. The worker and queue.maintain() try all.

CREATE FUNCTION queue_internal.next_event(
    queue text, last_due timestamptz, last bigint, moment timestamptz, all_locked boolean)
RETURNS queue_internal.events
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    event queue_internal.events;
BEGIN
    SELECT e.* INTO event FROM queue_internal.events AS e
    WHERE e.queue = next_event.queue AND (e.due_at, e.id) > (last_due, last) AND e.due_at <= moment
      AND (all_locked OR e.xmax = '0')
    ORDER BY e.due_at, e.id LIMIT 1 FOR UPDATE SKIP LOCKED;
    RETURN event;
END
$$;
COMMENT ON FUNCTION queue_internal.next_event IS
    'Locks and returns the next due event after another one; null if there is none.';

-- Returns where the next event is that some transaction has or had locked, or null; and the event if it is not locked now.
CREATE FUNCTION queue_internal.try_locked_event(
    queue text, last_due timestamptz, last bigint, moment timestamptz,
    OUT due_at timestamptz, OUT id bigint, OUT event queue_internal.events)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    SELECT e.due_at, e.id INTO due_at, id FROM queue_internal.events AS e
    WHERE e.queue = try_locked_event.queue AND (e.due_at, e.id) > (last_due, last) AND e.due_at <= moment
      AND e.xmax <> '0'
    ORDER BY e.due_at, e.id LIMIT 1;
    SELECT e.* INTO event FROM queue_internal.events AS e
    WHERE e.queue = try_locked_event.queue AND e.due_at = try_locked_event.due_at AND e.id = try_locked_event.id
    FOR UPDATE SKIP LOCKED;
END
$$;
COMMENT ON FUNCTION queue_internal.try_locked_event IS
    'Tries to lock the next due event after another one that a transaction has or had locked.';
-- Events: hints to check a waiting task or a group.
--
--   Each change that may unblock a task leaves an event in the same transaction: the end of a predecessor, a push into
--   a group, a retry in a group, an end that could not admit the next task itself (hand_over.sql). The next claim from the
--   queue processes the events before it looks for tasks; the background worker and queue.maintain() do it too.
--   Promise:  an event only names what to check. The result depends on the rows of tasks and dependencies, as
--             they are when the event is processed. A lost event is found by the sweep (sweep.sql).
--   Promise:  an event that cannot be processed does not delay others. It is due again after a pause that grows from
--             10 ms to 1 s because a transaction has a row locked, and to 10 s because of an error, by a constraint or a
--             trigger that somebody added, which is logged once, for a few events of each queue (may_log.sql), and
--             shown by queue.health().
--   Why not outside READ COMMITTED: a snapshot from before another transaction's commit could admit too many of a
--             group.

-- Whether there is an event about a task, for the sweep. If its transaction "is_short", one that another transaction has
-- locked does not count: it may be a claim that stays open, and nobody else can process it meanwhile. It finds that out by
-- locking it, which a claim must not do.
-- Not EXISTS, which drops the ORDER BY. With it, the planner uses the index on tasks also if it plans while the table is
-- empty; without, the plan may read all events of the queue, however many there are by then.
CREATE FUNCTION queue_internal.has_event(task_id bigint, queue text, is_short boolean) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    IF is_short THEN
        RETURN (SELECT e.id FROM queue_internal.events AS e
                WHERE e.task_id = has_event.task_id AND e.queue = has_event.queue
                ORDER BY e.task_id, e.id LIMIT 1 FOR UPDATE SKIP LOCKED) IS NOT NULL;
    END IF;
    RETURN (SELECT e.id FROM queue_internal.events AS e
            WHERE e.task_id = has_event.task_id AND e.queue = has_event.queue
            ORDER BY e.task_id, e.id LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.has_event IS 'Returns whether there is an event of the queue about a task.';

-- The same about a group. Not an event for a later time (rates.sql).
CREATE FUNCTION queue_internal.has_group_event(queue text, group_key text, is_short boolean) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    IF is_short THEN
        RETURN (SELECT e.id FROM queue_internal.events AS e
                WHERE e.queue = has_group_event.queue AND e.group_key = has_group_event.group_key
                  AND (e.due_at <= clock_timestamp() OR e.tries > 0)
                ORDER BY e.queue, e.group_key, e.id LIMIT 1 FOR UPDATE SKIP LOCKED) IS NOT NULL;
    END IF;
    RETURN (SELECT e.id FROM queue_internal.events AS e
            WHERE e.queue = has_group_event.queue AND e.group_key = has_group_event.group_key
              AND (e.due_at <= clock_timestamp() OR e.tries > 0)
            ORDER BY e.queue, e.group_key, e.id LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.has_group_event IS 'Returns whether there is an event about a group.';

-- queue_internal.process_events(queue, max_events, after, all_locked, until)
--
--   Processes due events of a queue, except fresh ones up to the id "after"; returns how many it checked. It processes
--   at least one, and starts no other after "until" (by default in 150 ms), because one event can cause much work.
--   Of the events that other transactions seem to have locked it tries a few, or all with "all_locked" (next_event.sql).
--   Errors:   none of its own
--   Touches:  queue_internal.events (never waits for a lock)
CREATE FUNCTION queue_internal.process_events(
    source queue.queues, max_events integer, after bigint, all_locked boolean DEFAULT false, until timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- For both attempts together.
    stop CONSTANT timestamptz := coalesce(until, clock_timestamp() + interval '150 ms');
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    RETURN queue_internal.process_each(source, max_events, after, all_locked, false, stop);
EXCEPTION WHEN OTHERS THEN
    RETURN queue_internal.process_each(source, max_events, after, all_locked, true, stop);
END
$$;
COMMENT ON FUNCTION queue_internal.process_events IS
    'Unblocks tasks that waited for a predecessor or their turn; returns how many events it checked.';

-- With "apart", each event is processed in a subtransaction of its own.
CREATE FUNCTION queue_internal.process_each(
    source queue.queues, max_events integer, after bigint, all_locked boolean, apart boolean, until timestamptz)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    event    queue_internal.events;
    last_due timestamptz := '-infinity';
    last     bigint := after;
    more     boolean := true;
    -- Of those that other transactions seem to have locked.
    spot_due timestamptz := '-infinity';
    spot     bigint := after;
    locked   integer := 0;
    tried    record;
    checked  integer := 0;
BEGIN
    WHILE checked < max_events AND (checked = 0 OR clock_timestamp() < until) LOOP
        IF more THEN
            event := queue_internal.next_event(source.name, last_due, last, moment, all_locked);
            more := event.id IS NOT NULL;
            last_due := event.due_at;
            last := event.id;
        END IF;
        IF NOT more THEN
            EXIT WHEN all_locked OR locked = 4;
            SELECT t.* INTO tried FROM queue_internal.try_locked_event(source.name, spot_due, spot, moment) AS t;
            EXIT WHEN tried.id IS NULL;
            spot_due := tried.due_at;
            spot := tried.id;
            event := tried.event;
            IF event.id IS NULL THEN
                locked := locked + 1;
                spot_due := '-infinity';
                spot := queue_internal.random_between(spot, greatest(spot, (
                    SELECT e.id FROM queue_internal.events AS e
                    WHERE e.queue = source.name AND e.due_at = '-infinity' ORDER BY e.due_at DESC, e.id DESC LIMIT 1)));
                CONTINUE;
            END IF;
        END IF;
        checked := checked + 1;
        IF apart THEN
            BEGIN
                PERFORM queue_internal.process_event(source, event, after, until, all_locked);
            EXCEPTION WHEN OTHERS THEN
                PERFORM queue_internal.postpone_event(event, SQLERRM);
            END;
        ELSE
            PERFORM queue_internal.process_event(source, event, after, until, all_locked);
        END IF;
    END LOOP;
    RETURN checked;
END
$$;
COMMENT ON FUNCTION queue_internal.process_each IS 'Processes due events of a queue; returns how many it checked.';

-- Treats up to a hundred events about the same task or group as one. Later ones are not included. Locks these only once
-- they are to be deleted: an event whose lock is of no use makes other sessions pass over it (next_event.sql). If they have to
-- be postponed, and the transaction "is_short", one stands for all; otherwise each would be tried again, as long as a lock
-- is held. A claim may be in a transaction that stays open, and leaves the others to sessions that can process them sooner.
CREATE FUNCTION queue_internal.process_event(
    source queue.queues, event queue_internal.events, after bigint, until timestamptz, is_short boolean)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ids     bigint[];
    arrived bigint;
    tries   integer := event.tries;
    last    bigint;
    done    boolean;
    merged  queue_internal.events;
BEGIN
    IF event.task_id IS NOT NULL THEN
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e WHERE e.task_id = event.task_id AND e.id > after
                     ORDER BY e.task_id, e.id LIMIT 100);
        done := queue_internal.process_dependent(event.task_id);
    ELSE
        SELECT array_agg(f.id), least(min(f.arrived), event.arrived), greatest(max(f.tries), event.tries)
        INTO ids, arrived, tries FROM (
            SELECT e.id, e.arrived, e.tries FROM queue_internal.events AS e
            WHERE e.queue = source.name AND e.group_key = event.group_key AND e.id > after
              -- Not one that is for a later time (rates.sql).
              AND (e.due_at <= clock_timestamp() OR e.tries > 0)
            ORDER BY e.queue, e.group_key, e.id LIMIT 100) AS f;
        done := queue_internal.admit_next(event.queue, event.group_key, until, arrived);
    END IF;
    IF NOT done AND (NOT is_short OR cardinality(ids) <= 1) THEN
        PERFORM queue_internal.postpone_event(event, NULL);
        RETURN;
    ELSIF NOT done THEN
        -- With a new id: a session that has read the others deletes them, although it may have looked before they were left.
        INSERT INTO queue_internal.events (queue, group_key, task_id, arrived, tries)
        VALUES (event.queue, event.group_key, event.task_id, arrived, tries) RETURNING * INTO merged;
        PERFORM queue_internal.postpone_event(merged, NULL);
    END IF;
    -- By the whole primary key, because a plan made for few events may read all of the queue for each.
    DELETE FROM queue_internal.events AS e
    WHERE e.queue = event.queue AND e.due_at = event.due_at AND e.id = event.id;
    ids := array_remove(ids, event.id);
    last := ids[cardinality(ids)];
    IF last IS NULL THEN
        RETURN;
    END IF;
    -- The range, because such a plan does not look an array up in the index either.
    IF event.task_id IS NOT NULL THEN
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e
                     WHERE e.task_id = event.task_id AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids)
                     ORDER BY e.task_id, e.id FOR UPDATE SKIP LOCKED);
        DELETE FROM queue_internal.events AS e
        WHERE e.task_id = event.task_id AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids);
    ELSE
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e
                     WHERE e.queue = event.queue AND e.group_key = event.group_key
                       AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids)
                     ORDER BY e.queue, e.group_key, e.id FOR UPDATE SKIP LOCKED);
        DELETE FROM queue_internal.events AS e
        WHERE e.queue = event.queue AND e.group_key = event.group_key
          AND e.id BETWEEN ids[1] AND last AND e.id = ANY (ids);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.process_event IS 'Processes an event and deletes it, or postpones it.';

CREATE FUNCTION queue_internal.postpone_event(event queue_internal.events, error text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- A lock may be released at any time.
    longest CONSTANT interval := CASE WHEN postpone_event.error IS NULL THEN '1 second' ELSE '10 seconds' END;
    later   CONSTANT timestamptz := clock_timestamp() + least(interval '10 ms' * 2 ^ least(event.tries, 10), longest);
BEGIN
    UPDATE queue_internal.events AS e
    SET due_at = later, tries = e.tries + 1, error = left(postpone_event.error, 1000)
    WHERE e.queue = event.queue AND e.due_at = event.due_at AND e.id = event.id;
    PERFORM queue_internal.announce_task(event.queue, later);
    IF error IS NOT NULL AND event.error IS NULL AND queue_internal.may_log('event', event.queue) THEN
        RAISE WARNING '% of queue % cannot be unblocked: %',
            coalesce('task ' || event.task_id, 'a group'), to_json(event.queue), error;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.postpone_event IS 'Postpones an event; logs its first error.';

-- First the dependents that the end of a task has left. Then some events of each queue in turn, in random order and for
-- 50 ms in all, so that a queue with many events does not delay others. A queue without due events costs one index
-- lookup; without the planner settings, the planner reads all events for each queue. A lookup that reads many events
-- which were processed, and could not be vacuumed yet, sets the scan start for the next ones (scan_start.sql).
CREATE FUNCTION queue_internal.process_all_events(max_events integer) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked bigint := queue_internal.notify_rests() + queue_internal.wake_rest();
    before  bigint := -1;
    until   CONSTANT timestamptz := clock_timestamp() + interval '50 ms';
    -- In a variable, because a volatile function is no condition for an index.
    moment  timestamptz;
    newest  CONSTANT bigint := queue_internal.newest_event();
    starts  CONSTANT boolean := queue_internal.has_scan_starts();
    entries bigint;
    source  queue.queues;
    after   bigint;
    asked   timestamptz;
    first   record;
    start   queue_internal.scan_start;
BEGIN
    WHILE checked > before LOOP
        before := checked;
        moment := clock_timestamp();
        FOR source IN SELECT q.* FROM queue.queues AS q ORDER BY random() LOOP
            after := CASE WHEN starts THEN (queue_internal.get_scan_start(source.name)).event ELSE 0 END;
            asked := clock_timestamp();
            entries := queue_internal.entries_passed();
            SELECT e.due_at, e.id INTO first FROM queue_internal.events AS e
            WHERE e.queue = source.name AND (e.due_at, e.id) > ('-infinity', after) AND e.due_at <= moment
            ORDER BY e.due_at, e.id LIMIT 1;
            -- Events before it have been processed, and their dead index entries need not be read again.
            after := CASE WHEN first.due_at = '-infinity' THEN first.id - 1 ELSE after END;
            IF clock_timestamp() > asked + interval '2 ms' AND queue_internal.entries_passed() > entries + 1000 THEN
                start := queue_internal.get_scan_start(source.name);
                start.event := CASE WHEN first.due_at = '-infinity' THEN after ELSE newest END;
                start.until := coalesce(start.until, clock_timestamp() + 20 * (clock_timestamp() - asked));
                PERFORM queue_internal.set_scan_start(source.name, start);
            END IF;
            CONTINUE WHEN first.id IS NULL;
            checked := checked + queue_internal.process_events(source, least(max_events, 20), after, true, until);
            IF checked >= max_events OR clock_timestamp() > until THEN
                RETURN checked;
            END IF;
        END LOOP;
    END LOOP;
    RETURN checked;
END
$$;
COMMENT ON FUNCTION queue_internal.process_all_events IS
    'Processes about so many due events of all queues; returns how many it checked.';
-- The sweep finds changes for which there is no event.
--
--   It reads the dependencies, the groups of each queue, the keys, the batches, and the rows of internal/steps.sql in the
--   order of their indexes, in turns: a bounded number of rows of each in a turn, from where the last turn stopped. So the time until it
--   finds a lost event of a group does not grow with the number of dependencies and keys, or of groups of another queue.
--   While an old snapshot keeps dead entries of groups, a turn checks fewer of them.
--   It resolves dependencies whose predecessor is gone, deletes keys whose task has ended and steps whose task has left no
--   trace, and leaves an event for each waiting task, batch and group that has to be checked and has none. So a lost event causes a delay of at most about
--   "queue.sweep_interval" if the background worker runs, else until the next queue.maintain(). A claim by SQL that
--   found nothing also sweeps a part of its queue, once a second in a session.
--
--   Why it leaves events and does not process what it finds: only events.sql admits and ends tasks, with its own rules
--   for locks and errors.

-- "queue" is the last queue whose groups this turn has checked, null between two turns. "groups" has the last group
-- of each queue that has more of them than a turn checks. Everything has been checked once all queues that had more
-- in the first turn ("queues"), and the dependencies, keys and batches ("pending"), have been read to their ends.
CREATE TYPE queue_internal.sweep_position AS (
    queue text, groups jsonb, predecessor_id bigint, task_id bigint, key_queue text, key text,
    is_first_turn boolean, queues text[], dependencies_pending boolean, keys_pending boolean,
    await_id bigint, awaits_pending boolean, step_id bigint, steps_pending boolean,
    event_queue text, event text, emitted_pending boolean,
    batch bigint, batches_pending boolean);
COMMENT ON TYPE queue_internal.sweep_position IS 'The position of a sweep in each of the tables.';

-- Checks about "max_rows" rows; returns its position. A turn is over when "queue" is null, and everything has been
-- checked when all of the position is null. With "again", each turn starts again with tables that were read to their
-- end, so that changes lost there meanwhile do not wait for larger tables; without, everything is checked once.
CREATE FUNCTION queue_internal.sweep(pos queue_internal.sweep_position, max_rows integer, again boolean)
RETURNS queue_internal.sweep_position
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- The number of rows in a turn: groups of each queue; dependencies, keys and batches each.
    piece  CONSTANT integer := 100;
    rows   CONSTANT integer := 500;
    source queue.queues;
    last   record;
BEGIN
    IF pos.queue IS NULL THEN
        pos.is_first_turn := pos IS NULL;
        IF again OR pos.is_first_turn OR pos.dependencies_pending THEN
            SELECT d.predecessor_id, d.task_id INTO pos.predecessor_id, pos.task_id
            FROM queue_internal.sweep_dependencies(pos.predecessor_id, pos.task_id, rows) AS d;
            pos.dependencies_pending :=
                pos.predecessor_id IS NOT NULL AND (pos.is_first_turn OR pos.dependencies_pending);
            IF pos.predecessor_id IS NULL THEN
                PERFORM queue_internal.retire_outcomes(1000);
            END IF;
        END IF;
        IF again OR pos.is_first_turn OR pos.awaits_pending THEN
            pos.await_id := queue_internal.sweep_awaits(pos.await_id, rows);
            pos.awaits_pending := pos.await_id IS NOT NULL AND (pos.is_first_turn OR pos.awaits_pending);
        END IF;
        IF again OR pos.is_first_turn OR pos.steps_pending THEN
            pos.step_id := queue_internal.sweep_steps(pos.step_id, piece);
            pos.steps_pending := pos.step_id IS NOT NULL AND (pos.is_first_turn OR pos.steps_pending);
        END IF;
        IF again OR pos.is_first_turn OR pos.emitted_pending THEN
            SELECT e.queue, e.event INTO pos.event_queue, pos.event
            FROM queue_internal.sweep_emitted(pos.event_queue, pos.event, rows) AS e;
            pos.emitted_pending := pos.event IS NOT NULL AND (pos.is_first_turn OR pos.emitted_pending);
        END IF;
        pos.queue := '';
        -- Forget queues that are gone.
        pos.groups := (SELECT jsonb_object_agg(g.key, g.value) FROM jsonb_each(pos.groups) AS g
                         WHERE (SELECT q.name FROM queue.queues AS q WHERE q.name = g.key) IS NOT NULL);
        pos.queues := ARRAY(SELECT u.name FROM unnest(pos.queues) AS u (name) WHERE pos.groups ? u.name);
        RETURN pos;
    END IF;
    WHILE max_rows > 0 LOOP
        SELECT q.* INTO source FROM queue.queues AS q
        WHERE q.name > pos.queue AND (again OR pos.is_first_turn OR q.name = ANY (pos.queues))
        ORDER BY q.name LIMIT 1;
        IF NOT FOUND THEN
            IF again OR pos.is_first_turn OR pos.keys_pending THEN
                SELECT k.queue, k.key INTO pos.key_queue, pos.key
                FROM queue_internal.sweep_keys(pos.key_queue, pos.key, rows) AS k;
                pos.keys_pending := pos.key IS NOT NULL AND (pos.is_first_turn OR pos.keys_pending);
            END IF;
            IF again OR pos.is_first_turn OR pos.batches_pending THEN
                pos.batch := (queue_internal.sweep_batches(pos.batch, rows));
                pos.batches_pending := pos.batch IS NOT NULL AND (pos.is_first_turn OR pos.batches_pending);
            END IF;
            IF pos.queues = '{}' AND NOT pos.dependencies_pending AND NOT pos.keys_pending AND NOT pos.batches_pending
               AND NOT pos.awaits_pending AND NOT pos.steps_pending AND NOT pos.emitted_pending THEN
                RETURN NULL;
            END IF;
            pos.queue := NULL;
            RETURN pos;
        END IF;
        pos.queue := source.name;
        -- Replication does not fire the trigger that inserts it.
        INSERT INTO queue_internal.locks (queue, number)
        SELECT source.name, -1
        WHERE NOT EXISTS (SELECT FROM queue_internal.locks AS l WHERE l.queue = source.name AND l.number = -1)
        ON CONFLICT DO NOTHING;
        SELECT g.group_key, g.checked INTO last
        FROM queue_internal.sweep_groups(source, pos.groups ->> source.name, piece, true) AS g;
        IF last.group_key IS NULL THEN
            pos.groups := pos.groups - source.name;
            pos.queues := array_remove(pos.queues, source.name);
        ELSE
            pos.groups := coalesce(pos.groups, '{}') || jsonb_build_object(source.name, last.group_key);
            pos.queues := pos.queues || CASE WHEN pos.is_first_turn THEN ARRAY[source.name] END;
        END IF;
        max_rows := max_rows - 1 - last.checked;
    END LOOP;
    RETURN pos;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep IS
    'Leaves events for changes without one, for a part of the tables; returns where to continue.';

CREATE FUNCTION queue_internal.retire_outcomes(max_outcomes integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    horizon CONSTANT timestamptz := clock_timestamp() - interval '1 day';
    ended   bigint;
BEGIN
    FOR ended IN
        SELECT o.task_id FROM queue_internal.outcomes AS o
        WHERE o.ended_at < horizon
          -- A dump is older, and its dependencies may only be read now. Not EXISTS, as in has_event.
          AND (SELECT d.task_id FROM queue_internal.dependencies AS d
               WHERE d.predecessor_id = o.task_id AND d.outcome IS NULL
               ORDER BY d.predecessor_id, d.task_id LIMIT 1) IS NULL
        ORDER BY o.ended_at LIMIT max_outcomes FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM queue_internal.outcomes AS o WHERE o.task_id = ended;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_outcomes IS 'Deletes outcomes of which all dependents were notified a day ago.';

-- Returns the last row that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_dependencies(
    INOUT predecessor_id bigint, INOUT task_id bigint, max_rows integer, of_queue text DEFAULT NULL)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row   record;
BEGIN
    FOR row IN
        SELECT d.predecessor_id, d.task_id, d.outcome, d.on_failure, d.restored_at,
               (SELECT t.id FROM queue.tasks AS t WHERE t.id = d.predecessor_id) AS live,
               (SELECT t.queue FROM queue.tasks AS t
                WHERE t.id = d.task_id
                  AND (t.state = 'waiting' OR t.state = 'queued' AND queue_internal.is_suspended(t.id, t.token))) AS queue
        FROM queue_internal.dependencies AS d
        WHERE (d.predecessor_id, d.task_id) > (coalesce(sweep_dependencies.predecessor_id, -9223372036854775808),
                                               coalesce(sweep_dependencies.task_id, -9223372036854775808))
        ORDER BY d.predecessor_id, d.task_id LIMIT max_rows
    LOOP
        checked := checked + 1;
        predecessor_id := row.predecessor_id;
        task_id := row.task_id;
        CONTINUE WHEN row.queue <> of_queue OR row.queue IS NULL AND of_queue IS NOT NULL;
        IF row.queue IS NULL THEN
            -- The dependency of a task that no longer waits: one that ended while the end of its predecessor had this row
            -- locked. A task without a trace may still come from a dump, or may have come since the loop read its row.
            IF (queue_internal.outcome_of(row.task_id) IS NOT NULL
                OR (row.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE
                   AND NOT EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id)
                OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id AND t.state <> 'waiting')
                   -- A dump may still bring what it waits for.
                   AND (row.on_failure = 'continue' AND row.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE)
               -- It may wait for it again, also after it was a dead letter. sweep_awaits does the rest.
               AND NOT EXISTS (SELECT FROM queue_internal.awaits AS a
                               WHERE a.task_id = row.task_id AND a.predecessor_id = row.predecessor_id) THEN
                -- Only this one: a task that runs may ask for the outcome of another.
                DELETE FROM queue_internal.dependencies AS d
                WHERE d.task_id = row.task_id AND d.predecessor_id = (
                    SELECT l.predecessor_id FROM queue_internal.dependencies AS l
                    WHERE l.predecessor_id = row.predecessor_id AND l.task_id = row.task_id FOR UPDATE SKIP LOCKED);
            END IF;
            CONTINUE;
        ELSIF row.outcome IS NULL THEN
            -- The end of the predecessor has left it to notify_rest. That may fail, or be called by nobody.
            CONTINUE WHEN row.live IS NOT NULL OR of_queue IS NULL AND EXISTS (
                SELECT FROM queue_internal.outcomes AS o
                WHERE o.task_id = row.predecessor_id AND o.rest_after < row.task_id
                  AND o.ended_at > clock_timestamp() - interval '10 minutes');
            row.outcome := queue_internal.outcome_of(row.predecessor_id);
            -- A dump may still bring a trace of it.
            CONTINUE WHEN row.outcome IS NULL AND row.restored_at > clock_timestamp() - interval '1 day';
            -- A task that ended by a function of queue_ext has an outcome or left a trace. A task without was deleted
            -- by hand.
            row.outcome := coalesce(row.outcome, 'purged');
            UPDATE queue_internal.dependencies AS d SET outcome = row.outcome
            WHERE d.task_id = row.task_id AND d.predecessor_id = (
                SELECT l.predecessor_id FROM queue_internal.dependencies AS l
                WHERE l.predecessor_id = row.predecessor_id AND l.task_id = row.task_id AND l.outcome IS NULL
                  AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = l.predecessor_id) IS NULL
                FOR UPDATE SKIP LOCKED);
            CONTINUE WHEN NOT FOUND;
        END IF;
        CONTINUE WHEN row.on_failure = 'batch' AND EXISTS (
            SELECT FROM queue_internal.batches AS b WHERE b.task_id = row.task_id AND b.sealed_at IS NULL);
        IF (row.outcome <> 'completed' AND row.on_failure IN ('fail', 'cancel')
            OR NOT queue_internal.waits_for_another(row.task_id))
           -- An event of a queue in which the task was before may never be processed: that queue may be gone.
           AND NOT queue_internal.has_event(row.task_id, row.queue, of_queue IS NULL) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.queue, row.task_id);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        predecessor_id := NULL;
        task_id := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_dependencies IS
    'Resolves dependencies whose predecessor is gone, and leaves events for tasks that need not wait any longer.';

-- Marks the dependencies of a dump (how_inserted.sql explains how it is recognized).
CREATE FUNCTION queue_internal.dependency_restored() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.restored_at := clock_timestamp();
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.dependency_restored IS 'Records that a dependency comes from a dump.';

CREATE TRIGGER dependency_restored BEFORE INSERT ON queue_internal.dependencies
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER dependency_restored ON queue_internal.dependencies IS
    'Makes the sweep wait for the rest of a dump.';

-- Returns the last group that it checked, or null at the end, and how many it checked.
CREATE FUNCTION queue_internal.sweep_groups(
    source queue.queues, INOUT group_key text, max_rows integer, is_short boolean, OUT checked integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, because a volatile function cannot be an index condition. No event is postponed for that long.
    longest CONSTANT timestamptz :=
        clock_timestamp() + greatest(interval '11 seconds', source.rate_period + interval '1 second');
    -- All that the groups have finished may have to be read.
    entries CONSTANT bigint := queue_internal.group_entries_passed() + 10000;
    late    record;
    step    record;
    head    bigint;
    first   bigint;
BEGIN
    IF group_key IS NULL THEN
        -- The clock has been set back.
        FOR late IN
            SELECT e.due_at, e.id FROM queue_internal.events AS e
            WHERE e.queue = source.name AND e.due_at > longest
            ORDER BY e.due_at, e.id LIMIT max_rows FOR UPDATE SKIP LOCKED
        LOOP
            UPDATE queue_internal.events AS e SET due_at = '-infinity'
            WHERE e.queue = source.name AND e.due_at = late.due_at AND e.id = late.id;
        END LOOP;
        IF FOUND THEN
            PERFORM queue_internal.announce_task(source.name, clock_timestamp());
        END IF;
    END IF;
    checked := 0;
    group_key := coalesce(group_key, '');
    WHILE checked < max_rows AND (checked = 0 OR queue_internal.group_entries_passed() < entries) LOOP
        SELECT t.group_key INTO group_key FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key > sweep_groups.group_key ORDER BY t.group_key LIMIT 1;
        EXIT WHEN group_key IS NULL;
        checked := checked + 1;
        head := queue_internal.group_head(source.name, group_key);
        first := coalesce(head, -9223372036854775808);
        SELECT s.* INTO step
        FROM queue_internal.admitted_of(source, sweep_groups.group_key, first) AS a,
             LATERAL queue_internal.next_admission(
                 source, sweep_groups.group_key, a.admitted, a.ready, a.latest, a.used, first) AS s;
        first := CASE WHEN head IS NOT NULL THEN queue_internal.first_of_group(source.name, group_key) END;
        IF first < head THEN
            -- It came without an event, or that one does not name it. Not EXISTS, as in has_event.
            IF (SELECT e.id FROM queue_internal.events AS e
                WHERE e.queue = source.name AND e.group_key = sweep_groups.group_key AND e.arrived <= first
                ORDER BY e.queue, e.group_key, e.id LIMIT 1) IS NULL THEN
                INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (source.name, sweep_groups.group_key, first);
            END IF;
        ELSIF step.not_before IS NOT NULL THEN
            PERFORM queue_internal.recheck_group_at(source, group_key, step.not_before);
        ELSIF step.admit IS NOT NULL OR step.withdraw IS NOT NULL THEN
            IF NOT queue_internal.has_group_event(source.name, group_key, is_short) THEN
                INSERT INTO queue_internal.events (queue, group_key) VALUES (source.name, sweep_groups.group_key);
            END IF;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_groups IS
    'Leaves events for the groups of a queue in which a task can be admitted.';

-- A task that somebody has deleted by hand leaves the row of its key behind. Such a key is free, but its row remains until
-- the next push with that key. A dump may still bring the task of a key whose task left no trace. Returns the last key
-- that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_keys(INOUT queue text, INOUT key text, max_rows integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row   record;
BEGIN
    FOR row IN
        SELECT k.queue, k.key, k.task_id, k.expires_at,
               (SELECT t.id FROM queue.tasks AS t WHERE t.id = k.task_id) AS live
        FROM queue_internal.keys AS k
        WHERE (k.queue, k.key) > (coalesce(sweep_keys.queue, ''), coalesce(sweep_keys.key, ''))
        ORDER BY k.queue, k.key LIMIT max_rows
    LOOP
        checked := checked + 1;
        queue := row.queue;
        key := row.key;
        IF row.expires_at IS NULL AND row.live IS NULL AND queue_internal.outcome_of(row.task_id) IS NOT NULL THEN
            PERFORM FROM queue_internal.keys AS l
            WHERE l.queue = row.queue AND l.key = row.key AND l.task_id = row.task_id AND l.expires_at IS NULL
            FOR UPDATE SKIP LOCKED;
            -- It may be live again: a dead letter that was put back.
            IF FOUND AND queue_internal.outcome_of(row.task_id) IS NOT NULL THEN
                DELETE FROM queue_internal.keys AS k WHERE k.queue = row.queue AND k.key = row.key;
            END IF;
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        queue := NULL;
        key := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_keys IS 'Deletes keys whose task has ended; returns where to continue.';

CREATE TYPE queue_internal.session_sweep AS (group_key text, since timestamptz);
COMMENT ON TYPE queue_internal.session_sweep IS
    'The position of a session in the groups of a queue, and when it was there.';

CREATE FUNCTION queue_internal.random_between(smallest bigint, largest bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN smallest + trunc(random()::numeric * (largest::numeric - smallest));
END
$$;
COMMENT ON FUNCTION queue_internal.random_between IS 'Returns a random number between two; null if one of them is.';

-- For a claim by SQL that found nothing: sweeps a part of the dependencies and of the groups of the queue, once a
-- second in a session. Those of other queues are left alone, because the caller's transaction may stay open. Returns
-- whether it may have left an event. The session remembers its position in the groups. The part of the dependencies
-- starts at a random id, because a client can read the setting and the ids are also those of other queues.
CREATE FUNCTION queue_internal.sweep_part(source queue.queues) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO'
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    name   CONSTANT text := 'queue_sweep.q' || md5(source.name);
    moment CONSTANT timestamptz := clock_timestamp();
    kept   CONSTANT text := current_setting(name, true);
    pos  queue_internal.session_sweep;
    start  bigint;
    awaits bigint;
    last   record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    ELSIF kept <> '' THEN
        pos := kept;
        IF pos.since BETWEEN moment - interval '1 second' AND moment THEN
            RETURN false;
        END IF;
    END IF;
    -- Not min() and max(), with which a plan made while the table is empty reads all of it.
    start := queue_internal.random_between(
        (SELECT d.predecessor_id FROM queue_internal.dependencies AS d ORDER BY d.predecessor_id, d.task_id LIMIT 1),
        (SELECT d.predecessor_id FROM queue_internal.dependencies AS d
         ORDER BY d.predecessor_id DESC, d.task_id DESC LIMIT 1));
    awaits := queue_internal.random_between(
        (SELECT a.task_id FROM queue_internal.awaits AS a ORDER BY a.task_id LIMIT 1),
        (SELECT a.task_id FROM queue_internal.awaits AS a ORDER BY a.task_id DESC LIMIT 1));
    SELECT d.predecessor_id, g.group_key INTO last
    FROM queue_internal.sweep_dependencies(start, NULL, 100, source.name) AS d,
         queue_internal.sweep_groups(source, pos.group_key, 100, false) AS g;
    IF last.predecessor_id IS NULL THEN
        -- At the end: start again from the first one.
        PERFORM queue_internal.sweep_dependencies(NULL, NULL, 100, source.name);
    END IF;
    IF awaits IS NOT NULL AND queue_internal.sweep_awaits(awaits, 100, source.name) IS NULL THEN
        PERFORM queue_internal.sweep_awaits(NULL, 100, source.name);
    END IF;
    pos.group_key := last.group_key;
    pos.since := moment;
    PERFORM set_config(name, pos::text, false);
    RETURN EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = source.name AND e.due_at <= moment);
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_part IS
    'Leaves events for changes without one, for a small part of a queue, once a second in a session.';
-- How many tasks may start in a period: of a queue (rate_limit), and of each of its groups (group_rate_limit).
--
--   A start counts as much as the weight of the task. A weight that is larger than the limit, for example because the limit
--   was lowered, counts as the whole limit; otherwise the task could never start.
--
--   rate_limit: the queue can start that many tasks, spread over up to 64 rate buckets (queue_internal.rate_buckets). A
--   start uses up one, which becomes available again rate_period later. So in no span of that length, wherever it begins,
--   can more tasks start. A task with a larger weight uses up several at once. Tasks behind it must leave enough of them
--   available, or it might wait for ever while lighter tasks use each one that becomes available.
--
--   group_rate_limit: each start of a task of a group is a row of queue_internal.group_starts. A task is admitted in its
--   group (groups.sql) only if its weight, the starts of the last period, and the weights of the tasks that are admitted
--   but do not run yet, together do not exceed the limit. Between its admission and its start, that sum can only
--   decrease. So the limit is exact although a start inserts a row and locks none. Until the rate allows the next
--   task, the group is blocked, so that no claim meets its tasks, and has an event that is due at that time. A task that
--   is requeued has to be admitted again (recheck_group).
--
--   Times that lie more than a period in the future were written before the clock was set back, and do not count.

-- Returns when each bucket has its next start available, or since when it has had one. Reads only.
CREATE FUNCTION queue_internal.rate_bucket_times(
    source queue.queues, until timestamptz, wanted integer,
    OUT bucket integer, OUT version bigint, OUT free_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    buckets CONSTANT integer := least(source.rate_limit, 64);
    start   CONSTANT integer := floor(random() * buckets);
    horizon CONSTANT timestamptz := clock_timestamp() + source.rate_period;
BEGIN
    RETURN QUERY
    SELECT newest.bucket, newest.version, due.at
    FROM generate_series(start, start + buckets - 1) AS i,
         LATERAL (SELECT s.bucket, s.version, s.rate_limit, s.rate_period,
                         s.taken[1 + cardinality(s.taken) - s.capacity] AS blocking
                  FROM queue_internal.rate_buckets AS s
                  WHERE s.queue = source.name AND s.bucket = 1 + i % buckets
                  ORDER BY s.version DESC LIMIT 1) AS newest,
         LATERAL (SELECT CASE WHEN newest.blocking < horizon THEN newest.blocking + source.rate_period
                              ELSE '-infinity' END AS at) AS due
    WHERE due.at <= until AND newest.rate_limit = source.rate_limit AND newest.rate_period = source.rate_period
    LIMIT wanted;
END
$$;
COMMENT ON FUNCTION queue_internal.rate_bucket_times IS
    'Returns up to so many rate buckets of a queue that have a start by the time given.';

-- Returns all starts of the buckets that are available by a time, one row for each. Reads only.
CREATE FUNCTION queue_internal.starts_until(
    source queue.queues, until timestamptz, OUT bucket integer, OUT version bigint, OUT free_at timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    horizon CONSTANT timestamptz := clock_timestamp() + source.rate_period;
BEGIN
    RETURN QUERY
    SELECT newest.bucket, newest.version, due.at
    FROM generate_series(1, least(source.rate_limit, 64)) AS i,
         LATERAL (SELECT s.bucket, s.version, s.rate_limit, s.rate_period, s.capacity, s.taken
                  FROM queue_internal.rate_buckets AS s
                  WHERE s.queue = source.name AND s.bucket = i ORDER BY s.version DESC LIMIT 1) AS newest,
         generate_series(1, newest.capacity) AS n,
         LATERAL (SELECT newest.taken[cardinality(newest.taken) - newest.capacity + n] AS at) AS blocking,
         LATERAL (SELECT CASE WHEN blocking.at < horizon THEN blocking.at + source.rate_period
                              ELSE '-infinity' END AS at) AS due
    WHERE due.at <= until AND newest.rate_limit = source.rate_limit AND newest.rate_period = source.rate_period;
END
$$;
COMMENT ON FUNCTION queue_internal.starts_until IS
    'Returns the starts of a queue''s rate buckets that are available by the time given, one a row.';

CREATE FUNCTION queue_internal.starts_at(source queue.queues, weight integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF weight = 1 THEN
        RETURN (SELECT min(b.free_at) FROM queue_internal.rate_bucket_times(source, 'infinity', NULL) AS b);
    END IF;
    RETURN (SELECT s.free_at FROM queue_internal.starts_until(source, 'infinity') AS s
            ORDER BY s.free_at OFFSET least(weight, source.rate_limit) - 1 LIMIT 1);
END
$$;
COMMENT ON FUNCTION queue_internal.starts_at IS
    'Returns when a task of this weight can start by a queue''s rate limit, or since when.';

CREATE FUNCTION queue_internal.announce_start(source queue.queues, weight integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.announce_task(source.name, queue_internal.starts_at(source, weight));
END
$$;
COMMENT ON FUNCTION queue_internal.announce_start IS
    'Announces when the rate limit of a queue next allows a task of this weight to start.';

CREATE FUNCTION queue_internal.lock_bucket(source queue.queues, bucket integer, version bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM queue_internal.rate_buckets AS s
    WHERE s.queue = source.name AND s.bucket = lock_bucket.bucket AND s.version = lock_bucket.version
    FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_bucket IS
    'Locks a version of a rate bucket; false if another transaction has it locked or has changed the bucket.';

CREATE FUNCTION queue_internal.use_bucket(
    source queue.queues, bucket integer, version bigint, starts integer, moment timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue_internal.rate_buckets AS s
    SET version = s.version + 1,
        taken = ARRAY(SELECT u.at FROM unnest(s.taken) WITH ORDINALITY AS u (at, position)
                      WHERE u.at > moment - source.rate_period AND u.at < moment + source.rate_period
                      ORDER BY u.position) || array_fill(moment, ARRAY[starts])
    WHERE s.queue = source.name AND s.bucket = use_bucket.bucket AND s.version = use_bucket.version;
END
$$;
COMMENT ON FUNCTION queue_internal.use_bucket IS 'Uses so many starts of a rate bucket that is locked.';

-- Returns when the start was taken; null if there is none. "reserve" is the weight of a task that comes first.
CREATE FUNCTION queue_internal.take_start(source queue.queues, weight integer, reserve integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    free   record;
    moment timestamptz;
BEGIN
    IF weight > 1 OR reserve > 0 THEN
        RETURN queue_internal.take_starts(source, weight, reserve);
    END IF;
    FOREACH wanted IN ARRAY ARRAY[2, 64] LOOP
        FOR free IN
            SELECT b.bucket, b.version FROM queue_internal.rate_bucket_times(source, clock_timestamp(), wanted) AS b
        LOOP
            IF queue_internal.lock_bucket(source, free.bucket, free.version) THEN
                moment := clock_timestamp();
                PERFORM queue_internal.use_bucket(source, free.bucket, free.version, 1, moment);
                RETURN moment;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_start IS
    'Takes a start from a queue''s rate buckets; returns when, or null if there is none.';

-- Takes all starts at the same time, after it has locked all buckets. If it could lock only a part of them, the exception
-- handler releases these locks.
CREATE FUNCTION queue_internal.take_starts(source queue.queues, weight integer, reserve integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted  integer := least(weight, source.rate_limit);
    until   timestamptz := clock_timestamp();
    buckets jsonb := '{}';
    free    record;
    moment  timestamptz;
BEGIN
    -- If both together exceed the limit, the lighter task may start only after the queue has started nothing for a period and
    -- a second. Then another transaction must have the heavier task locked without claiming it.
    IF wanted + reserve > source.rate_limit THEN
        reserve := source.rate_limit - wanted;
        until := until - interval '1 second';
    END IF;
    IF (SELECT count(*) FROM queue_internal.starts_until(source, until)) < wanted + reserve THEN
        RETURN NULL;
    END IF;
    FOR free IN
        SELECT s.bucket, s.version, count(*)::integer AS starts FROM queue_internal.starts_until(source, until) AS s
        GROUP BY s.bucket, s.version ORDER BY random()
    LOOP
        IF queue_internal.lock_bucket(source, free.bucket, free.version) THEN
            free.starts := least(free.starts, wanted);
            buckets := buckets || jsonb_build_object(free.bucket, jsonb_build_array(free.version, free.starts));
            wanted := wanted - free.starts;
            EXIT WHEN wanted = 0;
        END IF;
    END LOOP;
    IF wanted > 0 THEN
        RAISE lock_not_available;
    END IF;
    moment := clock_timestamp();
    PERFORM queue_internal.use_bucket(source, b.key::integer, (b.value ->> 0)::bigint, (b.value ->> 1)::integer, moment)
    FROM jsonb_each(buckets) AS b;
    RETURN moment;
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_starts IS
    'Takes as many starts from a queue''s rate buckets as a task weighs, if others are left; returns when, or null.';

-- Returns when enough starts of a group will be available again; null if that would take more starts than there are.
CREATE FUNCTION queue_internal.group_free_at(source queue.queues, group_key text, wanted bigint) RETURNS timestamptz
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    since CONSTANT timestamptz := clock_timestamp() - source.rate_period;
BEGIN
    RETURN (SELECT min(c.started_at) FROM (
                SELECT s.started_at, sum(s.weight) OVER (ORDER BY s.started_at) AS weight
                FROM queue_internal.group_starts AS s
                WHERE s.queue = source.name AND s.group_key = group_free_at.group_key
                  AND s.started_at > since AND s.started_at < since + 2 * source.rate_period) AS c
            WHERE c.weight >= wanted) + source.rate_period;
END
$$;
COMMENT ON FUNCTION queue_internal.group_free_at IS
    'Returns when starts of this weight of a group will have come back.';

-- If several tasks of a group can run at a time, the next one may have to wait until this start no longer counts, and no
-- other event would cause the group to be checked then. Otherwise it waits for the end of this task.
CREATE FUNCTION queue_internal.record_group_start(source queue.queues, task queue.tasks, started timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    back CONSTANT timestamptz := started + source.rate_period;
BEGIN
    INSERT INTO queue_internal.group_starts (queue, group_key, started_at, task_id, weight, expires_at)
    VALUES (source.name, task.group_key, started, task.id, task.weight, back);
    IF source.max_running_per_group > 1 THEN
        -- An event that exists already is not enough. Another session may process it before this transaction commits: it
        -- would see the task as not running, and add no further event. If a claim stays open for longer, the sweep finds
        -- its group.
        PERFORM queue_internal.recheck_group_at(source, task.group_key, back, clock_timestamp() + interval '5 seconds');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.record_group_start IS 'Counts the start of a task against the rate limit of its group.';

-- Adds an event that causes a group to be checked at a time in the future, unless there is one after "since" that is due
-- then or before. Processing that one adds the next. Does not look at more than a hundred events, because a group to which
-- many tasks were pushed has an event for each: one too many does no harm.
CREATE FUNCTION queue_internal.recheck_group_at(
    source queue.queues, group_key text, moment timestamptz, since timestamptz DEFAULT clock_timestamp())
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
BEGIN
    -- The ORDER BY as in has_event.
    IF (SELECT e.id
        FROM (SELECT l.id, l.tries, l.due_at FROM queue_internal.events AS l
              WHERE l.queue = source.name AND l.group_key = recheck_group_at.group_key
              ORDER BY l.id DESC LIMIT 100) AS e
        WHERE e.tries = 0 AND e.due_at > since AND e.due_at <= moment LIMIT 1) IS NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, due_at)
        VALUES (source.name, recheck_group_at.group_key, moment);
        PERFORM queue_internal.announce_task(source.name, moment);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.recheck_group_at IS 'Leaves an event for a group that is due at a time.';

CREATE FUNCTION queue_internal.retire_group_starts(max_starts integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    -- In a variable, because a volatile function is no condition for an index.
    moment  CONSTANT timestamptz := clock_timestamp();
    expired record;
    retired integer := 0;
BEGIN
    FOR expired IN
        SELECT s.queue, s.group_key, s.started_at, s.task_id, s.started_at + (
                   SELECT q.rate_period FROM queue.queues AS q
                   WHERE q.name = s.queue AND q.group_rate_limit IS NOT NULL) AS expires_at
        FROM queue_internal.group_starts AS s
        WHERE s.expires_at <= moment ORDER BY s.expires_at LIMIT max_starts FOR UPDATE SKIP LOCKED
    LOOP
        IF expired.expires_at > moment THEN
            -- The period is longer than the one that the claim knew.
            UPDATE queue_internal.group_starts AS s SET expires_at = expired.expires_at
            WHERE s.queue = expired.queue AND s.group_key = expired.group_key
              AND s.started_at = expired.started_at AND s.task_id = expired.task_id;
        ELSE
            DELETE FROM queue_internal.group_starts AS s
            WHERE s.queue = expired.queue AND s.group_key = expired.group_key
              AND s.started_at = expired.started_at AND s.task_id = expired.task_id;
        END IF;
        retired := retired + 1;
    END LOOP;
    IF retired < max_starts THEN
        PERFORM queue_internal.retire_groups();
    END IF;
    RETURN retired >= max_starts;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_group_starts IS
    'Deletes starts of groups that count no longer; returns whether there may be more. At the end also what is left of groups.';
-- How many tasks of a queue may run at a time, and how many may start in a period.
--
--   max_running: the queue has that many slots (queue_internal.slots). A task needs a slot to start. A slot is free if
--   the task that is written in it no longer runs with the token that is written in it. So each end of a task frees its
--   slot by itself, at the commit, exactly once.
--
--   rate_limit: see rates.sql.
--
--   Concurrent claims take different slots and buckets, and none waits for another. All of it is part of the caller's
--   transaction: a claim that rolls back has taken nothing.

-- Returns up to "wanted" free slots, starting with a random one. Reads only. After the limit was lowered, as many
-- free slots stay unused as tasks still run in slots beyond it. All claims leave the same ones unused, the first, so
-- that together they cannot exceed the limit. Why subqueries and no joins: a join may read all tasks to find a few.
CREATE FUNCTION queue_internal.free_slots(
    source queue.queues, wanted integer, OUT slot integer, OUT version bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    start  integer := floor(random() * source.max_running);
    beyond bigint;
BEGIN
    SELECT count(*) INTO beyond FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot > source.max_running
      AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = s.task_id AND t.token = s.token) = 'running';
    IF beyond > 0 THEN
        start := 0;
    END IF;
    FOR slot, version IN
        SELECT newest.slot, newest.version
        FROM generate_series(start, start + source.max_running - 1) AS i,
             LATERAL (SELECT s.slot, s.version, s.task_id, s.token FROM queue_internal.slots AS s
                      WHERE s.queue = source.name AND s.slot = 1 + i % source.max_running
                      ORDER BY s.version DESC LIMIT 1) AS newest
        WHERE (SELECT t.state FROM queue.tasks AS t WHERE t.id = newest.task_id AND t.token = newest.token)
              IS DISTINCT FROM 'running'
        OFFSET beyond LIMIT wanted
    LOOP
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.free_slots IS 'Returns slots of a queue in which no task runs.';

CREATE FUNCTION queue_internal.take_slot(source queue.queues, task_id bigint, token bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    free   record;
BEGIN
    -- Other claims may be taking the same few: then check all of them.
    FOREACH wanted IN ARRAY ARRAY[2, source.max_running] LOOP
        FOR free IN SELECT f.slot, f.version FROM queue_internal.free_slots(source, wanted) AS f LOOP
            UPDATE queue_internal.slots AS s
            SET version = s.version + 1, task_id = take_slot.task_id, token = take_slot.token
            WHERE s.queue = source.name AND s.slot = free.slot AND s.version = (
                SELECT l.version FROM queue_internal.slots AS l
                WHERE l.queue = source.name AND l.slot = free.slot AND l.version = free.version
                FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                RETURN free.slot;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_slot IS
    'Takes a slot for a task and returns its number; null if none is free.';

-- Takes what a task needs to start: a slot, and a start from a rate bucket. Returns the time of the start, or null if
-- the task may not start. Gives a slot without a start back, or the task would later have two. "reserve" is the weight of
-- a task that comes first (take_start).
CREATE FUNCTION queue_internal.take_capacity(
    source queue.queues, task_id bigint, token bigint, weight integer, reserve integer)
RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    free_slot integer;
    started   timestamptz;
    later     timestamptz;
BEGIN
    IF source.max_running IS NOT NULL THEN
        free_slot := queue_internal.take_slot(source, task_id, token);
        IF free_slot IS NULL THEN
            RETURN NULL;
        END IF;
        started := clock_timestamp();
    END IF;
    IF source.rate_limit IS NOT NULL THEN
        started := queue_internal.take_start(source, weight, reserve);
        IF started IS NULL THEN
            -- If a start is available now, the call only met buckets that other sessions have locked.
            later := queue_internal.starts_at(source, weight + reserve);
            IF later > clock_timestamp() THEN
                PERFORM queue_internal.announce_task(source.name, later);
            END IF;
            UPDATE queue_internal.slots AS s SET task_id = NULL
            WHERE s.queue = source.name AND s.slot = free_slot AND s.task_id = take_capacity.task_id;
        END IF;
    END IF;
    RETURN started;
END
$$;
COMMENT ON FUNCTION queue_internal.take_capacity IS
    'Takes a slot and a start for a task; returns when it starts, or null if it may not.';

-- Of each slot only the newest version, because the older ones may be many that cannot be vacuumed yet. Reads only.
CREATE FUNCTION queue_internal.expired_holders(source queue.queues, moment timestamptz) RETURNS TABLE (task_id bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT h.task_id FROM (
        SELECT newest.task_id, newest.token
        FROM generate_series(1, source.max_running) AS i,
             LATERAL (SELECT s.task_id, s.token FROM queue_internal.slots AS s
                      WHERE s.queue = source.name AND s.slot = i ORDER BY s.version DESC LIMIT 1) AS newest
        UNION ALL
        SELECT s.task_id, s.token FROM queue_internal.slots AS s
        WHERE s.queue = source.name AND s.slot > source.max_running) AS h
    WHERE (SELECT t.lease_until FROM queue.tasks AS t
           WHERE t.id = h.task_id AND t.token = h.token AND t.state = 'running') <= moment;
END
$$;
COMMENT ON FUNCTION queue_internal.expired_holders IS
    'Returns the tasks that occupy the slots of a queue and whose leases have expired.';

-- A claim that was open while the limit was set, or that the transaction which set it did not see, took no slot. For
-- some time after that, claims look for running tasks without a slot and give them slots beyond the limit, which
-- count until these tasks end (free_slots). It reads all tasks of the queue, so it is done at most once a second and
-- for a twentieth of the time. Concurrent claims use what they see.
CREATE FUNCTION queue_internal.count_open_claims(source queue.queues) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    begun CONSTANT float8 := extract(epoch FROM clock_timestamp());
    ended float8;
    until bigint;
BEGIN
    -- In this row "version" is the time of the next check, as part of the key, and "token" the time of the last one.
    SELECT s.token INTO until FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot = 0 AND s.version <= begun * 1000000 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO queue_internal.slots (queue, slot, task_id, token)
    SELECT source.name, row_number() OVER (ORDER BY t.id) + (
               SELECT max(s.slot) FROM queue_internal.slots AS s WHERE s.queue = source.name), t.id, t.token
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.admission < 2 AND t.state = 'running'
      AND (t.id, t.token) NOT IN (
          SELECT s.task_id, s.token FROM queue_internal.slots AS s
          WHERE s.queue = source.name AND s.task_id IS NOT NULL AND s.token IS NOT NULL);
    ended := extract(epoch FROM clock_timestamp());
    IF ended * 1000000 < until THEN
        UPDATE queue_internal.slots AS s SET version = (ended + greatest(20 * (ended - begun), 1)) * 1000000
        WHERE s.queue = source.name AND s.slot = 0;
    ELSE
        DELETE FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot = 0;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.count_open_claims IS
    'Counts tasks against a new limit whose claims were open when it was set.';

-- Checked before any row is locked, so that claims from a queue at its limit write nothing. It also ends expired
-- attempts in the slots, because no scan may meet those tasks.
CREATE FUNCTION queue_internal.has_capacity(source queue.queues) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF source.rate_limit IS NOT NULL AND NOT EXISTS (
        SELECT FROM queue_internal.rate_bucket_times(source, clock_timestamp(), 1)) THEN
        PERFORM queue_internal.announce_start(source);
        RETURN false;
    END IF;
    IF source.max_running IS NOT NULL THEN
        PERFORM queue_internal.count_open_claims(source);
    END IF;
    IF source.max_running IS NOT NULL AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1)) THEN
        -- Not all at once: the next claim ends the others.
        RETURN (queue_internal.expire(ARRAY(
            SELECT h.task_id FROM queue_internal.expired_holders(source, clock_timestamp()) AS h LIMIT 32))).expired > 0;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.has_capacity IS 'Returns whether a task may start in a queue with limits.';

-- Creates the slots for the option. The caller has locked those that are deleted, and slot 0, so that no claim creates slots
-- with the same numbers meanwhile (count_open_claims).
CREATE FUNCTION queue_internal.provide_slots(source queue.queues) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF source.max_running IS NULL THEN
        DELETE FROM queue_internal.slots AS s WHERE s.queue = source.name;
        RETURN;
    END IF;
    -- A new limit counts the tasks that run already, and for ten minutes those that claims open now will commit.
    INSERT INTO queue_internal.slots (queue, slot, token)
    SELECT source.name, 0, (extract(epoch FROM clock_timestamp()) + 600) * 1000000
    WHERE NOT EXISTS (SELECT FROM queue_internal.slots AS s WHERE s.queue = source.name)
      AND (current_setting('transaction_isolation') <> 'read committed'
           OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.queue = source.name));
    INSERT INTO queue_internal.slots (queue, slot, task_id, token)
    SELECT source.name, row_number() OVER (ORDER BY t.id), t.id, t.token FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.state = 'running'
      AND NOT EXISTS (SELECT FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot > 0);
    INSERT INTO queue_internal.slots (queue, slot)
    SELECT source.name, i FROM generate_series(1, source.max_running) AS i
    WHERE NOT EXISTS (SELECT FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot = i);
    DELETE FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot > source.max_running
      AND NOT EXISTS (SELECT FROM queue.tasks AS t
                      WHERE t.id = s.task_id AND t.token = s.token AND t.state = 'running');
END
$$;
COMMENT ON FUNCTION queue_internal.provide_slots IS 'Makes the slots of a queue match max_running.';

-- Creates the rate buckets for the options. The caller has locked the old ones.
CREATE FUNCTION queue_internal.provide_buckets(source queue.queues) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buckets CONSTANT integer := CASE WHEN source.rate_limit IS NOT NULL THEN least(source.rate_limit, 64) END;
BEGIN
    -- A changed rate starts with the starts of the last period. Their versions are new: a claim that has read an old bucket
    -- must not lock a new one instead.
    WITH old AS (
        DELETE FROM queue_internal.rate_buckets AS s WHERE s.queue = source.name RETURNING s.version, s.taken
    ), recent AS (
        SELECT u.at, row_number() OVER (ORDER BY u.at DESC) - 1 AS rank
        FROM old AS o, unnest(o.taken) AS u (at) WHERE u.at > clock_timestamp() - source.rate_period
    )
    INSERT INTO queue_internal.rate_buckets (queue, bucket, version, rate_limit, rate_period, capacity, taken)
    SELECT source.name, b, coalesce((SELECT max(o.version) + 1 FROM old AS o), 0), source.rate_limit, source.rate_period,
           source.rate_limit / buckets + (b <= source.rate_limit % buckets)::integer,
           ARRAY(SELECT r.at FROM recent AS r WHERE r.rank % buckets = b - 1 ORDER BY r.at)
    FROM generate_series(1, buckets) AS b;
END
$$;
COMMENT ON FUNCTION queue_internal.provide_buckets IS 'Makes the rate buckets of a queue match its rate limit.';

-- Waits for claims that are open. Others must be able to claim meanwhile, however long one of them stays open: so it lets go of
-- what it has locked, and tries again after as long as it has waited. It waits twice as long each time, because with many
-- workers some claim is always open. "beyond" as in lock_claimed.
CREATE FUNCTION queue_internal.wait_for_claims(queue text, beyond integer, buckets boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- By the caller's lock_timeout; 0 is none.
    stop     CONSTANT timestamptz :=
        clock_timestamp() + coalesce(nullif(current_setting('lock_timeout')::interval, '0'), '1000 years');
    patience interval := queue_internal.lock_patience();
BEGIN
    WHILE NOT queue_internal.lock_claimed(
            queue, beyond, buckets, false, least(patience, greatest(stop - clock_timestamp(), interval '1 ms'))) LOOP
        IF clock_timestamp() >= stop THEN
            RAISE lock_not_available USING
                MESSAGE = format('claims from queue %s are open', to_json(queue)),
                HINT = 'The change waits for them. Try again, or with a longer lock_timeout.';
        END IF;
        PERFORM pg_sleep_for(least(patience, stop - clock_timestamp()));
        patience := least(2 * patience, interval '10 minutes');
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.wait_for_claims IS
    'Locks what claims from a queue use of its limits, as soon as no claim has it locked.';

-- "beyond": the slots with a larger number, and slot 0; null for none. "groups": their locks, and their admitted tasks, with
-- those that delayed_head concerns (policies_changed).
-- Waits for so long, or for the caller's lock_timeout: for each lock, because only that finds deadlocks, and for no further one
-- after that time. Tasks are locked in order: a cursor locks no row before it is fetched. The exception handler releases the
-- locks.
CREATE FUNCTION queue_internal.lock_claimed(queue text, beyond integer, buckets boolean, groups boolean, patience interval)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- As in policies_changed.
    blocks CONSTANT boolean := (SELECT q.delayed_head = 'block' FROM queue.queues AS q WHERE q.name = lock_claimed.queue);
    all_slots CURSOR FOR
        SELECT FROM queue_internal.slots AS s
        WHERE s.queue = lock_claimed.queue AND (s.slot > beyond OR s.slot = 0) ORDER BY s.slot FOR UPDATE;
    all_buckets CURSOR FOR
        SELECT FROM queue_internal.rate_buckets AS s WHERE s.queue = lock_claimed.queue ORDER BY s.bucket FOR UPDATE;
    all_locks CURSOR FOR
        SELECT FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue ORDER BY l.number FOR UPDATE;
    all_tasks CURSOR FOR
        SELECT FROM queue.tasks AS t
        WHERE t.queue = lock_claimed.queue AND t.group_key IS NOT NULL AND t.state = 'queued'
          AND (t.admission = 1 OR t.admission = 0 AND blocks)
        ORDER BY t.id FOR NO KEY UPDATE;
    before CONSTANT text := current_setting('lock_timeout');
    stop   CONSTANT timestamptz := clock_timestamp() + patience;
BEGIN
    IF before = '0' OR before::interval > patience THEN
        PERFORM set_config('lock_timeout', (extract(epoch FROM patience) * 1000)::integer::text, true);
    END IF;
    -- Of slots, buckets and locks, it first takes all that are free, so that claims which end meanwhile do not take the others.
    IF beyond IS NOT NULL THEN
        PERFORM FROM queue_internal.slots AS s
        WHERE s.queue = lock_claimed.queue AND (s.slot > beyond OR s.slot = 0) FOR UPDATE SKIP LOCKED;
        FOR one IN all_slots LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
    END IF;
    IF buckets THEN
        PERFORM FROM queue_internal.rate_buckets AS s WHERE s.queue = lock_claimed.queue FOR UPDATE SKIP LOCKED;
        FOR one IN all_buckets LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
    END IF;
    IF groups THEN
        -- The transaction that has it locked may be inserting the others (lock_group).
        PERFORM FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue AND l.number = -1 FOR UPDATE;
        PERFORM FROM queue_internal.locks AS l WHERE l.queue = lock_claimed.queue FOR UPDATE SKIP LOCKED;
        FOR one IN all_locks LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
        -- Now no claim admits a task, and a new statement sees all that were admitted.
        FOR one IN all_tasks LOOP
            IF clock_timestamp() > stop THEN
                RAISE lock_not_available;
            END IF;
        END LOOP;
    END IF;
    PERFORM set_config('lock_timeout', before, true);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_claimed IS
    'Locks what claims use of a queue''s limits; false if that takes too long.';

CREATE FUNCTION queue_internal.lock_patience() RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN least(current_setting('deadlock_timeout')::interval, interval '1 minute') + interval '200 ms';
END
$$;
COMMENT ON FUNCTION queue_internal.lock_patience IS 'How long a wait for a lock must take so that deadlocks are found.';
-- Ageing keeps low priorities from starving: in a queue with the option "ageing", waiting that long is worth one step
-- of priority. So tasks are claimed in the order of run_at + priority * ageing. That value never changes while a task
-- waits and needs no index of its own: within a priority it is the order of run_at, and between priorities the heads
-- are compared.

-- How far a claim has come in a priority.
CREATE TYPE queue_internal.passed_level AS (level integer, until timestamptz);
COMMENT ON TYPE queue_internal.passed_level IS 'How far a claim has come in a priority.';

-- Returns, for a bucket, the priority of the next task, the run_at of that task, and the run_at up to which the tasks
-- of that priority come before those of all others.
CREATE FUNCTION queue_internal.next_aged_level(
    in_bucket integer, source queue.queues, moment timestamptz, passed queue_internal.passed_level[],
    OUT level integer, OUT head timestamptz, OUT until timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    step   CONSTANT float8 := extract(epoch FROM source.ageing);
    other  integer;
    first  timestamptz;
    begun  timestamptz;
    best   float8 := 'infinity';
    second float8 := 'infinity';
    value  float8;
    up_to  float8;
BEGIN
    SELECT t.priority INTO other FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
    ORDER BY t.priority LIMIT 1;
    WHILE other IS NOT NULL LOOP
        SELECT coalesce(max(p.until), '-infinity') INTO begun FROM unnest(passed) AS p WHERE p.level = other;
        SELECT t.run_at INTO first FROM queue.tasks AS t
        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.priority = other
          AND t.admission < 2 AND t.run_at > begun AND t.run_at <= moment
          AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment)
        ORDER BY t.run_at LIMIT 1;
        IF FOUND THEN
            value := extract(epoch FROM first) + other * step;
            IF value < best THEN
                second := best;
                best := value;
                level := other;
                head := first;
            ELSE
                second := least(second, value);
            END IF;
        END IF;
        SELECT t.priority INTO other FROM queue.tasks AS t
        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
          AND t.priority > other ORDER BY t.priority LIMIT 1;
    END LOOP;
    -- Clipped as a number, because priorities that are far apart give times outside the range of timestamptz. Never
    -- earlier than the head itself, whatever rounding does.
    up_to := second - level * step;
    until := CASE WHEN up_to < extract(epoch FROM moment) THEN greatest(head, to_timestamp(up_to)) ELSE moment END;
END
$$;
COMMENT ON FUNCTION queue_internal.next_aged_level IS
    'Returns the priority whose first task comes next in a queue with ageing.';
-- How a task leaves queue.tasks, how it returns to its queue after an attempt, and how its order or its queue changes.
-- The caller holds a lock on the task's row: FOR NO KEY UPDATE, or FOR UPDATE if the task is to end. A transaction that
-- has pushed after the task conflicts only with FOR UPDATE (dependencies.sql).

-- Must run in a statement before the one that looks for dependents of the task. With "wait" it waits for
-- transactions that have pushed after the task, or have its key; otherwise it returns false.
CREATE FUNCTION queue_internal.lock_to_end(task_id bigint, wait boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    locked record;
BEGIN
    IF wait THEN
        SELECT t.queue, t.key INTO locked FROM queue.tasks AS t WHERE t.id = task_id FOR UPDATE;
    ELSE
        SELECT t.queue, t.key INTO locked FROM queue.tasks AS t WHERE t.id = task_id FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN FOUND AND (locked.key IS NULL OR queue_internal.lock_key(locked.queue, locked.key, wait));
END
$$;
COMMENT ON FUNCTION queue_internal.lock_to_end IS
    'Locks a task that is to end, and its key; false if that would have to wait.';

-- Bounded, because each failure writes the whole array again, also if the background worker ends the attempt.
CREATE FUNCTION queue_internal.with_error(task queue.tasks, error text, details jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest CONSTANT integer := 65536;
    errors  jsonb := coalesce(task.errors, '[]');
    mark    text;
BEGIN
    IF length(error) > longest THEN
        mark := format(' [cut, of %s characters]', length(error));
        error := left(error, longest - length(mark)) || mark;
    END IF;
    IF jsonb_array_length(CASE jsonb_typeof(errors) WHEN 'array' THEN errors END) >= 20 THEN
        errors := errors - 10;
    END IF;
    RETURN errors || (
        jsonb_build_object('attempt', task.attempt, 'claimed_at', task.claimed_at, 'at', clock_timestamp(),
                           'worker', task.worker, 'error', error)
        || CASE WHEN details IS NULL THEN '{}' ELSE jsonb_build_object('details', details) END);
END
$$;
COMMENT ON FUNCTION queue_internal.with_error IS
    'Returns the errors of a task with one more, cut to 65536 characters; of more than twenty errors, the first ten and '
    'the last ten.';

-- A trigger of the user can suppress the deletion. Then the task must not end: it would run again.
CREATE FUNCTION queue_internal.archive(task queue.tasks, state text, result jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    kept    boolean;
    whole   boolean;
    awaited boolean;
    ended   bigint;
BEGIN
    -- At REPEATABLE READ and SERIALIZABLE the snapshot may not show all dependents. Then notify_dependents records the
    -- outcome.
    SELECT q.keep_history, q.keep_payloads,
           q.max_running IS NOT NULL
           OR NOT q.keep_history AND current_setting('transaction_isolation') <> 'read committed'
           OR EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = task.id)
    INTO kept, whole, awaited
    FROM queue.queues AS q WHERE q.name = task.queue;
    -- One statement, so that a trigger of the user after it finds the task in the history.
    WITH gone AS (
        DELETE FROM queue.tasks AS t WHERE t.id = task.id RETURNING t.id
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors,
            result)
        SELECT g.id, task.queue, archive.state, task.priority, task.run_at, task.attempt, task.max_attempts,
               task.token, task.worker, task.claimed_at, task.created_at, task.key, task.group_key,
               task.kind, task.lease, task.timeout, task.start_by, task.weight, task.headers,
               CASE WHEN whole IS DISTINCT FROM false THEN task.payload END, task.progress, task.errors, archive.result
        FROM gone AS g WHERE kept IS DISTINCT FROM false
    )
    SELECT g.id INTO ended FROM gone AS g;
    IF ended IS NULL THEN
        PERFORM queue_internal.raise_kept(task.id, 'queue.tasks');
    END IF;
    -- Null if a dump has brought the task but not yet its queue.
    IF awaited IS NOT FALSE OR task.key IS NOT NULL OR task.group_key IS NOT NULL OR task.state = 'waiting' THEN
        PERFORM queue_internal.on_task_end(task, archive.state);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.archive IS
    'Moves a finished task to the history, or deletes it if its queue keeps none.';

-- The effects of the end of a task on others: its key is free, its group and its slot have room, and its dependents
-- get its outcome. Must run in a statement after the one that locked or deleted the task: see notify_dependents().
CREATE FUNCTION queue_internal.on_task_end(task queue.tasks, outcome text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.key IS NOT NULL THEN
        -- Work that failed may be pushed again at once.
        PERFORM queue_internal.release_key(task, outcome IN ('purged', 'failed'));
    END IF;
    IF task.group_key IS NOT NULL AND task.state = 'running' THEN
        PERFORM queue_internal.hand_over(ARRAY[task.queue], ARRAY[task.group_key]);
    ELSIF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key) VALUES (task.queue, task.group_key);
    END IF;
    IF task.state = 'waiting' THEN
        PERFORM queue_internal.delete_dependencies(task.id);
        DELETE FROM queue_internal.batches AS b WHERE b.task_id = task.id;
    END IF;
    PERFORM queue_internal.notify_dependents(ARRAY[task.id], outcome);
    IF task.state = 'running' THEN
        PERFORM queue_internal.announce_free_slot(task.queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.on_task_end IS
    'Releases the key and the slot of a task that has ended, gives its turn in its group to the next one, and leaves events '
    'for its dependents.';

CREATE FUNCTION queue_internal.announce_free_slot(queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM queue.queues AS q WHERE q.name = announce_free_slot.queue AND q.max_running IS NOT NULL) THEN
        PERFORM queue_internal.announce_task(queue, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.announce_free_slot IS
    'Called when a task stops running: wakes workers of a queue with max_running, in which other tasks may wait for its slot.';

CREATE FUNCTION queue_internal.cancel_now(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.archive(task, 'cancelled', NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.cancel_now IS 'Moves a task to the history as cancelled.';

CREATE FUNCTION queue_internal.cancel_or_request(task queue.tasks) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.state = 'running' THEN
        UPDATE queue.tasks AS t
        SET cancel_requested_at = coalesce(t.cancel_requested_at, clock_timestamp()),
            updated_at = clock_timestamp()
        WHERE t.id = task.id;
        RETURN 'running';
    END IF;
    PERFORM queue_internal.cancel_now(task);
    RETURN 'cancelled';
END
$$;
COMMENT ON FUNCTION queue_internal.cancel_or_request IS
    'Cancels a task, or records the request for a running one; returns its state.';

CREATE FUNCTION queue_internal.discard(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    DELETE FROM queue.tasks AS t WHERE t.id = task.id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM queue_internal.on_task_end(task, 'purged');
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.discard IS
    'Deletes a task without recording it in the history; false if a trigger of the user has suppressed that.';

CREATE FUNCTION queue_internal.move_to_dead_letters(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended bigint;
BEGIN
    WITH gone AS (
        DELETE FROM queue.tasks AS t WHERE t.id = task.id RETURNING t.id
    ), moved AS (
        INSERT INTO queue.dead_letters (
            id, queue, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, backoff, kind, lease, timeout, start_by, weight, headers, payload, progress, errors,
            key_ttl)
        SELECT g.id, task.queue, task.priority, task.run_at, task.attempt, task.max_attempts, task.token,
               task.worker, task.claimed_at, task.created_at, task.key, task.group_key, task.backoff,
               task.kind, task.lease, task.timeout, task.start_by, task.weight, task.headers, task.payload, task.progress,
               task.errors,
               (SELECT k.ttl FROM queue_internal.keys AS k
                WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id)
        FROM gone AS g
    )
    SELECT g.id INTO ended FROM gone AS g;
    IF ended IS NULL THEN
        PERFORM queue_internal.raise_kept(task.id, 'queue.tasks');
    END IF;
    PERFORM queue_internal.on_task_end(task, 'failed');
END
$$;
COMMENT ON FUNCTION queue_internal.move_to_dead_letters IS 'Moves a task to the dead letters.';

CREATE FUNCTION queue_internal.requeue(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', attempt = task.attempt, run_at = task.run_at, errors = task.errors,
        lease_until = NULL, worker = NULL, claimed_at = NULL, updated_at = clock_timestamp()
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        PERFORM queue_internal.recheck_group(task);
    END IF;
    -- A task that is due is announced itself.
    IF task.run_at > clock_timestamp() THEN
        PERFORM queue_internal.announce_free_slot(task.queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.requeue IS
    'Requeues a running task with the attempt, run_at and errors given.';

CREATE FUNCTION queue_internal.reorder(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET priority = task.priority, run_at = task.run_at, updated_at = clock_timestamp()
    WHERE t.id = task.id;
END
$$;
COMMENT ON FUNCTION queue_internal.reorder IS 'Changes the priority and the run_at of a task.';

-- Returns false, and does nothing, if another task of that queue has the key.
CREATE FUNCTION queue_internal.move(task queue.tasks, to_queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.key IS NOT NULL AND task.queue <> to_queue THEN
        IF NOT queue_internal.take_key(to_queue, task.key, task.id) THEN
            RETURN false;
        END IF;
        UPDATE queue_internal.keys AS k SET ttl = o.ttl FROM queue_internal.keys AS o
        WHERE k.queue = to_queue AND k.key = task.key AND o.queue = task.queue AND o.key = task.key
          AND o.task_id = task.id AND o.ttl IS NOT NULL;
        PERFORM queue_internal.release_key(task, true);
    END IF;
    -- An event in the other queue admits it when it is its turn in its group.
    UPDATE queue.tasks AS t
    SET queue = to_queue, updated_at = clock_timestamp(),
        admission = CASE WHEN t.state = 'waiting' OR t.group_key IS NOT NULL THEN 2 ELSE 0 END
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived)
        VALUES (task.queue, task.group_key, NULL), (to_queue, task.group_key, task.id);
        PERFORM queue_internal.note_return(to_queue, task.group_key, task.id);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.move IS
    'Moves a task that is not running to another queue; false if its key is taken there.';

CREATE FUNCTION queue_internal.has_timed_out(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN coalesce(queue_internal.timeout_at(task.claimed_at, coalesce(
        task.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = task.queue)))
        <= least(task.lease_until, clock_timestamp()), false);
END
$$;
COMMENT ON FUNCTION queue_internal.has_timed_out IS
    'Returns whether the timeout of a running task has passed, rather than only its lease.';

-- Ends a failed attempt: cancels the task if that was requested; else requeues it or moves it to the dead letters. A
-- task that was replaced is cancelled instead of requeued. Without "wait" it returns null and does nothing if it
-- would have to wait for a transaction that has pushed after the task or is replacing it.
CREATE FUNCTION queue_internal.end_attempt(
    task queue.tasks, error text, retry_in interval, permanent boolean, wait boolean DEFAULT true,
    details jsonb DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    is_last boolean;
    outcome text;
BEGIN
    task.errors := queue_internal.with_error(task, error, details);
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = task.queue;
    -- A dump may bring a task before its queue. Until then it is unknown whether this was the last attempt.
    IF NOT wait AND source.name IS NULL THEN
        RETURN NULL;
    END IF;
    is_last := permanent OR coalesce(task.attempt >= coalesce(task.max_attempts, source.max_attempts), false);
    -- The first to lock the key decides whether a push replaces this task. A caller that waits has locked a task with a
    -- key FOR UPDATE, so that a push that replaces it comes before or after (leased_task).
    IF NOT wait AND task.key IS NOT NULL AND NOT is_last AND NOT queue_internal.lock_key(task.queue, task.key, false) THEN
        RETURN NULL;
    END IF;
    outcome := CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN is_last THEN 'failed'
                    WHEN queue_internal.is_replaced(task) THEN 'cancelled' END;
    IF outcome IS NOT NULL AND NOT queue_internal.lock_to_end(task.id, wait) THEN
        RETURN NULL;
    ELSIF outcome = 'cancelled' THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN outcome;
    ELSIF outcome = 'failed' THEN
        PERFORM queue_internal.move_to_dead_letters(task);
        RETURN outcome;
    END IF;
    retry_in := coalesce(retry_in, queue_internal.backoff(source, task));
    -- Without a delay the task keeps its place in the queue.
    IF extract(epoch FROM retry_in) > 0 THEN
        task.run_at := clock_timestamp() + retry_in;
    END IF;
    PERFORM queue_internal.requeue(task);
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue_internal.end_attempt IS
    'Ends an attempt that did not succeed; returns the new state of the task.';
-- queue_internal.leased_task(id, token, ends)
--
--   Returns the running task with that token, its row locked. A lease that has expired but was not ended yet still
--   counts: no other worker has the task, so nothing is gained by refusing.
--   Waits:    with "ends", or if the task's cancellation was requested or it has a key, for transactions that have
--             pushed after the task or are replacing it. It takes the stronger lock from the start instead of
--             upgrading: a session that waits for an upgrade would keep heartbeats waiting
--   Errors:   QX001, QX003

CREATE FUNCTION queue_internal.leased_task(id bigint, token bigint, ends boolean) RETURNS queue.tasks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    IF NOT ends THEN
        SELECT t.* INTO task FROM queue.tasks AS t
        WHERE t.id = leased_task.id AND t.token = leased_task.token AND t.state = 'running'
          AND t.cancel_requested_at IS NULL AND t.key IS NULL AND queue_internal.has_right('worker', t.queue)
        FOR NO KEY UPDATE;
        IF FOUND THEN
            RETURN task;
        END IF;
    END IF;
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = leased_task.id AND t.token = leased_task.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION queue_internal.leased_task IS
    'Returns the running task with that token, locked; raises if the lease is no longer held.';

-- Locks many as leased_task does, in the order of ids; leaves out the leases that are no longer held. "permanent" is that
-- of queue.fail. It is null for a release, which ends no task unless leased_task notices that. "nth" is the position in
-- the arrays.
CREATE FUNCTION queue_internal.lock_leases(ids bigint[], tokens bigint[], permanent boolean)
RETURNS TABLE (id bigint, token bigint, nth bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    FOR id, token, nth IN
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.nth
        FROM ROWS FROM (unnest(ids), unnest(tokens)) WITH ORDINALITY AS g (id, token, nth)
        ORDER BY g.id, g.token, g.nth
    LOOP
        IF permanent IS NULL OR NOT queue_internal.may_be_last(id, token, permanent) THEN
            PERFORM FROM queue.tasks AS t
            WHERE t.id = lock_leases.id AND t.token = lock_leases.token AND t.state = 'running'
              AND t.cancel_requested_at IS NULL AND t.key IS NULL AND queue_internal.has_right('worker', t.queue)
            FOR NO KEY UPDATE;
            IF FOUND THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        PERFORM FROM queue.tasks AS t
        WHERE t.id = lock_leases.id AND t.token = lock_leases.token AND t.state = 'running'
          AND queue_internal.has_right('worker', t.queue)
        FOR UPDATE;
        IF FOUND THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_leases IS
    'Locks the running tasks with these tokens; returns them, without those whose lease is no longer held.';
-- Steps: what a task has done so far, and what it waits for in the middle of its work.
--
--   A worker stores the result of each step. A later attempt gets what is stored, so it does no step twice. A task that
--   waits for a time, an event or another task is suspended: it has no lease, and the attempt does not count. The claim
--   after that starts the worker's code again from the first step.
--
--   A suspended task with a timeout is queued, with the end of the timeout as its run_at: nothing else has to watch the
--   time. Without one it is waiting. What it waits for is in queue_internal.awaits. When that comes, the same events as
--   for dependencies have the task checked (process_dependent), and wake() makes it claimable. A task that is claimed
--   earlier, because somebody changed its run_at, asks again and is suspended again until the same time.
--
--   An event is emitted for a queue. A task that begins to wait holds a SHARE lock on the event's row until it commits,
--   and an emission updates that row. So either comes first, and the later one sees it. An emission at REPEATABLE READ or
--   SERIALIZABLE may still not see who waits; then wake_rest looks again. Other tasks are waited for as predecessors are
--   (dependencies.sql).
--
--   What a task got is stored like a step, so that later attempts get the same.

CREATE FUNCTION queue_internal.check_step(argument text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    END IF;
    PERFORM queue_internal.check_key(argument, value);
END
$$;
COMMENT ON FUNCTION queue_internal.check_step IS 'Checks the name of a step or an event: 1 to 512 bytes.';

-- The caller has locked the task, so that no other transaction stores a step of it.
CREATE FUNCTION queue_internal.stored_step(task_id bigint, kind text, name text, OUT stored boolean, OUT value jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    SELECT s.value INTO value FROM queue_internal.steps AS s
    WHERE s.task_id = stored_step.task_id AND s.kind = stored_step.kind AND s.name = stored_step.name;
    stored := FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.stored_step IS 'Returns what a task has stored under a name, and whether it has.';

CREATE FUNCTION queue_internal.store_step(task_id bigint, kind text, name text, value jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    INSERT INTO queue_internal.steps (task_id, number, kind, name, value)
    VALUES (store_step.task_id, coalesce((SELECT s.number FROM queue_internal.steps AS s
                                          WHERE s.task_id = store_step.task_id ORDER BY s.number DESC LIMIT 1), 0) + 1,
            store_step.kind, store_step.name, store_step.value)
    -- At READ COMMITTED there is no conflict. A snapshot from before the other step raises 40001.
    ON CONFLICT DO NOTHING;
    IF kind IN ('event', 'task') THEN
        DELETE FROM queue_internal.awaits AS a WHERE a.task_id = store_step.task_id;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.store_step IS 'Stores a step of a task, or what it got after it waited.';

CREATE FUNCTION queue_internal.is_suspended(task_id bigint, token bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM queue_internal.awaits AS a
                   WHERE a.task_id = is_suspended.task_id AND a.token = is_suspended.token);
END
$$;
COMMENT ON FUNCTION queue_internal.is_suspended IS 'Returns whether a task that does not run waits for an event or another task.';

-- The task is locked by leased_task(). Cancels it if that was requested or it was replaced, and fails the attempt if it has
-- timed out.
CREATE FUNCTION queue_internal.suspend(task queue.tasks, until timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.cancel_requested_at IS NOT NULL OR queue_internal.is_replaced(task) THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN;
    ELSIF queue_internal.has_timed_out(task) THEN
        PERFORM queue_internal.end_attempt(task, 'timed out', NULL, false);
        RETURN;
    END IF;
    task.attempt := task.attempt - 1;
    IF until IS NOT NULL THEN
        task.run_at := until;
        PERFORM queue_internal.requeue(task);
        RETURN;
    END IF;
    UPDATE queue.tasks AS t
    SET state = 'waiting', attempt = task.attempt, admission = 2, lease_until = NULL, worker = NULL, claimed_at = NULL,
        updated_at = clock_timestamp()
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key, arrived) VALUES (task.queue, task.group_key, task.id);
    END IF;
    PERFORM queue_internal.announce_free_slot(task.queue);
END
$$;
COMMENT ON FUNCTION queue_internal.suspend IS
    'Ends the lease of a task without counting the attempt, until a time, or for null until it is woken.';

-- What the task waits for, and until when: as it was before, if it has waited for the same already.
CREATE FUNCTION queue_internal.awaits_of(task queue.tasks, event text, other bigint, timeout interval)
RETURNS queue_internal.awaits
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    awaited queue_internal.awaits;
BEGIN
    SELECT a.* INTO awaited FROM queue_internal.awaits AS a
    WHERE a.task_id = task.id AND (a.event = awaits_of.event OR a.predecessor_id = awaits_of.other);
    IF NOT FOUND THEN
        awaited.queue := CASE WHEN event IS NOT NULL THEN task.queue END;
        awaited.event := event;
        awaited.predecessor_id := other;
        awaited.until := clock_timestamp() + timeout;
    END IF;
    awaited.task_id := task.id;
    awaited.token := task.token;
    RETURN awaited;
END
$$;
COMMENT ON FUNCTION queue_internal.awaits_of IS 'Returns the row for what a task waits for; does not store it.';

CREATE FUNCTION queue_internal.suspend_for(task queue.tasks, awaited queue_internal.awaits) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF queue_internal.has_timed_out(task) THEN
        PERFORM queue_internal.suspend(task, awaited.until);
        RETURN;
    END IF;
    INSERT INTO queue_internal.awaits AS a (task_id, token, queue, event, predecessor_id, until)
    VALUES (awaited.task_id, awaited.token, awaited.queue, awaited.event, awaited.predecessor_id, awaited.until)
    ON CONFLICT ON CONSTRAINT awaits_pkey
    DO UPDATE SET token = excluded.token, queue = excluded.queue, event = excluded.event,
                  predecessor_id = excluded.predecessor_id, outcome = NULL, until = excluded.until, restored_at = NULL;
    -- Those of an earlier wait, and of the push.
    PERFORM queue_internal.delete_dependencies(task.id);
    IF awaited.predecessor_id IS NOT NULL THEN
        INSERT INTO queue_internal.dependencies AS d (predecessor_id, task_id, on_failure)
        VALUES (awaited.predecessor_id, awaited.task_id, 'continue')
        ON CONFLICT ON CONSTRAINT dependencies_pkey
        DO UPDATE SET outcome = NULL, on_failure = 'continue', restored_at = NULL;
    END IF;
    PERFORM queue_internal.suspend(task, awaited.until);
END
$$;
COMMENT ON FUNCTION queue_internal.suspend_for IS 'Suspends a task until an event is emitted or another task ends.';

-- A row that does not exist yet is inserted, so that an emission waits for this transaction. Another emission that is open
-- is waited for.
CREATE FUNCTION queue_internal.lock_event(
    queue text, event text, OUT payload jsonb, OUT emitted boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    LOOP
        SELECT e.payload, e.emitted_at IS NOT NULL INTO payload, emitted FROM queue_internal.emitted AS e
        WHERE e.queue = lock_event.queue AND e.event = lock_event.event FOR SHARE;
        EXIT WHEN FOUND;
        INSERT INTO queue_internal.emitted (queue, event) VALUES (lock_event.queue, lock_event.event)
        ON CONFLICT ON CONSTRAINT emitted_pkey DO NOTHING;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_event IS
    'Locks the row of an event against an emission; returns the payload if it has been emitted.';

-- If the queue of the event is dropped, the wait has an outcome. A queue may also have been deleted by hand, or a dump has
-- not brought it yet. Otherwise the end of the time is the run_at of a queued task, which somebody may have changed.
CREATE FUNCTION queue_internal.has_come(awaited queue_internal.awaits, state text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN awaited.outcome IS NOT NULL
        OR EXISTS (SELECT FROM queue_internal.emitted AS e
                   WHERE e.queue = awaited.queue AND e.event = awaited.event AND e.emitted_at IS NOT NULL)
        OR state = 'waiting' AND (awaited.until <= clock_timestamp()) IS TRUE
        OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = awaited.queue)
           AND (awaited.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE;
END
$$;
COMMENT ON FUNCTION queue_internal.has_come IS
    'Returns whether the event that a suspended task waits for was emitted, or cannot be any more.';

-- Called for an event about a suspended task, whose row is locked. The task may have been woken already.
CREATE FUNCTION queue_internal.wake(task queue.tasks, awaited queue_internal.awaits) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    came boolean := awaited.outcome IS NOT NULL;
BEGIN
    IF awaited.event IS NOT NULL THEN
        came := queue_internal.has_come(awaited, task.state);
    ELSIF NOT came THEN
        UPDATE queue_internal.awaits AS a SET outcome = d.outcome FROM queue_internal.dependencies AS d
        WHERE a.task_id = task.id AND d.predecessor_id = awaited.predecessor_id AND d.task_id = task.id
          AND d.outcome IS NOT NULL;
        came := FOUND;
    END IF;
    IF NOT came THEN
        RETURN;
    ELSIF task.state = 'waiting' THEN
        PERFORM queue_internal.unblock(task);
    ELSIF task.state = 'queued' THEN
        IF task.run_at > clock_timestamp() THEN
            task.run_at := clock_timestamp();
            PERFORM queue_internal.reorder(task);
            PERFORM queue_internal.recheck_group(task);
        END IF;
        IF awaited.predecessor_id IS NOT NULL THEN
            PERFORM queue_internal.delete_dependencies(task.id);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.wake IS 'Makes a suspended task claimable if what it waits for has come.';

-- The parts of the sweep (sweep.sql). This one leaves events for suspended tasks that can go on, and deletes what tasks
-- waited for that have ended. Returns the last task that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_awaits(after bigint, max_rows integer, of_queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    checked integer := 0;
    row     record;
BEGIN
    FOR row IN
        SELECT a.*, t.id AS live, t.queue AS of, t.state,
               t.state = 'waiting' OR t.state = 'queued' AND t.run_at > clock_timestamp() AS waits,
               t.token AS current
        FROM queue_internal.awaits AS a LEFT JOIN LATERAL (
            -- OFFSET prevents a join that reads all tasks.
            SELECT l.id, l.queue, l.state, l.run_at, l.token FROM queue.tasks AS l WHERE l.id = a.task_id OFFSET 0) AS t ON true
        WHERE a.task_id > coalesce(after, -9223372036854775808)
        ORDER BY a.task_id LIMIT max_rows
    LOOP
        checked := checked + 1;
        after := row.task_id;
        CONTINUE WHEN row.of <> of_queue OR row.of IS NULL AND of_queue IS NOT NULL;
        IF row.live IS NULL THEN
            -- A dump may still bring the task. One that failed can be put back.
            CONTINUE WHEN row.restored_at > clock_timestamp() - interval '1 day';
            DELETE FROM queue_internal.awaits AS a
            WHERE a.task_id = (SELECT l.task_id FROM queue_internal.awaits AS l WHERE l.task_id = row.task_id
                                 AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = l.task_id) IS NULL
                                 AND (SELECT d.id FROM queue.dead_letters AS d WHERE d.id = l.task_id) IS NULL
                               FOR UPDATE SKIP LOCKED);
            IF FOUND THEN
                PERFORM queue_internal.delete_dependencies(row.task_id);
            END IF;
            CONTINUE;
        END IF;
        CONTINUE WHEN row.current <> row.token OR NOT row.waits;
        IF row.event IS NOT NULL THEN
            CONTINUE WHEN queue_internal.has_come(
                (SELECT a FROM queue_internal.awaits AS a WHERE a.task_id = row.task_id), row.state) IS NOT TRUE;
        ELSIF row.outcome IS NULL THEN
            -- The dependency was deleted by hand.
            INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
            SELECT row.predecessor_id, row.task_id, 'continue'
            WHERE NOT EXISTS (SELECT FROM queue_internal.dependencies AS d
                              WHERE d.predecessor_id = row.predecessor_id AND d.task_id = row.task_id)
              AND (row.restored_at > clock_timestamp() - interval '1 day') IS NOT TRUE
            ON CONFLICT DO NOTHING;
            -- sweep_dependencies does the rest.
            CONTINUE;
        END IF;
        IF NOT queue_internal.has_event(row.task_id, row.of, of_queue IS NULL) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.of, row.task_id);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        RETURN NULL;
    END IF;
    RETURN after;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_awaits IS
    'Leaves events for suspended tasks that can go on, and forgets what ended tasks waited for.';

-- Deletes up to a thousand steps of each task that has left no trace. A dump may still bring the task.
CREATE FUNCTION queue_internal.sweep_steps(after bigint, max_tasks integer) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    most CONSTANT integer := 1000;
    row  record;
BEGIN
    after := coalesce(after, -9223372036854775808);
    FOR n IN 1 .. max_tasks LOOP
        SELECT s.task_id, s.restored_at INTO row FROM queue_internal.steps AS s
        WHERE s.task_id > after ORDER BY s.task_id, s.number LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        after := row.task_id;
        CONTINUE WHEN row.restored_at > clock_timestamp() - interval '1 day'
            OR (SELECT t.id FROM queue.tasks AS t WHERE t.id = after) IS NOT NULL
            OR queue_internal.is_recorded(after);
        DELETE FROM queue_internal.steps AS s
        WHERE s.task_id = after AND s.number = ANY (ARRAY(
            SELECT l.number FROM queue_internal.steps AS l WHERE l.task_id = after
            ORDER BY l.task_id, l.number LIMIT most FOR UPDATE SKIP LOCKED));
    END LOOP;
    RETURN after;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_steps IS 'Deletes steps of tasks that are gone; returns where to continue.';

-- STABLE, so that one snapshot is used for all tables.
CREATE FUNCTION queue_internal.is_recorded(id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = is_recorded.id)
        OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = is_recorded.id)
        OR EXISTS (SELECT FROM queue.history AS h WHERE h.id = is_recorded.id);
END
$$;
COMMENT ON FUNCTION queue_internal.is_recorded IS 'Returns whether a task is live, a dead letter or in the history.';

-- Leaves an event for each of the next tasks that wait for an emitted event, and records where to continue. The snapshot of
-- a whole transaction may not show all of them: then wake_rest looks again.
CREATE FUNCTION queue_internal.wake_waiting(queue text, event text, after bigint, most integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    ids  CONSTANT bigint[] := ARRAY(
        SELECT a.task_id FROM queue_internal.awaits AS a
        WHERE a.queue = wake_waiting.queue AND a.event = wake_waiting.event AND a.task_id > after
        ORDER BY a.task_id LIMIT most);
    rest CONSTANT bigint :=
        CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN ids[most] ELSE after END;
BEGIN
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT o.queue, o.id
    FROM (SELECT u.id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = u.id AND t.token = (
                            SELECT a.token FROM queue_internal.awaits AS a WHERE a.task_id = u.id)) AS queue
          FROM unnest(ids) AS u (id)) AS o
    WHERE o.queue IS NOT NULL;
    UPDATE queue_internal.emitted AS e SET rest_after = rest
    WHERE e.queue = wake_waiting.queue AND e.event = wake_waiting.event AND e.rest_after IS DISTINCT FROM rest;
END
$$;
COMMENT ON FUNCTION queue_internal.wake_waiting IS 'Wakes the next tasks that wait for an emitted event.';

CREATE FUNCTION queue_internal.wake_rest() RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    chosen record;
    rest   queue_internal.emitted;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    -- Any of the first, because one may fail each time, by a trigger that a user added.
    SELECT e.queue, e.event INTO chosen FROM (
        SELECT r.queue, r.event FROM queue_internal.emitted AS r WHERE r.rest_after IS NOT NULL
        ORDER BY r.queue, r.event LIMIT 100) AS e
    OFFSET floor(random() * (SELECT count(*) FROM (
        SELECT FROM queue_internal.emitted AS r WHERE r.rest_after IS NOT NULL LIMIT 100) AS c)) LIMIT 1;
    SELECT e.* INTO rest FROM queue_internal.emitted AS e
    WHERE e.queue = chosen.queue AND e.event = chosen.event AND e.rest_after IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    BEGIN
        PERFORM queue_internal.wake_waiting(rest.queue, rest.event, rest.rest_after, 1000);
    EXCEPTION WHEN OTHERS THEN
        IF queue_internal.may_log('emitted', rest.queue) THEN
            RAISE WARNING 'tasks that wait for an event of queue % cannot be woken: %', to_json(rest.queue), SQLERRM;
        END IF;
        RETURN 0;
    END;
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.wake_rest IS
    'Wakes more of the tasks that wait for an emitted event; returns 1, or 0 if there are none.';

-- Deletes events past "queue.event_retention", and rows of events that were awaited and never emitted; but none that a task
-- waits for. Returns the last event that it checked, or null at the end.
CREATE FUNCTION queue_internal.sweep_emitted(INOUT queue text, INOUT event text, max_rows integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    retention CONSTANT text := queue_internal.setting('event_retention', '7d');
    horizon   CONSTANT timestamptz :=
        CASE WHEN retention = '-1' THEN '-infinity' ELSE clock_timestamp() - retention::interval END;
    checked   integer := 0;
    row       record;
BEGIN
    FOR row IN
        SELECT e.queue, e.event, e.emitted_at IS NOT NULL AS emitted, e.emitted_at < horizon
               OR e.emitted_at IS NULL AND e.created_at < clock_timestamp() - interval '1 day' AS old
        FROM queue_internal.emitted AS e
        WHERE (e.queue, e.event) > (coalesce(sweep_emitted.queue, ''), coalesce(sweep_emitted.event, ''))
        ORDER BY e.queue, e.event LIMIT max_rows
    LOOP
        checked := checked + 1;
        queue := row.queue;
        event := row.event;
        CONTINUE WHEN NOT row.old;
        -- A task that begins to wait locks the row first. So none can do so from here on.
        PERFORM FROM queue_internal.emitted AS e WHERE e.queue = row.queue AND e.event = row.event FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            DELETE FROM queue_internal.emitted AS e
            WHERE e.queue = row.queue AND e.event = row.event
              -- It may have been emitted meanwhile.
              AND (e.emitted_at < horizon OR e.emitted_at IS NULL AND NOT row.emitted)
              AND NOT EXISTS (SELECT FROM queue_internal.awaits AS a
                              WHERE a.queue = row.queue AND a.event = row.event);
        END IF;
    END LOOP;
    IF checked < max_rows THEN
        queue := NULL;
        event := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_emitted IS 'Deletes old events; returns where to continue.';

CREATE TRIGGER step_restored BEFORE INSERT ON queue_internal.steps
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER step_restored ON queue_internal.steps IS 'Makes the sweep wait for the rest of a dump.';

CREATE TRIGGER await_restored BEFORE INSERT ON queue_internal.awaits
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER await_restored ON queue_internal.awaits IS 'Makes the sweep wait for the rest of a dump.';
-- queue_internal.open_queue(name, kind)
--
--   Returns the row of a queue, for a caller that has this kind of right on it.
--   Errors:   22004, 22023, 54000 for the argument "queue"; 42501 without the right, whether or not the queue exists;
--             QX002

CREATE FUNCTION queue_internal.open_queue(name text, kind text) RETURNS queue.queues
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = open_queue.name;
    IF source.name IS NULL THEN
        PERFORM queue_internal.check_name('queue', name);
    END IF;
    IF NOT queue_internal.has_right(kind, name) THEN
        PERFORM queue_internal.raise_denied(kind, name);
    ELSIF source.name IS NULL THEN
        PERFORM queue_internal.raise_unknown_queue(name);
    END IF;
    RETURN source;
END
$$;
COMMENT ON FUNCTION queue_internal.open_queue IS
    'Returns the row of a queue; raises if the caller has no such right or the queue does not exist.';

-- Has a concurrent drop of the queue come before or after what the caller does with it. Tries again, because a transaction
-- that was waited for may have dropped the queue and created it.
CREATE FUNCTION queue_internal.hold_queue(queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOOP
        PERFORM FROM queue.queues AS q WHERE q.name = hold_queue.queue FOR KEY SHARE;
        EXIT WHEN FOUND;
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = hold_queue.queue) THEN
            PERFORM queue_internal.raise_unknown_queue(queue);
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.hold_queue IS
    'Keeps a queue from being dropped until the transaction ends; raises QX002.';
-- The depth of a queue: how many of its tasks are queued, scheduled and blocked ones included. "max_queued" bounds it.
--
--   The native fast path reads the depth from the counters behind queue.stats (known_depth). The SQL implementation counts,
--   up to the bound, in the indexes on the order and on groups.
--   Cost:     a session that had to read more than a hundred index entries, those of finished tasks included, reuses the
--             number for twenty times as long as counting took, up to a minute, and adds what it inserts itself. So
--             pushes to a queue with a million tasks spend a twentieth of their time on counting. The number is kept in a
--             setting, like the scan start. A session can change that setting, and so exceed the bound on purpose
--   Exact:    except for that, and for tasks that other transactions push or claim concurrently. No push waits for another

-- A call adds "more" tasks. The statement has inserted "inserted" of them already, which are queued.
CREATE FUNCTION queue_internal.check_depth(source queue.queues, more bigint, inserted bigint DEFAULT 0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    depth bigint;
BEGIN
    IF more = 0 THEN
        RETURN;
    END IF;
    depth := coalesce(queue_internal.known_depth(source.name), queue_internal.depth_in_session(source, inserted)) - inserted;
    IF depth + more > source.max_queued THEN
        PERFORM queue_internal.raise_queue_full(source, depth, more);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_depth IS 'Raises QX006 if a queue with max_queued would have more tasks than that.';

CREATE FUNCTION queue_internal.depth_in_session(source queue.queues, inserted bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name    CONSTANT text := 'queue_depth.q' || md5(source.name);
    begun   CONSTANT timestamptz := clock_timestamp();
    longest CONSTANT interval := '1 minute';
    entries CONSTANT bigint := queue_internal.depth_entries();
    -- The depth, and until when it is used.
    kept    text[] := nullif(current_setting(name, true), '');
    depth   bigint;
    until   timestamptz;
BEGIN
    IF kept[2]::timestamptz BETWEEN begun AND begun + longest THEN
        depth := kept[1]::bigint + inserted;
        until := CASE WHEN inserted > 0 THEN kept[2] END;
    ELSE
        depth := queue_internal.count_depth(source);
        IF depth > 100 OR queue_internal.depth_entries() > entries + 100 THEN
            until := begun + least(20 * (clock_timestamp() - begun), longest);
        END IF;
    END IF;
    IF until IS NOT NULL THEN
        PERFORM set_config(name, ARRAY[depth::text, until::text]::text, false);
    END IF;
    RETURN depth;
END
$$;
COMMENT ON FUNCTION queue_internal.depth_in_session IS
    'Counts the queued tasks of a queue, or returns the recent count of this session.';

CREATE FUNCTION queue_internal.depth_entries() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_internal.entries_passed()
         + coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_group')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.depth_entries IS
    'Returns how many index entries this transaction has read, among them those that it counted.';

CREATE FUNCTION queue_internal.count_depth(source queue.queues) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, as in admitted_of.
    is_blocked CONSTANT smallint := 2;
    most       CONSTANT bigint := source.max_queued::bigint + 1;
    depth      bigint := 0;
    more       bigint;
BEGIN
    FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
        SELECT count(*) INTO more FROM (
            SELECT FROM queue.tasks AS t
            WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
              AND t.state = 'queued'
            LIMIT most - depth) AS u;
        depth := depth + more;
    END LOOP;
    SELECT count(*) INTO more FROM (
        SELECT FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key IS NOT NULL AND t.admission = is_blocked AND t.state = 'queued'
        LIMIT most - depth) AS u;
    RETURN depth + more;
END
$$;
COMMENT ON FUNCTION queue_internal.count_depth IS
    'Counts the queued tasks of a queue in its indexes, up to one more than max_queued.';
-- queue_internal.push_plain(queue, payload, priority)
--
--   Adds a task without options to a queue without policies for pushes, and returns its id; null if a trigger of the user
--   suppresses it. If the queue has policies, returns 0. So the trigger tasks_inserted has nothing to check, which would
--   cost as much as the INSERT.
--   Why this search_path: the trigger recognizes the INSERT by it (how_inserted.sql). Nobody else names a schema twice.

CREATE FUNCTION queue_internal.push_plain(queue text, payload jsonb, priority integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, queue_internal, queue_internal, pg_temp AS $$
DECLARE
    new_id bigint;
    plain  boolean;
    task   queue.tasks;
BEGIN
    PERFORM FROM queue.queues AS q
    WHERE q.name = push_plain.queue AND q.max_queued IS NULL AND q.ttl IS NULL
      AND queue_internal.has_right('producer', q.name);
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    INSERT INTO queue.tasks AS t (queue, payload, priority)
    VALUES (push_plain.queue, push_plain.payload, push_plain.priority)
    RETURNING t.id, t.queue = push_plain.queue AND t.state = 'queued' AND t.admission = 0 AND t.weight = 1
                    AND isfinite(t.run_at) AND isfinite(t.created_at) AND isfinite(t.updated_at)
                    AND num_nonnulls(t.max_attempts, t.key, t.group_key, t.backoff, t.kind, t.lease, t.timeout, t.start_by,
                                     t.headers, t.lease_until, t.claimed_at, t.cancel_requested_at, t.errors) = 0
    INTO new_id, plain;
    IF NOT plain THEN
        -- A trigger of the user has changed it, and another one may have deleted it.
        SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = new_id;
        IF FOUND THEN
            PERFORM queue_internal.check_inserted(task, false);
        END IF;
    END IF;
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION queue_internal.push_plain IS
    'Pushes a task without options and returns its id; 0 if its queue has policies for pushes.';
-- The first task in the order of a bucket, whatever its state: its priority and its run_at.
--
--   Tasks before the level and the head given are not read (scan_start.sql). "fresh" is for editions that remember
--   where the first task was.
--   Why SQL and no search_path: so that the planner inlines the query, as with task_in_bucket (buckets.sql).

CREATE FUNCTION queue_internal.first_task(
    in_bucket integer, in_queue text, since_level integer, since_head timestamptz, fresh boolean,
    OUT level integer, OUT head timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT t.priority, t.run_at FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = in_queue AND t.admission < 2
      AND (t.priority, t.run_at) >= (since_level, since_head)
    ORDER BY t.priority, t.run_at LIMIT 1;
END;
COMMENT ON FUNCTION queue_internal.first_task IS
    'Returns the priority and the run_at of the first task in a bucket of a queue.';

-- Keeps this session's claims from overtaking a task that it has just unblocked.
CREATE FUNCTION queue_internal.move_scan_start_back(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    scan_start queue_internal.scan_start;
BEGIN
    IF NOT queue_internal.has_scan_starts() THEN
        RETURN;
    END IF;
    scan_start := queue_internal.get_scan_start(task.queue);
    IF (task.priority, task.run_at) < (scan_start.level, scan_start.head) THEN
        scan_start.level := task.priority;
        scan_start.head := task.run_at;
        PERFORM queue_internal.set_scan_start(task.queue, scan_start);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.move_scan_start_back IS
    'Moves the scan start of this session back to a task, if it is after it.';
-- queue_internal.claim_from(queue, lease, max_tasks, worker, begun)
--
--   Claims up to "max_tasks" due tasks of one queue, in order. "begun" is when the call began: what it claims itself does
--   not expire before it has returned, however short the lease. In an edition with several buckets (buckets.sql) it
--   begins with a random bucket and continues with the others until it has enough; the order holds within a bucket.
--
--   A claim that names no lease (null) leases each task for its own lease or that of its queue.
--
--   It scans the index tasks_order one priority at a time. Within a priority the due tasks come first, so it never
--   reads the scheduled tasks behind them. The search for the next priority also returns its first task: the dead index
--   entries of finished tasks, which precede it until the next vacuum, are read once and not twice. A claim that has
--   read many of them sets the scan start for the next ones (scan_start.sql).
--   A task whose lease has expired, or whose start deadline has passed, is found at its own place in the order and ended,
--   so claims need no reaper. One claim ends about 256 of them and spends about a second on it. It leaves the others to the next claim.
--
--   Events are processed first, because they can admit tasks that come next. The scan itself can leave events: when it
--   finds a task that has to be blocked in its group, or claims the only admitted task of a group. Then it scans again.
--   It also does so if it found nothing and a small sweep has left events.
--
--   Why the planner settings: a plan that was made while the table was small, or without statistics, may sort or scan
--   all of it, and a session keeps such a plan.
--   Why SKIP LOCKED and one row at a time: a claim never waits, and returns its tasks in order.
--   Why NO KEY UPDATE: a push that waits for the task to end holds a KEY SHARE lock, which must not prevent the claim.

CREATE FUNCTION queue_internal.claim_from(
    source queue.queues, lease interval, max_tasks integer, worker text, begun timestamptz)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- 2^53 - 1, because tokens are below 2^53.
    largest   CONSTANT bigint := 9007199254740991;
    base      bigint;
    usual     CONSTANT interval := coalesce(lease, queue_internal.checked_lease(NULL, source.lease));
    leased    interval;
    buckets   CONSTANT integer := queue_internal.buckets();
    start     CONSTANT integer := CASE WHEN buckets > 1 THEN floor(random() * buckets) ELSE 0 END;
    in_bucket integer;
    fresh     boolean := false;
    -- The first task that is heavier than others: see rates.sql.
    heavy     bigint;
    reserve   integer := 0;
    durable   CONSTANT boolean :=
        coalesce(source.durable_leases, queue_internal.setting('durable_leases', 'auto')) <> 'off';
    limited   CONSTANT boolean := source.max_running IS NOT NULL OR source.rate_limit IS NOT NULL;
    moment    timestamptz := clock_timestamp();
    started   timestamptz;
    scan_from queue_internal.scan_start := queue_internal.get_scan_start(source.name);
    entries   bigint;
    newest    bigint;
    event     bigint;
    event_due timestamptz;
    rounds    integer := 0;
    ended     integer := 0;
    ending    boolean := true;
    blockings integer := 0;
    level     integer;
    head      timestamptz;
    until     timestamptz;
    passed    queue_internal.passed_level[];
    candidate queue.tasks;
    new_token bigint;
    granted   integer := 0;
    stuck     bigint[] := '{}';
    again     boolean;
    more      boolean;
    swept     boolean := false;
BEGIN
    IF limited AND NOT queue_internal.has_capacity(source) THEN
        RETURN;
    END IF;
    entries := queue_internal.entries_passed();
    newest := queue_internal.newest_event();
    <<walk>>
    LOOP
        more := false;
        heavy := NULL;
        FOR turn IN start .. start + buckets - 1 LOOP
            in_bucket := turn % buckets;
            -- One statement does both. One check for events is enough.
            SELECT f.level, f.head, e.id, e.due_at INTO level, head, event, event_due
            FROM (VALUES (true)) AS one
            LEFT JOIN LATERAL
                queue_internal.first_task(in_bucket, source.name, scan_from.level, scan_from.head, fresh) AS f ON true
            LEFT JOIN LATERAL (
                SELECT v.id, v.due_at FROM queue_internal.events AS v
                WHERE turn = start AND v.queue = source.name
                  AND (v.due_at, v.id) > ('-infinity', scan_from.event) AND v.due_at <= moment
                ORDER BY v.due_at, v.id LIMIT 1) AS e ON true;
            -- The end of a task can end others. The next claim does what would take too long.
            IF event IS NOT NULL AND rounds < 16 THEN
                rounds := rounds + 1;
                -- Postponed events come after new ones.
                event := CASE WHEN event_due = '-infinity' THEN event - 1 ELSE scan_from.event END;
                IF queue_internal.process_events(source, 16 + 4 * max_tasks, event) > 0 THEN
                    -- Tasks that were just unblocked are due by now, and may have moved the scan start.
                    moment := clock_timestamp();
                    IF scan_from.until IS NOT NULL THEN
                        scan_from := queue_internal.get_scan_start(source.name);
                    END IF;
                    fresh := true;
                    CONTINUE walk;
                END IF;
                -- Another transaction is processing the remaining ones.
                event := NULL;
            END IF;
            IF source.ageing IS NOT NULL THEN
                passed := '{}';
                SELECT n.level, n.head, n.until INTO level, head, until
                FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
            ELSE
                until := moment;
            END IF;
            <<levels>>
            WHILE level IS NOT NULL LOOP
                again := false;
                IF head <= until THEN
                    IF source.rate_limit IS NOT NULL AND heavy IS NULL THEN
                        SELECT f.id, f.weight INTO heavy, reserve FROM (
                            SELECT t.id, t.weight FROM queue.tasks AS t
                            WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name
                              AND t.priority = level AND t.admission < 2
                              AND t.run_at >= head AND t.run_at <= until AND t.state = 'queued'
                              AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE
                            ORDER BY t.run_at, t.id LIMIT 1) AS f
                        WHERE f.weight > 1;
                        -- Stops here, so that claims write nothing while the heavy task waits for the rate.
                        IF heavy IS NOT NULL AND queue_internal.starts_at(source, reserve) > clock_timestamp() THEN
                            PERFORM queue_internal.announce_start(source, reserve);
                            EXIT walk;
                        END IF;
                    END IF;
                    FOR candidate IN
                        SELECT t.* FROM queue.tasks AS t
                        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name
                          AND t.priority = level AND t.admission < 2
                          AND t.run_at >= head AND t.run_at <= until
                          AND (t.state = 'queued' AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE
                               OR ending AND t.id <> ALL (stuck)
                                  AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment
                                       AND (t.claimed_at < begun) IS NOT FALSE))
                        ORDER BY t.run_at, t.id
                        LIMIT max_tasks - granted
                        FOR NO KEY UPDATE SKIP LOCKED
                    LOOP
                        IF candidate.state = 'running' OR candidate.token = 0 AND candidate.start_by <= moment THEN
                            CONTINUE WHEN NOT ending;
                            ended := ended + 1;
                            ending := ended < 256 AND clock_timestamp() < begun + interval '1 second';
                            IF (queue_internal.expire(ARRAY[candidate.id])).expired = 0 THEN
                                stuck := stuck || candidate.id;
                            END IF;
                            -- Usually it can be claimed now, at its old place.
                            SELECT t.* INTO candidate FROM queue.tasks AS t
                            WHERE t.id = candidate.id AND t.state = 'queued' AND t.admission < 2 AND t.run_at <= until
                              AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE;
                            IF NOT FOUND THEN
                                -- It has ended, and other tasks may have waited for that. They are due by now, and may
                                -- have moved the scan start.
                                moment := clock_timestamp();
                                IF scan_from.until IS NOT NULL THEN
                                    scan_from := queue_internal.get_scan_start(source.name);
                                END IF;
                                fresh := true;
                                more := true;
                                again := true;
                                CONTINUE;
                            END IF;
                        END IF;
                        base := coalesce(base, queue_internal.token_base(durable));
                        IF candidate.token >= largest THEN
                            PERFORM queue_internal.end_attempt(candidate, 'no token is left', NULL, true);
                            again := true;
                            CONTINUE;
                        END IF;
                        new_token := greatest(candidate.token + 1, base);
                        IF new_token > base + 1000000 THEN
                            -- Larger than what token_mark covers (src/tokens.rs).
                            PERFORM queue_internal.claim_durably();
                        END IF;
                        IF candidate.token = 0 AND candidate.start_by <= clock_timestamp() THEN
                            -- Its start deadline has passed since the scan began. Before it takes a start.
                            moment := clock_timestamp();
                            again := true;
                            CONTINUE;
                        END IF;
                        started := moment;
                        IF candidate.group_key IS NOT NULL THEN
                            IF candidate.admission = 0 THEN
                                PERFORM queue_internal.block_due_tasks(candidate);
                                blockings := blockings + 1;
                                EXIT walk WHEN blockings = 256;
                                more := true;
                                EXIT levels;
                            ELSIF source.fair_groups THEN
                                INSERT INTO queue_internal.events (queue, group_key)
                                VALUES (source.name, candidate.group_key);
                                more := true;
                            END IF;
                            -- Not until the task before it in its group has ended.
                            started := clock_timestamp();
                        END IF;
                        IF limited THEN
                            started := queue_internal.take_capacity(
                                source, candidate.id, new_token, candidate.weight,
                                CASE WHEN candidate.id <> heavy THEN reserve ELSE 0 END);
                            EXIT walk WHEN started IS NULL;
                            heavy := nullif(heavy, candidate.id);
                        END IF;
                        IF candidate.token = 0 AND candidate.start_by <= started THEN
                            moment := started;
                            again := true;
                            CONTINUE;
                        END IF;
                        IF source.group_rate_limit IS NOT NULL AND candidate.group_key IS NOT NULL THEN
                            PERFORM queue_internal.record_group_start(source, candidate, started);
                        END IF;
                        leased := usual;
                        IF candidate.lease IS NOT NULL AND lease IS NULL THEN
                            leased := queue_internal.checked_lease(NULL, candidate.lease);
                        END IF;
                        RETURN QUERY
                        UPDATE queue.tasks AS t
                        SET state = 'running', attempt = t.attempt + 1, token = new_token,
                            lease_until = least(started + leased, queue_internal.timeout_at(
                                started, coalesce(candidate.timeout, source.timeout))), worker = claim_from.worker,
                            claimed_at = started, updated_at = started
                        WHERE t.id = candidate.id
                        RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt,
                                  coalesce(t.max_attempts, source.max_attempts), t.priority, t.key,
                                  t.group_key, t.progress, t.run_at, t.created_at, t.lease_until, t.kind;
                        granted := granted + 1;
                        IF granted = 1 AND queue_internal.entries_passed() > entries + 1000 THEN
                            PERFORM queue_internal.set_scan_start(source.name, (
                                CASE WHEN event_due = '-infinity' THEN coalesce(event - 1, newest) ELSE newest END,
                                level, candidate.run_at,
                                coalesce(scan_from.until, clock_timestamp() + 20 * (clock_timestamp() - moment))));
                        END IF;
                    END LOOP;
                END IF;
                EXIT walk WHEN granted = max_tasks;
                -- Tasks that ended within the batch left space in it.
                CONTINUE WHEN again;
                IF source.ageing IS NOT NULL THEN
                    passed := passed || ROW(level, until)::queue_internal.passed_level;
                    SELECT n.level, n.head, n.until INTO level, head, until
                    FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
                ELSE
                    SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
                    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
                      AND t.priority > level
                    ORDER BY t.priority, t.run_at LIMIT 1;
                END IF;
            END LOOP;
        END LOOP;
        IF NOT more AND granted = 0 AND scan_from.until IS NULL AND NOT swept THEN
            swept := true;
            more := queue_internal.sweep_part(source);
            moment := clock_timestamp();
        END IF;
        IF NOT more THEN
            EXIT WHEN granted > 0 OR scan_from.until IS NULL;
            scan_from := queue_internal.default_scan_start();
        END IF;
        rounds := 0;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_from IS 'Claims due tasks of one queue.';
-- queue_internal.first_ready(queues)
--
--   Returns what a claim from any of the queues would find first: the id of a task, or the negated id of an event; null
--   if a claim would return nothing. Another transaction may have it locked, and then a claim skips it: SQL cannot see
--   a lock without taking it. So wait() pauses if it finds the same again.
--   Reads only. Like claim_from, it scans the order index one priority at a time and never reads the scheduled tasks.

CREATE FUNCTION queue_internal.first_ready(queues text[]) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    source queue.queues;
    level  integer;
    first  bigint;
    ahead  record;
BEGIN
    <<queues>>
    FOR source IN SELECT q.* FROM queue.queues AS q WHERE q.name = ANY (queues) AND q.paused_at IS NULL
                    AND queue_internal.has_right('worker', q.name)
    LOOP
        IF source.rate_limit IS NOT NULL AND NOT EXISTS (
            SELECT FROM queue_internal.rate_bucket_times(source, moment, 1)) THEN
            PERFORM queue_internal.announce_start(source);
            CONTINUE;
        END IF;
        CONTINUE WHEN source.max_running IS NOT NULL
                      AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1))
                      AND NOT EXISTS (SELECT FROM queue_internal.expired_holders(source, moment));
        SELECT -e.id INTO first FROM queue_internal.events AS e
        WHERE e.queue = source.name AND e.due_at <= moment ORDER BY e.due_at, e.id LIMIT 1;
        IF FOUND THEN
            RETURN first;
        END IF;
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level
            FROM queue_internal.first_task(in_bucket, source.name, -2147483648, '-infinity', false) AS f;
            WHILE level IS NOT NULL LOOP
                SELECT t.id, t.state, t.weight INTO ahead FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.priority = level
                  AND t.admission < 2 AND t.run_at <= moment
                  AND (t.state = 'queued' AND (t.token = 0 AND t.start_by <= moment) IS NOT TRUE
                       OR t.state = 'running' AND t.lease_until <= moment)
                ORDER BY t.run_at, t.id LIMIT 1;
                IF FOUND AND ahead.weight > 1 AND ahead.state = 'queued' AND source.rate_limit IS NOT NULL
                   AND queue_internal.starts_at(source, ahead.weight) > moment THEN
                    -- Lighter tasks behind it do not start before it. With ageing, those of the next level may come first.
                    PERFORM queue_internal.announce_start(source, ahead.weight);
                    CONTINUE queues WHEN source.ageing IS NULL;
                ELSIF FOUND THEN
                    RETURN ahead.id;
                END IF;
                SELECT t.priority INTO level FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.admission < 2
                  AND t.priority > level ORDER BY t.priority LIMIT 1;
            END LOOP;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.first_ready IS
    'Returns the id of the first task that can be claimed from any of the queues; null if there is none.';
-- queue_internal.expire(ids, patience)
--
--   Ends the attempts of those of the tasks whose lease has expired, and the tasks whose start deadline has passed
--   (deadlines.sql). Returns how many; which tasks still run, with the
--   ends of their leases; and which could not be ended, if any. A task still runs if another transaction has it locked,
--   or has extended or claimed it. A transaction that has pushed after a task prevents its end, but not that it is
--   requeued.
--   Promise:  a task that cannot be ended, because of a constraint or a trigger that somebody added or because of what
--             was written into its row, does not delay others. The log says why, at first and then once an hour, for a few
--             tasks of each queue (may_log.sql)
--   Time:     begins with no further task after "patience", null for no limit. "rest" is what it did not come to
--   Locks:    waits 100 ms for one, and 300 ms for all of them. A task that could not be ended because of them still
--             runs. "tried" is how many of the tasks given it tried before that
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(
    ids bigint[], patience interval DEFAULT NULL,
    OUT rest bigint[], OUT expired bigint, OUT running bigint[], OUT lease_ends timestamptz[], OUT failed bigint[],
    OUT tried integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '100ms'
AS $$
DECLARE
    started timestamptz := clock_timestamp();
    task_id bigint;
    stuck   record;
BEGIN
    failed := '{}';
    rest := '{}';
    tried := cardinality(ids);
    BEGIN
        SELECT * INTO expired, rest FROM queue_internal.end_expired(ids, started + patience);
    EXCEPTION WHEN OTHERS THEN
        expired := 0;
        tried := 0;
        -- The time starts after the first attempt. If that took longer, no task would be tried here.
        started := clock_timestamp();
        FOREACH task_id IN ARRAY ids LOOP
            EXIT WHEN clock_timestamp() > started + interval '300 ms';
            tried := tried + 1;
            BEGIN
                expired := expired + (queue_internal.end_expired(ARRAY[task_id], NULL)).ended;
            EXCEPTION
                WHEN lock_not_available OR deadlock_detected OR serialization_failure THEN
                    NULL;
                WHEN OTHERS THEN
                    failed := failed || task_id;
                    SELECT t.queue, t.lease_until IS NULL AS unstarted,
                           CASE WHEN isfinite(coalesce(t.lease_until, t.start_by))
                                THEN extract(epoch FROM started - coalesce(t.lease_until, t.start_by))::bigint END AS overdue
                    INTO stuck FROM queue.tasks AS t WHERE t.id = task_id;
                    IF coalesce(stuck.overdue % 3600, 0) < 60 AND queue_internal.may_log('lease', stuck.queue) THEN
                        RAISE WARNING '% of task % expired, but % cannot be ended: %',
                            CASE WHEN stuck.unstarted THEN 'the start deadline' ELSE 'the lease' END, task_id,
                            CASE WHEN stuck.unstarted THEN 'it' ELSE 'its attempt' END, SQLERRM;
                    END IF;
            END;
        END LOOP;
    END;
    IF expired + cardinality(failed) + cardinality(rest) < cardinality(ids) THEN
        SELECT array_agg(t.id), array_agg(t.lease_until) INTO running, lease_ends
        FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.id <> ALL (failed || rest) AND t.state = 'running';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire IS
    'Ends attempts whose lease has expired, and tasks whose start deadline has passed, of the tasks given; returns how '
    'many, and which it could not end.';

CREATE FUNCTION queue_internal.end_expired(ids bigint[], until timestamptz, OUT ended bigint, OUT rest bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task      queue.tasks;
    timed_out boolean;
BEGIN
    ended := 0;
    rest := '{}';
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.id = ANY (ids)
          AND (t.state = 'running' AND t.lease_until <= clock_timestamp()
               OR t.state <> 'running' AND t.token = 0 AND t.start_by <= clock_timestamp())
        ORDER BY t.id
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        IF task.state = 'running' THEN
            timed_out := queue_internal.has_timed_out(task);
            CONTINUE WHEN queue_internal.end_attempt(
                task, CASE WHEN timed_out THEN 'timed out' ELSE 'lease expired' END,
                CASE WHEN NOT timed_out THEN '0'::interval END, false, wait => false) IS NULL;
        ELSE
            CONTINUE WHEN NOT queue_internal.end_unstarted(task);
        END IF;
        ended := ended + 1;
        IF clock_timestamp() > until THEN
            rest := ARRAY(SELECT u.id FROM unnest(ids) AS u (id) WHERE u.id > task.id);
            EXIT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.end_expired IS
    'Ends attempts whose lease has expired, and tasks that were not started, until a time; returns how many, and the tasks that it did not come to.';
-- Start deadlines: a task that no worker has claimed by "start_by" expires.
--
--   A claim raises the token of a task, and nothing lowers it. So a task with the token 0 has never been claimed. After its
--   first claim the deadline has no effect, even if the task is retried, released or suspended.
--   Promise:  no claim starts a task whose deadline has passed, by the server's clock. Claims check each row (claim_from,
--             and natively src/verbs/grant.rs)
--   Promise:  a task whose deadline has passed ends, whatever it waits for: the background worker sleeps until the next
--             deadline; queue.maintain(), queue.reap() and claims in SQL end it too. If it is locked, a later call does
--   Index:    tasks_start_by, which holds only tasks with a deadline

CREATE FUNCTION queue_internal.check_deadline(start_by timestamptz, ttl interval) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF start_by IS NOT NULL AND ttl IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('ttl', 'cannot be combined with "start_by"', ttl::text);
    ELSIF NOT isfinite(start_by) THEN
        PERFORM queue_internal.raise_invalid('start_by', 'must be finite', start_by::text);
    END IF;
    PERFORM queue_internal.check_delay('ttl', ttl);
    IF extract(epoch FROM ttl) = 0 THEN
        PERFORM queue_internal.raise_invalid('ttl', 'must be greater than zero', ttl::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_deadline IS 'Checks the start deadline of a task, which may be null.';

CREATE FUNCTION queue_internal.start_deadline(source queue.queues, start_by timestamptz, ttl interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(start_by, clock_timestamp() + make_interval(secs => extract(epoch FROM coalesce(ttl, source.ttl))::float8));
END
$$;
COMMENT ON FUNCTION queue_internal.start_deadline IS
    'Returns by when a task that is pushed now has to be started; null for no deadline.';

-- For tasks that were not inserted by a push.
CREATE FUNCTION queue_internal.set_start_by(source queue.queues, ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t SET start_by = queue_internal.start_deadline(source, NULL, NULL) WHERE t.id = ANY (ids);
END
$$;
COMMENT ON FUNCTION queue_internal.set_start_by IS 'Gives new tasks the start deadline of their queue.';

-- The task is locked FOR NO KEY UPDATE. Returns false if another transaction has pushed after it or has its key locked, or
-- if a dump has brought it before its queue.
CREATE FUNCTION queue_internal.end_unstarted(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    manner CONSTANT text := (SELECT q.on_expired FROM queue.queues AS q WHERE q.name = task.queue);
BEGIN
    IF manner IS NULL OR NOT queue_internal.lock_to_end(task.id, false) THEN
        RETURN false;
    END IF;
    task.errors := queue_internal.with_error(task, 'expired');
    IF manner = 'cancel' THEN
        PERFORM queue_internal.cancel_now(task);
    ELSE
        PERFORM queue_internal.move_to_dead_letters(task);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.end_unstarted IS
    'Ends a task whose start deadline has passed, as the queue says; false if it could not.';

-- Ends up to "max_tasks" tasks whose start deadline has passed, null for all, in the order of their deadlines, and returns
-- the next deadline.
--   Pieces:   continues after the deadline "since" and the id "since_id". Natively it reads at most "max_entries" index
--             entries. "last" and "last_id" are where to continue; null if no deadline up to "until" is left
--   Locks:    "skipped" says whether some tasks could not be ended. They are read again by a call that starts before them
CREATE FUNCTION queue_internal.expire_unstarted(
    max_tasks integer, since timestamptz DEFAULT '-infinity', since_id bigint DEFAULT 0, max_entries integer DEFAULT NULL,
    OUT expired bigint, OUT skipped boolean, OUT next_start_by timestamptz, OUT until timestamptz, OUT last timestamptz,
    OUT last_id bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    bound record;
    late  bigint[];
    times timestamptz[];
    ended record;
BEGIN
    until := clock_timestamp();
    SELECT b.start_by, b.id INTO bound FROM queue_internal.deadline_bound(since, since_id, max_entries) AS b;
    -- Reads "max_tasks" from each bucket, because only the merged order shows where to continue.
    SELECT coalesce(array_agg(l.id), '{}'), array_agg(l.start_by) INTO late, times
    FROM (SELECT p.id, p.start_by
          FROM generate_series(0, queue_internal.buckets() - 1) AS b (in_bucket), LATERAL (
              SELECT t.id, t.start_by FROM queue.tasks AS t
              WHERE queue_internal.task_in_bucket(t, b.in_bucket) AND t.start_by <= until
                AND (t.start_by, t.id) > (since, since_id)
                AND (t.start_by, t.id) <= (coalesce(bound.start_by, 'infinity'), coalesce(bound.id, 9223372036854775807))
                AND t.token = 0 AND t.state <> 'running'
              ORDER BY t.start_by, t.id LIMIT max_tasks) AS p
          ORDER BY p.start_by, p.id LIMIT max_tasks) AS l;
    IF cardinality(late) = max_tasks THEN
        last := times[max_tasks];
        last_id := late[max_tasks];
    ELSIF bound.start_by <= until THEN
        -- There are no more up to the bound.
        last := bound.start_by;
        last_id := bound.id;
    END IF;
    expired := 0;
    skipped := false;
    IF late <> '{}' THEN
        SELECT * INTO ended FROM queue_internal.expire(late, CASE WHEN max_entries IS NOT NULL THEN interval '50 ms' END);
        expired := ended.expired;
        skipped := expired + cardinality(ended.rest) < ended.tried;
        -- The next call does the rest of the piece.
        IF ended.rest <> '{}' THEN
            last := since;
            last_id := since_id;
        ELSIF ended.tried < cardinality(late) THEN
            last := times[ended.tried];
            last_id := late[ended.tried];
        END IF;
    END IF;
    IF last IS NULL THEN
        -- If only entries of ended tasks follow, continue after the last of them.
        SELECT b.start_by, b.id INTO bound
        FROM queue_internal.deadline_bound(until, 9223372036854775807, max_entries) AS b;
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            next_start_by := least(next_start_by, (
                SELECT t.start_by FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.start_by > until
                  AND (t.start_by, t.id) <= (coalesce(bound.start_by, 'infinity'), coalesce(bound.id, 9223372036854775807))
                ORDER BY t.start_by, t.id LIMIT 1));
        END LOOP;
        next_start_by := coalesce(next_start_by, bound.start_by);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire_unstarted IS
    'Ends tasks whose start deadline has passed; returns how many, the next deadline, and where to continue.';
-- queue_internal.reap(max_tasks, after, max_rows)
--
--   Ends up to "max_tasks" attempts whose lease has expired, those that expired last first, and returns when the next
--   lease expires. It leaves attempts that cannot be ended, and after a second all others, for the next call. "reading"
--   is how long it read, without waits for locks.
--   Pieces:   with "max_rows" it reads only so many tasks in the order of their ids, after the id "after". "last" is
--             where to continue: "after" again if there may be more to end, null at the end of the table. So a caller
--             can do other work in between, however many tasks there are. Natively the tasks that ended count while
--             their index entries are there
--   Clock:    after the clock was set back, an existing lease may end years ahead. A lease that was given at a time
--             that is in the future now ends at most queue.max_lease from now
--   Touches:  queue.tasks (reads all of it, or the piece: leases are in no index, so that claims stay HOT)

CREATE FUNCTION queue_internal.reap(
    max_tasks bigint, after bigint DEFAULT NULL, max_rows integer DEFAULT NULL,
    OUT reaped bigint, OUT next_expiry timestamptz, OUT reading interval, OUT last bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    moment    CONSTANT timestamptz := clock_timestamp();
    most      CONSTANT bigint := least(coalesce(max_tasks, 2147483647), 2147483647);
    first     CONSTANT bigint := coalesce(after, -9223372036854775808);
    bound     bigint;
    final     bigint;
    read_rows bigint;
    due       bigint[];
    tried     integer := 0;
    upto      integer;
    ended     record;
    cut       timestamptz;
BEGIN
    reaped := 0;
    -- May wait for the table's lock.
    PERFORM FROM queue.tasks AS t LIMIT 0;
    reading := clock_timestamp() - moment;
    bound := queue_internal.id_bound(first, max_rows);
    SELECT max(t.id), count(*),
           array_agg(t.id ORDER BY t.lease_until DESC) FILTER (WHERE t.state = 'running' AND t.lease_until <= moment),
           min(t.lease_until) FILTER (WHERE t.state = 'running' AND t.lease_until > moment),
           max(t.lease_until) FILTER (WHERE t.state = 'running' AND t.updated_at > moment + interval '1 minute')
    INTO final, read_rows, due, next_expiry, cut
    -- A whole table is read without its index, which takes half as long.
    FROM (SELECT l.id, l.state, l.lease_until, l.updated_at FROM queue.tasks AS l
          WHERE max_rows IS NULL AND l.id > first AND l.state = 'running'
          UNION ALL
          (SELECT l.id, l.state, l.lease_until, l.updated_at FROM queue.tasks AS l
           WHERE max_rows IS NOT NULL AND l.id > first AND l.id <= coalesce(bound, 9223372036854775807)
           ORDER BY l.id LIMIT max_rows)) AS t;
    reading := clock_timestamp() - moment - reading;
    -- Tasks that others have inserted since the bound was read may come before it, and LIMIT left out as many.
    last := CASE WHEN read_rows >= max_rows THEN final ELSE bound END;
    WHILE tried < cardinality(due) LOOP
        IF reaped >= most THEN
            -- The next call does the rest of the piece.
            last := first;
            next_expiry := moment;
            EXIT;
        END IF;
        upto := least(cardinality(due), tried + most - reaped);
        SELECT * INTO ended FROM queue_internal.expire(
            due[tried + 1:upto], CASE WHEN max_rows IS NOT NULL THEN interval '50 ms' END);
        reaped := reaped + ended.expired;
        tried := upto;
        IF ended.rest <> '{}' THEN
            -- The next call does the rest of the piece.
            last := first;
            next_expiry := moment;
            EXIT;
        END IF;
        -- A task that another transaction has locked is checked again after a growing pause, as in expiry.rs.
        next_expiry := least(next_expiry, (
            SELECT min(CASE WHEN e > moment THEN e
                            ELSE moment + least(greatest(moment - e, interval '100 ms'), interval '5 seconds') END)
            FROM unnest(ended.lease_ends) AS e));
        IF tried < cardinality(due) AND reaped < most AND clock_timestamp() > moment + interval '1 second' THEN
            next_expiry := moment;
            EXIT;
        END IF;
    END LOOP;
    IF cut IS NOT NULL THEN
        cut := moment + queue_internal.setting('max_lease', '7d')::interval;
        UPDATE queue.tasks AS t SET lease_until = cut
        WHERE t.id IN (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.id > first AND l.id <= final
              AND l.state = 'running' AND l.lease_until > cut AND l.updated_at > moment + interval '1 minute'
            ORDER BY l.id FOR NO KEY UPDATE SKIP LOCKED);
        next_expiry := least(next_expiry, cut);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.reap IS
    'Ends attempts whose lease has expired; returns how many, when the next lease expires, how long it read, and where '
    'to continue.';
-- queue_internal.due_queues(since, until)
--
--   Returns the queues, except paused ones, in which a queued task became due after "since" and up to "until", or in
--   which an event is due; and the next time after "until" at which a task or a postponed event is due in any queue.
--   It reads a few entries of the order index for each queue and priority, however many tasks there are. A notification
--   is only a hint, so a queue counts as ready as well, and is checked again within a second, where that would read
--   much: of a queue with more than 100 priorities it reads only the first 100, and after 100 ms none; natively it reads
--   5,000 entries for each question, if they are all those of finished tasks or others that are not queued.

CREATE FUNCTION queue_internal.due_queues(
    since timestamptz, until timestamptz, OUT ready text[], OUT next_run_at timestamptz)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    stop    CONSTANT timestamptz := clock_timestamp() + interval '100 ms';
    most    CONSTANT integer := 5000;
    starts  CONSTANT boolean := queue_internal.has_scan_starts();
    name    text;
    after   bigint;
    bound   record;
    level   integer;
    later   timestamptz;
    checked integer;
BEGIN
    ready := '{}';
    FOR name IN SELECT q.name FROM queue.queues AS q WHERE q.paused_at IS NULL LOOP
        IF clock_timestamp() > stop THEN
            ready := ready || name;
            next_run_at := least(next_run_at, until + interval '1 second');
            CONTINUE;
        END IF;
        after := CASE WHEN starts THEN (queue_internal.get_scan_start(name)).event ELSE 0 END;
        IF EXISTS (SELECT FROM queue_internal.events AS e
                   WHERE e.queue = name AND (e.due_at, e.id) > ('-infinity', after) AND e.due_at <= until) THEN
            ready := ready || name;
        END IF;
        -- A postponed event.
        SELECT e.due_at INTO later FROM queue_internal.events AS e
        WHERE e.queue = name AND e.due_at > until ORDER BY e.due_at LIMIT 1;
        next_run_at := least(next_run_at, later);
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            level := queue_internal.next_level(in_bucket, name, -2147483648);
            checked := 0;
            WHILE level IS NOT NULL LOOP
                checked := checked + 1;
                IF checked > 100 OR clock_timestamp() > stop THEN
                    ready := CASE WHEN name = ANY (ready) THEN ready ELSE ready || name END;
                    next_run_at := least(next_run_at, until + interval '1 second');
                    EXIT;
                END IF;
                IF name <> ALL (ready) THEN
                    SELECT b.run_at, b.id INTO bound
                    FROM queue_internal.order_bound(in_bucket, name, level, since, most) AS b;
                    IF bound.run_at <= until OR EXISTS (
                        SELECT FROM queue.tasks AS t
                        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                          AND t.admission < 2 AND t.run_at > since AND t.run_at <= until AND t.state = 'queued')
                    THEN
                        ready := ready || name;
                    END IF;
                END IF;
                SELECT b.run_at, b.id INTO bound
                FROM queue_internal.order_bound(in_bucket, name, level, until, most) AS b;
                SELECT t.run_at INTO later FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                  AND t.admission < 2 AND t.run_at > until
                  AND (t.run_at, t.id) <= (coalesce(bound.run_at, 'infinity'), coalesce(bound.id, 9223372036854775807))
                ORDER BY t.run_at, t.id LIMIT 1;
                IF NOT FOUND THEN
                    later := greatest(bound.run_at, CASE WHEN bound.id IS NOT NULL THEN until + interval '1 second' END);
                END IF;
                next_run_at := least(next_run_at, later);
                level := CASE WHEN level < 2147483647 THEN queue_internal.next_level(in_bucket, name, level + 1) END;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.due_queues IS
    'Returns the queues in which tasks became due in an interval, and when the next task becomes due.';
-- queue_internal.is_being_restored()
--
--   pg_restore loads rows in any order. Meanwhile everything is postponed that could take an id, a key or the name of a
--   partition that the dump has still to bring.

CREATE FUNCTION queue_internal.is_being_restored() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.application_name = 'pg_restore'
          -- Any session can use that application_name, so it only counts for a role that may write to the table.
          AND has_table_privilege(a.usesysid, 'queue.history', 'INSERT'));
END
$$;
COMMENT ON FUNCTION queue_internal.is_being_restored IS 'Returns whether pg_restore is connected to the database.';
-- queue_internal.extend_history()
--
--   Creates the partitions of queue.history for today and the next "queue.history_ahead" days. Returns whether all of
--   them exist; null as long as there was no task. A day that is partly covered by a partition made by hand gets none:
--   the other rows of that day go to queue.history_default.
--
--   It does not delay claims: one session at a time does it, each partition is attached under a short lock_timeout, and
--   what could not be done is left for the next time. Until then queue.history_default takes the rows.
--   Why not before the first task: a restore creates the extension, then the partitions of the dump, then loads the
--   tasks. Partitions created in between would conflict with those of the dump. So would any that is created while a
--   partition of the dump for today or a later day is not yet attached. pg_restore -j may load the tasks first.

CREATE FUNCTION queue_internal.extend_history() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today    date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    ahead    integer := queue_internal.setting('history_ahead', '3')::integer;
    complete boolean := true;
    day      date;
    warned   boolean := false;
BEGIN
    -- Only roles that may write to the table can hold this lock, unlike an advisory lock. Any role can take it for an
    -- instant, so it is waited for.
    LOCK TABLE queue.history_default IN SHARE UPDATE EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM queue_internal.history_partitions() AS p WHERE NOT p.attached AND p.day >= today)
       OR queue_internal.is_being_restored() THEN
        RETURN false;
    END IF;
    PERFORM queue_internal.close_types();
    IF NOT EXISTS (SELECT FROM queue_internal.history_partitions() AS p WHERE p.attached)
       AND NOT EXISTS (SELECT FROM queue.tasks)
       AND NOT EXISTS (SELECT FROM queue.history_default) THEN
        RETURN NULL;
    END IF;
    FOR day IN
        SELECT today + n FROM generate_series(0, ahead) AS n
        EXCEPT SELECT p.day FROM queue_internal.history_partitions() AS p
        EXCEPT SELECT today + n FROM generate_series(0, ahead) AS n, queue_internal.history_bounds() AS b
               WHERE b.since < (today + n + 1)::timestamp AT TIME ZONE 'UTC'
                 AND b.until > (today + n)::timestamp AT TIME ZONE 'UTC'
        ORDER BY 1
    LOOP
        BEGIN
            IF NOT queue_internal.add_history_partition(day) THEN
                complete := false;
            END IF;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                complete := false;
            WHEN OTHERS THEN
                -- The failure of one day must not prevent the others.
                complete := false;
                IF NOT warned THEN
                    RAISE WARNING 'the partition of queue.history for % cannot be created: %', day, SQLERRM;
                    warned := true;
                END IF;
        END;
    END LOOP;
    RETURN complete;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.extend_history IS
    'Creates the partitions of queue.history for the coming days; returns whether all exist.';

CREATE FUNCTION queue_internal.history_partitions(OUT day date, OUT name text, OUT attached boolean)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT to_date(right(c.relname, 8), 'YYYYMMDD'), c.relname::text, c.relispartition
    FROM pg_class AS c
    WHERE c.relnamespace = 'queue'::regnamespace
      AND c.relkind = 'r'
      AND c.relname ~ '^history_[0-9]{8}$';
END;
COMMENT ON FUNCTION queue_internal.history_partitions IS
    'Returns the partitions of queue.history that hold one day (UTC) each.';

-- The bounds of each partition of queue.history except the default one.
CREATE FUNCTION queue_internal.history_bounds(OUT name text, OUT since timestamptz, OUT until timestamptz)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    RETURN QUERY
    SELECT c.relname::text, coalesce(nullif(btrim(b[1], ''''), 'MINVALUE'), '-infinity')::timestamptz,
           coalesce(nullif(btrim(b[2], ''''), 'MAXVALUE'), 'infinity')::timestamptz
    FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
         LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(](.*)[)] TO [(](.*)[)]') AS b
    WHERE i.inhparent = 'queue.history'::regclass AND b IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.history_bounds IS 'Returns the partitions of queue.history and their bounds.';

-- Moves rows of today that were written before the partition existed, if they are few. Many stay in
-- queue.history_default until retire_history deletes them there. Why today's partition needs a lock on the whole
-- history: a completion that has been routed to the default partition would fail when this one appears.
CREATE FUNCTION queue_internal.add_history_partition(day date) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name  text := 'history_' || to_char(day, 'YYYYMMDD');
    since timestamptz := day::timestamp AT TIME ZONE 'UTC';
    until timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    early bigint;
BEGIN
    IF since <= clock_timestamp() + interval '1 minute' THEN
        LOCK TABLE queue.history IN ACCESS EXCLUSIVE MODE;
    END IF;
    SELECT count(*) INTO early FROM (
        SELECT FROM queue.history_default AS h
        WHERE h.finished_at >= since AND h.finished_at < until LIMIT 10001) AS rows;
    IF early > 10000 THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE queue.%I (LIKE queue.history_default INCLUDING ALL)', name);
    -- A superuser may CALL queue.maintain().
    EXECUTE format('ALTER TABLE queue.%I OWNER TO %s', name,
                   (SELECT c.relowner::regrole FROM pg_class AS c WHERE c.oid = 'queue.history'::regclass));
    -- Default privileges may give roles access to it. The policies of queue.history decide which rows a role may
    -- read.
    EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('REVOKE ALL ON TYPE queue.%I FROM PUBLIC', name);
    IF early > 0 THEN
        EXECUTE format(
            'WITH moved AS ('
            '    DELETE FROM queue.history_default AS h'
            '    WHERE h.finished_at >= $1 AND h.finished_at < $2 RETURNING h.*)'
            'INSERT INTO queue.%I SELECT * FROM moved', name) USING since, until;
    END IF;
    EXECUTE format('ALTER TABLE queue.history ATTACH PARTITION queue.%I FOR VALUES FROM (%L) TO (%L)',
                   name, since, until);
    EXECUTE format('COMMENT ON TABLE queue.%I IS %L', name, format('The history of %s (UTC).', day));
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.add_history_partition IS
    'Creates the partition of queue.history for one day; false if too many rows came before it.';
-- queue_internal.retire_history(max_tasks)
--
--   Drops the partitions of queue.history that are entirely past "queue.history_retention", or truncates those on which
--   somebody has created a view; and deletes up to "max_tasks" such rows from queue.history_default, which should have
--   few or none. Returns whether there may be more to do now.
--   Locks:    dropping needs a lock on queue.history for an instant. It waits at most 100 ms for the lock, then leaves
--             the partition for the next time

CREATE FUNCTION queue_internal.retire_history(max_tasks integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    retention text := queue_internal.setting('history_retention', '7d');
    horizon   timestamptz;
    partition text;
    filled    boolean;
    deleted   bigint;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    BEGIN
        LOCK TABLE queue.history_default IN SHARE UPDATE EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
    horizon := clock_timestamp() - retention::interval;
    FOR partition IN
        SELECT p.name FROM queue_internal.history_partitions() AS p
        WHERE p.attached AND (p.day + 1)::timestamp AT TIME ZONE 'UTC' <= horizon
        ORDER BY p.day
    LOOP
        BEGIN
            BEGIN
                EXECUTE format('DROP TABLE queue.%I', partition);
            EXCEPTION WHEN dependent_objects_still_exist THEN
                -- Every role that can name it can create a view of it, even without the right to read it.
                EXECUTE format('SELECT EXISTS (SELECT FROM queue.%I)', partition) INTO filled;
                IF filled THEN
                    -- The background worker checks the triggers of tables from which it deletes, but not of those
                    -- that it truncates (src/guard.rs).
                    EXECUTE format('LOCK TABLE queue.%I', partition);
                    EXECUTE format('DELETE FROM queue.%I WHERE false', partition);
                    EXECUTE format('TRUNCATE queue.%I', partition);
                END IF;
            END;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                RETURN false;
            WHEN undefined_table THEN
                NULL;  -- Somebody has dropped it.
        END;
    END LOOP;
    BEGIN
        DELETE FROM queue.history_default AS h
        WHERE h.ctid = ANY (ARRAY(
            SELECT o.ctid FROM queue.history_default AS o
            WHERE o.finished_at < horizon LIMIT max_tasks FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS deleted = ROW_COUNT;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RETURN false;
    END;
    RETURN deleted = max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_history IS
    'Drops history past its retention; returns whether there may be more.';
-- queue_internal.retire_dead_letters(max_tasks)
--
--   Deletes about "max_tasks" dead letters past "queue.dead_letter_retention" and returns whether there may be more. If
--   triggers keep some, it reads up to ten times as many.
--   Index:    dead_letters_queue_failed_at, queue by queue

CREATE FUNCTION queue_internal.retire_dead_letters(max_tasks integer) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    retention text := queue_internal.setting('dead_letter_retention', '30d');
    horizon   timestamptz;
    source    text;
    ids       bigint[];
    first     timestamptz;
    last      timestamptz;
    -- The last one that a trigger has kept.
    kept_at   timestamptz := '-infinity';
    kept_id   bigint := 0;
    found     integer := 0;
    gone      integer;
    deleted   integer := 0;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    horizon := clock_timestamp() - retention::interval;
    SELECT d.queue INTO source FROM queue.dead_letters AS d ORDER BY d.queue LIMIT 1;
    WHILE source IS NOT NULL AND deleted < max_tasks AND found < 10 * max_tasks LOOP
        SELECT array_agg(o.id ORDER BY o.failed_at, o.id), min(o.failed_at), max(o.failed_at) INTO ids, first, last FROM (
            SELECT d.id, d.failed_at FROM queue.dead_letters AS d
            WHERE d.queue = source AND (d.failed_at, d.id) > (kept_at, kept_id) AND d.failed_at < horizon
            ORDER BY d.failed_at, d.id LIMIT max_tasks FOR UPDATE SKIP LOCKED) AS o;
        -- In one statement, because users have triggers on the table. The range, because a plan made while it was empty does not
        -- look an array up in the index.
        DELETE FROM queue.dead_letters AS d
        WHERE d.queue = source AND d.failed_at BETWEEN first AND last AND d.id = ANY (ids);
        GET DIAGNOSTICS gone = ROW_COUNT;
        deleted := deleted + gone;
        found := found + coalesce(cardinality(ids), 0);
        IF gone < cardinality(ids) THEN
            kept_at := last;
            kept_id := ids[cardinality(ids)];
        ELSE
            kept_at := '-infinity';
            kept_id := 0;
            SELECT d.queue INTO source FROM queue.dead_letters AS d
            WHERE d.queue > source ORDER BY d.queue LIMIT 1;
        END IF;
    END LOOP;
    RETURN deleted >= max_tasks OR deleted > 0 AND found >= 10 * max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_dead_letters IS
    'Deletes dead letters past their retention; returns whether there may be more.';
-- queue_internal.apply_options(name, options, is_new)
--
--   Checks the options of queue.create and queue.configure and writes them to the queue's row.
--   An option that is not named keeps its value; null brings back the default.
--   Errors:   22023 and 54000 naming the option

CREATE FUNCTION queue_internal.apply_options(name text, options jsonb, is_new boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    valid   CONSTANT text :=
        'lease, timeout, ttl, on_expired, max_queued, max_attempts, backoff, max_running, max_running_per_group, '
        'delayed_head, fair_groups, rate_limit, group_rate_limit, rate_period, ageing, '
        'key_ttl, on_predecessor_failure, keep_history, keep_payloads, durable_leases';
    before  queue.queues;
    changed queue.queues;
    fresh   queue.queues;
    option  text;
    value   jsonb;
BEGIN
    PERFORM queue_internal.hold_queue(name);
    SELECT q.* INTO before FROM queue.queues AS q WHERE q.name = apply_options.name FOR NO KEY UPDATE;
    changed := before;
    fresh := queue_internal.fresh_queue();
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        CASE option
            WHEN 'lease' THEN
                changed.lease := coalesce(queue_internal.interval_option(option, value, false), fresh.lease);
                IF extract(epoch FROM changed.lease)
                   > extract(epoch FROM queue_internal.setting('max_lease', '7d')::interval) THEN
                    RAISE EXCEPTION 'option "lease" of argument "options" is longer than "queue.max_lease", which is %',
                        queue_internal.setting('max_lease', '7d')
                        USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
                END IF;
            WHEN 'timeout' THEN
                changed.timeout := queue_internal.interval_option(option, value, false);
            WHEN 'ttl' THEN
                changed.ttl := queue_internal.interval_option(option, value, false);
            WHEN 'on_expired' THEN
                changed.on_expired := coalesce(
                    queue_internal.choice_option(option, value, '{dead, cancel}'), fresh.on_expired);
            WHEN 'max_queued' THEN
                changed.max_queued := queue_internal.number_option(option, value, 1, 2147483647, true);
            WHEN 'max_attempts' THEN
                changed.max_attempts := coalesce(
                    queue_internal.number_option(option, value, 1, 10000, true), fresh.max_attempts);
            WHEN 'backoff' THEN
                changed := queue_internal.apply_backoff('options', changed, fresh, value);
            WHEN 'max_running' THEN
                changed.max_running := queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'max_running_per_group' THEN
                changed.max_running_per_group := coalesce(
                    queue_internal.number_option(option, value, 1, 10000, true), fresh.max_running_per_group);
            WHEN 'delayed_head' THEN
                changed.delayed_head := coalesce(
                    queue_internal.choice_option(option, value, '{block, pass}'), fresh.delayed_head);
            WHEN 'fair_groups' THEN
                changed.fair_groups := coalesce(
                    queue_internal.boolean_option(option, value), fresh.fair_groups);
            WHEN 'rate_limit' THEN
                changed.rate_limit := queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'group_rate_limit' THEN
                changed.group_rate_limit := queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'rate_period' THEN
                changed.rate_period := queue_internal.interval_option(option, value, false);
            WHEN 'ageing' THEN
                changed.ageing := queue_internal.interval_option(option, value, false);
            WHEN 'key_ttl' THEN
                changed.key_ttl := queue_internal.interval_option(option, value, false);
            WHEN 'on_predecessor_failure' THEN
                changed.on_predecessor_failure := coalesce(
                    queue_internal.choice_option(option, value, '{fail, cancel, continue}'),
                    fresh.on_predecessor_failure);
            WHEN 'keep_history' THEN
                changed.keep_history := coalesce(
                    queue_internal.boolean_option(option, value), fresh.keep_history);
            WHEN 'keep_payloads' THEN
                changed.keep_payloads := coalesce(
                    queue_internal.boolean_option(option, value), fresh.keep_payloads);
            WHEN 'durable_leases' THEN
                changed.durable_leases := queue_internal.choice_option(option, value, '{auto, on, off}');
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = format('The options are %s.', valid);
        END CASE;
    END LOOP;
    IF (coalesce(changed.rate_limit, changed.group_rate_limit) IS NULL) <> (changed.rate_period IS NULL) THEN
        PERFORM queue_internal.raise_invalid(
            'options', 'must have "rate_period" together with "rate_limit" or "group_rate_limit", or none of them');
    END IF;
    UPDATE queue.queues AS q
    SET lease = changed.lease, timeout = changed.timeout, ttl = changed.ttl, on_expired = changed.on_expired,
        max_queued = changed.max_queued, max_attempts = changed.max_attempts, keep_history = changed.keep_history,
        keep_payloads = changed.keep_payloads,
        backoff_kind = changed.backoff_kind, backoff_base = changed.backoff_base,
        backoff_max = changed.backoff_max, backoff_jitter = changed.backoff_jitter,
        max_running = changed.max_running, max_running_per_group = changed.max_running_per_group,
        delayed_head = changed.delayed_head, fair_groups = changed.fair_groups,
        rate_limit = changed.rate_limit, group_rate_limit = changed.group_rate_limit, rate_period = changed.rate_period, ageing = changed.ageing,
        key_ttl = changed.key_ttl, on_predecessor_failure = changed.on_predecessor_failure,
        durable_leases = changed.durable_leases
    WHERE q.name = apply_options.name;
    PERFORM queue_internal.policies_changed(before, changed, is_new);
END
$$;
COMMENT ON FUNCTION queue_internal.apply_options IS 'Checks the options of a queue and writes them.';

-- Applies changed limits to the tasks that are in the queue already. The caller has the row of the queue locked.
CREATE FUNCTION queue_internal.policies_changed(before queue.queues, source queue.queues, is_new boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slots    CONSTANT boolean := before.max_running IS DISTINCT FROM source.max_running;
    buckets  CONSTANT boolean :=
        (before.rate_limit, before.rate_period) IS DISTINCT FROM (source.rate_limit, source.rate_period);
    tighter  CONSTANT boolean :=
        source.max_running_per_group < before.max_running_per_group
        OR source.group_rate_limit IS NOT NULL
           AND (source.group_rate_limit >= before.group_rate_limit AND source.rate_period <= before.rate_period) IS NOT TRUE;
    -- Tasks that were admitted under the old limit of their group are admitted again under the new one.
    readmit  CONSTANT boolean :=
        tighter
        OR source.group_rate_limit IS NOT NULL
           AND (before.group_rate_limit, before.rate_period)
               IS DISTINCT FROM (source.group_rate_limit, source.rate_period);
    regroup  CONSTANT boolean :=
        readmit
        OR (before.max_running_per_group, before.delayed_head, before.fair_groups, before.group_rate_limit)
           IS DISTINCT FROM
           (source.max_running_per_group, source.delayed_head, source.fair_groups, source.group_rate_limit);
BEGIN
    IF regroup AND NOT is_new THEN
        PERFORM queue_internal.check_read_committed(
            'options of groups can only be changed', 'The snapshot may not show tasks that were admitted under the old options.');
    END IF;
    IF slots OR buckets THEN
        PERFORM queue_internal.wait_for_claims(
            source.name, CASE WHEN slots THEN coalesce(source.max_running, 0) END, buckets);
    END IF;
    IF tighter THEN
        -- If claims stay open for longer, what they have admitted may still start (docs/groups.md).
        PERFORM queue_internal.lock_claimed(source.name, NULL, false, true, queue_internal.lock_patience());
    END IF;
    IF slots THEN
        PERFORM queue_internal.provide_slots(source);
    END IF;
    IF buckets THEN
        PERFORM queue_internal.provide_buckets(source);
    END IF;
    IF regroup THEN
        WITH locked AS MATERIALIZED (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.queue = source.name AND l.group_key IS NOT NULL AND l.state = 'queued'
              AND (source.delayed_head = 'pass' AND l.admission = 1 AND l.run_at > clock_timestamp()
                   OR source.delayed_head = 'block' AND l.admission = 0)
            ORDER BY l.id FOR NO KEY UPDATE
        ), admitted AS MATERIALIZED (
            -- This does not wait for tasks that other transactions have locked. Events withdraw their admission.
            SELECT l.id FROM queue.tasks AS l
            WHERE l.queue = source.name AND l.group_key IS NOT NULL AND l.state = 'queued' AND l.admission = 1 AND readmit
            ORDER BY l.id FOR NO KEY UPDATE SKIP LOCKED
        )
        UPDATE queue.tasks AS t SET admission = CASE WHEN source.delayed_head = 'pass' AND t.run_at > clock_timestamp() THEN 0 ELSE 2 END
        FROM (SELECT k.id FROM locked AS k UNION SELECT a.id FROM admitted AS a) AS l WHERE t.id = l.id;
        -- With their ids, because the tasks that were open until now left no event when they came.
        INSERT INTO queue_internal.events (queue, group_key, arrived)
        SELECT t.queue, t.group_key, min(t.id) FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key IS NOT NULL
        GROUP BY t.queue, t.group_key;
    END IF;
    PERFORM queue_internal.announce_task(source.name, clock_timestamp());
END
$$;
COMMENT ON FUNCTION queue_internal.policies_changed IS
    'Applies changed options to the tasks that are in a queue already.';

CREATE FUNCTION queue_internal.apply_backoff(
    argument text, changed queue.queues, fresh queue.queues, value jsonb)
RETURNS queue.queues
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part text;
    item jsonb;
BEGIN
    IF jsonb_typeof(value) NOT IN ('object', 'null') THEN
        PERFORM queue_internal.raise_option('backoff', 'must be a JSON object', value, argument);
    ELSIF jsonb_typeof(value) = 'null' THEN
        changed.backoff_kind := fresh.backoff_kind;
        changed.backoff_base := fresh.backoff_base;
        changed.backoff_max := fresh.backoff_max;
        changed.backoff_jitter := fresh.backoff_jitter;
        RETURN changed;
    END IF;
    FOR part, item IN SELECT o.key, o.value FROM jsonb_each(value) AS o LOOP
        CASE part
            WHEN 'kind' THEN
                changed.backoff_kind := coalesce(
                    queue_internal.choice_option('backoff.kind', item, '{fixed, linear, exponential}', argument),
                    fresh.backoff_kind);
            WHEN 'base' THEN
                changed.backoff_base := coalesce(
                    queue_internal.interval_option('backoff.base', item, true, argument), fresh.backoff_base);
            WHEN 'max' THEN
                changed.backoff_max := coalesce(
                    queue_internal.interval_option('backoff.max', item, true, argument), fresh.backoff_max);
            WHEN 'jitter' THEN
                changed.backoff_jitter := coalesce(
                    queue_internal.number_option('backoff.jitter', item, 0, 1, false, argument),
                    fresh.backoff_jitter);
            ELSE
                RAISE EXCEPTION 'argument "%" has no option "backoff.%"', argument, left(part, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options of backoff are kind, base, max, jitter.';
        END CASE;
    END LOOP;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_backoff IS
    'Checks a backoff in the named argument, and writes it into the row of a queue.';

-- Reads the defaults from the table, so that they are defined once.
CREATE FUNCTION queue_internal.fresh_queue() RETURNS queue.queues
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh  queue.queues;
    values text;
BEGIN
    SELECT string_agg(coalesce(pg_get_expr(d.adbin, d.adrelid), 'NULL'), ', ' ORDER BY a.attnum) INTO values
    FROM pg_attribute AS a
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = 'queue.queues'::regclass AND a.attnum > 0 AND NOT a.attisdropped;
    EXECUTE 'SELECT ' || values INTO fresh;
    RETURN fresh;
END
$$;
COMMENT ON FUNCTION queue_internal.fresh_queue IS 'Returns the row of a queue with all defaults.';

-- The values of options. Each checks its JSON type, and returns null for null.

CREATE FUNCTION queue_internal.interval_option(
    option text, value jsonb, zero_allowed boolean, argument text DEFAULT 'options')
RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parsed interval;
BEGIN
    IF jsonb_typeof(value) NOT IN ('string', 'null') THEN
        PERFORM queue_internal.raise_option(
            option, 'must be an interval, such as "30 seconds"', value, argument);
    END IF;
    BEGIN
        parsed := (value #>> '{}')::interval;
    EXCEPTION WHEN data_exception THEN
        PERFORM queue_internal.raise_option(
            option, 'must be an interval, such as "30 seconds"', value, argument);
    END;
    IF NOT isfinite(parsed) THEN
        PERFORM queue_internal.raise_option(option, 'must be finite', value, argument);
    ELSIF extract(epoch FROM parsed) < 0 OR extract(epoch FROM parsed) = 0 AND NOT zero_allowed THEN
        PERFORM queue_internal.raise_option(
            option, CASE WHEN zero_allowed THEN 'must not be negative' ELSE 'must be greater than zero' END,
            value, argument);
    ELSIF extract(epoch FROM parsed) > extract(epoch FROM interval '1 year') THEN
        RAISE EXCEPTION 'option "%" of argument "%" is longer than 1 year', option, argument
            USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
    END IF;
    RETURN make_interval(secs => extract(epoch FROM parsed)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.interval_option IS 'The value of an option that is an interval; null for null.';

CREATE FUNCTION queue_internal.number_option(
    option text, value jsonb, lowest numeric, highest numeric, whole boolean, argument text DEFAULT 'options')
RETURNS numeric
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind   text := CASE WHEN whole THEN 'a whole number' ELSE 'a number' END;
    number numeric;
BEGIN
    IF jsonb_typeof(value) NOT IN ('number', 'null') THEN
        PERFORM queue_internal.raise_option(option, format('must be %s', kind), value, argument);
    END IF;
    number := (value #>> '{}')::numeric;
    IF number NOT BETWEEN lowest AND highest OR whole AND number <> trunc(number) THEN
        PERFORM queue_internal.raise_option(
            option, format('must be %s from %s to %s', kind, lowest, highest), value, argument);
    END IF;
    RETURN number;
END
$$;
COMMENT ON FUNCTION queue_internal.number_option IS 'The value of an option that is a number; null for null.';

CREATE FUNCTION queue_internal.boolean_option(option text, value jsonb, argument text DEFAULT 'options')
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) NOT IN ('boolean', 'null') THEN
        PERFORM queue_internal.raise_option(option, 'must be true or false', value, argument);
    END IF;
    RETURN (value #>> '{}')::boolean;
END
$$;
COMMENT ON FUNCTION queue_internal.boolean_option IS 'The value of an option that is true or false; null for null.';

CREATE FUNCTION queue_internal.choice_option(
    option text, value jsonb, choices text[], argument text DEFAULT 'options')
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) NOT IN ('string', 'null') OR value #>> '{}' <> ALL (choices) THEN
        PERFORM queue_internal.raise_option(
            option, 'must be one of ' || array_to_string(choices, ', '), value, argument);
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.choice_option IS
    'The value of an option that is one of several words; null for null.';

CREATE FUNCTION queue_internal.raise_option(
    option text, rule text, value jsonb, argument text DEFAULT 'options')
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'option "%" of argument "%" %', option, argument, rule
        USING ERRCODE = 'invalid_parameter_value',
              DETAIL = format('The value is %s.', left(value::text, 64));
END
$$;
COMMENT ON FUNCTION queue_internal.raise_option IS 'Raises 22023 for an option.';
-- Checks of the arguments of queue.schedule().

CREATE FUNCTION queue_internal.check_cron(cron text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text;
BEGIN
    IF cron IS NULL THEN
        PERFORM queue_internal.raise_null('cron');
    ELSIF octet_length(cron) > 256 THEN
        PERFORM queue_internal.raise_too_large('cron', '256 bytes', octet_length(cron) || ' bytes');
    END IF;
    reason := queue_internal.cron_error(cron);
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION 'argument "cron" is not a cron expression'
            USING ERRCODE = 'invalid_parameter_value', DETAIL = reason,
                  HINT = 'Five fields, minute to day of the week, or six with seconds first: ''30 2 * * MON-FRI''.';
    ELSIF queue_internal.cron_next(cron, '2000-01-01') IS NULL THEN
        PERFORM queue_internal.raise_invalid('cron', 'names no date that exists', quote_literal(cron));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_cron IS
    'Checks that a cron expression is valid and matches at least one date.';

-- Accepts only names that AT TIME ZONE reads as time zones. It also accepts "EST5EDT,M3.2.0,M11.1.0", "+03" and
-- "Nowhere+3", and reads CET, MET and EET as abbreviations without summer time.
CREATE FUNCTION queue_internal.check_timezone(timezone text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF timezone IS NULL THEN
        PERFORM queue_internal.raise_null('timezone');
    ELSIF upper(timezone) IN ('UTC', 'GMT') THEN
        RETURN;
    -- A name with a slash and no digit can only be the name of a file. The view would read all files.
    ELSIF timezone ~ '^[A-Za-z_]+(/[A-Za-z_-]+)+$' AND timezone !~* '^right/' THEN
        PERFORM now() AT TIME ZONE timezone;
        RETURN;
    ELSIF EXISTS (SELECT FROM pg_timezone_names AS n WHERE lower(n.name) = lower(timezone))
          AND NOT EXISTS (SELECT FROM pg_timezone_abbrevs AS a WHERE a.abbrev = upper(timezone)) THEN
        RETURN;
    END IF;
    RAISE invalid_parameter_value;
EXCEPTION WHEN invalid_parameter_value THEN
    RAISE EXCEPTION 'argument "timezone" must be the name of a time zone'
        USING ERRCODE = 'invalid_parameter_value', DETAIL = format('The value is %L.', left(timezone, 64)),
              HINT = 'Use a name from pg_timezone_names such as ''Europe/Berlin'', not an abbreviation.';
END
$$;
COMMENT ON FUNCTION queue_internal.check_timezone IS 'Checks the name of a time zone.';

CREATE FUNCTION queue_internal.check_schedule_options(queue text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    option text;
    value  jsonb;
BEGIN
    PERFORM queue_internal.check_options(options);
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        CASE option
            WHEN 'missed_runs' THEN
                PERFORM queue_internal.choice_option(option, value, '{skip, once, all}');
            WHEN 'priority' THEN
                PERFORM queue_internal.number_option(option, value, -2147483648, 2147483647, true);
            WHEN 'max_attempts' THEN
                PERFORM queue_internal.number_option(option, value, 1, 10000, true);
            WHEN 'weight' THEN
                PERFORM queue_internal.number_option(option, value, 1, 1000000, true);
            WHEN 'delay' THEN
                PERFORM queue_internal.interval_option(option, value, true);
            WHEN 'lease', 'timeout', 'ttl' THEN
                PERFORM queue_internal.interval_option(option, value, false);
            WHEN 'key', 'on_duplicate', 'group_key', 'kind' THEN
                IF jsonb_typeof(value) NOT IN ('string', 'null') THEN
                    PERFORM queue_internal.raise_option(option, 'must be a string', value);
                END IF;
            WHEN 'headers' THEN
                IF jsonb_typeof(value) NOT IN ('object', 'null') THEN
                    PERFORM queue_internal.raise_option(option, 'must be a JSON object', value);
                END IF;
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options are missed_runs, priority, delay, key, on_duplicate, group_key, '
                                 'max_attempts, headers, kind, lease, timeout, ttl, weight.';
        END CASE;
    END LOOP;
    -- Refuses now what a push would refuse.
    PERFORM queue_internal.check_task_options(
        queue => queue, priority => 0, run_at => NULL, delay => NULL, key => options ->> 'key',
        on_duplicate => coalesce(options ->> 'on_duplicate', 'skip'), group_key => options ->> 'group_key',
        max_attempts => NULL, headers => NULL, after => NULL, backoff => NULL, key_ttl => NULL,
        on_predecessor_failure => NULL, kind => options ->> 'kind', lease => (options ->> 'lease')::interval,
        timeout => (options ->> 'timeout')::interval, ttl => (options ->> 'ttl')::interval,
        weight => coalesce((options ->> 'weight')::numeric::integer, 1));
END
$$;
COMMENT ON FUNCTION queue_internal.check_schedule_options IS 'Checks the options of a schedule.';

-- Rows that are not written by queue.schedule() must be valid too, because the worker reads all schedules.
ALTER TABLE queue.schedules ADD CONSTRAINT schedules_cron_check CHECK (queue_internal.cron_error(cron) IS NULL);
-- queue_internal.next_run(cron, timezone, after)
--
--   Returns the first time after "after" at which a schedule runs; null if there is none.
--   A local time that its zone skips runs when it would have come had the clock not been set forward. A local time that
--   comes twice runs the first time; but an expression for every hour or every nth hour runs both times.
--   How:      within a day of "after" the clock changes at most once. Times before the change are read on the old
--             clock, which is continued through the hours that the new one skips; times after it on the new clock. The
--             earliest of both is the next run.
--   Why UTC readings without a zone: adding a day to them means 24 hours in every session.

CREATE FUNCTION queue_internal.next_run(cron text, timezone text, after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day        CONSTANT interval := '24 hours';
    nothing    CONSTANT interval := '0';
    every_hour CONSTANT boolean := cron ~* '^[[:space:]]*(@hourly|([^[:space:]]+[[:space:]]+){1,2}[*](/[0-9]+)?([[:space:]]+[^[:space:]]+){3})[[:space:]]*$';
    moment    timestamp := date_trunc('second', after AT TIME ZONE 'UTC');
    old_clock interval;
    new_clock interval;
    change    timestamp;
    lower     timestamp;
    middle    timestamp;
    early     timestamp;
    run      timestamp;
BEGIN
    LOOP
        old_clock := (moment - day) AT TIME ZONE 'UTC' AT TIME ZONE timezone - (moment - day);
        new_clock := (moment + day) AT TIME ZONE 'UTC' AT TIME ZONE timezone - (moment + day);
        IF old_clock = new_clock THEN
            run := queue_internal.cron_next(cron, moment + new_clock) - new_clock;
        ELSE
            lower := moment - day;
            change := moment + day;
            WHILE change - lower > '1 second' LOOP
                middle := date_trunc('second', lower + (change - lower) / 2);
                IF middle AT TIME ZONE 'UTC' AT TIME ZONE timezone - middle = old_clock THEN
                    lower := middle;
                ELSE
                    change := middle;
                END IF;
            END LOOP;
            early := queue_internal.cron_next(cron, moment + old_clock) - old_clock;
            -- The repeated hour ends when the new clock reaches the time at which the old one was changed.
            run := change + CASE WHEN every_hour THEN nothing ELSE greatest(old_clock - new_clock, nothing) END;
            run := greatest(moment, run - interval '1 second');
            run := queue_internal.cron_next(cron, run + new_clock) - new_clock;
            IF early < change + greatest(new_clock - old_clock, nothing) THEN
                run := least(early, run);
            END IF;
        END IF;
        IF run IS NULL OR run <= moment + day THEN
            RETURN run AT TIME ZONE 'UTC';
        END IF;
        -- The result is far away, where another change may apply: compute it again from nearby.
        moment := greatest(moment + day, run - 2 * day);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.next_run IS
    'Returns the first time after the given one at which a schedule runs; null if there is none.';

-- Bisects, because a schedule by the second may be years behind. "first" is a run.
CREATE FUNCTION queue_internal.latest_run(cron text, timezone text, first timestamptz, until timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC'
AS $$
DECLARE
    latest     timestamptz := first;
    none_after timestamptz := until;
    middle     timestamptz;
    run       timestamptz;
BEGIN
    WHILE none_after - latest >= '1 second' LOOP
        middle := latest + (none_after - latest) / 2;
        run := queue_internal.next_run(cron, timezone, middle);
        IF run <= until THEN
            latest := run;
        ELSE
            none_after := middle;
        END IF;
    END LOOP;
    -- Less than a second is left: at most one run.
    run := queue_internal.next_run(cron, timezone, latest);
    RETURN CASE WHEN run <= until THEN run ELSE latest END;
END
$$;
COMMENT ON FUNCTION queue_internal.latest_run IS 'Returns the last run of a schedule in an interval.';
-- queue_internal.fire_schedules(max_tasks, max_pause, after, since)
--
--   Pushes the tasks of the schedules that are due, and returns when the next schedule is due.
--   Promise:  one task for each run, because one transaction pushes the task and sets the next run, and the next run
--             follows from the planned one and never from the clock
--   Order:    first the schedules that are on time, which became due in the last second; those that are behind get at
--             least a quarter of the time of a call. In both, queues take turns, and in each queue the schedule that is
--             due first comes first, a few tasks of each schedule at a time. So neither a queue with many schedules nor
--             a schedule that is far behind delays others. For those on time the queues are visited by name, starting
--             after "after"; "last" is the queue where it stopped before each schedule had its turn, else null. For
--             those behind the order of the queues is random
--   Stops:    after "max_tasks" pushes or 100 ms; with null after neither
--   Since:    only the schedules that became due after that time, which an index finds, no matter how many dead versions
--             of rows an old snapshot keeps in the table. "until" is the time to continue with: no schedule that became
--             due up to then is left, except those that wait for "retry_at", when all schedules are to be read, "since"
--             being null. "until" is null if it stopped before all schedules on time had their turn
--   Restore:  pushes nothing while pg_restore is connected
--   Failing:  a schedule whose push fails stays due and records the error. It is skipped for as long as it was overdue
--             when it failed, at most "max_pause", and does not delay others
--   Locks:    the rows of the schedules that are due; rows that others have locked are skipped. A push waits at most 50
--             ms for a lock, such as that of a key which an open transaction holds. After the first that waited in
--             vain, all others of the call wait 2 ms each, because many schedules may have the same key

CREATE FUNCTION queue_internal.fire_schedules(
    max_tasks bigint, max_pause interval, after text DEFAULT '', since timestamptz DEFAULT NULL,
    OUT fired bigint, OUT next_run_at timestamptz, OUT last text, OUT retry_at timestamptz, OUT until timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    started CONSTANT timestamptz := clock_timestamp();
    first   CONSTANT timestamptz := coalesce(since, '-infinity');
    moment  timestamptz;
    before  bigint := -1;
    plan    queue.schedules;
    due     record;
    begun   timestamptz;
    served  text;
    is_cut  boolean;
BEGIN
    fired := 0;
    -- A task that is pushed before the tasks, keys and sequence of the dump are restored could take an id or a key of
    -- theirs.
    IF queue_internal.is_being_restored() THEN
        next_run_at := started + interval '1 second';
        retry_at := next_run_at;
        until := started;
        RETURN;
    END IF;
    <<turns>>
    WHILE fired > before LOOP
        before := fired;
        last := NULL;
        is_cut := false;
        moment := clock_timestamp();
        FOR due IN SELECT d.* FROM queue_internal.due_schedules(moment, first, max_pause, after) AS d LOOP
            -- Not from the start: due_schedules may have taken longer.
            begun := coalesce(begun, clock_timestamp());
            IF due.is_on_time AND due.others_are_behind AND max_tasks IS NOT NULL
               AND clock_timestamp() > begun + interval '75 ms' THEN
                last := served;
                is_cut := true;
                CONTINUE;
            END IF;
            BEGIN
                -- In the subtransaction that also updates the row. A lock by one transaction and an update by another
                -- would be a multixact, which every later reader of the dead row would have to look up.
                SELECT s.* INTO plan FROM queue.schedules AS s
                WHERE s.name = due.name AND s.paused_at IS NULL AND s.next_run_at <= moment FOR UPDATE SKIP LOCKED;
                CONTINUE WHEN NOT FOUND;
                served := CASE WHEN due.is_on_time THEN plan.queue ELSE served END;
                fired := fired + queue_internal.fire_schedule(
                    plan, moment, CASE WHEN max_tasks IS NULL THEN 100 ELSE 2 END);
            EXCEPTION WHEN OTHERS THEN
                IF SQLSTATE = '55P03' THEN
                    PERFORM set_config('lock_timeout', '2ms', true);
                END IF;
                UPDATE queue.schedules AS s SET last_error = SQLERRM, last_error_at = clock_timestamp()
                WHERE s.name = (SELECT l.name FROM queue.schedules AS l WHERE l.name = due.name FOR UPDATE SKIP LOCKED);
            END;
            IF fired >= max_tasks OR max_tasks IS NOT NULL AND clock_timestamp() > begun + interval '100 ms' THEN
                last := coalesce(last, plan.queue);
                is_cut := is_cut OR due.is_on_time;
                EXIT turns;
            END IF;
        END LOOP;
        EXIT WHEN max_tasks IS NULL;
    END LOOP;
    until := CASE WHEN NOT is_cut THEN moment END;
    SELECT min(s.next_run_at) INTO next_run_at FROM queue.schedules AS s
    WHERE s.paused_at IS NULL AND s.next_run_at > moment;
    IF last IS NOT NULL THEN
        retry_at := moment;
    ELSE
        -- What is left was locked or has failed.
        SELECT min(CASE WHEN s.last_error_at <= clock_timestamp()
                        THEN s.last_error_at + queue_internal.schedule_pause(s.next_run_at, s.last_error_at, max_pause)
                        ELSE moment + interval '1 second' END)
        INTO retry_at FROM queue.schedules AS s
        WHERE s.paused_at IS NULL AND s.next_run_at > first AND s.next_run_at <= moment;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedules IS
    'Pushes the tasks of due schedules; returns how many, when the next schedules are due, and where it stopped early.';

-- In the order in which fire_schedules runs them, without those that it skips because they have failed.
CREATE FUNCTION queue_internal.due_schedules(moment timestamptz, first timestamptz, max_pause interval, after text)
RETURNS TABLE (name text, is_on_time boolean, others_are_behind boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT d.name, d.is_on_time, NOT bool_and(d.is_on_time) OVER ()
    FROM (SELECT s.name, s.queue, s.next_run_at,
                 s.next_run_at > moment - interval '1 second' AND s.last_error_at IS NULL AS is_on_time
          FROM queue.schedules AS s
          WHERE s.paused_at IS NULL AND s.next_run_at > first AND s.next_run_at <= moment
            AND (s.last_error_at <= moment
                 AND s.last_error_at + queue_internal.schedule_pause(
                     s.next_run_at, s.last_error_at, max_pause) > moment) IS NOT TRUE) AS d
    ORDER BY NOT d.is_on_time,
             row_number() OVER (PARTITION BY d.is_on_time, d.queue ORDER BY d.next_run_at, d.name),
             d.is_on_time AND d.queue <= after, CASE WHEN d.is_on_time THEN d.queue END, random();
END
$$;
COMMENT ON FUNCTION queue_internal.due_schedules IS
    'Returns the schedules that became due in an interval, in the order in which they run.';

CREATE FUNCTION queue_internal.fire_schedule(plan queue.schedules, moment timestamptz, most integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due      timestamptz := plan.next_run_at;
    pushed   bigint := 0;
    last_run timestamptz := plan.last_run_at;
BEGIN
    IF plan.missed_runs <> 'all' THEN
        due := queue_internal.latest_run(plan.cron, plan.timezone, due, moment);
    END IF;
    WHILE due <= moment AND pushed < most LOOP
        -- A caller of queue.maintain() once a minute may be a minute late.
        IF plan.missed_runs <> 'skip' OR due >= moment - interval '2 minutes' THEN
            PERFORM queue_internal.push_scheduled(plan, due);
            pushed := pushed + 1;
            last_run := due;
        END IF;
        due := queue_internal.next_run(plan.cron, plan.timezone, due);
    END LOOP;
    UPDATE queue.schedules AS s
    SET next_run_at = due, last_run_at = last_run, last_error = NULL, last_error_at = NULL
    WHERE s.name = plan.name;
    RETURN pushed;
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedule IS
    'Pushes the tasks that are due of one schedule, up to a maximum; returns how many.';

CREATE FUNCTION queue_internal.push_scheduled(plan queue.schedules, run timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    options CONSTANT jsonb := plan.options;
    run_utc CONSTANT text := to_char(run AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
BEGIN
    RETURN queue.push(
        queue => plan.queue,
        payload => plan.payload,
        priority => coalesce((options -> 'priority')::integer, 0),
        delay => (options ->> 'delay')::interval,
        key => options ->> 'key',
        on_duplicate => coalesce(options ->> 'on_duplicate', 'skip'),
        group_key => options ->> 'group_key',
        max_attempts => (options -> 'max_attempts')::integer,
        kind => options ->> 'kind',
        lease => queue_internal.checked_lease(NULL, (options ->> 'lease')::interval),
        timeout => (options ->> 'timeout')::interval,
        ttl => (options ->> 'ttl')::interval,
        weight => queue_internal.possible_weight(
            plan.queue, options ->> 'group_key', coalesce((options ->> 'weight')::numeric::integer, 1)),
        headers => coalesce(options -> 'headers', '{}')
                   || jsonb_build_object('schedule', plan.name, 'scheduled_for', run_utc));
END
$$;
COMMENT ON FUNCTION queue_internal.push_scheduled IS 'Pushes the task of one run of a schedule.';

-- The pause grows because it equals the time for which the run was overdue. So no state is needed for it.
CREATE FUNCTION queue_internal.schedule_pause(due timestamptz, failed_at timestamptz, max_pause interval)
RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN failed_at - due > max_pause THEN max_pause
           ELSE greatest(least(max_pause, '1 second'), failed_at - due) END;
END
$$;
COMMENT ON FUNCTION queue_internal.schedule_pause IS
    'Returns for how long a schedule whose push failed is skipped.';

CREATE FUNCTION queue_internal.open_schedule(name text) RETURNS queue.schedules
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plan queue.schedules;
BEGIN
    SELECT s.* INTO plan FROM queue.schedules AS s WHERE s.name = open_schedule.name;
    IF plan.name IS NULL OR NOT queue_internal.has_right('operator', plan.queue) THEN
        PERFORM queue_internal.check_name('name', name);
        PERFORM queue_internal.raise_unknown_schedule(name);
    END IF;
    RETURN plan;
END
$$;
COMMENT ON FUNCTION queue_internal.open_schedule IS
    'Returns the schedule of that name; raises if there is none on whose queue the caller has the operator''s right.';
-- queue_internal.filter_condition(filter, states, dead, moment)
--
--   Checks the filter of a bulk procedure and returns it as a condition on queue.tasks AS t or, if "dead", on
--   queue.dead_letters AS t.
--   Options:  all                    true: every task
--             queue, worker, kind    a name
--             state                  one of "states", the states that the procedure accepts
--             older_than, newer_than an interval, by created_at
--             key, group_key         a LIKE pattern
--             error                  the same, on the last error
--             payload, headers       JSON that the task's contains
--             ids                    an array of ids
--   Rights:   only tasks of queues on which the caller has the operator's right
--   Errors:   22004, 22023, 54000 naming the option; 42501 or QX002 for the queue
--   Why an empty filter is refused: a program that forgot to fill it in would change every task.
--   Why times are written as values: every batch has to use the same time. In ISO format, because other styles write
--             abbreviations of time zones, which can be read as another zone: CST, for example.
--   Why payloads come from $3, the filter, and are not written into the text: a log may show the statement.

CREATE FUNCTION queue_internal.filter_condition(filter jsonb, states text[], dead boolean, moment timestamptz)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    queues CONSTANT text[] := queue_internal.queues_with_right('operator');
    parts  text[] := CASE WHEN queues IS NOT NULL THEN ARRAY[format('t.queue = ANY (%L)', queues)] ELSE '{}' END;
    option text;
    value  jsonb;
BEGIN
    IF filter IS NULL THEN
        PERFORM queue_internal.raise_null('filter');
    ELSIF jsonb_typeof(filter) <> 'object' THEN
        PERFORM queue_internal.raise_invalid(
            'filter', 'must be a JSON object', 'of type ' || jsonb_typeof(filter));
    ELSIF filter = '{}' THEN
        RAISE EXCEPTION 'argument "filter" must not be empty'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Name what is meant, such as {"queue": "mail"}; {"all": true} means every task.';
    END IF;
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(filter) AS o LOOP
        CASE option
            WHEN 'all' THEN
                IF value <> 'true' THEN
                    PERFORM queue_internal.raise_option(option, 'must be true', value, 'filter');
                END IF;
            WHEN 'queue' THEN
                parts := parts || format('t.queue = %L', queue_internal.text_option(option, value));
                IF NOT queue_internal.has_right('operator', value #>> '{}') THEN
                    PERFORM queue_internal.raise_denied('operator', left(value #>> '{}', 128));
                ELSIF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = value #>> '{}') THEN
                    PERFORM queue_internal.raise_unknown_queue(left(value #>> '{}', 128));
                END IF;
            WHEN 'state' THEN
                IF queue_internal.text_option(option, value) <> ALL (states) THEN
                    PERFORM queue_internal.raise_option(
                        option, 'must be one of ' || array_to_string(states, ', '), value, 'filter');
                END IF;
                states := ARRAY[value #>> '{}'];
            WHEN 'older_than' THEN
                parts := parts || format('t.created_at < %L', moment - queue_internal.age_option(option, value));
            WHEN 'newer_than' THEN
                parts := parts || format('t.created_at > %L', moment - queue_internal.age_option(option, value));
            WHEN 'worker', 'kind' THEN
                parts := parts || format('t.%I = %L', option, queue_internal.text_option(option, value));
            WHEN 'key', 'group_key' THEN
                parts := parts || format('t.%I LIKE %L', option, queue_internal.pattern_option(option, value));
            WHEN 'error' THEN
                parts := parts || format('t.errors -> -1 ->> ''error'' LIKE %L',
                                         queue_internal.pattern_option(option, value));
            WHEN 'payload' THEN
                parts := parts || 't.payload @> ($3 -> ''payload'')'::text;
            WHEN 'headers' THEN
                IF jsonb_typeof(value) <> 'object' THEN
                    PERFORM queue_internal.raise_option(option, 'must be a JSON object', value, 'filter');
                END IF;
                parts := parts || 't.headers @> ($3 -> ''headers'')'::text;
            WHEN 'ids' THEN
                parts := parts || format('t.id = ANY (%L)', queue_internal.ids_option(option, value));
            ELSE
                RAISE EXCEPTION 'argument "filter" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'The options are all, queue, state, older_than, newer_than, key, group_key, '
                                 'kind, worker, error, payload, headers, ids.';
        END CASE;
    END LOOP;
    parts := parts || CASE
        WHEN dead THEN ('failed' = ANY (states))::text
        ELSE format('CASE WHEN t.state = ''queued'' AND t.run_at > %L THEN ''scheduled'' ELSE t.state END '
                    '= ANY (%L)', moment, states)
    END;
    RETURN array_to_string(parts, ' AND ');
END
$$;
COMMENT ON FUNCTION queue_internal.filter_condition IS
    'Checks the filter of a bulk procedure and returns it as a condition.';

CREATE FUNCTION queue_internal.text_option(option text, value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) <> 'string' THEN
        PERFORM queue_internal.raise_option(option, 'must be a string', value, 'filter');
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.text_option IS 'The value of a filter''s option that is a string.';

CREATE FUNCTION queue_internal.pattern_option(option text, value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue_internal.text_option(option, value) ~ E'(?:^|[^\\\\])(?:\\\\\\\\)*\\\\$' THEN
        PERFORM queue_internal.raise_option(option, 'must not end with a single backslash', value, 'filter');
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.pattern_option IS 'The value of a filter''s option that is a pattern for LIKE.';

CREATE FUNCTION queue_internal.age_option(option text, value jsonb) RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    age interval;
BEGIN
    BEGIN
        age := queue_internal.text_option(option, value)::interval;
    EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow OR interval_field_overflow THEN
        PERFORM queue_internal.raise_option(option, 'must be an interval, such as "2 hours"', value, 'filter');
    END;
    IF NOT isfinite(age) OR extract(epoch FROM age) NOT BETWEEN 0 AND extract(epoch FROM interval '1000 years') THEN
        PERFORM queue_internal.raise_option(option, 'must be from 0 to 1000 years', value, 'filter');
    END IF;
    RETURN age;
END
$$;
COMMENT ON FUNCTION queue_internal.age_option IS 'The value of a filter''s option that is an age.';

CREATE FUNCTION queue_internal.ids_option(option text, value jsonb) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) <> 'array' THEN
        PERFORM queue_internal.raise_option(option, 'must be an array of ids', value, 'filter');
    ELSIF jsonb_array_length(value) > 100000 THEN
        RAISE EXCEPTION 'option "%" of argument "filter" has more than 100000 elements', option
            USING ERRCODE = 'program_limit_exceeded';
    ELSIF EXISTS (
        SELECT FROM jsonb_array_elements(value) AS e
        WHERE CASE WHEN jsonb_typeof(e) <> 'number' THEN true
                   ELSE (e #>> '{}')::numeric NOT BETWEEN 1 AND 9223372036854775807
                        OR (e #>> '{}')::numeric <> trunc((e #>> '{}')::numeric) END)
    THEN
        PERFORM queue_internal.raise_option(option, 'must be an array of ids', value, 'filter');
    END IF;
    RETURN ARRAY(SELECT (e #>> '{}')::numeric::bigint FROM jsonb_array_elements(value) AS e);
END
$$;
COMMENT ON FUNCTION queue_internal.ids_option IS 'The value of a filter''s option that is a list of ids.';
-- queue_internal.in_batches(verbs, filter, dry_run, batch_size, to_queue, priority, tasks)
--
--   What all bulk procedures do, once for each of "verbs": visit the tasks that match the filter in the order of their
--   ids, and commit after each batch if the CALL allows it. Adds the number of tasks to "tasks".
--   Promise:  each task is visited once, even if it returns under its id meanwhile, and none that was pushed after it
--             began. A batch that has committed stays done
--   Rights:   next_batch checks them. It runs with the rights of the owner, which a procedure that commits cannot; so
--             it puts nothing from its caller unquoted into a statement
--   Locks:    the tasks of one batch, with SKIP LOCKED. A move and a redrive wait for a transaction that is taking a
--             key
--   Why it has no SET clause, and no operators: see queue.maintain().

CREATE PROCEDURE queue_internal.in_batches(
    verbs text[], filter jsonb, dry_run boolean, batch_size integer, to_queue text, priority integer,
    INOUT tasks bigint)
LANGUAGE plpgsql AS $$
DECLARE
    verb      pg_catalog.text;
    last      bigint;
    newest    bigint;
    moment    pg_catalog.timestamptz;
    -- Kept from one verb to the next: after the first commit, the transaction is no longer that of the CALL, from
    -- which the SQL-only edition concludes that it may commit.
    committed boolean;
BEGIN
    FOREACH verb IN ARRAY verbs LOOP
        last := NULL;
        newest := NULL;
        moment := NULL;
        LOOP
            SELECT b.tasks, b.last, b.newest, b.moment INTO tasks, last, newest, moment
            FROM queue_internal.next_batch(
                verb, filter, dry_run, batch_size, to_queue, priority, tasks, last, newest, moment) AS b;
            EXIT WHEN last IS NULL;
            CALL queue_internal.try_commit(committed);
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue_internal.in_batches IS
    'Applies a bulk change to all tasks that match a filter, batch by batch.';

-- "redrive" and "forget" are about dead letters, all others about live tasks.
CREATE FUNCTION queue_internal.bulk_table(verb text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN verb IN ('redrive', 'forget') THEN 'queue.dead_letters' ELSE 'queue.tasks' END;
COMMENT ON FUNCTION queue_internal.bulk_table IS 'Returns the table that a bulk procedure visits.';

CREATE FUNCTION queue_internal.bulk_states(verb text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE verb
        WHEN 'cancel', 'reprioritise' THEN RETURN '{queued, scheduled, waiting, running}';
        WHEN 'run_now' THEN RETURN '{scheduled}';
        WHEN 'move' THEN RETURN '{queued, scheduled, waiting}';
        WHEN 'discard', 'forget' THEN RETURN '{queued, scheduled, waiting, failed}';
        WHEN 'redrive' THEN RETURN '{failed}';
    END CASE;
END
$$;
COMMENT ON FUNCTION queue_internal.bulk_states IS 'Returns the states of the tasks that a bulk procedure accepts.';

CREATE FUNCTION queue_internal.bulk_condition(
    verb text, filter jsonb, dry_run boolean, batch_size integer, to_queue text, priority integer, newest bigint,
    moment timestamptz)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    matching CONSTANT text := queue_internal.filter_condition(
        filter, queue_internal.bulk_states(verb), queue_internal.bulk_table(verb) = 'queue.dead_letters', moment);
BEGIN
    IF verb = 'move' OR to_queue IS NOT NULL THEN
        PERFORM queue_internal.check_name('to_queue', to_queue);
        PERFORM queue_internal.open_queue(to_queue, 'operator');
    END IF;
    IF verb = 'reprioritise' AND priority IS NULL THEN
        PERFORM queue_internal.raise_null('priority');
    ELSIF dry_run IS NULL THEN
        PERFORM queue_internal.raise_null('dry_run');
    ELSIF batch_size IS NULL THEN
        PERFORM queue_internal.raise_null('batch_size');
    ELSIF batch_size < 1 THEN
        PERFORM queue_internal.raise_invalid('batch_size', 'must be greater than zero', batch_size::text);
    ELSIF batch_size > 100000 THEN
        PERFORM queue_internal.raise_too_large('batch_size', '100000', batch_size::text);
    END IF;
    -- Tasks that are already as requested are not counted.
    RETURN format('t.id <= %s AND %s AND %s', newest, matching, CASE verb
        WHEN 'cancel' THEN '(t.state <> ''running'' OR t.cancel_requested_at IS NULL)'
        WHEN 'reprioritise' THEN 't.priority <> ' || priority
        WHEN 'move' THEN format('t.queue <> %L', to_queue)
        ELSE 'true' END);
END
$$;
COMMENT ON FUNCTION queue_internal.bulk_condition IS
    'Checks the arguments of a bulk procedure and returns the condition for its tasks.';

CREATE FUNCTION queue_internal.count_matching(verb text, condition text, filter jsonb, tasks bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    matching bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s AS t WHERE %s', queue_internal.bulk_table(verb), condition)
    INTO matching USING NULL, NULL, filter;
    RETURN tasks + matching;
END
$$;
COMMENT ON FUNCTION queue_internal.count_matching IS 'Returns the result of a dry run.';

-- The first call has null in "last", "newest" and "moment". "newest" is the largest id at the start, "moment" the
-- time that ages are compared with. Why the planner settings: the scan follows the primary key. Any other plan would
-- start from the beginning for every batch.
CREATE FUNCTION queue_internal.next_batch(
    verb text, filter jsonb, dry_run boolean, batch_size integer, to_queue text, priority integer,
    INOUT tasks bigint, INOUT last bigint, INOUT newest bigint, INOUT moment timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    relation  CONSTANT text := queue_internal.bulk_table(verb);
    condition text;
    ids       bigint[];
    deleted   bigint;
    task_id   bigint;
    task      queue.tasks;
BEGIN
    moment := coalesce(moment, clock_timestamp());
    IF newest IS NULL THEN
        EXECUTE 'SELECT coalesce(max(t.id), 0) FROM ' || relation || ' AS t' INTO newest;
    END IF;
    condition := queue_internal.bulk_condition(verb, filter, dry_run, batch_size, to_queue, priority, newest, moment);
    IF dry_run THEN
        tasks := queue_internal.count_matching(verb, condition, filter, tasks);
        last := NULL;
        RETURN;
    END IF;
    EXECUTE format('SELECT ARRAY(SELECT t.id FROM %s AS t WHERE t.id > $1 AND %s '
                   'ORDER BY t.id LIMIT $2 FOR %s SKIP LOCKED)', relation, condition,
                   -- The others keep the task, so a transaction that has pushed after it does not prevent them.
                   CASE WHEN verb IN ('discard', 'redrive', 'forget') THEN 'UPDATE' ELSE 'NO KEY UPDATE' END)
    INTO ids USING coalesce(last, 0), batch_size, filter;
    IF verb = 'redrive' THEN
        tasks := tasks + queue_internal.requeue_dead_letters(ids, to_queue);
    ELSIF verb = 'forget' THEN
        DELETE FROM queue.dead_letters AS d WHERE d.id = ANY (ids);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        tasks := tasks + deleted;
    ELSE
        -- In the order of keys, as in push_many.
        FOREACH task_id IN ARRAY CASE WHEN verb <> 'move' THEN ids ELSE ARRAY(
            SELECT t.id FROM queue.tasks AS t WHERE t.id = ANY (ids) ORDER BY t.key NULLS FIRST, t.id) END
        LOOP
            -- Read again, because a change to one task may have changed or ended another.
            SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = task_id;
            CONTINUE WHEN NOT FOUND;
            -- Those of tasks that lose their key. A session that ends a task which another one replaces has locked it, too.
            CONTINUE WHEN verb IN ('move', 'discard') AND task.key IS NOT NULL
                      AND NOT queue_internal.lock_key(task.queue, task.key, false);
            CASE verb
                WHEN 'cancel' THEN
                    CONTINUE WHEN task.state <> 'running' AND NOT queue_internal.lock_to_end(task.id, false);
                    PERFORM queue_internal.cancel_or_request(task);
                WHEN 'run_now' THEN
                    task.run_at := clock_timestamp();
                    PERFORM queue_internal.reorder(task);
                WHEN 'reprioritise' THEN
                    task.priority := priority;
                    PERFORM queue_internal.reorder(task);
                WHEN 'move' THEN
                    CONTINUE WHEN NOT queue_internal.move(task, to_queue);
                WHEN 'discard' THEN
                    CONTINUE WHEN NOT queue_internal.discard(task);
            END CASE;
            tasks := tasks + 1;
        END LOOP;
    END IF;
    last := CASE WHEN cardinality(ids) = batch_size THEN ids[batch_size] END;
    RAISE DEBUG 'queue_ext: % tasks so far', tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.next_batch IS
    'Does one batch of a bulk change; "last" is null when nothing is left.';
-- Rights: which role may call which function, for which queue.
--
--   A right is a row of queue.rights: a role, a kind, and a queue, or null for all queues. Every public function checks
--   that its caller has the right that it needs for the queue (check_right, open_queue), and then works with the rights
--   of the extension's owner. So no role needs privileges on tables, except that producers may INSERT into queue.tasks
--   and operators may SELECT.
--
--   The caller is the role that called the function (queue_internal.caller()). It has the rights of every role whose
--   privileges it inherits. The owner of the extension, its members and superusers have all rights. An operator of a
--   queue has the rights of a producer and a worker there.
--
--   has_right() and queues_with_right() are in engine.sql: the library caches the rights of a session's role.

-- Null stands for all queues.
CREATE FUNCTION queue_internal.check_right(kind text, queue text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT queue_internal.has_right(kind, queue) THEN
        PERFORM queue_internal.raise_denied(kind, queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_right IS
    'Raises 42501 unless the caller of the public function has this kind of right on the queue.';

CREATE FUNCTION queue_internal.grant_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM queue_internal.check_grantee(role);
    IF queue IS NOT NULL THEN
        PERFORM queue_internal.open_queue(queue, 'operator');
    END IF;
    FOR tries IN REVERSE 10 .. 0 LOOP
        BEGIN
            INSERT INTO queue.rights (role, kind, queue)
            VALUES (quote_ident(role)::regrole, grant_right.kind, grant_right.queue)
            ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                -- The role may lack the privileges, in a database that was restored without them.
                PERFORM queue_internal.apply_privileges(grant_right.kind, quote_ident(role)::regrole);
            END IF;
            EXIT;
        EXCEPTION WHEN internal_error THEN
            -- "tuple concurrently updated": another session has changed privileges on the same objects.
            IF tries = 0 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.grant_right IS 'Grants a right to a role.';

CREATE FUNCTION queue_internal.revoke_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    had boolean;
BEGIN
    PERFORM queue_internal.check_grantee(role);
    -- The queue need not exist: a right can outlive it.
    IF queue IS NOT NULL THEN
        PERFORM queue_internal.check_name('queue', queue);
    END IF;
    FOR tries IN REVERSE 10 .. 0 LOOP
        BEGIN
            DELETE FROM queue.rights AS r
            WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind
              AND r.queue IS NOT DISTINCT FROM revoke_right.queue;
            had := FOUND;
            EXIT;
        EXCEPTION WHEN internal_error THEN
            IF tries = 0 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    IF NOT had THEN
        RAISE NOTICE 'role % had no such right', quote_ident(role) USING HINT = 'The rights that it has are in queue.rights.';
    ELSIF EXISTS (SELECT FROM queue.rights AS r
                  WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind AND r.queue IS NULL) THEN
        RAISE NOTICE 'role % still has the right for all queues', quote_ident(role)
            USING HINT = format('SELECT queue.revoke_%s(%L) revokes it.', kind, role);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.revoke_right IS 'Revokes a right from a role.';

CREATE FUNCTION queue_internal.check_grantee(role name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('role', role::text);
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = role) THEN
        RAISE EXCEPTION 'role "%" does not exist', role
            USING ERRCODE = 'undefined_object', HINT = format('Create it with CREATE ROLE %I.', role);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_grantee IS 'Checks the role that a right is granted to or revoked from.';

-- A trigger, so that a restored dump of queue.rights also grants the privileges.
CREATE FUNCTION queue_internal.rights_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.announce_rights();
    IF TG_OP <> 'INSERT' THEN
        PERFORM queue_internal.withdraw_privileges(OLD.kind, OLD.role);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN NULL;
    ELSIF EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = NEW.role) THEN
        PERFORM queue_internal.apply_privileges(NEW.kind, NEW.role);
    ELSE
        -- In a dump; an error would keep the other rights from being restored.
        RAISE WARNING 'skipped a right, because its role % does not exist', NEW.role;
        DELETE FROM queue.rights AS r WHERE r.role = NEW.role;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.rights_changed IS 'Makes the privileges of roles follow queue.rights.';

CREATE TRIGGER rights_changed AFTER INSERT OR UPDATE OR DELETE ON queue.rights
    FOR EACH ROW EXECUTE FUNCTION queue_internal.rights_changed();
COMMENT ON TRIGGER rights_changed ON queue.rights IS 'Makes the privileges of roles follow the table.';

-- The privileges that each kind of right needs: EXECUTE on the public functions, and on the internal functions that
-- procedures call as their caller, because a procedure that commits cannot run as the owner.
CREATE FUNCTION queue_internal.privileges_of(kind text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    verbs     CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue'::regnamespace AND p.proname !~ '^(grant_|revoke_|attach$|detach$|maintain$|set$)');
    -- Leaves out objects that others have created in the schema, as far as extension membership shows them.
    views     CONSTANT text := (
        SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class AS c
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v'
          AND queue_internal.extension_of(c.oid) IS NOT DISTINCT FROM queue_internal.extension_of('queue.tasks'::regclass));
    waiting   CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname = ANY (
            '{check_wait, first_ready, first_pause, next_pause, moment_of_call, check_wait_result, outcome, is_finished, try_commit,
              may_commit, wait_deadline}'));
    bulk      CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname IN ('in_batches', 'next_batch'));
BEGIN
    RETURN ARRAY['USAGE ON SCHEMA queue'] || CASE kind
        WHEN 'monitor' THEN ARRAY[
            'SELECT ON queue.stats, queue.workers, queue.batches, queue.dependencies, queue.failing_schedules, '
            'queue.due_schedules, queue.failing_handlers, queue.delayed_events',
            'EXECUTE ON FUNCTION queue.engine_stats, queue.health'
        ]
        WHEN 'producer' THEN ARRAY[
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, '
            'lease, timeout, start_by, weight) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'EXECUTE ON FUNCTION queue.channel, queue.push, queue.try_push, queue.push_many, queue.push_tasks, queue.publish, '
            'queue.create_batch, queue.seal_batch, queue.emit'
        ]
        WHEN 'worker' THEN ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'USAGE ON SCHEMA queue_internal',
            'EXECUTE ON ROUTINE ' || waiting,
            'EXECUTE ON FUNCTION queue.channel, queue.claim(interval, text, integer, text),'
            'queue.claim(interval, text[], integer, text), queue.complete, queue.complete_many,'
            'queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text, integer),'
            'queue.complete_and_claim(bigint, bigint, jsonb, interval, text[], text, integer),'
            'queue.complete_many_and_claim, queue.fail, queue.fail_many, queue.release, queue.release_many, queue.extend,'
            'queue.extend_many, queue.assert_lease, queue.confirm_cancel, queue.step, queue.steps,'
            'queue.sleep(bigint, bigint, timestamptz), queue.sleep(bigint, bigint, text, interval), queue.await_event,'
            'queue.await_task',
            'EXECUTE ON PROCEDURE queue.wait(text, interval, boolean, text), queue.wait(text[], interval, boolean, text), queue.take'
        ]
        ELSE ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, '
            'lease, timeout, start_by, weight) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'SELECT ON queue.queues, queue.tasks, queue.history, queue.dead_letters, queue.schedules, queue.bindings, '
            'queue.handlers',
            'SELECT ON ' || views,
            'USAGE ON SCHEMA queue_internal',
            'EXECUTE ON ROUTINE ' || waiting,
            'EXECUTE ON ROUTINE ' || bulk,
            'EXECUTE ON ROUTINE ' || verbs
        ]
    END;
END
$$;
COMMENT ON FUNCTION queue_internal.privileges_of IS
    'Returns the privileges that a kind of right needs, or with monitor those of pg_monitor, as GRANT names them.';

-- Nothing for the owner: its own privileges must not be revoked with a right.
CREATE FUNCTION queue_internal.apply_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
BEGIN
    IF role = queue_internal.owner() THEN
        RETURN;
    END IF;
    -- Before it may use the schemas.
    PERFORM queue_internal.close_functions();
    FOREACH privilege IN ARRAY queue_internal.privileges_of(kind) LOOP
        EXECUTE format('GRANT %s TO %s', privilege, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_privileges IS 'Grants a role the privileges that a right needs.';

CREATE FUNCTION queue_internal.withdraw_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    privilege text;
    kept      text;
BEGIN
    IF role = queue_internal.owner()
       -- A role that was dropped has no privileges.
       OR NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = withdraw_privileges.role) THEN
        RETURN;
    END IF;
    PERFORM queue_internal.check_read_committed(
        'rights can only be revoked', 'The snapshot may not show a right that needs some of the same privileges.');
    FOREACH privilege IN ARRAY queue_internal.privileges_of(kind) LOOP
        EXECUTE format('REVOKE %s FROM %s', privilege, role);
    END LOOP;
    FOR kept IN
        SELECT r.kind FROM queue.rights AS r WHERE r.role = withdraw_privileges.role
        UNION SELECT 'monitor' WHERE role = 'pg_monitor'::regrole
    LOOP
        PERFORM queue_internal.apply_privileges(kept, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.withdraw_privileges IS
    'Revokes the privileges that a right needed, except those that other rights of the role need.';

CREATE FUNCTION queue_internal.owner() RETURNS regrole
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT c.relowner::regrole FROM pg_class AS c WHERE c.oid = 'queue.tasks'::regclass;
END;
COMMENT ON FUNCTION queue_internal.owner IS 'Returns the owner of queue_ext.';

-- PostgreSQL lets every role call a new function. A dump that was restored without privileges leaves it so.
CREATE FUNCTION queue_internal.close_functions() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- In a view, a policy, the condition of a trigger or the default of a column, a function is called with the privileges of
    -- the role that reads or inserts. These answer about the rights of that role alone, and show only its queues. counted_at
    -- shows only a time.
    for_all CONSTANT text[] := '{has_right, queues_with_right, caller, counted, counted_at, count_tables, running_tasks,
                                 waiting_workers, is_handler, handler_name, handler_named, how_inserted, check_arrival, buckets}';
    changed record;
BEGIN
    FOR changed IN
        SELECT f.name, f.opens FROM (
            SELECT p.oid::regprocedure AS name,
                   p.pronamespace = 'queue_internal'::regnamespace AND p.proname = ANY (for_all) AS opens,
                   EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
                           WHERE a.grantee = 0) AS is_open
            FROM pg_proc AS p
            WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
              AND p.proowner = queue_internal.owner()
              -- Leaves out those of other extensions in the schemas.
              AND (SELECT d.refobjid FROM pg_depend AS d
                   WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
                  IS NOT DISTINCT FROM queue_internal.extension_of('queue.tasks'::regclass)) AS f
        WHERE f.opens <> f.is_open
    LOOP
        EXECUTE format(CASE WHEN changed.opens THEN 'GRANT EXECUTE ON ROUTINE %s TO PUBLIC'
                            ELSE 'REVOKE ALL ON ROUTINE %s FROM PUBLIC' END, changed.name);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.close_functions IS
    'Revokes the privileges of PUBLIC on the functions of both schemas, except on those that every role has to call.';

-- PostgreSQL lets every role use a new type, also the row type of a new table or view, for a column or an argument of its
-- own. What the role creates then depends on the table: ALTER TABLE and DROP EXTENSION are refused because of it. Calling
-- a function needs no such privilege. Also called by extend_history, because pg_dump does not save the privileges of row
-- types.
CREATE FUNCTION queue_internal.close_types() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    opened regtype;
BEGIN
    FOR opened IN
        SELECT t.oid FROM pg_type AS t
        WHERE t.typnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
          -- An array type has the privileges of its elements.
          AND t.typelem = 0
          AND t.typowner = queue_internal.owner()
          AND (t.typacl IS NULL OR EXISTS (SELECT FROM aclexplode(t.typacl) AS a WHERE a.grantee = 0))
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', opened);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.close_types IS 'Revokes the privileges of PUBLIC on the types of both schemas.';

CREATE FUNCTION queue_internal.extension_of(relation oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.refobjid FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = relation AND d.deptype = 'e';
END;
COMMENT ON FUNCTION queue_internal.extension_of IS
    'Returns the extension that a table or view belongs to, if any.';

-- Policies: which rows an operator reads and a producer inserts. The subquery is evaluated once for each statement,
-- and is null if the role has the right on all queues. With IS NULL and OR instead of coalesce, the planner would
-- expect almost no rows, and read whole tables where an index gives the first few.
DO $$
DECLARE
    allowed CONSTANT text := 'coalesce(%2$I = ANY ((SELECT queue_internal.queues_with_right(%1$L))::text[]), true)';
    shown   record;
BEGIN
    FOR shown IN
        SELECT t.name, CASE t.name WHEN 'queues' THEN 'name' ELSE 'queue' END AS queue
        FROM unnest('{queues, tasks, history, dead_letters, schedules, bindings, handlers}'::text[]) AS t (name)
    LOOP
        EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', shown.name);
        EXECUTE format('CREATE POLICY operators_read ON queue.%I FOR SELECT USING (%s)', shown.name,
                       format(allowed, 'operator', shown.queue));
        EXECUTE format('COMMENT ON POLICY operators_read ON queue.%I IS %L', shown.name,
                       'Operators read the rows of their queues.');
    END LOOP;
    EXECUTE format('CREATE POLICY producers_insert ON queue.tasks FOR INSERT WITH CHECK (%s)',
                   format(allowed, 'producer', 'queue'));
    COMMENT ON POLICY producers_insert ON queue.tasks IS 'Producers insert tasks into their queues.';
END
$$;
-- Handlers in the database (queue.attach): which of them the background worker runs.

CREATE FUNCTION queue_internal.is_handler(handler oid) RETURNS boolean
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (
        SELECT FROM pg_proc AS p
        WHERE p.oid = handler AND p.prokind = 'f' AND NOT p.proretset AND p.prorettype = 'jsonb'::regtype
          AND p.pronargs = 1 AND p.provariadic = 0 AND p.proargtypes[0] = 'queue.claimed_task'::regtype);
END;
COMMENT ON FUNCTION queue_internal.is_handler IS
    'Whether this is a function that takes one queue.claimed_task and returns jsonb.';

CREATE FUNCTION queue_internal.handler_name(handler oid) RETURNS text
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('%I.%I(queue.claimed_task)', n.nspname, p.proname)
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.oid = handler;
END;
COMMENT ON FUNCTION queue_internal.handler_name IS 'Returns the name of a handler as queue.handlers has it.';

CREATE FUNCTION queue_internal.handler_named(name text) RETURNS oid
LANGUAGE sql STABLE STRICT SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- Not by to_regprocedure(), which raises an error if the caller lacks USAGE on the schema.
    SELECT p.oid FROM pg_proc AS p
    WHERE p.pronargs = 1 AND p.proargtypes[0] = 'queue.claimed_task'::regtype
      AND queue_internal.handler_name(p.oid) = name;
END;
COMMENT ON FUNCTION queue_internal.handler_named IS 'Returns the function with this name in queue.handlers.';

CREATE FUNCTION queue_internal.runnable_handlers()
RETURNS TABLE (queue text, handler oid, role oid, workers integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A handler may read tables whose rows the dump has not restored yet.
    IF NOT queue_internal.is_being_restored() THEN
        RETURN QUERY
        SELECT h.queue, queue_internal.handler_named(h.handler), h.role::oid, h.workers FROM queue.handlers AS h
        WHERE NOT EXISTS (SELECT FROM queue.failing_handlers AS f WHERE f.queue = h.queue)
        ORDER BY h.created_at, h.queue;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.runnable_handlers IS 'Returns the handlers that the background worker is to run.';
-- queue_internal.ended_since(since)
--
--   Returns how many tasks of each queue ended since then, by state and time; and, with a null time, how many dead
--   letters there are. The counters of the library start from this. Times are rounded down to their steps of 2^24
--   microseconds (src/lanes/counters.rs).

CREATE FUNCTION queue_internal.ended_since(since timestamptz)
RETURNS TABLE (queue text, state text, ended_at timestamptz, tasks bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT h.queue, h.state, date_bin('16.777216 seconds', h.finished_at, '2000-01-01 00:00:00+00'), count(*)
    FROM queue.history AS h WHERE h.finished_at >= since GROUP BY 1, 2, 3
    UNION ALL
    SELECT d.queue, 'failed', date_bin('16.777216 seconds', d.failed_at, '2000-01-01 00:00:00+00'), count(*)
    FROM queue.dead_letters AS d WHERE d.failed_at >= since GROUP BY 1, 3
    UNION ALL
    SELECT d.queue, 'failed', NULL, count(*) FROM queue.dead_letters AS d GROUP BY 1
$$;
COMMENT ON FUNCTION queue_internal.ended_since IS
    'Counts the tasks that ended since a time, and the dead letters.';
-- queue_internal.counted(queues)
--
--   Returns the task counters of these queues that are kept in memory. A queue without counters is left out.
--   native.sql replaces this function, and the SQL-only edition this file.

CREATE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, 0, 0, 0, 0, 0, 0, NULL::timestamptz, 0, 0, 0, 0 WHERE false
$$;
COMMENT ON FUNCTION queue_internal.counted IS
    'Returns the counters in memory behind queue.stats, for those of the queues that have any.';

CREATE FUNCTION queue_internal.counted_at() RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL::timestamptz
$$;
COMMENT ON FUNCTION queue_internal.counted_at IS 'Returns null: the counters are those of now.';
-- queue_internal.count_tables(queues)
--
--   Counts the tasks of these queues in the tables, for queue.stats: those of the queues that have no counters.
--   Rights:   queue.stats calls it with the privileges of the role that reads. So it counts only queues that its caller
--             may monitor
--   Touches:  queue.tasks, queue.dead_letters (reads all of them), queue.history (reads the last hour)
--   Why a function: the planner would take the cost of these queries for a part of queue.stats even where they do not
--   run, and compile them

CREATE FUNCTION queue_internal.count_tables(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE plpgsql STRICT
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine    CONSTANT text[] := queue_internal.queues_with_right('monitor');
    counted CONSTANT text[] := ARRAY(SELECT u.name FROM unnest(queues) AS u (name) WHERE coalesce(u.name = ANY (mine), true));
BEGIN
    IF counted = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH tasks AS (
        -- One count for each of the few combinations costs half of a count with a condition for each state.
        SELECT t.queue, t.state, t.admission = 2 AS is_blocked, t.run_at <= now() AS is_due, count(*) AS number,
               min(t.run_at) FILTER (WHERE (t.start_by <= now() AND t.token = 0) IS NOT TRUE) AS first
        FROM queue.tasks AS t WHERE t.queue = ANY (counted) GROUP BY 1, 2, 3, 4
    ),
    live AS (
        SELECT t.queue,
               sum(t.number) FILTER (WHERE t.state = 'queued' AND NOT t.is_blocked AND t.is_due)::bigint AS queued,
               sum(t.number) FILTER (WHERE t.state = 'queued' AND t.is_blocked)::bigint AS blocked,
               sum(t.number) FILTER (WHERE t.state = 'queued' AND NOT t.is_blocked AND NOT t.is_due)::bigint AS scheduled,
               sum(t.number) FILTER (WHERE t.state = 'waiting')::bigint AS waiting,
               sum(t.number) FILTER (WHERE t.state = 'running')::bigint AS running,
               min(t.first) FILTER (WHERE t.state = 'queued' AND NOT t.is_blocked AND t.is_due) AS oldest_due_at
        FROM tasks AS t GROUP BY t.queue
    ),
    lost AS (
        SELECT d.queue, count(*) AS dead, count(*) FILTER (WHERE d.failed_at > now() - interval '1 hour') AS failed
        FROM queue.dead_letters AS d WHERE d.queue = ANY (counted) GROUP BY d.queue
    ),
    ended AS (
        SELECT h.queue,
               count(*) FILTER (WHERE h.state = 'completed') AS completed,
               count(*) FILTER (WHERE h.state = 'cancelled') AS cancelled,
               count(*) FILTER (WHERE h.state = 'completed'
                                AND h.finished_at > now() - interval '1 minute') / 60.0::float8 AS rate
        FROM queue.history AS h
        WHERE h.queue = ANY (counted) AND h.finished_at > now() - interval '1 hour'
        GROUP BY h.queue
    )
    SELECT u.name, l.queued, l.blocked, l.scheduled, l.waiting, l.running, d.dead, l.oldest_due_at,
           e.completed, e.cancelled, d.failed, e.rate
    FROM unnest(counted) AS u (name)
    LEFT JOIN live AS l ON l.queue = u.name
    LEFT JOIN lost AS d ON d.queue = u.name
    LEFT JOIN ended AS e ON e.queue = u.name;
END
$$;
COMMENT ON FUNCTION queue_internal.count_tables IS 'Counts the tasks of queues in the tables, for queue.stats.';
-- queue_internal.leased_tasks(queues)
--
--   Returns how many tasks run in each of these queues, and the tasks whose leases are in shared memory (src/running.rs). Some of
--   these may have ended, and others may run whose leases are not there. A queue about which nothing is known is left out.
--   native.sql replaces this function.

CREATE FUNCTION queue_internal.leased_tasks(queues text[]) RETURNS TABLE (queue text, running bigint, ids bigint[])
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, 0, NULL::bigint[] WHERE false
$$;
COMMENT ON FUNCTION queue_internal.leased_tasks IS
    'Returns how many tasks run in queues, and the tasks whose leases are known in memory.';
-- queue_internal.running_tasks()
--
--   Returns the running tasks of the queues that its caller may monitor, for queue.workers. "counted_at" is null: they are
--   those of now.
--   Rights:   as count_tables
--   Touches:  queue.tasks. No index has the running tasks, so that claims stay HOT. So it reads the tasks with a lease in
--             shared memory, and all tasks of those queues in which more tasks run than that

CREATE FUNCTION queue_internal.running_tasks()
RETURNS TABLE (worker text, queue text, claimed_at timestamptz, lease_until timestamptz, counted_at timestamptz)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine   CONSTANT text[] := queue_internal.queues_with_right('monitor');
    -- The library does not see the rows that logical replication inserts.
    shown  CONSTANT text[] := ARRAY(
        SELECT q.name FROM queue.queues AS q
        WHERE coalesce(q.name = ANY (mine), true)
          AND NOT EXISTS (SELECT FROM pg_subscription_rel AS r WHERE r.srrelid = 'queue.tasks'::regclass));
    lanes  text[];
    counts bigint[];
    -- The tasks with a lease in memory, and their lanes; and those of them that run.
    leased bigint[];
    places text[];
    found  bigint[];
    queues text[];
    -- The queues of which all running tasks were found.
    known  text[];
BEGIN
    WITH lane AS MATERIALIZED (SELECT l.queue, l.running, l.ids FROM queue_internal.leased_tasks(shown) AS l),
         lease AS MATERIALIZED (SELECT l.queue, i.id FROM lane AS l, unnest(l.ids) AS i (id))
    SELECT o.lanes, o.counts, p.leased, p.places INTO lanes, counts, leased, places
    FROM (SELECT array_agg(l.queue) AS lanes, array_agg(l.running) AS counts FROM lane AS l) AS o,
         (SELECT array_agg(l.id) AS leased, array_agg(l.queue) AS places FROM lease AS l) AS p;
    -- Of all queues at once, because a task may move to another one meanwhile.
    SELECT coalesce(array_agg(t.id), '{}'), array_agg(t.queue::text) INTO found, queues
    FROM queue.tasks AS t WHERE t.id = ANY (leased) AND t.state = 'running';
    known := ARRAY(
        SELECT l.queue FROM unnest(lanes, counts) AS l (queue, running)
        WHERE l.running <= (SELECT count(*) FROM unnest(queues) AS f (queue) WHERE f.queue = l.queue));
    IF cardinality(known) < cardinality(lanes) THEN
        -- Those that have ended since they were counted are no longer in memory; those that had ended before still are.
        known := known || ARRAY(
            SELECT l.queue FROM unnest(lanes, counts) AS l (queue, running),
                   queue_internal.leased_tasks(ARRAY(SELECT u.name FROM unnest(lanes) AS u (name) WHERE u.name <> ALL (known))) AS again
            WHERE again.queue = l.queue
              AND l.running <= (SELECT count(*) FROM unnest(queues) AS f (queue) WHERE f.queue = l.queue)
                             + (SELECT count(*) FROM unnest(places, leased) AS e (queue, id)
                                WHERE e.queue = l.queue AND e.id <> ALL (found) AND e.id <> ALL (again.ids)));
    END IF;
    -- In one statement, for the same reason.
    RETURN QUERY
    SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until, NULL::timestamptz FROM queue.tasks AS t
    WHERE t.id = ANY (found) AND t.state = 'running' AND t.queue = ANY (known)
    UNION ALL
    SELECT t.worker, t.queue::text, t.claimed_at, t.lease_until, NULL::timestamptz FROM queue.tasks AS t
    WHERE EXISTS (SELECT FROM queue.queues AS q WHERE q.name <> ALL (known) AND coalesce(q.name = ANY (mine), true))
      AND t.state = 'running' AND t.queue <> ALL (known) AND coalesce(t.queue = ANY (mine), true);
END
$$;
COMMENT ON FUNCTION queue_internal.running_tasks IS
    'Returns the running tasks of the queues that its caller may monitor.';
-- The views for operators and for monitoring, except queue.stats and queue.workers (monitoring.sql).

-- A view shows a role the rows of its queues (internal/rights.sql); a null array means all queues. Views that read
-- the tables as the owner have security_barrier, which prevents functions in the query from seeing other rows.

-- Every task wherever it is. Roles read the tables under their policies, because with a condition in each part the
-- planner could not scan the indexes of the tables in one order, and it flattens UNION ALL in spite of
-- security_barrier, so that functions in the query would see rows of others.
CREATE VIEW queue.all_tasks AS
SELECT t.id, t.queue, t.state, t.priority, t.run_at, t.attempt, t.max_attempts, t.token, t.lease_until,
       t.worker, t.claimed_at, t.created_at, t.updated_at, t.cancel_requested_at,
       NULL::timestamptz AS finished_at, t.key, t.group_key, t.kind, t.lease, t.timeout, t.start_by, t.weight, t.headers, t.payload, t.progress, t.errors,
       NULL::jsonb AS result
FROM queue.tasks AS t
UNION ALL
SELECT d.id, d.queue, 'failed', d.priority, d.run_at, d.attempt, d.max_attempts, d.token, NULL,
       d.worker, d.claimed_at, d.created_at, d.failed_at, NULL,
       d.failed_at, d.key, d.group_key, d.kind, d.lease, d.timeout, d.start_by, d.weight, d.headers, d.payload, d.progress, d.errors, NULL
FROM queue.dead_letters AS d
UNION ALL
SELECT h.id, h.queue, h.state, h.priority, h.run_at, h.attempt, h.max_attempts, h.token, NULL,
       h.worker, h.claimed_at, h.created_at, h.finished_at, NULL,
       h.finished_at, h.key, h.group_key, h.kind, h.lease, h.timeout, h.start_by, h.weight, h.headers, h.payload, h.progress, h.errors, h.result
FROM queue.history AS h;

DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW queue.all_tasks SET (security_invoker = true);
        RETURN;
    END IF;
    -- PostgreSQL 14 reads the view as the owner, so it needs a condition on the whole, which is not flattened.
    EXECUTE format(
        'CREATE OR REPLACE VIEW queue.all_tasks WITH (security_barrier) AS SELECT a.* FROM (%s) AS a
         WHERE coalesce(a.queue = ANY ((SELECT queue_internal.queues_with_right(''operator''))::text[]), true)',
        rtrim(pg_get_viewdef('queue.all_tasks'::regclass), ';'));
END
$$;

-- These two without names and errors, for roles that may only read queue.stats.
CREATE VIEW queue.failing_schedules WITH (security_barrier) AS
SELECT s.queue,
       count(*) AS schedules,
       min(s.next_run_at) AS since,
       max(s.last_error_at) AS last_error_at
FROM queue.schedules AS s
WHERE s.last_error IS NOT NULL AND s.paused_at IS NULL
  AND coalesce(s.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY s.queue;

CREATE VIEW queue.due_schedules WITH (security_barrier) AS
SELECT s.queue,
       count(*) AS schedules,
       min(s.next_run_at) AS since
FROM queue.schedules AS s
WHERE s.next_run_at <= now() AND s.last_error IS NULL AND s.paused_at IS NULL
  AND coalesce(s.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY s.queue;

-- After seven tries the pause is a second. Without the errors, because they may contain data of the tasks.
CREATE VIEW queue.delayed_events WITH (security_barrier) AS
SELECT e.queue,
       count(*) AS events,
       count(e.error) AS failing
FROM queue_internal.events AS e
WHERE e.tries > 7
  AND coalesce(e.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY e.queue;

-- Handlers that the background worker does not run. Also read by queue.attach() and the background worker.
CREATE VIEW queue.failing_handlers WITH (security_barrier) AS
SELECT h.queue, p.problem, p.hint
FROM queue.handlers AS h
-- The name of a dropped role is null, which format() replaces by an empty string.
LEFT JOIN (SELECT a.oid, a.rolcanlogin, a.rolname AS name, quote_ident(a.rolname) AS quoted FROM pg_roles AS a) AS r
    ON r.oid = h.role
CROSS JOIN LATERAL (SELECT queue_internal.handler_named(h.handler) AS oid) AS f
CROSS JOIN (SELECT c.relowner AS owner, quote_ident(current_database()) AS database
            FROM pg_class AS c WHERE c.oid = 'queue.tasks'::regclass) AS t
CROSS JOIN LATERAL (
    SELECT v.problem, v.hint
    FROM (VALUES
        (1, r.oid IS NULL, 'its role does not exist',
         'Attach the handler again with another role, or call queue.detach().'),
        (2, f.oid IS NULL, 'its function does not exist',
         'Attach another function, or call queue.detach().'),
        (3, NOT queue_internal.is_handler(f.oid), format('%s does not take one queue.claimed_task and return jsonb', h.handler),
         'Attach another function, or call queue.detach().'),
        (4, NOT pg_has_role(t.owner, r.oid, CASE WHEN current_setting('server_version_num')::integer < 160000
                                                 THEN 'MEMBER' ELSE 'SET' END),
         format('the owner of the extension may not SET ROLE to %s', r.quoted),
         format('Attach the handler with another role, or let a superuser GRANT %s TO %I.', r.quoted, pg_get_userbyid(t.owner))),
        (5, NOT r.rolcanlogin, format('role %s is not permitted to log in', r.quoted),
         format('ALTER ROLE %s LOGIN. Leave it without a password, so that no client can log in with one.', r.quoted)),
        (6, NOT has_database_privilege(r.oid, current_database(), 'CONNECT'),
         format('role %s lacks the privilege CONNECT on the database', r.quoted),
         format('GRANT CONNECT ON DATABASE %s TO %s.', t.database, r.quoted)),
        (7, NOT has_function_privilege(r.oid, f.oid, 'EXECUTE'), format('role %s lacks the privilege EXECUTE on %s', r.quoted, h.handler),
         format('GRANT EXECUTE ON FUNCTION %s TO %s.', h.handler, r.quoted)),
        (8, NOT pg_has_role(r.oid, t.owner, 'USAGE') AND NOT EXISTS (
                SELECT FROM queue.rights AS g
                WHERE g.kind IN ('worker', 'operator') AND coalesce(g.queue = h.queue, true)
                  AND pg_has_role(r.oid, g.role, 'USAGE')),
         format('role %s does not have the right of a worker', r.quoted),
         format('SELECT queue.grant_worker(%L, %L).', r.name, h.queue))
    ) AS v (number, matches, problem, hint)
    WHERE v.matches ORDER BY v.number LIMIT 1
) AS p
WHERE coalesce(h.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true);

-- A row for each task that another one waits for. The right on the queue of the one that waits decides: who pushed it, or
-- added tasks to its batch, had a right on the queues of the others. A task that waits
-- until a time at most is queued; it does not wait any longer once it was claimed again, which changes its token.
CREATE VIEW queue.dependencies WITH (security_barrier) AS
SELECT d.task_id,
       t.queue,
       d.predecessor_id,
       d.outcome,
       nullif(d.on_failure, 'batch') AS on_failure,
       d.on_failure = 'batch' AS is_batch
FROM queue_internal.dependencies AS d
JOIN queue.tasks AS t ON t.id = d.task_id
WHERE (t.state = 'waiting'
       OR t.state = 'queued' AND EXISTS (SELECT FROM queue_internal.awaits AS a WHERE a.task_id = t.id AND a.token = t.token))
  AND coalesce(t.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true);

-- The counts are columns of their own, so that a query which does not read them does not count.
CREATE VIEW queue.batches WITH (security_barrier) AS
SELECT t.id AS batch,
       t.queue,
       t.created_at,
       now() - t.created_at AS age,
       b.sealed_at,
       (SELECT count(*) FROM queue_internal.dependencies AS d
        WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome IS NULL) AS unfinished,
       b.completed + (SELECT count(*) FROM queue_internal.dependencies AS d
                      WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome = 'completed') AS completed,
       b.failed + (SELECT count(*) FROM queue_internal.dependencies AS d
                   WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome = 'failed') AS failed,
       b.cancelled + (SELECT count(*) FROM queue_internal.dependencies AS d
                      WHERE d.task_id = t.id AND d.on_failure = 'batch' AND d.outcome IN ('cancelled', 'purged')) AS cancelled
FROM queue_internal.batches AS b
JOIN queue.tasks AS t ON t.id = b.task_id AND t.state = 'waiting'
WHERE coalesce(t.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true);
-- queue.push
--
--   Promise:  the task exists if and only if the transaction commits
--   Waits:    for another transaction that is pushing the same key, and for one that is ending a predecessor; if the task that
--             has the key has expired, also for one that is ending it or the task that it replaces; with
--             "replace" and "reschedule" also for one that is working on the task to be changed
--   Touches:  queue.tasks (inserts, or updates the task with the key). The triggers task_arrives and tasks_inserted
--             take the key and announce the task

CREATE FUNCTION queue.push(
    queue        text,
    payload      jsonb       DEFAULT '{}',
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    after        bigint[]    DEFAULT NULL,
    backoff      jsonb       DEFAULT NULL,
    key_ttl      interval    DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL,
    key_ttl_from text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1,
    batch        bigint      DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
    id     bigint;
BEGIN
    IF num_nonnulls(run_at, delay, key, group_key, max_attempts, headers, after, backoff, key_ttl, on_predecessor_failure,
                    key_ttl_from, kind, lease, timeout, start_by, ttl, batch) = 0
       AND on_duplicate = 'skip' AND weight = 1 AND priority IS NOT NULL AND payload IS NOT NULL THEN
        id := queue_internal.push_plain(queue, payload, priority);
        IF id IS DISTINCT FROM 0 THEN
            RETURN id;
        END IF;
    END IF;
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    source := queue_internal.open_queue(queue, 'producer');
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    start_by := queue_internal.start_deadline(source, start_by, ttl);
    IF key IS NULL AND after IS NULL AND batch IS NULL THEN
        IF source.max_queued IS NOT NULL THEN
            PERFORM queue_internal.check_depth(source, 1);
        END IF;
        INSERT INTO queue.tasks AS t (
            queue, payload, priority, run_at, max_attempts, headers, group_key, backoff, kind, lease, timeout,
            start_by, weight)
        VALUES (push.queue, push.payload, push.priority, push.run_at, push.max_attempts, push.headers,
                push.group_key, push.backoff, push.kind, push.lease, push.timeout, push.start_by, push.weight)
        RETURNING t.id INTO id;
        RETURN id;
    END IF;
    RETURN (queue_internal.push_one(
        queue, payload, priority, run_at, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
        queue_internal.stored_ttl(key_ttl, key_ttl_from), on_predecessor_failure, batch, kind, lease, timeout,
        start_by, weight)).id;
END
$$;
COMMENT ON FUNCTION queue.push IS
'Adds a task to a queue and returns its id. If another task has the key, returns the id of that task instead, or does
what on_duplicate says. The task exists once the transaction commits. Needs the producer''s right on the queue.

- queue: name of the queue.
- payload: what the worker is to do, any JSON value. Default {}.
- priority: the task with the smallest priority is claimed first. Default 0.
- run_at: earliest time at which the task can be claimed. Null means now.
- delay: the same as an interval from now, at most 100 years. Cannot be combined with run_at. Null means no delay.
- key: at most one waiting, queued or running task of the queue has this key, of up to 512 bytes. Null means no key.
- on_duplicate: what to do if the key is taken. skip (default): add nothing. replace: give that task the new payload,
  kind, lease, timeout, start deadline, weight, headers, priority and run_at; if it is running, add a task that waits
  for its end. reschedule: give it the new run_at, unless it is running. error: raise QX004. A task that has finished
  and keeps its key is not changed.
- group_key: tasks of a queue with the same group key run in order, max_running_per_group at a time. At most 512
  bytes. Null means no group.
- max_attempts: number of attempts after which the task becomes a dead letter, 1 to 10000. Null means the queue''s
  option.
- headers: a JSON object with metadata, such as a trace context. Null means none.
- after: ids of up to 100000 tasks that must complete before this one can be claimed. Null means none.
- backoff: a JSON object with kind, base, max and jitter, as in queue.create. Null, and each part that is missing,
  means the queue''s option.
- key_ttl: how long the key stays taken after the task completed or was cancelled, at most 100 years. Needs a key.
  Null means the queue''s option.
- on_predecessor_failure: what happens to this task if a task in after fails or is cancelled: cancel, fail or
  continue. Needs after. Null means the queue''s option.
- key_ttl_from: end (default if null) or push: whether key_ttl counts from the end of the task or from its push. A task
  that takes longer than key_ttl keeps its key until it ends. Needs key_ttl.
- kind: what sort of work this is, 1 to 128 bytes, by which workers choose their code. Null means none.
- lease: how long a claim lasts that names no lease; more than 0, at most queue.max_lease. Null means the queue''s
  option.
- timeout: how long an attempt may take; more than 0, at most a year. Then the attempt has failed with the error "timed
  out", and its lease cannot be extended further. Null means the queue''s option.
- start_by: the start deadline. If no worker has claimed the task by then, it expires: it becomes a dead letter with the
  error "expired", or is cancelled if the queue''s option on_expired is cancel. A task that is scheduled for later or
  waits for other tasks expires too. Null (default) means that ttl applies.
- ttl: the start deadline as an interval from now, more than 0, at most 100 years. Cannot be combined with start_by. Null
  (default) means the queue''s option ttl.
- weight: how much of rate_limit and group_rate_limit the task uses up when it starts, from 1 to the smaller of these
  limits. Default 1.
- batch: the batch, as returned by queue.create_batch, to which the task is added if it is new. Needs the producer''s
  right on the queue of the batch too. Null means no batch.

Errors: 42501: no right on the queue. QX002: the queue does not exist. QX003: a task in after does not exist. QX004: the
key is taken and on_duplicate is error. QX006: the queue is full. QX007: the batch does not exist. QX008: the batch is
sealed. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- A push with a key or with predecessors, which depends on other tasks. "live" are the predecessors that are locked
-- already. "pushed" is false if the id is that of a task that existed before. "key_ttl" is as in queue_internal.keys.
-- With "is_callback" the task waits, and the caller adds the row of its batch.
CREATE FUNCTION queue_internal.push_linked(
    queue text, payload jsonb, priority integer, run_at timestamptz, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, live bigint[], kind text, lease interval, timeout interval, start_by timestamptz, weight integer,
    is_callback boolean DEFAULT false, OUT id bigint, OUT pushed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source  CONSTANT queue.queues := queue_internal.open_queue(queue, 'producer');
    waits   CONSTANT boolean := after <> '{}';
    task    queue.tasks;
    running bigint;
    new_id  bigint;
    again   boolean := false;
BEGIN
    task.queue := queue;
    task.key := key;
    task.payload := payload;
    task.priority := priority;
    task.run_at := run_at;
    task.headers := headers;
    task.kind := kind;
    task.lease := lease;
    task.timeout := timeout;
    task.start_by := start_by;
    task.weight := weight;
    -- Locks the table, as an INSERT does before it takes an id (internal/settled_id.sql).
    PERFORM FROM queue.tasks AS t WHERE false FOR KEY SHARE;
    LOOP
        new_id := nextval('queue.tasks_id_seq');
        -- The trigger task_arrives takes the key, too. But if a trigger of the user suppresses the task before that, only this
        -- shows that no other task has the key.
        IF NOT again OR queue_internal.take_key(queue, key, new_id, keeps_errors => false) THEN
            INSERT INTO queue.tasks AS t (
                id, queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, kind, lease, timeout,
                start_by, weight, state)
            VALUES (new_id, push_linked.queue, push_linked.payload, push_linked.priority, push_linked.run_at,
                    push_linked.max_attempts, push_linked.headers, push_linked.key, push_linked.group_key,
                    push_linked.backoff, push_linked.kind, push_linked.lease, push_linked.timeout, push_linked.start_by, push_linked.weight,
                    CASE WHEN waits OR is_callback OR running IS NOT NULL THEN 'waiting' ELSE 'queued' END)
            RETURNING t.id INTO id;
            IF FOUND THEN
                IF key_ttl IS NOT NULL THEN
                    UPDATE queue_internal.keys AS k SET ttl = key_ttl
                    WHERE k.queue = push_linked.queue AND k.key = push_linked.key AND k.task_id = id;
                END IF;
                -- The replaced task is waited for however it ends, even if it is named in "after".
                after := array_remove(after, running);
                IF after <> '{}' THEN
                    -- Taking a key, for this task or another one of the call, has ended the task that had it, if it was past its
                    -- start deadline.
                    live := ARRAY(SELECT t.id FROM queue.tasks AS t WHERE t.id = ANY (live));
                    PERFORM queue_internal.add_dependencies(
                        id, queue, after, coalesce(on_predecessor_failure, source.on_predecessor_failure), live);
                END IF;
                IF running IS NOT NULL THEN
                    PERFORM queue_internal.add_dependencies(id, queue, ARRAY[running], 'continue', ARRAY[running]);
                END IF;
                pushed := true;
                RETURN;
            ELSIF key IS NULL OR queue_internal.give_back_key(queue, key, new_id, running) THEN
                -- A trigger that the user added has suppressed it.
                pushed := false;
                RETURN;
            END IF;
        END IF;
        -- Null if the key is free now, or can be taken over.
        SELECT s.id, s.running INTO id, running FROM queue_internal.resolve_duplicate(task, on_duplicate) AS s;
        IF id IS NOT NULL THEN
            pushed := false;
            RETURN;
        END IF;
        again := true;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.push_linked IS 'Pushes a task that has a key or waits for others.';

-- A push of one task that has a key, waits for others, or is added to a batch. "pushed" and "key_ttl" are as in push_linked.
CREATE FUNCTION queue_internal.push_one(
    queue text, payload jsonb, priority integer, run_at timestamptz, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, batch bigint, kind text, lease interval, timeout interval, start_by timestamptz, weight integer,
    OUT id bigint, OUT pushed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others CONSTANT bigint[] := array_remove(after || batch, NULL);
    live   bigint[];
BEGIN
    IF others <> '{}' THEN
        live := queue_internal.lock_before_push(ARRAY[queue], ARRAY[key], on_duplicate, others);
    END IF;
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_no_cycle(batch, after);
    END IF;
    SELECT p.id, p.pushed INTO id, pushed FROM queue_internal.push_linked(
        queue, payload, priority, run_at, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
        on_predecessor_failure, live, kind, lease, timeout, start_by, weight) AS p;
    IF pushed AND batch IS NOT NULL THEN
        PERFORM queue_internal.join_batch(batch, ARRAY[id]);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.push_one IS
    'Pushes a task that has a key or waits for others, or, if it is new, adds it to a batch.';
-- queue.try_push
--
--   Promise:  as queue.push. "pushed" is exact also while other transactions push the same key
--   Waits:    as queue.push
--   Touches:  as queue.push

CREATE FUNCTION queue.try_push(
    queue        text,
    payload      jsonb       DEFAULT '{}',
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    after        bigint[]    DEFAULT NULL,
    backoff      jsonb       DEFAULT NULL,
    key_ttl      interval    DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL,
    key_ttl_from text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1,
    batch        bigint      DEFAULT NULL)
RETURNS TABLE (id bigint, pushed boolean)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
BEGIN
    IF key IS NULL THEN
        id := queue.push(
            queue, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
            key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
        pushed := id IS NOT NULL;
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    source := queue_internal.open_queue(queue, 'producer');
    start_by := queue_internal.start_deadline(source, start_by, ttl);
    RETURN QUERY SELECT p.id, p.pushed FROM queue_internal.push_one(
        queue, payload, priority, coalesce(run_at, clock_timestamp() + coalesce(delay, '0')), key, on_duplicate,
        group_key, max_attempts, headers, after, backoff, queue_internal.stored_ttl(key_ttl, key_ttl_from),
        on_predecessor_failure, batch, kind, lease, timeout, start_by, weight) AS p;
END
$$;
COMMENT ON FUNCTION queue.try_push IS
'Does what queue.push does, and also reports whether it added a task. Returns one row: the id, and pushed, which is
false if another task has the key and no task was added. Needs the producer''s right on the queue.

- queue, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
  on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch: as in queue.push.

Errors: as queue.push.';
-- queue.push_many
--
--   Promise:  all of the tasks or none. Without keys and predecessors, one INSERT for all of them, also into a batch
--   Waits:    as push does. Before it takes the first key it locks all tasks that it will wait for or change, in the
--             order of their ids; it takes the keys in their order. So two calls cannot deadlock, unless a key belongs to a
--             task that has expired
--   Touches:  queue.tasks (inserts, or updates the tasks with the keys)

CREATE FUNCTION queue.push_many(
    queue        text,
    payloads     jsonb[],
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    after        bigint[]    DEFAULT NULL,
    backoff      jsonb       DEFAULT NULL,
    key_ttl      interval    DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL,
    keys         text[]      DEFAULT NULL,
    group_keys   text[]      DEFAULT NULL,
    key_ttl_from text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1,
    batch        bigint      DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    ids     bigint[];
    added   bigint[];
    live    bigint[];
    one     record;
    pushed  record;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, coalesce(key, CASE WHEN keys IS NOT NULL THEN 'one of keys' END),
        on_duplicate, coalesce(group_key, CASE WHEN group_keys IS NOT NULL THEN 'one of group_keys' END), max_attempts,
        headers, after, backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight,
        batch);
    PERFORM queue_internal.check_array('payloads', payloads);
    PERFORM queue_internal.check_each_key('key', keys, key, cardinality(payloads));
    PERFORM queue_internal.check_each_key('group_key', group_keys, group_key, cardinality(payloads));
    source := queue_internal.open_queue(queue, 'producer');
    -- One time for all: among equals the id decides, which follows the order of the array.
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    start_by := queue_internal.start_deadline(source, start_by, ttl);
    IF source.max_queued IS NOT NULL AND key IS NULL AND keys IS NULL AND after IS NULL THEN
        PERFORM queue_internal.check_depth(source, cardinality(payloads));
    END IF;
    IF batch IS NOT NULL AND key IS NULL AND keys IS NULL AND after IS NULL THEN
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_callback_group(batch, queue, group_keys || group_key);
        RETURN QUERY
        WITH new AS (
            INSERT INTO queue.tasks AS t (
                queue, payload, priority, run_at, max_attempts, headers, group_key, backoff, kind, lease, timeout,
                start_by, weight)
            SELECT push_many.queue, p.payload, push_many.priority, push_many.run_at, push_many.max_attempts,
                   push_many.headers, coalesce(p.group_key, push_many.group_key), push_many.backoff,
                   push_many.kind, push_many.lease, push_many.timeout, push_many.start_by, push_many.weight
            FROM ROWS FROM (unnest(payloads), unnest(group_keys)) WITH ORDINALITY AS p (payload, group_key, position)
            ORDER BY p.position
            RETURNING t.id
        ), joined AS (
            INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
            SELECT n.id, push_many.batch, 'batch' FROM new AS n
        )
        SELECT n.id FROM new AS n;
        RETURN;
    ELSIF key IS NULL AND keys IS NULL AND after IS NULL THEN
        RETURN QUERY
        INSERT INTO queue.tasks AS t (
            queue, payload, priority, run_at, max_attempts, headers, group_key, backoff, kind, lease, timeout, start_by, weight)
        SELECT push_many.queue, p.payload, push_many.priority, push_many.run_at, push_many.max_attempts,
               push_many.headers, coalesce(p.group_key, push_many.group_key), push_many.backoff,
               push_many.kind, push_many.lease, push_many.timeout, push_many.start_by, push_many.weight
        FROM ROWS FROM (unnest(payloads), unnest(group_keys)) WITH ORDINALITY AS p (payload, group_key, position)
        ORDER BY p.position
        RETURNING t.id;
        RETURN;
    END IF;
    keys := coalesce(keys, array_fill(key, ARRAY[cardinality(payloads)]));
    live := queue_internal.lock_before_push(
        array_fill(queue, ARRAY[cardinality(keys)]), keys, on_duplicate, coalesce(after, '{}') || array_remove(ARRAY[batch], NULL));
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_no_cycle(batch, after);
    END IF;
    -- Made in one piece: the tasks are not pushed in their order.
    ids := array_fill(NULL::bigint, ARRAY[cardinality(payloads)]);
    FOR one IN
        SELECT p.payload, p.key, coalesce(p.group_key, push_many.group_key) AS group_key, p.position
        FROM ROWS FROM (unnest(payloads), unnest(keys), unnest(group_keys))
             WITH ORDINALITY AS p (payload, key, group_key, position)
        ORDER BY p.key COLLATE "C", p.position
    LOOP
        SELECT p.id, p.pushed INTO pushed FROM queue_internal.push_linked(
            queue, one.payload, priority, run_at, one.key, on_duplicate, one.group_key, max_attempts, headers,
            after, backoff, queue_internal.stored_ttl(key_ttl, key_ttl_from), on_predecessor_failure, live, kind,
            lease, timeout, start_by, weight) AS p;
        ids[one.position] := pushed.id;
        IF pushed.pushed THEN
            added := added || pushed.id;
        END IF;
    END LOOP;
    IF batch IS NOT NULL THEN
        PERFORM queue_internal.join_batch(batch, added);
    END IF;
    RETURN QUERY SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, position) ORDER BY i.position;
END
$$;
COMMENT ON FUNCTION queue.push_many IS
'Adds one task for each payload and returns the ids in the order of the payloads: all of them or none. Where a key is
taken, the row has the id of the task that has it. An empty array adds nothing and returns no rows. Needs the
producer''s right on the queue.

- queue: name of the queue.
- payloads: one JSON value for each task, at most 100000, none of them null.
- priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
  on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch: as in queue.push, the same
  for all tasks.
- keys: a key for each payload; an element may be null. Cannot be combined with key. Null means no keys.
- group_keys: a group key for each payload; an element may be null. Cannot be combined with group_key. Null means no
  group keys.

Errors: as queue.push.';

CREATE FUNCTION queue_internal.check_each_key(argument text, elements text[], one text, expected integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    element text;
BEGIN
    IF elements IS NULL THEN
        RETURN;
    ELSIF one IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid(argument || 's', format('cannot be combined with "%s"', argument));
    ELSIF array_ndims(elements) > 1 OR cardinality(elements) <> expected THEN
        PERFORM queue_internal.raise_invalid(
            argument || 's', format('must have as many elements as "payloads", which has %s', expected),
            format('an array of %s', cardinality(elements)));
    END IF;
    FOREACH element IN ARRAY elements LOOP
        PERFORM queue_internal.check_key(argument || 's', element);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.check_each_key IS 'Checks an array of keys that goes with the array "payloads".';
-- queue.push_tasks
--
--   Promise:  all of the tasks or none
--   Waits:    as push_many: it locks all tasks that it will wait for or change before it takes the first key, and takes
--             the keys in the order of queue and key
--   Touches:  queue.tasks (inserts, or updates the tasks with the keys)

CREATE FUNCTION queue.push_tasks(tasks jsonb) RETURNS SETOF bigint
-- So much memory is not needed, but allowed: with less, millions of predecessors are not found in a hash table.
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET work_mem = '256MB' AS $$
DECLARE
    -- One time for all: among equals the id decides.
    moment CONSTANT timestamptz := clock_timestamp();
    queues text[];
    keys   text[];
    after  bigint[] := '{}';
    batches bigint[] := '{}';
    pushed record;
    live   bigint[];
    ids    bigint[];
    one    record;
    other  bigint;
BEGIN
    PERFORM queue_internal.check_tasks(tasks);
    FOR one IN SELECT t.* FROM queue_internal.given_tasks(tasks) AS t ORDER BY t.nth LOOP
        PERFORM queue_internal.check_task_options(
            one.queue, one.priority, one.run_at, one.delay, one.key, one.on_duplicate, one.group_key, one.max_attempts,
            one.headers, one.after, one.backoff, one.key_ttl, one.on_predecessor_failure, one.key_ttl_from,
            one.kind, one.lease, one.timeout, one.start_by, one.ttl, one.weight, one.batch);
        PERFORM queue_internal.check_right('producer', one.queue);
        queues := queues || one.queue;
        keys := keys || CASE WHEN one.on_duplicate IN ('replace', 'reschedule') THEN one.key END;
        FOREACH other IN ARRAY coalesce(one.after, '{}') LOOP
            after := after || other;
        END LOOP;
        batches := batches || one.batch;
    END LOOP;
    live := queue_internal.lock_before_push(
        queues, keys, CASE WHEN cardinality(array_remove(keys, NULL)) > 0 THEN 'replace' ELSE 'skip' END,
        after || array_remove(batches, NULL));
    PERFORM queue_internal.lock_batches(batches);
    -- Made in one piece: the tasks are not pushed in their order.
    ids := array_fill(NULL::bigint, ARRAY[jsonb_array_length(tasks)]);
    FOR one IN
        -- IS TRUE keeps the planner from joining: a hash table for all tasks tells which predecessors are live.
        SELECT t.*, ARRAY(SELECT a.id FROM unnest(t.after) AS a (id) WHERE (a.id IN (SELECT unnest(live))) IS TRUE) AS locked
        FROM queue_internal.given_tasks(tasks) AS t ORDER BY t.queue COLLATE "C", t.key COLLATE "C", t.nth
    LOOP
        one.run_at := coalesce(one.run_at, moment + coalesce(one.delay, '0'));
        IF one.key IS NULL AND one.after IS NULL AND one.batch IS NULL THEN
            ids[one.nth] := queue.push(
                queue => one.queue, payload => one.payload, priority => one.priority, run_at => one.run_at,
                group_key => one.group_key, max_attempts => one.max_attempts, headers => one.headers,
                backoff => one.backoff, kind => one.kind, lease => one.lease, timeout => one.timeout,
                start_by => one.start_by, ttl => one.ttl, weight => one.weight);
        ELSE
            IF one.batch IS NOT NULL THEN
                PERFORM queue_internal.check_no_cycle(one.batch, one.after);
            END IF;
            SELECT p.id, p.pushed INTO pushed FROM queue_internal.push_linked(
                one.queue, one.payload, one.priority, one.run_at, one.key, one.on_duplicate, one.group_key,
                one.max_attempts, one.headers, one.after, one.backoff,
                queue_internal.stored_ttl(one.key_ttl, one.key_ttl_from), one.on_predecessor_failure,
                one.locked, one.kind, one.lease, one.timeout,
                queue_internal.start_deadline(queue_internal.open_queue(one.queue, 'producer'), one.start_by, one.ttl),
                one.weight) AS p;
            ids[one.nth] := pushed.id;
            IF pushed.pushed AND one.batch IS NOT NULL THEN
                PERFORM queue_internal.join_batch(one.batch, ARRAY[pushed.id]);
            END IF;
        END IF;
    END LOOP;
    RETURN QUERY SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, nth) ORDER BY i.nth;
END
$$;
COMMENT ON FUNCTION queue.push_tasks IS
'Adds many different tasks, each to a queue and with options of its own, and returns the ids in the order of the array:
all of them or none. Where a key is taken, the row has the id of the task that has it. An empty array adds nothing and
returns no rows. Needs the producer''s right on each of the queues.

- tasks: a JSON array of at most 100000 objects, such as [{"queue": "mail", "payload": {"to": "ada"}, "delay": "1
  hour"}]. Their members have the names, meanings and defaults of the parameters of queue.push. Only queue is required.
  Times and intervals are strings, and after is an array. Null means the default, except that a payload of null is
  stored.

Errors: as queue.push. 22023: a member is unknown or has the wrong type; the message has its name and the position of the
element, from 1.';

CREATE FUNCTION queue_internal.check_tasks(tasks jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    types CONSTANT jsonb := queue_internal.task_members();
    odd   record;
BEGIN
    IF tasks IS NULL THEN
        PERFORM queue_internal.raise_null('tasks');
    ELSIF jsonb_typeof(tasks) <> 'array' THEN
        PERFORM queue_internal.raise_invalid('tasks', 'must be a JSON array', 'of type ' || jsonb_typeof(tasks));
    ELSIF jsonb_array_length(tasks) > 100000 THEN
        PERFORM queue_internal.raise_too_large('tasks', '100000 elements', jsonb_array_length(tasks) || ' elements');
    END IF;
    SELECT e.nth, jsonb_typeof(e.value) AS type INTO odd FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth)
    WHERE jsonb_typeof(e.value) <> 'object' ORDER BY e.nth LIMIT 1;
    IF FOUND THEN
        PERFORM queue_internal.raise_invalid(
            'tasks', 'must be an array of JSON objects', format('an array whose element %s is of type %s', odd.nth, odd.type));
    END IF;
    -- Numbers that are no integers, and strings that are no times or intervals, are left to the conversion.
    SELECT e.nth, m.name, v.type INTO odd
    FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth), jsonb_object_keys(e.value) AS m (name),
         LATERAL (SELECT e.value -> m.name, types ->> m.name) AS v (value, type)
    WHERE CASE jsonb_typeof(v.value)
              WHEN 'null' THEN v.type IS NULL
              WHEN 'string' THEN coalesce(v.type NOT IN ('a string', 'a time', 'an interval', 'a value'), true)
              WHEN 'number' THEN coalesce(v.type NOT IN ('an integer', 'a value'), true)
              WHEN 'boolean' THEN coalesce(v.type <> 'a value', true)
              WHEN 'object' THEN coalesce(v.type NOT IN ('an object', 'a value'), true)
              WHEN 'array' THEN CASE WHEN v.type = 'an array of integers' THEN EXISTS (
                  SELECT FROM jsonb_array_elements(v.value) AS i (value) WHERE jsonb_typeof(i.value) NOT IN ('number', 'null'))
                  ELSE coalesce(v.type <> 'a value', true) END
          END
    ORDER BY e.nth, m.name LIMIT 1;
    IF odd.type IS NOT NULL THEN
        PERFORM queue_internal.raise_wrong_member(odd.nth, odd.name, odd.type);
    ELSIF FOUND THEN
        -- A long name may be part of a payload.
        RAISE EXCEPTION 'element % of argument "tasks" has an unknown member%', odd.nth,
                        CASE WHEN octet_length(odd.name) <= 64 THEN format(' "%s"', odd.name) ELSE '' END
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('The members are %s.', (SELECT string_agg(k.name, ', ' ORDER BY k.name) FROM jsonb_object_keys(types) AS k (name)));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_tasks IS 'Checks the shape of the argument of queue.push_tasks.';

CREATE FUNCTION queue_internal.task_members() RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN '{"queue": "a string", "payload": "a value", "priority": "an integer", "run_at": "a time", "delay": "an interval",
             "key": "a string", "on_duplicate": "a string", "group_key": "a string", "max_attempts": "an integer",
             "headers": "an object", "after": "an array of integers", "backoff": "an object", "key_ttl": "an interval",
             "on_predecessor_failure": "a string", "key_ttl_from": "a string", "kind": "a string", "lease": "an interval",
             "timeout": "an interval", "start_by": "a time", "ttl": "an interval",
             "weight": "an integer", "batch": "an integer"}';
END
$$;
COMMENT ON FUNCTION queue_internal.task_members IS 'Returns the members of a task for queue.push_tasks, with their types.';

CREATE FUNCTION queue_internal.raise_wrong_member(nth bigint, name text, type text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'member "%" of element % of argument "tasks" must be %', name, nth, type
        USING ERRCODE = 'invalid_parameter_value';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_wrong_member IS 'Raises 22023, without the value, which may be part of a payload.';

CREATE FUNCTION queue_internal.given_tasks(tasks jsonb)
RETURNS TABLE (
    nth bigint, queue text, payload jsonb, priority integer, run_at timestamptz, delay interval, key text,
    on_duplicate text, group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb,
    key_ttl interval, on_predecessor_failure text, key_ttl_from text, kind text, lease interval, timeout interval,
    start_by timestamptz, ttl interval, weight integer, batch bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- jsonb_to_record would make a payload of null into no payload.
    RETURN QUERY
    SELECT e.nth, t.queue, coalesce(e.value -> 'payload', '{}'), coalesce(t.priority, 0), t.run_at, t.delay, t.key,
           coalesce(t.on_duplicate, 'skip'), t.group_key, t.max_attempts, t.headers, t.after, t.backoff, t.key_ttl,
           t.on_predecessor_failure, t.key_ttl_from, t.kind, t.lease, t.timeout, t.start_by, t.ttl,
           coalesce(t.weight, 1), t.batch
    FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth),
         LATERAL jsonb_to_record(e.value) AS t (
             queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
             group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
             on_predecessor_failure text, key_ttl_from text, kind text, lease interval, timeout interval, start_by timestamptz,
             ttl interval, weight integer, batch bigint);
EXCEPTION WHEN data_exception THEN
    -- Its message has the value.
    PERFORM queue_internal.raise_inconvertible(tasks);
    RAISE;
END
$$;
COMMENT ON FUNCTION queue_internal.given_tasks IS 'Returns the tasks that were passed to queue.push_tasks, one a row.';

CREATE FUNCTION queue_internal.raise_inconvertible(tasks jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT e.nth, m.name, m.type, e.value -> m.name AS value
        FROM jsonb_array_elements(tasks) WITH ORDINALITY AS e (value, nth),
             jsonb_each_text(queue_internal.task_members()) AS m (name, type)
        WHERE e.value ? m.name AND m.type IN ('an integer', 'a time', 'an interval', 'an array of integers')
        ORDER BY e.nth, m.name
    LOOP
        BEGIN
            CASE one.type
                WHEN 'an integer' THEN
                    PERFORM CASE one.name WHEN 'batch' THEN (one.value #>> '{}')::bigint ELSE (one.value #>> '{}')::integer END;
                WHEN 'a time' THEN PERFORM (one.value #>> '{}')::timestamptz;
                WHEN 'an interval' THEN PERFORM (one.value #>> '{}')::interval;
                ELSE PERFORM i.value::bigint FROM jsonb_array_elements_text(nullif(one.value, 'null')) AS i (value);
            END CASE;
        EXCEPTION WHEN data_exception THEN
            PERFORM queue_internal.raise_wrong_member(one.nth, one.name, one.type);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.raise_inconvertible IS 'Raises 22023 for the first member that cannot be converted to its type.';
-- queue.create_batch
--
--   Waits:    as queue.push
--   Touches:  queue.tasks, queue_internal.batches (inserts)

CREATE FUNCTION queue.create_batch(
    queue        text,
    payload      jsonb       DEFAULT '{}',
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    after        bigint[]    DEFAULT NULL,
    backoff      jsonb       DEFAULT NULL,
    key_ttl      interval    DEFAULT NULL,
    on_predecessor_failure text DEFAULT NULL,
    key_ttl_from text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1,
    batch        bigint      DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues;
    live bigint[];
    task record;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight, batch);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    source := queue_internal.open_queue(queue, 'producer');
    IF after <> '{}' OR batch IS NOT NULL THEN
        live := queue_internal.lock_before_push(ARRAY[queue], ARRAY[key], on_duplicate, array_remove(after || batch, NULL));
        PERFORM queue_internal.lock_batches(ARRAY[batch]);
        PERFORM queue_internal.check_no_cycle(batch, after);
    END IF;
    SELECT p.id, p.pushed INTO task FROM queue_internal.push_linked(
        queue, payload, priority, coalesce(run_at, clock_timestamp() + coalesce(delay, '0')), key, on_duplicate,
        group_key, max_attempts, headers, after, backoff, queue_internal.stored_ttl(key_ttl, key_ttl_from),
        on_predecessor_failure, live, kind, lease, timeout, queue_internal.start_deadline(source, start_by, ttl), weight,
        is_callback => true) AS p;
    IF task.pushed THEN
        INSERT INTO queue_internal.batches (task_id, is_after) VALUES (task.id, coalesce(after <> '{}', false));
        IF batch IS NOT NULL THEN
            PERFORM queue_internal.join_batch(batch, ARRAY[task.id]);
        END IF;
    END IF;
    RETURN task.id;
END
$$;
COMMENT ON FUNCTION queue.create_batch IS
'Creates a batch and returns its id. The arguments describe its callback: a task that waits until the batch is sealed and
all tasks of the batch have ended. Its headers then have a member batch that counts them, such as {"batch":
{"completed": 98, "failed": 1, "cancelled": 1}}. The id of the batch is the id of the callback. If the key is taken,
returns the id of the task that has it, as queue.push does. Needs the producer''s right on the queue.

- queue: name of the queue of the callback. The tasks of the batch may be in any queues.
- payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl,
  on_predecessor_failure, key_ttl_from, kind, lease, timeout, start_by, ttl, weight: as in queue.push, for the callback.
  A start deadline also ends a callback that still waits for the batch.
- batch: another batch, to which the callback is added as a task. Null means none.

Errors: as queue.push.';
-- queue.seal_batch
--
--   Waits:    for transactions that push into the batch
--   Touches:  queue_internal.batches (updates), queue_internal.events (inserts)

CREATE FUNCTION queue.seal_batch(batch bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source  text;
    at      timestamptz;
    total   bigint;
BEGIN
    IF batch IS NULL THEN
        PERFORM queue_internal.raise_null('batch');
    END IF;
    PERFORM queue_internal.check_batch(batch);
    -- The callback, too, as in a push: a call that cancels it comes before or after.
    SELECT t.queue INTO source FROM queue.tasks AS t
    WHERE t.id = batch AND t.state = 'waiting' AND queue_internal.has_right('producer', t.queue) FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_batch(batch);
    END IF;
    SELECT b.sealed_at INTO at FROM queue_internal.batches AS b WHERE b.task_id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_batch(batch);
    ELSIF at IS NOT NULL THEN
        RETURN;
    END IF;
    -- A new snapshot: the pushes that came first.
    SELECT count(*) INTO total FROM queue_internal.dependencies AS d
    WHERE d.task_id = batch AND d.on_failure = 'batch';
    UPDATE queue_internal.batches AS b SET sealed_at = clock_timestamp(), members = total
    WHERE b.task_id = batch;
    INSERT INTO queue_internal.events (queue, task_id) VALUES (source, batch);
END
$$;
COMMENT ON FUNCTION queue.seal_batch IS
'Seals a batch: no more tasks can be pushed into it, and its callback is queued once all of its tasks have ended. Waits
for transactions that are pushing into it. Does nothing if the batch is sealed already. Needs the producer''s right on
the queue of the batch.

- batch: the batch, as returned by queue.create_batch.

Errors: QX007: the batch does not exist, its callback has been queued or cancelled already, or the caller has no right on
its queue. 22004 or 22023: the argument is null or invalid.';
-- queue.publish
--
--   Promise:  all of the tasks or none
--   Waits:    with a key, for transactions that push the same key to one of the queues or work on the task that has it;
--             at most one second for each
--   Touches:  queue.bindings (reads), queue.tasks (inserts)

CREATE FUNCTION queue.publish(
    topic        text,
    payload      jsonb       DEFAULT '{}',
    priority     integer     DEFAULT 0,
    run_at       timestamptz DEFAULT NULL,
    delay        interval    DEFAULT NULL,
    key          text        DEFAULT NULL,
    on_duplicate text        DEFAULT 'skip',
    group_key    text        DEFAULT NULL,
    max_attempts integer     DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    kind         text        DEFAULT NULL,
    lease        interval    DEFAULT NULL,
    timeout      interval    DEFAULT NULL,
    start_by     timestamptz DEFAULT NULL,
    ttl          interval    DEFAULT NULL,
    weight       integer     DEFAULT 1)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    targets text[];
    target  text;
BEGIN
    PERFORM queue_internal.check_topic('topic', topic, false);
    PERFORM queue_internal.check_task_options(
        'default', priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers,
        after => NULL, backoff => NULL, key_ttl => NULL, on_predecessor_failure => NULL,
        kind => kind, lease => lease, timeout => timeout, start_by => start_by, ttl => ttl);
    PERFORM queue_internal.check_weight(NULL, group_key, weight);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    headers := coalesce(headers, '{}') || jsonb_build_object('topic', topic);
    targets := '{}';
    FOR target IN SELECT DISTINCT b.queue FROM queue.bindings AS b ORDER BY b.queue LOOP
        -- Patterns of queues that the caller may not push to cost the caller nothing.
        CONTINUE WHEN NOT queue_internal.has_right('producer', target)
            OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = target);
        -- The text before the first wildcard excludes most patterns. Compiling a regular expression takes far longer.
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM queue.bindings AS b
            WHERE b.queue = target
              AND CASE WHEN starts_with(topic || '.', split_part(split_part(b.topic_pattern, '#', 1), '*', 1))
                       THEN ('.' || topic) ~ b.topic_regex END);
        targets := targets || target;
    END LOOP;
    IF key IS NOT NULL THEN
        RETURN QUERY SELECT * FROM queue_internal.publish_key(
            targets, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, kind, lease,
            timeout, start_by, ttl, weight);
        RETURN;
    END IF;
    FOREACH target IN ARRAY targets LOOP
        RETURN NEXT queue.push(
            queue => target, payload => payload, priority => priority, run_at => run_at, delay => delay,
            group_key => group_key, max_attempts => max_attempts, headers => headers, kind => kind, lease => lease,
            timeout => timeout, start_by => start_by, ttl => ttl,
            weight => queue_internal.possible_weight(target, group_key, weight));
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.publish IS
'Pushes one task to each queue with a binding that matches the topic, in the order of the queues'' names, and returns
what the pushes return: all of them or none. Returns no rows if no binding matches. Reaches only queues on which the
caller has the producer''s right.

- topic: words of letters, digits, _ and -, separated by dots; at most 255 bytes. Added to the headers as "topic".
- payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, kind, lease, timeout,
  start_by, ttl, weight: as in queue.push, the same for each queue. In a queue whose limit is smaller than weight, the
  task uses up the whole limit.

Errors: 55P03: another transaction held the key in one of the queues for more than a second. QX004: the key is taken and
on_duplicate is error. QX006: one of the queues is full. 22004, 22023 or 54000: an argument is null, invalid or too
large.';

-- With a lock_timeout, so that a transaction that holds the key in one queue does not hold up publishers for the
-- others.
CREATE FUNCTION queue_internal.publish_key(
    targets text[], payload jsonb, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, kind text, lease interval, timeout interval,
    start_by timestamptz, ttl interval, weight integer)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    target text;
BEGIN
    PERFORM queue_internal.lock_before_push(
        targets, array_fill(key, ARRAY[cardinality(targets)]), on_duplicate, '{}');
    FOREACH target IN ARRAY targets LOOP
        RETURN NEXT queue.push(
            queue => target, payload => payload, priority => priority, run_at => run_at, delay => delay,
            key => key, on_duplicate => on_duplicate, group_key => group_key, max_attempts => max_attempts,
            headers => headers, kind => kind, lease => lease, timeout => timeout, start_by => start_by, ttl => ttl,
            weight => queue_internal.possible_weight(target, group_key, weight));
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'another transaction holds this key%', coalesce(format(' in queue "%s"', target), '')
        USING ERRCODE = 'lock_not_available',
              DETAIL = 'It has pushed the same key or works on the task that has it, and did not end within a second.',
              HINT = 'Nothing was published. Try again when that transaction has ended.';
END
$$;
COMMENT ON FUNCTION queue_internal.publish_key IS
    'Pushes a task with a key to each of the queues; raises if it would have to wait for more than a second.';
-- queue.claim
--
--   Promise:  at most one valid lease per task, by the server's clock. The token grows with every claim
--   Order:    priority, then run_at, then id
--   Waits:    never
--   Touches:  queue.tasks (reads, locks with SKIP LOCKED, updates)
--   Index:    tasks_order
--   How:      if the queue has no policies, one statement claims the first tasks of its first priority together. It
--             claims none if an expired task, one with a lease, a timeout or a start deadline of its own, or one of a group
--             that was not admitted or has more rules is among them. What it leaves out claim_from claims, only slower.
--   Why the planner settings: as in claim_from
--   Why an array of ids, and a materialized batch: a join whose plan was made when there was one task would compare each
--             task with each one claimed, and add up the batch for each
--   Why one statement: to start another costs more than what it would do

CREATE FUNCTION queue.claim(
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    max_tasks integer  DEFAULT 1,
    worker    text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    begun   CONSTANT timestamptz := clock_timestamp();
    entries CONSTANT bigint := queue_internal.entries_passed();
    scan_from queue_internal.scan_start := queue_internal.default_scan_start();
    source  queue.queues;
    found   bigint := 0;
BEGIN
    -- Calling a check costs more than these conditions.
    IF max_tasks IS NULL OR max_tasks NOT BETWEEN 1 AND 100000 OR worker IS NOT NULL THEN
        PERFORM queue_internal.check_claim(max_tasks, worker);
    END IF;
    IF date_part('epoch', lease) BETWEEN 1 AND 60 THEN
        lease := make_interval(secs => date_part('epoch', lease));
    ELSIF lease IS NOT NULL THEN
        lease := queue_internal.checked_lease(lease, NULL);
    END IF;
    IF queue_internal.buckets() = 1 THEN
        IF current_setting('queue_scan_start.any', true) = 'true' THEN
            scan_from := queue_internal.get_scan_start(queue);
        END IF;
        RETURN QUERY
            WITH source AS MATERIALIZED (
                SELECT coalesce(claim.lease, queue_internal.checked_lease(NULL, q.lease)) AS lease, q.max_attempts,
                       NOT q.fair_groups AND q.group_rate_limit IS NULL AS plain_groups, f.level, f.head,
                       CASE WHEN f.head <= begun THEN queue_internal.token_base(
                           coalesce(q.durable_leases, current_setting('queue.durable_leases', true)) IS DISTINCT FROM 'off')
                       END AS base
                FROM queue.queues AS q
                CROSS JOIN LATERAL queue_internal.first_task(0, q.name, scan_from.level, scan_from.head, false) AS f
                WHERE q.name = claim.queue AND q.paused_at IS NULL AND q.max_running IS NULL AND q.rate_limit IS NULL
                  AND q.ageing IS NULL AND q.timeout IS NULL
                  AND NOT EXISTS (
                      SELECT FROM queue_internal.events AS e
                      WHERE e.queue = claim.queue AND (e.due_at, e.id) > ('-infinity', scan_from.event)
                        AND e.due_at <= begun)
                  AND queue_internal.has_right('worker', q.name)
            ), due AS MATERIALIZED (
                SELECT t.id,
                       -- Not before the task before it in its group has ended.
                       CASE WHEN t.group_key IS NULL THEN begun ELSE clock_timestamp() END AS started,
                       t.state = 'queued' AND num_nonnulls(t.lease, t.timeout, t.start_by) = 0
                       AND (t.group_key IS NULL OR t.admission = 1 AND (SELECT s.plain_groups FROM source AS s))
                       -- Larger ones are not covered by the mark, or there are no more: see claim_from.
                       AND t.token < least((SELECT s.base FROM source AS s) + 999999, 9007199254740991) AS plain
                FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, 0) AND t.queue = claim.queue
                  AND t.priority = (SELECT s.level FROM source AS s) AND t.admission < 2
                  AND t.run_at >= (SELECT s.head FROM source AS s) AND t.run_at <= begun
                  AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= begun)
                ORDER BY t.run_at, t.id LIMIT claim.max_tasks FOR NO KEY UPDATE OF t SKIP LOCKED
            ), batch AS MATERIALIZED (
                SELECT array_agg(d.id) AS ids, max(d.started) AS started, bool_and(d.plain) AS plain FROM due AS d
            ), claimed AS (
                UPDATE queue.tasks AS t
                SET state = 'running', attempt = t.attempt + 1, token = greatest(t.token + 1, s.base),
                    lease_until = b.started + s.lease, worker = claim.worker, claimed_at = b.started, updated_at = b.started
                FROM source AS s, batch AS b
                WHERE t.id = ANY ((SELECT d.ids FROM batch AS d)::bigint[]) AND b.plain
                RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt, coalesce(t.max_attempts, s.max_attempts),
                          t.priority, t.key, t.group_key, t.progress, t.run_at, t.created_at, t.lease_until, t.kind
            )
            SELECT c.* FROM claimed AS c ORDER BY c.run_at, c.id;
        GET DIAGNOSTICS found = ROW_COUNT;
        -- Many dead entries, or running tasks, before the first one that it claimed. If it has claimed none, claim_from moves
        -- the scan start.
        IF found > 0 AND queue_internal.entries_passed() > entries + 1000 + found THEN
            PERFORM queue_internal.move_scan_start(queue, scan_from, begun);
        END IF;
    END IF;
    IF found < max_tasks THEN
        source := queue_internal.open_queue(queue, 'worker');
        IF source.paused_at IS NULL THEN
            RETURN QUERY SELECT * FROM queue_internal.claim_from(
                source, lease, max_tasks - found::integer, worker, begun);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text, integer, text) IS
'Claims up to max_tasks due tasks: leases them to the caller and returns each with the token of its lease, by priority,
then run_at, then id. Returns no rows if no task can be claimed or the queue is paused. Never waits. Needs the
worker''s right on the queue.

- lease: how long the caller has the tasks unless it extends the lease; more than 0, at most queue.max_lease. Null
  (default) means the task''s own lease, or else the queue''s option. A task with a timeout is leased no longer than
  that.
- queue: name of the queue. Default "default".
- max_tasks: largest number of tasks to claim, 1 to 100000. Default 1.
- worker: name of the worker, 1 to 128 bytes, shown in queue.workers and in errors of the task. Null means none.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 40001: at REPEATABLE READ
or SERIALIZABLE, another transaction changed a task since the snapshot: retry. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- The same for several queues.
CREATE FUNCTION queue.claim(
    lease     interval,
    queues    text[],
    max_tasks integer DEFAULT 1,
    worker    text    DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    sources queue.queues[] := '{}';
    names   text[] := '{}';
    name    text;
    found   bigint;
BEGIN
    PERFORM queue_internal.check_array('queues', queues);
    IF queues = '{}' THEN
        PERFORM queue_internal.raise_invalid('queues', 'must not be empty');
    END IF;
    PERFORM queue_internal.check_claim(max_tasks, worker);
    lease := queue_internal.checked_lease(lease, NULL);
    FOREACH name IN ARRAY queues LOOP
        PERFORM queue_internal.check_name('queues', name);
        -- What a call claims does not expire before it has returned.
        CONTINUE WHEN name = ANY (names);
        names := names || name;
        sources := sources || queue_internal.open_queue(name, 'worker');
    END LOOP;
    FOREACH source IN ARRAY sources LOOP
        IF source.paused_at IS NULL AND max_tasks > 0 THEN
            RETURN QUERY SELECT * FROM queue.claim(lease, source.name, max_tasks, worker);
            GET DIAGNOSTICS found = ROW_COUNT;
            max_tasks := max_tasks - found;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text[], integer, text) IS
'Claims up to max_tasks due tasks from several queues, in the order given: from the second queue only what the first
one does not have. Needs the worker''s right on each of the queues.

- lease: as above.
- queues: names of the queues, at least one. Paused queues are skipped, and a name counts once.
- max_tasks: largest number of tasks to claim from all queues together, 1 to 100000. Default 1.
- worker: name of the worker, 1 to 128 bytes. Null means none.

Errors: as for one queue.';

CREATE FUNCTION queue_internal.check_claim(max_tasks integer, worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF max_tasks IS NULL THEN
        PERFORM queue_internal.raise_null('max_tasks');
    ELSIF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    ELSIF max_tasks > 100000 THEN
        PERFORM queue_internal.raise_too_large('max_tasks', '100000', max_tasks::text);
    END IF;
    PERFORM queue_internal.check_worker(worker);
END
$$;
COMMENT ON FUNCTION queue_internal.check_claim IS 'Checks the arguments that both forms of claim have.';

CREATE FUNCTION queue_internal.check_worker(worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF worker IS NOT NULL THEN
        PERFORM queue_internal.check_name('worker', worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_worker IS 'Checks the name of a worker: 1 to 128 bytes; null passes.';
-- queue.complete
--
--   Promise:  at most one completion of a task is ever accepted. A stale token raises an error, so that the changes
--             that the caller made in the same transaction are rolled back as well
--   Waits:    for transactions that have pushed after the task, and for one that ends a task which was to replace it
--   Touches:  queue.tasks (deletes; of a group, admits the next task, and has it locked until the transaction ends),
--             queue.history (inserts)
--   How:      a plain task, which has no key, is moved in one statement, and the next one looks for its dependents: see
--             notify_dependents()

CREATE FUNCTION queue.complete(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
    done bigint;
    done_in    text;
    done_group text;
BEGIN
    WITH ended AS (
        DELETE FROM queue.tasks AS t
        WHERE t.id = complete.id AND t.token = complete.token AND t.state = 'running'
          AND t.key IS NULL
          AND (SELECT q.keep_history AND q.keep_payloads AND q.max_running IS NULL FROM queue.queues AS q WHERE q.name = t.queue)
          AND queue_internal.has_right('worker', t.queue)
        RETURNING t.*
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.kind, e.lease, e.timeout, e.start_by, e.weight, e.headers,
               e.payload, e.progress, e.errors, complete.result
        FROM ended AS e
    )
    SELECT e.id, e.queue, e.group_key INTO done, done_in, done_group FROM ended AS e;
    IF done IS NOT NULL THEN
        IF done_group IS NOT NULL THEN
            PERFORM queue_internal.hand_over(ARRAY[done_in], ARRAY[done_group]);
        END IF;
        IF EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = done) THEN
            PERFORM queue_internal.notify_dependents(ARRAY[done], 'completed');
        END IF;
        RETURN;
    END IF;
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = complete.id AND t.token = complete.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.check_lease_holder(id, token);
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    PERFORM queue_internal.archive(task, 'completed', result);
END
$$;
COMMENT ON FUNCTION queue.complete IS
'Completes a task and moves it to queue.history, or deletes it if its queue keeps no history. Needs the worker''s right
on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- result: any JSON value, kept in queue.history and returned by queue.get and queue.wait_result. Null (default) means
  none.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004 or 22023: an argument is null or invalid.';
-- queue.complete_many
--
--   Touches:  queue.tasks (locks the tasks that run with the token given, in the order of ids, so that two batches
--             cannot deadlock; deletes; of groups, admits the next tasks as queue.complete does), queue.history (inserts)
--   How:      if all tasks are plain (complete.sql), one statement locks and moves them, and if it has moved all of those
--             given, that is all. Otherwise one statement locks all that are left first; then the plain ones are moved
--             together, and the others one by one

CREATE FUNCTION queue.complete_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_nestloop = off
SET jit = off
AS $$
DECLARE
    -- Null means all queues. Checked once and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    locked  bigint;
    done    bigint[];
    positions  bigint[];
    plain   record;
    one     record;
    task    queue.tasks;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('results', results, cardinality(ids));
    SELECT p.done, p.positions INTO done, positions
    FROM queue_internal.complete_plain(ids, tokens, results, allowed, true) AS p;
    IF done IS NULL OR cardinality(done) < cardinality(ids) THEN
        PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
        WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
        ORDER BY t.id FOR UPDATE OF t;
        GET DIAGNOSTICS locked = ROW_COUNT;
        IF locked > 0 THEN
            SELECT * INTO plain FROM queue_internal.complete_plain(ids, tokens, results, allowed, false);
            done := done || plain.done;
            positions := positions || plain.positions;
            locked := locked - coalesce(cardinality(plain.done), 0);
        END IF;
        IF locked > 0 THEN
            FOR one IN
                SELECT DISTINCT ON (g.id, g.token) g.*
                FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
                     WITH ORDINALITY AS g (id, token, result, position)
                -- IS NOT TRUE keeps the planner from joining.
                WHERE (g.id IN (SELECT unnest(done))) IS NOT TRUE
                ORDER BY g.id, g.token, g.position
            LOOP
                SELECT t.* INTO task FROM queue.tasks AS t
                WHERE t.id = one.id AND t.token = one.token AND t.state = 'running'
                  AND (allowed IS NULL OR t.queue = ANY (allowed));
                CONTINUE WHEN NOT FOUND;
                PERFORM queue_internal.archive(task, 'completed', one.result);
                done := done || one.id;
                positions := positions || one.position;
            END LOOP;
        END IF;
    END IF;
    RETURN QUERY SELECT d.id FROM unnest(done, positions) AS d (id, position) ORDER BY d.position;
END
$$;
COMMENT ON FUNCTION queue.complete_many IS
'Completes many tasks and returns the ids of those that were accepted, in the order given. A task whose token is stale,
or on whose queue the caller has no worker''s right, is left out and does not affect the others. Empty arrays return no
rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- results: one JSON value for each task; an element may be null. Null (default) means no results.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- Finishes the plain tasks among those given; or none of them, if "all_of_them" is true and some are not plain.
--
--   Why the planner settings and "ids" beside the joins: statistics from when no task ran let the planner expect one such
--   task. It would then compare each task that runs with each one given. And only a merge join in the order of the ids
--   locks the tasks in this order: the token is not joined by "=", so that it cannot be merged by the token.
--   Why scalar subqueries: a join may read all queues, or all dependencies, to find a few.
CREATE FUNCTION queue_internal.complete_plain(
    ids bigint[], tokens bigint[], results jsonb[], allowed text[], all_of_them boolean,
    OUT done bigint[], OUT positions bigint[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_nestloop = off
SET enable_mergejoin = on
SET enable_sort = on
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    queues     text[];
    group_keys text[];
BEGIN
    WITH given AS MATERIALIZED (
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.result, g.position
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
             WITH ORDINALITY AS g (id, token, result, position)
        ORDER BY g.id, g.token, g.position
    ), found AS MATERIALIZED (
        SELECT t.id, t.token, g.result, g.position, t.key IS NULL AS plain,
               -- What the history keeps: 0 for nothing, 1 for all but the payload, 2 for all. Null if the queue has more to do.
               -- At another isolation level the snapshot may not show all dependents: then the history has to show how the
               -- task ended (archive).
               (SELECT CASE WHEN q.max_running IS NULL
                                 AND (q.keep_history OR current_setting('transaction_isolation') = 'read committed')
                            THEN q.keep_history::integer * (1 + q.keep_payloads::integer) END
                FROM queue.queues AS q WHERE q.name = t.queue) AS kept
        FROM given AS g JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token
        WHERE t.id = ANY (ids) AND t.state = 'running' AND (allowed IS NULL OR t.queue = ANY (allowed))
    ), ended AS (
        DELETE FROM queue.tasks AS t USING found AS f
        WHERE t.id = f.id AND t.token IS NOT DISTINCT FROM f.token AND t.id = ANY (ids) AND t.state = 'running'
          AND t.key IS NULL AND f.kept IS NOT NULL
          AND (NOT all_of_them OR (SELECT bool_and(o.plain AND o.kept IS NOT NULL) FROM found AS o))
        RETURNING t.*, f.result, f.position, f.kept
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, kind, lease, timeout, start_by, weight, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.kind, e.lease, e.timeout, e.start_by, e.weight, e.headers,
               CASE WHEN e.kept = 2 THEN e.payload END, e.progress, e.errors, e.result
        FROM ended AS e WHERE e.kept > 0
    )
    SELECT array_agg(e.id), array_agg(e.position),
           array_agg(e.queue) FILTER (WHERE e.group_key IS NOT NULL), array_agg(e.group_key) FILTER (WHERE e.group_key IS NOT NULL)
    INTO done, positions, queues, group_keys FROM ended AS e;
    IF queues IS NOT NULL THEN
        PERFORM queue_internal.hand_over(queues, group_keys);
    END IF;
    -- In a statement after the one that deleted the tasks: see notify_dependents().
    PERFORM queue_internal.notify_dependents(ARRAY[u.id], 'completed') FROM unnest(done) AS u (id)
    WHERE (SELECT d.task_id FROM queue_internal.dependencies AS d WHERE d.predecessor_id = u.id LIMIT 1) IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.complete_plain IS
    'Completes the tasks that have no key, in queues without max_running.';
-- queue.complete_and_claim: a worker's loop needs one transaction for each task instead of two.

CREATE FUNCTION queue.complete_and_claim(
    id        bigint,
    token     bigint,
    result    jsonb    DEFAULT NULL,
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    worker    text     DEFAULT NULL,
    max_tasks integer  DEFAULT 1)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue.complete(id, token, result);
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text, integer) IS
'Completes a task and claims the next one in the same transaction: both or neither. Returns no rows if there is no next
task. Needs the worker''s right on both queues.

- id, token, result: as in queue.complete.
- lease, queue, worker, max_tasks: as in queue.claim, for the next tasks. Default of max_tasks: 1.

Errors: as queue.complete and queue.claim.';

-- The same for several queues.
CREATE FUNCTION queue.complete_and_claim(
    id        bigint,
    token     bigint,
    result    jsonb,
    lease     interval,
    queues    text[],
    worker    text     DEFAULT NULL,
    max_tasks integer  DEFAULT 1)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue.complete(id, token, result);
    RETURN QUERY SELECT * FROM queue.claim(lease, queues, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text[], text, integer) IS
'Completes a task and claims the next one from several queues, in the order given, in the same transaction: both or
neither. Needs the worker''s right on the queue of the task and on each of the queues.

- id, token, result: as in queue.complete. Null as result means none.
- lease, queues, worker, max_tasks: as in queue.claim for several queues. Null as lease means each task''s own lease,
  or else the option lease of its queue. Default of max_tasks: 1.

Errors: as queue.complete and queue.claim.';
-- queue.complete_many_and_claim: a worker that claims several tasks at a time needs one transaction for each round instead
-- of two.

CREATE FUNCTION queue.complete_many_and_claim(
    ids       bigint[],
    tokens    bigint[],
    results   jsonb[]  DEFAULT NULL,
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    max_tasks integer  DEFAULT 1,
    worker    text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM queue.complete_many(ids, tokens, results);
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, max_tasks, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_many_and_claim IS
'Completes many tasks, as queue.complete_many, and claims the next ones in the same transaction, as queue.claim. A task
whose token is stale, or on whose queue the caller has no worker''s right, is left out and does not affect the others;
call queue.complete_many to learn which ones. Returns the claimed tasks. Needs the worker''s right on the queue.

- ids, tokens, results: as in queue.complete_many. With empty arrays it only claims.
- lease, queue, max_tasks, worker: as in queue.claim, for the next tasks.

Errors: as queue.complete_many and queue.claim.';
-- queue.fail
--
--   Waits:    for transactions that have pushed after the task, if it ends with this attempt or has a key, and then for one
--             that ends a task which was to replace it
--   Touches:  queue.tasks (updates or deletes; at the end of a task of a group also admits the next one, and has it locked until
--             the transaction ends), queue.dead_letters or queue.history (inserts)

CREATE FUNCTION queue.fail(
    id        bigint,
    token     bigint,
    error     text,
    retry_in  interval DEFAULT NULL,
    permanent boolean  DEFAULT false,
    details   jsonb    DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM queue_internal.check_error('error', error, details);
    PERFORM queue_internal.check_retry(retry_in, permanent);
    RETURN queue_internal.end_attempt(
        queue_internal.leased_task(id, token, queue_internal.may_be_last(id, token, permanent)),
        error, retry_in, permanent, details => details);
END
$$;
COMMENT ON FUNCTION queue.fail IS
'Reports that an attempt failed, and returns the new state of the task: queued, failed or cancelled. The task is
requeued after its backoff, or moves to the dead letters if this was its last attempt. If its cancellation was
requested, it is cancelled instead; so is a task that was replaced and has attempts left. Needs the worker''s right on
the queue.

- id, token: the task and the token of its lease, as claim returned them.
- error: what went wrong, 1 byte to 1 MB; added to the task''s errors. Of an error with more than 65536 characters, the
  beginning is kept, and a note of its length.
- retry_in: the delay before the next attempt, at most 100 years. Null (default) means the backoff.
- permanent: true moves the task to the dead letters at once. Cannot be combined with retry_in. Default false.
- details: any JSON value of at most 64 kB, such as the status and the body of a response; stored with the error. Null
  (default) means none.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';

CREATE FUNCTION queue_internal.check_error(argument text, error text, details jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF error IS NULL THEN
        PERFORM queue_internal.raise_null(argument);
    ELSIF error = '' THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be empty');
    ELSIF octet_length(error) > 1048576 THEN
        PERFORM queue_internal.raise_too_large(argument, '1048576 bytes', octet_length(error) || ' bytes');
    ELSIF octet_length(details::text) > 65536 THEN
        PERFORM queue_internal.raise_too_large('details', '65536 bytes', octet_length(details::text) || ' bytes');
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_error IS 'Checks the error of an attempt, and its details, which may be null.';

CREATE FUNCTION queue_internal.check_retry(retry_in interval, permanent boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_delay('retry_in', retry_in);
    IF permanent IS NULL THEN
        PERFORM queue_internal.raise_null('permanent');
    ELSIF permanent AND retry_in IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('retry_in', 'cannot be combined with "permanent"', retry_in::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_retry IS 'Checks when an attempt that failed is to be retried.';

-- Read before the task is locked, to lock it as strongly as needed.
CREATE FUNCTION queue_internal.may_be_last(id bigint, token bigint, permanent boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN permanent OR (
        SELECT t.attempt >= coalesce(t.max_attempts, q.max_attempts)
        FROM queue.tasks AS t LEFT JOIN queue.queues AS q ON q.name = t.queue
        WHERE t.id = may_be_last.id AND t.token = may_be_last.token) IS NOT FALSE;
END
$$;
COMMENT ON FUNCTION queue_internal.may_be_last IS 'Returns whether a task may end if its attempt fails.';
-- queue.fail_many
--
--   Waits:    as queue.fail
--   Touches:  as queue.fail. Locks the tasks that run with the token given, in the order of ids, before it ends the first
--             one, so that two batches cannot deadlock

CREATE FUNCTION queue.fail_many(
    ids       bigint[],
    tokens    bigint[],
    errors    text[],
    retry_in  interval DEFAULT NULL,
    permanent boolean  DEFAULT false,
    details   jsonb[]  DEFAULT NULL)
RETURNS TABLE (id bigint, state text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failed    bigint[];
    states    text[];
    positions bigint[];
    one       record;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_array('errors', errors);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('errors', errors, cardinality(ids));
    PERFORM queue_internal.check_same_length('details', details, cardinality(ids));
    PERFORM queue_internal.check_error('errors', g.error, g.details)
    FROM ROWS FROM (unnest(errors), unnest(details)) AS g (error, details);
    PERFORM queue_internal.check_retry(retry_in, permanent);
    FOR one IN
        SELECT l.id, l.token, l.nth, g.error, g.details
        FROM queue_internal.lock_leases(ids, tokens, permanent) AS l
        JOIN ROWS FROM (unnest(errors), unnest(details)) WITH ORDINALITY AS g (error, details, nth) ON g.nth = l.nth
        ORDER BY l.id
    LOOP
        failed := failed || one.id;
        states := states || queue.fail(one.id, one.token, one.error, retry_in, permanent, one.details);
        positions := positions || one.nth;
    END LOOP;
    RETURN QUERY SELECT d.id, d.state FROM unnest(failed, states, positions) AS d (id, state, nth) ORDER BY d.nth;
END
$$;
COMMENT ON FUNCTION queue.fail_many IS
'Reports that the attempts of many tasks failed, as queue.fail. Returns the id and the new state of each task that was
accepted, in the order given. A task whose token is stale, or on whose queue the caller has no worker''s right, is left
out and does not affect the others. Empty arrays return no rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- errors: what went wrong with each task, 1 byte to 1 MB.
- retry_in: the delay before the next attempt, the same for all, at most 100 years. Null (default) means the backoff.
- permanent: true moves the tasks to the dead letters at once. Cannot be combined with retry_in. Default false.
- details: one JSON value for each task, stored with its error; an element may be null. At most 64 kB each. Null
  (default) means none.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.release
--
--   Waits:    for transactions that have pushed after the task, if its cancellation was requested or it has a key
--   Touches:  queue.tasks (updates), or as queue.complete if the task is cancelled

CREATE FUNCTION queue.release(id bigint, token bigint, delay interval DEFAULT '0') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task queue.tasks;
BEGIN
    IF delay IS NULL THEN
        PERFORM queue_internal.raise_null('delay');
    END IF;
    PERFORM queue_internal.check_delay('delay', delay);
    task := queue_internal.leased_task(id, token, false);
    PERFORM queue_internal.suspend(
        task, CASE WHEN extract(epoch FROM delay) > 0 THEN clock_timestamp() + delay ELSE task.run_at END);
END
$$;
COMMENT ON FUNCTION queue.release IS
'Gives a task back without counting the attempt. If its cancellation was requested, or it was replaced, it is cancelled
instead. If its timeout has passed, the attempt counts: it has failed with the error "timed out". Needs the worker''s
right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- delay: how long until the task can be claimed again, at most 100 years. With 0 (default) it keeps its place in the
  queue.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.release_many
--
--   Waits:    as queue.release
--   Touches:  as queue.release. Locks the tasks that run with the token given, in the order of ids, before it gives back
--             the first one, so that two batches cannot deadlock

CREATE FUNCTION queue.release_many(ids bigint[], tokens bigint[], delay interval DEFAULT '0') RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    released  bigint[];
    positions bigint[];
    one       record;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    IF delay IS NULL THEN
        PERFORM queue_internal.raise_null('delay');
    END IF;
    PERFORM queue_internal.check_delay('delay', delay);
    FOR one IN SELECT l.* FROM queue_internal.lock_leases(ids, tokens, NULL) AS l ORDER BY l.id LOOP
        PERFORM queue.release(one.id, one.token, delay);
        released := released || one.id;
        positions := positions || one.nth;
    END LOOP;
    RETURN QUERY SELECT d.id FROM unnest(released, positions) AS d (id, nth) ORDER BY d.nth;
END
$$;
COMMENT ON FUNCTION queue.release_many IS
'Gives many tasks back without counting their attempts, as queue.release, and returns the ids of those that were
accepted, in the order given. A task whose token is stale, or on whose queue the caller has no worker''s right, is left
out and does not affect the others. Empty arrays return no rows.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- delay: how long until the tasks can be claimed again, at most 100 years. With 0 (default) they keep their places in the
  queue.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.extend_many
--
--   Touches:  queue.tasks (HOT updates). Locks the tasks that run with the token given, in the order of ids: a worker
--             that has lost a lease does not wait for the new holder. With skip_locked it waits for nobody

CREATE FUNCTION queue.extend_many(
    ids      bigint[],
    tokens   bigint[],
    lease    interval DEFAULT NULL,
    progress jsonb[]  DEFAULT NULL,
    skip_locked boolean DEFAULT false)
RETURNS TABLE (id bigint, lease_until timestamptz, cancel_requested boolean, extended boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_nestloop = off
SET jit = off
AS $$
DECLARE
    -- Null means all queues. Checked once and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    all_ids    CONSTANT bigint[] := ids;
    all_tokens CONSTANT bigint[] := tokens;
    moment  timestamptz;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('progress', progress, cardinality(ids));
    lease := queue_internal.checked_lease(lease, NULL);
    IF skip_locked IS NULL THEN
        PERFORM queue_internal.raise_null('skip_locked');
    END IF;
    -- What is locked now is all that is extended.
    IF skip_locked THEN
        SELECT array_agg(l.id), array_agg(l.token), CASE WHEN extend_many.progress IS NOT NULL THEN array_agg(l.progress) END
        INTO ids, tokens, progress
        FROM (
            SELECT t.id, t.token, g.progress
            FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
            JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
            WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
            ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
        ) AS l;
    ELSE
        PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
        WHERE t.id = ANY (ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
        ORDER BY t.id FOR NO KEY UPDATE OF t;
    END IF;
    moment := clock_timestamp();
    FOR id, lease_until, cancel_requested, extended IN
        UPDATE queue.tasks AS t
        SET lease_until = least(
                moment + coalesce(extend_many.lease, queue_internal.checked_lease(NULL, coalesce(
                    t.lease, (SELECT q.lease FROM queue.queues AS q WHERE q.name = t.queue)))),
                queue_internal.timeout_at(t.claimed_at, coalesce(
                    t.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = t.queue)))),
            progress = coalesce(g.progress, t.progress), updated_at = moment
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running' AND t.id = ANY (ids)
          AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND coalesce(queue_internal.timeout_at(t.claimed_at, coalesce(
              t.timeout, (SELECT q.timeout FROM queue.queues AS q WHERE q.name = t.queue))) > moment, true)
        RETURNING t.id, t.lease_until, t.cancel_requested_at IS NOT NULL, true
    LOOP
        RETURN NEXT;
    END LOOP;
    IF skip_locked THEN
        RETURN QUERY
        SELECT t.id, t.lease_until, t.cancel_requested_at IS NOT NULL, false
        FROM ROWS FROM (unnest(all_ids), unnest(all_tokens)) AS g (id, token)
        JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
        WHERE t.id = ANY (all_ids) AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND NOT EXISTS (SELECT FROM unnest(ids) AS l (id) WHERE l.id = t.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.extend_many IS
'Extends many leases, as queue.extend. Returns a row for each task whose token is current and whose attempt has not
timed out; the others are left out and not changed. Empty arrays return no rows. extended: whether the lease was
extended; false only with skip_locked.

- ids, tokens: the tasks and the tokens of their leases, as claim returned them. Arrays of the same length, at most
  100000.
- lease: how long from now, the same for all. Null (default) means each task''s own lease, or else the option of
  its queue.
- progress: one JSON value for each task; a null element leaves the progress unchanged. Null (default) leaves all
  unchanged.
- skip_locked: for the heartbeat of many handlers. True leaves a task unchanged that another transaction has locked, for
  example one in which its handler completes it, and returns it with the lease_until that it has; progress is not
  stored. False (default) waits for that transaction, and so do the heartbeats of all other tasks.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.extend
--
--   Touches:  queue.tasks (a HOT update)

CREATE FUNCTION queue.extend(
    id       bigint,
    token    bigint,
    lease    interval DEFAULT NULL,
    progress jsonb    DEFAULT NULL)
RETURNS TABLE (lease_until timestamptz, cancel_requested boolean)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM queue_internal.checked_lease(lease, NULL);
    SELECT e.lease_until, e.cancel_requested INTO lease_until, cancel_requested
    FROM queue.extend_many(ARRAY[id], ARRAY[token], lease,
                           CASE WHEN progress IS NOT NULL THEN ARRAY[progress] END) AS e;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION queue.extend IS
'The heartbeat of a worker: the lease starts again from now. Returns lease_until, when it will expire, and
cancel_requested, whether the worker should stop and call queue.confirm_cancel. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- lease: how long from now; more than 0, at most queue.max_lease. Null (default) means the task''s own lease, or else
  the queue''s option. The lease of a task with a timeout ends no later than that.
- progress: any JSON value, shown by queue.get and passed to the next attempt. Null (default) leaves it unchanged.

Errors: QX001: the lease is no longer held, or the attempt has timed out. QX003: the task does not exist, or the caller
has no right on its queue. 22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.assert_lease
--
--   Promise:  nobody else gets the task before the transaction ends, also if the lease expires meanwhile
--   Waits:    for a transaction that is working on the task
--   Touches:  queue.tasks (locks). With the lock of an update and not a weaker one, because two transactions that both
--             asserted the lease and then completed the task would deadlock

CREATE FUNCTION queue.assert_lease(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM FROM queue.tasks AS t
    WHERE t.id = assert_lease.id AND t.token = assert_lease.token AND t.state = 'running'
      AND queue_internal.has_right('worker', t.queue)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_lease_lost(id, token);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.assert_lease IS
'Raises an error unless the lease is current, and keeps it current until the transaction ends: the task is not requeued
and not claimed by another worker, also if the lease expires meanwhile. Call it first in each transaction in which a
worker writes and does not complete the task. A lease that has expired is current until another session requeues the
task, as for queue.complete. Other calls for the task, such as a heartbeat from another connection, wait until the
transaction ends. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004 or 22023: an argument is null or invalid.';
-- queue.confirm_cancel
--
--   Waits:    as queue.complete
--   Touches:  queue.tasks (deletes), queue.history (inserts)

CREATE FUNCTION queue.confirm_cancel(id bigint, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task queue.tasks := queue_internal.leased_task(id, token, true);
BEGIN
    IF task.cancel_requested_at IS NULL THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'worker', 'was not asked to be cancelled',
            'Give it back with queue.release(), or report it with queue.fail().');
    END IF;
    PERFORM queue_internal.cancel_now(task);
END
$$;
COMMENT ON FUNCTION queue.confirm_cancel IS
'Confirms that the worker stopped because queue.cancel was called: the task is cancelled. Needs the worker''s right on
the queue.

- id, token: the task and the token of its lease, as claim returned them.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
QX005: its cancellation was not requested. 22004 or 22023: an argument is null or invalid.';
-- queue.step
--
--   Promise:  the first value that is stored under a name stays, whichever attempt stores it
--   Waits:    for a transaction that is working on the task
--   Touches:  queue_internal.steps (inserts), queue.tasks (locks, as queue.assert_lease)

CREATE FUNCTION queue.step(id bigint, token bigint, name text, value jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    earlier record;
BEGIN
    PERFORM queue_internal.check_step('name', name);
    IF value IS NULL THEN
        PERFORM queue_internal.raise_null('value');
    END IF;
    PERFORM queue.assert_lease(id, token);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'step', name) AS s;
    IF earlier.stored THEN
        RETURN earlier.value;
    END IF;
    PERFORM queue_internal.store_step(id, 'step', name, value);
    RETURN value;
END
$$;
COMMENT ON FUNCTION queue.step IS
'Stores the result of a step of a running task, and returns what is stored under that name. The first value stays: a later
call, also of a later attempt, changes nothing and returns it. Call it in the transaction that makes the changes of the
step: then these are made exactly once. The lease stays current until the transaction ends, as with queue.assert_lease.
Steps are kept as long as the task: while it is live, a dead letter or in the history. Needs the worker''s right on the
queue.

- id, token: the task and the token of its lease, as claim returned them.
- name: the name of the step in this task, 1 to 512 bytes.
- value: any JSON value. Pass the JSON null for a step without a result.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.steps
--
--   Touches:  queue_internal.steps, queue_internal.awaits (reads)

CREATE FUNCTION queue.steps(id bigint)
RETURNS TABLE (name text, value jsonb, stored_at timestamptz, kind text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF queue_internal.state_of(id, 'worker') IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN QUERY
    SELECT s.name, s.value, s.stored_at, s.kind FROM queue_internal.steps AS s
    WHERE s.task_id = steps.id ORDER BY s.number;
    RETURN QUERY
    SELECT coalesce(a.event, a.predecessor_id::text), NULL::jsonb, NULL::timestamptz,
           CASE WHEN a.event IS NOT NULL THEN 'event' ELSE 'task' END
    FROM queue_internal.awaits AS a JOIN queue.tasks AS t ON t.id = a.task_id AND t.token = a.token
    WHERE a.task_id = steps.id;
END
$$;
COMMENT ON FUNCTION queue.steps IS
'Returns the steps of a task in the order in which they were stored, wherever the task is: the name, the value, stored_at,
and the kind. The kind is step for queue.step; sleep for a queue.sleep with a name, whose value is the time; event and
task for what queue.await_event and queue.await_task have returned, whose value is null if that timed out. A last row
without stored_at is what the task waits for now. Needs the worker''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 22004 or 22023: the argument is null or
invalid.';
-- queue.sleep
--
--   Waits:    as queue.release
--   Touches:  queue.tasks (updates), queue_internal.steps (inserts)

CREATE FUNCTION queue.sleep(id bigint, token bigint, until timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task queue.tasks;
BEGIN
    IF until IS NULL THEN
        PERFORM queue_internal.raise_null('until');
    ELSIF NOT isfinite(until) THEN
        PERFORM queue_internal.raise_invalid('until', 'must be finite', until::text);
    END IF;
    task := queue_internal.leased_task(id, token, false);
    IF until <= clock_timestamp() THEN
        RETURN true;
    END IF;
    PERFORM queue_internal.suspend(task, until);
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue.sleep(bigint, bigint, timestamptz) IS
'Suspends a running task until a time: returns false, the lease has ended, and the attempt does not count. At that time
the task can be claimed again, and the same call returns true. If the cancellation of the task was requested, or it was
replaced, it is cancelled instead. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- until: the time. If it has passed, the call returns true and does nothing.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004 or 22023: an argument is null or invalid.';

CREATE FUNCTION queue.sleep(id bigint, token bigint, name text, duration interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    task    queue.tasks;
    earlier record;
    until   timestamptz;
BEGIN
    PERFORM queue_internal.check_step('name', name);
    IF duration IS NULL THEN
        PERFORM queue_internal.raise_null('duration');
    END IF;
    PERFORM queue_internal.check_delay('duration', duration);
    task := queue_internal.leased_task(id, token, false);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'sleep', name) AS s;
    IF earlier.stored THEN
        until := (earlier.value #>> '{}')::timestamptz;
    ELSE
        until := clock_timestamp() + duration;
        PERFORM queue_internal.store_step(id, 'sleep', name, to_jsonb(until));
    END IF;
    IF until <= clock_timestamp() THEN
        RETURN true;
    END IF;
    PERFORM queue_internal.suspend(task, until);
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue.sleep(bigint, bigint, text, interval) IS
'Suspends a running task for some time. The time is counted from the first call with that name in this task, and stored
like a step. Otherwise it does the same as with a time: it returns false if the task is suspended, and true once the time
has passed. Needs the worker''s right on the queue.

- id, token: the task and the token of its lease, as claim returned them.
- name: the name of this sleep in the task, 1 to 512 bytes.
- duration: how long, at most 100 years.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.await_event
--
--   Promise:  an event that was emitted before, during or after the call is never missed, and what was returned once for
--             a task and an event is returned to all later attempts
--   Waits:    as queue.release, and for a transaction that is emitting the event, or in which a task waits for it before
--             any other ever did. Emissions of the event wait for the transaction of this call
--   Touches:  queue.tasks (updates), queue_internal.emitted (locks, inserts), queue_internal.awaits, queue_internal.steps

CREATE FUNCTION queue.await_event(id bigint, token bigint, event text, timeout interval DEFAULT NULL)
RETURNS TABLE (arrived boolean, payload jsonb)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task    queue.tasks;
    earlier record;
    awaited queue_internal.awaits;
BEGIN
    PERFORM queue_internal.check_step('event', event);
    PERFORM queue_internal.check_delay('timeout', timeout);
    task := queue_internal.leased_task(id, token, false);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'event', event) AS s;
    IF earlier.stored THEN
        arrived := earlier.value IS NOT NULL;
        payload := earlier.value;
        RETURN NEXT;
        RETURN;
    END IF;
    awaited := queue_internal.awaits_of(task, event, NULL, timeout);
    IF awaited.outcome IS NULL THEN
        SELECT l.emitted, l.payload INTO arrived, payload FROM queue_internal.lock_event(awaited.queue, event) AS l;
        -- Again, because that may have waited until the queue of the event was dropped, which ends the wait.
        awaited := queue_internal.awaits_of(task, event, NULL, timeout);
    END IF;
    IF awaited.outcome IS NOT NULL THEN
        -- A later queue of that name may have emitted such an event, which is another.
        arrived := false;
        payload := NULL;
    END IF;
    IF arrived OR awaited.outcome IS NOT NULL OR awaited.until <= clock_timestamp()
       OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = awaited.queue) THEN
        PERFORM queue_internal.store_step(id, 'event', event, payload);
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM queue_internal.suspend_for(task, awaited);
END
$$;
COMMENT ON FUNCTION queue.await_event IS
'Returns the payload of an event of the task''s queue, or suspends the running task until the event is emitted. Returns
one row if the task can go on: arrived is true, with the payload, if the event was emitted; false, without one, if that
timed out. Returns no row if the task was suspended: the lease has ended, and the attempt does not count. The task can
be claimed again when the event is emitted or the timeout is over, and the same call then returns a row. All later
attempts get the same row. If the cancellation of the task was requested, or it was replaced, it is cancelled instead of
suspended. An emission of the event waits until the transaction of this call has ended. Needs the worker''s right on the
queue.

- id, token: the task and the token of its lease, as claim returned them.
- event: the name of the event, 1 to 512 bytes. Events belong to the queue in which the task first waits for them.
- timeout: how long to wait, counted from the first call for this event, at most 100 years. Null (default) means for
  ever.

Errors: QX001: the lease is no longer held. QX003: the task does not exist, or the caller has no right on its queue.
22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.await_task
--
--   Promise:  as queue.await_event, for the end of another task
--   Waits:    as queue.release, and for a transaction that is ending the other task. The end of that task waits for the
--             transaction of this call, as for a push after it
--   Touches:  queue.tasks (updates; locks the other task KEY SHARE, both in the order of ids), queue_internal.dependencies,
--             queue_internal.awaits, queue_internal.steps

CREATE FUNCTION queue.await_task(id bigint, token bigint, other bigint, timeout interval DEFAULT NULL)
RETURNS TABLE (ended boolean, state text, result jsonb)
LANGUAGE plpgsql ROWS 1 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task    queue.tasks;
    earlier record;
    awaited queue_internal.awaits;
BEGIN
    IF other IS NULL THEN
        PERFORM queue_internal.raise_null('other');
    ELSIF other < 1 THEN
        PERFORM queue_internal.raise_invalid('other', 'must be greater than zero', other::text);
    ELSIF other = id THEN
        PERFORM queue_internal.raise_invalid('other', 'must be another task');
    END IF;
    PERFORM queue_internal.check_delay('timeout', timeout);
    PERFORM queue_internal.check_lease_holder(id, token);
    IF other < id THEN
        PERFORM queue_internal.lock_awaited(other);
    END IF;
    task := queue_internal.leased_task(id, token, false);
    SELECT s.stored, s.value INTO earlier FROM queue_internal.stored_step(id, 'task', other::text) AS s;
    IF earlier.stored THEN
        ended := earlier.value IS NOT NULL;
        state := earlier.value ->> 'state';
        result := earlier.value -> 'result';
        RETURN NEXT;
        RETURN;
    END IF;
    awaited := queue_internal.awaits_of(task, NULL, other, timeout);
    state := coalesce(awaited.outcome, (SELECT d.outcome FROM queue_internal.dependencies AS d
                                        WHERE d.predecessor_id = other AND d.task_id = await_task.id));
    IF state IS NULL AND NOT queue_internal.lock_awaited(other) THEN
        state := queue_internal.state_of(other, 'any');
        IF state NOT IN ('completed', 'cancelled', 'failed') THEN
            -- It was put back from the dead letters meanwhile.
            PERFORM queue_internal.lock_awaited(other);
            state := NULL;
        ELSIF state IS NULL THEN
            -- It left no trace; or the caller has no right on its queue.
            IF queue_internal.is_recorded(other) THEN
                PERFORM queue_internal.raise_unknown_task(other);
            END IF;
            SELECT coalesce(o.outcome, 'purged') INTO state
            FROM queue_internal.awaits AS a LEFT JOIN queue_internal.outcomes AS o ON o.task_id = other
            WHERE a.task_id = await_task.id AND a.predecessor_id = other;
            IF NOT FOUND THEN
                PERFORM queue_internal.raise_unknown_task(other);
            END IF;
        END IF;
    END IF;
    IF state IS NULL AND (awaited.until <= clock_timestamp()) IS NOT TRUE THEN
        PERFORM queue_internal.suspend_for(task, awaited);
        RETURN;
    END IF;
    ended := state IS NOT NULL;
    IF state = 'completed' THEN
        SELECT h.result INTO result FROM queue.history AS h
        WHERE h.id = other AND queue_internal.has_right('worker', h.queue);
    END IF;
    PERFORM queue_internal.store_step(
        id, 'task', other::text,
        CASE WHEN ended THEN jsonb_build_object('state', state)
                             || CASE WHEN result IS NULL THEN '{}' ELSE jsonb_build_object('result', result) END END);
    PERFORM queue_internal.delete_dependencies(id);
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION queue.await_task IS
'Returns how another task ended, or suspends the running task until it has ended. Returns one row if the task can go on:
ended is true, with the state (completed, failed, cancelled, or purged if it was deleted) and the result; or false,
without these, if that timed out. Returns no row if the task was suspended, as queue.await_event does. All later
attempts get the same row. A task that failed for good has ended, and one that will be retried has not. Two tasks that
wait for each other wait for ever, unless one has a timeout. Needs the worker''s right on the queue of the task, and any
right on the queue of the other one; without the worker''s right there, result is null.

- id, token: the task and the token of its lease, as claim returned them.
- other: the other task. Its result is null if its queue keeps no history.
- timeout: how long to wait, counted from the first call for the other task, at most 100 years. Null (default) means for
  ever.

Errors: QX001: the lease is no longer held. QX003: one of the tasks does not exist, or the caller has no right on its
queue; or the other one had ended before the first call, in a queue that keeps no history. 22004, 22023 or 54000: an
argument is null, invalid or too large.';

-- As a push locks its predecessors.
CREATE FUNCTION queue_internal.lock_awaited(other bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM queue.tasks AS t WHERE t.id = other AND queue_internal.has_right('any', t.queue) FOR KEY SHARE;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_awaited IS 'Prevents the end of a task that another one is going to wait for; false if it is not live.';
-- queue.emit
--
--   Promise:  tasks that wait for the event, or will, go on if and only if the transaction commits
--   Waits:    for transactions that are emitting the same event, and for those in which tasks begin to wait for it
--   Touches:  queue.queues (locks the row, so that a concurrent drop comes before or after), queue_internal.emitted (inserts or updates), queue_internal.events (inserts)

CREATE FUNCTION queue.emit(queue text, event text, payload jsonb DEFAULT '{}') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'producer');
    PERFORM queue_internal.check_step('event', event);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    -- A later queue of that name must not get the event.
    PERFORM queue_internal.hold_queue(queue);
    INSERT INTO queue_internal.emitted AS e (queue, event, payload, emitted_at)
    VALUES (emit.queue, emit.event, emit.payload, clock_timestamp())
    ON CONFLICT ON CONSTRAINT emitted_pkey
    DO UPDATE SET payload = excluded.payload, emitted_at = excluded.emitted_at WHERE e.emitted_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A new snapshot: it shows the tasks whose transactions the statement above has waited for.
    PERFORM queue_internal.wake_waiting(queue, event, 0, 10000);
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue.emit IS
'Emits an event of a queue: tasks of the queue that wait for it with queue.await_event can be claimed again, and those
that ask for it later get it at once. Returns true. The first emission stays: a later one of the same name changes
nothing and returns false. It counts once the transaction commits. The event is kept for queue.event_retention and as
long as a task waits for it; after that, the name can be emitted again. Needs the producer''s right on the queue.

- queue: name of the queue.
- event: the name of the event, 1 to 512 bytes. Put an id into it: order 17 paid.
- payload: any JSON value, which queue.await_event returns. Default {}.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
-- queue.cancel
--
--   Waits:    for a transaction that is working on the task; if the task is not running, also for one that has pushed
--             after it, or has ended the task before it in its group; by key, also for one that is pushing a replacement of
--             the running task
--   Touches:  queue.tasks (updates or deletes), queue.history (inserts)

CREATE FUNCTION queue.cancel(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    -- A running task is only asked to stop and does not end here, so a weaker lock is enough.
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = cancel.id AND t.state = 'running' AND queue_internal.has_right('operator', t.queue)
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        SELECT t.* INTO task FROM queue.tasks AS t
        WHERE t.id = cancel.id AND queue_internal.has_right('operator', t.queue)
        FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'cannot be cancelled', 'Only waiting, queued and running tasks can be cancelled.');
    END IF;
    RETURN queue_internal.cancel_or_request(task);
END
$$;
COMMENT ON FUNCTION queue.cancel(bigint) IS
'Cancels a task that is not running. For a running task it records the request: the worker learns of it at its next
queue.extend, and the task is cancelled when the worker confirms it, fails or releases the task, or loses its lease.
If the worker completes the task first, it is completed. Returns the new state: cancelled or running. Needs the
operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. QX005: it has finished already. 22004
or 22023: the argument is null or invalid.';

-- The same for the task with a key. The key may pass to another task while this waits for the lock on the task, or while
-- a push that replaces a running task is open. So it locks the task, then the key, and starts again if another task has
-- the key by then.
CREATE FUNCTION queue.cancel(queue text, key text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    holder  bigint;
    is_live boolean;
    task    queue.tasks;
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF key IS NULL THEN
        PERFORM queue_internal.raise_null('key');
    END IF;
    PERFORM queue_internal.check_key('key', key);
    LOOP
        SELECT k.task_id INTO holder FROM queue_internal.keys AS k WHERE k.queue = cancel.queue AND k.key = cancel.key
        ORDER BY k.task_id DESC LIMIT 1;
        SELECT t.* INTO task FROM queue.tasks AS t
        WHERE t.id = holder AND t.queue = cancel.queue AND t.state = 'running'
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            SELECT t.* INTO task FROM queue.tasks AS t
            WHERE t.id = holder AND t.queue = cancel.queue
            FOR UPDATE;
        END IF;
        is_live := FOUND;
        IF is_live THEN
            PERFORM queue_internal.lock_key(queue, key, true);
        END IF;
        -- A new snapshot.
        IF holder IS NOT DISTINCT FROM (
            SELECT k.task_id FROM queue_internal.keys AS k WHERE k.queue = cancel.queue AND k.key = cancel.key
            ORDER BY k.task_id DESC LIMIT 1) THEN
            RETURN CASE WHEN is_live THEN queue_internal.cancel_or_request(task) END;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.cancel(text, text) IS
'Cancels the task of a queue that has this key, as queue.cancel(id) does, and returns its new state: cancelled or
running. Returns null if no waiting, queued or running task has the key. A task that ends or loses the key before it can
be cancelled is left alone, and the task that has the key by then is cancelled instead. If a running task is being
replaced, the task that waits for its end has the key. Needs the operator''s right on the queue.

- queue: name of the queue.
- key: the key, exactly as it was pushed.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
-- queue.end_lease
--
--   Waits:    for a transaction that is working on the task
--   Touches:  queue.tasks (updates or deletes)

CREATE FUNCTION queue.end_lease(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    SELECT t.* INTO task FROM queue.tasks AS t
    WHERE t.id = end_lease.id AND t.state = 'running' AND queue_internal.has_right('operator', t.queue)
    FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'has no lease', 'Only a running task has a lease: see state and lease_until in queue.get().');
    END IF;
    RETURN queue_internal.end_attempt(task, 'lease ended by an operator', '0', false);
END
$$;
COMMENT ON FUNCTION queue.end_lease IS
'Ends the lease of a running task now, as if it had expired, for a worker that hangs. The worker is refused when it
reports the task. Returns the new state of the task: queued, failed if this was its last attempt, or cancelled if that
was requested. Needs the operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. QX005: it is not running. 22004 or
22023: the argument is null or invalid.';
-- queue.retry
--
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)

CREATE FUNCTION queue.retry(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM queue_internal.check_id(id);
    IF NOT EXISTS (SELECT FROM queue.dead_letters AS d
                   WHERE d.id = retry.id AND queue_internal.has_right('operator', d.queue)) THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'is not among the dead letters', 'Only tasks that failed for good can be retried.');
    END IF;
    -- Tries again if the key became free after it was found taken.
    WHILE queue_internal.requeue_dead_letters(ARRAY[id], keeps_errors => false) = 0 LOOP
        PERFORM queue_internal.raise_duplicate_key(d.queue, d.key, k.task_id, k.expires_at)
        FROM queue.dead_letters AS d JOIN queue_internal.keys AS k ON k.queue = d.queue AND k.key = d.key
        WHERE d.id = retry.id AND k.task_id <> d.id;
        IF NOT EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = retry.id) THEN
            PERFORM queue_internal.raise_wrong_state(
                id, 'operator', 'is not among the dead letters',
                'Only tasks that failed for good can be retried.');
        END IF;
        -- With the key, or without any, only a trigger of the user can have suppressed it.
        IF EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = retry.id
                   AND (d.key IS NULL OR EXISTS (SELECT FROM queue_internal.keys AS k
                                                 WHERE k.queue = d.queue AND k.key = d.key AND k.task_id = d.id))) THEN
            RAISE EXCEPTION 'a trigger has suppressed task %', id
                USING ERRCODE = 'triggered_action_exception', HINT = 'It is still among the dead letters.';
        END IF;
    END LOOP;
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue.retry IS
'Puts a dead letter back into its queue and returns its new state, queued. The task is due at once, and its attempts
start again from 0. It keeps its id and its errors, and its token continues to grow. Its start deadline is
removed. Needs the operator''s right on the
queue.

- id: the task.

Errors: QX002: its queue was dropped. QX003: the task does not exist, or the caller has no right on its queue. QX004:
another task has its key. QX005: it is not a dead letter. 09000: a trigger that you added suppresses the task. 22004 or
22023: the argument is null or invalid.';

-- Dead letters whose key another task has, or which a trigger of the user suppresses, stay where they are. So do all but the oldest of those with the same key,
-- which have to be found first: the task that would hold the key does not exist yet.
CREATE FUNCTION queue_internal.requeue_dead_letters(
    ids bigint[], to_queue text DEFAULT NULL, keeps_errors boolean DEFAULT true) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    revived bigint;
    kept    bigint;
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT l.*, coalesce(to_queue, l.queue) AS target FROM queue.dead_letters AS l
        WHERE l.id = ANY (ids) ORDER BY l.id FOR UPDATE
    ), first AS MATERIALIZED (
        -- In the order of push_many.
        SELECT DISTINCT ON (l.target, l.key COLLATE "C") l.id, l.target, l.key, l.key_ttl FROM locked AS l
        WHERE l.key IS NOT NULL ORDER BY l.target, l.key COLLATE "C", l.id
    ), free AS MATERIALIZED (
        SELECT l.id FROM locked AS l WHERE l.key IS NULL
        UNION ALL
        SELECT f.id FROM first AS f WHERE queue_internal.take_key(f.target, f.key, f.id, f.key_ttl, keeps_errors)
    ), added AS (
        INSERT INTO queue.tasks AS t (
            id, queue, priority, max_attempts, token, created_at, key, group_key, backoff, kind, lease, timeout, weight,
            headers, payload, progress, errors)
        SELECT d.id, d.target, d.priority, d.max_attempts, d.token, d.created_at, d.key, d.group_key,
               d.backoff, d.kind, d.lease, d.timeout, d.weight, d.headers, d.payload, d.progress, d.errors
        FROM locked AS d JOIN free AS f ON f.id = d.id ORDER BY d.id
        RETURNING t.id
    ), forgotten AS (
        -- Dependents that are pushed later wait for its next end, and so does a rest that was not notified yet.
        DELETE FROM queue_internal.outcomes AS o USING added AS a WHERE o.task_id = a.id
    ), gone AS (
        DELETE FROM queue.dead_letters AS d USING added AS a WHERE d.id = a.id RETURNING d.id
    )
    SELECT count(g.id), min(a.id) FILTER (WHERE g.id IS NULL) INTO revived, kept
    FROM added AS a LEFT JOIN gone AS g ON g.id = a.id;
    -- It would be in both tables.
    IF kept IS NOT NULL THEN
        PERFORM queue_internal.raise_kept(kept, 'queue.dead_letters');
    END IF;
    RETURN revived;
END
$$;
COMMENT ON FUNCTION queue_internal.requeue_dead_letters IS
    'Puts dead letters back into their queues, or into another one; returns how many.';
-- queue.redrive
--
--   Touches:  queue.dead_letters (locks with SKIP LOCKED, deletes), queue.tasks (inserts)
--   Index:    dead_letters_queue_failed_at

CREATE FUNCTION queue.redrive(queue text, max_tasks integer DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    END IF;
    -- Those whose key is taken do not keep it from those behind them.
    RETURN queue_internal.requeue_dead_letters(ARRAY(
        SELECT d.id FROM queue.dead_letters AS d
        WHERE d.queue = redrive.queue AND (d.key IS NULL OR queue_internal.is_key_free(d.queue, d.key))
        ORDER BY d.failed_at, d.id LIMIT max_tasks FOR UPDATE SKIP LOCKED));
END
$$;
COMMENT ON FUNCTION queue.redrive IS
'Puts the dead letters of a queue back into it, the oldest first, each as queue.retry does. Returns how many. A dead
letter whose key another task has stays where it is. Needs the operator''s right on the queue.

- queue: name of the queue.
- max_tasks: largest number of dead letters to put back. Null (default) means all.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
-- queue.run_again
--
--   Waits:    as queue.push, for a transaction that is pushing the same key
--   Touches:  queue.history, queue.dead_letters (reads), queue.tasks (inserts)

CREATE FUNCTION queue.run_again(id bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended queue.all_tasks;
    own   record;
BEGIN
    PERFORM queue_internal.check_id(id);
    SELECT a.* INTO ended FROM queue.all_tasks AS a
    WHERE a.id = run_again.id AND queue_internal.has_right('operator', a.queue);
    IF ended.finished_at IS NULL THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'has not ended', 'Only tasks that completed, failed or were cancelled can be run again.');
    END IF;
    IF ended.payload IS NULL THEN
        PERFORM queue_internal.raise_wrong_state(
            id, 'operator', 'cannot be run again, because its payload was not kept',
            'Push a new task with the payload. With the option keep_payloads, the queue keeps those of tasks that end later.');
    END IF;
    SELECT d.backoff, d.key_ttl INTO own FROM queue.dead_letters AS d WHERE d.id = run_again.id;
    RETURN queue.push(
        queue => ended.queue, payload => ended.payload, priority => ended.priority, key => ended.key,
        on_duplicate => CASE WHEN ended.key IS NULL THEN 'skip' ELSE 'error' END, group_key => ended.group_key,
        max_attempts => ended.max_attempts, headers => ended.headers, kind => ended.kind,
        lease => queue_internal.checked_lease(NULL, ended.lease), timeout => ended.timeout, 
        weight => queue_internal.possible_weight(ended.queue, ended.group_key, ended.weight), backoff => own.backoff,
        key_ttl => CASE WHEN extract(epoch FROM own.key_ttl) < 0 THEN - own.key_ttl ELSE own.key_ttl END,
        key_ttl_from => CASE WHEN extract(epoch FROM own.key_ttl) < 0 THEN 'push' END);
END
$$;
COMMENT ON FUNCTION queue.run_again IS
'Pushes a new task like one that completed, failed or was cancelled, and returns the id of the new task. It has the same
queue, payload, kind, headers, priority, key, group key, max_attempts, lease, timeout and weight, those of a dead letter
also its backoff and key_ttl, and is due at once. The task that ended stays in the history or among the dead letters;
queue.retry puts a dead letter itself back. If a limit of the queue is now smaller than the weight, the task uses up the
whole limit. Needs the operator''s right on the queue.

- id: the task that ended.

Errors: QX002: its queue was dropped. QX003: the task does not exist, or the caller has no right on its queue. QX004: its
key is taken, perhaps still by itself for its key_ttl. QX005: it has not ended, or its queue has not
kept its payload. 22004 or 22023: the argument is null or invalid.';
-- queue.reap
--
--   Touches:  queue.tasks (reads all of it, never waits for a lock)

CREATE FUNCTION queue.reap() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (queue_internal.reap(9223372036854775807)).reaped + (queue_internal.expire_unstarted(NULL)).expired;
END
$$;
COMMENT ON FUNCTION queue.reap IS
'Requeues every task whose lease has expired, or moves it to the dead letters if its attempts are used up, and ends every
task that was not claimed by its start deadline. Returns how many tasks it changed. The background worker and
queue.maintain do the same, and claims take over expired leases by themselves. Needs the operator''s right on all
queues.

Errors: 42501: no right on all queues.';
-- queue.get
--
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)

CREATE FUNCTION queue.get(id bigint) RETURNS queue.all_tasks
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.all_tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    SELECT a.* INTO task FROM queue.all_tasks AS a
    WHERE a.id = get.id AND queue_internal.has_right('operator', a.queue);
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN task;
END
$$;
COMMENT ON FUNCTION queue.get IS
'Returns one task from wherever it is, as a row of queue.all_tasks: live, finished, or a dead letter. Needs the
operator''s right on the queue.

- id: the task.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 22004 or 22023: the argument is null
or invalid.';
-- What queue.wait() and queue.wait_result() check before they wait.

CREATE FUNCTION queue_internal.wait_deadline(timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF timeout IS NULL THEN
        PERFORM queue_internal.raise_null('timeout');
    END IF;
    PERFORM queue_internal.check_delay('timeout', timeout);
    RETURN clock_timestamp() + timeout;
END
$$;
COMMENT ON FUNCTION queue_internal.wait_deadline IS 'Checks the argument "timeout"; returns when the wait ends.';

CREATE FUNCTION queue_internal.check_wait(queue text, timeout interval, worker text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'worker');
    PERFORM queue_internal.check_worker(worker);
    RETURN queue_internal.wait_deadline(timeout);
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait(text, interval, text) IS
    'Checks the arguments of queue.wait() for one queue; returns when the wait ends.';

CREATE FUNCTION queue_internal.check_wait(queues text[], timeout interval, worker text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    PERFORM queue_internal.check_array('queues', queues);
    IF queues = '{}' THEN
        PERFORM queue_internal.raise_invalid('queues', 'must not be empty');
    END IF;
    FOREACH name IN ARRAY queues LOOP
        PERFORM queue_internal.check_name('queues', name);
        PERFORM queue_internal.open_queue(name, 'worker');
    END LOOP;
    PERFORM queue_internal.check_worker(worker);
    RETURN queue_internal.wait_deadline(timeout);
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait(text[], interval, text) IS
    'Checks the arguments of queue.wait() for several queues; returns when the wait ends.';

CREATE FUNCTION queue_internal.check_wait_result(id bigint, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deadline timestamptz;
BEGIN
    PERFORM queue_internal.check_id(id);
    deadline := queue_internal.wait_deadline(timeout);
    IF queue_internal.state_of(id, 'operator') IS NULL THEN
        PERFORM queue_internal.raise_unknown_task(id);
    END IF;
    RETURN deadline;
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait_result IS
    'Checks the arguments of queue.wait_result(); returns when the wait ends.';

-- STABLE, so that one snapshot is used for all tables and a task that moves from one to another is not missed.
CREATE FUNCTION queue_internal.outcome(id bigint, OUT state text, OUT result jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    state := queue_internal.state_of(id, 'operator');
    IF state = 'completed' THEN
        SELECT h.result INTO result FROM queue.history AS h WHERE h.id = outcome.id;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.outcome IS 'Returns the state of a task, wherever it is, and its result.';
-- queue.wait_result
--
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps until the task's end
--             wakes it (src/wait.rs). In a transaction block it cannot do that, and does not wait

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_result';
COMMENT ON PROCEDURE queue.wait_result IS
'Waits until a task is completed, cancelled or failed, or until the timeout ends. It holds no transaction, snapshot or
lock. In a transaction block it does not wait but returns at once, with a NOTICE. Needs the operator''s right on the
queue.

- id: the task.
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- state: the result; pass nothing. The state of the task. Null if it left no trace, because its queue keeps no history
  or it was purged.
- result: the result; pass nothing. What the worker passed to queue.complete, or null.

Errors: QX003: the task does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: an argument is
null, invalid or too large.';
-- queue.wait
--
--   Touches:  queue.queues, queue.tasks (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps (src/wait.rs). In a
--             transaction block it cannot do that, and does not wait

CREATE PROCEDURE queue.wait(
    queue       text     DEFAULT 'default',
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL,
    worker      text     DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait';
COMMENT ON PROCEDURE queue.wait(text, interval, boolean, text) IS
'Waits until a task of the queue can be claimed, and sets ready to true; or until the timeout ends, and sets it to
false. It claims nothing: another worker may be quicker, so queue.claim can return no rows afterwards. One new task
wakes one waiting session. It holds no transaction, snapshot or lock. In a transaction block it does not wait but
returns at once, with a NOTICE. Needs the worker''s right on the queue.

- queue: name of the queue. Default "default".
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- ready: the result; pass nothing.
- worker: name of the worker, 1 to 128 bytes, shown in queue.workers while it waits. Null (default) means none.

Errors: 42501: no right on the queue. QX002: the queue does not exist, or was dropped meanwhile. 22004, 22023 or
54000: an argument is null, invalid or too large.';

-- The same for several queues.
CREATE PROCEDURE queue.wait(
    queues      text[],
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL,
    worker      text     DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_any';
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean, text) IS
'Waits until a task of any of the queues can be claimed, or until the timeout ends. Needs the worker''s right on each of
the queues.

- queues: names of the queues, at least one.
- timeout, ready, worker: as for one queue.

Errors: as for one queue.';
-- queue.take
--
--   Locks:    none while it waits, and no snapshot: see queue.wait. An empty transaction stays open
--   Touches:  as queue.claim
--   Why it has no SET clause, and no operators: see queue.maintain()

CREATE PROCEDURE queue.take(
    queue    text     DEFAULT 'default',
    lease    interval DEFAULT NULL,
    timeout  interval DEFAULT '30 seconds',
    worker   text     DEFAULT NULL,
    INOUT id           bigint      DEFAULT NULL,
    INOUT token        bigint      DEFAULT NULL,
    INOUT payload      jsonb       DEFAULT NULL,
    INOUT headers      jsonb       DEFAULT NULL,
    INOUT attempt      integer     DEFAULT NULL,
    INOUT max_attempts integer     DEFAULT NULL,
    INOUT priority     integer     DEFAULT NULL,
    INOUT key          text        DEFAULT NULL,
    INOUT group_key    text        DEFAULT NULL,
    INOUT progress     jsonb       DEFAULT NULL,
    INOUT run_at       timestamptz DEFAULT NULL,
    INOUT created_at   timestamptz DEFAULT NULL,
    INOUT lease_until  timestamptz DEFAULT NULL,
    INOUT kind         text        DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    deadline CONSTANT pg_catalog.timestamptz := queue_internal.wait_deadline(timeout);
    ready    boolean;
    moment   pg_catalog.timestamptz;
    in_vain  integer := 0;
BEGIN
    LOOP
        moment := pg_catalog.now();
        SELECT c.id, c.token, c.payload, c.headers, c.attempt, c.max_attempts, c.priority, c.key, c.group_key, c.progress,
               c.run_at, c.created_at, c.lease_until, c.kind
        INTO id, token, payload, headers, attempt, max_attempts, priority, key, group_key, progress,
             run_at, created_at, lease_until, kind
        FROM queue.claim(lease, queue, 1, worker) AS c;
        EXIT WHEN id IS NOT NULL OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) deadline;
        -- An interval of so many days counts as 100 years.
        CALL queue.wait(
            queue, least(greatest(deadline OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp(), '0'), '36000 days'), ready, worker);
        EXIT WHEN ready IS NOT TRUE;
        -- In a transaction block wait returns at once, also if it has returned before. Elsewhere a second wait begins a new
        -- transaction.
        in_vain := CASE WHEN pg_catalog.now() OPERATOR(pg_catalog.=) moment THEN in_vain OPERATOR(pg_catalog.+) 1 ELSE 0 END;
        EXIT WHEN in_vain OPERATOR(pg_catalog.=) 3;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.take IS
'Waits until a task of the queue can be claimed, as queue.wait does, and claims it, as queue.claim does: one round trip
for each task. It tries again if another worker was quicker. If the timeout ends first, all results are null. While it
waits, it holds no snapshot and no lock, but keeps an empty transaction open. Transaction blocks: as queue.wait. Needs
the worker''s right on the queue.

- queue: name of the queue. Default "default".
- lease: how long the caller has the task unless it extends the lease; more than 0, at most queue.max_lease. Null
  (default) means the task''s own lease, or else the queue''s option.
- timeout: how long to wait, at most 100 years. 0 returns at once. Default 30 seconds.
- worker: name of the worker, 1 to 128 bytes, shown in queue.workers and in errors of the task. Null means none.
- id, token, payload, headers, attempt, max_attempts, priority, key, group_key, progress, run_at, created_at,
  lease_until, kind: the results, as in queue.claimed_task; pass nothing.

Errors: as queue.claim and queue.wait.';
-- queue.create
--
--   Waits:    for a transaction that creates or drops a queue of this name
--   Touches:  queue.queues (inserts)

CREATE FUNCTION queue.create(name text, options jsonb DEFAULT '{}', if_not_exists boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.check_options(options);
    IF name ~ '[[:cntrl:]]' THEN
        PERFORM queue_internal.raise_invalid('name', 'must not contain control characters');
    ELSIF if_not_exists IS NULL THEN
        PERFORM queue_internal.raise_null('if_not_exists');
    END IF;
    PERFORM queue_internal.check_right('operator', name);
    -- Without an exception handler, which would take the error of a user's trigger for this one.
    INSERT INTO queue.queues (name) VALUES ("create".name) ON CONFLICT ON CONSTRAINT queues_pkey DO NOTHING;
    IF FOUND THEN
        PERFORM queue_internal.apply_options(name, options, true);
        -- Events of an earlier queue of that name: a drop at REPEATABLE READ does not see those emitted meanwhile.
        DELETE FROM queue_internal.emitted AS e WHERE e.queue = "create".name;
    ELSIF if_not_exists THEN
        RAISE NOTICE 'queue "%" already exists, skipping', name;
    ELSE
        RAISE EXCEPTION 'queue "%" already exists', name
            USING ERRCODE = 'duplicate_object',
                  HINT = format('Change its options with SELECT queue.configure(%L, ...).', name);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.create IS
'Creates a queue. Needs the operator''s right on all queues, or on a queue of this name.

- name: 1 to 128 bytes without control characters.
- options: a JSON object. Intervals are strings of at most a year. Default {}: each option has its default.
- if_not_exists: true changes nothing if the queue exists, also not its options, and raises a notice instead of an
  error. Default false.

Options:

- lease: how long a claim lasts that names no lease. Default "1 minute".
- timeout: how long an attempt may take. Then it has failed with the error "timed out", and its lease cannot be
  extended further. Default null: no limit.
- ttl: the default start deadline of a task, as an interval from its push. Default null: none.
- on_expired: dead (default) or cancel: whether a task that no worker has claimed by its start deadline becomes a dead
  letter or is cancelled.
- max_queued: how many queued tasks the queue may have, scheduled and blocked ones included. Pushes beyond that raise
  QX006. Concurrent pushes can exceed it together. 1 to 2147483647. Default null: no limit.
- max_attempts: number of attempts of a task, 1 to 10000. Default 20.
- backoff: an object: kind (fixed, linear, exponential; default exponential), base (the delay after the first failure;
  default "1 second"), max (the longest delay; default "1 hour"), jitter (0 to 1, the largest fraction randomly
  subtracted from each delay; default 0.1).
- max_running: how many tasks may run at a time, 1 to 10000. Default null: no limit.
- max_running_per_group: how many tasks of a group may run at a time, 1 to 10000. Default 1.
- delayed_head: block (default) or pass: whether the tasks of a group wait while their first one is delayed.
- fair_groups: true lets the groups take turns. Default false.
- rate_limit: how many tasks may start in any rate_period, each counted with its weight, 1 to 10000. Default null: no
  limit.
- group_rate_limit: how many tasks of a group may start in any rate_period, each counted with its weight, 1 to 10000.
  Default null: no limit.
- rate_period: the period of rate_limit and group_rate_limit. Required with either, and not allowed without. Default
  null.
- ageing: the waiting time that counts as one step of priority. Default null: none.
- key_ttl: how long a completed or cancelled task keeps its key. Default null: not at all.
- on_predecessor_failure: cancel (default), fail or continue: what happens to a task if one that it waits for fails or
  is cancelled.
- keep_history: whether completed and cancelled tasks are kept in queue.history. Default true.
- keep_payloads: whether the history keeps the payloads of these tasks. If false, the end of a task does not write its
  payload again, and queue.run_again() refuses the task. Dead letters keep their payloads. Default true.
- durable_leases: on, off or auto: whether the commit of a claim waits for the disk, so that its lease survives a crash.
  Default null: what the setting "queue.durable_leases" of the session says.

Errors: 42501: no right. 42710: the queue exists and if_not_exists is false. 22004, 22023 or 54000: an argument or an
option is null, invalid or too large.';

CREATE FUNCTION queue_internal.check_options(options jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF options IS NULL THEN
        PERFORM queue_internal.raise_null('options');
    ELSIF jsonb_typeof(options) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('options', 'must be a JSON object', 'of type ' || jsonb_typeof(options));
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_options IS 'Checks that options are a JSON object.';
-- queue.configure
--
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.configure(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.check_options(options);
    PERFORM queue_internal.apply_options(name, options, false);
END
$$;
COMMENT ON FUNCTION queue.configure IS
'Changes options of a queue. They apply from the next claim or failure on, also to tasks that are in the queue already.
Needs the operator''s right on the queue.

- name: name of the queue.
- options: a JSON object with options of queue.create. Options that are not named stay as they are; null restores the
  default.

A change of max_running or of rate_limit waits for open claims that count against it.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 55P03: such claims were open for longer than
lock_timeout. 25000: a change for groups, outside isolation level READ COMMITTED. 22004, 22023 or 54000: an argument or
an option is null, invalid or too large.';

-- For functions whose argument for the queue is called "name".
CREATE FUNCTION queue_internal.check_queue(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.open_queue(name, 'operator');
END
$$;
COMMENT ON FUNCTION queue_internal.check_queue IS
    'Checks that a queue exists and that the caller has the operator''s right on it.';
-- queue.drop
--
--   Touches:  queue.queues, queue.tasks and queue.dead_letters (locks in the order of ids), and the rows of policies
--             that belong to them (deletes)
--   A concurrent push may leave its task behind. That task is neither lost nor claimed: it is there again when a queue
--   of that name is created.

CREATE FUNCTION queue.drop(name text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    IF force IS NULL THEN
        PERFORM queue_internal.raise_null('force');
    END IF;
    LOOP
        PERFORM FROM queue.queues AS q WHERE q.name = "drop".name FOR UPDATE;
        EXIT WHEN FOUND;
        -- A transaction that was waited for may have dropped the queue and created it, as in hold_queue.
        IF NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = "drop".name) THEN
            PERFORM queue_internal.raise_unknown_queue(name);
        END IF;
    END LOOP;
    DELETE FROM queue.queues AS q WHERE q.name = "drop".name;
    IF force THEN
        -- Before the rows that belong to them, and in the same order as all other calls.
        PERFORM FROM queue.tasks AS t WHERE t.queue = "drop".name ORDER BY t.id FOR UPDATE;
        PERFORM FROM queue.dead_letters AS d WHERE d.queue = "drop".name ORDER BY d.id FOR UPDATE;
    END IF;
    -- Wakes sessions that wait for the queue, so that they raise QX002.
    PERFORM queue_internal.announce_task(name, clock_timestamp());
    DELETE FROM queue.bindings AS b WHERE b.queue = "drop".name;
    DELETE FROM queue.handlers AS h WHERE h.queue = "drop".name;
    DELETE FROM queue_internal.slots AS s WHERE s.queue = "drop".name;
    DELETE FROM queue_internal.rate_buckets AS s WHERE s.queue = "drop".name;
    DELETE FROM queue_internal.group_starts AS s WHERE s.queue = "drop".name;
    IF NOT force AND (EXISTS (SELECT FROM queue.tasks AS t WHERE t.queue = "drop".name)
                      OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.queue = "drop".name)) THEN
        RAISE EXCEPTION 'queue "%" has tasks', name
            USING ERRCODE = 'object_in_use',
                  HINT = format('SELECT queue.drop(%L, force => true) deletes them, running tasks '
                                'and dead letters included.', name);
    END IF;
    IF NOT force AND EXISTS (
            -- Also of one that runs again, or failed and can be put back, and will ask for the same event.
            SELECT FROM queue_internal.awaits AS a
            WHERE a.queue = "drop".name
              AND (EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = a.task_id)
                   OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = a.task_id))) THEN
        RAISE EXCEPTION 'tasks of other queues wait for events of queue "%"', name
            USING ERRCODE = 'object_in_use',
                  DETAIL = 'They were moved while they waited; some may be dead letters.',
                  HINT = format('Emit the events and let the tasks run first, or SELECT queue.drop(%L, force => true): '
                                'then they have timed out.', name);
    END IF;
    -- Waits for transactions in which a task of a group has ended, which a refusal must not do. First for one that inserts
    -- rows, which the deletion would not see.
    PERFORM FROM queue_internal.locks AS l WHERE l.queue = "drop".name AND l.number = -1 FOR UPDATE;
    DELETE FROM queue_internal.locks AS l WHERE l.queue = "drop".name;
    IF force THEN
        DELETE FROM queue_internal.dependencies AS d USING queue.tasks AS t
        WHERE t.queue = "drop".name AND t.state = 'waiting' AND d.task_id = t.id;
        DELETE FROM queue_internal.batches AS b USING queue.tasks AS t
        WHERE t.queue = "drop".name AND t.state = 'waiting' AND b.task_id = t.id;
        PERFORM queue_internal.notify_dependents(ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.queue = "drop".name AND t.id IN (SELECT d.predecessor_id FROM queue_internal.dependencies AS d)),
            'purged');
    END IF;
    -- A session may replace some of them meanwhile: the deletion waits for it, and does not see what it has inserted.
    LOOP
        DELETE FROM queue_internal.events AS e WHERE e.queue = "drop".name;
        EXIT WHEN NOT EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = "drop".name);
    END LOOP;
    DELETE FROM queue_internal.group_heads AS h WHERE h.queue = "drop".name;
    DELETE FROM queue_internal.group_returns AS r WHERE r.queue = "drop".name;
    -- A later queue of that name must not get them. The sweep deletes steps and awaits of tasks that are gone.
    DELETE FROM queue_internal.emitted AS e WHERE e.queue = "drop".name;
    UPDATE queue_internal.awaits AS a SET until = least(a.until, clock_timestamp()), outcome = 'purged'
    WHERE a.queue = "drop".name;
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT t.queue, t.id FROM queue_internal.awaits AS a JOIN queue.tasks AS t ON t.id = a.task_id AND t.token = a.token
    WHERE a.queue = "drop".name AND t.queue <> "drop".name;
    -- Including keys that finished tasks keep for a time, which would refuse tasks of a later queue of that name.
    PERFORM FROM queue_internal.keys AS k WHERE k.queue = "drop".name ORDER BY k.key FOR UPDATE;
    DELETE FROM queue_internal.keys AS k WHERE k.queue = "drop".name;
    IF force THEN
        PERFORM queue_internal.delete_tasks_of(name);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.drop IS
'Drops a queue, its bindings and its emitted events, and detaches its handler. The history stays. Needs the operator''s
right on the queue.

- name: name of the queue.
- force: true also deletes the tasks of the queue, running ones included, and its dead letters; for tasks that wait
  for one of them, it was cancelled. Tasks that were moved to another queue and wait for an event of this one, or have
  become dead letters since, have waited until their timeout. false (default) refuses a queue that has any of these.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 55006: it has tasks or dead letters, or tasks of
other queues wait for its events, and force is false. 22004, 22023 or 54000: an argument is null, invalid or too large.';

-- Raises an error for a task that a trigger keeps, and not for one that was pushed meanwhile. It counts, because a plan for the few
-- tasks that the planner may know of would compare each with each.
CREATE FUNCTION queue_internal.delete_tasks_of(queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
BEGIN
    WITH gone AS (
        DELETE FROM queue.tasks AS t WHERE t.queue = delete_tasks_of.queue RETURNING t.id
    )
    SELECT max(t.id) INTO last FROM queue.tasks AS t WHERE t.queue = delete_tasks_of.queue
    HAVING count(*) > (SELECT count(*) FROM gone);
    PERFORM queue_internal.raise_kept(min(t.id), 'queue.tasks') FROM queue.tasks AS t
    WHERE t.queue = delete_tasks_of.queue AND t.id <= last HAVING count(*) > 0;
    WITH gone AS (
        DELETE FROM queue.dead_letters AS d WHERE d.queue = delete_tasks_of.queue RETURNING d.id
    )
    SELECT max(d.id) INTO last FROM queue.dead_letters AS d WHERE d.queue = delete_tasks_of.queue
    HAVING count(*) > (SELECT count(*) FROM gone);
    PERFORM queue_internal.raise_kept(min(d.id), 'queue.dead_letters') FROM queue.dead_letters AS d
    WHERE d.queue = delete_tasks_of.queue AND d.id <= last HAVING count(*) > 0;
END
$$;
COMMENT ON FUNCTION queue_internal.delete_tasks_of IS 'Deletes the tasks and dead letters of a queue that is dropped.';
-- queue.bind
--
--   Touches:  queue.queues (locks the row, so that a concurrent drop comes before or after), queue.bindings (inserts)

CREATE FUNCTION queue.bind(topic_pattern text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', topic_pattern, true);
    PERFORM queue_internal.open_queue(queue, 'operator');
    PERFORM queue_internal.hold_queue(queue);
    -- Every publish reads all bindings. (Binds at the same moment do not count each other.)
    IF (SELECT count(*) FROM queue.bindings AS b
        WHERE b.queue = bind.queue AND b.topic_pattern <> bind.topic_pattern) >= 1000 THEN
        RAISE EXCEPTION 'queue "%" has too many bindings', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 1000.',
                  HINT = 'Bind a pattern with wildcards, or delete bindings that are not needed with queue.unbind().';
    END IF;
    INSERT INTO queue.bindings (topic_pattern, queue, topic_regex)
    VALUES (bind.topic_pattern, bind.queue, queue_internal.topic_regex(bind.topic_pattern))
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION queue.bind IS
'Binds a queue to a topic: from now on queue.publish pushes to the queue what is published under a matching topic.
Binding twice changes nothing. Needs the operator''s right on the queue.

- topic_pattern: words of letters, digits, _ and -, separated by dots; at most 255 bytes. The word * matches one word,
  the word # any number of words, also none.
- queue: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 54000: it has 1000 bindings already. 22004,
22023 or 54000: an argument is null, invalid or too large.';
-- queue.unbind
--
--   Touches:  queue.bindings (deletes)

CREATE FUNCTION queue.unbind(topic_pattern text, queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', topic_pattern, true);
    PERFORM queue_internal.open_queue(queue, 'operator');
    DELETE FROM queue.bindings AS b
    WHERE b.topic_pattern = unbind.topic_pattern AND b.queue = unbind.queue;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue.unbind IS
'Deletes a binding, and returns whether it existed. Needs the operator''s right on the queue.

- topic_pattern: the pattern, exactly as it was passed to queue.bind.
- queue: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: an argument is null,
invalid or too large.';
-- queue.attach
--
--   Touches:  queue.queues (locks the row, so that a concurrent drop comes before or after), queue.handlers (inserts or
--             updates)

CREATE FUNCTION queue.attach(queue text, handler regprocedure, role regrole, workers integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failing record;
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF handler IS NULL THEN
        PERFORM queue_internal.raise_null('handler');
    ELSIF role IS NULL THEN
        PERFORM queue_internal.raise_null('role');
    ELSIF workers IS NULL THEN
        PERFORM queue_internal.raise_null('workers');
    ELSIF workers < 1 THEN
        PERFORM queue_internal.raise_invalid('workers', 'must be greater than zero', workers::text);
    ELSIF workers > 64 THEN
        PERFORM queue_internal.raise_too_large('workers', '64', workers::text);
    ELSIF queue_internal.is_handler(handler) IS NOT TRUE THEN
        PERFORM queue_internal.raise_invalid(
            'handler', 'must be a function that takes one queue.claimed_task and returns jsonb', handler::text);
    END IF;
    PERFORM queue_internal.hold_queue(queue);
    INSERT INTO queue.handlers AS h (queue, handler, role, workers)
    VALUES (attach.queue, queue_internal.handler_name(attach.handler), attach.role, attach.workers)
    ON CONFLICT ON CONSTRAINT handlers_pkey DO UPDATE
    SET handler = excluded.handler, role = excluded.role, workers = excluded.workers, created_at = excluded.created_at;
    SELECT f.problem, f.hint INTO failing FROM queue.failing_handlers AS f WHERE f.queue = attach.queue;
    IF FOUND THEN
        RAISE EXCEPTION 'handler cannot be attached to queue "%"', queue
            USING ERRCODE = 'insufficient_privilege', DETAIL = format('The reason is: %s.', failing.problem),
                  HINT = failing.hint;
    END IF;
END
$$;
COMMENT ON FUNCTION queue.attach IS
'Attaches a handler to a queue: processes of the extension claim the tasks of the queue, call the function for each, and
complete it with what the function returns. The changes that the function makes in this database and the completion
commit together. An error in the function is a failed attempt. A queue has one handler: attaching another one replaces
it, and the former handler finishes the tasks that it runs. Only the owner of the extension can call it. Needs the
library in shared_preload_libraries.

- queue: name of the queue.
- handler: a function that takes one queue.claimed_task and returns jsonb, the result of the task or null. Written with
  its argument type, as in ''pay(queue.claimed_task)''.
- role: the role that claims the tasks and calls the function. It needs LOGIN, the worker''s right on the queue, CONNECT
  on the database and EXECUTE on the function.
- workers: how many tasks are handled at the same time, each by a process of its own, 1 to 64. The processes count
  against max_worker_processes. Default 1.

Errors: 42501: the caller is not the owner of the extension, or the role lacks a privilege. QX002: the queue does not
exist. 0A000: the SQL-only edition has no processes. 22004, 22023 or 54000: an argument is null, invalid or too large.';
-- queue.detach
--
--   Touches:  queue.handlers (deletes)

CREATE FUNCTION queue.detach(queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    DELETE FROM queue.handlers AS h WHERE h.queue = detach.queue;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue.detach IS
'Detaches the handler of a queue, and returns whether it had one. After the commit, its processes finish their current
tasks and exit. Only the owner of the extension can call it.

- queue: name of the queue.

Errors: 42501: the caller is not the owner of the extension. QX002: the queue does not exist. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
-- queue.pause
--
--   Touches:  queue.queues (updates; a concurrent drop comes before or after). Waits for a queue.configure that waits for
--             open claims

CREATE FUNCTION queue.pause(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.hold_queue(name);
    UPDATE queue.queues AS q SET paused_at = clock_timestamp()
    WHERE q.name = pause.name AND q.paused_at IS NULL;
END
$$;
COMMENT ON FUNCTION queue.pause IS
'Pauses a queue: nothing is claimed from it until queue.resume. Pushes are accepted, and running tasks finish. Pausing
a paused queue changes nothing. Needs the operator''s right on the queue.

- name: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: the argument is null,
invalid or too large.';
-- queue.resume
--
--   Touches:  queue.queues (updates; a concurrent drop comes before or after)

CREATE FUNCTION queue.resume(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.hold_queue(name);
    UPDATE queue.queues AS q SET paused_at = NULL
    WHERE q.name = resume.name AND q.paused_at IS NOT NULL;
    IF FOUND THEN
        PERFORM queue_internal.announce_task(name, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue.resume IS
'Ends the pause of a queue, and wakes and notifies its workers. Resuming a queue that is not paused changes nothing.
Needs the operator''s right on the queue.

- name: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: the argument is null,
invalid or too large.';
-- queue.pause_all
--
--   Touches:  queue.queues (updates, after it has locked the rows in the order of names, so that two calls cannot deadlock)

CREATE FUNCTION queue.pause_all() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    paused bigint;
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    PERFORM FROM queue.queues AS q WHERE q.paused_at IS NULL ORDER BY q.name FOR NO KEY UPDATE;
    UPDATE queue.queues AS q SET paused_at = clock_timestamp() WHERE q.paused_at IS NULL;
    GET DIAGNOSTICS paused = ROW_COUNT;
    RETURN paused;
END
$$;
COMMENT ON FUNCTION queue.pause_all IS
'Pauses all queues, as queue.pause, for example before maintenance of something that all workers need. Returns how many
it paused: those that were paused already are not counted. A queue that is created later is not paused. Needs the
operator''s right on all queues.

Errors: 42501: no right on all queues.';
-- queue.resume_all
--
--   Touches:  queue.queues (updates, after it has locked the rows in the order of names, so that two calls cannot deadlock)

CREATE FUNCTION queue.resume_all() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    resumed bigint := 0;
    name    text;
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    PERFORM FROM queue.queues AS q WHERE q.paused_at IS NOT NULL ORDER BY q.name FOR NO KEY UPDATE;
    FOR name IN UPDATE queue.queues AS q SET paused_at = NULL WHERE q.paused_at IS NOT NULL RETURNING q.name LOOP
        PERFORM queue_internal.announce_task(name, clock_timestamp());
        resumed := resumed + 1;
    END LOOP;
    RETURN resumed;
END
$$;
COMMENT ON FUNCTION queue.resume_all IS
'Ends the pause of all queues, as queue.resume, also of those that were paused one by one. Returns how many it resumed.
Needs the operator''s right on all queues.

Errors: 42501: no right on all queues.';
-- queue.purge
--
--   Waits:    never: it skips tasks that are locked, or whose key is
--   Touches:  queue.tasks, queue.dead_letters (locks with SKIP LOCKED, deletes)

CREATE FUNCTION queue.purge(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tasks   bigint;
    letters bigint;
BEGIN
    PERFORM queue_internal.check_queue(name);
    -- Dead letters first, in the same order as redrive. Leaves to redrive what it has locked.
    WITH dead AS MATERIALIZED (
        SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = purge.name ORDER BY d.id FOR UPDATE SKIP LOCKED
    )
    DELETE FROM queue.dead_letters AS l USING dead AS d WHERE l.id = d.id;
    GET DIAGNOSTICS letters = ROW_COUNT;
    SELECT count(*) FILTER (WHERE queue_internal.discard(i.task)) INTO tasks FROM (
        SELECT t AS task FROM queue.tasks AS t
        WHERE t.queue = purge.name AND t.state <> 'running' ORDER BY t.id FOR UPDATE SKIP LOCKED
    ) AS i
    -- A session that ends the running task which this one replaces has locked the key.
    WHERE (i.task).key IS NULL OR queue_internal.lock_key((i.task).queue, (i.task).key, false);
    RETURN tasks + letters;
END
$$;
COMMENT ON FUNCTION queue.purge IS
'Deletes the tasks of a queue that are not running, and its dead letters, without recording them in the history.
Returns how many it deleted. Skips tasks that another transaction has locked, or that a trigger of yours keeps. Needs the operator''s right on the
queue.

- name: name of the queue.

Errors: 42501: no right on the queue. QX002: the queue does not exist. 22004, 22023 or 54000: the argument is null,
invalid or too large.';
-- queue.schedule
--
--   Touches:  queue.schedules (inserts, updates); announces the next run to the worker

CREATE FUNCTION queue.schedule(
    name     text,
    cron     text,
    queue    text,
    payload  jsonb DEFAULT '{}',
    timezone text  DEFAULT 'UTC',
    options  jsonb DEFAULT '{}')
RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept      jsonb;
    first_run timestamptz;
    next_run  timestamptz;
BEGIN
    PERFORM queue_internal.check_name('name', name);
    IF name ~ '[[:cntrl:]]' THEN
        PERFORM queue_internal.raise_invalid('name', 'must not contain control characters');
    END IF;
    PERFORM queue_internal.check_cron(cron);
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    PERFORM queue_internal.check_timezone(timezone);
    PERFORM queue_internal.check_schedule_options(queue, options);
    IF octet_length(payload::text) + octet_length(options::text) > 1048576 THEN
        PERFORM queue_internal.raise_too_large('payload', '1 MB, options included',
            octet_length(payload::text) + octet_length(options::text) || ' bytes');
    END IF;
    IF (SELECT count(*) FROM queue.schedules AS s WHERE s.queue = schedule.queue AND s.name <> schedule.name) >= 10000 THEN
        RAISE EXCEPTION 'queue "%" has too many schedules', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 10000.',
                  HINT = 'Use one schedule whose task does the work of several, or another queue.';
    END IF;
    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO kept
    FROM jsonb_each(options) AS o WHERE o.value <> 'null' AND o.key <> 'missed_runs';
    first_run := queue_internal.next_run(schedule.cron, schedule.timezone, clock_timestamp());
    LOOP
        -- The right is asked for before the row is locked: otherwise a refused call would lock the schedule of another
        -- queue until its transaction ends.
        UPDATE queue.schedules AS s
        SET cron = schedule.cron, timezone = schedule.timezone, queue = schedule.queue, payload = schedule.payload,
            options = kept, missed_runs = coalesce(schedule.options ->> 'missed_runs', 'once'),
            next_run_at = CASE WHEN s.paused_at IS NOT NULL THEN NULL
                               WHEN (s.cron, s.timezone) = (schedule.cron, schedule.timezone)
                               THEN coalesce(s.next_run_at, first_run)
                               ELSE first_run END,
            last_error = NULL, last_error_at = NULL
        WHERE s.name = schedule.name AND queue_internal.has_right('operator', s.queue)
        RETURNING s.next_run_at INTO next_run;
        EXIT WHEN FOUND;
        INSERT INTO queue.schedules AS s (name, cron, timezone, queue, payload, options, missed_runs, next_run_at)
        VALUES (schedule.name, schedule.cron, schedule.timezone, schedule.queue, schedule.payload, kept,
                coalesce(schedule.options ->> 'missed_runs', 'once'), first_run)
        ON CONFLICT ON CONSTRAINT schedules_pkey DO NOTHING
        RETURNING s.next_run_at INTO next_run;
        EXIT WHEN FOUND;
        IF EXISTS (SELECT FROM queue.schedules AS s
                   WHERE s.name = schedule.name AND NOT queue_internal.has_right('operator', s.queue)) THEN
            PERFORM queue_internal.raise_foreign_schedule(name);
        END IF;
    END LOOP;
    -- A kept run may be due; the worker only wakes for a time in the future.
    PERFORM queue_internal.announce_task(queue, greatest(next_run, clock_timestamp() + interval '1 ms'))
    WHERE next_run IS NOT NULL;
    RETURN next_run;
END
$$;
COMMENT ON FUNCTION queue.schedule IS
'Creates a schedule, which pushes a task at the times of a cron expression, or replaces the schedule of that name.
Returns its next run, or null while it is paused. A schedule that is replaced stays paused if it was, and keeps its
next run if cron and timezone are the same. Needs the operator''s right on the queue.

- name: name of the schedule, 1 to 128 bytes without control characters; unique in the database.
- cron: five fields (minute, hour, day, month, day of the week), six with seconds first, or a macro such as @daily.
- queue: name of the queue.
- payload: the payload of each task, any JSON value; with the options at most 1 MB of text. Default {}.
- timezone: a name from pg_timezone_names, whose local time the expression uses. Default UTC.
- options: a JSON object. Default {}. missed_runs says what happens with runs that nothing ran in time: skip (none,
  except the latest one if it is at most two minutes late), once (one task, for the latest; the default), all (one task for each). The others are arguments of queue.push
  for each task: priority, delay, key, on_duplicate, group_key, max_attempts, headers, kind, lease,
  timeout, ttl, weight. If a limit of the queue is later lowered below weight, the tasks use up the whole limit.

Errors: 42501: no right on the queue, or the name belongs to a schedule of another queue without it. QX002: the queue
does not exist. 54000: the queue has 10000 schedules. 22004, 22023 or 54000: an argument or an option is null, invalid
or too large.';
-- queue.unschedule
--
--   Touches:  queue.schedules (deletes)

CREATE FUNCTION queue.unschedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_schedule(name);
    DELETE FROM queue.schedules AS s WHERE s.name = unschedule.name AND queue_internal.has_right('operator', s.queue);
END
$$;
COMMENT ON FUNCTION queue.unschedule IS
'Deletes a schedule. Tasks that it has pushed stay. Needs the operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
-- queue.pause_schedule
--
--   Touches:  queue.schedules (updates)

CREATE FUNCTION queue.pause_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_schedule(name);
    UPDATE queue.schedules AS s SET paused_at = clock_timestamp(), next_run_at = NULL
    WHERE s.name = pause_schedule.name AND s.paused_at IS NULL
      AND queue_internal.has_right('operator', s.queue);
END
$$;
COMMENT ON FUNCTION queue.pause_schedule IS
'Pauses a schedule: it does not run until queue.resume_schedule. Pausing a paused schedule changes nothing. Needs the
operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
-- queue.resume_schedule
--
--   Touches:  queue.schedules (updates); announces the next run to the worker

CREATE FUNCTION queue.resume_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plan queue.schedules := queue_internal.open_schedule(name);
BEGIN
    UPDATE queue.schedules AS s
    SET paused_at = NULL, next_run_at = queue_internal.next_run(s.cron, s.timezone, clock_timestamp())
    WHERE s.name = resume_schedule.name AND s.paused_at IS NOT NULL
      AND queue_internal.has_right('operator', s.queue)
    RETURNING s.* INTO plan;
    IF FOUND THEN
        PERFORM queue_internal.announce_task(plan.queue, plan.next_run_at);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.resume_schedule IS
'Ends the pause of a schedule. Runs that fell into the pause are not made up, whatever missed_runs says. Resuming a
schedule that is not paused changes nothing. Needs the operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large.';
-- queue.run_schedule
--
--   Touches:  queue.tasks (inserts)

CREATE FUNCTION queue.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_internal.push_scheduled(queue_internal.open_schedule(name), clock_timestamp());
END
$$;
COMMENT ON FUNCTION queue.run_schedule IS
'Pushes the task of a schedule now, also while the schedule is paused, and returns the task''s id. The next run stays
the same. Needs the operator''s right on its queue.

- name: name of the schedule.

Errors: 42704: the schedule does not exist, or the caller has no right on its queue. 22004, 22023 or 54000: the
argument is null, invalid or too large. And those of queue.push.';
-- queue.run_schedules
--
--   Promise:  each run that is due is pushed once, however many sessions call this at the same time, and not at all if
--             the transaction rolls back
--   Failing:  a schedule whose push fails records the error and stays due. It does not affect other schedules
--   Touches:  queue.schedules (locks with SKIP LOCKED, updates), queue.tasks (inserts)

CREATE FUNCTION queue.run_schedules() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT f.fired FROM queue_internal.fire_schedules(NULL, '0') AS f);
END
$$;
COMMENT ON FUNCTION queue.run_schedules IS
'Pushes the tasks of all schedules that are due, at most 100 of each schedule, and returns how many. The background
worker and queue.maintain do this as well. Needs the operator''s right on all queues.

Errors: 42501: no right on all queues. A schedule whose push fails records the error in queue.schedules instead.';
-- queue.schedule_preview: computes, and touches no table.

CREATE FUNCTION queue.schedule_preview(
    cron text, timezone text DEFAULT 'UTC', runs integer DEFAULT 5, since timestamptz DEFAULT NULL)
RETURNS SETOF timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run timestamptz := coalesce(since, statement_timestamp());
BEGIN
    PERFORM queue_internal.check_cron(cron);
    PERFORM queue_internal.check_timezone(timezone);
    IF runs IS NULL THEN
        PERFORM queue_internal.raise_null('runs');
    ELSIF runs < 1 THEN
        PERFORM queue_internal.raise_invalid('runs', 'must be greater than zero', runs::text);
    ELSIF runs > 10000 THEN
        PERFORM queue_internal.raise_too_large('runs', '10000', runs::text);
    ELSIF run NOT BETWEEN '0002-01-01 UTC' AND '4000-01-01 UTC' THEN
        PERFORM queue_internal.raise_invalid('since', 'must be from the years 2 to 3999', since::text);
    END IF;
    FOR n IN 1..runs LOOP
        run := queue_internal.next_run(cron, timezone, run);
        EXIT WHEN run IS NULL;
        RETURN NEXT run;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.schedule_preview IS
'Returns the next runs that a schedule would have.

- cron: a cron expression, as in queue.schedule.
- timezone: a name from pg_timezone_names. Default UTC.
- runs: number of runs, 1 to 10000. Default 5.
- since: the runs after this time, from the years 2 to 3999. Null (default) means now.

Errors: 22004, 22023 or 54000: an argument is null, invalid or too large.';
-- CALL queue.cancel_where
--
--   Touches:  queue.tasks (updates or deletes), queue.history (inserts)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.cancel_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{cancel}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.cancel_where IS
'Cancels the tasks that match a filter, each as queue.cancel does. Running tasks for which that was requested before
are not counted. Commits after each batch if it is called outside a transaction block. Skips tasks that another
transaction has locked. Changes only tasks of queues on which the caller has the operator''s right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (queued, scheduled, waiting,
  running), older_than and newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload
  and headers (JSON that the task''s contains), ids (an array), all (true, every task). Must not be empty.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on the queue that the filter names. QX002: it does not exist. 22004, 22023 or 54000: an
argument or an option of the filter is null, invalid or too large.';
-- CALL queue.run_now_where
--
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.run_now_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{run_now}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.run_now_where IS
'Makes the scheduled tasks that match a filter due at once: tasks that wait for their backoff, and tasks that were
pushed with a delay. Their attempts continue to count. Commits after each batch if it is called outside a transaction
block. Skips tasks that another transaction has locked. Changes only tasks of queues on which the caller has the
operator''s right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (scheduled), older_than and
  newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload and headers (JSON that the
  task''s contains), ids (an array), all (true, every task). Must not be empty.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on the queue that the filter names. QX002: it does not exist. 22004, 22023 or 54000: an
argument or an option of the filter is null, invalid or too large.';
-- CALL queue.redrive_where
--
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.redrive_where(
    filter     jsonb,
    to_queue   text    DEFAULT NULL,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{redrive}', filter, dry_run, batch_size, to_queue, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.redrive_where IS
'Puts the dead letters that match a filter back into their queues, or into another one, each as queue.retry does. A
dead letter whose key another task has stays where it is. Commits after each batch if it is called outside a
transaction block. Skips tasks that another transaction has locked, and waits for one that is taking a key. Changes only tasks of queues on which the caller
has the operator''s right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (failed), older_than and
  newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload and headers (JSON that the
  task''s contains), ids (an array), all (true, every task). Must not be empty.
- to_queue: name of the queue to put them into. Null (default) means the queue of each.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on to_queue or the queue that the filter names. QX002: it does not exist. 22004, 22023 or
54000: an argument or an option of the filter is null, invalid or too large.';
-- CALL queue.reprioritise_where
--
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.reprioritise_where(
    filter     jsonb,
    priority   integer,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{reprioritise}', filter, dry_run, batch_size, NULL, priority,
        tasks);
END
$$;
COMMENT ON PROCEDURE queue.reprioritise_where IS
'Gives the tasks that match a filter another priority. A running task gets it when it returns to its queue. Tasks that
have that priority already are not counted. Commits after each batch if it is called outside a transaction block.
Skips tasks that another transaction has locked. Changes only tasks of queues on which the caller has the operator''s
right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (queued, scheduled, waiting,
  running), older_than and newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload
  and headers (JSON that the task''s contains), ids (an array), all (true, every task). Must not be empty.
- priority: the new priority; the smallest is claimed first.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on the queue that the filter names. QX002: it does not exist. 22004, 22023 or 54000: an
argument or an option of the filter is null, invalid or too large.';
-- CALL queue.move_where
--
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.move_where(
    filter     jsonb,
    to_queue   text,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{move}', filter, dry_run, batch_size, to_queue, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.move_where IS
'Moves the tasks that match a filter and are not running to another queue. They keep their ids, priorities, times and
keys. A task whose key another task has there stays where it is. Commits after each batch if it is called outside a
transaction block. Skips tasks that another transaction has locked, and waits for one that is taking a key. Changes only tasks of queues on which the caller
has the operator''s right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (queued, scheduled, waiting),
  older_than and newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload and headers
  (JSON that the task''s contains), ids (an array), all (true, every task). Must not be empty.
- to_queue: name of the queue to move them to.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on to_queue or the queue that the filter names. QX002: it does not exist. 22004, 22023 or
54000: an argument or an option of the filter is null, invalid or too large.';
-- CALL queue.purge_where
--
--   Touches:  queue.tasks, queue.dead_letters (deletes)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.purge_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{discard, forget}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.purge_where IS
'Deletes the tasks that match a filter and are not running, and the dead letters that match, without recording them in
the history. Commits after each batch if it is called outside a transaction block. Skips tasks that another
transaction has locked. Changes only tasks of queues on which the caller has the operator''s right.

- filter: a JSON object; a task has to match all of its options: queue, kind, worker, state (queued, scheduled, waiting,
  failed), older_than and newer_than (intervals, by created_at), key, group_key and error (LIKE patterns), payload and
  headers (JSON that the task''s contains), ids (an array), all (true, every task). Must not be empty.
  Without state, dead letters that match are deleted too.
- dry_run: true counts the matching tasks and changes nothing. Default false.
- batch_size: number of tasks in each batch, 1 to 100000. Default 1000.
- tasks: the result: how many tasks were changed, or with dry_run match. Pass nothing.

Errors: 42501: no right on the queue that the filter names. QX002: it does not exist. 22004, 22023 or 54000: an
argument or an option of the filter is null, invalid or too large.';
-- queue.channel: a channel's name has at most 63 bytes, so longer names of queues are hashed.

CREATE FUNCTION queue.channel(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    -- A channel has 63 bytes at most.
    RETURN 'queue_' || CASE WHEN octet_length(name) <= 57 THEN name ELSE md5(name) END;
END
$$;
COMMENT ON FUNCTION queue.channel IS
'Returns the name of the channel on which LISTEN receives notifications when the queue has tasks to claim. A
notification is a hint without a payload, at most one per queue and queue.notify_interval. Needs any right.

- name: name of the queue, which need not exist.

Errors: 22004, 22023 or 54000: the argument is null, invalid or too large.';
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
-- CALL queue.maintain()
--
--   Locks:    short transactions of up to 1000 tasks each, none of which waits for a lock for longer than a second
--   Bounds:   each part works for a minute at most, and leaves the rest to the next call; the search for lost events
--             runs to its end
--   In time:  due schedules run first, and again between the transactions of the other parts, so that no schedule waits
--             for the rest of the maintenance. They get at most half of the time, and what is left of those that are far
--             behind runs last, so that the rest of the maintenance does not wait for them either
--   Counting: the SQL-only edition counts many tasks at the end, in one transaction (count_all)
--   Failing:  a part that fails is reported as a WARNING and does not affect the others
--   Why it has no SET clause: a procedure with one cannot commit. So it qualifies all that it uses.

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
DECLARE
    part  pg_catalog.text;
    until pg_catalog.timestamptz;
    rest  pg_catalog.timestamptz;
    late  pg_catalog.timestamptz := '-infinity';
    late_id pg_catalog.int8 := 0;
    pos queue_internal.sweep_position;
BEGIN
    -- Events are only processed at READ COMMITTED. COMMIT AND CHAIN keeps the isolation level.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    rest := queue_internal.maintain_schedules(NULL);
    COMMIT AND CHAIN;
    until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval;
    LOOP
        SELECT d.last, d.last_id INTO late, late_id FROM queue_internal.maintain_deadlines(late, late_id) AS d;
        COMMIT AND CHAIN;
        rest := queue_internal.maintain_schedules(rest);
        COMMIT AND CHAIN;
        EXIT WHEN late IS NULL OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
    END LOOP;
    FOREACH part IN ARRAY ARRAY[
        'leases', 'dependents', 'events', 'partitions', 'history', 'dead letters', 'keys', 'starts', 'schedules', 'lanes'
    ] LOOP
        -- Sweeps first, so that the events it leaves are processed as well.
        WHILE part OPERATOR(pg_catalog.=) 'events' LOOP
            pos := queue_internal.maintain_sweep(pos);
            COMMIT AND CHAIN;
            rest := queue_internal.maintain_schedules(rest);
            COMMIT AND CHAIN;
            EXIT WHEN pos IS NULL;
        END LOOP;
        until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval;
        WHILE queue_internal.maintain_part(part) LOOP
            COMMIT AND CHAIN;
            IF part OPERATOR(pg_catalog.<>) 'schedules' THEN
                rest := queue_internal.maintain_schedules(rest);
                COMMIT AND CHAIN;
            END IF;
            EXIT WHEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
        END LOOP;
        COMMIT AND CHAIN;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.maintain IS
'Does one round of the background worker''s work, for databases without one: requeues tasks whose lease has expired, ends
tasks that were not claimed by their start deadline, runs the schedules that are due, unblocks tasks that waited for a
predecessor or their turn, creates and drops partitions of the history, and deletes old dead letters, keys, steps and
events. Call it once a minute, from pg_cron or another scheduler. Only the owner of the extension can call it, because
it creates and drops tables.

Errors: 2D000: it was called in a transaction block. A part that fails raises a WARNING, and the others still run.';

-- A call takes up to 100 ms if schedules are behind, and next to nothing if none is due.
CREATE FUNCTION queue_internal.maintain_schedules(rest timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    begun CONSTANT timestamptz := clock_timestamp();
    ended timestamptz;
BEGIN
    IF begun < rest THEN
        RETURN rest;
    END IF;
    PERFORM queue_internal.maintain_part('schedules');
    ended := clock_timestamp();
    RETURN ended + (ended - begun);
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_schedules IS
    'Runs due schedules between the other parts of queue.maintain(), unless it is before the time given; returns until '
    'when the other parts have their turn.';

CREATE FUNCTION queue_internal.maintain_sweep(pos queue_internal.sweep_position)
RETURNS queue_internal.sweep_position
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    RETURN queue_internal.sweep(pos, 1000, again => false);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not finish the search for lost events: %', SQLERRM;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_sweep IS
    'Does one transaction of the search for lost events in queue.maintain(); returns where to continue.';

-- Continues after the last task that it tried, so that tasks that cannot be ended now do not delay the others.
CREATE FUNCTION queue_internal.maintain_deadlines(
    since timestamptz, since_id bigint, OUT last timestamptz, OUT last_id bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    SELECT e.last, e.last_id INTO last, last_id FROM queue_internal.expire_unstarted(1000, since, since_id) AS e;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not finish its part "deadlines": %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_deadlines IS
    'Ends tasks that were not started in time, in one transaction of queue.maintain(); returns where to continue.';

CREATE FUNCTION queue_internal.maintain_part(part text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    CASE part
        WHEN 'leases' THEN RETURN (queue_internal.reap(1000)).reaped >= 1000;
        WHEN 'schedules' THEN RETURN (queue_internal.fire_schedules(1000, '30 seconds')).last IS NOT NULL;
        -- Before the sweep, which would leave an event for each.
        WHEN 'dependents' THEN RETURN queue_internal.notify_rests() > 0;
        WHEN 'events' THEN RETURN queue_internal.process_all_events(1000) > 0;
        WHEN 'partitions' THEN PERFORM queue_internal.extend_history();
        WHEN 'history' THEN RETURN queue_internal.retire_history(1000);
        WHEN 'dead letters' THEN RETURN queue_internal.retire_dead_letters(1000);
        WHEN 'keys' THEN RETURN queue_internal.retire_keys(1000);
        WHEN 'starts' THEN RETURN queue_internal.retire_group_starts(1000);
        WHEN 'lanes' THEN PERFORM queue_internal.sweep_lanes();
    END CASE;
    RETURN false;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() could not finish its part "%": %', part, SQLERRM;
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_part IS
    'Does one transaction of a part of queue.maintain(); returns whether there may be more to do.';
-- The entry points of the public functions.
--
--   Every public function that a role may call moves to schema queue_internal under the same name, and an entry point
--   in C with the same arguments replaces it. The entry point switches to the rights of the owner for the call
--   (src/rights.rs) and calls the moved function, which checks the rights of its caller. Some functions have a native
--   version, which the entry point tries first (src/verbs.rs).
--   Internal functions that procedures and views call as their caller get an entry point too; their SQL version is renamed
--   to core_... Functions that only the owner may call, or that only read views, stay as they are.
--   Why the entry points have no SET clause: they look up names only in the extension's schemas.

DO $$
DECLARE
    native CONSTANT text[] := '{push, push_many, claim, complete, complete_many, complete_and_claim,
                                complete_many_and_claim, extend}';
    verb   record;
BEGIN
    FOR verb IN
        SELECT p.oid::regprocedure AS core, p.proname AS name, n.nspname AS schema,
               format('%I.%I(%s) RETURNS %s LANGUAGE c %s PARALLEL UNSAFE', n.nspname, p.proname,
                      pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
                      CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END) AS header,
               CASE WHEN p.proretset AND p.prorows <> 1000 THEN format(' ROWS %s', p.prorows) ELSE '' END AS rows,
               pg_get_function_identity_arguments(p.oid) AS arguments, obj_description(p.oid, 'pg_proc') AS comment,
               -- Claiming from several queues calls that of one queue for each.
               p.proname = ANY (native) AND NOT (p.proname ~ 'claim$' AND 'text[]'::regtype = ANY (p.proargtypes)) AS is_native
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE p.prokind = 'f' AND (
            n.nspname = 'queue' AND p.proname !~ '^(grant_|revoke_|attach$|detach$|engine_stats$|health$)'
            OR n.nspname = 'queue_internal' AND p.proname = ANY (
                '{next_batch, wait_deadline, count_tables, running_tasks}'))
    LOOP
        IF verb.schema = 'queue' THEN
            EXECUTE format('ALTER FUNCTION %s SET SCHEMA queue_internal', verb.core);
        ELSE
            EXECUTE format('ALTER FUNCTION %s RENAME TO %I', verb.core, 'core_' || verb.name);
        END IF;
        EXECUTE format('CREATE FUNCTION %s%s AS %L, %L', verb.header, verb.rows, 'MODULE_PATHNAME',
                       'queue_' || CASE WHEN verb.is_native THEN verb.name ELSE 'verb' END);
        EXECUTE format('COMMENT ON FUNCTION %I.%I(%s) IS %L', verb.schema, verb.name, verb.arguments, verb.comment);
    END LOOP;
END
$$;

-- Until the timeline changes, every claim whose token counts is in the tables of this database.
UPDATE queue_internal.token_mark
SET timeline = ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint;

-- Notifies the lanes of changes that the native functions did not make: statements of the SQL implementation, and
-- INSERT, COPY, UPDATE and DELETE by clients.

CREATE FUNCTION queue_internal.tasks_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'tasks_announced';
COMMENT ON FUNCTION queue_internal.tasks_announced IS 'Announces inserted tasks to the lanes.';

CREATE TRIGGER tasks_announced AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_announced();
COMMENT ON TRIGGER tasks_announced ON queue.tasks IS 'Announces new tasks to the lanes.';

CREATE FUNCTION queue_internal.task_changed() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'task_changed';
COMMENT ON FUNCTION queue_internal.task_changed IS 'Announces a changed or deleted task to the lanes.';

CREATE TRIGGER task_changed AFTER UPDATE OR DELETE ON queue.tasks
    FOR EACH ROW EXECUTE FUNCTION queue_internal.task_changed();
COMMENT ON TRIGGER task_changed ON queue.tasks IS 'Announces changed tasks to the lanes.';

CREATE FUNCTION queue_internal.event_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'event_announced';
COMMENT ON FUNCTION queue_internal.event_announced IS
    'Announces to the lane of a queue that it has events to process.';

-- An event for a later time is announced for that time (recheck_group_at).
CREATE TRIGGER event_announced AFTER INSERT ON queue_internal.events
    FOR EACH ROW WHEN (NEW.due_at = '-infinity') EXECUTE FUNCTION queue_internal.event_announced();
COMMENT ON TRIGGER event_announced ON queue_internal.events IS
    'Announces to the lane of a queue that it has events to process.';

-- A trigger, so that a restored dump of queue.handlers also starts the handlers.
CREATE FUNCTION queue_internal.handlers_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'handlers_announced';
COMMENT ON FUNCTION queue_internal.handlers_announced IS
    'Notifies the background worker at commit that handlers were attached or detached.';

CREATE TRIGGER handlers_announced AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue.handlers
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.handlers_announced();
COMMENT ON TRIGGER handlers_announced ON queue.handlers IS
    'Notifies the background worker of attached and detached handlers.';

-- The role of a handler may have got the right that it lacked, or have lost it.
CREATE TRIGGER handlers_announced AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue.rights
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.handlers_announced();
COMMENT ON TRIGGER handlers_announced ON queue.rights IS
    'Notifies the background worker, which runs the handlers of roles with the right of a worker.';

-- Keeps the counters behind queue.stats up to date with changes that the native functions did not make.

CREATE OR REPLACE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, blocked bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'counted_wrapper';

CREATE OR REPLACE FUNCTION queue_internal.leased_tasks(queues text[]) RETURNS TABLE (queue text, running bigint, ids bigint[])
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'leased_tasks_wrapper';

CREATE FUNCTION queue_internal.history_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'history_counted';
COMMENT ON FUNCTION queue_internal.history_counted IS
    'Counts rows that are written to the history or deleted from it.';

CREATE TRIGGER history_counted AFTER INSERT ON queue.history
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_counted ON queue.history IS 'Counts finished tasks.';

CREATE TRIGGER history_uncounted AFTER DELETE ON queue.history
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_uncounted ON queue.history IS 'Subtracts deleted rows from the counters.';

CREATE FUNCTION queue_internal.dead_letter_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'dead_letter_counted';
COMMENT ON FUNCTION queue_internal.dead_letter_counted IS 'Counts dead letters that are added or removed.';

CREATE TRIGGER dead_letter_counted AFTER INSERT OR UPDATE OR DELETE ON queue.dead_letters
    FOR EACH ROW EXECUTE FUNCTION queue_internal.dead_letter_counted();
COMMENT ON TRIGGER dead_letter_counted ON queue.dead_letters IS 'Counts dead letters.';

CREATE FUNCTION queue_internal.table_emptied() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'table_emptied';
COMMENT ON FUNCTION queue_internal.table_emptied IS 'Resets the counters after a TRUNCATE.';

-- ALWAYS, so that they also fire with session_replication_role = replica: changes that are not counted would make the
-- counters wrong.
DO $$
DECLARE
    emptied regclass;
    counts  record;
BEGIN
    FOREACH emptied IN ARRAY ARRAY['queue.tasks', 'queue.history', 'queue.dead_letters']::regclass[] LOOP
        EXECUTE format('CREATE TRIGGER table_emptied AFTER TRUNCATE ON %s
                        FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.table_emptied()', emptied);
        EXECUTE format('COMMENT ON TRIGGER table_emptied ON %s IS %L', emptied,
                       'Resets the counters.');
    END LOOP;
    FOR counts IN
        SELECT t.tgrelid::regclass AS of, t.tgname AS name FROM pg_trigger AS t
        WHERE t.tgname IN ('tasks_announced', 'task_changed', 'history_counted', 'history_uncounted',
                           'dead_letter_counted', 'table_emptied')
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', counts.of, counts.name);
    END LOOP;
END
$$;

SELECT queue_internal.announce_extension();
-- The views queue.stats and queue.workers. They read memory where they can, so they come after the functions of the
-- library that they call (native.sql). Rights as in views.sql.

-- Reads the counters in shared memory, or what queue.maintain() has counted (counted_at). Other queues are counted, in
-- one pass over each table. The counters do not include rows that logical replication inserts.
CREATE VIEW queue.stats WITH (security_barrier) AS
WITH moment AS MATERIALIZED (SELECT queue_internal.counted_at() AS counted_at),
shown AS MATERIALIZED (
    SELECT q.name, q.paused_at FROM queue.queues AS q
    WHERE coalesce(q.name = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
),
counted AS MATERIALIZED (
    SELECT c.*
    FROM queue_internal.counted(ARRAY(
        SELECT q.name FROM shown AS q
        WHERE NOT EXISTS (SELECT FROM pg_subscription_rel AS r WHERE r.srrelid = 'queue.tasks'::regclass)
    )) AS c
),
numbers AS (
    SELECT c.*, m.counted_at FROM counted AS c, moment AS m
    UNION ALL
    SELECT t.*, NULL FROM queue_internal.count_tables(ARRAY(
        SELECT q.name FROM shown AS q WHERE NOT EXISTS (SELECT FROM counted AS c WHERE c.queue = q.name))) AS t
)
SELECT q.name AS queue,
       q.paused_at IS NOT NULL AS paused,
       coalesce(n.queued, 0) AS queued,
       coalesce(n.scheduled, 0) AS scheduled,
       coalesce(n.waiting, 0) AS waiting,
       coalesce(n.blocked, 0) AS blocked,
       coalesce(n.running, 0) AS running,
       coalesce(n.dead, 0) AS dead,
       CASE WHEN isfinite(n.oldest_due_at) THEN coalesce(n.counted_at, now()) - n.oldest_due_at END AS oldest_due_age,
       coalesce(n.completed, 0) AS completed_last_hour,
       coalesce(n.cancelled, 0) AS cancelled_last_hour,
       coalesce(n.failed, 0) AS failed_last_hour,
       round(coalesce(n.rate, 0)::numeric, 1) AS completed_per_second,
       n.counted_at
FROM shown AS q
LEFT JOIN numbers AS n ON n.queue = q.name;

CREATE VIEW queue.workers WITH (security_barrier) AS
SELECT w.worker,
       w.queue,
       count(w.lease_until) AS running,
       min(w.claimed_at) AS working_since,
       min(w.lease_until) AS next_lease_until,
       count(*) FILTER (WHERE w.lease_until <= coalesce(w.counted_at, now())) AS overdue,
       count(*) FILTER (WHERE w.waits) AS waiting,
       min(w.since) AS waiting_since,
       w.counted_at
FROM (SELECT t.worker, t.queue, t.claimed_at, t.lease_until, t.counted_at, false AS waits, NULL::timestamptz AS since
      FROM queue_internal.running_tasks() AS t
      UNION ALL SELECT i.worker, i.queue, NULL, NULL, NULL, true, i.since FROM queue_internal.waiting_workers() AS i) AS w
WHERE coalesce(w.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY w.worker, w.queue, w.counted_at;
-- queue.health
--
--   Touches:  queue.stats, queue.workers, queue.batches, queue.failing_schedules, queue.due_schedules,
--             queue.failing_handlers, queue.delayed_events, queue.engine_stats(), and views and catalogs of the
--             server (reads). Nothing else, because roles that may monitor have no right on the tables nor in queue_internal

CREATE FUNCTION queue.health(
    due_for     interval DEFAULT '10 minutes',
    overdue_for interval DEFAULT NULL,
    pinned_for  interval DEFAULT '10 minutes',
    failed      bigint   DEFAULT 10,
    held_back   bigint   DEFAULT 1000000)
RETURNS TABLE (name text, status text, detail text, hint text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Compiling the queries takes longer than running them.
SET jit = off
-- The bounds of partitions are read from text.
SET datestyle = 'ISO'
AS $$
DECLARE
    due_for     CONSTANT interval := coalesce(due_for, '10 minutes');
    pinned_for  CONSTANT interval := coalesce(pinned_for, '10 minutes');
    failed      CONSTANT bigint := coalesce(failed, 10);
    held_back   CONSTANT bigint := coalesce(held_back, 1000000);
    moment      CONSTANT timestamptz := clock_timestamp();
    today       CONSTANT date := (moment AT TIME ZONE 'UTC')::date;
    engine      CONSTANT jsonb := queue.engine_stats();
    -- queue.maintain() runs once a minute.
    overdue_for CONSTANT interval := coalesce(
        overdue_for, CASE WHEN engine ? 'worker' THEN interval '1 minute' ELSE interval '2 minutes' END);
    stats       CONSTANT queue.stats[] := ARRAY(SELECT s FROM queue.stats AS s);
    by_hand     CONSTANT text := 'Meanwhile, run CALL queue.maintain() once a minute; handlers do not run.';
BEGIN
    -- They only differ during an upgrade of the library or the extension.
    RETURN QUERY
    SELECT 'version', CASE WHEN v.extension = v.library THEN 'ok' ELSE 'warning' END,
           format('extension version %s, library version %s', v.extension, v.library),
           CASE WHEN v.extension <> v.library THEN
               'If the extension is older: ALTER EXTENSION queue_ext UPDATE. If the library is older: restart the server.' END
    FROM (SELECT e.extversion AS extension, coalesce(engine ->> 'version', e.extversion) AS library
          FROM pg_extension AS e WHERE e.extname = 'queue_ext') AS v;

    -- Each of the next two returns the first row that matches.
    RETURN QUERY
    SELECT 'engine', f.status, f.detail, f.hint
    FROM (VALUES
        (engine ? 'edition', 'ok',
         format('%s edition, without a library', engine ->> 'edition')
         || coalesce(', tasks counted at ' || (SELECT max(s.counted_at) FROM unnest(stats) AS s), ''), NULL),
        (engine ? 'max_lanes', 'ok', 'the library is preloaded', NULL),
        ((engine ->> 'loaded')::boolean, 'warning', 'queue.lanes is 0',
         'Claims are slower. Set queue.lanes and restart the server.'),
        (true, 'warning', 'the library is not preloaded',
         'There are no handlers and no notifications, and claims are slower. Call queue.maintain() once a minute, or add '
         'queue_ext to shared_preload_libraries and restart the server.')
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;

    RETURN QUERY
    SELECT 'worker', f.status, f.detail, f.hint
    FROM (VALUES
        (pg_is_in_recovery(), 'ok', 'a standby has no background worker', NULL),
        (engine ? 'worker', 'ok', 'process ' || (engine #>> '{worker,pid}'), NULL),
        ((engine ->> 'maintained_at')::timestamptz > moment - interval '5 minutes', 'ok',
         'queue.maintain() last ran at ' || (engine ->> 'maintained_at'), NULL),
        (engine ? 'edition', 'critical',
         coalesce('queue.maintain() last ran at ' || (engine ->> 'maintained_at'), 'queue.maintain() has never run'),
         'Run CALL queue.maintain() once a minute, with pg_cron or another scheduler.'),
        (NOT (engine ->> 'loaded')::boolean, 'warning', 'the library is not preloaded, so there is no background worker', by_hand),
        (NOT current_setting('queue.worker_enabled', true)::boolean, 'warning', 'queue.worker_enabled is off', by_hand),
        (true, 'critical', 'there is no background worker',
         'After a crash it restarts within seconds. If it does not, look in the server log; max_worker_processes '
         'may be too low. ' || by_hand)
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;

    RETURN QUERY
    SELECT 'lanes', 'warning', format('%s queues with tasks have no lane, so their workers are slower', count(*)),
           'Raise queue.lanes and restart the server.'
    FROM unnest(stats) AS s
    WHERE s.queued + s.running > 0 AND NOT engine -> 'lanes' ? s.queue
      AND (engine #>> '{verbs,fallbacks,no_lane}')::bigint > 0
    HAVING count(*) > 0;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'lanes', 'ok', 'no queue with tasks lacks a lane', NULL;
    END IF;

    RETURN QUERY
    SELECT 'due tasks', 'warning',
           format('queue %s: %s tasks are due, the oldest for %s', to_json(s.queue), s.queued,
                  date_trunc('second', s.oldest_due_age)),
           CASE WHEN s.paused THEN format('The queue is paused: SELECT queue.resume(%L).', s.queue)
                WHEN s.running = 0 THEN 'Start workers. If there are some, a limit of the queue or an open transaction '
                                        'with claims holds them up.'
                ELSE 'Start more workers, raise a limit of the queue, or look in queue.workers for workers that hang.' END
    FROM unnest(stats) AS s WHERE s.oldest_due_age > due_for ORDER BY s.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'due tasks', 'ok', format('no task has been due for %s', due_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'leases', 'warning',
           format('queue %s: a lease of worker %s expired %s ago, but its task was not requeued', to_json(w.queue),
                  coalesce(to_json(w.worker)::text, 'without a name'),
                  CASE WHEN isfinite(w.next_lease_until)
                       THEN date_trunc('second', coalesce(w.counted_at, moment) - w.next_lease_until) END),
           'SELECT queue.reap() requeues it. If there is a background worker, the server log has the reason.'
    FROM queue.workers AS w WHERE w.next_lease_until < coalesce(w.counted_at, moment) - overdue_for ORDER BY w.queue, w.worker;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'leases', 'ok', format('none expired more than %s ago', overdue_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'events', 'warning',
           format('queue %s: %s tasks or groups cannot be unblocked, %s of them because of an error',
                  to_json(d.queue), d.events, d.failing),
           CASE WHEN d.failing = 0 THEN
                    'Another transaction has them locked: look for long transactions in pg_stat_activity.'
                ELSE format('Remove the cause; then they are tried again within ten seconds. The owner of the extension '
                            'sees the errors: SELECT task_id, group_key, error FROM queue_internal.events '
                            'WHERE queue = %L AND error IS NOT NULL.', d.queue) END
    FROM queue.delayed_events AS d ORDER BY d.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'events', 'ok', 'none is delayed', NULL;
    END IF;

    RETURN QUERY
    SELECT 'batches', 'warning',
           format('queue %s: %s batches have not been sealed, the oldest, %s, for %s', to_json(b.queue), count(*),
                  min(b.batch), date_trunc('second', max(b.age))),
           format('Their callbacks wait until they are sealed: SELECT queue.seal_batch(%s). '
                  'If a batch is not needed any longer: SELECT queue.cancel(%1$s).', min(b.batch))
    FROM queue.batches AS b WHERE b.sealed_at IS NULL AND b.age > interval '1 day'
    GROUP BY b.queue ORDER BY b.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'batches', 'ok', 'none has been open for more than a day', NULL;
    END IF;

    RETURN QUERY
    SELECT 'schedules', 'warning', p.detail, p.hint
    FROM (
        SELECT f.queue,
               format('queue %s: schedules that could not push their last task: %s, the first since %s',
                      to_json(f.queue), f.schedules, f.since) AS detail,
               format('They are tried again at least once a minute. The cause: SELECT name, last_error FROM '
                      'queue.schedules WHERE queue = %L AND last_error IS NOT NULL.', f.queue) AS hint
        FROM queue.failing_schedules AS f WHERE f.last_error_at > moment - interval '1 hour'
        UNION ALL
        SELECT d.queue,
               format('queue %s: schedules that are due: %s, the first since %s', to_json(d.queue), d.schedules, d.since),
               'CALL queue.maintain() runs them. If there is a background worker, the server log has the reason.'
        FROM queue.due_schedules AS d WHERE d.since < moment - overdue_for
    ) AS p ORDER BY p.queue, p.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'schedules', 'ok', 'all of them pushed their last task', NULL;
    END IF;

    RETURN QUERY
    SELECT 'handlers', 'warning', p.detail, p.hint
    FROM (
        SELECT f.queue, format('queue %s: its handler does not run, because %s', to_json(f.queue), f.problem) AS detail, f.hint
        FROM queue.failing_handlers AS f
        UNION ALL
        SELECT NULL, format('%s processes for handlers could not be started', engine #>> '{handlers,unstarted}'),
               'Raise max_worker_processes and restart the server, or attach handlers with fewer workers.'
        WHERE (engine #>> '{handlers,unstarted}')::integer > 0
        UNION ALL
        SELECT NULL, format('the processes for handlers of %s queues keep exiting', engine #>> '{handlers,failing}'),
               'The server log has the reason. They are started again after pauses of up to a minute.'
        WHERE (engine #>> '{handlers,failing}')::integer > 0
    ) AS p ORDER BY p.queue, p.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'handlers', 'ok', 'all that are attached can run', NULL;
    END IF;

    RETURN QUERY
    SELECT 'dead letters', 'warning',
           format('queue %s: %s tasks failed for good in the last hour; it has %s dead letters', to_json(s.queue),
                  s.failed_last_hour, s.dead),
           format('SELECT id, errors -> -1 FROM queue.dead_letters WHERE queue = %L. '
                  'Once the cause is fixed: SELECT queue.redrive(%1$L).', s.queue)
    FROM unnest(stats) AS s WHERE s.failed_last_hour >= failed ORDER BY s.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'dead letters', 'ok', format('no queue got %s or more in the last hour', failed), NULL;
    END IF;

    -- By time where it is known; for slots and standbys by the number of transactions.
    RETURN QUERY
    SELECT 'horizon', 'warning', p.detail, p.hint
    FROM (
        SELECT format('process %s (user %s, application %s, %s) has a transaction open for %s', a.pid,
                      to_json(a.usename), to_json(a.application_name), coalesce(a.state, a.backend_type),
                      date_trunc('second', moment - a.xact_start)) AS detail,
               format('Until it ends, vacuum cannot remove finished tasks. SELECT pg_terminate_backend(%s) ends it.',
                      a.pid) AS hint
        FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
          AND a.backend_type <> 'autovacuum worker' AND a.xact_start < moment - pinned_for
        UNION ALL
        SELECT format('transaction %L was prepared %s ago', x.gid, date_trunc('second', moment - x.prepared)),
               format('COMMIT PREPARED %L, or ROLLBACK PREPARED %1$L.', x.gid)
        FROM pg_prepared_xacts AS x
        WHERE x.database = current_database() AND x.prepared < moment - pinned_for
        UNION ALL
        SELECT format('replication slot %s holds back vacuum by %s transactions', to_json(s.slot_name), age(s.xmin)),
               format('Let its standby catch up, or drop it: SELECT pg_drop_replication_slot(%L).', s.slot_name)
        FROM pg_replication_slots AS s WHERE age(s.xmin) > held_back
        UNION ALL
        SELECT format('standby %s holds back vacuum by %s transactions', to_json(r.application_name), age(r.backend_xmin)),
               'End the old query on the standby, or turn off hot_standby_feedback.'
        FROM pg_stat_replication AS r WHERE age(r.backend_xmin) > held_back
    ) AS p;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'horizon', 'ok', format('nothing has held back vacuum for %s', pinned_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'partitions', f.status, f.detail, f.hint
    FROM (SELECT max(right(c.relname, 8)) FILTER (WHERE c.relispartition),
                 bool_or(c.relispartition AND right(c.relname, 8) = to_char(today + 1, 'YYYYMMDD')),
                 min(c.relname) FILTER (WHERE NOT c.relispartition AND right(c.relname, 8) >= to_char(today, 'YYYYMMDD'))
          FROM pg_class AS c
          WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^history_[0-9]{8}$')
         AS h (last, there, loose),
    -- A partition made by hand that holds a part of tomorrow, and whether it holds all of it.
    (SELECT min(p.relid::regclass::text), bool_or(p.since <= p.day AND p.until >= p.day + interval '24 hours') FROM (
         SELECT c.oid AS relid, (today + 1)::timestamp AT TIME ZONE 'UTC' AS day,
                coalesce(nullif(btrim(b[1], ''''), 'MINVALUE'), '-infinity')::timestamptz AS since,
                coalesce(nullif(btrim(b[2], ''''), 'MAXVALUE'), 'infinity')::timestamptz AS until
         FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
              LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(](.*)[)] TO [(](.*)[)]') AS b
         WHERE i.inhparent = 'queue.history'::regclass AND b IS NOT NULL) AS p
     WHERE p.since < p.day + interval '24 hours' AND p.until > p.day) AS o (name, whole),
    LATERAL (VALUES
        (h.loose IS NOT NULL, 'warning',
         format('table queue.%s is not attached to queue.history, and no partition is created until it is', h.loose),
         'A dump that is being restored will attach it. Otherwise attach it with ALTER TABLE queue.history ATTACH '
         'PARTITION, or drop it.'),
        (h.there, 'ok', 'the last one is for ' || h.last, NULL),
        (o.whole, 'ok', format('the partition %s holds tomorrow', o.name), NULL),
        (o.name IS NOT NULL, 'warning',
         format('the partition %s holds only a part of tomorrow, so no other is created for that day', o.name),
         'The other rows of that day go to queue.history_default. Attach partitions by hand for whole days (UTC).'),
        (h.last IS NULL, 'ok', 'no task has finished yet', NULL),
        (true, 'warning', 'there is none for tomorrow; the last one is for ' || h.last,
         'Rows without one go to queue.history_default. CALL queue.maintain() creates partitions, unless '
         'a transaction has queue.history locked.')
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;
END
$$;
COMMENT ON FUNCTION queue.health IS
'Checks this database, and returns what is wrong and what to do about it: a row for each check, or one for each queue
or transaction that a check complains about. name: the check. status: ok, warning or critical. detail: what was found.
hint: what to do, or null. Needs the operator''s right on any queue, or pg_monitor.

- due_for: how long a task may be due before its queue is reported. Default 10 minutes.
- overdue_for: how long ago a lease may have expired, or a schedule become due. Default 1 minute, or 2
  minutes without the background worker, because queue.maintain() runs once a minute.
- pinned_for: how long a transaction may hold back vacuum. Default 10 minutes.
- failed: how many tasks of a queue may fail within an hour before it is reported. Default 10.
- held_back: by how many transactions a replication slot or a standby may hold back vacuum. Default 1000000.

Null means the default.';
-- The comments of tables, views and columns, for \d+ and for every tool that shows them.

COMMENT ON TABLE queue.queues IS 'The queues and their options. Change them with queue.create() and queue.configure().';
COMMENT ON COLUMN queue.queues.name IS 'The name of the queue, 1 to 128 bytes.';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts that names no lease.';
COMMENT ON COLUMN queue.queues.timeout IS
    'How long an attempt may take of a task that was pushed without a timeout of its own; null for no limit.';
COMMENT ON COLUMN queue.queues.ttl IS
    'The default start deadline of a task, as an interval from its push; null for none.';
COMMENT ON COLUMN queue.queues.on_expired IS
    'What happens to a task that no worker has claimed by its start deadline: dead makes it a dead letter, cancel cancels it.';
COMMENT ON COLUMN queue.queues.max_queued IS
    'How many queued tasks the queue may have. Pushes beyond that are refused; null for no limit.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'Attempts of a task that was pushed without a number of its own.';
COMMENT ON COLUMN queue.queues.backoff_kind IS 'How the delay grows with each failure: fixed, linear or exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The delay after the first failure.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest delay.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS
    'Jitter, 0 to 1: the largest fraction randomly subtracted from each delay.';
COMMENT ON COLUMN queue.queues.paused_at IS 'When the queue was paused; null if it is not.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many tasks may run at a time; null for no limit.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS
    'How many tasks of a group may run at a time. At 1 they run in the order of their ids.';
COMMENT ON COLUMN queue.queues.rate_limit IS
    'How many tasks may start in any rate_period, each counted with its weight; null for no limit.';
COMMENT ON COLUMN queue.queues.group_rate_limit IS
    'How many tasks of a group may start in any rate_period, each counted with its weight; null for no limit.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The period of rate_limit and group_rate_limit.';
COMMENT ON COLUMN queue.queues.delayed_head IS
    'What happens while the first task of a group is delayed: block makes the others wait, pass lets them run first.';
COMMENT ON COLUMN queue.queues.fair_groups IS 'Whether the groups take turns, one task each.';
COMMENT ON COLUMN queue.queues.ageing IS 'The waiting time that counts as one step of priority; null for none.';
COMMENT ON COLUMN queue.queues.key_ttl IS 'How long a completed or cancelled task keeps its key; null for not at all.';
COMMENT ON COLUMN queue.queues.on_predecessor_failure IS
    'What happens to a task if one that it waits for fails or is cancelled: fail, cancel or continue.';
COMMENT ON COLUMN queue.queues.keep_history IS 'Whether completed and cancelled tasks are kept in queue.history.';
COMMENT ON COLUMN queue.queues.keep_payloads IS 'Whether queue.history keeps the payloads of these tasks.';
COMMENT ON COLUMN queue.queues.durable_leases IS
    'Whether leases of the queue have to survive a crash: on, off or auto; null for what the setting says.';
COMMENT ON COLUMN queue.queues.created_at IS 'When the queue was created.';

COMMENT ON SEQUENCE queue.tasks_id_seq IS 'The ids of tasks. They have gaps and do not follow the order of commits.';
COMMENT ON TABLE queue.tasks IS
    'The tasks that are not finished. A plain INSERT or COPY of queue and payload has the same effect as a push.';
COMMENT ON COLUMN queue.tasks.id IS 'The id of the task, which it keeps in the history and as a dead letter.';
COMMENT ON COLUMN queue.tasks.queue IS 'The name of its queue.';
COMMENT ON COLUMN queue.tasks.state IS
    'waiting (for other tasks), queued or running. A queued task whose run_at is in the future is called scheduled.';
COMMENT ON COLUMN queue.tasks.priority IS 'The task with the smallest priority is claimed first.';
COMMENT ON COLUMN queue.tasks.run_at IS 'Earliest time at which the task can be claimed.';
COMMENT ON COLUMN queue.tasks.attempt IS 'How many attempts have begun, the current one included.';
COMMENT ON COLUMN queue.tasks.max_attempts IS 'Number of attempts; null for the option of the queue.';
COMMENT ON COLUMN queue.tasks.token IS
    'The fencing token: larger with every claim, below 2^53, and not consecutive. Only the newest one is valid.';
COMMENT ON COLUMN queue.tasks.lease_until IS 'When the lease of a running task expires, unless the worker extends it.';
COMMENT ON COLUMN queue.tasks.worker IS 'The name that the worker passed to the claim.';
COMMENT ON COLUMN queue.tasks.claimed_at IS 'When the current or last attempt began.';
COMMENT ON COLUMN queue.tasks.updated_at IS 'When the task last changed.';
COMMENT ON COLUMN queue.tasks.created_at IS 'When the task was pushed.';
COMMENT ON COLUMN queue.tasks.cancel_requested_at IS 'When queue.cancel() was called for the running task.';
COMMENT ON COLUMN queue.tasks.key IS 'Unique among the tasks of the queue that are not finished; null for none.';
COMMENT ON COLUMN queue.tasks.group_key IS
    'The group, of which max_running_per_group tasks may run at a time; null for none.';
COMMENT ON COLUMN queue.tasks.admission IS
    '0, open: the task can be claimed. 1, admitted: it can be claimed, as one of its group. 2, blocked: it waits for '
    'other tasks.';
COMMENT ON COLUMN queue.tasks.backoff IS
    'The parts of the backoff that were given by the push; null for the options of the queue.';
COMMENT ON COLUMN queue.tasks.kind IS 'What sort of work it is, by which workers choose their code; null for none.';
COMMENT ON COLUMN queue.tasks.lease IS 'How long a claim lasts that names no lease; null for the option of the queue.';
COMMENT ON COLUMN queue.tasks.timeout IS 'How long an attempt may take; null for the option of the queue.';
COMMENT ON COLUMN queue.tasks.start_by IS
    'The start deadline: if no worker has claimed the task by then, it expires; null for none.';
COMMENT ON COLUMN queue.tasks.weight IS 'How much of rate_limit and group_rate_limit a start of the task uses up.';
COMMENT ON COLUMN queue.tasks.headers IS 'A JSON object with metadata: request id, user, trace context.';
COMMENT ON COLUMN queue.tasks.payload IS 'What the worker is to do, as the producer pushed it.';
COMMENT ON COLUMN queue.tasks.progress IS 'What the worker last passed to queue.extend() as progress.';
COMMENT ON COLUMN queue.tasks.errors IS
    'An array with an object for each attempt that did not succeed, or with the reason why the task ended without one: attempt, '
    'claimed_at, at (when it ended), worker, error, and the details that the worker passed to queue.fail(), if any. Of more than twenty, the first ten and the last ten.';

COMMENT ON TABLE queue.history IS 'The tasks that completed or were cancelled, in one partition per day (UTC).';
COMMENT ON COLUMN queue.history.state IS 'completed or cancelled.';
COMMENT ON COLUMN queue.history.finished_at IS 'When the task completed or was cancelled.';
COMMENT ON COLUMN queue.history.payload IS
    'What the worker had to do; null if its queue does not keep payloads.';
COMMENT ON COLUMN queue.history.result IS 'What the worker passed to queue.complete().';
COMMENT ON TABLE queue.history_default IS 'The history of days whose partition was not created in time.';
COMMENT ON TABLE queue.dead_letters IS
    'The tasks that failed for good, with their errors, until they are retried, redriven, purged or past their retention.';
COMMENT ON COLUMN queue.dead_letters.failed_at IS 'When the last attempt failed.';
COMMENT ON COLUMN queue.dead_letters.key_ttl IS 'The key_ttl of the push, for the time after a redrive; negative if it counts from the push.';

COMMENT ON VIEW queue.all_tasks IS 'Every task: live, finished, and failed for good.';
COMMENT ON COLUMN queue.all_tasks.state IS 'waiting, queued, running, completed, cancelled or failed.';
COMMENT ON COLUMN queue.all_tasks.finished_at IS
    'When the task completed, failed or was cancelled; null for a live task.';
COMMENT ON COLUMN queue.all_tasks.result IS 'What the worker passed to queue.complete().';

COMMENT ON TYPE queue.claimed_task IS 'What a claim returns: a task and the token of its lease.';
COMMENT ON COLUMN queue.claimed_task.progress IS 'What an earlier attempt last reported as progress.';

-- The same column means the same wherever a task is.
DO $$
DECLARE
    same record;
BEGIN
    FOR same IN
        SELECT a.attrelid::regclass AS relation, a.attname AS name, col_description(t.attrelid, t.attnum) AS comment
        FROM pg_attribute AS a JOIN pg_attribute AS t ON t.attname = a.attname
        WHERE t.attrelid = 'queue.tasks'::regclass AND t.attnum > 0 AND col_description(t.attrelid, t.attnum) IS NOT NULL
          AND a.attrelid IN ('queue.history'::regclass, 'queue.dead_letters'::regclass, 'queue.all_tasks'::regclass,
                             'queue.claimed_task'::regclass)
          AND a.attnum > 0 AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', same.relation, same.name, same.comment);
    END LOOP;
END
$$;

COMMENT ON VIEW queue.stats IS
    'How many tasks of each queue are in which state, and how many finished in the last hour.';
COMMENT ON COLUMN queue.stats.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.stats.paused IS 'Whether the queue is paused.';
COMMENT ON COLUMN queue.stats.queued IS 'Tasks that are due and can be claimed.';
COMMENT ON COLUMN queue.stats.scheduled IS 'Queued tasks whose run_at is in the future.';
COMMENT ON COLUMN queue.stats.waiting IS 'Tasks that wait for other tasks to end.';
COMMENT ON COLUMN queue.stats.blocked IS 'Queued tasks that are blocked in their group.';
COMMENT ON COLUMN queue.stats.running IS 'Tasks that a worker has leased.';
COMMENT ON COLUMN queue.stats.dead IS 'Dead letters.';
COMMENT ON COLUMN queue.stats.oldest_due_age IS
    'For how long the task that has been due longest has been due; null if none is due.';
COMMENT ON COLUMN queue.stats.completed_last_hour IS 'Tasks that completed in the last hour.';
COMMENT ON COLUMN queue.stats.cancelled_last_hour IS 'Tasks that were cancelled in the last hour.';
COMMENT ON COLUMN queue.stats.failed_last_hour IS 'Tasks that became dead letters in the last hour.';
COMMENT ON COLUMN queue.stats.completed_per_second IS 'Tasks that completed, per second, over the last minute.';
COMMENT ON COLUMN queue.stats.counted_at IS
    'When the tasks were counted; null if this query counted them. In the SQL-only edition with many tasks, queue.maintain() '
    'counts them.';
COMMENT ON VIEW queue.workers IS
    'The workers of each queue that hold leases or wait for a task. The SQL-only edition does not show workers that wait.';
COMMENT ON COLUMN queue.workers.worker IS 'The name that the worker passed to claim, take or wait; null if none.';
COMMENT ON COLUMN queue.workers.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.workers.running IS 'How many tasks of the queue the worker has leased.';
COMMENT ON COLUMN queue.workers.working_since IS 'When the earliest of these attempts began.';
COMMENT ON COLUMN queue.workers.next_lease_until IS 'When the first of these leases expires.';
COMMENT ON COLUMN queue.workers.overdue IS 'How many of these leases have expired.';
COMMENT ON COLUMN queue.workers.waiting IS 'How many sessions wait for a task of the queue under that name.';
COMMENT ON COLUMN queue.workers.waiting_since IS 'When the first of these began to wait.';
COMMENT ON COLUMN queue.workers.counted_at IS 'When queue.maintain() read the running tasks; null if this query read them.';
COMMENT ON VIEW queue.batches IS
    'The batches whose callback still waits. Counting the tasks of a large batch takes time.';
COMMENT ON COLUMN queue.batches.batch IS 'The id of the batch and of its callback.';
COMMENT ON COLUMN queue.batches.queue IS 'The queue of the callback.';
COMMENT ON COLUMN queue.batches.created_at IS 'When the batch was created.';
COMMENT ON COLUMN queue.batches.age IS 'How long ago the batch was created.';
COMMENT ON COLUMN queue.batches.sealed_at IS 'When the batch was sealed; null while tasks can be pushed into it.';
COMMENT ON COLUMN queue.batches.unfinished IS 'How many of its tasks have not ended.';
COMMENT ON COLUMN queue.batches.completed IS 'How many of its tasks completed.';
COMMENT ON COLUMN queue.batches.failed IS 'How many of its tasks failed for good.';
COMMENT ON COLUMN queue.batches.cancelled IS 'How many of its tasks were cancelled, purged or deleted.';
COMMENT ON VIEW queue.dependencies IS 'Which tasks wait for which.';
COMMENT ON COLUMN queue.dependencies.task_id IS 'The id of the task that waits.';
COMMENT ON COLUMN queue.dependencies.queue IS 'The queue of the task that waits.';
COMMENT ON COLUMN queue.dependencies.predecessor_id IS 'The id of the task that it waits for.';
COMMENT ON COLUMN queue.dependencies.outcome IS
    'How the predecessor ended: completed, failed, cancelled or purged; null if it has not ended, or if the task that '
    'waits was not notified yet.';
COMMENT ON COLUMN queue.dependencies.on_failure IS
    'What happens to the waiting task if the predecessor fails or is cancelled: cancel, fail or continue; null for the '
    'callback of a batch.';
COMMENT ON COLUMN queue.dependencies.is_batch IS
    'Whether the task is the callback of a batch and the predecessor is a task of that batch.';
COMMENT ON VIEW queue.delayed_events IS
    'How many tasks and groups of each queue cannot be unblocked, although what they waited for has ended. Readable by '
    'pg_monitor.';
COMMENT ON COLUMN queue.delayed_events.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.delayed_events.events IS 'How many tasks and groups were tried more than seven times.';
COMMENT ON COLUMN queue.delayed_events.failing IS
    'How many of them because of an error. The others are locked by another transaction.';
COMMENT ON VIEW queue.failing_handlers IS
    'The handlers that the background worker does not run, and why. Readable by pg_monitor.';
COMMENT ON COLUMN queue.failing_handlers.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.failing_handlers.problem IS 'Why the handler does not run.';
COMMENT ON COLUMN queue.failing_handlers.hint IS 'What to do about it.';
COMMENT ON VIEW queue.failing_schedules IS
    'How many schedules of each queue could not push their last task, and since when.';
COMMENT ON COLUMN queue.failing_schedules.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.failing_schedules.schedules IS 'How many of its schedules fail.';
COMMENT ON COLUMN queue.failing_schedules.since IS 'The earliest run that could not be pushed.';
COMMENT ON COLUMN queue.failing_schedules.last_error_at IS 'When a push last failed.';
COMMENT ON VIEW queue.due_schedules IS
    'How many schedules of each queue are due and have not run yet, and since when. Without those that fail.';
COMMENT ON COLUMN queue.due_schedules.queue IS 'The name of the queue.';
COMMENT ON COLUMN queue.due_schedules.schedules IS 'How many of its schedules are due.';
COMMENT ON COLUMN queue.due_schedules.since IS 'The earliest run that was not pushed yet.';

COMMENT ON TABLE queue.schedules IS
    'The schedules. Change them with queue.schedule(), queue.unschedule() and queue.pause_schedule().';
COMMENT ON COLUMN queue.schedules.name IS 'The name of the schedule, unique in the database.';
COMMENT ON COLUMN queue.schedules.cron IS 'The cron expression: five or six fields, or a macro.';
COMMENT ON COLUMN queue.schedules.timezone IS 'The time zone of the expression, a name from pg_timezone_names.';
COMMENT ON COLUMN queue.schedules.queue IS 'The queue to which each run pushes a task.';
COMMENT ON COLUMN queue.schedules.payload IS 'The payload of each task.';
COMMENT ON COLUMN queue.schedules.options IS 'Further arguments of queue.push() for each task.';
COMMENT ON COLUMN queue.schedules.missed_runs IS 'What happens with runs that nothing ran in time: skip, once or all.';
COMMENT ON COLUMN queue.schedules.next_run_at IS 'The next run; null while the schedule is paused.';
COMMENT ON COLUMN queue.schedules.last_run_at IS 'The last run for which a task was pushed.';
COMMENT ON COLUMN queue.schedules.paused_at IS 'When the schedule was paused; null if it is not.';
COMMENT ON COLUMN queue.schedules.last_error IS 'Why the last push failed; null if it succeeded.';
COMMENT ON COLUMN queue.schedules.last_error_at IS 'When a push last failed.';
COMMENT ON COLUMN queue.schedules.created_at IS 'When the schedule was created.';
COMMENT ON TABLE queue.bindings IS
    'Which topics each queue is bound to. Change it with queue.bind() and queue.unbind().';
COMMENT ON COLUMN queue.bindings.topic_pattern IS 'Words and dots; * matches one word, # any number of words.';
COMMENT ON COLUMN queue.bindings.queue IS 'The queue to which queue.publish() pushes.';
COMMENT ON COLUMN queue.bindings.topic_regex IS
    'The pattern as a regular expression, for the topic with a dot before it.';
COMMENT ON COLUMN queue.bindings.created_at IS 'When the binding was created.';
COMMENT ON TABLE queue.handlers IS
    'The functions that handle tasks in the database, one for each queue. Change them with queue.attach() and queue.detach().';
COMMENT ON COLUMN queue.handlers.queue IS 'The queue whose tasks are handled.';
COMMENT ON COLUMN queue.handlers.handler IS 'The name of the function that is called for each task.';
COMMENT ON COLUMN queue.handlers.role IS 'The role that claims the tasks and calls the function.';
COMMENT ON COLUMN queue.handlers.workers IS 'How many processes handle tasks at the same time.';
COMMENT ON COLUMN queue.handlers.created_at IS 'When the handler was attached.';
COMMENT ON TABLE queue.rights IS
    'The rights of roles. Change them with queue.grant_producer(), queue.revoke_producer() and their counterparts.';
COMMENT ON COLUMN queue.rights.role IS 'The role that has the right.';
COMMENT ON COLUMN queue.rights.kind IS 'producer, worker or operator.';
COMMENT ON COLUMN queue.rights.queue IS 'The queue that the right is for; null for all.';

COMMENT ON TABLE queue_internal.keys IS 'Which task has a key, and until when after it finished.';
COMMENT ON TABLE queue_internal.dependencies IS 'Which task waits for which predecessors, and how those ended.';
COMMENT ON TABLE queue_internal.batches IS 'Which tasks are callbacks of batches, and which batches are sealed.';
COMMENT ON TABLE queue_internal.outcomes IS 'Outcomes of tasks with dependents that were not notified when the task ended.';
COMMENT ON TABLE queue_internal.events IS 'Hints to check a waiting task or a group; the next claim processes them.';
COMMENT ON TABLE queue_internal.group_heads IS 'Groups with many dead index entries: no task of the group has a smaller id.';
COMMENT ON TABLE queue_internal.group_returns IS 'Tasks that were put back into a group, until its head is not above them.';
COMMENT ON TABLE queue_internal.settling IS 'An id that will be settled, and the transactions that it waits for.';
COMMENT ON SEQUENCE queue_internal.settled_id_seq IS 'The id up to which no open push can add a task.';
COMMENT ON SEQUENCE queue_internal.settling_due_seq IS 'When to look again, in microseconds since 1970.';
COMMENT ON SEQUENCE queue_internal.events_id_seq IS 'The order of the events.';
COMMENT ON TABLE queue_internal.steps IS 'What tasks stored with queue.step(), and what they waited for and got.';
COMMENT ON TABLE queue_internal.awaits IS 'Which event or which other task a suspended task waits for.';
COMMENT ON TABLE queue_internal.emitted IS 'The events that were emitted, and those that tasks wait for.';
COMMENT ON TABLE queue_internal.locks IS
    'Rows that are only locked, by the transaction that admits tasks of a group; each queue has its own.';
COMMENT ON TABLE queue_internal.slots IS 'The slots of queues with max_running, and the task that last took each.';
COMMENT ON TABLE queue_internal.token_mark IS
    'One row: how far tokens have been handed out, so that none is handed out twice after a crash or failover.';
COMMENT ON TABLE queue_internal.rate_buckets IS 'The rate buckets of queues with a rate limit: when tasks started.';
COMMENT ON TABLE queue_internal.group_starts IS 'When tasks of groups started, in queues with a rate limit per group.';
-- What pg_dump must save although the tables belong to the extension. The daily partitions are created later, belong
-- only to their table, and are dumped like other tables.

SELECT pg_catalog.pg_extension_config_dump('queue.queues', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queue.history_default', '');
SELECT pg_catalog.pg_extension_config_dump('queue.dead_letters', '');
SELECT pg_catalog.pg_extension_config_dump('queue.schedules', '');
SELECT pg_catalog.pg_extension_config_dump('queue.bindings', '');
-- Without roles that were dropped, as for the rights.
SELECT pg_catalog.pg_extension_config_dump(
    'queue.handlers', 'WHERE role::pg_catalog.oid IN (SELECT r.oid FROM pg_catalog.pg_roles AS r)');
-- Without the rights of roles that were dropped, whose OIDs may belong to other roles elsewhere.
SELECT pg_catalog.pg_extension_config_dump(
    'queue.rights', 'WHERE role::pg_catalog.oid IN (SELECT r.oid FROM pg_catalog.pg_roles AS r)');
-- Without events: the sweep leaves new ones.
SELECT pg_catalog.pg_extension_config_dump('queue_internal.keys', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.batches', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.outcomes', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.steps', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.awaits', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.emitted', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.slots', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.rate_buckets', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.group_starts', '');
-- Revokes all privileges from PUBLIC. Rights are granted by queue.grant_producer, grant_worker and grant_operator.
-- Views without payloads are for monitoring.

-- Also where default privileges have closed the functions: pg_dump saves what differs from these statements.
REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM PUBLIC;
DO $$ BEGIN
    PERFORM queue_internal.close_types(), queue_internal.close_functions(),
            queue_internal.apply_privileges('monitor', 'pg_monitor');
END $$;
-- In case default privileges grant access to new tables: a partition is read through queue.history, which has
-- policies.
ALTER TABLE queue.history_default ENABLE ROW LEVEL SECURITY;
-- Or to new sequences: who can take a value of this one could have others pass over open pushes.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_class AS c, LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = 'queue_internal.settled_id_seq'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON SEQUENCE queue_internal.settled_id_seq FROM %s', grantee);
    END LOOP;
END $$;
-- Run as the owner for the role that inserts. No other role may attach them to a table.
ALTER FUNCTION queue_internal.task_arrives() SECURITY DEFINER;
ALTER FUNCTION queue_internal.tasks_inserted() SECURITY DEFINER;
