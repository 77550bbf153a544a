// The worker: claims as many tasks as it has free slots, runs their handlers, and waits on the server when there is
// nothing to claim.

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { isMainThread } from "node:worker_threads";
import { Acknowledger, acknowledgement } from "./acknowledge.js";
import { Connection, LONGEST, Outages, backoff, describe, sqlState } from "./connection.js";
import type { ConnectionOptions, Logger } from "./connection.js";
import { Heartbeat, keyOf, now } from "./heartbeat.js";
import type { Report } from "./heartbeat.js";
import { Discard, RELEASED, Retry, completed, failed, outcomeOf } from "./outcomes.js";
import type { Outcome } from "./outcomes.js";
import { arrayText, intervalText, send } from "./sql.js";
import type { Interval, Queryable, Statement } from "./sql.js";
import { COLUMNS, Task } from "./task.js";

export type Handler<Payload = any> = (task: Task<Payload>) => unknown;
/** Wraps each call of a handler, for traces and metrics. It returns what `call` returns, and lets pass what it throws. */
export type Around = (task: Task, call: () => Promise<unknown>) => Promise<unknown>;

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
const FLUSH = 10;
/** Short enough for the statement timeouts that servers and proxies usually have. */
const WAIT = 10;

export class Worker {
  /** Resolves when the first claim has succeeded. */
  readonly ready: Promise<void>;

  readonly #connectionOptions: ConnectionOptions | undefined;
  readonly #queues: string | string[];
  readonly #concurrency: number;
  readonly #lease: string | null;
  readonly #heartbeatSeconds: number;
  readonly #shutdownTimeout: number;
  readonly #name: string;
  readonly #logger: Logger;
  readonly #around: Around[];
  readonly #signals: boolean;
  readonly #outages: Outages;

