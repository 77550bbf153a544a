-- Whatever else the script names without a schema is the server's own. CREATE EXTENSION sees to that too.

SET LOCAL search_path = pg_catalog, pg_temp;

-- The schemas. A plain CREATE SCHEMA: it fails if somebody made one of that name before.

CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'The job queue: tables to read, functions to call.';

CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'What queue_ext is made of. Not to be called or relied upon.';
-- The tables:
--
--   queue.queues        one row per queue, with its defaults
--   queue.tasks         the tasks that are not finished: waiting, queued, running
--   queue.history       the tasks that completed or were cancelled, a partition per day
--   queue.dead_letters  the tasks that failed for good
--   queue.schedules     recurring pushes
--   queue.bindings      which queue gets what is published under which topics
--   queue.rights        which role may do what
--
-- and in queue_internal what the policies of a queue keep in mind; a queue without them has no rows
-- there:
--
--   keys                which task holds a key
--   dependencies        which task waits for which
--   outcomes            how tasks ended that could not tell their dependents
--   events              hints: which waiting tasks and which groups to look at
--   locks               rows to lock
--   slots               who holds the places of a queue that limits how many run at a time
--   tokens              when the starts of a queue that limits its rate were
--   token_mark          how far fencing tokens have been handed out
--
-- There is no foreign key between them: it would lock the queue's row at every push.
--
-- Names and keys are COLLATE "C", and so is what compares with them: an upgrade of the system's locales, which may
-- change the order of texts, must not corrupt the unique index of the keys.

CREATE TABLE queue.queues (
    name                  text COLLATE "C" NOT NULL PRIMARY KEY,
    lease                 interval    NOT NULL DEFAULT '1 minute',
    max_attempts          integer     NOT NULL DEFAULT 20,
    backoff_kind          text        NOT NULL DEFAULT 'exponential',
    backoff_base          interval    NOT NULL DEFAULT '1 second',
    backoff_max           interval    NOT NULL DEFAULT '1 hour',
    backoff_jitter        float8      NOT NULL DEFAULT 0.1,
    paused_at             timestamptz,
    max_running           integer,
    max_running_per_group integer     NOT NULL DEFAULT 1,
    rate_limit            integer,
    rate_period           interval,
    delayed_head          text        NOT NULL DEFAULT 'block',
    fair_groups           boolean     NOT NULL DEFAULT false,
    ageing                interval,
    key_ttl               interval,
    on_predecessor_failure text       NOT NULL DEFAULT 'cancel',
    keep_history          boolean     NOT NULL DEFAULT true,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT queues_name_check CHECK (octet_length(name) BETWEEN 1 AND 128),
    CONSTRAINT queues_lease_check CHECK (lease > '0'),
    CONSTRAINT queues_max_attempts_check CHECK (max_attempts > 0),
    CONSTRAINT queues_backoff_check CHECK (
        backoff_kind IN ('fixed', 'linear', 'exponential')
        AND backoff_base >= '0' AND backoff_max >= '0' AND backoff_jitter BETWEEN 0 AND 1),
    CONSTRAINT queues_limits_check CHECK (
        max_running > 0 AND max_running_per_group > 0 AND rate_limit > 0 AND rate_period > '0'
        AND (rate_limit IS NULL) = (rate_period IS NULL)),
    CONSTRAINT queues_policies_check CHECK (
        delayed_head IN ('block', 'pass') AND ageing > '0' AND key_ttl > '0'
        AND on_predecessor_failure IN ('fail', 'cancel', 'continue'))
);

-- "state" is queued until a claim makes it running; scheduled is queued with a run_at to come.
--
-- A claim changes state, attempt, token, lease_until, worker, claimed_at and updated_at. None of
-- them is in an index or in an index predicate, so that a claim is a HOT update. They stand
-- before the columns that it leaves alone, so that the WAL of a claim does not repeat a payload.
--
-- "gate" is the admission of a task, which only a policy ever changes:
--   0  open: a task without a group; or one of a group that the claim which meets it has to check
--   1  admitted: one of the tasks of its group that may run now
--   2  blocked: it waits for predecessors, or for its turn in its group, and is not in tasks_order
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
    gate                smallint    NOT NULL DEFAULT 0,
    lease_until         timestamptz,
    worker              text,
    claimed_at          timestamptz,
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    cancel_requested_at timestamptz,
    key                 text COLLATE "C",
    group_key           text COLLATE "C",
    backoff             jsonb,
    headers             jsonb,
    payload             jsonb       NOT NULL DEFAULT '{}',
    progress            jsonb,
    errors              jsonb,
    CONSTRAINT tasks_pkey PRIMARY KEY (id),
    -- The one invariant that updates can break. The rest of what a row must be is checked when it
    -- comes in (tasks_inserted): a constraint is parsed anew by every single update.
    CONSTRAINT tasks_lease_check CHECK ((state = 'running') = (lease_until IS NOT NULL))
) WITH (
    -- Room on each page for a second version of every row: claims stay HOT, also when a batch takes
    -- all rows of a page before the first of them is finished.
    fillfactor = 50,
    -- Whatever is too large for a row of its own leaves the row whole, and a claim does not copy it.
    toast_tuple_target = 256,
    -- Every task becomes a dead row. Clearing them early keeps claims quick.
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
    headers      jsonb,
    payload      jsonb       NOT NULL,
    progress     jsonb,
    errors       jsonb,
    result       jsonb
) PARTITION BY RANGE (finished_at);

-- Takes the rows of days that have no partition yet, so that completing never fails for want of
-- one. The partitions of the days are made in its image when the extension is in use
-- (extend_history). The indexes are the partitions' own and not the parent's: a parent that belongs
-- to an extension would make them in a partition that pg_dump is restoring, which then could not.
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
    headers      jsonb,
    payload      jsonb       NOT NULL,
    progress     jsonb,
    errors       jsonb,
    key_ttl      interval,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
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

-- A key is held by a live task; or, after it finished, until expires_at. "ttl" is what the push of the task asked for,
-- "replaced_ttl" that of the running task which gave the key up and may have it again (settle_duplicate).
CREATE TABLE queue_internal.keys (
    queue      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    task_id    bigint   NOT NULL,
    ttl        interval,
    replaced_ttl interval,
    expires_at timestamptz,
    CONSTRAINT keys_pkey PRIMARY KEY (queue, key)
);

-- Which tasks wait for which. "outcome" is null until the predecessor ends, and is written by the transaction that
-- ends it: completed, failed, cancelled or purged. "restored_at" is set in a row that comes from a dump.
CREATE TABLE queue_internal.dependencies (
    predecessor_id bigint NOT NULL,
    task_id        bigint NOT NULL,
    on_failure     text   NOT NULL,
    outcome        text COLLATE "C",
    restored_at    timestamptz,
    CONSTRAINT dependencies_pkey PRIMARY KEY (predecessor_id, task_id),
    CONSTRAINT dependencies_on_failure_check CHECK (on_failure IN ('fail', 'cancel', 'continue'))
);

-- How tasks ended whose end could not be written to the rows of their dependents: a snapshot did not show them, or
-- another transaction had them locked. Kept for a day, so that the sweep finds the outcome here (internal/sweep.sql).
CREATE TABLE queue_internal.outcomes (
    task_id  bigint      NOT NULL,
    outcome  text        NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outcomes_pkey PRIMARY KEY (task_id)
);

-- Hints to look at a waiting task or at a group, written by the transaction that changed something about it. The next
-- claim from the queue, or the worker, processes and deletes them (internal/events.sql). An event that is lost costs
-- time and nothing else: the sweep finds what it was about. "due_at" lies ahead once an event could not be processed.
CREATE TABLE queue_internal.events (
    id        bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    queue     text COLLATE "C" NOT NULL,
    group_key text COLLATE "C",
    task_id   bigint,
    due_at    timestamptz NOT NULL DEFAULT '-infinity',
    tries     integer     NOT NULL DEFAULT 0,
    error     text,
    CONSTRAINT events_pkey PRIMARY KEY (queue, due_at, id),
    CONSTRAINT events_subject_check CHECK ((group_key IS NULL) <> (task_id IS NULL))
);

-- Rows that are only ever locked: by the transaction that admits tasks of a group, in its queue the row with the hash
-- of the group. Nobody but the owner can lock them, unlike advisory locks. Each queue has rows of its own, so that open
-- transactions in one queue cannot keep the groups of another one waiting: 4096 once it has had groups, and from the
-- start the row -1, which is locked by who inserts the others (lock_group).
CREATE TABLE queue_internal.locks (
    queue  text COLLATE "C" NOT NULL,
    number smallint NOT NULL,
    CONSTRAINT locks_pkey PRIMARY KEY (queue, number)
);

-- A place is taken while the task in it runs with that very token; nothing has to be written to
-- free it, and nothing can free it twice. Each taking is a new version, in an index entry of its
-- own: looking for the newest costs the same however many old ones cannot be vacuumed yet. A row of slot 0 says that
-- claims may have been open while the limit was set (internal/limits.sql).
CREATE TABLE queue_internal.slots (
    queue   text COLLATE "C" NOT NULL,
    slot    integer NOT NULL,
    version bigint  NOT NULL DEFAULT 0,
    task_id bigint,
    token   bigint,
    CONSTRAINT slots_pkey PRIMARY KEY (queue, slot, version)
);

-- The tokens of a rate limit, spread over buckets so that claims do not queue up for one row.
-- "taken" has the times at which the bucket's missing tokens were taken. Versions as in slots.
CREATE TABLE queue_internal.tokens (
    queue    text COLLATE "C" NOT NULL,
    bucket   integer       NOT NULL,
    version  bigint        NOT NULL DEFAULT 0,
    capacity integer       NOT NULL,
    taken    timestamptz[] NOT NULL DEFAULT '{}',
    CONSTRAINT tokens_pkey PRIMARY KEY (queue, bucket, version)
);

-- One row, from which the first token of a claim is computed (src/tokens.rs, portable/tokens.sql). A worker writes it
-- once after each start of the server, and before any claim whose commit may be lost in a crash.
--   reached   no lost claim had a larger token
--   timeline  the timeline of the WAL when the row was written; 0 if unknown
CREATE TABLE queue_internal.token_mark (
    reached  bigint NOT NULL,
    timeline bigint NOT NULL,
    CONSTRAINT token_mark_reached_check CHECK (reached >= 0 AND reached < 9007199254740992)
);
-- Without an identity nothing could change it while there is a publication FOR ALL TABLES.
ALTER TABLE queue_internal.token_mark REPLICA IDENTITY FULL;
INSERT INTO queue_internal.token_mark VALUES (0, 0);

-- "topic_regex" is the pattern as queue.publish() matches it (queue_internal.topic_regex).
-- queue.drop() deletes the bindings of its queue.
CREATE TABLE queue.bindings (
    topic_pattern text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    topic_regex   text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT bindings_pkey PRIMARY KEY (queue, topic_pattern)
);

-- Who may do what. pg_dump saves the rows; privileges follow them (internal/rights.sql).
CREATE TABLE queue.rights (
    role  regrole NOT NULL,
    kind  text COLLATE "C" NOT NULL,
    queue text COLLATE "C",
    CONSTRAINT rights_kind_check CHECK (kind IN ('producer', 'worker', 'operator'))
);
ALTER TABLE queue.rights REPLICA IDENTITY FULL;

-- What a claim hands out.
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
    lease_until  timestamptz
);

INSERT INTO queue.queues (name) VALUES ('default');
INSERT INTO queue_internal.locks VALUES ('default', -1);
-- An edition may divide the order of claims into buckets. PostgreSQL needs one only; the edition for YugabyteDB has
-- several. What walks the order of claims goes through them all, so that it is written once.

CREATE FUNCTION queue_internal.buckets() RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 1;
END
$$;
COMMENT ON FUNCTION queue_internal.buckets() IS 'The number of buckets in which the tasks of a queue are.';

