// The worker: claims as many tasks as it has free slots, runs their handlers, and waits on the server when there is
// nothing to claim.

import { once } from "node:events";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { isMainThread } from "node:worker_threads";
import { Acknowledger, acknowledgement } from "./acknowledge.js";
import { Claims } from "./claims.js";
import { Connection, LONGEST, Outages, backoff, guardLogger, sqlState, summary } from "./connection.js";
import type { ConnectionOptions, Logger } from "./connection.js";
import { Heartbeat, keyOf, now } from "./heartbeat.js";
import type { Report } from "./heartbeat.js";
import { Handlers } from "./handlers.js";
import type { Around, Handler } from "./handlers.js";
import { RELEASED } from "./outcomes.js";
import { delayText, send } from "./sql.js";
import type { Interval, Queryable } from "./sql.js";
import { Task } from "./task.js";

export interface WorkerOptions {
  /** How many tasks run at the same time. Default 10. */
  concurrency?: number;
  /** How long a lease is. By default each task's own, or its queue's option. */
  lease?: Interval;
  /** Seconds between heartbeats; less if a lease is shorter than three times that. Default 10. */
  heartbeat?: number;
  /** Seconds that running tasks have to end after `stop`. Default 30. */
  shutdownTimeout?: number;
  /** Shown in queue.workers and in errors of tasks. Default host:pid. */
  name?: string;
  /** Default: the console. */
  logger?: Logger;
  around?: Around[];
  /** Whether SIGTERM and SIGINT stop the worker. Default true. */
  signals?: boolean;
}

/** How long handlers have after the signal "shutdown", and then the acknowledgements, in seconds. */
const GRACE = 5;
/** How long the answer to a claim that was sent before the stop is waited for, in seconds: its tasks can be given back. Then
 *  the claim is cancelled so many times, every tenth of a second. */
const CLAIM_GRACE = 3;
const CLAIM_CANCELS = 10;
const FLUSH = 10;

export class Worker {
  /** Resolves when the first claim has succeeded. */
  readonly ready: Promise<void>;

  readonly #connection: ConnectionOptions | undefined;
  readonly #options: Required<Omit<WorkerOptions, "lease" | "around">>;
  readonly #lease: string | null;
  readonly #claims: Claims;
  readonly #handlers: Handlers;
  readonly #outages: Outages;

  /** Tasks whose handler has not ended. */
  readonly #running = new Set<Task>();
  /** Tasks whose lease the heartbeat extends, until the server knows how they ended, by id. */
  readonly #held = new Map<string, Task>();
  readonly #stopping = new AbortController();
  readonly #hurry = new AbortController();
  #heartbeat!: Heartbeat;
  #acknowledger!: Acknowledger;
  #claimed = false;
  #started = false;
  #fatal: unknown;
  #isReady!: () => void;
  /** Called when a slot may be free, or the last handler has ended. */
  #changed = () => {};

