//! Mutants: the SQL implementation with one promise broken, and the check that reports it.
//!
//! Functions in SQL are changed in the test's own database, with the native fast path off. tests/lanes.rs covers the
//! lanes, except for one mutant of the library.

use std::time::Duration;

use super::{options, play};
use queue_ext_tests::brief;
use queue_ext_tests::torture::campaign::Options;
use queue_ext_tests::torture::campaigns::named;

const ROUND: Duration = Duration::from_millis(1500);
/// The longest search for a violation, which ends with the first one. A lost claim leads to a repeated token in about
/// one crash of three, and 20 s are only five crashes.
const PATIENCE: Duration = Duration::from_secs(300);
const TRIES: usize = 5;

const BY_SQL: &str = "ALTER DATABASE postgres SET queue.fast_path = off;";
/// Replaces a piece of a function; fails if it is not there.
const MUTATE: &str = "
CREATE FUNCTION pg_temp.mutate(function regproc, old text, new text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    definition text := pg_get_functiondef(function);
BEGIN
    ASSERT position(old IN definition) > 0, 'there is no such text in ' || function;
    EXECUTE replace(definition, old, new);
END
$$;";

/// Breaks a function, with the native fast path off, and expects a violation of one of these checks.
fn seen(name: &str, campaign: &str, mutant: &str, invariants: &str) {
    seen_natively(name, campaign, &format!("{BY_SQL}{mutant}"), invariants);
}

/// The same with the native fast path, which leaves tasks with dependencies to SQL. Drains in SQL would sweep.
fn seen_natively(name: &str, campaign: &str, mutant: &str, invariants: &str) {
    if brief() {
        return;
    }
    // Another check may notice it first, which ends the campaign. Then it is played again.
    let mut others = Vec::new();
    while others.len() < TRIES {
        let verdict = play(campaign, name, ROUND, PATIENCE, &format!("{MUTATE}{mutant}"));
        let found: Vec<_> = verdict.violations.iter().map(|violation| violation.invariant).collect();
        if invariants.split(' ').any(|invariant| found.contains(&invariant)) {
            return;
        }
        assert!(!found.is_empty(), "{name}: {invariants} expected, found nothing after {others:?}");
        others.push(found);
    }
    panic!("{name}: {invariants} expected, found {others:?}");
}

/// The same load with nothing broken, so that violations come from the mutants.
#[test]
fn the_unbroken_sql_implementation_passes() {
    let verdict = play("quiet", "core", ROUND, Duration::ZERO, &format!("{MUTATE}{BY_SQL}"));
    assert!(verdict.violations.is_empty(), "{verdict}");
}

macro_rules! mutants {
    ($seen:ident: $($(#[$what:meta])* $name:ident: $campaign:literal, $mutant:expr, $invariants:literal;)*) => { $(
        $(#[$what])*
        #[test]
        fn $name() {
            $seen(stringify!($name), $campaign, $mutant, $invariants);
        }
    )* };
}

mutants! { seen:
    /// Complete does not check the token: a stale one is accepted, or ends the task with a token that is not its own.
    stale_completions: "quiet",
        "SELECT pg_temp.mutate('queue_internal.complete', 'AND t.token = complete.token AND t.state = ''running''', '')",
        "I7 I12";
    /// Complete keeps the task in the queue.
    two_completions: "quiet",
        "SELECT pg_temp.mutate('queue_internal.complete', 'DELETE FROM queue.tasks AS t',
                               'UPDATE queue.tasks AS t SET state = ''queued'', lease_until = NULL')",
        "I12";
    /// Extend does not check the token: a stale one is accepted, or makes the lease of another worker shorter.
    stale_extensions: "quiet",
        "SELECT pg_temp.mutate('queue_internal.extend_many', 'WHERE t.id = g.id AND t.token = g.token', 'WHERE t.id = g.id')",
        "I5 I7";
    /// A claim takes leased tasks.
    leases_ignored: "quiet",
        "SELECT pg_temp.mutate('queue_internal.claim_from', 'AND t.lease_until <= moment', ''),
                pg_temp.mutate('queue_internal.end_expired', 'AND t.lease_until <= clock_timestamp()', '')",
        "I5";
    /// The token does not grow.
    token_stands_still: "quiet",
        "SELECT pg_temp.mutate('queue_internal.claim_from', 'token = new_token,', '')",
        "I6";
    /// A limit is miscounted: a claim with one free slot starts all its tasks.
    limit_counted_wrong: "quiet",
        "SELECT pg_temp.mutate('queue_internal.claim_from', 'EXIT walk WHEN started IS NULL;',
                               'started := coalesce(started, clock_timestamp());')",
        "limits";
    /// A task of a group does not wait for its turn.
    turns_ignored: "quiet",
        "SELECT pg_temp.mutate('queue_internal.task_arrives', 'THEN 0 ELSE 2 END', 'THEN 0 ELSE 1 END')",
        "I8";
    /// A key that is taken is taken again.
    keys_ignored: "quiet",
        "SELECT pg_temp.mutate('queue_internal.take_key', 'RETURN false', 'RETURN true')",
        "I9";
    /// A requeued task is deleted.
    given_back_and_dropped: "quiet",
        "SELECT pg_temp.mutate('queue_internal.requeue', 'UPDATE queue.tasks AS t',
                               'DELETE FROM queue.tasks AS t WHERE t.id = task.id; UPDATE queue.tasks AS t')",
        "I1";
    /// One completion in twenty leaves nothing.
    completions_lost: "quiet",
        "SELECT pg_temp.mutate('queue_internal.complete', E'FROM ended AS e\\n    )',
                               E'FROM ended AS e WHERE e.id % 20 > 0\\n    )')",
        "I12";
    /// A claim leases one task more than it returns.
    leased_and_not_told: "quiet",
        "SELECT pg_temp.mutate(
             'queue_internal.claim(interval, text, integer, text)'::regprocedure::oid::regproc,
             'GET DIAGNOSTICS found = ROW_COUNT;',
             'GET DIAGNOSTICS found = ROW_COUNT;
              PERFORM queue_internal.claim_from(queue_internal.open_queue(queue, ''worker''), lease, 1, worker, begun);')",
        "I11";
    /// No session ends expired leases.
    leases_never_end: "quiet",
        "SELECT pg_temp.mutate('queue_internal.claim_from', 't.state = ''running'' AND t.lease_until <= moment', 'false'),
                pg_temp.mutate('queue_internal.reap(bigint, bigint, integer)'::regprocedure::oid::regproc, 't.lease_until <= moment', 'false'),
                pg_temp.mutate('queue_internal.end_expired', 't.lease_until <= clock_timestamp()', 'false')",
        "I13";
    /// A COMMIT returns before it is durable: a crash loses a push, an end, or a claim, whose token comes again.
    acknowledged_too_early: "crash",
        "ALTER DATABASE postgres SET synchronous_commit = off",
        "I1 I4 I6 I12";
    /// A claim starts a task after its start deadline.
    deadlines_ignored: "quiet",
        // They are not ended before a claim can find them.
        "SELECT pg_temp.mutate('queue_internal.claim_from', 'start_by <= ', 'start_by < ''-infinity'' AND now() <= '),
                pg_temp.mutate('queue_internal.expire_unstarted', 't.start_by <= until', 'false')",
        "I18";
    /// A task that was started and is to be retried expires.
    started_and_expired: "quiet",
        "SELECT pg_temp.mutate('queue_internal.expire_unstarted', 'AND t.token = 0', ''),
                pg_temp.mutate('queue_internal.end_expired', 'AND t.token = 0', '')",
        "I18";
    /// A callback is queued when the tasks so far have ended, although its batch is not sealed.
    batches_not_sealed: "quiet",
        "SELECT pg_temp.mutate('queue_internal.process_dependent', 'AND batch.sealed_at IS NULL', 'AND false'),
                pg_temp.mutate('queue_internal.process_batch', 'AND b.sealed_at IS NOT NULL', '')",
        "I19";
    /// A callback is queued when one task of its batch has ended.
    first_of_batch_suffices: "quiet",
        "SELECT pg_temp.mutate('queue_internal.process_dependent',
             'OR waits', 'OR batch.task_id IS NULL AND waits'),
                pg_temp.mutate('queue_internal.process_batch', 'ELSIF EXISTS', 'ELSIF false AND EXISTS'),
                pg_temp.mutate('queue_internal.process_batch', '< batch.members', '< 0')",
        "I19";
    /// A batch counts the completed tasks twice.
    batches_counted_wrong: "quiet",
        "SELECT pg_temp.mutate('queue_internal.process_batch', 'b.completed + t.completed', 'b.completed + 2 * t.completed')",
        "I19";
    /// A step returns the value that it was given, and not the first one.
    steps_repeated: "quiet",
        "SELECT pg_temp.mutate('queue_internal.step', 'RETURN earlier.value', 'RETURN value')",
        "I20";
    /// A step is not stored.
    steps_lost: "quiet",
        "SELECT pg_temp.mutate('queue_internal.step', 'PERFORM queue_internal.store_step(id, ''step'', name, value);', '')",
        "I20";
    /// A step is stored with a stale token.
    stale_steps: "quiet",
        "SELECT pg_temp.mutate('queue_internal.step', 'PERFORM queue.assert_lease(id, token);', '')",
        "I7";
    /// A lease reaches beyond the timeout of the attempt.
    leases_beyond_the_timeout: "quiet",
        "SELECT pg_temp.mutate('queue_internal.claim_from', 'least(started + leased, queue_internal.timeout_at(',
                               'greatest(started + leased, queue_internal.timeout_at(')",
        "I21";
    /// A heartbeat extends the lease beyond the timeout of the attempt.
    extended_beyond_the_timeout: "quiet",
        "SELECT pg_temp.mutate('queue_internal.extend_many', 'SET lease_until = least(', 'SET lease_until = greatest(')",
        "I21";
    /// An attempt that has timed out is taken for one whose worker has died, and is retried without its backoff.
    timeouts_taken_for_lost_leases: "quiet",
        "SELECT pg_temp.mutate('queue_internal.has_timed_out', 'RETURN coalesce(', 'RETURN false AND coalesce(')",
        "I21";
    /// A completion is accepted after the end of its attempt was recorded, until the task is claimed again.
    completed_after_the_timeout: "quiet",
        "SELECT pg_temp.mutate('queue_internal.complete', 'AND t.token = complete.token AND t.state = ''running''',
                               'AND t.token = complete.token')",
        "I21 I7";
    /// A task that was sent to sleep is due at once.
    sleeps_end_at_once: "quiet",
        "SELECT pg_temp.mutate('queue_internal.suspend', 'task.run_at := until', 'task.run_at := clock_timestamp()')",
        "I22";
    /// The time of a named sleep starts anew with each call.
    sleeps_begin_anew: "quiet",
        "SELECT pg_temp.mutate('queue_internal.sleep(bigint, bigint, text, interval)'::regprocedure::oid::regproc,
                               'IF earlier.stored THEN', 'IF false THEN')",
        "I22";
    /// A start counts as one against the rate limit of the queue, whatever it weighs.
    weights_ignored: "metered",
        "SELECT pg_temp.mutate('queue_internal.claim_from', 'new_token, candidate.weight,', 'new_token, 1,')",
        "I23";
    /// A start counts as one against the rate limit of its group, whatever it weighs.
    weights_ignored_in_groups: "metered",
        "SELECT pg_temp.mutate('queue_internal.record_group_start', 'started, task.id, task.weight, back', 'started, task.id, 1, back')",
        "I23";
    /// Tasks of a group that are admitted and not started yet do not count against its rate limit.
    admitted_weights_ignored: "metered",
        "SELECT pg_temp.mutate('queue_internal.admitted_of', 'sum(least(t.weight, source.group_rate_limit))', '0 * sum(t.weight)')",
        "I23";
    /// The statistics count everything twice.
    statistics_doubled: "quiet",
        "ALTER VIEW queue.stats RENAME TO honest_stats;
         CREATE VIEW queue.stats AS SELECT queue, queued, blocked, scheduled, waiting, running, 2 * dead AS dead
         FROM queue.honest_stats",
        "I10";
}

