//! The table of contents of the extension's SQL: every file, in order. The Makefile reads the install
//! script off this list, and `cargo pgrx schema` makes the same of it: each file requires the one
//! before it.

use pgrx::extension_sql_file;

extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
extension_sql_file!("../sql/tables.sql", name = "tables", requires = ["schema"]);
extension_sql_file!("../sql/indexes.sql", name = "indexes", requires = ["tables"]);

// What the library brings.
extension_sql_file!("../sql/engine.sql", name = "engine", requires = ["indexes"]);

// What the verbs are made of.
extension_sql_file!("../sql/internal/setting.sql", name = "internal_setting", requires = ["engine"]);
extension_sql_file!("../sql/internal/errors.sql", name = "internal_errors", requires = ["internal_setting"]);
extension_sql_file!(
    "../sql/internal/state_of.sql",
    name = "internal_state_of",
    requires = ["internal_errors"]
);
extension_sql_file!("../sql/internal/checks.sql", name = "internal_checks", requires = ["internal_state_of"]);
extension_sql_file!(
    "../sql/internal/task_options.sql",
    name = "internal_task_options",
    requires = ["internal_checks"]
);
extension_sql_file!(
    "../sql/internal/task_arrives.sql",
    name = "internal_task_arrives",
    requires = ["internal_task_options"]
);
extension_sql_file!(
    "../sql/internal/topics.sql",
    name = "internal_topics",
    requires = ["internal_task_arrives"]
);
extension_sql_file!(
    "../sql/internal/tasks_inserted.sql",
    name = "internal_tasks_inserted",
    requires = ["internal_topics"]
);
extension_sql_file!(
    "../sql/internal/restore_default_queue.sql",
    name = "internal_restore_default_queue",
    requires = ["internal_tasks_inserted"]
);
extension_sql_file!(
    "../sql/internal/backoff.sql",
    name = "internal_backoff",
    requires = ["internal_restore_default_queue"]
);
extension_sql_file!("../sql/internal/keys.sql", name = "internal_keys", requires = ["internal_backoff"]);
extension_sql_file!("../sql/internal/groups.sql", name = "internal_groups", requires = ["internal_keys"]);
extension_sql_file!(
    "../sql/internal/dependencies.sql",
    name = "internal_dependencies",
    requires = ["internal_groups"]
);
extension_sql_file!(
    "../sql/internal/events.sql",
    name = "internal_events",
    requires = ["internal_dependencies"]
);
extension_sql_file!("../sql/internal/sweep.sql", name = "internal_sweep", requires = ["internal_events"]);
extension_sql_file!("../sql/internal/limits.sql", name = "internal_limits", requires = ["internal_sweep"]);
extension_sql_file!("../sql/internal/ageing.sql", name = "internal_ageing", requires = ["internal_limits"]);
extension_sql_file!("../sql/internal/endings.sql", name = "internal_endings", requires = ["internal_ageing"]);
extension_sql_file!(
    "../sql/internal/leased_task.sql",
    name = "internal_leased_task",
    requires = ["internal_endings"]
);
extension_sql_file!(
    "../sql/internal/open_queue.sql",
    name = "internal_open_queue",
    requires = ["internal_leased_task"]
);
extension_sql_file!("../sql/internal/mark.sql", name = "internal_mark", requires = ["internal_open_queue"]);
extension_sql_file!(
    "../sql/internal/claim_from.sql",
    name = "internal_claim_from",
    requires = ["internal_mark"]
);
extension_sql_file!(
    "../sql/internal/first_ready.sql",
    name = "internal_first_ready",
    requires = ["internal_claim_from"]
);
extension_sql_file!(
    "../sql/internal/expire.sql",
    name = "internal_expire",
    requires = ["internal_first_ready"]
);
extension_sql_file!("../sql/internal/reap.sql", name = "internal_reap", requires = ["internal_expire"]);
extension_sql_file!(
    "../sql/internal/due_queues.sql",
    name = "internal_due_queues",
    requires = ["internal_reap"]
);
extension_sql_file!(
    "../sql/internal/extend_history.sql",
    name = "internal_extend_history",
    requires = ["internal_due_queues"]
);
extension_sql_file!(
    "../sql/internal/retire_history.sql",
    name = "internal_retire_history",
    requires = ["internal_extend_history"]
);
extension_sql_file!(
    "../sql/internal/retire_dead_letters.sql",
    name = "internal_retire_dead_letters",
    requires = ["internal_retire_history"]
);
extension_sql_file!(
    "../sql/internal/apply_options.sql",
    name = "internal_apply_options",
    requires = ["internal_retire_dead_letters"]
);
extension_sql_file!(
    "../sql/internal/schedule_options.sql",
    name = "internal_schedule_options",
    requires = ["internal_apply_options"]
);
extension_sql_file!(
    "../sql/internal/next_run.sql",
    name = "internal_next_run",
    requires = ["internal_schedule_options"]
);
extension_sql_file!(
    "../sql/internal/fire_schedules.sql",
    name = "internal_fire_schedules",
    requires = ["internal_next_run"]
);
extension_sql_file!(
    "../sql/internal/filter.sql",
    name = "internal_filter",
    requires = ["internal_fire_schedules"]
);
extension_sql_file!(
    "../sql/internal/in_batches.sql",
    name = "internal_in_batches",
    requires = ["internal_filter"]
);
extension_sql_file!(
    "../sql/internal/rights.sql",
    name = "internal_rights",
    requires = ["internal_in_batches"]
);

// For people and for monitoring.
extension_sql_file!(
    "../sql/internal/ended_since.sql",
    name = "internal_ended_since",
    requires = ["internal_rights"]
);
extension_sql_file!(
    "../sql/internal/counted.sql",
    name = "internal_counted",
    requires = ["internal_ended_since"]
);
extension_sql_file!("../sql/views.sql", name = "views", requires = ["internal_counted"]);

