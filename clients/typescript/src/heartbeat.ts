// The worker's side of the heartbeat, which runs in a thread of its own: a handler that blocks the event loop does not
// lose leases.

import { Worker as Thread } from "node:worker_threads";
import type { ConnectionOptions } from "./connection.js";
import type { Lease, Task } from "./task.js";

/** Messages to the thread. Keys are those of `keyOf`. */
export type Order =
  | { hold: { key: string; id: string; token: string; seconds: number; since: number }[] }
  | { drop: string[] }
  | { completing: string; begun: boolean }
  | { progress: string; json: string | null }
  | { end: true };

/** Messages from the thread. */
export type Report =
  | { stop: string[]; reason: "cancelled" | "lost" }
  | { failed: string }
  | { worked: true }
  | { warning: string };

export interface HeartbeatOptions {
  connection: ConnectionOptions | undefined;
  name: string;
  /** Seconds between two heartbeats, unless a lease is so short that it needs them more often. */
  heartbeat: number;
  /** How long leases are, or null for the tasks' own. */
  lease: string | null;
}

export class Heartbeat implements Lease {
  /** Resolves when the connection of the thread was open for the first time. */
  readonly opened: Promise<void>;
  readonly #thread: Thread;
  readonly #ended: Promise<unknown>;

  constructor(options: HeartbeatOptions, report: (report: Report) => void, failed: (error: Error) => void) {
    this.#thread = new Thread(new URL("./heartbeat_thread.js", import.meta.url), { workerData: options });
    this.opened = new Promise((resolve) => this.#thread.on("message", (message: Report) => {
      if ("worked" in message) resolve();
      report(message);
    }));
    this.#thread.on("error", failed);
    this.#ended = new Promise((resolve) => this.#thread.once("exit", resolve));
  }

  /** Extends these leases, which were granted for so many seconds by a statement that was sent at `since`. */
  hold(tasks: Task[], seconds: number[], since: number): void {
    this.#send({
      hold: tasks.map((task, i) => ({ key: keyOf(task), id: task.id, token: task.token, seconds: seconds[i]!, since })),
    });
  }

  drop(tasks: Task[]): void {
    this.#send({ drop: tasks.map(keyOf) });
  }

  completing(task: Task, begun: boolean): void {
    this.#send({ completing: keyOf(task), begun });
  }

  progress(task: Task, json: string | null): void {
    this.#send({ progress: keyOf(task), json });
  }

  async end(): Promise<void> {
    this.#send({ end: true });
    await this.#ended;
  }

  #send(order: Order): void {
    this.#thread.postMessage(order);
  }
}

/** The same worker can claim a task again after it has lost its lease. */
export function keyOf(task: Task): string {
  return `${task.id}/${task.token}`;
}

/** The monotonic clock in seconds, the same in all threads. */
export function now(): number {
  return Number(process.hrtime.bigint()) / 1e9;
}
