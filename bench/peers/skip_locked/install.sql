-- A queue built by hand as in many articles: a table, a partial index on queued tasks, SKIP LOCKED.
CREATE TABLE jobs (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state       text        NOT NULL DEFAULT 'queued',
    priority    integer     NOT NULL DEFAULT 0,
    run_at      timestamptz NOT NULL DEFAULT now(),
    payload     jsonb       NOT NULL,
    attempts    integer     NOT NULL DEFAULT 0,
    started_at  timestamptz,
    finished_at timestamptz
);
CREATE INDEX jobs_ready ON jobs (priority, run_at, id) WHERE state = 'queued';