  /** `queues` is a name, or names in the order of preference. */
  constructor(connection: ConnectionOptions | undefined, queues: string | string[], options: WorkerOptions = {}) {
    const {
      concurrency = 10, heartbeat = 10, shutdownTimeout = 30, name = `${hostname()}:${process.pid}`, signals = true,
    } = options;
    const logger = guardLogger(options.logger ?? console);
    if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 100_000) {
      throw new RangeError("concurrency must be an integer from 1 to 100000");
    }
    if (!(heartbeat > 0)) throw new RangeError("heartbeat must be greater than 0");
    if (!(shutdownTimeout >= 0)) throw new RangeError("shutdownTimeout must not be negative");
    if (queues.length === 0) throw new RangeError("a worker needs a queue");
    new Connection(connection, name); // Throws for a connection that can never be opened.
    this.#connection = connection;
    this.#options = { concurrency, heartbeat, shutdownTimeout, name, logger, signals };
    this.#lease = options.lease === undefined ? null : delayText(options.lease);
    this.#claims = new Claims(queues, this.#lease, name);
    this.#handlers = new Handlers(logger, options.around ?? []);
    this.#outages = new Outages(logger);
    this.ready = new Promise((resolve) => { this.#isReady = resolve; });
  }

  /** Sets the handler for tasks of one kind, or the one for all tasks that have no handler of their own. */
  handler<Payload = any>(handler: Handler<Payload>): this;
  handler<Payload = any>(kind: string, handler: Handler<Payload>): this;
  handler(...[kind, handler]: [Handler] | [string, Handler]): this {
    if (typeof kind === "function") this.#handlers.add(null, kind);
    else this.#handlers.add(kind, handler!);
    return this;
  }

  /** Works until `stop` is called or a signal arrives. Throws if the database refuses the worker for good. */
  async run(): Promise<void> {
    if (this.#started) throw new Error("a worker runs only once");
    this.#started = true;
    const { name, heartbeat, logger } = this.#options;
    const claims = new Connection(this.#connection, name);
    const reports = new Connection(this.#connection, name);
    this.#heartbeat = new Heartbeat(
      { connection: this.#connection, name, heartbeat, lease: this.#lease },
      (report) => this.#heard(report), (error) => this.#fail(error));
    this.#acknowledger = new Acknowledger(reports, this.#outages, logger, (tasks) => {
      this.#forget(tasks);
      this.#changed();
    });
    const stop = () => this.stop();
    const signals = this.#options.signals && isMainThread ? ["SIGTERM", "SIGINT"] : [];
    for (const signal of signals) process.on(signal, stop);
    const claiming = this.#claimUntilStopped(claims, reports).catch((error) => this.#fail(error));
    if (!this.#stopping.signal.aborted) await once(this.#stopping.signal, "abort");
    let ended = await within(CLAIM_GRACE, claiming, this.#hurry.signal);
    // A claim that waits for a lock would take tasks later, for nobody. The request may arrive before the claim does.
    for (let left = CLAIM_CANCELS; left > 0 && !ended; left--) {
      claims.cancel();
      ended = await within(0.1, claiming);
    }
    claims.drop();
    await this.#shutDown();
    reports.drop();
    await this.#heartbeat.end();
    for (const signal of signals) process.removeListener(signal, stop);
    if (this.#fatal !== undefined) throw this.#fatal;
  }

  /** Claims nothing more and lets the running tasks end; called a second time, gives them back at once. */
  stop(): void {
    if (this.#stopping.signal.aborted) this.#hurry.abort();
    this.#stopping.abort();
    this.#changed();
  }

  /** Runs all due tasks one after the other on the caller's connection, in its transaction, and returns how many. For
   *  tests: with `raise` the first error of a handler is thrown instead of reported. What a handler has written before its
   *  error is rolled back. Throws after `limit` tasks. */
  async drain(connection: Queryable, { raise = false, limit = 10_000 } = {}): Promise<number> {
    const sql = (text: string) => send(connection, { text, values: [] });
    const rollBack = () => sql("ROLLBACK TO SAVEPOINT queue_ext_task");
    for (let count = 0; count < limit; count++) {
      const [row] = await send(connection, this.#claims.claim(1));
      if (row === undefined) return count;
      // Fails outside of a transaction, where it is not needed.
      const inTransaction = await sql("SAVEPOINT queue_ext_task").then(() => true, () => false);
      const task = new Task(row, this.#options.logger);
      const outcome = await this.#handlers.run(task);
      if (outcome?.verb === "fail" && raise && !outcome.chosen && !outcome.uncommitted) throw outcome.cause ?? new Error(outcome.error);
      if (inTransaction) {
        // Nothing is reported if the handler has suspended the task, or its own completion was refused.
        const returned = outcome === undefined ? !task.refused
          : outcome.verb === "complete" || (outcome.verb === "fail" && outcome.uncommitted);
        // A release fails after an error of a statement that the handler has caught.
        await (returned ? sql("RELEASE SAVEPOINT queue_ext_task").catch(rollBack) : rollBack());
      }
      if (outcome === undefined) continue;
      for (const statement of acknowledgement([{ task, outcome }], null)) await send(connection, statement);
    }
    throw new Error(`stopped after ${limit} tasks: a task seems to become due again and again`);
  }

  async #claimUntilStopped(claims: Connection, reports: Connection): Promise<void> {
    const stop = this.#stopping.signal;
    let attempt = 0;
    let empty = 0;
    while (!stop.aborted) {
      const free = this.#free();
      if (free <= 0) {
        await new Promise<void>((resolve) => { this.#changed = resolve; });
        continue;
      }
      try {
        if (!this.#claimed) {
          // A task is claimed only if its lease can be extended and its end can be reported.
          await claims.open();
          await reports.open();
          await within(Infinity, this.#heartbeat.opened, stop);
          if (stop.aborted) break;
        }
        const found = await this.#claimSome(claims, free);
        attempt = 0;
        empty = found > 0 ? 0 : empty + 1;
        if (found < free && !stop.aborted) await this.#claims.wait(claims, stop);
        // A wait is only a hint. If it returns again and again for nothing, the loop must not become a busy one.
        if (empty > 3) await backoff(empty - 3, 0.2, stop);
      } catch (error) {
        if (isPermanent(error, claims.opened && reports.opened, this.#claimed)) throw error;
        if (stop.aborted) break;
        this.#outages.failed("claim", summary(error));
        await backoff(attempt++, 10, stop);
      }
    }
  }

  /** Also bounds how many ends wait for their acknowledgement, since these tasks keep their leases. */
  #free(): number {
    const { concurrency } = this.#options;
    return Math.min(concurrency - this.#running.size, 10 * concurrency - this.#acknowledger.count);
  }

  async #claimSome(connection: Connection, free: number): Promise<number> {
    const { text, values } = this.#claims.claim(free);
    const since = now();
    const rows = await connection.query(text, values);
    this.#outages.worked("claim");
    this.#claimed = true;
    this.#isReady();
    // The claim may have waited for a lock, or a handler may have blocked the event loop while the answer was on its way.
    const held = rows.filter((row) => since + Number(row.lease_seconds) > now());
    if (held.length < rows.length) {
      this.#options.logger.warn(`${rows.length - held.length} leases ended before the claim was answered: it waited for a lock, or a handler blocks the event loop`);
    }
    if (held.length === 0) return rows.length;
    const tasks = held.map((row) => new Task(row, this.#options.logger, this.#heartbeat));
    // Before the first handler runs, which may block the event loop.
    this.#heartbeat.hold(tasks, held.map((row) => Number(row.lease_seconds)), since);
    for (const task of tasks) {
      // The server has ended the lease of an earlier attempt whose handler is still running here.
      const earlier = this.#held.get(task.id);
      if (earlier !== undefined) this.#lost(earlier);
      this.#held.set(task.id, task);
      if (this.#stopping.signal.aborted) this.#acknowledger.add(task, RELEASED);
      else void this.#start(task);
    }
    return rows.length;
  }

  async #start(task: Task): Promise<void> {
    this.#running.add(task);
    const outcome = await this.#handlers.run(task);
    // A task that was given back at the end of the shutdown is no longer in the set.
    if (this.#running.delete(task)) {
      // The report sends it if that is of use, and must not find the task locked by a heartbeat that does.
      if (task.unsentProgress !== null) this.#heartbeat.progress(task, null);
      if (outcome !== undefined) this.#acknowledger.add(task, outcome);
      else this.#forget([task]);
    }
    this.#changed();
  }

  #forget(tasks: Task[]): void {
    this.#heartbeat.drop(tasks);
    for (const task of tasks) {
      if (this.#held.get(task.id) === task) this.#held.delete(task.id);
    }
  }

  #heard(report: Report): void {
    if ("stop" in report) {
      for (const key of report.stop) {
        const task = this.#held.get(key.slice(0, key.indexOf("/")));
        if (task === undefined || keyOf(task) !== key) continue;
        if (report.reason === "lost") this.#lost(task);
        else task.stop(report.reason);
      }
    } else if ("failed" in report) {
      this.#outages.failed("heartbeat", report.failed);
    } else if ("worked" in report) {
      this.#outages.worked("heartbeat");
    } else {
      this.#options.logger.warn(`queue_ext: ${report.warning}`);
    }
  }

  #lost(task: Task): void {
    // The heartbeat does not know yet of a task that has just ended.
    if (!this.#running.has(task)) return;
    this.#options.logger.warn(`queue_ext: task ${task.id}: the lease is lost`);
    task.stop("lost");
  }

  #fail(error: unknown): void {
    this.#fatal ??= error;
    if (!this.#stopping.signal.aborted) this.stop();
  }

  async #shutDown(): Promise<void> {
    const idle = async () => {
      while (this.#running.size > 0) await new Promise<void>((resolve) => { this.#changed = resolve; });
    };
    await within(this.#options.shutdownTimeout, idle(), this.#hurry.signal);
    for (const task of this.#running) task.stop("shutdown");
    if (this.#running.size > 0) await within(GRACE, idle(), this.#hurry.signal);
    for (const task of this.#running) {
      // A report would wait for the transaction in which the handler has completed the task.
      if (task.completed) this.#forget([task]);
      else this.#acknowledger.add(task, RELEASED);
    }
    this.#running.clear();
    this.#changed();
    await within(FLUSH, this.#acknowledger.flush());
    this.#acknowledger.abandon();
    const { count } = this.#acknowledger;
    if (count > 0) this.#options.logger.warn(`queue_ext: could not report the ends of ${count} tasks; their leases will expire`);
  }
}

/** Waits for a promise, but not longer, and not after the signal. Returns whether the promise has resolved. */
async function within(seconds: number, promise: Promise<void>, signal?: AbortSignal): Promise<boolean> {
  const timer = new AbortController();
  const either = signal ? AbortSignal.any([timer.signal, signal]) : timer.signal;
  const pause = sleep(Math.min(seconds * 1000, LONGEST), undefined, { signal: either });
  const resolved = await Promise.race([promise.then(() => true), pause.then(() => false, () => false)]);
  timer.abort();
  return resolved;
}

/** Errors that no repetition helps. Once the worker has claimed something, its configuration was right. */
function isPermanent(error: unknown, connected: boolean, claimed: boolean): boolean {
  const code = sqlState(error) ?? "";
  if (code === "QX002" || code === "42501") return true;
  return (!claimed && /^(22...|54...|3F000|42883)$/.test(code)) || (!connected && /^(28...|3D000)$/.test(code));
}