  readonly #handlers = new Map<string | null, Handler>();
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
    this.#connectionOptions = connection;
    this.#queues = queues;
    this.#concurrency = options.concurrency ?? 10;
    this.#lease = options.lease === undefined ? null : intervalText(options.lease);
    this.#heartbeatSeconds = options.heartbeat ?? 10;
    this.#shutdownTimeout = options.shutdownTimeout ?? 30;
    this.#name = options.name ?? `${hostname()}:${process.pid}`;
    this.#logger = options.logger ?? console;
    this.#around = options.around ?? [];
    this.#signals = options.signals ?? true;
    this.#outages = new Outages(this.#logger);
    this.ready = new Promise((resolve) => { this.#isReady = resolve; });
    if (!Number.isInteger(this.#concurrency) || this.#concurrency < 1 || this.#concurrency > 100_000) {
      throw new RangeError("concurrency must be an integer from 1 to 100000");
    }
    if (!(this.#heartbeatSeconds > 0)) throw new RangeError("heartbeat must be greater than 0");
  }

  /** Sets the handler for tasks of one kind, or the one for all tasks that have no handler of their own. */
  handler<Payload = any>(handler: Handler<Payload>): this;
  handler<Payload = any>(kind: string, handler: Handler<Payload>): this;
  handler(...[kind, handler]: [Handler] | [string, Handler]): this {
    if (typeof kind === "function") this.#handlers.set(null, kind);
    else this.#handlers.set(kind, handler!);
    return this;
  }

  /** Works until `stop` is called or a signal arrives. Throws if the database refuses the worker for good. */
  async run(): Promise<void> {
    if (this.#started) throw new Error("a worker runs only once");
    this.#started = true;
    const claims = new Connection(this.#connectionOptions, this.#name);
    const reports = new Connection(this.#connectionOptions, this.#name);
    this.#heartbeat = new Heartbeat(
      { connection: this.#connectionOptions, name: this.#name, heartbeat: this.#heartbeatSeconds, lease: this.#lease },
      (report) => this.#heard(report), (error) => this.#fail(error));
    this.#acknowledger = new Acknowledger(reports, this.#outages, this.#logger, (tasks) => {
      this.#forget(tasks);
      this.#changed();
    });
    const stop = () => this.stop();
    const signals = this.#signals && isMainThread ? ["SIGTERM", "SIGINT"] : [];
    for (const signal of signals) process.on(signal, stop);
    try {
      await this.#claimUntilStopped(claims);
    } catch (error) {
      this.#fail(error);
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
   *  tests: with `raise` the first error of a handler is thrown instead of reported. */
  async drain(connection: Queryable, { raise = false } = {}): Promise<number> {
    const sql = (text: string) => send(connection, { text, values: [] });
    for (let count = 0; ; count++) {
      const [row] = await send(connection, this.#claim(1));
      if (row === undefined) return count;
      // Fails outside of a transaction, where it is not needed.
      const inTransaction = await sql("SAVEPOINT queue_ext_task").then(() => true, () => false);
      const task = new Task(row);
      const outcome = await this.#execute(task);
      if (outcome?.verb === "fail" && raise && !isChosen(outcome.cause)) throw outcome.cause ?? new Error(outcome.error);
      if (inTransaction) {
        // After an error in a statement PostgreSQL takes no others, until what the handler did is rolled back.
        await sql("RELEASE SAVEPOINT queue_ext_task").catch(() => sql("ROLLBACK TO SAVEPOINT queue_ext_task"));
      }
      if (outcome !== undefined) await send(connection, acknowledgement([{ task, outcome }]));
    }
  }

  async #claimUntilStopped(connection: Connection): Promise<void> {
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
        const found = await this.#claimSome(connection, free);
        attempt = 0;
        empty = found > 0 ? 0 : empty + 1;
        if (found < free && !stop.aborted) await this.#wait(connection);
        // A wait is only a hint. If it returns again and again for nothing, the loop must not become a busy one.
        if (empty > 3) await backoff(empty - 3, 0.2, stop);
      } catch (error) {
        if (isPermanent(error, connection.opened, this.#claimed)) throw error;
        this.#outages.failed("claim", describe(error));
        await backoff(attempt++, 10, stop);
      }
    }
  }

  /** Ends that the server does not know of hold their leases, so there is a bound for them, too. */
  #free(): number {
    return Math.min(this.#concurrency - this.#running.size, 10 * this.#concurrency - this.#acknowledger.count);
  }

  async #claimSome(connection: Connection, free: number): Promise<number> {
    const { text, values } = this.#claim(free);
    const since = now();
    const rows = await connection.query(text, values);
    this.#outages.worked("claim");
    this.#claimed = true;
    this.#isReady();
    if (rows.length === 0) return 0;
    const tasks = rows.map((row) => new Task(row, this.#heartbeat));
    // Before the first handler runs, which may block the event loop.
    this.#heartbeat.hold(tasks, rows.map((row) => row.lease_seconds), since);
    for (const task of tasks) {
      // The server has ended the lease of an earlier attempt whose handler is still running here.
      const earlier = this.#held.get(task.id);
      if (earlier !== undefined) this.#lost(earlier);
      this.#held.set(task.id, task);
      if (this.#stopping.signal.aborted) this.#acknowledger.add(task, RELEASED);
      else void this.#start(task);
    }
    return tasks.length;
  }

  #claim(tasks: number): Statement {
    return {
      text: `SELECT ${COLUMNS} FROM queue.claim($1::text::interval, ${this.#queuesAs("$2")}, $3::text::integer, $4::text)`,
      values: [this.#lease, this.#queuesText(), String(tasks), this.#name],
    };
  }

  async #wait(connection: Connection): Promise<void> {
    const stop = this.#stopping.signal;
    let cancels: NodeJS.Timeout | undefined;
    // The request may arrive before the statement does, so it is repeated until the statement has ended.
    const cancel = () => {
      let left = 20;
      connection.cancel();
      cancels = setInterval(() => left-- > 0 ? connection.cancel() : connection.drop(), 100);
    };
    stop.addEventListener("abort", cancel);
    try {
      await connection.query(
        `CALL queue.wait(${this.#queuesAs("$1")}, $2::text::interval, worker => $3::text)`,
        [this.#queuesText(), `${WAIT} seconds`, this.#name], WAIT + 10);
    } catch (error) {
      // Cancelled, by this worker or by a statement timeout.
      if (sqlState(error) !== "57014" && !stop.aborted) throw error;
    } finally {
      stop.removeEventListener("abort", cancel);
      clearInterval(cancels);
    }
  }

  /** Without the type a list would be taken for the name of one queue. */
  #queuesAs(parameter: string): string {
    return `${parameter}::text${Array.isArray(this.#queues) ? "::text[]" : ""}`;
  }

  #queuesText(): string {
    return Array.isArray(this.#queues) ? arrayText(this.#queues) : this.#queues;
  }

  async #start(task: Task): Promise<void> {
    this.#running.add(task);
    const outcome = await this.#execute(task);
    // A task that was given back at the end of the shutdown is no longer in the set.
    if (this.#running.delete(task)) {
      if (outcome !== undefined) this.#acknowledger.add(task, outcome);
      else this.#forget([task]);
    }
    this.#changed();
  }

  async #execute(task: Task): Promise<Outcome | undefined> {
    const handler = this.#handlers.get(task.kind) ?? this.#handlers.get(null);
    if (handler === undefined) {
      return failed(`no handler for ${task.kind === null ? "tasks without a kind" : `kind "${task.kind}"`}`, "NoHandler");
    }
    try {
      const call = this.#around.reduceRight<() => Promise<unknown>>(
        (inner, around) => () => around(task, inner), async () => handler(task));
      const result = await call();
      return task.completed ? undefined : completed(result);
    } catch (error) {
      if (task.refused) this.#logger.warn(`queue_ext: task ${task.id}: complete was refused, the lease is lost`);
      return outcomeOf(task, error);
    }
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
      this.#logger.warn(`queue_ext: ${report.warning}`);
    }
  }

  #lost(task: Task): void {
    // The heartbeat does not know yet of a task that has just ended.
    if (!this.#running.has(task)) return;
    this.#logger.warn(`queue_ext: task ${task.id}: the lease is lost`);
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
    await within(this.#shutdownTimeout, idle(), this.#hurry.signal);
    for (const task of this.#running) task.stop("shutdown");
    if (this.#running.size > 0) await within(GRACE, idle(), this.#hurry.signal);
    for (const task of this.#running) this.#acknowledger.add(task, RELEASED);
    this.#running.clear();
    this.#changed();
    await within(FLUSH, this.#acknowledger.flush());
    this.#acknowledger.abandon();
    if (this.#acknowledger.count > 0) {
      this.#logger.warn(`queue_ext: ${this.#acknowledger.count} tasks could not be acknowledged; their leases will expire`);
    }
  }
}

/** Waits for a promise, but not longer, and not after the signal. */
async function within(seconds: number, promise: Promise<void>, signal?: AbortSignal): Promise<void> {
  const timer = new AbortController();
  const either = signal ? AbortSignal.any([timer.signal, signal]) : timer.signal;
  await Promise.race([promise, sleep(Math.min(seconds * 1000, LONGEST), undefined, { signal: either }).catch(() => {})]);
  timer.abort();
}

/** Errors that no repetition helps. Once the worker has claimed something, its configuration was right. */
function isPermanent(error: unknown, connected: boolean, claimed: boolean): boolean {
  const code = sqlState(error) ?? "";
  if (code === "QX002" || code === "42501") return true;
  return (!claimed && /^(22...|3F000|42883)$/.test(code)) || (!connected && /^(28...|3D000)$/.test(code));
}

function isChosen(error: unknown): boolean {
  return error instanceof Retry || error instanceof Discard;
}
