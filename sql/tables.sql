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
