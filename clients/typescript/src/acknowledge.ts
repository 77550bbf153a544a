// Reports how attempts ended. Whatever has gathered while the previous report was under way goes together, so there is
// nothing to wait for when little is going on, and few statements when a lot is.

import { Connection, backoff, describe, isConnectionLost, isRefused, sqlState, summary } from "./connection.js";
import type { Logger, Outages } from "./connection.js";
import { failed, inAscii } from "./outcomes.js";
import type { Outcome } from "./outcomes.js";
import { arrayText } from "./sql.js";
import type { Row, Statement } from "./sql.js";
import { isLeaseLost } from "./task.js";
import type { Task } from "./task.js";

export interface Ended {
  task: Task;
  outcome: Outcome;
  /** Whether the server did not take it, and it was postponed. That is logged once. */
  late?: boolean;
}

/** The SQLSTATE of a statement that has waited too long for a lock, and how long that is: of many reports, and of one that
 *  may be the reason. */
const LOCKED = "55P03";
const LOCK_TIMEOUT = "1s";
const LOCK_TIMEOUT_ALONE = "50ms";
const LARGEST_BATCH = 1000;
/** How many statements may fail in a row, for other reasons than what they contain, until the rest is sent later. */
const MOST_IN_VAIN = 50;
/** About how many characters one statement has at most, unless a single report is longer. */
const LARGEST_STATEMENT = 8_000_000;
/** A shorter report is not what makes a statement too slow. */
const LARGE_REPORT = 64_000;

export class Acknowledger {
  #waiting: Ended[] = [];
  #count = 0;
  #busy = false;
  #inVain = 0;
  /** Called when some ends are acknowledged. */
  #progressed = () => {};
  readonly #abandoned = new AbortController();

  constructor(
    private readonly connection: Connection, private readonly outages: Outages, private readonly logger: Logger,
    /** Called with the tasks whose ends are acknowledged. */
    private readonly done: (tasks: Task[]) => void,
  ) {}

  /** How many ends are not acknowledged yet. */
  get count(): number {
    return this.#count;
  }

  add(task: Task, outcome: Outcome): void {
    this.#count++;
    this.#enqueue({ task, outcome });
  }

