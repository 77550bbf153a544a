// A claimed task, as its handler sees it. The columns keep their SQL names.

import type { Logger } from "./connection.js";
import { Stopped } from "./outcomes.js";
import type { StopReason } from "./outcomes.js";
import { guardListeners } from "./signal.js";
import { jsonText, requiredJson, send } from "./sql.js";
import type { Queryable, Row } from "./sql.js";

/** What the heartbeat does for a task. */
export interface Lease {
  completing(task: Task, begun: boolean): void;
  progress(task: Task, json: string): void;
}

const LEASE_LOST = ["QX001", "QX003"];

export class Task<Payload = any> {
  /** A bigint, as a string. */
  readonly id: string;
  /** The fencing token of this attempt: a bigint below 2^53, as a string. */
  readonly token: string;
  readonly queue: string;
  readonly kind: string | null;
  readonly payload!: Payload;
  readonly headers!: Record<string, any> | null;
  readonly attempt: number;
  readonly max_attempts: number;
  readonly priority: number;
  readonly key: string | null;
  readonly group_key: string | null;
  /** What an earlier attempt last reported as progress. */
  readonly progress!: any;

  /** The progress that the handler has reported last, as JSON. @internal */
  unsentProgress: string | null = null;
  /** The reason for which the task should stop. @internal */
  stopReason: StopReason | undefined;
  /** Whether the handler has completed the task itself. @internal */
  completed = false;
  /** Whether the server refused to complete it, because the lease is lost. @internal */
  refused = false;

  readonly #row: Row;
  readonly #logger: Logger;
  readonly #lease: Lease | undefined;
  #controller: AbortController | undefined;

  /** @internal */
  constructor(row: Row, logger: Logger, lease?: Lease) {
    this.id = row.id;
    this.token = row.token;
    this.queue = row.queue;
    this.kind = row.kind;
    this.attempt = Number(row.attempt);
    this.max_attempts = Number(row.max_attempts);
    this.priority = Number(row.priority);
    this.key = row.key;
    this.group_key = row.group_key;
    this.#row = row;
    this.#logger = logger;
    this.#lease = lease;
  }

  /** Reads the JSON columns. Called with the handler, so that an error fails this attempt alone. @internal */
  parse(): void {
    for (const column of ["payload", "headers", "progress"]) {
      const text = this.#row[column];
      Object.defineProperty(this, column, { value: text === null ? null : JSON.parse(text), enumerable: true });
    }
  }

  get run_at(): Date { return new Date(this.#row.run_at * 1000); }
  get created_at(): Date { return new Date(this.#row.created_at * 1000); }
  /** When the lease would have ended without heartbeats, by the server's clock. */
  get lease_until(): Date { return new Date(this.#row.lease_until * 1000); }

  /** Aborted when the handler should stop. Its reason is a `Stopped`. */
  get signal(): AbortSignal {
    // Made when it is asked for, since most handlers do not use it and it costs more than the rest of the task.
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      guardListeners(this.#controller.signal, () => {
        this.#logger.warn(`queue_ext: task ${this.id}: a listener of its signal threw an error`);
      });
      if (this.stopReason !== undefined) this.#controller.abort(new Stopped(this.stopReason));
    }
    return this.#controller.signal;
  }

  /** Reports any JSON value as the progress of the task, with the next heartbeat, or with the report of its end. */
  setProgress(value: unknown): void {
    const json = requiredJson(value);
    this.unsentProgress = json;
    this.#lease?.progress(this, json);
  }

  /** Completes the task in the transaction of `connection`: its other changes and the completion commit together. */
  async complete(connection: Queryable, result?: unknown): Promise<void> {
    // From now on the caller's transaction locks the task, and a heartbeat would wait for that transaction.
    this.#lease?.completing(this, true);
    this.completed = true;
    try {
      await send(connection, {
        text: "SELECT queue.complete($1::text::bigint, $2::text::bigint, $3::text::jsonb)::text",
        values: [this.id, this.token, jsonText(result)],
      });
    } catch (error) {
      this.completed = false;
      if (isLeaseLost(error)) {
        this.refused = true;
        this.stop("lost");
      } else {
        this.#lease?.completing(this, false);
      }
      throw error;
    }
  }

  /** Asks the handler to stop. The first reason stays, but there is nothing to report for a task whose lease is lost.
   *  @internal */
  stop(reason: StopReason): void {
    if (this.stopReason === undefined || reason === "lost") this.stopReason = reason;
    this.#controller?.abort(new Stopped(reason));
  }
}

/** Libraries wrap the error of PostgreSQL in one of their own. */
export function isLeaseLost(error: any): boolean {
  for (let depth = 0; error && depth < 5; depth++) {
    if (LEASE_LOST.includes(error.code) || LEASE_LOST.includes(error.meta?.code)) return true;
    error = error.cause ?? error.meta?.driverAdapterError;
  }
  return false;
}