// The verbs.
extension_sql_file!("../sql/functions/push.sql", name = "push", requires = ["views"]);
extension_sql_file!("../sql/functions/push_many.sql", name = "push_many", requires = ["push"]);
extension_sql_file!("../sql/functions/publish.sql", name = "publish", requires = ["push_many"]);
extension_sql_file!("../sql/functions/claim.sql", name = "claim", requires = ["publish"]);
extension_sql_file!("../sql/functions/complete.sql", name = "complete", requires = ["claim"]);
extension_sql_file!("../sql/functions/complete_many.sql", name = "complete_many", requires = ["complete"]);
extension_sql_file!(
    "../sql/functions/complete_and_claim.sql",
    name = "complete_and_claim",
    requires = ["complete_many"]
);
extension_sql_file!("../sql/functions/fail.sql", name = "fail", requires = ["complete_and_claim"]);
extension_sql_file!("../sql/functions/release.sql", name = "release", requires = ["fail"]);
extension_sql_file!("../sql/functions/extend_many.sql", name = "extend_many", requires = ["release"]);
extension_sql_file!("../sql/functions/extend.sql", name = "extend", requires = ["extend_many"]);
extension_sql_file!("../sql/functions/cancelled.sql", name = "cancelled", requires = ["extend"]);
extension_sql_file!("../sql/functions/cancel.sql", name = "cancel", requires = ["cancelled"]);
extension_sql_file!("../sql/functions/end_lease.sql", name = "end_lease", requires = ["cancel"]);
extension_sql_file!("../sql/functions/retry.sql", name = "retry", requires = ["end_lease"]);
extension_sql_file!("../sql/functions/redrive.sql", name = "redrive", requires = ["retry"]);
extension_sql_file!("../sql/functions/reap.sql", name = "reap", requires = ["redrive"]);
extension_sql_file!("../sql/functions/get.sql", name = "get", requires = ["reap"]);
extension_sql_file!("../sql/internal/waiting.sql", name = "internal_waiting", requires = ["get"]);
extension_sql_file!(
    "../sql/functions/wait_result.sql",
    name = "wait_result",
    requires = ["internal_waiting"]
);
extension_sql_file!("../sql/functions/wait.sql", name = "wait", requires = ["wait_result"]);
extension_sql_file!("../sql/functions/create.sql", name = "create", requires = ["wait"]);
extension_sql_file!("../sql/functions/configure.sql", name = "configure", requires = ["create"]);
extension_sql_file!("../sql/functions/drop.sql", name = "drop", requires = ["configure"]);
extension_sql_file!("../sql/functions/bind.sql", name = "bind", requires = ["drop"]);
extension_sql_file!("../sql/functions/unbind.sql", name = "unbind", requires = ["bind"]);
extension_sql_file!("../sql/functions/pause.sql", name = "pause", requires = ["unbind"]);
extension_sql_file!("../sql/functions/resume.sql", name = "resume", requires = ["pause"]);
extension_sql_file!("../sql/functions/purge.sql", name = "purge", requires = ["resume"]);
extension_sql_file!("../sql/functions/schedule.sql", name = "schedule", requires = ["purge"]);
extension_sql_file!("../sql/functions/unschedule.sql", name = "unschedule", requires = ["schedule"]);
extension_sql_file!(
    "../sql/functions/pause_schedule.sql",
    name = "pause_schedule",
    requires = ["unschedule"]
);
extension_sql_file!(
    "../sql/functions/resume_schedule.sql",
    name = "resume_schedule",
    requires = ["pause_schedule"]
);
extension_sql_file!(
    "../sql/functions/run_schedule.sql",
    name = "run_schedule",
    requires = ["resume_schedule"]
);
extension_sql_file!(
    "../sql/functions/run_schedules.sql",
    name = "run_schedules",
    requires = ["run_schedule"]
);
extension_sql_file!(
    "../sql/functions/schedule_preview.sql",
    name = "schedule_preview",
    requires = ["run_schedules"]
);
extension_sql_file!(
    "../sql/functions/cancel_where.sql",
    name = "cancel_where",
    requires = ["schedule_preview"]
);
extension_sql_file!("../sql/functions/retry_where.sql", name = "retry_where", requires = ["cancel_where"]);
extension_sql_file!("../sql/functions/redrive_where.sql", name = "redrive_where", requires = ["retry_where"]);
extension_sql_file!(
    "../sql/functions/reprioritise_where.sql",
    name = "reprioritise_where",
    requires = ["redrive_where"]
);
extension_sql_file!(
    "../sql/functions/move_where.sql",
    name = "move_where",
    requires = ["reprioritise_where"]
);
extension_sql_file!("../sql/functions/purge_where.sql", name = "purge_where", requires = ["move_where"]);
extension_sql_file!("../sql/functions/channel.sql", name = "channel", requires = ["purge_where"]);
extension_sql_file!("../sql/functions/grant.sql", name = "grant", requires = ["channel"]);
extension_sql_file!("../sql/functions/maintain.sql", name = "maintain", requires = ["grant"]);
extension_sql_file!("../sql/functions/health.sql", name = "health", requires = ["maintain"]);

// What the library serves natively.
extension_sql_file!("../sql/native.sql", name = "native", requires = ["health"]);

// About all of it.
extension_sql_file!("../sql/comments.sql", name = "comments", requires = ["native"]);
extension_sql_file!("../sql/config_dump.sql", name = "config_dump", requires = ["comments"]);
extension_sql_file!("../sql/grants.sql", name = "grants", finalize);