  /** Returns when all are acknowledged. */
  async flush(): Promise<void> {
    while (this.#count > 0) await new Promise<void>((resolve) => { this.#progressed = resolve; });
  }

  /** Gives up what could not be reported. The leases of these tasks will expire. */
  abandon(): void {
    this.#abandoned.abort();
  }

  #enqueue(ended: Ended): void {
    this.#waiting.push(ended);
    if (!this.#busy) void this.#run();
  }

  async #run(): Promise<void> {
    this.#busy = true;
    await null; // Handlers that end in the same turn of the event loop go together.
    while (this.#waiting.length > 0) {
      this.#inVain = 0;
      for (const group of groups(this.#next())) await this.#send(group);
    }
    this.#busy = false;
  }

  /** Two attempts of one task must not share a statement, whose answer names the task alone. */
  #next(): Ended[] {
    const ids = new Set<string>();
    let length = 0;
    for (const ended of this.#waiting) {
      length += lengthOf(ended);
      if (ids.size === LARGEST_BATCH || ids.has(ended.task.id) || (ids.size > 0 && length > LARGEST_STATEMENT)) break;
      ids.add(ended.task.id);
    }
    return this.#waiting.splice(0, ids.size);
  }

  /** Reports a group. If the server does not take it, it is halved until the report at fault is alone. `repeated` says
   *  that an earlier try may have succeeded, because its answer was lost. */
  async #send(group: Ended[], repeated = false): Promise<void> {
    let tries = 0;
    for (let attempt = 0; !this.#abandoned.signal.aborted; attempt++) {
      try {
        const accepted = await this.#report(group);
        this.outages.worked("acknowledgement");
        this.#inVain = 0;
        return this.#finish(group, accepted, repeated);
      } catch (error) {
        // The other functions leave out a task whose lease is lost. From them it is the error of a trigger of the user's.
        if (isLeaseLost(error) && group[0]!.outcome.verb === "confirm_cancel") return this.#finish(group, new Set(), repeated);
        const code = sqlState(error) ?? "";
        const lost = isConnectionLost(error);
        const { sent } = this.connection; // An error of the login says nothing about the report.
        if (lost && sent) repeated = true;
        if (sent) tries++;
        // A RangeError means that a text is too long for JavaScript. Other errors than these are faults of the server.
        const refused = error instanceof RangeError || (sent && isRefused(error));
        // Something that the statement needs. It is missing for all reports, or for a trigger of the user's on one of them.
        const needed = /^(25|3F|40|42|53(?!200)|55|58)/.test(code) || (!lost && /^(08|57P)/.test(code));
        const late = group.every((ended) => ended.late);
        // One report can be the reason. It must not delay the others.
        const suspect = sent && (lost ? code === "08P01" || tries > 1
          : /^(57014|53200|55P03)$/.test(code) || (needed ? tries > 1 || late : !/^57/.test(code)));
        if (refused && sent) this.outages.worked("acknowledgement");
        const [single] = group as [Ended];
        if (sent && !lost && !refused && code !== LOCKED && ++this.#inVain >= MOST_IN_VAIN) {
          // The server probably takes none. These come before those that were tried.
          this.outages.failed("acknowledgement", summary(error));
          for (const ended of group) {
            ended.late = true;
            this.#postpone(ended, 500);
          }
          return;
        }
        if (refused || suspect) {
          if (group.length > 1) {
            // The tasks of a group that are locked wait alone. For all else, the one that is at fault is searched for.
            const size = code === LOCKED ? 1 : (group.length + 1) >> 1;
            for (let start = 0; start < group.length; start += size) {
              await this.#send(group.slice(start, start + size), repeated);
            }
            return;
          }
          // A lost connection is more likely an outage, unless the report is very long.
          const large = !needed && lengthOf(single) > (lost ? LARGEST_STATEMENT : LARGE_REPORT);
          if (refused || (large && tries > 2)) return this.#replace(single, error, repeated);
          if (!(lost || large)) {
            // A statement timeout that is shorter than the one for locks looks like a lock, too.
            if (!(late || /^(55P03|57014)$/.test(code))) {
              this.outages.failed("acknowledgement", summary(error));
              single.late = true;
            }
            return this.#postpone(single);
          }
        }
        this.outages.failed("acknowledgement", summary(error));
        await backoff(attempt, 10, this.#abandoned.signal);
      }
    }
  }

  /** Returns the ids of the tasks whose report was accepted. */
  async #report(group: Ended[]): Promise<Set<string>> {
    const statements = acknowledgement(group, group.length > 1 ? LOCK_TIMEOUT : LOCK_TIMEOUT_ALONE);
    let rows: Row[] = [];
    for (const { text, values } of statements) rows = await this.connection.query(text, values);
    return new Set(rows.map((row) => row.id));
  }

  /** A transaction that a handler has left open may have locked its task. It must not delay the reports of others. */
  #postpone(ended: Ended, milliseconds = 1000): void {
    setTimeout(() => this.#enqueue(ended), milliseconds).unref();
  }

  /** PostgreSQL cannot store what a task reports, such as \u0000 in a result. */
  async #replace({ task, outcome }: Ended, error: unknown, repeated: boolean): Promise<void> {
    if (task.unsentProgress !== null && outcome.verb !== "complete") {
      this.logger.warn(`queue_ext: task ${task.id}: PostgreSQL cannot store its progress`);
      task.unsentProgress = null;
    } else {
      const other = replacement(outcome, describe(error));
      if (other === undefined) {
        this.logger.warn(`queue_ext: task ${task.id}: ${outcome.verb} failed: ${sqlState(error)}`);
        return this.#finish([{ task, outcome }], new Set(), true);
      }
      outcome = other;
    }
    await this.#send([{ task, outcome }], repeated);
  }

  #finish(group: Ended[], accepted: Set<string>, repeated: boolean): void {
    const late = new Map<string, number>();
    for (const { task, outcome } of group) {
      const refused = !accepted.has(task.id);
      if (outcome.verb === "fail" && outcome.uncommitted) {
        if (!refused) this.logger.warn(`queue_ext: task ${task.id}: ${outcome.error}`);
      } else if (refused && !repeated && task.stopReason !== "lost") {
        const reason = task.completed ? "it was completed before" : "the lease is lost";
        this.logger.warn(`queue_ext: task ${task.id}: ${outcome.verb} was refused, ${reason}`);
        if (!task.completed) late.set(task.queue, (late.get(task.queue) ?? 0) + 1);
      }
    }
    for (const [queue, count] of late) {
      // The server answers all three in the same way.
      const reason = "the leases are lost, the queue was dropped, or the role has no right on it any more";
      this.logger.warn(`queue_ext: queue ${queue}: ${count} ends of tasks were not accepted: ${reason}`);
    }
    this.#count -= group.length;
    this.done(group.map((ended) => ended.task));
    this.#progressed();
  }
}