// These are noticed only by clients that push tasks with predecessors and claim in the same transaction, replace
// tasks, or have synchronous_commit = off.
mutants! { seen_natively:
    /// A task is unblocked by the first of its predecessors that ends.
    first_predecessor_suffices: "quiet",
        "SELECT pg_temp.mutate('queue_internal.process_dependent',
             'queue_internal.waits_for_another(task.id)', 'false')",
        "I16";
    /// A predecessor that failed counts as done.
    failures_of_predecessors_ignored: "quiet",
        "SELECT pg_temp.mutate('queue_internal.process_dependent', '{failed, cancelled, purged}', '{purged}')",
        "I16";
    /// A push does not wait for the end of a predecessor, nor that for the push. It dawdles, so that such an end comes soon.
    predecessors_not_locked: "crowded",
        "SELECT pg_temp.mutate('queue_internal.lock_before_push', 'FOR KEY SHARE', ''),
                pg_temp.mutate('queue_internal.add_dependencies', 'IF cardinality(live) = known THEN',
                               'IF cardinality(live) = known THEN PERFORM pg_sleep(0.02);')",
        "I17";
    /// A task that waits no longer does not ask for its turn in its group.
    turn_not_asked_for: "quiet",
        "SELECT pg_temp.mutate('queue_internal.unblock', 'IF task.group_key IS NOT NULL', 'IF false')",
        "I13 I17";
    /// A finished task keeps its key.
    keys_kept: "quiet",
        "SELECT pg_temp.mutate('queue_internal.release_key', 'DELETE FROM queue_internal.keys AS k', 'PERFORM FROM queue_internal.keys AS k')",
        "I17";
    /// A task that was replaced while it ran is tried again, beside the one that waits for its end.
    replaced_and_tried_again: "crowded",
        "SELECT pg_temp.mutate('queue_internal.is_replaced', 'RETURN EXISTS (', 'RETURN false AND EXISTS (')",
        "I9 I17";
}

