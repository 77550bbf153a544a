// The handlers of a worker by kind, and what a call of one comes to.

import type { Logger } from "./connection.js";
import { UNCOMMITTED, completed, failed, outcomeOf } from "./outcomes.js";
import type { Outcome } from "./outcomes.js";
import type { Task } from "./task.js";

export type Handler<Payload = any> = (task: Task<Payload>) => unknown;
/** Wraps each call of a handler, for traces and metrics. It returns what `call` returns, and lets pass what it throws. */
export type Around = (task: Task, call: () => Promise<unknown>) => Promise<unknown>;

export class Handlers {
  readonly #handlers = new Map<string | null, Handler>();
  constructor(private readonly logger: Logger, private readonly around: Around[]) {}

  /** Without a kind it takes the tasks that no other handler takes. */
  add(kind: string | null, handler: Handler): void {
    this.#handlers.set(kind, handler);
  }

  /** Never throws. Returns undefined if there is nothing to report. */
  async run(task: Task): Promise<Outcome | undefined> {
    const handler = this.#handlers.get(task.kind) ?? this.#handlers.get(null);
    if (handler === undefined) {
      return failed(`no handler for ${task.kind === null ? "tasks without a kind" : `kind "${task.kind}"`}`, "NoHandler");
    }
    try {
      task.parse();
      const call = this.around.reduceRight<() => Promise<unknown>>(
        (inner, around) => () => around(task, inner), async () => handler(task));
      const result = await call();
      return task.completed ? UNCOMMITTED : completed(result);
    } catch (error) {
      if (task.refused) this.logger.warn(`queue_ext: task ${task.id}: complete was refused, the lease is lost`);
      try {
        return outcomeOf(task, error);
      } catch { // What a handler throws may have getters and methods that throw.
        return failed("the handler threw an error that cannot be described", "Error");
      }
    }
  }
}