function lengthOf({ task, outcome }: Ended): number {
  const text = outcome.verb === "complete" ? outcome.result : outcome.verb === "fail" ? outcome.error : null;
  return (text?.length ?? 0) + (task.unsentProgress?.length ?? 0);
}

/** What is reported in the place of an outcome that the server refuses. */
function replacement(outcome: Outcome, reason: string): Outcome | undefined {
  if (outcome.verb === "complete") return failed(`the result cannot be stored: ${reason}`, "ResultError");
  if (outcome.verb === "release") return failed(`the delay was refused: ${reason}`, "DelayError");
  if (outcome.verb === "confirm_cancel") return failed(`the cancellation was refused: ${reason}`, "CancelError");
  if (outcome.retryIn !== null) {
    return { ...outcome, retryIn: null, error: `${outcome.error}; the delay was refused: ${reason}` };
  }
  // The encoding of the database may not have its characters.
  const plain = failed(inAscii(outcome.error).slice(0, 10_000), "Error", { permanent: outcome.permanent });
  return plain.error === outcome.error ? undefined : plain;
}

/** Those that one statement can report. */
function groups(batch: Ended[]): Ended[][] {
  const found = new Map<string, Ended[]>();
  for (const ended of batch) {
    const { outcome, task, late } = ended;
    const shared = outcome.verb === "fail" ? `${outcome.permanent} ${outcome.retryIn} ${outcome.uncommitted}`
      : outcome.verb === "release" ? outcome.delay : outcome.verb === "confirm_cancel" ? task.id : "";
    const name = `${outcome.verb} ${shared} ${late}`; // One that is late must not delay others.
    const group = found.get(name);
    if (group) group.push(ended);
    else found.set(name, [ended]);
  }
  return [...found.values()];
}

/** The statements that report a group. The last one returns the ids of the tasks for which it was accepted. The limit on
 *  waiting for locks is set before the function is called, because its first argument depends on it. */
export function acknowledgement(group: Ended[], lockTimeout: string | null): Statement[] {
  const first = group[0]!.outcome;
  const ids = arrayText(group.map(({ task }) => task.id));
  const tokens = arrayText(group.map(({ task }) => task.token));
  const leases = "CASE WHEN s.set IS NOT NULL THEN $1::text::bigint[] END, $2::text::bigint[]";
  const each = (member: "result" | "error" | "details") =>
    arrayText(group.map(({ outcome }) => (outcome as any)[member]));
  const statement = (call: string, ...values: (string | null)[]): Statement => ({
    text: `SELECT e.id::text FROM (SELECT set_config('lock_timeout',
      coalesce($3::text, current_setting('lock_timeout')), true) OFFSET 0) AS s (set), LATERAL ${call}`,
    values: [ids, tokens, lockTimeout, ...values],
  });
  const progress = group.map(({ task }) => task.unsentProgress);
  const before = first.verb !== "complete" && progress.some((json) => json !== null)
    ? [statement(`queue.extend_many(${leases}, progress => $4::text::jsonb[]) AS e`, arrayText(progress))] : [];
  switch (first.verb) {
    case "complete":
      return [statement(
        `queue.complete_many(${leases}, $4::text::jsonb[]) AS e (id)`,
        group.some(({ outcome }) => (outcome as typeof first).result !== null) ? each("result") : null)];
    case "fail":
      return [...before, statement(
        `queue.fail_many(${leases}, $4::text::text[], details => $5::text::jsonb[], retry_in => $6::text::interval,
         permanent => $7::text::boolean) AS e`,
        each("error"), each("details"), first.retryIn, String(first.permanent))];
    case "release":
      return [...before, statement(
        `queue.release_many(${leases}, $4::text::interval) AS e (id)`, first.delay)];
    case "confirm_cancel":
      return [...before, statement(`(SELECT l.ids[1] FROM (SELECT ${leases}) AS l (ids, tokens),
        queue.confirm_cancel(l.ids[1], l.tokens[1])) AS e (id)`)];
  }
}