mutants! { seen:
    /// After a crash tokens continue from the rows, although a lost claim issued a larger one.
    tokens_go_on_from_the_rows: "forgetful",
        "ALTER DATABASE postgres SET queue.durable_leases = off;
         SELECT pg_temp.mutate('queue_internal.claim_from', 'greatest(candidate.token + 1, base)', 'candidate.token + 1')",
        "I6";
}

/// A rollback does not return the candidates of its claims to the lane: the tasks exist, and no claim gets them. The
/// library with fault injection does that on request.
#[test]
fn rollbacks_forget() {
    let Ok(folder) = std::env::var("INJECTION") else {
        println!("skipped: the library with faults is there for the first version alone (make injection)");
        return;
    };
    let verdict = named("quiet").play(&Options {
        settings: format!("dynamic_library_path = '{folder}:$libdir'"),
        mutant: "ALTER DATABASE postgres SET queue.fault = 'forget'".into(),
        ..options("forget", ROUND, PATIENCE)
    });
    let found: Vec<_> = verdict.violations.iter().map(|violation| violation.invariant).collect();
    assert!(found.contains(&"I13"), "I13 expected, found {found:?}");
}

/// A push is there before its transaction has committed, and stays if it does not. The server needs
/// dblink for this mutant.
#[test]
fn published_before_the_commit() {
    if !queue_ext_tests::cluster::has_extension("dblink") {
        return;
    }
    let mutant = "
        CREATE EXTENSION dblink;
        SELECT pg_temp.mutate('queue_internal.push', 'IF key IS NULL AND after IS NULL AND batch IS NULL THEN', $$
            IF key IS NULL AND after IS NULL AND batch IS NULL AND group_key IS NULL AND start_by IS NULL AND timeout IS NULL THEN
                SELECT d.id INTO id FROM public.dblink(
                    format('host=%s user=postgres dbname=postgres', current_setting('unix_socket_directories')),
                    format('INSERT INTO queue.tasks (queue, payload) VALUES (%L, %L) RETURNING id', queue, payload))
                    AS d (id bigint);
                RETURN id;
            ELSIF key IS NULL AND after IS NULL AND batch IS NULL THEN$$)";
    seen("published_before_the_commit", "quiet", mutant, "I11");
}