-- Why SQL and no search_path: so the planner puts the expression in the place of the call, and nothing is left of it
-- in a plan. The expression was parsed when the function was created.
CREATE FUNCTION queue_internal.task_in_bucket(task queue.tasks, bucket integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN true;
COMMENT ON FUNCTION queue_internal.task_in_bucket(queue.tasks, integer) IS 'Whether a task is in a bucket.';
-- The indexes beside the primary keys, each with the verb that needs it. Those on queue.tasks must
-- not mention what a claim changes: see tables.sql.

-- claim: the next task of a queue. due_queues: what came due, and what comes next.
CREATE INDEX tasks_order ON queue.tasks (queue, priority, run_at, id) WHERE gate < 2;
COMMENT ON INDEX queue.tasks_order IS
    'The order in which the tasks of a queue are claimed. Holds no column that a claim changes.';

-- admit_next: who of a group is admitted, and who is next. check_groups: the groups of a queue.
CREATE INDEX tasks_group ON queue.tasks (queue, group_key, gate, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue.tasks_group IS 'The tasks of a group: those admitted, and those behind them.';

-- process_events: all events of a group, or of a task, at once.
CREATE INDEX events_group ON queue_internal.events (queue, group_key, id) WHERE group_key IS NOT NULL;
COMMENT ON INDEX queue_internal.events_group IS 'The events of a group.';
CREATE INDEX events_task ON queue_internal.events (task_id, id) WHERE task_id IS NOT NULL;
COMMENT ON INDEX queue_internal.events_task IS 'The events of a waiting task.';

-- process_dependent: whether a task still waits, and whether a predecessor failed.
CREATE INDEX dependencies_task ON queue_internal.dependencies (task_id, outcome);
COMMENT ON INDEX queue_internal.dependencies_task IS 'The predecessors of a task, by how they ended.';

-- retire_keys: the keys whose time is over.
CREATE INDEX keys_expiry ON queue_internal.keys (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON INDEX queue_internal.keys_expiry IS 'Keys that are held for a time after their task finished.';

-- stats: what was finished lately. A block range index costs an insert next to nothing. Each
-- partition of the history has its own, as it has its own primary key.
CREATE INDEX history_default_finished_at ON queue.history_default
    USING brin (finished_at) WITH (pages_per_range = 32);
COMMENT ON INDEX queue.history_default_finished_at IS 'Finds what was finished in a span of time.';

-- redrive, retire_dead_letters: the oldest of a queue first.
CREATE INDEX dead_letters_queue_failed_at ON queue.dead_letters (queue, failed_at, id);
COMMENT ON INDEX queue.dead_letters_queue_failed_at IS
    'The dead letters of a queue, the oldest first.';

-- grant_producer and its like: a right is given once.
CREATE UNIQUE INDEX rights_once ON queue.rights (role, kind, coalesce(queue, ''));
COMMENT ON INDEX queue.rights_once IS 'A role has a right once for each queue.';
-- The native functions, in the library queue_ext. What announces does nothing where the library was
-- not preloaded, and everything else works all the same.

CREATE FUNCTION queue_internal.announce_task(queue text, run_at timestamptz) RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_task_wrapper';
COMMENT ON FUNCTION queue_internal.announce_task(text, timestamptz) IS
    'Tells the engine, when the transaction commits, that claims may get more than the tasks alone tell.';

CREATE FUNCTION queue_internal.announce_extension() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'announce_extension_wrapper';
COMMENT ON FUNCTION queue_internal.announce_extension() IS
    'Tells the launcher, when the transaction commits, that this database has the extension.';

CREATE FUNCTION queue_internal.token_base() RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'token_base_wrapper';
COMMENT ON FUNCTION queue_internal.token_base() IS
    'The smallest token that a claim may hand out. Makes the commit synchronous if claims must not be lost.';

CREATE FUNCTION queue_internal.claim_durably() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'claim_durably_wrapper';
COMMENT ON FUNCTION queue_internal.claim_durably() IS 'Makes the commit of the current transaction synchronous.';

-- It commits if CALL was said outside a transaction block and all procedures on the way could commit, else
-- it does nothing.
CREATE PROCEDURE queue_internal.try_commit(INOUT committed boolean)
LANGUAGE c AS 'MODULE_PATHNAME', 'try_commit';
COMMENT ON PROCEDURE queue_internal.try_commit(boolean) IS 'Commits, if the caller can; says whether it did.';

CREATE FUNCTION queue.engine_stats() RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'engine_stats_wrapper';
COMMENT ON FUNCTION queue.engine_stats() IS
    'What the native part sees of itself: whether it is loaded, and the worker of this database.';

-- Rights (internal/rights.sql). They are kept in memory until queue.rights or a role changes.

CREATE FUNCTION queue_internal.caller() RETURNS name
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_caller';
COMMENT ON FUNCTION queue_internal.caller() IS
    'The role that called the verb that is running; outside a verb, the current role.';

CREATE FUNCTION queue_internal.has_right(kind text, queue text) RETURNS boolean
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_has_right';
COMMENT ON FUNCTION queue_internal.has_right(text, text) IS
    'Whether the caller of the verb has a kind of right (producer, worker, operator, any) for the queue; for a null '
    'queue, whether it has it for all queues.';

CREATE FUNCTION queue_internal.queues_with_right(kind text) RETURNS text[]
LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'queue_queues_with_right';
COMMENT ON FUNCTION queue_internal.queues_with_right(text) IS
    'The queues for which the caller has a kind of right; null stands for all queues.';

CREATE FUNCTION queue_internal.announce_rights() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'queue_announce_rights';
COMMENT ON FUNCTION queue_internal.announce_rights() IS
    'Makes every session read the rights again once the transaction has committed.';

CREATE FUNCTION queue_internal.cron_next(cron text, after timestamp) RETURNS timestamp
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_next_wrapper';
COMMENT ON FUNCTION queue_internal.cron_next(text, timestamp) IS
    'The first local time after the given one that a cron expression names; null if there is none.';

CREATE FUNCTION queue_internal.cron_error(cron text) RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'cron_error_wrapper';
COMMENT ON FUNCTION queue_internal.cron_error(text) IS
    'What is wrong with a cron expression; null if it can be read.';
-- queue_internal.setting(name, fallback)
--
--   The value of the setting "queue.<name>". The fallback repeats the default of src/settings.rs:
--   a session that has not loaded the library does not know the setting at all.
--   Why PL/pgSQL: a function in SQL would be parsed at every call.

CREATE FUNCTION queue_internal.setting(name text, fallback text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(nullif(current_setting('queue.' || name, true), ''), fallback);
END
$$;
COMMENT ON FUNCTION queue_internal.setting(text, text) IS 'The value of a setting, or its default.';
-- Every error that the functions raise, each in one place.
--
-- Messages are short and factual, details are sentences of facts, hints say what to do. Values of
-- arguments may be named, payloads never.

CREATE FUNCTION queue_internal.raise_null(argument text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "%" must not be null', argument
        USING ERRCODE = 'null_value_not_allowed';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_null(text) IS 'Raises 22004.';

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
COMMENT ON FUNCTION queue_internal.raise_invalid(text, text, text) IS 'Raises 22023.';

CREATE FUNCTION queue_internal.raise_too_large(argument text, maximum text, value text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'argument "%" is larger than %', argument, maximum
        USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_too_large(text, text, text) IS 'Raises 54000.';

CREATE FUNCTION queue_internal.raise_denied(kind text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'permission denied for %', CASE WHEN queue IS NULL THEN 'all queues' ELSE format('queue "%s"', queue) END
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = format('Role %I does not have the right of %s %s %s.', queue_internal.caller(),
                              CASE kind WHEN 'operator' THEN 'an' ELSE 'a' END, kind,
                              CASE WHEN queue IS NULL THEN 'for all queues' ELSE 'for the queue' END),
              HINT = format('The owner of the extension gives it with SELECT queue.grant_%s(%L%s).', kind,
                            queue_internal.caller(), CASE WHEN queue IS NULL THEN '' ELSE format(', %L', queue) END);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_denied(text, text) IS 'Raises 42501.';

CREATE FUNCTION queue_internal.raise_unknown_queue(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'queue "%" does not exist', name
        USING ERRCODE = 'QX002', HINT = format('Create it with SELECT queue.create(%L).', name);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_queue(text) IS 'Raises QX002.';

CREATE FUNCTION queue_internal.raise_unknown_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'schedule "%" does not exist', name
        USING ERRCODE = 'undefined_object',
              HINT = format('Create it with SELECT queue.schedule(%L, ...). Those that exist are in queue.schedules.',
                            name);
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_schedule(text) IS 'Raises 42704.';

-- Does not name the queue: the caller may not know it.
CREATE FUNCTION queue_internal.raise_foreign_schedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'permission denied for schedule "%"', name
        USING ERRCODE = 'insufficient_privilege',
              DETAIL = format('It belongs to a queue that role %I is not an operator of.', queue_internal.caller()),
              HINT = 'Choose another name.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_foreign_schedule(text) IS 'Raises 42501.';

CREATE FUNCTION queue_internal.raise_unknown_task(id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'task % does not exist', id
        USING ERRCODE = 'QX003',
              HINT = 'It may be past its retention, have finished in a queue that keeps no history, or be in a queue for '
                     'which the role has no right.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_unknown_task(bigint) IS 'Raises QX003.';

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
COMMENT ON FUNCTION queue_internal.raise_duplicate_key(text, text, bigint, timestamptz) IS 'Raises QX004.';

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
COMMENT ON FUNCTION queue_internal.raise_wrong_state(bigint, text, text, text) IS
    'Raises QX005, or QX003 if the caller has no such task.';

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
            format('The last token is %s. The claim with token %s was lost in a crash or failover, or never was.',
                   live.token, raise_lease_lost.token)
        WHEN live.state = 'running' THEN
            format('The lease with token %s ended; the task was claimed again with token %s.',
                   raise_lease_lost.token, live.token)
        ELSE format('The lease with token %s ended; the task is %s.', raise_lease_lost.token, live.state)
    END;
    RAISE EXCEPTION 'lease on task % is no longer held', id
        USING ERRCODE = 'QX001', DETAIL = fact,
              HINT = 'Stop working on this task. Claim with a longer lease, or call queue.extend() in time.';
END
$$;
COMMENT ON FUNCTION queue_internal.raise_lease_lost(bigint, bigint) IS
    'Raises QX001, or QX003 if there is no such task.';
-- queue_internal.state_of(id, kind)
--
--   The state of the task wherever it is; null if it is nowhere, or if the caller does not have this kind of right
--   for its queue: nobody learns which ids other queues have.
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)

CREATE FUNCTION queue_internal.state_of(id bigint, kind text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    state text;
BEGIN
    SELECT t.state INTO state FROM queue.tasks AS t WHERE t.id = state_of.id AND queue_internal.has_right(kind, t.queue);
    IF NOT FOUND THEN
        SELECT 'failed' INTO state FROM queue.dead_letters AS d WHERE d.id = state_of.id AND queue_internal.has_right(kind, d.queue);
    END IF;
    IF state IS NULL THEN
        SELECT h.state INTO state FROM queue.history AS h WHERE h.id = state_of.id AND queue_internal.has_right(kind, h.queue);
    END IF;
    RETURN state;
END
$$;
COMMENT ON FUNCTION queue_internal.state_of(bigint, text) IS
    'The state of a task, wherever it is, if the caller has this kind of right for its queue.';
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
COMMENT ON FUNCTION queue_internal.check_name(text, text) IS
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
COMMENT ON FUNCTION queue_internal.check_lease_holder(bigint, bigint) IS
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
COMMENT ON FUNCTION queue_internal.check_id(bigint) IS 'Checks the id of a task.';

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
COMMENT ON FUNCTION queue_internal.check_array(text, anyarray) IS
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
COMMENT ON FUNCTION queue_internal.check_same_length(text, anyarray, integer) IS
    'Checks that an array goes with the array "ids".';

-- An interval counts months and days apart. In comparisons a year has 360 days, so that -1 year 361 days is longer than
-- nothing and yet ends in the past; in seconds it has 365.25.
CREATE FUNCTION queue_internal.check_delay(argument text, delay interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT isfinite(delay) THEN
        PERFORM queue_internal.raise_invalid(argument, 'must be finite', delay::text);
    ELSIF extract(epoch FROM delay) < 0 THEN
        PERFORM queue_internal.raise_invalid(argument, 'must not be negative', delay::text);
    ELSIF delay > '100 years' THEN
        PERFORM queue_internal.raise_too_large(argument, '100 years', delay::text);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_delay(text, interval) IS
    'Checks a delay: not negative, at most 100 years; null passes.';

-- Also 1 month less 29 days may end in the past. What is returned counts seconds only. The default of a queue may
-- be from before the limit was lowered: then the limit counts.
CREATE FUNCTION queue_internal.checked_lease(lease interval, otherwise interval) RETURNS interval
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest interval;
BEGIN
    IF lease IS NULL THEN
        RETURN CASE WHEN otherwise > '1 minute'
               THEN least(otherwise, queue_internal.setting('max_lease', '7d')::interval) ELSE otherwise END;
    ELSIF NOT isfinite(lease) THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be finite', lease::text);
    ELSIF extract(epoch FROM lease) <= 0 THEN
        PERFORM queue_internal.raise_invalid('lease', 'must be greater than zero', lease::text);
    END IF;
    -- The setting is never less than a minute.
    IF lease > '1 minute' THEN
        longest := queue_internal.setting('max_lease', '7d')::interval;
        IF lease > longest THEN
            PERFORM queue_internal.raise_too_large('lease', format('"queue.max_lease", which is %s', longest),
                                                   lease::text);
        END IF;
    END IF;
    RETURN make_interval(secs => extract(epoch FROM lease)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.checked_lease(interval, interval) IS
    'Checks a lease and returns it, or the second argument if it is null.';
-- queue_internal.check_task_options(...)
--
--   What push and push_many have in common: the checks of the options of a task.
--   Errors:   22004, 22023, 54000

CREATE FUNCTION queue_internal.check_task_options(
    queue text, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Each call costs more than all that is looked at here.
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
       OR after IS NOT NULL OR on_predecessor_failure IS NOT NULL THEN
        PERFORM queue_internal.check_policy_options(
            key, group_key, after, backoff, key_ttl, on_predecessor_failure);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_task_options(
    text, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb, interval, text) IS
    'Checks the options of a task that is pushed.';

CREATE FUNCTION queue_internal.check_policy_options(
    key text, group_key text, after bigint[], backoff jsonb, key_ttl interval, on_predecessor_failure text)
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
COMMENT ON FUNCTION queue_internal.check_policy_options(text, text, bigint[], jsonb, interval, text) IS
    'Checks those options of a task that the policies of its queue are about.';

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
COMMENT ON FUNCTION queue_internal.check_backoff(jsonb) IS 'Raises if these are not the pauses of a task, or null.';
-- The trigger that meets a task with a key or a group before it is there, however it comes: push, a
-- plain INSERT, COPY, redrive. Tasks without either do not come here; nor do those of a dump, which
-- brings the keys and the gates along (tasks_inserted.sql).
--
--   A key that another task holds keeps the task out: the INSERT goes on without its row.
--   Errors:   42501 without the right to push; 22023, 54000 for keys that a plain INSERT filled with nonsense

CREATE FUNCTION queue_internal.task_arrives() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_NARGS > 0 THEN
        RAISE EXCEPTION 'permission denied for queue "%"', NEW.queue
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'The role that inserts does not have the right of a producer for the queue.';
    ELSIF NEW.state = 'waiting' THEN
        NEW.gate := 2;
    END IF;
    IF NEW.key IS NOT NULL THEN
        PERFORM queue_internal.check_key('key', NEW.key);
        IF NOT queue_internal.take_key(NEW.queue, NEW.key, NEW.id) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.group_key IS NOT NULL AND NEW.gate = 0 THEN
        PERFORM queue_internal.check_key('group_key', NEW.group_key);
        -- A task for later does not hold up its group, where the queue says so.
        NEW.gate := CASE WHEN NEW.run_at > clock_timestamp() AND EXISTS (
            SELECT FROM queue.queues AS q WHERE q.name = NEW.queue AND q.delayed_head = 'pass') THEN 0 ELSE 2 END;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.task_arrives() IS
    'Takes the key of a task that comes in, and blocks it until it is its turn.';

CREATE TRIGGER task_arrives BEFORE INSERT ON queue.tasks
    FOR EACH ROW WHEN (
        (NEW.key IS NOT NULL OR NEW.group_key IS NOT NULL OR NEW.state = 'waiting')
        AND (current_setting('search_path') <> '' OR current_setting('check_function_bodies') <> 'off'
             OR NOT has_table_privilege('queue.tasks', 'TRUNCATE'))
        AND (NOT row_security_active('queue.tasks'::regclass) OR queue_internal.has_right('producer', NEW.queue)))
    EXECUTE FUNCTION queue_internal.task_arrives();
COMMENT ON TRIGGER task_arrives ON queue.tasks IS
    'Keys and groups, for every way in which a task can come.';

-- A row that a policy is about to refuse must not ask for a key first, which would tell whether it is taken; nor may it
-- come in without its key by a view, where the policies of the view's owner count.
CREATE TRIGGER task_refused BEFORE INSERT ON queue.tasks
    FOR EACH ROW WHEN (
        (NEW.key IS NOT NULL OR NEW.group_key IS NOT NULL OR NEW.state = 'waiting')
        AND (current_setting('search_path') <> '' OR current_setting('check_function_bodies') <> 'off'
             OR NOT has_table_privilege('queue.tasks', 'TRUNCATE'))
        AND row_security_active('queue.tasks'::regclass) AND NOT queue_internal.has_right('producer', NEW.queue))
    EXECUTE FUNCTION queue_internal.task_arrives('refused');
COMMENT ON TRIGGER task_refused ON queue.tasks IS
    'Refuses tasks with keys or groups of roles that may not push to the queue.';
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
COMMENT ON FUNCTION queue_internal.check_topic(text, text, boolean) IS
    'Checks a topic, or with wildcards a pattern of topics: 1 to 255 bytes of words and dots.';

-- The regular expression is for the topic with a dot before it, so that every word has one. A run of
-- wildcards asks for a number of words, or for that number and more: said once and at its end, "more"
-- leaves a match nothing to try out.
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
COMMENT ON FUNCTION queue_internal.topic_regex(text) IS
    'The regular expression of a pattern, for a topic with a dot before it.';

-- What is written past queue.bind() is such a pattern, too, or queue.publish() would fail for all queues.
CREATE FUNCTION queue_internal.is_topic_regex(regex text, pattern text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', pattern, true);
    RETURN regex = queue_internal.topic_regex(pattern);
END
$$;
COMMENT ON FUNCTION queue_internal.is_topic_regex(text, text) IS
    'Whether this is the regular expression of that pattern; raises unless it is a pattern of topics.';

ALTER TABLE queue.bindings ADD CONSTRAINT bindings_pattern_check
    CHECK (queue_internal.is_topic_regex(topic_regex, topic_pattern));
-- The trigger behind every way into queue.tasks: push, a plain INSERT, COPY.
--
--   Refuses tasks of unknown queues and tasks that could never run, and leaves an event for each group that has more.
--   Errors:   QX002 no such queue; 22023 for a column that a plain INSERT filled with nonsense
--   Why a statement trigger: one look at the queues for a million rows.

CREATE FUNCTION queue_internal.tasks_inserted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arrival record;
    misfit  record;
BEGIN
    SELECT i.* INTO misfit FROM inserted AS i
    WHERE i.state NOT IN ('waiting', 'queued', 'running') OR NOT isfinite(i.run_at)
       OR i.max_attempts NOT BETWEEN 1 AND 10000 OR jsonb_typeof(i.headers) <> 'object'
       OR NOT (isfinite(i.created_at) AND isfinite(i.updated_at) AND isfinite(coalesce(i.lease_until, i.run_at))
               AND isfinite(coalesce(i.claimed_at, i.run_at)) AND isfinite(coalesce(i.cancel_requested_at, i.run_at)))
    LIMIT 1;
    IF NOT isfinite(misfit.run_at) THEN
        PERFORM queue_internal.raise_invalid('run_at', 'must be finite', misfit.run_at::text);
    ELSIF misfit.max_attempts NOT BETWEEN 1 AND 10000 THEN
        PERFORM queue_internal.raise_invalid('max_attempts', 'must be from 1 to 10000', misfit.max_attempts::text);
    ELSIF misfit.state NOT IN ('waiting', 'queued', 'running') THEN
        PERFORM queue_internal.raise_invalid('state', 'must be waiting, queued or running');
    ELSIF jsonb_typeof(misfit.headers) <> 'object' THEN
        PERFORM queue_internal.raise_invalid('headers', 'must be a JSON object', 'of type ' || jsonb_typeof(misfit.headers));
    ELSIF FOUND THEN
        RAISE EXCEPTION 'the times of a task must be finite' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM queue_internal.check_backoff(b.backoff)
    FROM (SELECT DISTINCT i.backoff FROM inserted AS i WHERE i.backoff IS NOT NULL) AS b;
    FOR arrival IN
        SELECT i.queue, bool_or(i.gate = 2) AS blocked
        FROM inserted AS i GROUP BY i.queue
    LOOP
        IF TG_NARGS = 0 AND NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = arrival.queue) THEN
            PERFORM queue_internal.raise_unknown_queue(arrival.queue);
        END IF;
        IF arrival.blocked THEN
            INSERT INTO queue_internal.events (queue, group_key)
            SELECT DISTINCT i.queue, i.group_key FROM inserted AS i
            WHERE i.queue = arrival.queue AND i.group_key IS NOT NULL AND i.gate = 2;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.tasks_inserted() IS
    'Refuses tasks of unknown queues, and leaves an event for each group that has more.';

CREATE TRIGGER tasks_inserted AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT
    WHEN (current_setting('search_path') <> '' OR current_setting('check_function_bodies') <> 'off'
          OR NOT has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.tasks_inserted();
COMMENT ON TRIGGER tasks_inserted ON queue.tasks IS
    'Makes a plain INSERT or COPY as good as a push.';

-- The same for the tasks of a dump. pg_restore with several jobs loads the tables in any order and at the same time,
-- whatever foreign keys there are, with the worker looking on. So a restored row must need no other: a task is not
-- refused for want of its queue, and leaves its key to queue_internal.keys. Waiting tasks are found by the sweep.
--
-- A restore is told by two settings that every dump makes before its first row, and by a role that may truncate the
-- tables: the owner, or a superuser. Verbs have a search_path of their own, so that nothing they do is ever taken for
-- a restore; and a producer who makes the settings is checked like any other.
CREATE TRIGGER tasks_restored AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT
    WHEN (current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
          AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.tasks_inserted('restored');
COMMENT ON TRIGGER tasks_restored ON queue.tasks IS
    'Lets a dump be restored in any order.';
-- The trigger that lets a dump be restored: CREATE EXTENSION has just made the queue "default",
-- and now the dump brings the one that was configured. The newcomer takes its place. What tells a dump:
-- tasks_inserted.sql.

CREATE FUNCTION queue_internal.restore_default_queue() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM queue.queues AS q WHERE q.name = NEW.name;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.restore_default_queue() IS
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
--   How long a task waits after its attempt failed: as it was pushed to, and for the rest as its queue
--   says. The jitter takes up to that share off the wait, so that tasks that failed together do not
--   come back together, and the maximum is never exceeded.

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
COMMENT ON FUNCTION queue_internal.backoff(queue.queues, queue.tasks) IS
    'How long a task waits after its attempt failed.';
-- Who holds a key, and for how long.
--
--   A key is held by one live task of its queue; after the task finished it may be held for a time
--   more ("key_ttl"). A row of queue_internal.keys counts only as far as its task lives or its time
--   is not over, so that a task which somebody deleted by hand does not hold its key for ever.
--   A push that replaces a running task takes the key over, and waits for it as for a predecessor; whatever
--   ends without having run gives it back.

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
COMMENT ON FUNCTION queue_internal.check_key(text, text) IS
    'Checks a key or a group key: 1 to 512 bytes; null passes.';

-- Waits for a transaction that is just taking the key for another task: if it rolls back, the key
-- is free, and the push that came second is not lost.
CREATE FUNCTION queue_internal.take_key(queue text, key text, task_id bigint, ttl interval DEFAULT NULL) RETURNS boolean
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
        WHERE k.queue = take_key.queue AND k.key = take_key.key;
        -- Only from the very holder that was looked at: an UPDATE that waited for another push to take
        -- the key would see its new row, but not yet the task that came with it.
        IF holder.gone THEN
            UPDATE queue_internal.keys AS k
            SET task_id = take_key.task_id, expires_at = NULL,
                replaced_ttl = CASE WHEN k.expires_at = '-infinity' THEN k.replaced_ttl END,
                ttl = coalesce(take_key.ttl, CASE WHEN k.task_id = take_key.task_id THEN k.ttl END)
            WHERE k.queue = take_key.queue AND k.key = take_key.key
              AND k.task_id = holder.task_id AND k.expires_at IS NOT DISTINCT FROM holder.expires_at;
            IF FOUND THEN
                RETURN true;
            END IF;
        ELSIF holder.task_id IS NOT NULL THEN
            RETURN false;
        END IF;
        -- It changed in the meantime: once more.
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.take_key(text, text, bigint, interval) IS
    'Takes a key for a task, unless another one holds it; returns whether the task has it.';

-- False if that would have to wait, and "patient" is false. True also if nobody has the key.
CREATE FUNCTION queue_internal.lock_key(queue text, key text, patient boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF patient THEN
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
COMMENT ON FUNCTION queue_internal.lock_key(text, text, boolean) IS
    'Locks the row of a key, so that no push takes it meanwhile; false if that would have to wait.';

CREATE FUNCTION queue_internal.release_key(task queue.tasks, at_once boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
BEGIN
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
        SET expires_at = now + coalesce(k.ttl, q.key_ttl)
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
COMMENT ON FUNCTION queue_internal.release_key(queue.tasks, boolean) IS
    'Frees the key of a task that finished, at once or when its time is over.';

-- A task that runs, and whose key is already that of the one which is to come after it.
CREATE FUNCTION queue_internal.is_replaced(task queue.tasks) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- Not in the same statement: that would lock the table of keys for a task that has none.
    IF task.key IS NULL THEN
        RETURN false;
    END IF;
    -- A snapshot older than the replacement does not show it. To lock the row raises 40001 then.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM queue_internal.lock_key(task.queue, task.key, true);
    END IF;
    RETURN EXISTS (
        SELECT FROM queue_internal.keys AS k
        WHERE k.queue = task.queue AND k.key = task.key AND k.task_id <> task.id
          AND (SELECT t.state FROM queue.tasks AS t WHERE t.id = k.task_id AND t.queue = k.queue) = 'waiting');
END
$$;
COMMENT ON FUNCTION queue_internal.is_replaced(queue.tasks) IS
    'Whether another task has taken the place of a running one, and waits for its end.';

-- What a push does that found its key taken. Without "id" it has to try again: the key came free meanwhile, or is
-- to be taken from the task in "running", which it has to wait for.
CREATE FUNCTION queue_internal.settle_duplicate(
    pushed queue.tasks, on_duplicate text, OUT id bigint, OUT running bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder queue_internal.keys;
BEGIN
    SELECT k.* INTO holder FROM queue_internal.keys AS k
    WHERE k.queue = pushed.queue AND k.key = pushed.key;
    IF on_duplicate = 'error' AND holder.task_id IS NOT NULL THEN
        PERFORM queue_internal.raise_duplicate_key(pushed.queue, pushed.key, holder.task_id, holder.expires_at);
    ELSIF on_duplicate = 'skip' OR holder.task_id IS NULL OR holder.expires_at IS NOT NULL THEN
        id := holder.task_id;
        RETURN;
    END IF;
    -- Waits for a claim in progress: if it rolls back, the task is still to be changed.
    UPDATE queue.tasks AS t SET run_at = pushed.run_at, updated_at = clock_timestamp()
    WHERE t.id = holder.task_id AND t.queue = pushed.queue AND t.state IN ('queued', 'waiting')
    RETURNING t.group_key, t.gate INTO pushed.group_key, pushed.gate;
    IF NOT FOUND THEN
        IF on_duplicate = 'reschedule' THEN
            SELECT t.id INTO id FROM queue.tasks AS t WHERE t.id = holder.task_id AND t.queue = pushed.queue;
            RETURN;
        END IF;
        -- First the task and then its key, as its end does.
        SELECT t.id INTO running FROM queue.tasks AS t
        WHERE t.id = holder.task_id AND t.queue = pushed.queue AND t.state = 'running' FOR KEY SHARE;
        PERFORM queue_internal.lock_key(pushed.queue, pushed.key, true);
        -- A new snapshot: its attempt may have ended while this waited for who put it back, and had the key locked.
        -- The key is free for this transaction, whatever its clock does next.
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
        SET payload = pushed.payload, headers = pushed.headers, priority = pushed.priority
        WHERE t.id = holder.task_id;
    END IF;
    id := holder.task_id;
    pushed.id := id;
    PERFORM queue_internal.yield_turn(pushed);
END
$$;
COMMENT ON FUNCTION queue_internal.settle_duplicate(queue.tasks, text) IS
    'Does to the holder of a key what the push of a duplicate asked for; returns the holder''s id, or the running task to wait for.';

CREATE FUNCTION queue_internal.retire_keys(max_keys integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- In a variable, because a volatile function is no condition for an index.
    moment CONSTANT timestamptz := clock_timestamp();
    retired bigint;
BEGIN
    WITH expired AS MATERIALIZED (
        SELECT k.queue, k.key FROM queue_internal.keys AS k WHERE k.expires_at <= moment
        ORDER BY k.expires_at LIMIT max_keys FOR UPDATE SKIP LOCKED
    )
    DELETE FROM queue_internal.keys AS k USING expired AS e WHERE k.queue = e.queue AND k.key = e.key;
    GET DIAGNOSTICS retired = ROW_COUNT;
    RETURN retired >= max_keys;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_keys(integer) IS
    'Deletes keys whose time is over; returns whether there may be more.';
-- Groups: which tasks of a group may run.
--
--   A task of a group is pushed as blocked (gate 2), and is not in tasks_order: a claim never passes over tasks that
--   have to wait, however many there are. Whatever may admit the next one (a push, an end, a retry) leaves an event;
--   the claim that processes it admits as many as the limit allows (gate 1), the smallest id first. So at most
--   "max_running_per_group" of a group are admitted, and only those can be claimed. A task with a smaller id that
--   comes later, by a retry or from another queue, takes the place of an admitted one that does not run yet.
--
--   Where a delayed task does not hold up its group (delayed_head), it is open (gate 0) until it becomes due.
--
--   Exact, because one transaction at a time admits tasks of a group, and sees everything committed before: it holds
--   the group's row in queue_internal.locks from before it counts until its own commit. Nobody waits for that row: a
--   claim that finds it locked postpones the event. The rows are the queue's own, and so a transaction that stays open
--   after it admitted tasks of many groups is in the way of no other queue.

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
    -- The first group of the queue. One transaction at a time inserts the rows, and no other can lock them before it
    -- commits.
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
COMMENT ON FUNCTION queue_internal.lock_group(text, text) IS
    'Makes this transaction the only one that admits tasks of the group; false if another one is.';

CREATE FUNCTION queue_internal.queue_created() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO queue_internal.locks (queue, number) VALUES (NEW.name, -1) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.queue_created() IS 'Inserts the row that lock_group() locks at the first group of a queue.';

CREATE TRIGGER queue_created AFTER INSERT ON queue.queues
    FOR EACH ROW EXECUTE FUNCTION queue_internal.queue_created();
COMMENT ON TRIGGER queue_created ON queue.queues IS 'Prepares the locks of a new queue''s groups.';

-- How many tasks of a group are admitted, how many of those do not run yet, and the last of these.
CREATE FUNCTION queue_internal.admitted_of(
    source queue.queues, group_key text, OUT admitted bigint, OUT ready bigint, OUT latest bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- Not written into the statement: the planner would see that it is below 2, and use tasks_order.
    is_admitted CONSTANT smallint := 1;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE t.state = 'queued'), max(t.id) FILTER (WHERE t.state = 'queued')
    INTO admitted, ready, latest
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.group_key = admitted_of.group_key AND t.gate = is_admitted;
END
$$;
COMMENT ON FUNCTION queue_internal.admitted_of(queue.queues, text) IS 'How many tasks of a group are admitted.';

-- What has to be done next about a group: admit a task, or withdraw the admission of one; null if nothing.
CREATE FUNCTION queue_internal.next_step(
    source queue.queues, group_key text, admitted bigint, ready bigint, latest bigint,
    OUT admit bigint, OUT withdraw bigint)
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
    is_open    CONSTANT smallint := 0;
    is_blocked CONSTANT smallint := 2;
    blocking   CONSTANT boolean := source.delayed_head = 'block';
    first      record;
BEGIN
    IF admitted > source.max_running_per_group THEN
        withdraw := latest;
        RETURN;
    END IF;
    -- Of the open ones, which wait for their time, the first thousand are looked at. A claim meets the others when
    -- they become due (queue_up). Both are read in the order of tasks_group, and of no other index: that of the ids has
    -- those of all queues.
    SELECT w.id, w.state INTO first FROM (
        (SELECT t.id, t.state FROM queue.tasks AS t
         WHERE t.queue = source.name AND t.group_key = next_step.group_key AND t.gate >= is_blocked
           AND (t.state = 'queued' OR blocking)
         ORDER BY t.gate, t.id LIMIT 1)
        UNION ALL
        (SELECT o.id, o.state FROM (
             SELECT t.id, t.state, t.run_at FROM queue.tasks AS t
             WHERE t.queue = source.name AND t.group_key = next_step.group_key AND t.gate <= is_open
             ORDER BY t.gate, t.id LIMIT 1000) AS o
         WHERE o.state = 'queued' AND (blocking OR o.run_at <= clock_timestamp())
         ORDER BY o.id LIMIT 1)) AS w
    ORDER BY w.id LIMIT 1;
    IF first.id IS NULL THEN
        RETURN;
    ELSIF first.state = 'queued' AND admitted < source.max_running_per_group
          -- Fair: one task of each group is in the order, and the next joins at its end.
          AND NOT (source.fair_groups AND ready > 0) THEN
        admit := first.id;
    ELSIF latest > first.id THEN
        withdraw := latest;
    END IF;
    -- Else the limit is reached; or the first still waits for its predecessors, and holds up those behind it as a
    -- delayed one does.
END
$$;
COMMENT ON FUNCTION queue_internal.next_step(queue.queues, text, bigint, bigint, bigint) IS
    'Which task of a group to admit next, or whose admission to withdraw.';

-- Admits tasks of a group as far as its limit allows, until then; what is left gets an event of its own. False if it has
-- to be looked at again, because another transaction admits tasks of it, or has the task locked whose turn it is.
CREATE FUNCTION queue_internal.admit_next(source queue.queues, group_key text, until timestamptz) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    pass  CONSTANT boolean := source.delayed_head = 'pass';
    now   record;
    step  record;
    next  queue.tasks;
BEGIN
    IF NOT queue_internal.lock_group(source.name, group_key) THEN
        RETURN false;
    END IF;
    SELECT a.admitted, a.ready, a.latest INTO now FROM queue_internal.admitted_of(source, group_key) AS a;
    LOOP
        SELECT s.admit, s.withdraw INTO step
        FROM queue_internal.next_step(source, group_key, now.admitted, now.ready, now.latest) AS s;
        IF step.withdraw IS NOT NULL THEN
            UPDATE queue.tasks AS t SET gate = 2
            WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                          WHERE l.id = step.withdraw AND l.gate = 1 AND l.state = 'queued'
                            AND l.queue = source.name AND l.group_key = admit_next.group_key
                          FOR NO KEY UPDATE SKIP LOCKED);
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            SELECT a.admitted, a.ready, a.latest INTO now FROM queue_internal.admitted_of(source, group_key) AS a;
        ELSIF step.admit IS NOT NULL THEN
            UPDATE queue.tasks AS t
            SET gate = CASE WHEN pass AND t.run_at > clock_timestamp() THEN 0 ELSE 1 END,
                run_at = CASE WHEN source.fair_groups THEN greatest(t.run_at, clock_timestamp()) ELSE t.run_at END
            WHERE t.id = (SELECT l.id FROM queue.tasks AS l
                          WHERE l.id = step.admit AND l.gate <> 1 AND l.state = 'queued'
                            -- It may have been moved to another queue since next_step read it.
                            AND l.queue = source.name AND l.group_key = admit_next.group_key
                          FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING t.* INTO next;
            IF NOT FOUND THEN
                RETURN false;
            END IF;
            PERFORM queue_internal.keep_in_view(next);
            now.admitted := now.admitted + next.gate;
            now.ready := now.ready + next.gate;
            now.latest := CASE WHEN next.gate = 1 THEN greatest(now.latest, next.id) ELSE now.latest END;
        ELSE
            RETURN true;
        END IF;
        IF clock_timestamp() >= until THEN
            INSERT INTO queue_internal.events (queue, group_key) VALUES (source.name, admit_next.group_key);
            RETURN true;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.admit_next(queue.queues, text, timestamptz) IS
    'Admits tasks of a group, as far as its limit allows; false if that has to wait.';

-- The tasks of a group that became due while they were open have to queue up like the others. Many of them at once,
-- because a claim would meet them one by one; but no more than the next ones are read, most of which may be for later.
CREATE FUNCTION queue_internal.queue_up(task queue.tasks) RETURNS void
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
                  -- In the order of tasks_group, and of no other index: that of the ids has those of all queues.
                  WHERE o.queue = task.queue AND o.group_key = task.group_key
                    AND (o.gate, o.id) >= (is_open, task.id) AND o.gate <= is_open
                  ORDER BY o.gate, o.id LIMIT 200))
          AND t.queue = task.queue AND t.group_key = task.group_key AND t.gate = is_open
          AND t.state = 'queued' AND t.run_at <= clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE queue.tasks AS t SET gate = 2 FROM due AS d WHERE t.id = d.id;
    INSERT INTO queue_internal.events (queue, group_key) VALUES (task.queue, task.group_key);
END
$$;
COMMENT ON FUNCTION queue_internal.queue_up(queue.tasks) IS 'Blocks the due tasks of a group until it is their turn.';

-- A task of a group is back in its queue, or has another run_at: one behind it may go first, or one before it. Where
-- the queue says so, a delayed task lets the others pass.
CREATE FUNCTION queue_internal.yield_turn(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF task.group_key IS NULL THEN
        RETURN;
    ELSIF task.gate = 1 AND task.run_at > clock_timestamp() THEN
        UPDATE queue.tasks AS t SET gate = 0
        WHERE t.id = task.id AND EXISTS (
            SELECT FROM queue.queues AS q WHERE q.name = task.queue AND q.delayed_head = 'pass');
    END IF;
    INSERT INTO queue_internal.events (queue, group_key) VALUES (task.queue, task.group_key);
END
$$;
COMMENT ON FUNCTION queue_internal.yield_turn(queue.tasks) IS
    'Has the turns of a group looked at again after a task of it came back or was delayed.';
-- Dependencies: a task that waits for others.
--
--   Each dependency is a row, written with the push of the task that waits. The end of the predecessor writes its
--   outcome there and leaves an event for the dependent, in the same transaction. A waiting task is unblocked when all
--   of its rows have an outcome, and ends as soon as one has an outcome that its on_failure does not accept.
--
--   A push that names a predecessor and the end of that predecessor wait for each other, as with a foreign key: the
--   push holds a KEY SHARE lock on the predecessor's row until it commits. So an end either comes first, and the push
--   reads how it ended, or comes later, and sees the dependency. Whatever does not end the predecessor, such as a claim,
--   a heartbeat or a retry, does not conflict with that lock.
--   At REPEATABLE READ and SERIALIZABLE the snapshot of an end may be older than the dependency; then the sweep writes
--   the outcome (sweep.sql).
--
--   Cycles are impossible: a task can only wait for tasks that existed before it.

-- What a push or several of them lock before they take a key or insert a task, all of it in the order of ids: the
-- predecessors, of which it returns those that are live, and the tasks with the keys, which are going to be changed or
-- waited for. A single push without predecessors has no lock yet when it locks the task with its key, and needs none here.
-- A task of a queue for which the caller has no right does not exist for it.
CREATE FUNCTION queue_internal.lock_before_push(queues text[], keys text[], on_duplicate text, after bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    holders bigint[];
    live    bigint[] := '{}';
    one     bigint;
BEGIN
    IF on_duplicate IN ('replace', 'reschedule') AND (after <> '{}' OR cardinality(keys) > 1) THEN
        holders := ARRAY(
            SELECT (SELECT k.task_id FROM queue_internal.keys AS k
                    WHERE k.queue = n.queue AND k.key = n.key AND k.expires_at IS NULL)
            FROM unnest(queues, keys) AS n (queue, key));
    END IF;
    IF holders IS NULL THEN
        RETURN ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (after) AND queue_internal.has_right('any', t.queue)
            ORDER BY t.id FOR KEY SHARE);
    END IF;
    FOR one IN SELECT DISTINCT u.id FROM unnest(after || holders) AS u (id) WHERE u.id IS NOT NULL ORDER BY u.id LOOP
        -- As settle_duplicate does: of one that runs it changes the key alone.
        IF one = ANY (holders) THEN
            PERFORM FROM queue.tasks AS t
            WHERE t.id = one AND t.queue = ANY (queues) AND t.state IN ('queued', 'waiting') FOR NO KEY UPDATE;
        END IF;
        PERFORM FROM queue.tasks AS t
        WHERE t.id = one AND (t.queue = ANY (queues) OR queue_internal.has_right('any', t.queue)) FOR KEY SHARE;
        IF FOUND AND one = ANY (after) THEN
            live := live || one;
        END IF;
    END LOOP;
    RETURN live;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_before_push(text[], text[], text, bigint[]) IS
    'Locks the tasks that pushes are going to wait for or to change; returns the live predecessors.';

-- "live" are the predecessors that are locked already (lock_before_push).
-- Why one generic plan: to plan it for all partitions of the history takes longer than to push the task.
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
    live := ARRAY(SELECT DISTINCT l.id FROM unnest(live) AS l (id) WHERE l.id = ANY (after));
    INSERT INTO queue_internal.dependencies (predecessor_id, task_id, on_failure)
    SELECT DISTINCT a.id, add_dependencies.task_id, add_dependencies.on_failure FROM unnest(after) AS a (id) ORDER BY a.id;
    GET DIAGNOSTICS known = ROW_COUNT;
    IF cardinality(live) = known THEN
        RETURN;
    END IF;
    -- A new snapshot: those that are gone by now have ended.
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
        -- Dead letters that came back since the others were locked. The task itself exists already, and cannot wait
        -- for itself.
        live := live || ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.id = ANY (after) AND t.id <> ALL (live) AND t.id <> add_dependencies.task_id
              AND queue_internal.has_right('any', t.queue)
            ORDER BY t.id FOR KEY SHARE);
    END IF;
    IF cardinality(live) + ended < known THEN
        PERFORM queue_internal.raise_unknown_task(min(d.predecessor_id)) FROM queue_internal.dependencies AS d
        WHERE d.task_id = add_dependencies.task_id AND d.predecessor_id = ANY (after) AND d.outcome IS NULL
          AND d.predecessor_id <> ALL (live);
    END IF;
    INSERT INTO queue_internal.events (queue, task_id) VALUES (add_dependencies.queue, add_dependencies.task_id);
END
$$;
COMMENT ON FUNCTION queue_internal.add_dependencies(bigint, text, bigint[], text, bigint[]) IS
    'Makes a task wait for others.';

-- For the sweep. Null for a task that is live or left no trace.
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
COMMENT ON FUNCTION queue_internal.outcome_of(bigint) IS 'How a task ended, as far as it left a trace.';

-- Called in a statement after the one that deleted the tasks, so that its snapshot shows every dependency that was
-- committed while that statement waited. Rows that another transaction has locked are left out, so that no end
-- waits for them: that transaction deletes them, or rolls back, and then the sweep finds the outcome.
CREATE FUNCTION queue_internal.tell_dependents(ids bigint[], outcome text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    ended     bigint;
    dependent bigint;
    told      bigint[] := '{}';
BEGIN
    -- One by one: a plan for many may read all dependencies to look for a few.
    FOREACH ended IN ARRAY ids LOOP
        FOR dependent IN
            SELECT d.task_id FROM queue_internal.dependencies AS d
            WHERE d.predecessor_id = ended AND d.outcome IS NULL FOR UPDATE SKIP LOCKED
        LOOP
            UPDATE queue_internal.dependencies AS d SET outcome = tell_dependents.outcome
            WHERE d.predecessor_id = ended AND d.task_id = dependent;
            told := told || dependent;
        END LOOP;
        IF current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
            SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = ended AND d.outcome IS NULL) THEN
            INSERT INTO queue_internal.outcomes AS o (task_id, outcome) VALUES (ended, tell_dependents.outcome)
            ON CONFLICT ON CONSTRAINT outcomes_pkey
            DO UPDATE SET outcome = excluded.outcome, ended_at = excluded.ended_at;
        END IF;
    END LOOP;
    IF told = '{}' THEN
        RETURN;
    END IF;
    INSERT INTO queue_internal.events (queue, task_id)
    SELECT o.queue, o.id
    FROM (SELECT i.id, (SELECT t.queue FROM queue.tasks AS t WHERE t.id = i.id) AS queue
          FROM (SELECT DISTINCT u.id FROM unnest(told) AS u (id)) AS i) AS o
    WHERE o.queue IS NOT NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.tell_dependents(bigint[], text) IS
    'Writes how tasks ended to the rows of those that wait for them, and leaves an event for each.';

-- False if the task has to be looked at again, because a transaction has it locked.
CREATE FUNCTION queue_internal.process_dependent(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task  queue.tasks;
    ended queue_internal.dependencies;
BEGIN
    SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = process_dependent.task_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = process_dependent.task_id) THEN
            RETURN false;
        -- One of which there is no trace may come yet, from a dump.
        ELSIF queue_internal.outcome_of(process_dependent.task_id) IS NOT NULL THEN
            PERFORM queue_internal.forget_dependencies(process_dependent.task_id);
        END IF;
        RETURN true;
    ELSIF task.state <> 'waiting' THEN
        RETURN true;
    END IF;
    SELECT d.* INTO ended FROM queue_internal.dependencies AS d
    WHERE d.task_id = task.id AND d.outcome = ANY ('{failed, cancelled, purged}') AND d.on_failure <> 'continue'
    ORDER BY d.predecessor_id LIMIT 1;
    IF FOUND THEN
        IF NOT queue_internal.lock_to_end(task.id, false) THEN
            RETURN false;
        END IF;
        task.errors := queue_internal.with_error(
            task, format('predecessor %s %s', ended.predecessor_id,
                         CASE ended.outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END));
        IF ended.on_failure = 'fail' THEN
            PERFORM queue_internal.bury(task);
        ELSE
            PERFORM queue_internal.cancel_now(task);
        END IF;
    ELSIF EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.task_id = task.id AND d.outcome IS NULL)
          -- A dump that is being restored may bring the task before its dependencies.
          OR NOT EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.task_id = task.id) THEN
        RETURN true;
    ELSE
        PERFORM queue_internal.unblock(task);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.process_dependent(bigint) IS
    'Unblocks a waiting task, or ends it, if its predecessors have ended; false if that has to wait.';

CREATE FUNCTION queue_internal.unblock(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', updated_at = clock_timestamp(),
        gate = CASE WHEN t.group_key IS NULL THEN 0 ELSE 2 END
    WHERE t.id = task.id;
    PERFORM queue_internal.forget_dependencies(task.id);
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key) VALUES (task.queue, task.group_key);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.unblock(queue.tasks) IS 'Puts a waiting task into its queue.';

-- Rows that the end of a predecessor has locked at this moment are left to the sweep.
CREATE FUNCTION queue_internal.forget_dependencies(task_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    WITH free AS MATERIALIZED (
        SELECT d.predecessor_id FROM queue_internal.dependencies AS d
        WHERE d.task_id = forget_dependencies.task_id FOR UPDATE SKIP LOCKED
    )
    DELETE FROM queue_internal.dependencies AS d USING free AS f
    WHERE d.predecessor_id = f.predecessor_id AND d.task_id = forget_dependencies.task_id;
END
$$;
COMMENT ON FUNCTION queue_internal.forget_dependencies(bigint) IS
    'Deletes the dependencies of a task that waits no more, without waiting for a lock.';
-- Events: hints to look at a waiting task or at a group.
--
--   Whatever may unblock a task leaves an event in the same transaction: the end of a predecessor, a push into a
--   group, an end or a retry in a group. The next claim from the queue processes the events before it looks for
--   tasks; the background worker and queue.maintain() do it too.
--   Promise:  an event says only what to look at. What follows is decided by the rows of tasks and dependencies, as
--             they are when the event is processed. A lost event is found by the sweep (sweep.sql).
--   Promise:  an event that cannot be processed is in nobody's way. It is due again after a pause that grows from
--             10 ms to 10 s: because a transaction has a row locked, or because of an error, by a constraint or a
--             trigger that somebody added, which is logged once and shown by queue.health().
--   Why not outside READ COMMITTED: a snapshot from before another transaction's commit could admit too many of a
--             group.

-- queue_internal.process_events(queue, max_events, after, until)
--
--   Processes due events of a queue, except fresh ones up to the id "after"; returns how many it looked at. One event at
--   least, and no other after "until", which is in 150 ms where it is null: what one event leads to may be much.
--   Errors:   none of its own
--   Touches:  queue_internal.events (never waits for a lock)
CREATE FUNCTION queue_internal.process_events(
    source queue.queues, max_events integer, after bigint, until timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- For both tries together.
    stop CONSTANT timestamptz := coalesce(until, clock_timestamp() + interval '150 ms');
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    RETURN queue_internal.process_each(source, max_events, after, false, stop);
EXCEPTION WHEN OTHERS THEN
    RETURN queue_internal.process_each(source, max_events, after, true, stop);
END
$$;
COMMENT ON FUNCTION queue_internal.process_events(queue.queues, integer, bigint, timestamptz) IS
    'Unblocks tasks that waited for a predecessor or for their turn; returns how many events it looked at.';

-- With "apart", each event in a subtransaction of its own.
CREATE FUNCTION queue_internal.process_each(
    source queue.queues, max_events integer, after bigint, apart boolean, until timestamptz)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    moment   CONSTANT timestamptz := clock_timestamp();
    event    queue_internal.events;
    last_due timestamptz := '-infinity';
    last     bigint := after;
    looks    integer := 0;
BEGIN
    WHILE looks < max_events AND (looks = 0 OR clock_timestamp() < until) LOOP
        SELECT e.* INTO event FROM queue_internal.events AS e
        WHERE e.queue = source.name AND (e.due_at, e.id) > (last_due, last) AND e.due_at <= moment
        ORDER BY e.due_at, e.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        last_due := event.due_at;
        last := event.id;
        looks := looks + 1;
        IF apart THEN
            BEGIN
                PERFORM queue_internal.process_event(source, event, after, until);
            EXCEPTION WHEN OTHERS THEN
                PERFORM queue_internal.postpone_event(event, SQLERRM);
            END;
        ELSE
            PERFORM queue_internal.process_event(source, event, after, until);
        END IF;
    END LOOP;
    RETURN looks;
END
$$;
COMMENT ON FUNCTION queue_internal.process_each(queue.queues, integer, bigint, boolean, timestamptz) IS
    'Processes due events of a queue; returns how many it looked at.';

-- All events about one task or one group are one, up to a hundred. Those that come after this look are not among them.
CREATE FUNCTION queue_internal.process_event(
    source queue.queues, event queue_internal.events, after bigint, until timestamptz)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ids  bigint[];
    done boolean;
BEGIN
    IF event.task_id IS NOT NULL THEN
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e WHERE e.task_id = event.task_id AND e.id > after
                     LIMIT 100 FOR UPDATE SKIP LOCKED);
        done := queue_internal.process_dependent(event.task_id);
    ELSE
        ids := ARRAY(SELECT e.id FROM queue_internal.events AS e
                     WHERE e.queue = source.name AND e.group_key = event.group_key AND e.id > after
                     LIMIT 100 FOR UPDATE SKIP LOCKED);
        done := queue_internal.admit_next(source, event.group_key, until);
    END IF;
    IF NOT done THEN
        PERFORM queue_internal.postpone_event(event, NULL);
    ELSIF ids = ARRAY[event.id] THEN
        -- By the whole primary key: a plan made for few events may read all of the queue for each.
        DELETE FROM queue_internal.events AS e
        WHERE e.queue = event.queue AND e.due_at = event.due_at AND e.id = event.id;
    ELSIF event.task_id IS NOT NULL THEN
        DELETE FROM queue_internal.events AS e WHERE e.task_id = event.task_id AND e.id = ANY (ids || event.id);
    ELSE
        DELETE FROM queue_internal.events AS e
        WHERE e.queue = event.queue AND e.group_key = event.group_key AND e.id = ANY (ids || event.id);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.process_event(queue.queues, queue_internal.events, bigint, timestamptz) IS
    'Acts upon an event and deletes it, or postpones it.';

CREATE FUNCTION queue_internal.postpone_event(event queue_internal.events, error text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    later CONSTANT timestamptz :=
        clock_timestamp() + least(interval '10 ms' * 2 ^ least(event.tries, 10), interval '10 seconds');
BEGIN
    UPDATE queue_internal.events AS e
    SET due_at = later, tries = e.tries + 1, error = left(postpone_event.error, 1000)
    WHERE e.queue = event.queue AND e.due_at = event.due_at AND e.id = event.id;
    PERFORM queue_internal.announce_task(event.queue, later);
    IF error IS NOT NULL AND event.error IS NULL THEN
        RAISE WARNING '% of queue % cannot go on: %',
            coalesce('task ' || event.task_id, 'a group'), to_json(event.queue), error;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.postpone_event(queue_internal.events, text) IS
    'Has an event processed later; logs the first error.';

-- A piece of each queue at a time, in random order, so that a queue with many events is in no other's way, and for 50 ms
-- in all. A queue without due events costs one look into the index: without the settings, the planner reads all events
-- for each queue.
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
    until  CONSTANT timestamptz := clock_timestamp() + interval '50 ms';
    -- In a variable, because a volatile function is no condition for an index.
    moment timestamptz;
    source queue.queues;
    first  record;
    looks  bigint := 0;
    before bigint := -1;
BEGIN
    WHILE looks > before LOOP
        before := looks;
        moment := clock_timestamp();
        FOR source IN SELECT q.* FROM queue.queues AS q ORDER BY random() LOOP
            SELECT e.due_at, e.id INTO first FROM queue_internal.events AS e
            WHERE e.queue = source.name AND e.due_at <= moment
            ORDER BY e.due_at, e.id LIMIT 1;
            CONTINUE WHEN NOT FOUND;
            -- What lies before it has been processed, and need not be passed over again.
            looks := looks + queue_internal.process_events(
                source, least(max_events, 20), CASE WHEN first.due_at = '-infinity' THEN first.id - 1 ELSE 0 END, until);
            IF looks >= max_events OR clock_timestamp() > until THEN
                RETURN looks;
            END IF;
        END LOOP;
    END LOOP;
    RETURN looks;
END
$$;
COMMENT ON FUNCTION queue_internal.process_all_events(integer) IS
    'Processes due events of all queues, about so many; returns how many it looked at.';
-- The sweep: finds what no event tells of.
--
--   It reads the dependencies, the groups of each queue and the keys in the order of their indexes, in turns: a bounded
--   piece of each in a turn, from where the last turn stopped. So the time until a lost event of a group is found does not
--   grow with the dependencies and the keys, or with the groups of another queue. It resolves dependencies whose
--   predecessor is gone, deletes keys whose task has ended, and leaves an event for each waiting task and each group that
--   has to be looked at and has no event. So an event that was lost, or that nobody could write, costs a delay: up to
--   "queue.sweep_interval" where the background worker runs, or until the next queue.maintain(). A claim by SQL that found
--   nothing sweeps a piece of its queue, too, once a second in a session.
--
--   Why it leaves events and does not process what it finds: there is one place where turns are given and waiting
--   tasks are ended, with its own rules about locks and errors (events.sql).

-- "queue" is the last one whose groups this turn has looked at, null between two turns; "groups" has the last group of
-- each queue that has more of them than a turn looks at. Everything has been looked at once all of those that had more in
-- the first turn came to their ends: "queues", and the dependencies and the keys if they are "pending".
CREATE TYPE queue_internal.sweep_position AS (
    queue text, groups jsonb, predecessor_id bigint, task_id bigint, key_queue text, key text,
    is_first_turn boolean, queues text[], dependencies_pending boolean, keys_pending boolean);
REVOKE ALL ON TYPE queue_internal.sweep_position FROM PUBLIC;
COMMENT ON TYPE queue_internal.sweep_position IS 'How far a sweep has come in each of the tables.';

-- Looks at about "max_looks" rows; returns how far it came. A turn is over where "queue" is null, and everything has been
-- looked at where all of it is. With "again", each turn begins anew with what came to its end, so that what is lost there
-- meanwhile does not wait for those that have more; without, everything is looked at once.
CREATE FUNCTION queue_internal.sweep(place queue_internal.sweep_position, max_looks integer, again boolean)
RETURNS queue_internal.sweep_position
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Of each queue's groups in a turn, and of the dependencies and the keys.
    piece  CONSTANT integer := 100;
    rows   CONSTANT integer := 500;
    source queue.queues;
    last   record;
BEGIN
    IF place.queue IS NULL THEN
        place.is_first_turn := place IS NULL;
        IF again OR place.is_first_turn OR place.dependencies_pending THEN
            SELECT d.predecessor_id, d.task_id INTO place.predecessor_id, place.task_id
            FROM queue_internal.sweep_dependencies(place.predecessor_id, place.task_id, rows) AS d;
            place.dependencies_pending :=
                place.predecessor_id IS NOT NULL AND (place.is_first_turn OR place.dependencies_pending);
            IF place.predecessor_id IS NULL THEN
                DELETE FROM queue_internal.outcomes AS o
                WHERE o.task_id = ANY (ARRAY(
                    SELECT e.task_id FROM queue_internal.outcomes AS e
                    WHERE e.ended_at < clock_timestamp() - interval '1 day'
                      -- That of a dump is older, and may be read only now.
                      AND NOT EXISTS (SELECT FROM queue_internal.dependencies AS d
                                      WHERE d.predecessor_id = e.task_id AND d.outcome IS NULL)
                    LIMIT 1000 FOR UPDATE SKIP LOCKED));
            END IF;
        END IF;
        place.queue := '';
        -- Without queues that are gone.
        place.groups := (SELECT jsonb_object_agg(g.key, g.value) FROM jsonb_each(place.groups) AS g
                         WHERE (SELECT q.name FROM queue.queues AS q WHERE q.name = g.key) IS NOT NULL);
        place.queues := ARRAY(SELECT u.name FROM unnest(place.queues) AS u (name) WHERE place.groups ? u.name);
        RETURN place;
    END IF;
    WHILE max_looks > 0 LOOP
        SELECT q.* INTO source FROM queue.queues AS q
        WHERE q.name > place.queue AND (again OR place.is_first_turn OR q.name = ANY (place.queues))
        ORDER BY q.name LIMIT 1;
        IF NOT FOUND THEN
            IF again OR place.is_first_turn OR place.keys_pending THEN
                SELECT k.queue, k.key INTO place.key_queue, place.key
                FROM queue_internal.sweep_keys(place.key_queue, place.key, rows) AS k;
                place.keys_pending := place.key IS NOT NULL AND (place.is_first_turn OR place.keys_pending);
            END IF;
            IF place.queues = '{}' AND NOT place.dependencies_pending AND NOT place.keys_pending THEN
                RETURN NULL;
            END IF;
            place.queue := NULL;
            RETURN place;
        END IF;
        place.queue := source.name;
        -- No trigger inserted it where the queue came by replication.
        INSERT INTO queue_internal.locks (queue, number)
        SELECT source.name, -1
        WHERE NOT EXISTS (SELECT FROM queue_internal.locks AS l WHERE l.queue = source.name AND l.number = -1)
        ON CONFLICT DO NOTHING;
        SELECT g.group_key, g.looks INTO last
        FROM queue_internal.sweep_groups(source, place.groups ->> source.name, piece) AS g;
        IF last.group_key IS NULL THEN
            place.groups := place.groups - source.name;
            place.queues := array_remove(place.queues, source.name);
        ELSE
            place.groups := coalesce(place.groups, '{}') || jsonb_build_object(source.name, last.group_key);
            place.queues := place.queues || CASE WHEN place.is_first_turn THEN ARRAY[source.name] END;
        END IF;
        max_looks := max_looks - 1 - last.looks;
    END LOOP;
    RETURN place;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep(queue_internal.sweep_position, integer, boolean) IS
    'Leaves events about what no event tells of, for a piece of the tables; returns where to continue.';

-- Returns the last row that it looked at, or null at the end.
CREATE FUNCTION queue_internal.sweep_dependencies(
    INOUT predecessor_id bigint, INOUT task_id bigint, max_looks integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    looks integer := 0;
    row   record;
BEGIN
    FOR row IN
        SELECT d.predecessor_id, d.task_id, d.outcome, d.on_failure, d.restored_at,
               (SELECT t.id FROM queue.tasks AS t WHERE t.id = d.predecessor_id) AS live,
               (SELECT t.queue FROM queue.tasks AS t WHERE t.id = d.task_id AND t.state = 'waiting') AS queue
        FROM queue_internal.dependencies AS d
        WHERE (d.predecessor_id, d.task_id) > (coalesce(sweep_dependencies.predecessor_id, -9223372036854775808),
                                               coalesce(sweep_dependencies.task_id, -9223372036854775808))
        ORDER BY d.predecessor_id, d.task_id LIMIT max_looks
    LOOP
        looks := looks + 1;
        predecessor_id := row.predecessor_id;
        task_id := row.task_id;
        IF row.queue IS NULL THEN
            -- Left over from a task that waits no more. One of which there is no trace may come yet, from a dump, or
            -- has come since the loop read its row.
            IF queue_internal.outcome_of(row.task_id) IS NOT NULL
               OR EXISTS (SELECT FROM queue.tasks AS t WHERE t.id = row.task_id AND t.state <> 'waiting') THEN
                PERFORM queue_internal.forget_dependencies(row.task_id);
            END IF;
            CONTINUE;
        ELSIF row.outcome IS NULL THEN
            CONTINUE WHEN row.live IS NOT NULL;
            row.outcome := queue_internal.outcome_of(row.predecessor_id);
            -- The trace of one from a dump may be still to come.
            CONTINUE WHEN row.outcome IS NULL AND row.restored_at > clock_timestamp() - interval '1 day';
            -- A task that ended by a verb wrote an outcome, or left a trace. One without was deleted by hand.
            row.outcome := coalesce(row.outcome, 'purged');
            UPDATE queue_internal.dependencies AS d SET outcome = row.outcome
            WHERE d.task_id = row.task_id AND d.predecessor_id = (
                SELECT l.predecessor_id FROM queue_internal.dependencies AS l
                WHERE l.predecessor_id = row.predecessor_id AND l.task_id = row.task_id AND l.outcome IS NULL
                  AND (SELECT t.id FROM queue.tasks AS t WHERE t.id = l.predecessor_id) IS NULL
                FOR UPDATE SKIP LOCKED);
            CONTINUE WHEN NOT FOUND;
        END IF;
        IF (row.outcome <> 'completed' AND row.on_failure <> 'continue' OR NOT EXISTS (
                SELECT FROM queue_internal.dependencies AS d WHERE d.task_id = row.task_id AND d.outcome IS NULL))
           AND NOT EXISTS (SELECT FROM queue_internal.events AS e WHERE e.task_id = row.task_id) THEN
            INSERT INTO queue_internal.events (queue, task_id) VALUES (row.queue, row.task_id);
        END IF;
    END LOOP;
    IF looks < max_looks THEN
        predecessor_id := NULL;
        task_id := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_dependencies(bigint, bigint, integer) IS
    'Resolves dependencies whose predecessor is gone, and leaves events for tasks that wait no longer.';

-- The dependencies of a dump (tasks_inserted.sql says how that is told).
CREATE FUNCTION queue_internal.dependency_restored() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.restored_at := clock_timestamp();
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION queue_internal.dependency_restored() IS 'Notes that a dependency comes from a dump.';

CREATE TRIGGER dependency_restored BEFORE INSERT ON queue_internal.dependencies
    FOR EACH ROW WHEN (
        current_setting('search_path') = '' AND current_setting('check_function_bodies') = 'off'
        AND has_table_privilege('queue.tasks', 'TRUNCATE'))
    EXECUTE FUNCTION queue_internal.dependency_restored();
COMMENT ON TRIGGER dependency_restored ON queue_internal.dependencies IS
    'Has the sweep wait for what else is in a dump.';

-- Returns the last group that it looked at, or null at the end, and at how many it looked.
CREATE FUNCTION queue_internal.sweep_groups(
    source queue.queues, INOUT group_key text, max_looks integer, OUT looks integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    -- In a variable, because a volatile function is no condition for an index. No event is postponed for that long.
    longest CONSTANT timestamptz := clock_timestamp() + interval '11 seconds';
BEGIN
    IF group_key IS NULL THEN
        -- The clock was set back since.
        WITH late AS MATERIALIZED (
            SELECT l.due_at, l.id FROM queue_internal.events AS l
            WHERE l.queue = source.name AND l.due_at > longest
            ORDER BY l.due_at, l.id LIMIT max_looks FOR UPDATE SKIP LOCKED
        )
        UPDATE queue_internal.events AS e SET due_at = '-infinity' FROM late
        WHERE e.queue = source.name AND e.due_at = late.due_at AND e.id = late.id;
        IF FOUND THEN
            PERFORM queue_internal.announce_task(source.name, clock_timestamp());
        END IF;
    END IF;
    looks := 0;
    group_key := coalesce(group_key, '');
    WHILE looks < max_looks LOOP
        SELECT t.group_key INTO group_key FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key > sweep_groups.group_key ORDER BY t.group_key LIMIT 1;
        EXIT WHEN group_key IS NULL;
        looks := looks + 1;
        INSERT INTO queue_internal.events (queue, group_key)
        SELECT source.name, sweep_groups.group_key
        FROM queue_internal.admitted_of(source, sweep_groups.group_key) AS a,
             LATERAL queue_internal.next_step(source, sweep_groups.group_key, a.admitted, a.ready, a.latest) AS s
        WHERE (s.admit IS NOT NULL OR s.withdraw IS NOT NULL)
          AND NOT EXISTS (SELECT FROM queue_internal.events AS e
                          WHERE e.queue = source.name AND e.group_key = sweep_groups.group_key);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_groups(queue.queues, text, integer) IS
    'Leaves events for the groups of a queue in which a task can be admitted.';

-- A task gives its key back to the running one that it was going to replace, while that one ends and does not see it
-- (release_key). Such a key is free, but its row is in the table until the next push with that key. A key whose task left no
-- trace may be that of a task which comes yet, from a dump.
-- Returns the last key that it looked at, or null at the end.
CREATE FUNCTION queue_internal.sweep_keys(INOUT queue text, INOUT key text, max_looks integer)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
AS $$
DECLARE
    looks integer := 0;
    row   record;
BEGIN
    FOR row IN
        SELECT k.queue, k.key, k.task_id, k.expires_at,
               (SELECT t.id FROM queue.tasks AS t WHERE t.id = k.task_id) AS live
        FROM queue_internal.keys AS k
        WHERE (k.queue, k.key) > (coalesce(sweep_keys.queue, ''), coalesce(sweep_keys.key, ''))
        ORDER BY k.queue, k.key LIMIT max_looks
    LOOP
        looks := looks + 1;
        queue := row.queue;
        key := row.key;
        IF row.expires_at IS NULL AND row.live IS NULL AND queue_internal.outcome_of(row.task_id) IS NOT NULL THEN
            PERFORM FROM queue_internal.keys AS l
            WHERE l.queue = row.queue AND l.key = row.key AND l.task_id = row.task_id AND l.expires_at IS NULL
            FOR UPDATE SKIP LOCKED;
            -- It may be live again since: a dead letter that was put back.
            IF FOUND AND queue_internal.outcome_of(row.task_id) IS NOT NULL THEN
                DELETE FROM queue_internal.keys AS k WHERE k.queue = row.queue AND k.key = row.key;
            END IF;
        END IF;
    END LOOP;
    IF looks < max_looks THEN
        queue := NULL;
        key := NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_keys(text, text, integer) IS
    'Deletes keys whose task has ended; returns where to continue.';

CREATE TYPE queue_internal.sweep_mark AS (group_key text, since timestamptz);
REVOKE ALL ON TYPE queue_internal.sweep_mark FROM PUBLIC;
COMMENT ON TYPE queue_internal.sweep_mark IS 'How far a session has come in the groups of a queue, and when.';

-- For a claim by SQL that found nothing: a piece of the dependencies and of the queue's groups, once a second in a
-- session. Returns whether it may have left an event. The session remembers how far it came in the groups. The piece of
-- the dependencies begins at random: their ids are also those of other queues, and whoever claims can read the setting.
CREATE FUNCTION queue_internal.sweep_a_little(source queue.queues) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    name   CONSTANT text := 'queue_sweep.q' || md5(source.name);
    moment CONSTANT timestamptz := clock_timestamp();
    kept   CONSTANT text := current_setting(name, true);
    place  queue_internal.sweep_mark;
    start  CONSTANT bigint := (
        SELECT min(d.predecessor_id) + trunc(random()::numeric * (max(d.predecessor_id)::numeric - min(d.predecessor_id)))
        FROM queue_internal.dependencies AS d);
    last   record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    ELSIF kept <> '' THEN
        place := kept;
        IF place.since BETWEEN moment - interval '1 second' AND moment THEN
            RETURN false;
        END IF;
    END IF;
    SELECT d.predecessor_id, g.group_key INTO last
    FROM queue_internal.sweep_dependencies(start, NULL, 100) AS d,
         queue_internal.sweep_groups(source, place.group_key, 100) AS g;
    IF last.predecessor_id IS NULL THEN
        -- The end is reached: from the first one on.
        PERFORM queue_internal.sweep_dependencies(NULL, NULL, 100);
    END IF;
    place.group_key := last.group_key;
    place.since := moment;
    PERFORM set_config(name, place::text, false);
    RETURN EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = source.name AND e.due_at <= moment);
END
$$;
COMMENT ON FUNCTION queue_internal.sweep_a_little(queue.queues) IS
    'Leaves events about what no event tells of, for a small piece of a queue, once a second in a session.';
-- How many tasks of a queue may run at a time, and how many may start in a period.
--
--   max_running: the queue has that many places (queue_internal.slots). To start, a task needs a place
--   whose last task does not run any more with the token that is written there. Ending a task in
--   whatever way frees its place by itself, at the commit, exactly once.
--
--   rate_limit: the queue has that many tokens, in up to 64 buckets (queue_internal.tokens). A start
--   takes one, and the token comes back rate_period later. So in no span of that length, wherever it
--   begins, can more tasks start.
--
--   Claims take different places and buckets at the same time; none waits for another one. All of it
--   is in the caller's transaction: a claim that rolls back has taken nothing.

-- Up to "wanted" places that are free, from a random one on. Read only.
-- After the limit was lowered, as many free places are kept free as tasks still run in places beyond it, and all
-- claims keep the same ones, the first: so they cannot be more than the limit, whoever takes which at the same time.
-- Why subqueries and no joins: a join may read all tasks to look for a few.
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
COMMENT ON FUNCTION queue_internal.free_slots(queue.queues, integer) IS 'The places of a queue in which no task runs.';

CREATE FUNCTION queue_internal.take_slot(source queue.queues, task_id bigint, token bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    free   record;
BEGIN
    -- Others may be taking the same few: then look at all of them.
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
COMMENT ON FUNCTION queue_internal.take_slot(queue.queues, bigint, bigint) IS
    'Gives a task a place in which to run and returns its number; null if there is none.';

-- Takes what a task that starts needs, a place and a token; returns when it starts, or null if it may
-- not. A place without a token is given back, or the task would later have two.
CREATE FUNCTION queue_internal.take_room(source queue.queues, task_id bigint, token bigint)
RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place   integer;
    started timestamptz;
BEGIN
    IF source.max_running IS NOT NULL THEN
        place := queue_internal.take_slot(source, task_id, token);
        IF place IS NULL THEN
            RETURN NULL;
        END IF;
        started := clock_timestamp();
    END IF;
    IF source.rate_limit IS NOT NULL THEN
        started := queue_internal.take_token(source);
        IF started IS NULL THEN
            UPDATE queue_internal.slots AS s SET task_id = NULL
            WHERE s.queue = source.name AND s.slot = place AND s.task_id = take_room.task_id;
        END IF;
    END IF;
    RETURN started;
END
$$;
COMMENT ON FUNCTION queue_internal.take_room(queue.queues, bigint, bigint) IS
    'Takes a place and a token for a task; returns when it starts, or null if it may not.';

-- When each bucket has a token again, or has one since. A time that lies more than a period ahead was
-- written before somebody set the clock back, and does not count. Read only.
CREATE FUNCTION queue_internal.bucket_times(
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
         LATERAL (SELECT s.bucket, s.version, s.taken[1 + cardinality(s.taken) - s.capacity] AS blocking
                  FROM queue_internal.tokens AS s
                  WHERE s.queue = source.name AND s.bucket = 1 + i % buckets
                  ORDER BY s.version DESC LIMIT 1) AS newest,
         LATERAL (SELECT CASE WHEN newest.blocking < horizon THEN newest.blocking + source.rate_period
                              ELSE '-infinity' END AS at) AS due
    WHERE due.at <= until
    LIMIT wanted;
END
$$;
COMMENT ON FUNCTION queue_internal.bucket_times(queue.queues, timestamptz, integer) IS
    'Up to so many buckets of a queue''s rate limit that have a token by the time given.';

-- When the token was taken; null if there is none.
CREATE FUNCTION queue_internal.take_token(source queue.queues) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer;
    free   record;
    held   queue_internal.tokens;
    moment timestamptz;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[2, 64] LOOP
        FOR free IN
            SELECT b.bucket, b.version FROM queue_internal.bucket_times(source, clock_timestamp(), wanted) AS b
        LOOP
            SELECT s.* INTO held FROM queue_internal.tokens AS s
            WHERE s.queue = source.name AND s.bucket = free.bucket AND s.version = free.version
            FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            moment := clock_timestamp();
            UPDATE queue_internal.tokens AS s
            SET version = s.version + 1,
                taken = ARRAY(SELECT u.at FROM unnest(held.taken) WITH ORDINALITY AS u (at, position)
                              WHERE u.at > moment - source.rate_period AND u.at < moment + source.rate_period
                              ORDER BY u.position) || moment
            WHERE s.queue = source.name AND s.bucket = held.bucket AND s.version = held.version;
            RETURN moment;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.take_token(queue.queues) IS
    'Takes a token of a queue''s rate limit; returns when, or null if there is none.';

CREATE FUNCTION queue_internal.announce_token(source queue.queues) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.announce_task(source.name, min(b.free_at))
    FROM queue_internal.bucket_times(source, 'infinity', NULL) AS b;
END
$$;
COMMENT ON FUNCTION queue_internal.announce_token(queue.queues) IS
    'Tells the engine, and whoever waits in this session, when a queue''s rate limit has a token again.';

-- Whether a claim would end the attempt of somebody who died in a place. Read only.
CREATE FUNCTION queue_internal.has_expired_holder(source queue.queues, moment timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM queue_internal.slots AS s
        WHERE s.queue = source.name AND s.task_id IS NOT NULL
          AND (SELECT t.lease_until FROM queue.tasks AS t
               WHERE t.id = s.task_id AND t.token = s.token AND t.state = 'running') <= moment);
END
$$;
COMMENT ON FUNCTION queue_internal.has_expired_holder(queue.queues, timestamptz) IS
    'Whether a place of a queue is taken by a task whose lease ran out.';

-- A claim that was open while the limit was set, or that the transaction which set it did not see, took no slot. For
-- some time after that, claims look for running tasks without a slot, and give them slots beyond the limit: those count
-- until their tasks end (free_slots). It reads all tasks of the queue, so it is done once a second at most, and for a
-- twentieth of the time. While another claim does it, this one goes by what it sees.
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
    -- As in slots, "version" is part of the key: the time of the next look. "token" is the time of the last one.
    SELECT s.token INTO until FROM queue_internal.slots AS s
    WHERE s.queue = source.name AND s.slot = 0 AND s.version <= begun * 1000000 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO queue_internal.slots (queue, slot, task_id, token)
    SELECT source.name, row_number() OVER (ORDER BY t.id) + (
               SELECT max(s.slot) FROM queue_internal.slots AS s WHERE s.queue = source.name), t.id, t.token
    FROM queue.tasks AS t
    WHERE t.queue = source.name AND t.gate < 2 AND t.state = 'running'
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
COMMENT ON FUNCTION queue_internal.count_open_claims(queue.queues) IS
    'Counts tasks against a new limit whose claims were open when it was set.';

-- Looked at before any row is locked, so that asking a queue at its limit writes nothing. A worker that
-- died must not keep its place because nobody comes across its task in the order.
CREATE FUNCTION queue_internal.has_room(source queue.queues) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF source.rate_limit IS NOT NULL AND NOT EXISTS (
        SELECT FROM queue_internal.bucket_times(source, clock_timestamp(), 1)) THEN
        PERFORM queue_internal.announce_token(source);
        RETURN false;
    END IF;
    IF source.max_running IS NOT NULL THEN
        PERFORM queue_internal.count_open_claims(source);
    END IF;
    IF source.max_running IS NOT NULL AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1)) THEN
        -- Not all at once: the others are the next claim's.
        RETURN (queue_internal.expire(ARRAY(
            SELECT s.task_id FROM queue_internal.slots AS s
            WHERE s.queue = source.name AND s.task_id IS NOT NULL
              AND (SELECT t.lease_until FROM queue.tasks AS t
                   WHERE t.id = s.task_id AND t.token = s.token AND t.state = 'running') <= clock_timestamp()
            LIMIT 32))).expired > 0;
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.has_room(queue.queues) IS
    'Whether a task may start in a queue that limits them.';

-- Makes the places and tokens that the options ask for. Whoever calls it has the queue's row locked.
CREATE FUNCTION queue_internal.provide_limits(source queue.queues) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buckets CONSTANT integer := CASE WHEN source.rate_limit IS NOT NULL THEN least(source.rate_limit, 64) END;
BEGIN
    IF source.max_running IS NULL THEN
        DELETE FROM queue_internal.slots AS s WHERE s.queue = source.name;
    ELSE
        -- So that no claim makes slots of the same numbers meanwhile (count_open_claims).
        PERFORM FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot = 0 FOR UPDATE;
        -- A limit that is new counts what runs already, and for ten minutes what a claim that is open now commits.
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
        -- Before the statement that deletes: its snapshot has to show what a claim that holds such a slot has done.
        PERFORM FROM queue_internal.slots AS s WHERE s.queue = source.name AND s.slot > source.max_running FOR UPDATE;
        DELETE FROM queue_internal.slots AS s
        WHERE s.queue = source.name AND s.slot > source.max_running
          AND NOT EXISTS (SELECT FROM queue.tasks AS t
                          WHERE t.id = s.task_id AND t.token = s.token AND t.state = 'running');
    END IF;
    -- A changed rate begins with what was started within the last period.
    WITH old AS (
        DELETE FROM queue_internal.tokens AS s WHERE s.queue = source.name RETURNING s.taken
    ), recent AS (
        SELECT u.at, row_number() OVER (ORDER BY u.at DESC) - 1 AS rank
        FROM old AS o, unnest(o.taken) AS u (at) WHERE u.at > clock_timestamp() - source.rate_period
    )
    INSERT INTO queue_internal.tokens (queue, bucket, capacity, taken)
    SELECT source.name, b, source.rate_limit / buckets + (b <= source.rate_limit % buckets)::integer,
           ARRAY(SELECT r.at FROM recent AS r WHERE r.rank % buckets = b - 1 ORDER BY r.at)
    FROM generate_series(1, buckets) AS b;
END
$$;
COMMENT ON FUNCTION queue_internal.provide_limits(queue.queues) IS
    'Makes the places and the tokens of a queue follow its options.';
-- Priorities that do not starve: where a queue has "ageing", waiting that long is worth one step of
-- priority. So the order of claims is that of run_at + priority * ageing, which never changes while a
-- task waits and needs no index of its own: within a priority it is the order of run_at, and between
-- priorities the heads are compared.

-- How far a claim has come in a priority.
CREATE TYPE queue_internal.passed_level AS (level integer, until timestamptz);
COMMENT ON TYPE queue_internal.passed_level IS 'How far a claim has come in a priority.';

-- In a bucket, the priority with the next task, that task's run_at, and up to which run_at its tasks come before
-- those of all other priorities.
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
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.gate < 2
    ORDER BY t.priority LIMIT 1;
    WHILE other IS NOT NULL LOOP
        SELECT coalesce(max(p.until), '-infinity') INTO begun FROM unnest(passed) AS p WHERE p.level = other;
        SELECT t.run_at INTO first FROM queue.tasks AS t
        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.priority = other AND t.gate < 2
          AND t.run_at > begun AND t.run_at <= moment
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
        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.gate < 2
          AND t.priority > other ORDER BY t.priority LIMIT 1;
    END LOOP;
    -- Clipped as a number: priorities far apart give times that no timestamp can hold. At least its head, whatever
    -- rounding does.
    up_to := second - level * step;
    until := CASE WHEN up_to < extract(epoch FROM moment) THEN greatest(head, to_timestamp(up_to)) ELSE moment END;
END
$$;
COMMENT ON FUNCTION queue_internal.next_aged_level(integer, queue.queues, timestamptz, queue_internal.passed_level[]) IS
    'The priority whose first task has waited long enough to be next.';
-- The ways in which a task leaves queue.tasks, the way back to the queue after an attempt, and the ways
-- to another place or queue. Whoever calls them holds the task's row locked: FOR NO KEY UPDATE, or FOR UPDATE if the
-- task is to end. A transaction that has pushed after the task conflicts with the second alone (dependencies.sql).

-- Has to come before the statement that looks for those who wait for the task. With "patient" it waits for transactions
-- that have pushed after the task; else it returns false.
CREATE FUNCTION queue_internal.lock_to_end(task_id bigint, patient boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF patient THEN
        PERFORM FROM queue.tasks AS t WHERE t.id = task_id FOR UPDATE;
    ELSE
        PERFORM FROM queue.tasks AS t WHERE t.id = task_id FOR UPDATE SKIP LOCKED;
    END IF;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION queue_internal.lock_to_end(bigint, boolean) IS
    'Locks the row of a task that is to end; false if that would have to wait.';

-- The first ten and the last ten are kept, of as many attempts as there may be: all of them are written anew at
-- each failure.
CREATE FUNCTION queue_internal.with_error(task queue.tasks, error text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    errors jsonb := coalesce(task.errors, '[]');
BEGIN
    IF jsonb_array_length(CASE jsonb_typeof(errors) WHEN 'array' THEN errors END) >= 20 THEN
        errors := errors - 10;
    END IF;
    RETURN errors || jsonb_build_object(
        'attempt', task.attempt, 'at', clock_timestamp(), 'worker', task.worker, 'error', error);
END
$$;
COMMENT ON FUNCTION queue_internal.with_error(queue.tasks, text) IS
    'The errors of a task with one more at the end; of more than twenty, the first ten and the last ten.';

-- Deletes the task and writes about it in one statement: see the policy "of_a_task" (rights.sql).
CREATE FUNCTION queue_internal.archive(task queue.tasks, state text, result jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    kept    boolean;
    awaited boolean;
BEGIN
    -- At another isolation level the snapshot may not show who waits for the task: then its outcome has to be found
    -- elsewhere (tell_dependents).
    SELECT q.keep_history,
           q.max_running IS NOT NULL
           OR NOT q.keep_history AND current_setting('transaction_isolation') <> 'read committed'
           OR EXISTS (SELECT FROM queue_internal.dependencies AS d WHERE d.predecessor_id = task.id)
    INTO kept, awaited
    FROM queue.queues AS q WHERE q.name = task.queue;
    WITH ended AS (DELETE FROM queue.tasks AS t WHERE t.id = task.id)
    INSERT INTO queue.history (
        id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
        created_at, key, group_key, headers, payload, progress, errors, result)
    SELECT task.id, task.queue, archive.state, task.priority, task.run_at, task.attempt, task.max_attempts,
           task.token, task.worker, task.claimed_at, task.created_at, task.key, task.group_key,
           task.headers, task.payload, task.progress, task.errors, archive.result
    WHERE kept IS DISTINCT FROM false;
    -- Null where a dump brought the task before its queue.
    IF awaited IS NOT FALSE OR task.key IS NOT NULL OR task.group_key IS NOT NULL OR task.state = 'waiting' THEN
        PERFORM queue_internal.leave(task, archive.state);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.archive(queue.tasks, text, jsonb) IS
    'Moves a finished task to the history, or deletes it if its queue keeps none.';

-- What the end of a task means to others: its key is free, the next of its group may run, its slot is free, and those
-- that wait for it are told. Must come in a statement after the one that locked or deleted the task: see
-- tell_dependents().
CREATE FUNCTION queue_internal.leave(task queue.tasks, outcome text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF task.key IS NOT NULL THEN
        -- What failed may be pushed again at once: nothing was done.
        PERFORM queue_internal.release_key(task, outcome IN ('purged', 'failed'));
    END IF;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key) VALUES (task.queue, task.group_key);
    END IF;
    IF task.state = 'waiting' THEN
        PERFORM queue_internal.forget_dependencies(task.id);
    END IF;
    PERFORM queue_internal.tell_dependents(ARRAY[task.id], outcome);
    IF task.state = 'running' AND EXISTS (
        SELECT FROM queue.queues AS q WHERE q.name = task.queue AND q.max_running IS NOT NULL) THEN
        PERFORM queue_internal.announce_task(task.queue, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.leave(queue.tasks, text) IS
    'Tells those who wait for a task, or for its key, its group or its slot, that it has ended.';

CREATE FUNCTION queue_internal.cancel_now(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.archive(task, 'cancelled', NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.cancel_now(queue.tasks) IS
    'Moves a task to the history as cancelled.';

CREATE FUNCTION queue_internal.cancel_or_ask(task queue.tasks) RETURNS text
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
COMMENT ON FUNCTION queue_internal.cancel_or_ask(queue.tasks) IS
    'Cancels a task, or notes for the worker of a running one that it shall stop; returns its state.';

CREATE FUNCTION queue_internal.discard(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    DELETE FROM queue.tasks AS t WHERE t.id = task.id;
    PERFORM queue_internal.leave(task, 'purged');
END
$$;
COMMENT ON FUNCTION queue_internal.discard(queue.tasks) IS 'Deletes a task without a trace.';

CREATE FUNCTION queue_internal.bury(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    WITH ended AS (DELETE FROM queue.tasks AS t WHERE t.id = task.id)
    INSERT INTO queue.dead_letters (
        id, queue, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
        created_at, key, group_key, backoff, headers, payload, progress, errors, key_ttl)
    VALUES (
        task.id, task.queue, task.priority, task.run_at, task.attempt, task.max_attempts, task.token,
        task.worker, task.claimed_at, task.created_at, task.key, task.group_key, task.backoff,
        task.headers, task.payload, task.progress, task.errors,
        (SELECT k.ttl FROM queue_internal.keys AS k
         WHERE k.queue = task.queue AND k.key = task.key AND k.task_id = task.id));
    PERFORM queue_internal.leave(task, 'failed');
END
$$;
COMMENT ON FUNCTION queue_internal.bury(queue.tasks) IS 'Moves a task to the dead letters.';

CREATE FUNCTION queue_internal.put_back(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET state = 'queued', attempt = task.attempt, run_at = task.run_at, errors = task.errors,
        lease_until = NULL, worker = NULL, claimed_at = NULL, updated_at = clock_timestamp()
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        PERFORM queue_internal.yield_turn(task);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.put_back(queue.tasks) IS
    'Puts a running task back into its queue, with the attempt, run_at and errors given.';

CREATE FUNCTION queue_internal.reorder(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE queue.tasks AS t
    SET priority = task.priority, run_at = task.run_at, updated_at = clock_timestamp()
    WHERE t.id = task.id;
END
$$;
COMMENT ON FUNCTION queue_internal.reorder(queue.tasks) IS
    'Gives a task the place in the order that its priority and run_at say.';

-- False, and the task stays, if another one has its key there.
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
    -- In the other queue it is its turn in its group when it is.
    UPDATE queue.tasks AS t
    SET queue = to_queue, updated_at = clock_timestamp(),
        gate = CASE WHEN t.state = 'waiting' OR t.group_key IS NOT NULL THEN 2 ELSE 0 END
    WHERE t.id = task.id;
    IF task.group_key IS NOT NULL THEN
        INSERT INTO queue_internal.events (queue, group_key)
        VALUES (task.queue, task.group_key), (to_queue, task.group_key);
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_internal.move(queue.tasks, text) IS
    'Moves a task that is not running to another queue; false if its key is taken there.';

-- Decides what an attempt that did not succeed leads to. A task that is to be cancelled is, however
-- its attempt ended; and one that was replaced is not tried again.
-- Without "patient" it returns null, and does nothing, where it would have to wait for a transaction that has pushed
-- after the task, or that is replacing it.
CREATE FUNCTION queue_internal.end_attempt(
    task queue.tasks, error text, retry_in interval, permanent boolean, patient boolean DEFAULT true)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source  queue.queues;
    is_last boolean;
    outcome text;
BEGIN
    task.errors := queue_internal.with_error(task, error);
    SELECT q.* INTO source FROM queue.queues AS q WHERE q.name = task.queue;
    -- A dump may bring a task before its queue: until then nobody knows whether it was the last attempt.
    IF NOT patient AND source.name IS NULL THEN
        RETURN NULL;
    END IF;
    is_last := permanent OR coalesce(task.attempt >= coalesce(task.max_attempts, source.max_attempts), false);
    -- Which task a push replaces is decided by who locks the key first. Who is patient has the task locked FOR UPDATE
    -- if it has a key, and a push that replaces it comes before or after that (leased_task).
    IF NOT patient AND task.key IS NOT NULL AND NOT is_last AND NOT queue_internal.lock_key(task.queue, task.key, false) THEN
        RETURN NULL;
    END IF;
    outcome := CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    WHEN is_last THEN 'failed'
                    WHEN queue_internal.is_replaced(task) THEN 'cancelled' END;
    IF outcome IS NOT NULL AND NOT queue_internal.lock_to_end(task.id, patient) THEN
        RETURN NULL;
    ELSIF outcome = 'cancelled' THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN outcome;
    ELSIF outcome = 'failed' THEN
        PERFORM queue_internal.bury(task);
        RETURN outcome;
    END IF;
    retry_in := coalesce(retry_in, queue_internal.backoff(source, task));
    -- Without a wait it keeps its place in the queue.
    IF retry_in > '0' THEN
        task.run_at := clock_timestamp() + retry_in;
    END IF;
    PERFORM queue_internal.put_back(task);
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue_internal.end_attempt(queue.tasks, text, interval, boolean, boolean) IS
    'Ends an attempt that did not succeed; returns the state that the task is in then.';
-- queue_internal.leased_task(id, token)
--
--   The running task that the token leases, its row locked. A lease that ran out but was not taken
--   back yet still counts: nobody else has the task, so nothing is gained by refusing.
--   Waits:    with "ends", if the task was asked to be cancelled or has a key, for transactions that have pushed after the
--             task, or that are replacing it. It is locked for its end then from the start, and not once as one that stays:
--             who waits for a stronger lock must not keep a heartbeat waiting.
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
COMMENT ON FUNCTION queue_internal.leased_task(bigint, bigint, boolean) IS
    'The running task that the token leases, locked; raises if the lease is lost.';
-- queue_internal.open_queue(name, kind)
--
--   The queue of that name, for a caller that has this kind of right for it.
--   Errors:   22004, 22023, 54000 for the argument "queue"; 42501 without the right, whether or not there is such a
--             queue; QX002

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
COMMENT ON FUNCTION queue_internal.open_queue(text, text) IS
    'The queue of that name; raises if the caller does not have this kind of right, or if there is none.';
-- Where claims of a session begin, while much that is of no use lies before that.
--
--   Finished tasks and processed events leave entries at the front of their indexes until a vacuum takes
--   them, and while an old snapshot forbids that, each claim would pass over all of them. So a session whose
--   claim passed over more than a thousand keeps in mind where it found its first task, and begins there for
--   twenty times as long as it took, up to a minute: looks from the front then take a twentieth of its time,
--   however much lies there. What comes before the mark meanwhile, a more urgent task, or an event whose transaction was
--   slow to commit, may be overtaken for that long. No claim has nothing because of its mark: it looks again
--   from the front.
--
--   A setting, because it is the session's own; a transaction that rolls back takes its mark along.

CREATE TYPE queue_internal.mark AS (event bigint, level integer, head timestamptz, until timestamptz);
REVOKE ALL ON TYPE queue_internal.mark FROM PUBLIC;
COMMENT ON TYPE queue_internal.mark IS
    'The event, the priority and the run_at before which claims of a session do not look, and until when.';

CREATE FUNCTION queue_internal.front() RETURNS queue_internal.mark
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ROW(0, -2147483648, '-infinity', NULL)::queue_internal.mark;
COMMENT ON FUNCTION queue_internal.front() IS 'The mark of those that have none.';

-- A clock that was put back makes none last longer.
CREATE FUNCTION queue_internal.mark_of(queue text) RETURNS queue_internal.mark
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    kept CONSTANT text := current_setting('queue_mark.q' || md5(queue), true);
    mark queue_internal.mark;
BEGIN
    IF kept <> '' THEN
        mark := kept;
        IF mark.until BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 minute' THEN
            RETURN mark;
        END IF;
    END IF;
    RETURN queue_internal.front();
END
$$;
COMMENT ON FUNCTION queue_internal.mark_of(text) IS 'Where claims of this session from a queue begin.';

-- Up to a minute ahead, or it would not be believed.
CREATE FUNCTION queue_internal.set_mark(queue text, mark queue_internal.mark) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
BEGIN
    mark.until := least(mark.until, clock_timestamp() + interval '1 minute');
    PERFORM set_config('queue_mark.q' || md5(queue), mark::text, false);
END
$$;
COMMENT ON FUNCTION queue_internal.set_mark(text, queue_internal.mark) IS
    'Has claims of this session from a queue begin there.';
-- How a claim finds out that it passed over much that is of no use (mark.sql).

-- Counted and not timed: a session that had to wait for a processor passed over nothing. The count grows within
-- a transaction; between two, what was counted may be handed over to the statistics.
CREATE FUNCTION queue_internal.entries_passed() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue.tasks_order')), 0)
         + coalesce(pg_stat_get_xact_tuples_returned(to_regclass('queue_internal.events_pkey')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.entries_passed() IS
    'How many entries of indexes this session has passed, in search of tasks and events.';

CREATE FUNCTION queue_internal.newest_event() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(pg_sequence_last_value(to_regclass('queue_internal.events_id_seq')), 0);
END
$$;
COMMENT ON FUNCTION queue_internal.newest_event() IS 'The id of the last event that anybody left, in whatever queue.';
-- The first task in the order of a bucket, whatever its state: its priority and its run_at.
--
--   What comes before the level and the head given is not looked at (mark.sql). "fresh" is for editions that keep in mind
--   where the first task was.
--   Why SQL and no search_path: so the planner puts the query in the place of the call, as with task_in_bucket (buckets.sql).

CREATE FUNCTION queue_internal.first_task(
    in_bucket integer, in_queue text, since_level integer, since_head timestamptz, fresh boolean,
    OUT level integer, OUT head timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
    SELECT t.priority, t.run_at FROM queue.tasks AS t
    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = in_queue AND t.gate < 2
      AND (t.priority, t.run_at) >= (since_level, since_head)
    ORDER BY t.priority, t.run_at LIMIT 1;
END;
COMMENT ON FUNCTION queue_internal.first_task(integer, text, integer, timestamptz, boolean) IS
    'The priority and the run_at of the first task in a bucket of a queue.';

-- A task that this session lets into the order is not overtaken by what it claims.
CREATE FUNCTION queue_internal.keep_in_view(task queue.tasks) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mark queue_internal.mark := queue_internal.mark_of(task.queue);
BEGIN
    IF (task.priority, task.run_at) < (mark.level, mark.head) THEN
        mark.level := task.priority;
        mark.head := task.run_at;
        PERFORM queue_internal.set_mark(task.queue, mark);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.keep_in_view(queue.tasks) IS
    'Moves the mark of this session back to a task, if it is ahead of it.';
-- queue_internal.claim_from(queue, lease, max_tasks, worker)
--
--   Claims up to "max_tasks" due tasks of one queue, in order. Where an edition has several buckets (buckets.sql), a
--   claim begins with a random one and goes on to the others until it has enough; the order holds within a bucket.
--
--   The order index is walked one priority at a time: within a priority the due tasks come first,
--   and the tasks scheduled for later behind them are never touched, however many there are.
--   The search for the next priority finds its first task too, so that the index entries of
--   finished tasks, which lie at the front until a vacuum, are passed over once and not twice.
--   A claim that passed over many of them has the next ones begin behind them (mark.sql).
--   A running task whose lease ran out is met at its own place in the order and ended like any
--   attempt, so that claims need no reaper. One claim ends about 256 attempts, and tries to for about a second: it skips
--   the others, which are the next claim's.
--
--   Events come first: they may admit tasks that are next. And they may come from the walk itself, when it
--   meets a task that has to queue up in its group, or takes the only one of a group that was in the order;
--   then there is another walk. So there is when nothing was found and a look at what is blocked left events.
--
--   Why the planner is told what not to do: a plan that was made while the table was small, or
--   without statistics, may sort or scan all of it, and a session keeps it for long.
--   Why SKIP LOCKED and one row at a time: a claim never waits, and returns its tasks in order.
--   Why NO KEY UPDATE: a push that waits for the task to end holds a KEY SHARE lock, and does not keep it from being
--   claimed.

CREATE FUNCTION queue_internal.claim_from(source queue.queues, lease interval, max_tasks integer, worker text)
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
    -- 2^53 - 1: what a claim hands out is below 2^53.
    largest   CONSTANT bigint := 9007199254740991;
    base      bigint;
    buckets   CONSTANT integer := queue_internal.buckets();
    start     CONSTANT integer := CASE WHEN buckets > 1 THEN floor(random() * buckets) ELSE 0 END;
    in_bucket integer;
    fresh     boolean := false;
    limited   CONSTANT boolean := source.max_running IS NOT NULL OR source.rate_limit IS NOT NULL;
    moment    timestamptz := clock_timestamp();
    started   timestamptz;
    mark      queue_internal.mark := queue_internal.mark_of(source.name);
    entries   bigint;
    newest    bigint;
    event     bigint;
    event_due timestamptz;
    rounds    integer := 0;
    begun     CONSTANT timestamptz := clock_timestamp();
    ended     integer := 0;
    ending    boolean := true;
    ups       integer := 0;
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
    IF limited AND NOT queue_internal.has_room(source) THEN
        RETURN;
    END IF;
    entries := queue_internal.entries_passed();
    newest := queue_internal.newest_event();
    <<walk>>
    LOOP
        more := false;
        FOR place IN start .. start + buckets - 1 LOOP
            in_bucket := place % buckets;
            -- One statement for both. One look for events is enough.
            SELECT f.level, f.head, e.id, e.due_at INTO level, head, event, event_due
            FROM (VALUES (true)) AS one
            LEFT JOIN LATERAL
                queue_internal.first_task(in_bucket, source.name, mark.level, mark.head, fresh) AS f ON true
            LEFT JOIN LATERAL (
                SELECT v.id, v.due_at FROM queue_internal.events AS v
                WHERE place = start AND v.queue = source.name
                  AND (v.due_at, v.id) > ('-infinity', mark.event) AND v.due_at <= moment
                ORDER BY v.due_at, v.id LIMIT 1) AS e ON true;
            -- One end may lead to another; what would take too long is left to the next claim.
            IF event IS NOT NULL AND rounds < 16 THEN
                rounds := rounds + 1;
                -- Those that were postponed come after the fresh ones.
                event := CASE WHEN event_due = '-infinity' THEN event - 1 ELSE mark.event END;
                IF queue_internal.process_events(source, 16 + 4 * max_tasks, event) > 0 THEN
                    -- What was unblocked just now is due by now, too, and may have moved the mark.
                    moment := clock_timestamp();
                    IF mark.until IS NOT NULL THEN
                        mark := queue_internal.mark_of(source.name);
                    END IF;
                    fresh := true;
                    CONTINUE walk;
                END IF;
                -- Those that are left are being processed by another transaction.
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
                    FOR candidate IN
                        SELECT t.* FROM queue.tasks AS t
                        WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name
                          AND t.priority = level AND t.gate < 2
                          AND t.run_at >= head AND t.run_at <= until
                          AND (t.state = 'queued'
                               OR ending AND t.state = 'running' AND t.lease_until <= moment AND t.id <> ALL (stuck))
                        ORDER BY t.run_at, t.id
                        LIMIT max_tasks - granted
                        FOR NO KEY UPDATE SKIP LOCKED
                    LOOP
                        IF candidate.state = 'running' THEN
                            CONTINUE WHEN NOT ending;
                            ended := ended + 1;
                            ending := ended < 256 AND clock_timestamp() < begun + interval '1 second';
                            IF (queue_internal.expire(ARRAY[candidate.id])).expired = 0 THEN
                                stuck := stuck || candidate.id;
                            END IF;
                            -- As a rule it is to be had now, at its old place.
                            SELECT t.* INTO candidate FROM queue.tasks AS t
                            WHERE t.id = candidate.id AND t.state = 'queued' AND t.gate < 2 AND t.run_at <= until;
                            IF NOT FOUND THEN
                                -- It has ended for good, which others may have waited for.
                                more := true;
                                again := true;
                                CONTINUE;
                            END IF;
                        END IF;
                        base := coalesce(base, queue_internal.token_base());
                        IF candidate.token >= largest THEN
                            PERFORM queue_internal.end_attempt(candidate, 'no token is left', NULL, true);
                            again := true;
                            CONTINUE;
                        END IF;
                        new_token := greatest(candidate.token + 1, base);
                        IF new_token > base + 1000000 THEN
                            -- Beyond what the mark covers (src/tokens.rs).
                            PERFORM queue_internal.claim_durably();
                        END IF;
                        started := moment;
                        IF candidate.group_key IS NOT NULL THEN
                            IF candidate.gate = 0 THEN
                                PERFORM queue_internal.queue_up(candidate);
                                ups := ups + 1;
                                EXIT walk WHEN ups = 256;
                                more := true;
                                EXIT levels;
                            ELSIF source.fair_groups THEN
                                INSERT INTO queue_internal.events (queue, group_key)
                                VALUES (source.name, candidate.group_key);
                                more := true;
                            END IF;
                            -- Not before the one ahead of it in its group was finished.
                            started := clock_timestamp();
                        END IF;
                        IF limited THEN
                            started := queue_internal.take_room(source, candidate.id, new_token);
                            EXIT walk WHEN started IS NULL;
                        END IF;
                        RETURN QUERY
                        UPDATE queue.tasks AS t
                        SET state = 'running', attempt = t.attempt + 1, token = new_token,
                            lease_until = started + claim_from.lease, worker = claim_from.worker,
                            claimed_at = started, updated_at = started
                        WHERE t.id = candidate.id
                        RETURNING t.id, t.token, t.queue, t.payload, t.headers, t.attempt,
                                  coalesce(t.max_attempts, source.max_attempts), t.priority, t.key,
                                  t.group_key, t.progress, t.run_at, t.created_at, t.lease_until;
                        granted := granted + 1;
                        IF granted = 1 AND queue_internal.entries_passed() > entries + 1000 THEN
                            PERFORM queue_internal.set_mark(source.name, (
                                CASE WHEN event_due = '-infinity' THEN coalesce(event - 1, newest) ELSE newest END,
                                level, candidate.run_at,
                                coalesce(mark.until, clock_timestamp() + 20 * (clock_timestamp() - moment))));
                        END IF;
                    END LOOP;
                END IF;
                EXIT walk WHEN granted = max_tasks;
                -- What had ended in the middle of a batch left room in it.
                CONTINUE WHEN again;
                IF source.ageing IS NOT NULL THEN
                    passed := passed || ROW(level, until)::queue_internal.passed_level;
                    SELECT n.level, n.head, n.until INTO level, head, until
                    FROM queue_internal.next_aged_level(in_bucket, source, moment, passed) AS n;
                ELSE
                    SELECT t.priority, t.run_at INTO level, head FROM queue.tasks AS t
                    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.gate < 2
                      AND t.priority > level
                    ORDER BY t.priority, t.run_at LIMIT 1;
                END IF;
            END LOOP;
        END LOOP;
        IF NOT more AND granted = 0 AND mark.until IS NULL AND NOT swept THEN
            swept := true;
            more := queue_internal.sweep_a_little(source);
            moment := clock_timestamp();
        END IF;
        IF NOT more THEN
            EXIT WHEN granted > 0 OR mark.until IS NULL;
            mark := queue_internal.front();
        END IF;
        rounds := 0;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.claim_from(queue.queues, interval, integer, text) IS
    'Claims due tasks of one queue.';
-- queue_internal.first_ready(queues)
--
--   What a claim from any of the queues would come to first: the id of a task, or the negated id of an event; null if
--   a claim would get nothing. Another transaction may have it locked, and then a claim skips it: a lock cannot be seen
--   in SQL. So wait() pauses if it finds the same again.
--   Reads only; like claim_from, it walks the order index one priority at a time and never touches the tasks
--   scheduled for later.

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
BEGIN
    FOR source IN SELECT q.* FROM queue.queues AS q WHERE q.name = ANY (queues) AND q.paused_at IS NULL
                    AND queue_internal.has_right('worker', q.name)
    LOOP
        IF source.rate_limit IS NOT NULL AND NOT EXISTS (
            SELECT FROM queue_internal.bucket_times(source, moment, 1)) THEN
            PERFORM queue_internal.announce_token(source);
            CONTINUE;
        END IF;
        CONTINUE WHEN source.max_running IS NOT NULL
                      AND NOT EXISTS (SELECT FROM queue_internal.free_slots(source, 1))
                      AND NOT queue_internal.has_expired_holder(source, moment);
        SELECT -e.id INTO first FROM queue_internal.events AS e
        WHERE e.queue = source.name AND e.due_at <= moment ORDER BY e.due_at, e.id LIMIT 1;
        IF FOUND THEN
            RETURN first;
        END IF;
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level
            FROM queue_internal.first_task(in_bucket, source.name, -2147483648, '-infinity', false) AS f;
            WHILE level IS NOT NULL LOOP
                SELECT t.id INTO first FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.priority = level
                  AND t.gate < 2 AND t.run_at <= moment
                  AND (t.state = 'queued' OR t.state = 'running' AND t.lease_until <= moment)
                ORDER BY t.run_at, t.id LIMIT 1;
                IF FOUND THEN
                    RETURN first;
                END IF;
                SELECT t.priority INTO level FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = source.name AND t.gate < 2
                  AND t.priority > level ORDER BY t.priority LIMIT 1;
            END LOOP;
        END LOOP;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.first_ready(text[]) IS
    'The id of the first task that can be claimed from any of the queues; null if there is none.';
-- queue_internal.expire(ids)
--
--   Ends the attempts of those of the tasks whose lease ran out, without waiting for anybody's lock;
--   returns how many, which ones run on, with the ends of their leases, and which could not be ended, if any.
--   Those that run on: somebody else has them locked, or has extended or claimed them. A transaction that has pushed after
--   a task keeps it from ending, not from being put back.
--   Promise:  a task that cannot be ended is in no other's way, and the log says why, at first and then once an hour:
--             a constraint or a trigger that somebody added, or what was written into its row
--   Locks:    waits 100 ms for one, and 300 ms for all of them. What could not be ended because of them runs on.
--   Touches:  queue.tasks

CREATE FUNCTION queue_internal.expire(
    ids bigint[], OUT expired bigint, OUT running bigint[], OUT lease_ends timestamptz[], OUT failed bigint[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '100ms'
AS $$
DECLARE
    started CONSTANT timestamptz := clock_timestamp();
    overdue bigint;
    task_id bigint;
BEGIN
    failed := '{}';
    BEGIN
        expired := queue_internal.end_expired(ids);
    EXCEPTION WHEN OTHERS THEN
        expired := 0;
        FOREACH task_id IN ARRAY ids LOOP
            EXIT WHEN clock_timestamp() > started + interval '300 ms';
            BEGIN
                expired := expired + queue_internal.end_expired(ARRAY[task_id]);
            EXCEPTION
                WHEN lock_not_available OR deadlock_detected THEN
                    NULL;
                WHEN OTHERS THEN
                    failed := failed || task_id;
                    overdue := (SELECT extract(epoch FROM started - t.lease_until)::bigint FROM queue.tasks AS t
                                WHERE t.id = task_id AND isfinite(t.lease_until));
                    IF coalesce(overdue % 3600, 0) < 60 THEN
                        RAISE WARNING 'the lease of task % ran out, but its attempt cannot be ended: %', task_id, SQLERRM;
                    END IF;
            END;
        END LOOP;
    END;
    IF expired + cardinality(failed) < cardinality(ids) THEN
        SELECT array_agg(t.id), array_agg(t.lease_until) INTO running, lease_ends
        FROM queue.tasks AS t WHERE t.id = ANY (ids) AND t.id <> ALL (failed) AND t.state = 'running';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.expire(bigint[]) IS
    'Ends attempts whose lease ran out, of the tasks given; returns how many, and which it could not end.';

CREATE FUNCTION queue_internal.end_expired(ids bigint[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task  queue.tasks;
    ended bigint := 0;
BEGIN
    FOR task IN
        SELECT t.* FROM queue.tasks AS t
        WHERE t.id = ANY (ids) AND t.state = 'running' AND t.lease_until <= clock_timestamp()
        ORDER BY t.id
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN queue_internal.end_attempt(task, 'lease expired', '0', false, patient => false) IS NULL;
        ended := ended + 1;
    END LOOP;
    RETURN ended;
END
$$;
COMMENT ON FUNCTION queue_internal.end_expired(bigint[]) IS
    'Ends attempts whose lease ran out, all of them or none; returns how many.';
-- queue_internal.reap(max_tasks, after, max_looks)
--
--   Ends up to "max_tasks" attempts whose lease ran out, those that ran out last first, and tells when the next lease
--   expires. Those that cannot be ended are left for the next time; after a second of trying, so is the rest.
--   "reading" is how long it read, without what it waited for locks.
--   Pieces:   with "max_looks", only so many tasks in the order of their ids, behind the id "after". "last" is where to
--             continue: "after" once more if there may be more to end, null at the end of the table. So a caller
--             can do other work in time, however many tasks there are.
--   Clock:    where it was put back, a lease given before may end years ahead. No lease lasts longer from now
--             than queue.max_lease, if it was given at a time that is still to come.
--   Touches:  queue.tasks (reads all of it, or of the piece: leases are in no index, so that claims stay HOT)

CREATE FUNCTION queue_internal.reap(
    max_tasks bigint, after bigint DEFAULT NULL, max_looks integer DEFAULT NULL,
    OUT reaped bigint, OUT next_expiry timestamptz, OUT reading interval, OUT last bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
    most   CONSTANT bigint := least(coalesce(max_tasks, 2147483647), 2147483647);
    first  CONSTANT bigint := coalesce(after, -9223372036854775808);
    final  bigint;
    looks  bigint;
    due    bigint[];
    tried  integer := 0;
    upto   integer;
    ended  record;
    cut    timestamptz;
BEGIN
    reaped := 0;
    -- Waits for the table's lock.
    PERFORM FROM queue.tasks AS t LIMIT 0;
    reading := clock_timestamp() - moment;
    SELECT max(t.id), count(*),
           array_agg(t.id ORDER BY t.lease_until DESC) FILTER (WHERE t.state = 'running' AND t.lease_until <= moment),
           min(t.lease_until) FILTER (WHERE t.state = 'running' AND t.lease_until > moment),
           max(t.lease_until) FILTER (WHERE t.state = 'running' AND t.updated_at > moment + interval '1 minute')
    INTO final, looks, due, next_expiry, cut
    FROM (SELECT l.id, l.state, l.lease_until, l.updated_at FROM queue.tasks AS l
          WHERE l.id > first ORDER BY l.id LIMIT max_looks) AS t;
    reading := clock_timestamp() - moment - reading;
    last := CASE WHEN looks >= max_looks THEN final END;
    WHILE tried < cardinality(due) LOOP
        IF reaped >= most THEN
            -- The rest of the piece is for the next call.
            last := first;
            next_expiry := moment;
            EXIT;
        END IF;
        upto := least(cardinality(due), tried + most - reaped);
        SELECT * INTO ended FROM queue_internal.expire(due[tried + 1:upto]);
        reaped := reaped + ended.expired;
        tried := upto;
        -- One that somebody has locked is looked at again after a pause that grows, as in expiry.rs.
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
COMMENT ON FUNCTION queue_internal.reap(bigint, bigint, integer) IS
    'Ends attempts whose lease ran out; returns how many, when the next one expires, what it took to find them, and where to continue.';
-- queue_internal.due_queues(since, until)
--
--   The queues, not paused, in which a queued task came due after "since" and up to "until" or in which an event is due
--   for the next claim; and the next time beyond "until" at which a task or a postponed event is due in any queue. One
--   short look into the order index for each queue and priority, however many tasks there are; but of a queue with more than 100 priorities, only into the first
--   100, and after 100 ms into none. Such a queue counts as ready, and is looked at again within a second: a notification
--   is a hint.

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
    stop  CONSTANT timestamptz := clock_timestamp() + interval '100 ms';
    name  text;
    level integer;
    later timestamptz;
    looks integer;
BEGIN
    ready := '{}';
    FOR name IN SELECT q.name FROM queue.queues AS q WHERE q.paused_at IS NULL LOOP
        IF clock_timestamp() > stop THEN
            ready := ready || name;
            next_run_at := least(next_run_at, until + interval '1 second');
            CONTINUE;
        END IF;
        IF EXISTS (SELECT FROM queue_internal.events AS e WHERE e.queue = name AND e.due_at <= until) THEN
            ready := ready || name;
        END IF;
        -- One that was postponed.
        SELECT e.due_at INTO later FROM queue_internal.events AS e
        WHERE e.queue = name AND e.due_at > until ORDER BY e.due_at LIMIT 1;
        next_run_at := least(next_run_at, later);
        FOR in_bucket IN 0 .. queue_internal.buckets() - 1 LOOP
            SELECT f.level INTO level
            FROM queue_internal.first_task(in_bucket, name, -2147483648, '-infinity', false) AS f;
            looks := 0;
            WHILE level IS NOT NULL LOOP
                looks := looks + 1;
                IF looks > 100 OR clock_timestamp() > stop THEN
                    ready := CASE WHEN name = ANY (ready) THEN ready ELSE ready || name END;
                    next_run_at := least(next_run_at, until + interval '1 second');
                    EXIT;
                END IF;
                IF name <> ALL (ready) AND EXISTS (
                    SELECT FROM queue.tasks AS t
                    WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                      AND t.gate < 2 AND t.run_at > since AND t.run_at <= until AND t.state = 'queued')
                THEN
                    ready := ready || name;
                END IF;
                SELECT t.run_at INTO later FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.priority = level
                  AND t.gate < 2 AND t.run_at > until
                ORDER BY t.run_at LIMIT 1;
                next_run_at := least(next_run_at, later);
                SELECT t.priority INTO level FROM queue.tasks AS t
                WHERE queue_internal.task_in_bucket(t, in_bucket) AND t.queue = name AND t.gate < 2
                  AND t.priority > level ORDER BY t.priority LIMIT 1;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.due_queues(timestamptz, timestamptz) IS
    'The queues in which tasks came due in a span of time, and when the next task comes due.';
-- queue_internal.is_being_restored()
--
--   The rows of a dump come for a while, in any order. Nothing that can wait is done meanwhile: it could take an id, a key
--   or the name of a partition that the dump is still to bring.

CREATE FUNCTION queue_internal.is_being_restored() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.application_name = 'pg_restore'
          -- Any session can take that name; only a role that may write to the table restores it.
          AND has_table_privilege(a.usesysid, 'queue.history', 'INSERT'));
END
$$;
COMMENT ON FUNCTION queue_internal.is_being_restored() IS 'Whether pg_restore is connected to the database.';
-- queue_internal.extend_history()
--
--   Makes the partitions of queue.history for today and the coming days, as many as the setting
--   "queue.history_ahead" says, and returns whether they are all there; null as long as there was no
--   task. A day of which a partition made by hand holds a part gets none: rows of the rest go to queue.history_default.
--
--   Off the path of claims: one session at a time is at it, each partition is attached under a short
--   lock_timeout, and what could not be done is left for the next time. Until then queue.history_default takes
--   the rows.
--   Why not before the first task: a restore creates the extension, then the partitions of the
--   dump, then loads the tasks. Partitions made in between would be in its way; and so would any
--   made while a partition of the dump for a day to come is not attached yet; that of a day that is over is
--   in nobody's way. pg_restore -j may bring the tasks first.

CREATE FUNCTION queue_internal.extend_history() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today    date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    ahead    integer := queue_internal.setting('history_ahead', '3')::integer;
    complete boolean := true;
    day      date;
    warned   boolean := false;
BEGIN
    -- A lock that nobody can take who may not write to the table, as an advisory lock could be.
    LOCK TABLE queue.history_default IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    IF EXISTS (SELECT FROM queue_internal.history_partitions() AS p WHERE NOT p.attached AND p.day >= today)
       OR queue_internal.is_being_restored() THEN
        RETURN false;
    ELSIF NOT EXISTS (SELECT FROM queue_internal.history_partitions() AS p WHERE p.attached)
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
                -- One day must not stop the others.
                complete := false;
                IF NOT warned THEN
                    RAISE WARNING 'the partition of queue.history for % cannot be made: %', day, SQLERRM;
                    warned := true;
                END IF;
        END;
    END LOOP;
    RETURN complete;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.extend_history() IS
    'Makes the partitions of queue.history for the coming days; returns whether all are there.';

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
COMMENT ON FUNCTION queue_internal.history_partitions() IS
    'The partitions of queue.history that hold one day (UTC) each.';

-- What each partition of queue.history holds, without the default one.
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
COMMENT ON FUNCTION queue_internal.history_bounds() IS 'The partitions of queue.history and their bounds.';

-- Rows of today that were written before there was a partition are moved into it, if they are few;
-- many stay where they are, and retire_history deletes them there.
-- Why today's partition takes the lock of the whole history: a completion that has looked for its
-- partition, and found only the default one, would fail when this one appears.
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
    -- For those to whom default privileges give it: of the rows, the policies of queue.history tell who may read which.
    EXECUTE format('ALTER TABLE queue.%I ENABLE ROW LEVEL SECURITY', name);
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
COMMENT ON FUNCTION queue_internal.add_history_partition(date) IS
    'Makes the partition of queue.history for one day; false if too many rows came before it.';
-- queue_internal.retire_history(max_tasks)
--
--   Drops the partitions of queue.history that are wholly past "queue.history_retention", or empties
--   those of which somebody has made a view, and deletes up to "max_tasks" such rows from
--   queue.history_default, where few or none should be.
--   Returns whether there may be more to do right now.
--   Locks:    dropping needs the lock of queue.history for an instant. It waits
--             100 ms for it at most, then leaves the partition for the next time.

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
        LOCK TABLE queue.history_default IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
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
                -- Anybody can make a view of it, even without the right to read it.
                EXECUTE format('SELECT EXISTS (SELECT FROM queue.%I)', partition) INTO filled;
                IF filled THEN
                    -- The background worker has what it deletes from looked at, but not what it truncates
                    -- (src/worker/guard.rs).
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
COMMENT ON FUNCTION queue_internal.retire_history(integer) IS
    'Drops history past its retention; returns whether there may be more.';
-- queue_internal.retire_dead_letters(max_tasks)
--
--   Deletes up to "max_tasks" dead letters past "queue.dead_letter_retention" and returns whether
--   there may be more.
--   Index:    dead_letters_queue_failed_at, queue by queue

CREATE FUNCTION queue_internal.retire_dead_letters(max_tasks integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    retention text := queue_internal.setting('dead_letter_retention', '30d');
    horizon   timestamptz;
    source    text;
    deleted   bigint := 0;
    retired   bigint;
BEGIN
    IF retention = '-1' THEN
        RETURN false;
    END IF;
    horizon := clock_timestamp() - retention::interval;
    SELECT d.queue INTO source FROM queue.dead_letters AS d ORDER BY d.queue LIMIT 1;
    WHILE source IS NOT NULL AND deleted < max_tasks LOOP
        DELETE FROM queue.dead_letters AS d
        WHERE d.id = ANY (ARRAY(
            SELECT o.id FROM queue.dead_letters AS o
            WHERE o.queue = source AND o.failed_at < horizon
            ORDER BY o.failed_at LIMIT max_tasks - deleted FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS retired = ROW_COUNT;
        deleted := deleted + retired;
        SELECT d.queue INTO source FROM queue.dead_letters AS d
        WHERE d.queue > source ORDER BY d.queue LIMIT 1;
    END LOOP;
    RETURN deleted >= max_tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.retire_dead_letters(integer) IS
    'Deletes dead letters past their retention; returns whether there may be more.';
-- queue_internal.apply_options(name, options)
--
--   Checks the options of queue.create and queue.configure and writes them to the queue's row.
--   An option that is not named keeps its value; null brings back the default.
--   Errors:   22023 and 54000 naming the option

CREATE FUNCTION queue_internal.apply_options(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    valid   CONSTANT text :=
        'lease, max_attempts, backoff, max_running, max_running_per_group, delayed_head, fair_groups, '
        'rate_limit, rate_period, ageing, key_ttl, on_predecessor_failure, keep_history';
    changed queue.queues;
    fresh   queue.queues;
    option  text;
    value   jsonb;
BEGIN
    SELECT q.* INTO changed FROM queue.queues AS q WHERE q.name = apply_options.name FOR UPDATE;
    fresh := queue_internal.fresh_queue();
    FOR option, value IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        CASE option
            WHEN 'lease' THEN
                changed.lease := coalesce(queue_internal.interval_option(option, value, false), fresh.lease);
                IF changed.lease > queue_internal.setting('max_lease', '7d')::interval THEN
                    RAISE EXCEPTION 'option "lease" of argument "options" is longer than "queue.max_lease", which is %',
                        queue_internal.setting('max_lease', '7d')
                        USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
                END IF;
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
            ELSE
                RAISE EXCEPTION 'argument "options" has no option "%"', left(option, 64)
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = format('The options are %s.', valid);
        END CASE;
    END LOOP;
    IF (changed.rate_limit IS NULL) <> (changed.rate_period IS NULL) THEN
        PERFORM queue_internal.raise_invalid(
            'options', 'must have both or neither of "rate_limit" and "rate_period"');
    END IF;
    UPDATE queue.queues AS q
    SET lease = changed.lease, max_attempts = changed.max_attempts, keep_history = changed.keep_history,
        backoff_kind = changed.backoff_kind, backoff_base = changed.backoff_base,
        backoff_max = changed.backoff_max, backoff_jitter = changed.backoff_jitter,
        max_running = changed.max_running, max_running_per_group = changed.max_running_per_group,
        delayed_head = changed.delayed_head, fair_groups = changed.fair_groups,
        rate_limit = changed.rate_limit, rate_period = changed.rate_period, ageing = changed.ageing,
        key_ttl = changed.key_ttl, on_predecessor_failure = changed.on_predecessor_failure
    WHERE q.name = apply_options.name;
    PERFORM queue_internal.policies_changed(changed, options);
END
$$;
COMMENT ON FUNCTION queue_internal.apply_options(text, jsonb) IS
    'Checks the options of a queue and writes them.';

-- What is in the queue already follows its new limits.
CREATE FUNCTION queue_internal.policies_changed(source queue.queues, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF options ?| '{max_running, rate_limit, rate_period}' THEN
        PERFORM queue_internal.provide_limits(source);
        PERFORM queue_internal.announce_task(source.name, clock_timestamp());
    END IF;
    IF options ?| '{max_running_per_group, delayed_head, fair_groups}' THEN
        WITH locked AS MATERIALIZED (
            SELECT l.id FROM queue.tasks AS l
            WHERE l.queue = source.name AND l.group_key IS NOT NULL AND l.state = 'queued'
              AND (source.delayed_head = 'pass' AND l.gate = 1 AND l.run_at > clock_timestamp()
                   OR source.delayed_head = 'block' AND l.gate = 0)
            ORDER BY l.id FOR NO KEY UPDATE
        )
        UPDATE queue.tasks AS t SET gate = CASE source.delayed_head WHEN 'pass' THEN 0 ELSE 2 END
        FROM locked AS l WHERE t.id = l.id;
        INSERT INTO queue_internal.events (queue, group_key)
        SELECT DISTINCT t.queue, t.group_key FROM queue.tasks AS t
        WHERE t.queue = source.name AND t.group_key IS NOT NULL;
        PERFORM queue_internal.announce_task(source.name, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.policies_changed(queue.queues, jsonb) IS
    'Makes what is in a queue follow its changed options.';

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
COMMENT ON FUNCTION queue_internal.apply_backoff(text, queue.queues, queue.queues, jsonb) IS
    'Checks a backoff, given in the argument of that name, and puts it into the row of a queue.';

-- The defaults stand once, in the table.
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
COMMENT ON FUNCTION queue_internal.fresh_queue() IS 'The row of a queue with nothing but defaults.';

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
    ELSIF parsed > '1 year' THEN
        RAISE EXCEPTION 'option "%" of argument "%" is longer than 1 year', option, argument
            USING ERRCODE = 'program_limit_exceeded', DETAIL = format('The value is %s.', value);
    END IF;
    RETURN make_interval(secs => extract(epoch FROM parsed)::float8);
END
$$;
COMMENT ON FUNCTION queue_internal.interval_option(text, jsonb, boolean, text) IS
    'The value of an option that is an interval; null for null.';

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
COMMENT ON FUNCTION queue_internal.number_option(text, jsonb, numeric, numeric, boolean, text) IS
    'The value of an option that is a number; null for null.';

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
COMMENT ON FUNCTION queue_internal.boolean_option(text, jsonb, text) IS
    'The value of an option that is true or false; null for null.';

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
COMMENT ON FUNCTION queue_internal.choice_option(text, jsonb, text[], text) IS
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
COMMENT ON FUNCTION queue_internal.raise_option(text, text, jsonb, text) IS 'Raises 22023 for an option.';
-- The checks of what a schedule is made of: its expression, its zone, its options.

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
COMMENT ON FUNCTION queue_internal.check_cron(text) IS
    'Checks a cron expression: that it can be read, and that there is a time it names.';

-- Only names for which AT TIME ZONE means the zone itself. It would also take "EST5EDT,M3.2.0,M11.1.0",
-- "+03" and "Nowhere+3", and it reads CET, MET and EET as abbreviations, which know no summer time.
CREATE FUNCTION queue_internal.check_timezone(timezone text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF timezone IS NULL THEN
        PERFORM queue_internal.raise_null('timezone');
    ELSIF upper(timezone) IN ('UTC', 'GMT') THEN
        RETURN;
    -- A name with a slash and no digit can only be that of a file. The view would read them all.
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
COMMENT ON FUNCTION queue_internal.check_timezone(text) IS 'Checks the name of a time zone.';

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
            WHEN 'delay' THEN
                PERFORM queue_internal.interval_option(option, value, true);
            WHEN 'key', 'on_duplicate', 'group_key' THEN
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
                                 'max_attempts, headers.';
        END CASE;
    END LOOP;
    -- What a push would refuse is refused now.
    PERFORM queue_internal.check_task_options(
        queue => queue, priority => 0, run_at => NULL, delay => NULL, key => options ->> 'key',
        on_duplicate => coalesce(options ->> 'on_duplicate', 'skip'), group_key => options ->> 'group_key',
        max_attempts => NULL, headers => NULL, after => NULL, backoff => NULL, key_ttl => NULL,
        on_predecessor_failure => NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.check_schedule_options(text, jsonb) IS 'Checks the options of a schedule.';

-- What is written past queue.schedule() can be read, too: whoever looks at schedules reads all of them.
ALTER TABLE queue.schedules ADD CONSTRAINT schedules_cron_check CHECK (queue_internal.cron_error(cron) IS NULL);
-- queue_internal.next_run(cron, timezone, after)
--
--   The first time after "after" at which a schedule runs; null if there is none.
--   A local time that its zone skips runs when it would have come had the clock not been put
--   forward. One that comes twice runs the first time; but an expression for every hour, or every
--   nth, runs both times.
--   How:      within a day of "after" there is one change of the clock or none. The times before it
--             go by the old clock, which goes on for as long as the new one skips, the times after
--             it by the new clock, and the earliest of both is the next run.
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
            -- What the new clock repeats is over when it is where the old one was.
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
        -- Far away, and perhaps by another clock: from nearby once more.
        moment := greatest(moment + day, run - 2 * day);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.next_run(text, text, timestamptz) IS
    'The first time after the given one at which a schedule runs; null if there is none.';

-- By halves, because a schedule may be years behind by the second. From "first" on, which is a run.
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
    -- What is left is less than a second: at most one run.
    run := queue_internal.next_run(cron, timezone, latest);
    RETURN CASE WHEN run <= until THEN run ELSE latest END;
END
$$;
COMMENT ON FUNCTION queue_internal.latest_run(text, text, timestamptz, timestamptz) IS
    'The last of the runs of a schedule from one time to another.';
-- queue_internal.fire_schedules(max_tasks, patience, after)
--
--   Pushes the tasks of the schedules that are due, and tells when the next one is.
--   Promise:  one task for each time that is due, because the push and the step to the next time are
--             one transaction, and the next time follows from the planned one and never from the clock
--   Order:    first the schedules that are on time, which became due in the last second; those that are behind have at least
--             a quarter of the time that a call takes. Among both in turn by queue, and in each queue by the time that is due, a
--             piece of each schedule at a time, so that neither a queue with many schedules nor a schedule far behind
--             delays another one; the queues by their names, from behind "after" on. "last" is the queue with which it
--             stopped before each schedule had its turn, else null: the others are the first of the next call
--   Stops:    once "max_tasks" were pushed, or after 100 ms; null for neither
--   Restore:  while pg_restore is connected nothing is pushed
--   Failing:  a schedule whose push fails keeps its time and notes the error. It is passed over for as long as it was
--             overdue when it failed, "patience" at most, and is in no other's way.
--   Locks:    the rows of the schedules that are due; those that others have locked are passed over. What a push has to
--             wait for, such as a key that an open transaction holds, it waits for 50 ms; and once that was in vain, all
--             others of the call for 2 ms each: one key may be that of many schedules.

CREATE FUNCTION queue_internal.fire_schedules(
    max_tasks bigint, patience interval, after text DEFAULT '',
    OUT fired bigint, OUT next_run_at timestamptz, OUT last text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE
    started CONSTANT timestamptz := clock_timestamp();
    moment  timestamptz;
    before  bigint := -1;
    plan    queue.schedules;
    due     record;
    begun   timestamptz;
    served  text;
BEGIN
    fired := 0;
    -- A task that is pushed before the tasks, the keys and the sequence of the dump are there may take what is theirs.
    IF queue_internal.is_being_restored() THEN
        next_run_at := started + interval '1 second';
        RETURN;
    END IF;
    <<turns>>
    WHILE fired > before LOOP
        before := fired;
        last := NULL;
        moment := clock_timestamp();
        FOR due IN
            SELECT d.name, d.queue, d.is_on_time, NOT bool_and(d.is_on_time) OVER () AS others_are_behind,
                   row_number() OVER (PARTITION BY d.is_on_time, d.queue ORDER BY d.next_run_at, d.name) AS turn
            FROM (SELECT s.name, s.queue, s.next_run_at,
                         s.next_run_at > moment - interval '1 second' AND s.last_error_at IS NULL AS is_on_time
                  FROM queue.schedules AS s
                  WHERE s.paused_at IS NULL AND s.next_run_at <= moment
                    AND (s.last_error_at <= moment
                         AND s.last_error_at + queue_internal.schedule_pause(s.next_run_at, s.last_error_at, patience) > moment)
                        IS NOT TRUE) AS d
            ORDER BY NOT d.is_on_time, turn, d.queue <= after, d.queue
        LOOP
            -- Not from the start: to find and sort them may have taken longer.
            begun := coalesce(begun, clock_timestamp());
            IF due.is_on_time AND due.others_are_behind AND max_tasks IS NOT NULL
               AND clock_timestamp() > begun + interval '75 ms' THEN
                last := served;
                CONTINUE;
            END IF;
            SELECT s.* INTO plan FROM queue.schedules AS s
            WHERE s.name = due.name AND s.paused_at IS NULL AND s.next_run_at <= moment FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            served := plan.queue;
            BEGIN
                fired := fired + queue_internal.fire_schedule(plan, moment, CASE WHEN max_tasks IS NULL THEN 100 ELSE 2 END);
            EXCEPTION WHEN OTHERS THEN
                IF SQLSTATE = '55P03' THEN
                    PERFORM set_config('lock_timeout', '2ms', true);
                END IF;
                UPDATE queue.schedules AS s SET last_error = SQLERRM, last_error_at = clock_timestamp()
                WHERE s.name = plan.name;
            END;
            IF fired >= max_tasks OR max_tasks IS NOT NULL AND clock_timestamp() > begun + interval '100 ms' THEN
                last := coalesce(last, plan.queue);
                EXIT turns;
            END IF;
        END LOOP;
        EXIT WHEN max_tasks IS NULL;
    END LOOP;
    next_run_at := queue_internal.next_schedule(patience);
END
$$;
COMMENT ON FUNCTION queue_internal.fire_schedules(bigint, interval, text) IS
    'Pushes the tasks of the schedules that are due; returns how many, when the next one is, and where it stopped early.';

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
        -- Who calls queue.maintain() every minute may be late by one.
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
COMMENT ON FUNCTION queue_internal.fire_schedule(queue.schedules, timestamptz, integer) IS
    'Pushes the tasks that one schedule has due, so many at most; returns how many.';

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
        headers => coalesce(options -> 'headers', '{}')
                   || jsonb_build_object('schedule', plan.name, 'scheduled_for', run_utc));
END
$$;
COMMENT ON FUNCTION queue_internal.push_scheduled(queue.schedules, timestamptz) IS
    'Pushes the task of one run of a schedule.';

-- As long again as it was overdue when it failed: so the pause grows. Nothing has to be remembered for it.
CREATE FUNCTION queue_internal.schedule_pause(due timestamptz, failed_at timestamptz, patience interval) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN failed_at - due > patience THEN patience ELSE greatest(least(patience, '1 second'), failed_at - due) END;
END
$$;
COMMENT ON FUNCTION queue_internal.schedule_pause(timestamptz, timestamptz, interval) IS
    'For how long a schedule whose push failed is left alone.';

CREATE FUNCTION queue_internal.next_schedule(patience interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN (
        SELECT min(CASE WHEN s.last_error_at <= moment
                        THEN greatest(s.next_run_at, s.last_error_at + queue_internal.schedule_pause(s.next_run_at, s.last_error_at, patience))
                        ELSE s.next_run_at END)
        FROM queue.schedules AS s WHERE s.paused_at IS NULL);
END
$$;
COMMENT ON FUNCTION queue_internal.next_schedule(interval) IS
    'When the next schedule is due. One that failed is due when the given time is over.';

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
COMMENT ON FUNCTION queue_internal.open_schedule(text) IS
    'The schedule of that name; raises if there is none for whose queue the caller has the operator''s right.';
-- queue_internal.filter_condition(filter, states, dead, moment)
--
--   Checks the filter of a bulk verb and returns it as a condition on queue.tasks AS t or, if "dead",
--   on queue.dead_letters AS t.
--   Options:  all                    true: every task
--             queue, worker          a name
--             state                  one of "states", which are those that the verb takes
--             older_than, newer_than an interval, by created_at
--             key, group_key         a pattern as LIKE has it
--             error                  the same, on the last error
--             payload, headers       JSON that the task's contains
--             ids                    an array of ids
--   Rights:   only tasks of queues whose operator the caller is
--   Errors:   22004, 22023, 54000 naming the option; 42501 or QX002 for the queue
--   Why an empty filter is refused: a program that forgot to fill it in would mean everything.
--   Why times are written as values: every batch has to mean the same moment. In ISO: other styles name zones by
--             abbreviations, and CST is read as another zone than it was written for.
--   Why payloads are not, but are taken from $3, the filter: a log may show the statement.

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
            WHEN 'worker' THEN
                parts := parts || format('t.worker = %L', queue_internal.text_option(option, value));
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
                                 'worker, error, payload, headers, ids.';
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
COMMENT ON FUNCTION queue_internal.filter_condition(jsonb, text[], boolean, timestamptz) IS
    'Checks the filter of a bulk verb and returns it as a condition.';

CREATE FUNCTION queue_internal.text_option(option text, value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(value) <> 'string' THEN
        PERFORM queue_internal.raise_option(option, 'must be a string', value, 'filter');
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.text_option(text, jsonb) IS 'The value of a filter''s option that is a string.';

CREATE FUNCTION queue_internal.pattern_option(option text, value jsonb) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue_internal.text_option(option, value) ~ E'(?:^|[^\\\\])(?:\\\\\\\\)*\\\\$' THEN
        PERFORM queue_internal.raise_option(option, 'must not end with a single backslash', value, 'filter');
    END IF;
    RETURN value #>> '{}';
END
$$;
COMMENT ON FUNCTION queue_internal.pattern_option(text, jsonb) IS
    'The value of a filter''s option that is a pattern for LIKE.';

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
    IF NOT isfinite(age) OR extract(epoch FROM age) < 0 OR age > '1000 years' THEN
        PERFORM queue_internal.raise_option(option, 'must be from 0 to 1000 years', value, 'filter');
    END IF;
    RETURN age;
END
$$;
COMMENT ON FUNCTION queue_internal.age_option(text, jsonb) IS 'The value of a filter''s option that is an age.';

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
COMMENT ON FUNCTION queue_internal.ids_option(text, jsonb) IS
    'The value of a filter''s option that is a list of ids.';
-- queue_internal.in_batches(verbs, filter, dry_run, batch_size, to_queue, priority, tasks)
--
--   What all bulk verbs do, one after the other: walk over the tasks that match the filter, in the order of
--   their ids, and commit after each batch if CALL was issued where that is possible. "tasks" is counted on.
--   Promise:  each task is visited once, also one that comes back under its id while this runs, and
--             none that was pushed after it began; what a batch did stays done whatever comes later
--   Rights:   next_batch checks them; it runs with the rights of the owner, which a procedure that commits
--             cannot, and so it takes nothing from its caller that becomes part of a statement
--   Locks:    the tasks of one batch, without waiting for any; those that are locked are left out. A move and a redrive
--             wait for a transaction that is just taking a key
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
    -- Kept from one verb to the next: who has committed once is no more in the transaction of the CALL, by which
    -- the SQL-only edition knows that it may.
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
COMMENT ON PROCEDURE queue_internal.in_batches(text[], jsonb, boolean, integer, text, integer, bigint) IS
    'Does something to all tasks that match a filter, batch by batch.';

-- "redrive" and "forget" are about dead letters, all others about live tasks.
CREATE FUNCTION queue_internal.bulk_table(verb text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN verb IN ('redrive', 'forget') THEN 'queue.dead_letters' ELSE 'queue.tasks' END;
COMMENT ON FUNCTION queue_internal.bulk_table(text) IS 'The table that a bulk verb walks over.';

CREATE FUNCTION queue_internal.bulk_states(verb text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE verb
        WHEN 'cancel', 'reprioritise' THEN RETURN '{queued, scheduled, waiting, running}';
        WHEN 'retry' THEN RETURN '{scheduled}';
        WHEN 'move' THEN RETURN '{queued, scheduled, waiting}';
        WHEN 'discard', 'forget' THEN RETURN '{queued, scheduled, waiting, failed}';
        WHEN 'redrive' THEN RETURN '{failed}';
    END CASE;
END
$$;
COMMENT ON FUNCTION queue_internal.bulk_states(text) IS 'The states of the tasks that a bulk verb takes.';

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
    -- What is as it shall be already is not counted.
    RETURN format('t.id <= %s AND %s AND %s', newest, matching, CASE verb
        WHEN 'cancel' THEN '(t.state <> ''running'' OR t.cancel_requested_at IS NULL)'
        WHEN 'reprioritise' THEN 't.priority <> ' || priority
        WHEN 'move' THEN format('t.queue <> %L', to_queue)
        ELSE 'true' END);
END
$$;
COMMENT ON FUNCTION queue_internal.bulk_condition(
    text, jsonb, boolean, integer, text, integer, bigint, timestamptz) IS
    'Checks the arguments of a bulk verb and returns the condition that its tasks fulfil.';

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
COMMENT ON FUNCTION queue_internal.count_matching(text, text, jsonb, bigint) IS 'What a dry run says.';

-- The first batch is called with null in "last", "newest" and "moment". "newest" is the largest id when the walk
-- began, "moment" the time that the filter's ages count from.
-- Why the planner is told what not to do: the walk follows the primary key. Any other way would be
-- gone again from its start for every batch.
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
                   -- The others keep the task, and a transaction that has pushed after it is not in their way.
                   CASE WHEN verb IN ('discard', 'redrive', 'forget') THEN 'UPDATE' ELSE 'NO KEY UPDATE' END)
    INTO ids USING coalesce(last, 0), batch_size, filter;
    IF verb = 'redrive' THEN
        tasks := tasks + queue_internal.revive(ids, to_queue);
    ELSIF verb = 'forget' THEN
        DELETE FROM queue.dead_letters AS d WHERE d.id = ANY (ids);
        tasks := tasks + cardinality(ids);
    ELSE
        -- Keys are taken in their order, as by push_many.
        FOREACH task_id IN ARRAY CASE WHEN verb <> 'move' THEN ids ELSE ARRAY(
            SELECT t.id FROM queue.tasks AS t WHERE t.id = ANY (ids) ORDER BY t.key NULLS FIRST, t.id) END
        LOOP
            -- Read again: what was done to one task may have changed or ended another.
            SELECT t.* INTO task FROM queue.tasks AS t WHERE t.id = task_id;
            CONTINUE WHEN NOT FOUND;
            CASE verb
                WHEN 'cancel' THEN
                    CONTINUE WHEN task.state <> 'running' AND NOT queue_internal.lock_to_end(task.id, false);
                    PERFORM queue_internal.cancel_or_ask(task);
                WHEN 'retry' THEN
                    task.run_at := clock_timestamp();
                    PERFORM queue_internal.reorder(task);
                WHEN 'reprioritise' THEN
                    task.priority := priority;
                    PERFORM queue_internal.reorder(task);
                WHEN 'move' THEN
                    CONTINUE WHEN NOT queue_internal.move(task, to_queue);
                WHEN 'discard' THEN
                    PERFORM queue_internal.discard(task);
            END CASE;
            tasks := tasks + 1;
        END LOOP;
    END IF;
    last := CASE WHEN cardinality(ids) = batch_size THEN ids[batch_size] END;
    RAISE DEBUG 'queue_ext: % tasks so far', tasks;
END
$$;
COMMENT ON FUNCTION queue_internal.next_batch(
    text, jsonb, boolean, integer, text, integer, bigint, bigint, bigint, timestamptz) IS
    'One batch of a bulk verb; "last" is null when there is nothing left.';
-- What a right means: who may call which verb, for which queue.
--
--   A right is a row of queue.rights: a role, a kind and a queue, or null for all queues. Every verb that a
--   role may call checks by itself that its caller has the right that it needs for the queue it works on
--   (check_right, open_queue), and then works with the rights of the extension's owner. So no role needs a
--   privilege on a table, except that producers may INSERT into queue.tasks and operators may SELECT.
--
--   The caller is the role that called the verb (queue_internal.caller()). It has the rights of every role whose
--   privileges it inherits. The owner of the extension, its members and superusers have all rights. An operator
--   of a queue may do there what a producer and a worker may.
--
--   has_right() and queues_with_right() are in engine.sql: the library keeps the rights of a session's role in
--   memory.

-- For the start of a verb. A null queue stands for all of them.
CREATE FUNCTION queue_internal.check_right(kind text, queue text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT queue_internal.has_right(kind, queue) THEN
        PERFORM queue_internal.raise_denied(kind, queue);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_right(text, text) IS
    'Raises 42501 unless the caller of the verb has this kind of right for the queue.';

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
            EXIT;
        EXCEPTION WHEN internal_error THEN
            -- "tuple concurrently updated": another session has just given privileges on the same objects.
            IF tries = 0 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.grant_right(text, name, text) IS 'Gives a role a right.';

CREATE FUNCTION queue_internal.revoke_right(kind text, role name, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    had boolean;
BEGIN
    PERFORM queue_internal.check_grantee(role);
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
        -- A right can outlive its queue.
        IF queue IS NOT NULL THEN
            PERFORM queue_internal.open_queue(queue, 'operator');
        END IF;
        RAISE NOTICE 'role % had no such right', quote_ident(role) USING HINT = 'The rights that it has are in queue.rights.';
    ELSIF EXISTS (SELECT FROM queue.rights AS r
                  WHERE r.role = quote_ident(revoke_right.role)::regrole AND r.kind = revoke_right.kind AND r.queue IS NULL) THEN
        RAISE NOTICE 'role % still has the right for all queues', quote_ident(role)
            USING HINT = format('SELECT queue.revoke_%s(%L) takes it back.', kind, role);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.revoke_right(text, name, text) IS 'Takes a right from a role.';

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
COMMENT ON FUNCTION queue_internal.check_grantee(name) IS 'Checks the role of a right.';

-- The privileges of a role follow its rights, also when a dump brings the rights: pg_dump saves the rows of
-- queue.rights.
CREATE FUNCTION queue_internal.rights_changed() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.announce_rights();
    IF TG_OP <> 'INSERT' THEN
        PERFORM queue_internal.withdraw_privileges(OLD.role);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN NULL;
    ELSIF EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = NEW.role) THEN
        PERFORM queue_internal.apply_privileges(NEW.kind, NEW.role);
    ELSE
        -- From a dump: without this, the other rights would not be restored either.
        RAISE WARNING 'a right is left out, because its role % does not exist', NEW.role;
        DELETE FROM queue.rights AS r WHERE r.role = NEW.role;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.rights_changed() IS 'Makes the privileges of roles follow queue.rights.';

CREATE TRIGGER rights_changed AFTER INSERT OR UPDATE OR DELETE ON queue.rights
    FOR EACH ROW EXECUTE FUNCTION queue_internal.rights_changed();
COMMENT ON TRIGGER rights_changed ON queue.rights IS 'Makes the privileges of roles follow the table.';

-- What each kind of right needs before a verb can check anything: EXECUTE on the verbs, and on those internal
-- functions that procedures call as their caller, because a procedure that commits cannot run as the owner.
CREATE FUNCTION queue_internal.apply_privileges(kind text, role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    verbs     CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue'::regnamespace AND p.proname !~ '^(grant_|revoke_|maintain$|set$)');
    -- What somebody else put into the schema is left out, as far as extension membership shows it.
    views     CONSTANT text := (
        SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class AS c
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v'
          AND queue_internal.extension_of(c.oid) IS NOT DISTINCT FROM queue_internal.extension_of('queue.tasks'::regclass));
    waiting   CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname = ANY (
            '{check_wait, first_ready, vain_pause, next_pause, check_wait_result, outcome, is_end, try_commit, may_commit}'));
    bulk      CONSTANT text := (
        SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname IN ('in_batches', 'next_batch'));
    privilege text;
BEGIN
    FOREACH privilege IN ARRAY ARRAY[
        'USAGE ON SCHEMA queue',
        'EXECUTE ON FUNCTION queue.channel'
    ] || CASE kind
        WHEN 'producer' THEN ARRAY[
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'EXECUTE ON FUNCTION queue.push, queue.push_many, queue.publish'
        ]
        WHEN 'worker' THEN ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'USAGE ON SCHEMA queue_internal',
            'EXECUTE ON ROUTINE ' || waiting,
            'EXECUTE ON FUNCTION queue.claim(interval, text, integer, text),'
            'queue.claim(interval, text[], integer, text), queue.complete, queue.complete_many,'
            'queue.complete_and_claim, queue.fail, queue.release, queue.extend, queue.extend_many,'
            'queue.cancelled',
            'EXECUTE ON PROCEDURE queue.wait(text, interval, boolean), queue.wait(text[], interval, boolean)'
        ]
        ELSE ARRAY[
            'USAGE ON TYPE queue.claimed_task',
            'INSERT (queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff) ON queue.tasks',
            'USAGE ON SEQUENCE queue.tasks_id_seq',
            'SELECT ON queue.queues, queue.tasks, queue.history, queue.dead_letters, queue.schedules, queue.bindings',
            'SELECT ON ' || views,
            'USAGE ON SCHEMA queue_internal',
            'EXECUTE ON ROUTINE ' || waiting,
            'EXECUTE ON ROUTINE ' || bulk,
            'EXECUTE ON ROUTINE ' || verbs
        ]
    END LOOP
        EXECUTE format('GRANT %s TO %s', privilege, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.apply_privileges(text, regrole) IS
    'Gives a role the privileges that a right needs.';

CREATE FUNCTION queue_internal.withdraw_privileges(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kept text;
BEGIN
    -- A role that was dropped left nothing behind.
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = withdraw_privileges.role) THEN
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA queue, queue_internal FROM %s', role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA queue, queue_internal FROM %s', role);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM %s', role);
    EXECUTE format('REVOKE ALL ON TYPE queue.claimed_task FROM %s', role);
    EXECUTE format('REVOKE ALL ON SCHEMA queue, queue_internal FROM %s', role);
    FOR kept IN SELECT DISTINCT r.kind FROM queue.rights AS r WHERE r.role = withdraw_privileges.role LOOP
        PERFORM queue_internal.apply_privileges(kept, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.withdraw_privileges(regrole) IS
    'Takes the privileges of a role back, except those that its other rights need.';

CREATE FUNCTION queue_internal.extension_of(relation oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.refobjid FROM pg_depend AS d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = relation AND d.deptype = 'e';
END;
COMMENT ON FUNCTION queue_internal.extension_of(oid) IS 'The extension that a table or view belongs to, if any.';

-- Which rows an operator reads and a producer inserts. The subquery is evaluated once for each statement; it is null
-- where a role has the right for all queues. Of a condition with IS NULL and OR the planner would expect to find
-- hardly a row, and read whole tables where an index gives the first few.
DO $$
DECLARE
    allowed CONSTANT text := 'coalesce(%2$I = ANY ((SELECT queue_internal.queues_with_right(%1$L))::text[]), true)';
    shown   record;
BEGIN
    FOR shown IN
        SELECT t.name, CASE t.name WHEN 'queues' THEN 'name' ELSE 'queue' END AS queue
        FROM unnest('{queues, tasks, history, dead_letters, schedules, bindings}'::text[]) AS t (name)
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
-- queue_internal.ended_since(since)
--
--   How many tasks of each queue ended since then, by state and time, and, without a time, how many dead
--   letters there are: what queue_internal.counted starts from. The times are cut as its steps are
--   (src/lanes/account.rs), 2^24 microseconds each.

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
COMMENT ON FUNCTION queue_internal.ended_since(timestamptz) IS
    'What ended since a time, counted; and the dead letters, without a time.';
-- queue_internal.counted(queues)
--
--   What is known of the numbers of tasks in these queues without counting them. A queue of which nothing
--   is known is left out, and here they all are: the library knows more (native.sql).

CREATE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, behind bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE sql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT NULL, 0, 0, 0, 0, 0, 0, NULL::timestamptz, 0, 0, 0, 0 WHERE false
$$;
COMMENT ON FUNCTION queue_internal.counted(text[]) IS
    'What is known of the numbers of tasks without counting them: the counters behind queue.stats.';
-- The views for people and for monitoring.

-- A view shows a role the rows of its queues (internal/rights.sql): no array stands for all of them. Those that read the
-- tables as the owner have security_barrier, which keeps a function in the query from seeing the other rows.

-- Every task wherever it is. A failed one is among the dead letters. Roles read the tables under their policies: with a
-- condition in each part the planner could not walk along the tables' indexes in one order, and would show a function
-- in the query rows of others, because it flattens UNION ALL whatever security_barrier says.
CREATE VIEW queue.all_tasks AS
SELECT t.id, t.queue, t.state, t.priority, t.run_at, t.attempt, t.max_attempts, t.token, t.lease_until,
       t.worker, t.claimed_at, t.created_at, t.updated_at, t.cancel_requested_at,
       NULL::timestamptz AS finished_at, t.key, t.group_key, t.headers, t.payload, t.progress, t.errors,
       NULL::jsonb AS result
FROM queue.tasks AS t
UNION ALL
SELECT d.id, d.queue, 'failed', d.priority, d.run_at, d.attempt, d.max_attempts, d.token, NULL,
       d.worker, d.claimed_at, d.created_at, d.failed_at, NULL,
       d.failed_at, d.key, d.group_key, d.headers, d.payload, d.progress, d.errors, NULL
FROM queue.dead_letters AS d
UNION ALL
SELECT h.id, h.queue, h.state, h.priority, h.run_at, h.attempt, h.max_attempts, h.token, NULL,
       h.worker, h.claimed_at, h.created_at, h.finished_at, NULL,
       h.finished_at, h.key, h.group_key, h.headers, h.payload, h.progress, h.errors, h.result
FROM queue.history AS h;
COMMENT ON VIEW queue.all_tasks IS 'Every task: live, finished, and failed for good.';

DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW queue.all_tasks SET (security_invoker = true);
        RETURN;
    END IF;
    -- PostgreSQL 14 reads it as the owner: behind a condition on the whole, which is not flattened.
    EXECUTE format(
        'CREATE OR REPLACE VIEW queue.all_tasks WITH (security_barrier) AS SELECT a.* FROM (%s) AS a
         WHERE coalesce(a.queue = ANY ((SELECT queue_internal.queues_with_right(''operator''))::text[]), true)',
        rtrim(pg_get_viewdef('queue.all_tasks'::regclass), ';'));
END
$$;

-- From the counters of the engine. What those do not know is counted here, in one pass over each table.
-- They do not know what logical replication brings.
CREATE VIEW queue.stats WITH (security_barrier) AS
WITH shown AS MATERIALIZED (
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
uncounted AS MATERIALIZED (
    SELECT q.name FROM shown AS q WHERE NOT EXISTS (SELECT FROM counted AS c WHERE c.queue = q.name)
),
live AS (
    SELECT t.queue,
           count(*) FILTER (WHERE t.state = 'queued' AND t.gate < 2 AND t.run_at <= now()) AS queued,
           count(*) FILTER (WHERE t.state = 'queued' AND t.gate = 2) AS behind,
           count(*) FILTER (WHERE t.state = 'queued' AND t.gate < 2 AND t.run_at > now()) AS scheduled,
           count(*) FILTER (WHERE t.state = 'waiting') AS waiting,
           count(*) FILTER (WHERE t.state = 'running') AS running,
           min(t.run_at) FILTER (WHERE t.state = 'queued' AND t.gate < 2 AND t.run_at <= now()) AS oldest_due_at
    FROM queue.tasks AS t
    WHERE EXISTS (SELECT FROM uncounted) AND t.queue IN (SELECT u.name FROM uncounted AS u)
    GROUP BY t.queue
),
lost AS (
    SELECT d.queue,
           count(*) AS dead,
           count(*) FILTER (WHERE d.failed_at > now() - interval '1 hour') AS failed
    FROM queue.dead_letters AS d
    WHERE EXISTS (SELECT FROM uncounted) AND d.queue IN (SELECT u.name FROM uncounted AS u)
    GROUP BY d.queue
),
ended AS (
    SELECT h.queue,
           count(*) FILTER (WHERE h.state = 'completed') AS completed,
           count(*) FILTER (WHERE h.state = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE h.state = 'completed'
                            AND h.finished_at > now() - interval '1 minute') / 60.0 AS rate
    FROM queue.history AS h
    WHERE EXISTS (SELECT FROM uncounted) AND h.queue IN (SELECT u.name FROM uncounted AS u)
      AND h.finished_at > now() - interval '1 hour'
    GROUP BY h.queue
),
numbers AS (
    SELECT * FROM counted
    UNION ALL
    SELECT u.name, l.queued, l.behind, l.scheduled, l.waiting, l.running, d.dead, l.oldest_due_at,
           e.completed, e.cancelled, d.failed, e.rate
    FROM uncounted AS u
    LEFT JOIN live AS l ON l.queue = u.name
    LEFT JOIN lost AS d ON d.queue = u.name
    LEFT JOIN ended AS e ON e.queue = u.name
)
SELECT q.name AS queue,
       q.paused_at IS NOT NULL AS paused,
       coalesce(n.queued, 0) AS queued,
       coalesce(n.scheduled, 0) AS scheduled,
       coalesce(n.waiting, 0) AS waiting,
       coalesce(n.behind, 0) AS behind,
       coalesce(n.running, 0) AS running,
       coalesce(n.dead, 0) AS dead,
       CASE WHEN isfinite(n.oldest_due_at) THEN now() - n.oldest_due_at END AS oldest_due_age,
       coalesce(n.completed, 0) AS completed_last_hour,
       coalesce(n.cancelled, 0) AS cancelled_last_hour,
       coalesce(n.failed, 0) AS failed_last_hour,
       round(coalesce(n.rate, 0)::numeric, 1) AS completed_per_second
FROM shown AS q
LEFT JOIN numbers AS n ON n.queue = q.name;
COMMENT ON VIEW queue.stats IS
    'What is in each queue now and what became of its tasks lately.';

-- Without their names and errors, for those who may see no more than queue.stats.
CREATE VIEW queue.failing_schedules WITH (security_barrier) AS
SELECT s.queue,
       count(*) AS schedules,
       min(s.next_run_at) AS since,
       max(s.last_error_at) AS last_error_at
FROM queue.schedules AS s
WHERE s.last_error IS NOT NULL AND s.paused_at IS NULL
  AND coalesce(s.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY s.queue;
COMMENT ON VIEW queue.failing_schedules IS 'How many schedules of each queue could not push their last task, and since when.';

CREATE VIEW queue.workers WITH (security_barrier) AS
SELECT t.worker,
       t.queue,
       count(*) AS running,
       min(t.claimed_at) AS working_since,
       min(t.lease_until) AS next_lease_until,
       count(*) FILTER (WHERE t.lease_until <= now()) AS overdue
FROM queue.tasks AS t
WHERE t.state = 'running'
  AND coalesce(t.queue = ANY ((SELECT queue_internal.queues_with_right('monitor'))::text[]), true)
GROUP BY t.worker, t.queue;
COMMENT ON VIEW queue.workers IS 'Who holds leases in which queue, since when and until when.';
-- queue.push(queue, payload, priority, run_at, delay, key, on_duplicate, group_key, ...)
--
--   Puts a task into a queue and returns its id; or that of the task which has its key. With "replace", what is
--   pushed while that task runs comes after it.
--   API:      public; needs the producer's right on the queue
--   Promise:  durable when the transaction commits; never there if it rolls back
--   Waits:    for another transaction that is just pushing the same key, and for one that is ending a predecessor;
--             with "replace" and "reschedule" also for one that is working on the task to be changed
--   Errors:   QX002 no such queue; QX003 no such task in "after"; QX004 the key is taken and
--             "on_duplicate" is error; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (inserts, or updates the task with the key); the triggers task_arrives and
--             tasks_inserted take the key and announce the task

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
    on_predecessor_failure text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id bigint;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers, after,
        backoff, key_ttl, on_predecessor_failure);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    PERFORM queue_internal.check_right('producer', queue);
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    IF key IS NULL AND after IS NULL THEN
        INSERT INTO queue.tasks AS t (queue, payload, priority, run_at, max_attempts, headers, group_key, backoff)
        VALUES (push.queue, push.payload, push.priority, push.run_at, push.max_attempts, push.headers,
                push.group_key, push.backoff)
        RETURNING t.id INTO id;
        RETURN id;
    END IF;
    RETURN queue_internal.push_linked(
        queue, payload, priority, run_at, key, on_duplicate, group_key, max_attempts, headers, after, backoff,
        key_ttl, on_predecessor_failure,
        CASE WHEN after <> '{}' THEN
            queue_internal.lock_before_push(ARRAY[queue], ARRAY[key], on_duplicate, after) END);
END
$$;
COMMENT ON FUNCTION queue.push(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb,
    interval, text) IS
    'Puts a task into a queue and returns its id, or that of the live task with the same key.';

-- A push that has to look at other tasks: at the one with its key, at those that come before it. Of these, "live" are
-- locked already.
CREATE FUNCTION queue_internal.push_linked(
    queue text, payload jsonb, priority integer, run_at timestamptz, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb, after bigint[], backoff jsonb, key_ttl interval,
    on_predecessor_failure text, live bigint[])
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    source  CONSTANT queue.queues := queue_internal.open_queue(queue, 'producer');
    waits   CONSTANT boolean := after <> '{}';
    pushed  queue.tasks;
    id      bigint;
    running bigint;
BEGIN
    pushed.queue := queue;
    pushed.key := key;
    pushed.payload := payload;
    pushed.priority := priority;
    pushed.run_at := run_at;
    pushed.headers := headers;
    LOOP
        INSERT INTO queue.tasks AS t (
            queue, payload, priority, run_at, max_attempts, headers, key, group_key, backoff, state)
        VALUES (push_linked.queue, push_linked.payload, push_linked.priority, push_linked.run_at,
                push_linked.max_attempts, push_linked.headers, push_linked.key, push_linked.group_key,
                push_linked.backoff, CASE WHEN waits OR running IS NOT NULL THEN 'waiting' ELSE 'queued' END)
        RETURNING t.id INTO id;
        IF FOUND THEN
            IF key_ttl IS NOT NULL THEN
                UPDATE queue_internal.keys AS k SET ttl = key_ttl
                WHERE k.queue = push_linked.queue AND k.key = push_linked.key AND k.task_id = id;
            END IF;
            -- The task that it replaces is waited for, however that ends, also if it is named in "after".
            after := array_remove(after, running);
            IF after <> '{}' THEN
                PERFORM queue_internal.add_dependencies(
                    id, queue, after, coalesce(on_predecessor_failure, source.on_predecessor_failure), live);
            END IF;
            IF running IS NOT NULL THEN
                PERFORM queue_internal.add_dependencies(id, queue, ARRAY[running], 'continue', ARRAY[running]);
            END IF;
            RETURN id;
        END IF;
        -- No id if the key came free since, or is to be had.
        SELECT s.id, s.running INTO id, running FROM queue_internal.settle_duplicate(pushed, on_duplicate) AS s;
        IF id IS NOT NULL THEN
            RETURN id;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.push_linked(
    text, jsonb, integer, timestamptz, text, text, text, integer, jsonb, bigint[], jsonb, interval, text, bigint[]) IS
    'Pushes a task that has a key, or that waits for others.';
-- queue.push_many(queue, payloads, ...)
--
--   Puts one task for each payload into a queue and returns their ids in the order of the payloads.
--   "keys" and "group_keys", if given, have one element for each payload, which may be null; all other
--   options, "key" and "group_key" too, hold for all of them. A payload whose key is taken is dealt with
--   as "on_duplicate" says, and the id of the task with the key stands in its place.
--   API:      public; needs the producer's right on the queue
--   Promise:  all of them or none
--   Waits:    as push does. Before it takes the first key it locks all tasks that it is going to wait for or to change,
--             in the order of ids; keys are taken in their order. So two calls cannot deadlock
--   Empty:    an empty array pushes nothing and returns no rows
--   Errors:   those of push
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
    group_keys   text[]      DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids  bigint[];
    live bigint[];
    one  record;
BEGIN
    PERFORM queue_internal.check_task_options(
        queue, priority, run_at, delay, coalesce(key, CASE WHEN keys IS NOT NULL THEN 'one of keys' END),
        on_duplicate, group_key, max_attempts, headers, after, backoff, key_ttl, on_predecessor_failure);
    PERFORM queue_internal.check_array('payloads', payloads);
    PERFORM queue_internal.check_each_key('key', keys, key, cardinality(payloads));
    PERFORM queue_internal.check_each_key('group_key', group_keys, group_key, cardinality(payloads));
    PERFORM queue_internal.check_right('producer', queue);
    IF payloads = '{}' THEN
        PERFORM queue_internal.open_queue(queue, 'producer');
    END IF;
    -- All at one time: among equals the id decides, which follows the order of the array.
    run_at := coalesce(run_at, clock_timestamp() + coalesce(delay, '0'));
    IF key IS NULL AND keys IS NULL AND after IS NULL THEN
        RETURN QUERY
        INSERT INTO queue.tasks AS t (queue, payload, priority, run_at, max_attempts, headers, group_key, backoff)
        SELECT push_many.queue, p.payload, push_many.priority, push_many.run_at, push_many.max_attempts,
               push_many.headers, coalesce(p.group_key, push_many.group_key), push_many.backoff
        FROM ROWS FROM (unnest(payloads), unnest(group_keys)) WITH ORDINALITY AS p (payload, group_key, position)
        ORDER BY p.position
        RETURNING t.id;
        RETURN;
    END IF;
    keys := coalesce(keys, array_fill(key, ARRAY[cardinality(payloads)]));
    live := queue_internal.lock_before_push(
        array_fill(queue, ARRAY[cardinality(keys)]), keys, on_duplicate, coalesce(after, '{}'));
    FOR one IN
        SELECT p.payload, p.key, coalesce(p.group_key, push_many.group_key) AS group_key, p.position
        FROM ROWS FROM (unnest(payloads), unnest(keys), unnest(group_keys))
             WITH ORDINALITY AS p (payload, key, group_key, position)
        ORDER BY p.key COLLATE "C", p.position
    LOOP
        ids[one.position] := queue_internal.push_linked(
            queue, one.payload, priority, run_at, one.key, on_duplicate, one.group_key, max_attempts, headers,
            after, backoff, key_ttl, on_predecessor_failure, live);
    END LOOP;
    RETURN QUERY SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, position) ORDER BY i.position;
END
$$;
COMMENT ON FUNCTION queue.push_many(
    text, jsonb[], integer, timestamptz, interval, text, text, text, integer, jsonb, bigint[], jsonb,
    interval, text, text[], text[]) IS
    'Puts a task for each payload into a queue and returns their ids in that order.';

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
COMMENT ON FUNCTION queue_internal.check_each_key(text, text[], text, integer) IS
    'Checks an array of keys that goes with the array "payloads".';
-- queue.publish(topic, payload, ...)
--
--   Pushes a task to every queue with a binding that matches the topic, once to each however many of
--   its bindings do, in the order of the queues' names. The other arguments are those of queue.push;
--   the headers get {"topic": ...}.
--   API:      public; needs the producer's right. Reaches the queues that the caller may push to
--   Promise:  all of them or none
--   Returns:  what the pushes return
--   Empty:    without a matching binding nothing is pushed and no rows are returned
--   Waits:    with a key, for transactions that push the same key to one of the queues, or work on the task that has it;
--             for a second each
--   Errors:   22004, 22023, 54000 for the arguments, also without a binding; 55P03 it had to wait for longer than that;
--             and those of queue.push
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
    headers      jsonb       DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    targets text[];
    target  text;
BEGIN
    PERFORM queue_internal.check_topic('topic', topic, false);
    PERFORM queue_internal.check_task_options(
        'default', priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers,
        after => NULL, backoff => NULL, key_ttl => NULL, on_predecessor_failure => NULL);
    IF payload IS NULL THEN
        PERFORM queue_internal.raise_null('payload');
    END IF;
    headers := coalesce(headers, '{}') || jsonb_build_object('topic', topic);
    targets := '{}';
    FOR target IN SELECT DISTINCT b.queue FROM queue.bindings AS b ORDER BY b.queue LOOP
        -- The patterns of a queue that the caller may not push to cost the caller nothing.
        CONTINUE WHEN NOT queue_internal.has_right('producer', target)
            OR NOT EXISTS (SELECT FROM queue.queues AS q WHERE q.name = target);
        -- What stands before the first wildcard sorts most of them out. To compile a regular expression takes far
        -- longer.
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM queue.bindings AS b
            WHERE b.queue = target
              AND CASE WHEN starts_with(topic || '.', split_part(split_part(b.topic_pattern, '#', 1), '*', 1))
                       THEN ('.' || topic) ~ b.topic_regex END);
        targets := targets || target;
    END LOOP;
    IF key IS NOT NULL THEN
        RETURN QUERY SELECT * FROM queue_internal.publish_key(
            targets, payload, priority, run_at, delay, key, on_duplicate, group_key, max_attempts, headers);
        RETURN;
    END IF;
    FOREACH target IN ARRAY targets LOOP
        RETURN NEXT queue.push(
            queue => target, payload => payload, priority => priority, run_at => run_at, delay => delay,
            group_key => group_key, max_attempts => max_attempts, headers => headers);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.publish(
    text, jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb) IS
    'Pushes a task to every queue that is bound to the topic; returns their ids.';

-- A transaction that holds the key in one queue must not hold up everybody who publishes for the others.
CREATE FUNCTION queue_internal.publish_key(
    targets text[], payload jsonb, priority integer, run_at timestamptz, delay interval, key text, on_duplicate text,
    group_key text, max_attempts integer, headers jsonb)
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
            headers => headers);
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'another transaction keeps this key from being published%', coalesce(format(' to queue "%s"', target), '')
        USING ERRCODE = 'lock_not_available',
              DETAIL = 'It has pushed the same key, or works on the task that has it, and has been open for a second.',
              HINT = 'Nothing was published. Try again when that transaction has ended.';
END
$$;
COMMENT ON FUNCTION queue_internal.publish_key(
    text[], jsonb, integer, timestamptz, interval, text, text, text, integer, jsonb) IS
    'Pushes a task with a key to each of the queues; raises where that would have to wait for long.';
-- queue.claim(lease, queue, max_tasks, worker)
--
--   Leases up to "max_tasks" due tasks to the caller and returns them with their tokens.
--   API:      public; needs the worker's right on the queue
--   Promise:  at most one valid lease per task, by the server's clock; the token grows with every claim
--   Order:    priority, then run_at, then id
--   Empty:    returns no rows and never waits; so does a paused queue
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments; 40001 outside READ COMMITTED
--   Touches:  queue.tasks (reads, locks with SKIP LOCKED, updates)
--   Index:    tasks_order

CREATE FUNCTION queue.claim(
    lease     interval DEFAULT NULL,
    queue     text     DEFAULT 'default',
    max_tasks integer  DEFAULT 1,
    worker    text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source queue.queues := queue_internal.open_queue(queue, 'worker');
BEGIN
    -- The call costs more than the look.
    IF max_tasks IS NULL OR max_tasks NOT BETWEEN 1 AND 100000 OR worker IS NOT NULL THEN
        PERFORM queue_internal.check_claim(max_tasks, worker);
    END IF;
    lease := queue_internal.checked_lease(lease, source.lease);
    IF source.paused_at IS NULL THEN
        RETURN QUERY SELECT * FROM queue_internal.claim_from(source, lease, max_tasks, worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text, integer, text) IS
    'Leases due tasks of a queue to the caller and returns them with their tokens.';

-- The same over several queues, tried in the order given.
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
    name    text;
    found   bigint;
BEGIN
    PERFORM queue_internal.check_array('queues', queues);
    IF queues = '{}' THEN
        PERFORM queue_internal.raise_invalid('queues', 'must not be empty');
    END IF;
    PERFORM queue_internal.check_claim(max_tasks, worker);
    PERFORM queue_internal.checked_lease(lease, NULL);
    FOREACH name IN ARRAY queues LOOP
        PERFORM queue_internal.check_name('queues', name);
        sources := sources || queue_internal.open_queue(name, 'worker');
    END LOOP;
    FOREACH source IN ARRAY sources LOOP
        IF source.paused_at IS NULL AND max_tasks > 0 THEN
            RETURN QUERY SELECT * FROM queue_internal.claim_from(
                source, queue_internal.checked_lease(lease, source.lease), max_tasks, worker);
            GET DIAGNOSTICS found = ROW_COUNT;
            max_tasks := max_tasks - found;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.claim(interval, text[], integer, text) IS
    'Leases due tasks of several queues, tried in the order given.';

CREATE FUNCTION queue_internal.check_claim(max_tasks integer, worker text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF max_tasks IS NULL THEN
        PERFORM queue_internal.raise_null('max_tasks');
    ELSIF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    ELSIF max_tasks > 100000 THEN
        PERFORM queue_internal.raise_too_large('max_tasks', '100000', max_tasks::text);
    ELSIF worker IS NOT NULL THEN
        PERFORM queue_internal.check_name('worker', worker);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.check_claim(integer, text) IS
    'Checks what the forms of claim have in common.';
-- queue.complete(id, token, result)
--
--   Finishes a task and keeps it, with its result, in the history.
--   API:      public; needs the worker's right on the queue
--   Promise:  at most one completion of a task is ever accepted. A stale token raises, so that
--             the caller's own changes in the same transaction are rolled back with it
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023 for the arguments
--   Touches:  queue.tasks (deletes), queue.history (inserts)

CREATE FUNCTION queue.complete(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
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
COMMENT ON FUNCTION queue.complete(bigint, bigint, jsonb) IS
    'Finishes a task and keeps it, with its result, in the history.';
-- queue.complete_many(ids, tokens, results)
--
--   Finishes many tasks at once and returns the ids of those that were accepted, in the order
--   given. A stale token leaves its task out and disturbs none of the others.
--   API:      public; needs the worker's right on the queues
--   Empty:    empty arrays finish nothing and return no rows
--   Errors:   22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (locks in the order of ids, so that two batches cannot deadlock, and only what runs
--             with the token given; deletes), queue.history (inserts)
--   How:      what concerns nobody else goes in one statement; the others one by one. All of it comes after the
--             statement that locks: see tell_dependents()

CREATE FUNCTION queue.complete_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    -- Null for all. Asked once, and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    locked  bigint;
    done    bigint[];
    places  bigint[];
    one     record;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('results', results, cardinality(ids));
    PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
    JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
    WHERE (allowed IS NULL OR t.queue = ANY (allowed))
    ORDER BY t.id FOR UPDATE OF t;
    GET DIAGNOSTICS locked = ROW_COUNT;
    -- Why scalar subqueries: a join may read all dependencies to look for a few.
    WITH given AS MATERIALIZED (
        SELECT DISTINCT ON (g.id, g.token) g.id, g.token, g.result, g.position
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
             WITH ORDINALITY AS g (id, token, result, position)
        ORDER BY g.id, g.token, g.position
    ), ended AS (
        DELETE FROM queue.tasks AS t USING given AS g
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running' AND (allowed IS NULL OR t.queue = ANY (allowed))
          AND t.key IS NULL AND t.group_key IS NULL
          AND (SELECT q.max_running FROM queue.queues AS q WHERE q.name = t.queue) IS NULL
          AND (SELECT d.task_id FROM queue_internal.dependencies AS d WHERE d.predecessor_id = t.id LIMIT 1) IS NULL
          -- At another level the snapshot may not show who waits: then a trace is needed (archive).
          AND (current_setting('transaction_isolation') = 'read committed'
               OR (SELECT q.keep_history FROM queue.queues AS q WHERE q.name = t.queue))
        RETURNING t.*, g.result, g.position,
                  (SELECT q.keep_history FROM queue.queues AS q WHERE q.name = t.queue) AS kept
    ), archived AS (
        INSERT INTO queue.history (
            id, queue, state, priority, run_at, attempt, max_attempts, token, worker, claimed_at,
            created_at, key, group_key, headers, payload, progress, errors, result)
        SELECT e.id, e.queue, 'completed', e.priority, e.run_at, e.attempt, e.max_attempts, e.token, e.worker,
               e.claimed_at, e.created_at, e.key, e.group_key, e.headers, e.payload, e.progress, e.errors, e.result
        FROM ended AS e WHERE e.kept IS DISTINCT FROM false
    )
    SELECT array_agg(e.id), array_agg(e.position) INTO done, places FROM ended AS e;
    IF locked > coalesce(cardinality(done), 0) THEN
        FOR one IN
            SELECT DISTINCT ON (t.id) t AS task, g.result, g.position
            FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(results))
                 WITH ORDINALITY AS g (id, token, result, position)
            JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
                 AND (allowed IS NULL OR t.queue = ANY (allowed))
            ORDER BY t.id, g.position
        LOOP
            PERFORM queue_internal.archive(one.task, 'completed', one.result);
            done := done || (one.task).id;
            places := places || one.position;
        END LOOP;
    END IF;
    RETURN QUERY SELECT d.id FROM unnest(done, places) AS d (id, place) ORDER BY d.place;
END
$$;
COMMENT ON FUNCTION queue.complete_many(bigint[], bigint[], jsonb[]) IS
    'Finishes many tasks; returns the ids of those whose token was current.';
-- queue.complete_and_claim(id, token, result, lease, queue, worker)
--
--   Finishes a task and claims the next one: one transaction for each task of a worker's loop.
--   API:      public; needs the worker's right on both queues
--   Promise:  both or neither; as complete and as claim
--   Empty:    finishes the task and returns no rows
--   Errors:   those of complete and of claim

CREATE FUNCTION queue.complete_and_claim(
    id     bigint,
    token  bigint,
    result jsonb    DEFAULT NULL,
    lease  interval DEFAULT NULL,
    queue  text     DEFAULT 'default',
    worker text     DEFAULT NULL)
RETURNS SETOF queue.claimed_task
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue.complete(id, token, result);
    RETURN QUERY SELECT * FROM queue.claim(lease, queue, 1, worker);
END
$$;
COMMENT ON FUNCTION queue.complete_and_claim(bigint, bigint, jsonb, interval, text, text) IS
    'Finishes a task and claims the next one in the same transaction.';
-- queue.fail(id, token, error, retry_in, permanent)
--
--   Reports that an attempt failed. The task goes back to its queue after its backoff (or
--   "retry_in"), or to the dead letters when its attempts are used up or "permanent" is true.
--   A task whose cancelling was requested is cancelled instead; so is one that was replaced, unless it failed for good.
--   API:      public; needs the worker's right on the queue
--   Returns:  the state that the task is in now: queued, failed or cancelled
--   Waits:    if the task ends with this attempt, or has a key, for transactions that have pushed after it
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (updates or deletes), queue.dead_letters or queue.history (inserts)

CREATE FUNCTION queue.fail(
    id        bigint,
    token     bigint,
    error     text,
    retry_in  interval DEFAULT NULL,
    permanent boolean  DEFAULT false)
RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    is_last boolean;
BEGIN
    PERFORM queue_internal.check_lease_holder(id, token);
    PERFORM queue_internal.check_delay('retry_in', retry_in);
    IF error IS NULL THEN
        PERFORM queue_internal.raise_null('error');
    ELSIF error = '' THEN
        PERFORM queue_internal.raise_invalid('error', 'must not be empty');
    ELSIF octet_length(error) > 1048576 THEN
        PERFORM queue_internal.raise_too_large('error', '1048576 bytes', octet_length(error) || ' bytes');
    ELSIF permanent IS NULL THEN
        PERFORM queue_internal.raise_null('permanent');
    ELSIF permanent AND retry_in IS NOT NULL THEN
        PERFORM queue_internal.raise_invalid('retry_in', 'cannot be combined with "permanent"', retry_in::text);
    END IF;
    is_last := permanent OR (SELECT t.attempt >= coalesce(t.max_attempts, q.max_attempts)
                             FROM queue.tasks AS t LEFT JOIN queue.queues AS q ON q.name = t.queue
                             WHERE t.id = fail.id AND t.token = fail.token);
    RETURN queue_internal.end_attempt(
        queue_internal.leased_task(id, token, is_last IS NOT FALSE), error, retry_in, permanent);
END
$$;
COMMENT ON FUNCTION queue.fail(bigint, bigint, text, interval, boolean) IS
    'Reports that an attempt failed; returns the state that the task is in now.';
-- queue.release(id, token, delay)
--
--   Gives a task back without spending the attempt, at its old place in the queue or after a delay.
--   A task whose cancelling was requested, or that was replaced, is cancelled instead.
--   API:      public; needs the worker's right on the queue
--   Waits:    if the task was asked to be cancelled, or has a key, for transactions that have pushed after it
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (updates)

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
    IF task.cancel_requested_at IS NOT NULL OR queue_internal.is_replaced(task) THEN
        PERFORM queue_internal.cancel_now(task);
        RETURN;
    END IF;
    task.attempt := task.attempt - 1;
    IF delay > '0' THEN
        task.run_at := clock_timestamp() + delay;
    END IF;
    PERFORM queue_internal.put_back(task);
END
$$;
COMMENT ON FUNCTION queue.release(bigint, bigint, interval) IS
    'Gives a task back without spending the attempt.';
-- queue.extend_many(ids, tokens, lease, progress)
--
--   queue.extend for many tasks. Stale tokens are left out of the answer and change nothing.
--   "progress", if given, has one element for each id.
--   API:      public; needs the worker's right on the queues
--   Empty:    empty arrays extend nothing and return no rows
--   Errors:   22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (locks in the order of ids, and only what runs with the token given: who has lost a
--             lease does not wait for its new holder; updates, HOT)

CREATE FUNCTION queue.extend_many(
    ids      bigint[],
    tokens   bigint[],
    lease    interval DEFAULT NULL,
    progress jsonb[]  DEFAULT NULL)
RETURNS TABLE (id bigint, lease_until timestamptz, cancel_requested boolean)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    -- Null for all. Asked once, and not for each task.
    allowed CONSTANT text[] := queue_internal.queues_with_right('worker');
    longest CONSTANT interval := queue_internal.setting('max_lease', '7d');
    moment  timestamptz;
BEGIN
    PERFORM queue_internal.check_array('ids', ids);
    PERFORM queue_internal.check_array('tokens', tokens);
    PERFORM queue_internal.check_same_length('tokens', tokens, cardinality(ids));
    PERFORM queue_internal.check_same_length('progress', progress, cardinality(ids));
    lease := queue_internal.checked_lease(lease, NULL);
    PERFORM FROM ROWS FROM (unnest(ids), unnest(tokens)) AS g (id, token)
    JOIN queue.tasks AS t ON t.id = g.id AND t.token = g.token AND t.state = 'running'
    WHERE (allowed IS NULL OR t.queue = ANY (allowed))
    ORDER BY t.id FOR NO KEY UPDATE OF t;
    moment := clock_timestamp();
    FOR id, lease_until, cancel_requested IN
        UPDATE queue.tasks AS t
        SET lease_until = moment + coalesce(
                extend_many.lease, (SELECT least(q.lease, longest) FROM queue.queues AS q WHERE q.name = t.queue)),
            progress = coalesce(g.progress, t.progress), updated_at = moment
        FROM ROWS FROM (unnest(ids), unnest(tokens), unnest(extend_many.progress)) AS g (id, token, progress)
        WHERE t.id = g.id AND t.token = g.token AND t.state = 'running'
          AND (allowed IS NULL OR t.queue = ANY (allowed))
        RETURNING t.id, t.lease_until, t.cancel_requested_at IS NOT NULL
    LOOP
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue.extend_many(bigint[], bigint[], interval, jsonb[]) IS
    'Extends many leases; returns a row for each whose token was current.';
-- queue.extend(id, token, lease, progress)
--
--   The heartbeat of a worker: the lease runs anew from now, progress is noted, and the worker
--   learns whether somebody asked to cancel the task. Without "lease" the queue's default is used;
--   without "progress" the last one stays.
--   API:      public; needs the worker's right on the queue
--   Errors:   QX001 the lease is lost; QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks (updates, HOT)

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
COMMENT ON FUNCTION queue.extend(bigint, bigint, interval, jsonb) IS
    'Extends a lease, notes progress, and tells whether cancelling was requested.';
-- queue.cancelled(id, token)
--
--   The worker's word that it stopped working on a task that was to be cancelled.
--   API:      public; needs the worker's right on the queue
--   Errors:   QX001 the lease is lost; QX003 no such task; QX005 nobody asked to cancel it;
--             22004, 22023 for the arguments
--   Touches:  queue.tasks (deletes), queue.history (inserts)

CREATE FUNCTION queue.cancelled(id bigint, token bigint) RETURNS void
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
COMMENT ON FUNCTION queue.cancelled(bigint, bigint) IS
    'Acknowledges that work on a task was stopped because it was to be cancelled.';
-- queue.cancel(id)
--
--   Cancels a task that is not running. For a running one the request is noted: its worker sees it
--   at the next extend, and the task is cancelled when the worker fails or releases it, says
--   queue.cancelled(), or its lease runs out. A worker that completes it first is not refused.
--   API:      public; an operator's
--   Returns:  the state that the task is in now: cancelled, or running
--   Errors:   QX003 no such task; QX005 it has finished already; 22004, 22023 for the argument
--   Waits:    for a transaction that is working on the task; if it does not run, for one that has pushed after it, too
--   Touches:  queue.tasks (updates or deletes), queue.history (inserts)

CREATE FUNCTION queue.cancel(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    task queue.tasks;
BEGIN
    PERFORM queue_internal.check_id(id);
    -- What runs is asked to stop, and does not end with that.
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
    RETURN queue_internal.cancel_or_ask(task);
END
$$;
COMMENT ON FUNCTION queue.cancel(bigint) IS
    'Cancels a task, or asks its worker to stop; returns the state that the task is in now.';
-- queue.end_lease(id)
--
--   Ends the lease of a running task at once, as if its time were over: the task goes back to its queue, or where its
--   last attempt leads. Its worker has lost the task, and is refused when it comes back. For a worker that hangs.
--   API:      public; needs the operator's right on the queue
--   Returns:  the state that the task is in now: queued, failed, or cancelled where that was asked for
--   Errors:   QX003 no such task; QX005 it is not running; 22004, 22023 for the argument
--   Touches:  queue.tasks (waits for a transaction that is working on the task; updates or deletes)

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
            id, 'operator', 'has no lease', 'Only a running task has one: state and lease_until in queue.get().');
    END IF;
    RETURN queue_internal.end_attempt(task, 'lease ended by an operator', '0', false);
END
$$;
COMMENT ON FUNCTION queue.end_lease(bigint) IS
    'Ends the lease of a running task at once, as if it had expired; returns the state that the task is in then.';
-- queue.retry(id)
--
--   Puts a task back from the dead letters into its queue: due at once, its attempts counted anew,
--   its errors kept, its token still growing.
--   API:      public; an operator's
--   Returns:  the state that the task is in now: queued
--   Errors:   QX002 its queue was dropped; QX003 no such task; QX004 another task has its key by now;
--             QX005 it has not failed for good; 22004, 22023 for the argument
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
    -- Again where the key came free after it was found taken.
    WHILE queue_internal.revive(ARRAY[id]) = 0 LOOP
        PERFORM queue_internal.raise_duplicate_key(d.queue, d.key, k.task_id, k.expires_at)
        FROM queue.dead_letters AS d JOIN queue_internal.keys AS k ON k.queue = d.queue AND k.key = d.key
        WHERE d.id = retry.id;
        IF NOT EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.id = retry.id) THEN
            PERFORM queue_internal.raise_wrong_state(
                id, 'operator', 'is not among the dead letters',
                'Only tasks that failed for good can be retried.');
        END IF;
    END LOOP;
    RETURN 'queued';
END
$$;
COMMENT ON FUNCTION queue.retry(bigint) IS 'Puts a task back from the dead letters into its queue.';

-- Those whose key another task holds stay where they are; so do all but the oldest of those that have
-- the same key. They have to be told apart before: no task is there yet that could hold the key against
-- the next one.
CREATE FUNCTION queue_internal.revive(ids bigint[], to_queue text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    revived bigint;
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT l.id, coalesce(to_queue, l.queue) AS queue, l.key, l.key_ttl FROM queue.dead_letters AS l
        WHERE l.id = ANY (ids) ORDER BY l.id FOR UPDATE
    ), first AS MATERIALIZED (
        -- Keys are taken in the order of push_many.
        SELECT DISTINCT ON (l.queue, l.key COLLATE "C") l.* FROM locked AS l
        WHERE l.key IS NOT NULL ORDER BY l.queue, l.key COLLATE "C", l.id
    ), free AS MATERIALIZED (
        SELECT l.id FROM locked AS l WHERE l.key IS NULL
        UNION ALL
        SELECT f.id FROM first AS f WHERE queue_internal.take_key(f.queue, f.key, f.id, f.key_ttl)
    ), dead AS (
        DELETE FROM queue.dead_letters AS d USING free AS f WHERE d.id = f.id RETURNING d.*
    ), forgotten AS (
        -- How it ends next is what counts for those that will wait for it.
        DELETE FROM queue_internal.outcomes AS o USING free AS f WHERE o.task_id = f.id
    )
    INSERT INTO queue.tasks (
        id, queue, priority, max_attempts, token, created_at, key, group_key, backoff, headers, payload,
        progress, errors)
    SELECT d.id, coalesce(to_queue, d.queue), d.priority, d.max_attempts, d.token, d.created_at, d.key, d.group_key,
           d.backoff, d.headers, d.payload, d.progress, d.errors
    FROM dead AS d ORDER BY d.id;
    GET DIAGNOSTICS revived = ROW_COUNT;
    RETURN revived;
END
$$;
COMMENT ON FUNCTION queue_internal.revive(bigint[], text) IS
    'Puts tasks back from the dead letters into their queues, or into another one; returns how many.';
-- queue.redrive(queue, max_tasks)
--
--   Puts the dead letters of a queue back into it, the oldest first, all of them or up to
--   "max_tasks"; each as queue.retry() would.
--   API:      public; an operator's
--   Returns:  how many
--   Empty:    0
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
--   Touches:  queue.dead_letters (deletes), queue.tasks (inserts)
--   Index:    dead_letters_queue_failed_at

CREATE FUNCTION queue.redrive(queue text, max_tasks integer DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'operator');
    IF max_tasks < 1 THEN
        PERFORM queue_internal.raise_invalid('max_tasks', 'must be greater than zero', max_tasks::text);
    END IF;
    RETURN queue_internal.revive(ARRAY(
        SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = redrive.queue
        ORDER BY d.failed_at, d.id LIMIT max_tasks FOR UPDATE SKIP LOCKED));
END
$$;
COMMENT ON FUNCTION queue.redrive(text, integer) IS
    'Puts the dead letters of a queue back into it, the oldest first; returns how many.';
-- queue.reap()
--
--   Puts back every task whose lease ran out, or moves it to the dead letters when its attempts
--   are used up. The background worker does the same in small batches; without it, call this from
--   psql or pg_cron. Claims do not wait for it: they take over expired leases by themselves.
--   API:      public; needs the operator's right on all queues
--   Returns:  how many leases had run out
--   Touches:  queue.tasks (reads all of it, never waits for a lock)

CREATE FUNCTION queue.reap() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT r.reaped FROM queue_internal.reap(9223372036854775807) AS r);
END
$$;
COMMENT ON FUNCTION queue.reap() IS 'Puts back every task whose lease ran out; returns how many.';
-- queue.get(id)
--
--   The task wherever it is: live, finished, or among the dead letters.
--   API:      public
--   Errors:   QX003 no such task; 22004, 22023 for the argument
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
COMMENT ON FUNCTION queue.get(bigint) IS 'The task wherever it is.';
-- What queue.wait() and queue.wait_result() check before they wait, and what they look at.

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
COMMENT ON FUNCTION queue_internal.wait_deadline(interval) IS
    'Until when to wait; checks the argument "timeout".';

CREATE FUNCTION queue_internal.check_wait(queue text, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_queue(queue, 'worker');
    RETURN queue_internal.wait_deadline(timeout);
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait(text, interval) IS
    'Checks the arguments of queue.wait() for one queue; returns until when it waits.';

CREATE FUNCTION queue_internal.check_wait(queues text[], timeout interval) RETURNS timestamptz
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
    RETURN queue_internal.wait_deadline(timeout);
END
$$;
COMMENT ON FUNCTION queue_internal.check_wait(text[], interval) IS
    'Checks the arguments of queue.wait() for several queues; returns until when it waits.';

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
COMMENT ON FUNCTION queue_internal.check_wait_result(bigint, interval) IS
    'Checks the arguments of queue.wait_result(); returns until when it waits.';

-- One snapshot for all tables, since it is STABLE: a task on its way from one to the other is missed
-- in neither.
CREATE FUNCTION queue_internal.outcome(id bigint, OUT state text, OUT result jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    state := queue_internal.state_of(id, 'operator');
    IF state = 'completed' THEN
        SELECT h.result INTO result FROM queue.history AS h WHERE h.id = outcome.id;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_internal.outcome(bigint) IS 'The state of a task, wherever it is, and its result.';
-- CALL queue.wait_result(id, timeout, state, result)
--
--   Waits until the task is completed, cancelled or failed for good, or until "timeout" is over.
--   API:      public; needs to read the task, as queue.get() does
--   Returns:  in "state", the state that the task is in now, null if it is gone without a trace; in
--             "result", what its worker gave to queue.complete()
--   Errors:   QX003 no such task; 22004, 22023, 54000 for the arguments
--   Touches:  queue.tasks, queue.dead_letters, queue.history (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps until
--             the task's end wakes it (src/wait.rs). In a transaction block it cannot, and does not wait.

CREATE PROCEDURE queue.wait_result(
    id           bigint,
    timeout      interval DEFAULT '30 seconds',
    INOUT state  text     DEFAULT NULL,
    INOUT result jsonb    DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_result';
COMMENT ON PROCEDURE queue.wait_result(bigint, interval, text, jsonb) IS
    'Waits until a task is finished, holding neither a transaction nor a snapshot; tells its state and result.';
-- CALL queue.wait(queue, timeout, ready)
--
--   Waits until there is something to claim from the queue, or until "timeout" is over. One new task wakes
--   one waiter, the one who has waited longest; another worker may still be quicker, and then queue.claim()
--   returns nothing.
--   API:      public; needs the worker's right on the queue
--   Returns:  in "ready", whether there is something to claim
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
--   Touches:  queue.queues, queue.tasks (reads)
--   Locks:    none while it waits, and neither a snapshot nor a transaction: it commits and sleeps
--             (src/wait.rs). In a transaction block it cannot, and does not wait.

CREATE PROCEDURE queue.wait(
    queue       text     DEFAULT 'default',
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait';
COMMENT ON PROCEDURE queue.wait(text, interval, boolean) IS
    'Waits until there is something to claim, holding neither a transaction nor a snapshot.';

-- The same for several queues: until there is something in any of them.
CREATE PROCEDURE queue.wait(
    queues      text[],
    timeout     interval DEFAULT '30 seconds',
    INOUT ready boolean  DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'queue_wait_any';
COMMENT ON PROCEDURE queue.wait(text[], interval, boolean) IS
    'Waits until there is something to claim from any of the queues.';
-- queue.create(name, options)
--
--   Creates a queue.
--   API:      public; an operator's
--   Options:  lease           how long a claim lasts that names no lease     "1 minute"
--             max_attempts    how often a task is tried                      20
--             backoff         how long a failed task waits:
--               kind          fixed, linear or exponential                   "exponential"
--               base          the wait after the first failure               "1 second"
--               max           the longest wait                               "1 hour"
--               jitter        the share of a wait that chance takes off      0.1
--             keep_history    whether finished tasks are kept in the history true
--   Errors:   42710 the queue exists; 22004, 22023, 54000 for the arguments and options
--   Touches:  queue.queues (inserts)

CREATE FUNCTION queue.create(name text, options jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.check_options(options);
    IF name ~ '[[:cntrl:]]' THEN
        PERFORM queue_internal.raise_invalid('name', 'must not contain control characters');
    END IF;
    PERFORM queue_internal.check_right('operator', name);
    IF EXISTS (SELECT FROM queue.queues AS q WHERE q.name = "create".name) THEN
        RAISE unique_violation;
    END IF;
    INSERT INTO queue.queues (name) VALUES ("create".name);
    PERFORM queue_internal.apply_options(name, options);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'queue "%" already exists', name
        USING ERRCODE = 'duplicate_object',
              HINT = format('Change its options with SELECT queue.configure(%L, ...).', name);
END
$$;
COMMENT ON FUNCTION queue.create(text, jsonb) IS
    'Creates a queue. Options: lease, max_attempts, backoff {kind, base, max, jitter}, keep_history; max_running, '
    'max_running_per_group, delayed_head, fair_groups, rate_limit, rate_period, ageing, key_ttl, on_predecessor_failure.';

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
COMMENT ON FUNCTION queue_internal.check_options(jsonb) IS 'Checks that options are a JSON object.';
-- queue.configure(name, options)
--
--   Changes the options of a queue; those not named stay, null brings back a default. They count
--   from the next claim or failure on, also for tasks that are in the queue already.
--   API:      public; an operator's
--   Options:  those of queue.create
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments and options
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.configure(name text, options jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    PERFORM queue_internal.check_options(options);
    PERFORM queue_internal.apply_options(name, options);
END
$$;
COMMENT ON FUNCTION queue.configure(text, jsonb) IS 'Changes the options of a queue.';

-- For the functions that call the queue "name".
CREATE FUNCTION queue_internal.check_queue(name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    PERFORM queue_internal.open_queue(name, 'operator');
END
$$;
COMMENT ON FUNCTION queue_internal.check_queue(text) IS 'Checks that a queue exists and that the caller is its operator.';
-- queue.drop(name, force)
--
--   Drops a queue. One that still has tasks or dead letters is refused, unless "force" is true:
--   then they are deleted, running ones too; for tasks that wait for one of them it was cancelled.
--   The history stays; the queue's bindings go.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 55006 it has tasks; 22004, 22023, 54000 for the arguments
--   Touches:  queue.queues, queue.tasks and queue.dead_letters (locks in the order of ids), and what policies
--             keep of them (deletes)
--   A push that runs at the same moment may leave its task behind. The task is neither lost nor
--   claimed: it is there again when a queue of that name is created.

CREATE FUNCTION queue.drop(name text, force boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    IF force IS NULL THEN
        PERFORM queue_internal.raise_null('force');
    END IF;
    DELETE FROM queue.queues AS q WHERE q.name = "drop".name;
    IF force THEN
        -- Before everything that belongs to them, and in the order in which others lock them.
        PERFORM FROM queue.tasks AS t WHERE t.queue = "drop".name ORDER BY t.id FOR UPDATE;
        PERFORM FROM queue.dead_letters AS d WHERE d.queue = "drop".name ORDER BY d.id FOR UPDATE;
    END IF;
    -- Whoever waits for it has to learn that it is gone.
    PERFORM queue_internal.announce_task(name, clock_timestamp());
    DELETE FROM queue.bindings AS b WHERE b.queue = "drop".name;
    DELETE FROM queue_internal.slots AS s WHERE s.queue = "drop".name;
    DELETE FROM queue_internal.tokens AS s WHERE s.queue = "drop".name;
    DELETE FROM queue_internal.locks AS l WHERE l.queue = "drop".name;
    IF NOT force AND (EXISTS (SELECT FROM queue.tasks AS t WHERE t.queue = "drop".name)
                      OR EXISTS (SELECT FROM queue.dead_letters AS d WHERE d.queue = "drop".name)) THEN
        RAISE EXCEPTION 'queue "%" has tasks', name
            USING ERRCODE = 'object_in_use',
                  HINT = format('SELECT queue.drop(%L, force => true) deletes them, running tasks '
                                'and dead letters included.', name);
    END IF;
    IF force THEN
        DELETE FROM queue_internal.dependencies AS d USING queue.tasks AS t
        WHERE t.queue = "drop".name AND t.state = 'waiting' AND d.task_id = t.id;
        PERFORM queue_internal.tell_dependents(ARRAY(
            SELECT t.id FROM queue.tasks AS t
            WHERE t.queue = "drop".name AND t.id IN (SELECT d.predecessor_id FROM queue_internal.dependencies AS d)),
            'purged');
    END IF;
    DELETE FROM queue_internal.events AS e WHERE e.queue = "drop".name;
    -- Those too that outlive their task for a while: they would keep a later queue of that name from its tasks.
    PERFORM FROM queue_internal.keys AS k WHERE k.queue = "drop".name ORDER BY k.key FOR UPDATE;
    DELETE FROM queue_internal.keys AS k WHERE k.queue = "drop".name;
    IF force THEN
        DELETE FROM queue.tasks AS t WHERE t.queue = "drop".name;
        DELETE FROM queue.dead_letters AS d WHERE d.queue = "drop".name;
    END IF;
END
$$;
COMMENT ON FUNCTION queue.drop(text, boolean) IS
    'Drops a queue; with "force" also one that has tasks, which are deleted.';
-- queue.bind(topic_pattern, queue)
--
--   From now on what is published under a topic that matches the pattern goes to the queue, too.
--   Binding twice changes nothing.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 54000 it has 1000 bindings already; 22004, 22023, 54000 for the arguments
--   Touches:  queue.queues (locks the queue's row against a drop), queue.bindings (inserts)

CREATE FUNCTION queue.bind(topic_pattern text, queue text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_topic('topic_pattern', topic_pattern, true);
    PERFORM queue_internal.open_queue(queue, 'operator');
    -- A drop that is under way comes first.
    PERFORM FROM queue.queues AS q WHERE q.name = bind.queue FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_unknown_queue(queue);
    END IF;
    -- Every publish reads all bindings. (Binds at the same moment do not count each other.)
    IF (SELECT count(*) FROM queue.bindings AS b
        WHERE b.queue = bind.queue AND b.topic_pattern <> bind.topic_pattern) >= 1000 THEN
        RAISE EXCEPTION 'queue "%" has too many bindings', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 1000.',
                  HINT = 'Bind a pattern with wildcards, or take back with queue.unbind() what is not needed.';
    END IF;
    INSERT INTO queue.bindings (topic_pattern, queue, topic_regex)
    VALUES (bind.topic_pattern, bind.queue, queue_internal.topic_regex(bind.topic_pattern))
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION queue.bind(text, text) IS 'Lets a queue have what is published under matching topics.';
-- queue.unbind(topic_pattern, queue)
--
--   Takes back what queue.bind() said. The binding is found by its pattern as it was written.
--   API:      public; an operator's
--   Returns:  whether there was such a binding
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments
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
COMMENT ON FUNCTION queue.unbind(text, text) IS 'Takes a binding back; returns whether there was one.';
-- queue.pause(name)
--
--   From now on nothing is claimed from the queue. Pushes are taken, and running tasks finish.
--   Pausing a paused queue changes nothing.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the argument
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.pause(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    UPDATE queue.queues AS q SET paused_at = clock_timestamp()
    WHERE q.name = pause.name AND q.paused_at IS NULL;
END
$$;
COMMENT ON FUNCTION queue.pause(text) IS 'Stops claims from a queue.';
-- queue.resume(name)
--
--   Ends a pause. Listeners are told. Resuming a queue that is not paused changes nothing.
--   API:      public; an operator's
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the argument
--   Touches:  queue.queues (updates)

CREATE FUNCTION queue.resume(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_queue(name);
    UPDATE queue.queues AS q SET paused_at = NULL
    WHERE q.name = resume.name AND q.paused_at IS NOT NULL;
    IF FOUND THEN
        PERFORM queue_internal.announce_task(name, clock_timestamp());
    END IF;
END
$$;
COMMENT ON FUNCTION queue.resume(text) IS 'Allows claims from a queue again.';
-- queue.purge(name)
--
--   Deletes the tasks of a queue that are not running, and its dead letters, without a trace in
--   the history. Running tasks are left to their workers.
--   API:      public; an operator's
--   Returns:  how many were deleted
--   Empty:    0
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the argument
--   Touches:  queue.tasks, queue.dead_letters (deletes; never waits for a lock)

CREATE FUNCTION queue.purge(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tasks   bigint;
    letters bigint;
BEGIN
    PERFORM queue_internal.check_queue(name);
    -- Dead letters first, as redrive takes them before it makes tasks; those that it has locked are left to it.
    WITH dead AS MATERIALIZED (
        SELECT d.id FROM queue.dead_letters AS d WHERE d.queue = purge.name ORDER BY d.id FOR UPDATE SKIP LOCKED
    )
    DELETE FROM queue.dead_letters AS l USING dead AS d WHERE l.id = d.id;
    GET DIAGNOSTICS letters = ROW_COUNT;
    PERFORM queue_internal.discard(i.task) FROM (
        SELECT t AS task FROM queue.tasks AS t
        WHERE t.queue = purge.name AND t.state <> 'running' ORDER BY t.id FOR UPDATE SKIP LOCKED
    ) AS i;
    GET DIAGNOSTICS tasks = ROW_COUNT;
    RETURN tasks + letters;
END
$$;
COMMENT ON FUNCTION queue.purge(text) IS
    'Deletes the tasks of a queue that are not running, and its dead letters; returns how many.';
-- queue.schedule(name, cron, queue, payload, timezone, options)
--
--   Creates a schedule, which pushes a task again and again, or replaces the one of that name. One
--   that is replaced stays paused if it was, and keeps its next run if "cron" and "timezone" stay.
--   API:      public; an operator's
--   Returns:  the next run; null while the schedule is paused
--   Options:  missed_runs   what becomes of runs that nobody ran in time:
--               skip        nothing
--               once        one task for the latest of them               the default
--               all         one task for each
--             priority, delay, key, on_duplicate, group_key, max_attempts, headers
--                           as in queue.push, for each task
--   Bounds:   10000 schedules of a queue: the worker reads those of all queues
--   Errors:   QX002 no such queue; 22004, 22023, 54000 for the arguments and options, and for one schedule too many
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
    kept     jsonb;
    next_run timestamptz;
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
    IF (SELECT count(*) FROM queue.schedules AS s WHERE s.queue = schedule.queue AND s.name <> schedule.name) >= 10000 THEN
        RAISE EXCEPTION 'queue "%" has too many schedules', queue
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'A queue can have 10000.',
                  HINT = 'Use one schedule whose task does the work of several, or another queue.';
    END IF;
    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO kept
    FROM jsonb_each(options) AS o WHERE o.value <> 'null' AND o.key <> 'missed_runs';
    INSERT INTO queue.schedules AS s (name, cron, timezone, queue, payload, options, missed_runs, next_run_at)
    VALUES (schedule.name, schedule.cron, schedule.timezone, schedule.queue, schedule.payload, kept,
            coalesce(schedule.options ->> 'missed_runs', 'once'),
            queue_internal.next_run(schedule.cron, schedule.timezone, clock_timestamp()))
    ON CONFLICT ON CONSTRAINT schedules_pkey DO UPDATE
    SET cron = excluded.cron, timezone = excluded.timezone, queue = excluded.queue,
        payload = excluded.payload, options = excluded.options, missed_runs = excluded.missed_runs,
        next_run_at = CASE WHEN s.paused_at IS NOT NULL THEN NULL
                           WHEN (s.cron, s.timezone) = (excluded.cron, excluded.timezone)
                           THEN coalesce(s.next_run_at, excluded.next_run_at)
                           ELSE excluded.next_run_at END,
        last_error = NULL, last_error_at = NULL
    WHERE queue_internal.has_right('operator', s.queue)
    RETURNING s.next_run_at INTO next_run;
    IF NOT FOUND THEN
        PERFORM queue_internal.raise_foreign_schedule(name);
    END IF;
    -- A run that is kept may be due; only what lies ahead wakes the worker for schedules.
    PERFORM queue_internal.announce_task(queue, greatest(next_run, clock_timestamp() + interval '1 ms'))
    WHERE next_run IS NOT NULL;
    RETURN next_run;
END
$$;
COMMENT ON FUNCTION queue.schedule(text, text, text, jsonb, text, jsonb) IS
    'Creates or replaces a schedule, which pushes a task again and again; returns its next run.';
-- queue.unschedule(name)
--
--   Deletes a schedule. Tasks that it pushed stay.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument
--   Touches:  queue.schedules (deletes)

CREATE FUNCTION queue.unschedule(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.open_schedule(name);
    DELETE FROM queue.schedules AS s WHERE s.name = unschedule.name AND queue_internal.has_right('operator', s.queue);
END
$$;
COMMENT ON FUNCTION queue.unschedule(text) IS 'Deletes a schedule.';
-- queue.pause_schedule(name)
--
--   From now on the schedule does not run. Pausing a paused schedule changes nothing.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument
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
COMMENT ON FUNCTION queue.pause_schedule(text) IS 'Stops the runs of a schedule.';
-- queue.resume_schedule(name)
--
--   Ends a pause. Runs that fell into the pause are not made up, whatever "missed_runs" says.
--   Resuming a schedule that is not paused changes nothing.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument
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
COMMENT ON FUNCTION queue.resume_schedule(text) IS 'Lets a schedule run again.';
-- queue.run_schedule(name)
--
--   Pushes the task of a schedule at once and returns its id. The plan stays as it is. It works
--   while the schedule is paused, too.
--   API:      public; an operator's
--   Errors:   42704 no such schedule; 22004, 22023, 54000 for the argument; what queue.push raises
--   Touches:  queue.tasks (inserts)

CREATE FUNCTION queue.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN queue_internal.push_scheduled(queue_internal.open_schedule(name), clock_timestamp());
END
$$;
COMMENT ON FUNCTION queue.run_schedule(text) IS
    'Pushes the task of a schedule at once, without changing its plan; returns the task''s id.';
-- queue.run_schedules()
--
--   Pushes the tasks of all schedules that are due. The worker does so by itself; without it, call
--   this every minute or so, from pg_cron or any other scheduler.
--   API:      public; needs the operator's right on all queues
--   Promise:  each time that is due is run once, however many call this at the same moment, and none
--             if the transaction rolls back
--   Returns:  how many tasks were pushed; of one schedule at most 100 a call
--   Empty:    0
--   Failing:  a schedule whose push fails notes the error, keeps its time, and is in no other's way
--   Touches:  queue.schedules (locks with SKIP LOCKED, updates), queue.tasks (inserts)

CREATE FUNCTION queue.run_schedules() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_right('operator', NULL);
    RETURN (SELECT f.fired FROM queue_internal.fire_schedules(NULL, '0') AS f);
END
$$;
COMMENT ON FUNCTION queue.run_schedules() IS
    'Pushes the tasks of the schedules that are due; returns how many.';
-- queue.schedule_preview(cron, timezone, runs, since)
--
--   The next runs that a schedule would have, counted from "since", which is now by default.
--   API:      public; an operator's
--   Errors:   22004, 22023, 54000 for the arguments
--   Touches:  nothing

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
COMMENT ON FUNCTION queue.schedule_preview(text, text, integer, timestamptz) IS
    'The next runs that a schedule would have.';
-- CALL queue.cancel_where(filter, dry_run, batch_size, tasks)
--
--   Cancels the tasks that match the filter, each as queue.cancel() would: for a running one the
--   request is noted. Those that were asked before are not counted again.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting, running
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
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
COMMENT ON PROCEDURE queue.cancel_where(jsonb, boolean, integer, bigint) IS
    'Cancels the tasks that match a filter, batch by batch.';
-- CALL queue.retry_where(filter, dry_run, batch_size, tasks)
--
--   Makes the tasks that match the filter and are scheduled due at once: those that wait after a failed
--   attempt, and those that were pushed for later. Their attempts count on.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   scheduled
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
--   Touches:  queue.tasks (updates)
--   Filter, batches and locks: see filter_condition and in_batches, in sql/internal

CREATE PROCEDURE queue.retry_where(
    filter     jsonb,
    dry_run    boolean DEFAULT false,
    batch_size integer DEFAULT 1000,
    INOUT tasks bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    tasks := 0;
    CALL queue_internal.in_batches(
        '{retry}', filter, dry_run, batch_size, NULL, NULL, tasks);
END
$$;
COMMENT ON PROCEDURE queue.retry_where(jsonb, boolean, integer, bigint) IS
    'Makes the scheduled tasks that match a filter due at once, batch by batch.';
-- CALL queue.redrive_where(filter, to_queue, dry_run, batch_size, tasks)
--
--   Puts the dead letters that match the filter back into their queues, or into "to_queue"; each as
--   queue.retry() would.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   failed
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
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
COMMENT ON PROCEDURE queue.redrive_where(jsonb, text, boolean, integer, bigint) IS
    'Puts the dead letters that match a filter back into a queue, batch by batch.';
-- CALL queue.reprioritise_where(filter, priority, dry_run, batch_size, tasks)
--
--   Gives the tasks that match the filter another priority. For a running one it counts when the task
--   comes back to its queue. Those that have that priority already are not counted.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting, running
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
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
COMMENT ON PROCEDURE queue.reprioritise_where(jsonb, integer, boolean, integer, bigint) IS
    'Gives the tasks that match a filter another priority, batch by batch.';
-- CALL queue.move_where(filter, to_queue, dry_run, batch_size, tasks)
--
--   Moves the tasks that match the filter and are not running to another queue. They keep their ids,
--   priorities and times, and their keys: one whose key another task has there stays where it is.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
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
COMMENT ON PROCEDURE queue.move_where(jsonb, text, boolean, integer, bigint) IS
    'Moves the tasks that match a filter to another queue, batch by batch; those whose key is taken there stay.';
-- CALL queue.purge_where(filter, dry_run, batch_size, tasks)
--
--   Deletes the tasks and dead letters that match the filter and are not running, without a trace in
--   the history.
--   API:      public; an operator's. Takes tasks of the operator's queues only
--   States:   queued, scheduled, waiting, failed
--   Returns:  in "tasks", how many; with "dry_run", how many there are, and nothing is done
--   Errors:   22004, 22023, 54000 for the arguments and for the filter's options; 42501 or QX002 for
--             a queue that is named
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
COMMENT ON PROCEDURE queue.purge_where(jsonb, boolean, integer, bigint) IS
    'Deletes the tasks and dead letters that match a filter, batch by batch.';
-- queue.channel(name)
--
--   The channel on which LISTEN hears that the queue has tasks to claim. The notification has no
--   payload, is a hint and nothing more, and comes at most once per "queue.notify_interval".
--   API:      public
--   Errors:   22004, 22023, 54000 for the argument

CREATE FUNCTION queue.channel(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_internal.check_name('name', name);
    -- A channel has 63 bytes at most.
    RETURN 'queue_' || CASE WHEN octet_length(name) <= 57 THEN name ELSE md5(name) END;
END
$$;
COMMENT ON FUNCTION queue.channel(text) IS
    'The channel on which LISTEN hears that a queue has tasks to claim.';
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
-- CALL queue.maintain()
--
--   One round of what the background worker does, for servers that do not preload the library:
--   puts back tasks whose lease ran out, runs the schedules that are due, unblocks what waited for a
--   predecessor or its turn, makes and drops the partitions of the history, deletes old dead letters and
--   keys. Call it every minute, from pg_cron or any other scheduler.
--   API:      public; the extension owner's, since it makes and drops tables
--   Locks:    short transactions of up to 1000 tasks each, none of which waits for a lock for longer than a second; it
--             cannot be called in a transaction
--   Bounds:   each part works for a minute at most, and leaves the rest for the next call; the search for lost events goes
--             to its end
--   In time:  the schedules that are due run first, and again after each transaction of the other parts, so that no
--             schedule waits for what others have left to do
--   Failing:  a part that fails is a WARNING and in no other's way
--   Why it has no SET clause: a procedure that commits may have none.

CREATE PROCEDURE queue.maintain()
LANGUAGE plpgsql AS $$
DECLARE
    part  pg_catalog.text;
    until pg_catalog.timestamptz;
    place queue_internal.sweep_position;
BEGIN
    -- Events are processed at this level alone, whatever the default is. Each transaction hands it to the next.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM queue_internal.maintain_part('schedules');
    COMMIT AND CHAIN;
    FOREACH part IN ARRAY ARRAY['leases', 'schedules', 'events', 'partitions', 'history', 'dead letters', 'keys'] LOOP
        -- So that what it finds is processed as well, and no lease waits for it.
        WHILE part OPERATOR(pg_catalog.=) 'events' LOOP
            place := queue_internal.maintain_sweep(place);
            COMMIT AND CHAIN;
            PERFORM queue_internal.maintain_part('schedules');
            COMMIT AND CHAIN;
            EXIT WHEN place IS NULL;
        END LOOP;
        until := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval;
        WHILE queue_internal.maintain_part(part) LOOP
            COMMIT AND CHAIN;
            IF part OPERATOR(pg_catalog.<>) 'schedules' THEN
                PERFORM queue_internal.maintain_part('schedules');
                COMMIT AND CHAIN;
            END IF;
            EXIT WHEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until;
        END LOOP;
        COMMIT AND CHAIN;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE queue.maintain() IS
    'One round of what the background worker does, for servers that do not preload the library.';

CREATE FUNCTION queue_internal.maintain_sweep(place queue_internal.sweep_position)
RETURNS queue_internal.sweep_position
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    RETURN queue_internal.sweep(place, 1000, again => false);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() is not done with the search for lost events: %', SQLERRM;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_sweep(queue_internal.sweep_position) IS
    'One transaction of the search for lost events in queue.maintain(); returns where to continue.';

CREATE FUNCTION queue_internal.maintain_part(part text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    CASE part
        WHEN 'leases' THEN RETURN (queue_internal.reap(1000)).reaped >= 1000;
        WHEN 'schedules' THEN RETURN (queue_internal.fire_schedules(1000, '30 seconds')).last IS NOT NULL;
        WHEN 'events' THEN RETURN queue_internal.process_all_events(1000) > 0;
        WHEN 'partitions' THEN PERFORM queue_internal.extend_history();
        WHEN 'history' THEN RETURN queue_internal.retire_history(1000);
        WHEN 'dead letters' THEN RETURN queue_internal.retire_dead_letters(1000);
        WHEN 'keys' THEN RETURN queue_internal.retire_keys(1000);
    END CASE;
    RETURN false;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue.maintain() is not done with the %: %', part, SQLERRM;
    RETURN false;
END
$$;
COMMENT ON FUNCTION queue_internal.maintain_part(text) IS
    'One transaction of a part of queue.maintain(); returns whether there may be more to do.';
-- queue.health(due_for, overdue_for, pinned_for, failed, held_back)
--
--   What is wrong in this database, and what to do about it: a row for each check, or one for each queue or
--   transaction that a check finds fault with.
--   API:       public; an operator's, and monitoring's
--   Arguments: due_for      how long a task may be due before its queue is not well
--              overdue_for  how long ago a lease may have run out
--              pinned_for   how long a transaction may hold back vacuum
--              failed       how many tasks of a queue may fail for good in an hour
--              held_back    how many transactions a replication slot or a standby may hold back vacuum
--              Null means the default.
--   Returns:   name: which check; status: ok, warning or critical; detail: what was found; hint: what to do,
--              null where nothing is
--   Reads:     queue.stats, queue.workers, queue.failing_schedules, queue.engine_stats(), views and catalogs of the server
--   Why nothing else: who may monitor has no right on the tables, nor in queue_internal.

CREATE FUNCTION queue.health(
    due_for     interval DEFAULT '10 minutes',
    overdue_for interval DEFAULT '1 minute',
    pinned_for  interval DEFAULT '10 minutes',
    failed      bigint   DEFAULT 10,
    held_back   bigint   DEFAULT 1000000)
RETURNS TABLE (name text, status text, detail text, hint text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- For queue.stats, of which most branches do not run: to compile them takes longer than all the rest.
SET jit = off
-- The bounds of partitions are read from text.
SET datestyle = 'ISO'
AS $$
DECLARE
    due_for     CONSTANT interval := coalesce(due_for, '10 minutes');
    overdue_for CONSTANT interval := coalesce(overdue_for, '1 minute');
    pinned_for  CONSTANT interval := coalesce(pinned_for, '10 minutes');
    failed      CONSTANT bigint := coalesce(failed, 10);
    held_back   CONSTANT bigint := coalesce(held_back, 1000000);
    moment      CONSTANT timestamptz := clock_timestamp();
    today       CONSTANT date := (moment AT TIME ZONE 'UTC')::date;
    engine      CONSTANT jsonb := queue.engine_stats();
    stats       CONSTANT queue.stats[] := ARRAY(SELECT s FROM queue.stats AS s);
    by_hand     CONSTANT text := 'Have something CALL queue.maintain() every minute meanwhile.';
BEGIN
    -- The same, but where the library or the extension is about to be upgraded.
    RETURN QUERY
    SELECT 'version', CASE WHEN v.extension = v.library THEN 'ok' ELSE 'warning' END,
           format('the extension is of version %s, the library of %s', v.extension, v.library),
           CASE WHEN v.extension <> v.library THEN
               'If the extension is older: ALTER EXTENSION queue_ext UPDATE. If the library is older: restart the server.' END
    FROM (SELECT e.extversion AS extension, coalesce(engine ->> 'version', e.extversion) AS library
          FROM pg_extension AS e WHERE e.extname = 'queue_ext') AS v;

    -- Of each of these two, the first row that matches.
    RETURN QUERY
    SELECT 'engine', f.status, f.detail, f.hint
    FROM (VALUES
        (engine ? 'edition', 'ok', format('this is the %s edition, without a library', engine ->> 'edition'), NULL),
        (engine ? 'max_lanes', 'ok', 'the library is preloaded', NULL),
        ((engine ->> 'loaded')::boolean, 'warning', 'queue.lanes is 0',
         'Everything works, more slowly. Set queue.lanes, and restart the server.'),
        (true, 'warning', 'the library is not preloaded',
         'Everything works, more slowly. Add queue_ext to shared_preload_libraries, and restart the server.')
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;

    RETURN QUERY
    SELECT 'worker', f.status, f.detail, f.hint
    FROM (VALUES
        (pg_is_in_recovery(), 'ok', 'a standby has none', NULL),
        (engine ? 'worker', 'ok', 'process ' || (engine #>> '{worker,pid}'), NULL),
        ((engine ->> 'maintained_at')::timestamptz > moment - interval '5 minutes', 'ok',
         'queue.maintain() last ran at ' || (engine ->> 'maintained_at'), NULL),
        (engine ? 'edition', 'critical',
         coalesce('queue.maintain() last ran at ' || (engine ->> 'maintained_at'), 'queue.maintain() has never run'),
         'Have pg_cron or any other scheduler CALL queue.maintain() every minute.'),
        (NOT (engine ->> 'loaded')::boolean, 'warning', 'without preloading there is none', by_hand),
        (NOT current_setting('queue.worker_enabled', true)::boolean, 'warning', 'queue.worker_enabled is off', by_hand),
        (true, 'critical', 'there is none',
         'After a crash it is back within seconds. If not, the log of the server says why; max_worker_processes '
         'may be too low. ' || by_hand)
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;

    RETURN QUERY
    SELECT 'lanes', 'warning', format('%s queues with tasks have no lane, and are served more slowly', count(*)),
           'Raise queue.lanes, and restart the server.'
    FROM unnest(stats) AS s
    WHERE s.queued + s.running > 0 AND NOT engine -> 'lanes' ? s.queue
      AND (engine #>> '{verbs,handed_over,no_lane}')::bigint > 0
    HAVING count(*) > 0;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'lanes', 'ok', 'no queue lacks one', NULL;
    END IF;

    RETURN QUERY
    SELECT 'due tasks', 'warning',
           format('queue %s: %s are due, the first for %s', to_json(s.queue), s.queued,
                  date_trunc('second', s.oldest_due_age)),
           CASE WHEN s.paused THEN format('The queue is paused: SELECT queue.resume(%L).', s.queue)
                WHEN s.running = 0 THEN 'Start workers. If there are some: a limit of the queue, or an open transaction that claimed.'
                ELSE 'Start more workers, raise a limit of the queue, or look in queue.workers for those that hang.' END
    FROM unnest(stats) AS s WHERE s.oldest_due_age > due_for ORDER BY s.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'due tasks', 'ok', format('none has been due for %s', due_for), NULL;
    END IF;

    RETURN QUERY
    SELECT 'leases', 'warning',
           format('queue %s: one of worker %s ran out %s ago, and its task was not put back', to_json(w.queue),
                  coalesce(to_json(w.worker)::text, 'without a name'), CASE WHEN isfinite(w.next_lease_until) THEN date_trunc('second', moment - w.next_lease_until) END),
           'CALL queue.maintain() puts it back. If there is a worker of the extension, the log of the server '
           'says what keeps it.'
    FROM queue.workers AS w WHERE w.next_lease_until < moment - overdue_for ORDER BY w.queue, w.worker;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'leases', 'ok', format('none ran out more than %s ago', overdue_for), NULL;
    END IF;

    -- The pause has grown to a second by then. An error may name what a task holds: it is for the owner alone.
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'queue.tasks'::regclass), 'USAGE') THEN
        RETURN QUERY SELECT 'events', 'ok', 'only the owner of the tables sees those that cannot be processed', NULL;
    ELSE
        RETURN QUERY
        SELECT 'events', 'warning',
               format('queue %s: %s cannot be unblocked: %s', to_json(e.queue),
                      CASE WHEN e.task_id IS NOT NULL THEN 'task ' || e.task_id ELSE 'group ' || to_json(e.group_key) END,
                      coalesce(e.error, 'a transaction has it locked')),
               CASE WHEN e.error IS NULL THEN 'It is tried again. Look for long transactions in pg_stat_activity.'
                    ELSE 'Remove the cause. It is tried again after ten seconds at most.' END
        FROM queue_internal.events AS e WHERE e.tries > 7 ORDER BY e.queue, e.id LIMIT 10;
        IF NOT FOUND THEN
            RETURN QUERY SELECT 'events', 'ok', 'none had to be tried for long', NULL;
        END IF;
    END IF;

    RETURN QUERY
    SELECT 'schedules', 'warning',
           format('queue %s: %s schedules could not push their last task, the first since %s', to_json(f.queue), f.schedules, f.since),
           format('They are tried again, at least once a minute. What keeps them: SELECT name, last_error FROM queue.schedules '
                  'WHERE queue = %L AND last_error IS NOT NULL.', f.queue)
    FROM queue.failing_schedules AS f WHERE f.last_error_at > moment - interval '1 hour' ORDER BY f.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'schedules', 'ok', 'each could push its last task', NULL;
    END IF;

    RETURN QUERY
    SELECT 'dead letters', 'warning',
           format('queue %s: %s tasks failed for good in the last hour; there are %s in all', to_json(s.queue),
                  s.failed_last_hour, s.dead),
           format('SELECT id, errors -> -1 FROM queue.dead_letters WHERE queue = %L. '
                  'Once the cause is gone: SELECT queue.redrive(%1$L).', s.queue)
    FROM unnest(stats) AS s WHERE s.failed_last_hour >= failed ORDER BY s.queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'dead letters', 'ok', format('no queue got %s in the last hour', failed), NULL;
    END IF;

    -- By time where there is one; slots and standbys have none, and count by transactions.
    RETURN QUERY
    SELECT 'horizon', 'warning', p.detail, p.hint
    FROM (
        SELECT format('process %s (user %s, application %s, %s) has a transaction open for %s', a.pid,
                      to_json(a.usename), to_json(a.application_name), coalesce(a.state, a.backend_type),
                      date_trunc('second', moment - a.xact_start)) AS detail,
               format('Until it ends, finished tasks are not vacuumed. SELECT pg_terminate_backend(%s) ends it.',
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
        SELECT format('replication slot %s holds it back by %s transactions', to_json(s.slot_name), age(s.xmin)),
               format('Have its standby catch up, or SELECT pg_drop_replication_slot(%L).', s.slot_name)
        FROM pg_replication_slots AS s WHERE age(s.xmin) > held_back
        UNION ALL
        SELECT format('standby %s holds it back by %s transactions', to_json(r.application_name), age(r.backend_xmin)),
               'End the old query there, or switch hot_standby_feedback off.'
        FROM pg_stat_replication AS r WHERE age(r.backend_xmin) > held_back
    ) AS p;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'horizon', 'ok', format('nobody has held back vacuum for %s', pinned_for), NULL;
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
         format('table queue.%s is not attached to queue.history, and no partition is made while it is not', h.loose),
         'A dump that is being restored will attach it. Else: ALTER TABLE queue.history ATTACH PARTITION, or DROP TABLE.'),
        (h.there, 'ok', 'the last is for ' || h.last, NULL),
        (o.whole, 'ok', format('the partition %s holds tomorrow', o.name), NULL),
        (o.name IS NOT NULL, 'warning', format('the partition %s holds only a part of tomorrow, which gets none of its own', o.name),
         'Rows of the rest go to queue.history_default. Attach partitions by hand for whole days (UTC).'),
        (h.last IS NULL, 'ok', 'nothing has finished yet', NULL),
        (true, 'warning', 'there is none for tomorrow, the last is for ' || h.last,
         'Rows without one go to queue.history_default. CALL queue.maintain() makes them, unless somebody keeps '
         'queue.history locked.')
    ) AS f (matches, status, detail, hint) WHERE f.matches LIMIT 1;
END
$$;
COMMENT ON FUNCTION queue.health(interval, interval, interval, bigint, bigint) IS
    'What is wrong in this database, and what to do about it.';
-- The entry points of the verbs.
--
--   Every verb that a role may call moves into schema queue_internal, under the same name, and an entry point in C
--   takes its place, with the same arguments. It switches to the rights of the owner for the time of the call
--   (src/rights.rs) and calls the verb, which checks the rights of its caller. Some verbs have a native form, which the
--   entry point tries first (src/verbs.rs).
--   Internal functions that procedures call as their caller get an entry point too; their SQL form is renamed to core_....
--   Functions that only the owner may call, or that read nothing but views, stay as they are.
--   Why the entry points have no SET clause: they look nothing up by name except in the extension's schemas.

DO $$
DECLARE
    native CONSTANT text[] := '{push, push_many, claim, complete, complete_many, complete_and_claim, extend}';
    verb   record;
BEGIN
    FOR verb IN
        SELECT p.oid::regprocedure AS core, p.proname AS name, n.nspname AS schema,
               format('%I.%I(%s) RETURNS %s LANGUAGE c %s PARALLEL UNSAFE', n.nspname, p.proname,
                      pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
                      CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END) AS header,
               CASE WHEN p.proretset AND p.prorows <> 1000 THEN format(' ROWS %s', p.prorows) ELSE '' END AS rows,
               pg_get_function_identity_arguments(p.oid) AS arguments, obj_description(p.oid, 'pg_proc') AS comment,
               -- Claiming from several queues is left to SQL.
               p.proname = ANY (native) AND (p.proname <> 'claim' OR p.proargtypes[1] = 'text'::regtype) AS is_native
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE p.prokind = 'f' AND (
            n.nspname = 'queue' AND p.proname !~ '^(grant_|revoke_|engine_stats$|health$)'
            OR n.nspname = 'queue_internal' AND p.proname = 'next_batch')
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

-- Until the timeline changes, every claim whose token counts is in this database's tables.
UPDATE queue_internal.token_mark
SET timeline = ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint;

-- How the lanes learn of what the native verbs did not do themselves: the core's own statements, and
-- anybody's INSERT, COPY, UPDATE and DELETE.

CREATE FUNCTION queue_internal.tasks_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'tasks_announced';
COMMENT ON FUNCTION queue_internal.tasks_announced() IS 'Tells the lanes of tasks that a statement inserted.';

CREATE TRIGGER tasks_announced AFTER INSERT ON queue.tasks
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.tasks_announced();
COMMENT ON TRIGGER tasks_announced ON queue.tasks IS 'Tells the lanes of new tasks.';

CREATE FUNCTION queue_internal.task_changed() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'task_changed';
COMMENT ON FUNCTION queue_internal.task_changed() IS 'Tells the lanes of a task that was changed or deleted.';

CREATE TRIGGER task_changed AFTER UPDATE OR DELETE ON queue.tasks
    FOR EACH ROW EXECUTE FUNCTION queue_internal.task_changed();
COMMENT ON TRIGGER task_changed ON queue.tasks IS 'Tells the lanes of changed tasks.';

CREATE FUNCTION queue_internal.event_announced() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'event_announced';
COMMENT ON FUNCTION queue_internal.event_announced() IS 'Tells the lane of a queue that there are events to process.';

CREATE TRIGGER event_announced AFTER INSERT ON queue_internal.events
    FOR EACH ROW EXECUTE FUNCTION queue_internal.event_announced();
COMMENT ON TRIGGER event_announced ON queue_internal.events IS
    'Tells the lane of a queue that there are events to process.';

-- The counters behind queue.stats, told of what the native verbs did not do.

CREATE OR REPLACE FUNCTION queue_internal.counted(queues text[])
RETURNS TABLE (
    queue text, queued bigint, behind bigint, scheduled bigint, waiting bigint, running bigint, dead bigint,
    oldest_due_at timestamptz, completed bigint, cancelled bigint, failed bigint, rate float8)
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'counted_wrapper';

CREATE FUNCTION queue_internal.history_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'history_counted';
COMMENT ON FUNCTION queue_internal.history_counted() IS 'Counts what was written to the history or deleted from it.';

CREATE TRIGGER history_counted AFTER INSERT ON queue.history
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_counted ON queue.history IS 'Counts finished tasks.';

CREATE TRIGGER history_uncounted AFTER DELETE ON queue.history
    REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.history_counted();
COMMENT ON TRIGGER history_uncounted ON queue.history IS 'Counts finished tasks no more.';

CREATE FUNCTION queue_internal.dead_letter_counted() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'dead_letter_counted';
COMMENT ON FUNCTION queue_internal.dead_letter_counted() IS 'Counts a dead letter that came or went.';

CREATE TRIGGER dead_letter_counted AFTER INSERT OR UPDATE OR DELETE ON queue.dead_letters
    FOR EACH ROW EXECUTE FUNCTION queue_internal.dead_letter_counted();
COMMENT ON TRIGGER dead_letter_counted ON queue.dead_letters IS 'Counts dead letters.';

CREATE FUNCTION queue_internal.table_emptied() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'table_emptied';
COMMENT ON FUNCTION queue_internal.table_emptied() IS 'Has everything counted anew after a TRUNCATE.';

-- Also for those who write as a replica does: what is not counted would be missing from then on.
DO $$
DECLARE
    emptied regclass;
    counts  record;
BEGIN
    FOREACH emptied IN ARRAY ARRAY['queue.tasks', 'queue.history', 'queue.dead_letters']::regclass[] LOOP
        EXECUTE format('CREATE TRIGGER table_emptied AFTER TRUNCATE ON %s
                        FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.table_emptied()', emptied);
        EXECUTE format('COMMENT ON TRIGGER table_emptied ON %s IS %L', emptied,
                       'Has everything counted anew.');
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
-- What the tables and their columns are, for \d+ and for every tool that shows comments.

COMMENT ON TABLE queue.queues IS 'The queues and their defaults. Change them with queue.configure().';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts that names no lease.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'How often a task is tried that names no number of its own.';
COMMENT ON COLUMN queue.queues.backoff_kind IS 'How the wait grows with each failure: fixed, linear, exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The wait after the first failure.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest wait.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS 'The share of a wait, 0 to 1, of which chance takes a part off.';
COMMENT ON COLUMN queue.queues.paused_at IS 'Since when nothing is claimed from the queue.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many tasks may run at a time; null for any number.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS 'How many tasks of a group may run at a time. At 1 they run in the order of their ids.';
COMMENT ON COLUMN queue.queues.rate_limit IS 'How many tasks may start in any rate_period; null for any number.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The time over which rate_limit counts.';
COMMENT ON COLUMN queue.queues.delayed_head IS
    'What the first task of a group does while it is delayed: block those behind it, or let them pass.';
COMMENT ON COLUMN queue.queues.fair_groups IS 'Whether the groups take turns, one task each.';
COMMENT ON COLUMN queue.queues.ageing IS 'How long a task has to wait to gain one step of priority; null for never.';
COMMENT ON COLUMN queue.queues.key_ttl IS 'How long a finished task keeps its key; null for not at all.';
COMMENT ON COLUMN queue.queues.on_predecessor_failure IS
    'What becomes of a task when one that it waits for fails or is cancelled: fail, cancel, continue.';
COMMENT ON COLUMN queue.queues.keep_history IS 'Whether finished tasks are kept in queue.history.';

COMMENT ON SEQUENCE queue.tasks_id_seq IS 'The ids of tasks. They have gaps and do not follow the order of commits.';
COMMENT ON TABLE queue.tasks IS
    'The tasks that are not finished. A plain INSERT or COPY of queue and payload works as a push does.';
COMMENT ON COLUMN queue.tasks.state IS 'waiting, queued or running. Scheduled is queued with run_at to come.';
COMMENT ON COLUMN queue.tasks.priority IS 'The smaller runs first.';
COMMENT ON COLUMN queue.tasks.run_at IS 'Not claimed before.';
COMMENT ON COLUMN queue.tasks.attempt IS 'How many attempts were begun.';
COMMENT ON COLUMN queue.tasks.max_attempts IS 'How many attempts are made; null for what the queue says.';
COMMENT ON COLUMN queue.tasks.token IS 'The fencing token: larger with every claim, below 2^53, and not consecutive. Only the newest one counts.';
COMMENT ON COLUMN queue.tasks.lease_until IS 'Until when the worker has the task, unless it extends the lease.';
COMMENT ON COLUMN queue.tasks.worker IS 'The name that the worker gave itself.';
COMMENT ON COLUMN queue.tasks.claimed_at IS 'When the running attempt began.';
COMMENT ON COLUMN queue.tasks.cancel_requested_at IS 'When queue.cancel() was called for the running task.';
COMMENT ON COLUMN queue.tasks.key IS 'No other live task of the queue has it.';
COMMENT ON COLUMN queue.tasks.group_key IS 'The group, of which max_running_per_group may run at a time.';
COMMENT ON COLUMN queue.tasks.gate IS
    'Admission. 0, open: a claim may take it. 1, admitted: it may, as one of its group. 2, blocked: it waits for others.';
COMMENT ON COLUMN queue.tasks.backoff IS 'How the wait grows with each failure, where the task was pushed with its own.';
COMMENT ON COLUMN queue.tasks.headers IS 'A JSON object about the task: request id, user, trace context.';
COMMENT ON COLUMN queue.tasks.payload IS 'What is to be done, as the producer wrote it.';
COMMENT ON COLUMN queue.tasks.progress IS 'What the worker last said of its progress.';
COMMENT ON COLUMN queue.tasks.errors IS
    'An array with one element for each attempt that did not succeed: attempt, at, worker, error. The first ten and the last ten.';

COMMENT ON TABLE queue.history IS 'The tasks that completed or were cancelled, a partition per day (UTC).';
COMMENT ON COLUMN queue.history.state IS 'completed or cancelled.';
COMMENT ON COLUMN queue.history.result IS 'What the worker gave to queue.complete().';
COMMENT ON TABLE queue.history_default IS 'The history of days that had no partition in time.';
COMMENT ON TABLE queue.dead_letters IS
    'The tasks that failed for good, with every error, until they are retried, redriven or purged.';
COMMENT ON TABLE queue_internal.keys IS 'Which task has a key, and until when after it finished.';
COMMENT ON TABLE queue_internal.dependencies IS 'Which task waits for which, and how those it waits for have ended.';
COMMENT ON TABLE queue_internal.outcomes IS 'How tasks ended that could not tell their dependents.';
COMMENT ON TABLE queue_internal.events IS 'Hints to look at a waiting task or at a group; processed by the next claim.';
COMMENT ON SEQUENCE queue_internal.events_id_seq IS 'The order of the events.';
COMMENT ON TABLE queue_internal.locks IS 'Rows that are only ever locked, by the transaction that admits tasks of a group; each queue has its own.';
COMMENT ON TABLE queue_internal.slots IS 'The places of queues with max_running, and the task that took each last.';
COMMENT ON TABLE queue_internal.token_mark IS
    'One row: how far tokens have been handed out, so that none is handed out twice after a crash or failover.';
COMMENT ON TABLE queue_internal.tokens IS 'The tokens of queues with a rate limit, and when those missing were taken.';
COMMENT ON TABLE queue.schedules IS 'The recurring pushes. Change them with queue.schedule() and its like.';
COMMENT ON COLUMN queue.schedules.cron IS 'The local times at which it runs, as five or six cron fields or a macro.';
COMMENT ON COLUMN queue.schedules.timezone IS 'The zone whose local times are meant, as in pg_timezone_names.';
COMMENT ON COLUMN queue.schedules.queue IS 'Where each run pushes a task.';
COMMENT ON COLUMN queue.schedules.payload IS 'The payload of each task.';
COMMENT ON COLUMN queue.schedules.options IS 'The arguments of queue.push() for each task, as far as they are given.';
COMMENT ON COLUMN queue.schedules.missed_runs IS
    'What becomes of runs that came due while nobody ran them: skip, once, all.';
COMMENT ON COLUMN queue.schedules.next_run_at IS 'When it runs next; null while it is paused.';
COMMENT ON COLUMN queue.schedules.last_run_at IS 'The time for which the last task was pushed.';
COMMENT ON COLUMN queue.schedules.paused_at IS 'Since when it does not run.';
COMMENT ON COLUMN queue.schedules.last_error IS 'Why its runs fail; null when the last one succeeded.';
COMMENT ON COLUMN queue.schedules.last_error_at IS 'When a run last failed.';
COMMENT ON TABLE queue.bindings IS
    'Which queue gets what is published under which topics. Change it with queue.bind() and queue.unbind().';
COMMENT ON COLUMN queue.bindings.topic_pattern IS 'Words and dots; * is one word, # any number of words.';
COMMENT ON COLUMN queue.bindings.topic_regex IS 'The pattern as a regular expression, for the topic with a dot before it.';
COMMENT ON TABLE queue.rights IS 'Which role may do what. Change it with queue.grant_producer() and its like.';
COMMENT ON COLUMN queue.rights.queue IS 'The queue that the right is for; null for all.';
COMMENT ON TYPE queue.claimed_task IS 'What a claim hands out: a task and the token of its lease.';
-- What pg_dump must save although the tables belong to the extension. The partitions of the days
-- are made later, belong to nobody but their table, and are dumped as they are.

SELECT pg_catalog.pg_extension_config_dump('queue.queues', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks', '');
SELECT pg_catalog.pg_extension_config_dump('queue.tasks_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('queue.history_default', '');
SELECT pg_catalog.pg_extension_config_dump('queue.dead_letters', '');
SELECT pg_catalog.pg_extension_config_dump('queue.schedules', '');
SELECT pg_catalog.pg_extension_config_dump('queue.bindings', '');
-- Without the rights of roles that were dropped: elsewhere their numbers may be those of other roles.
SELECT pg_catalog.pg_extension_config_dump(
    'queue.rights', 'WHERE role::pg_catalog.oid IN (SELECT r.oid FROM pg_catalog.pg_roles AS r)');
-- No events: the sweep leaves new ones.
SELECT pg_catalog.pg_extension_config_dump('queue_internal.keys', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.outcomes', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.slots', '');
SELECT pg_catalog.pg_extension_config_dump('queue_internal.tokens', '');
-- The last word of the script: nothing is for everybody. Rights are given by queue.grant_producer,
-- grant_worker and grant_operator; the views without payloads are for monitoring.

REVOKE ALL ON ALL ROUTINES IN SCHEMA queue, queue_internal FROM PUBLIC;
REVOKE ALL ON TYPE queue.claimed_task, queue_internal.passed_level FROM PUBLIC;
-- Where default privileges open new tables: a partition is read through queue.history, which has policies.
ALTER TABLE queue.history_default ENABLE ROW LEVEL SECURITY;
GRANT USAGE ON SCHEMA queue TO pg_monitor;
GRANT SELECT ON queue.stats, queue.workers, queue.failing_schedules TO pg_monitor;
GRANT EXECUTE ON FUNCTION queue.engine_stats(), queue.health(interval, interval, interval, bigint, bigint) TO pg_monitor;
-- A function in a view or a policy is called with the privileges of the role that reads. These answer about the
-- rights of that role alone, and count only its queues.
GRANT EXECUTE ON FUNCTION queue_internal.has_right(text, text), queue_internal.queues_with_right(text),
    queue_internal.caller(), queue_internal.counted(text[]) TO PUBLIC;
-- Run as the owner for whoever inserts. Nobody else may attach them to a table.
ALTER FUNCTION queue_internal.task_arrives() SECURITY DEFINER;
ALTER FUNCTION queue_internal.tasks_inserted() SECURITY DEFINER;
