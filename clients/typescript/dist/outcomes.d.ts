import type { Interval } from "./sql.js";
import type { Task } from "./task.js";
/** Ends the attempt as failed. The task is retried after `delay`, or without one after its backoff. */
export declare class Retry extends Error {
    readonly delay?: (Interval | null) | undefined;
    readonly name = "Retry";
    constructor(delay?: (Interval | null) | undefined, message?: string);
}
/** Ends the task as failed: it moves to the dead letters without further attempts. */
export declare class Discard extends Error {
    readonly name = "Discard";
}
/** Gives the task back for `delay`. The attempt does not count. */
export declare class Snooze extends Error {
    readonly delay: Interval;
    readonly name = "Snooze";
    constructor(delay: Interval);
}
/** The handler has suspended its task by queue.sleep, queue.await_event or queue.await_task, and has committed that. Nothing is
 *  reported: the task is claimed again when its wait is over. If it was not suspended, it is when its lease ends. */
export declare class Suspended extends Error {
    readonly name = "Suspended";
    constructor();
}
export type StopReason = "cancelled" | "lost" | "shutdown";
/** The reason of a task's signal. A handler that stops throws it, as `task.signal.throwIfAborted()` does. */
export declare class Stopped extends Error {
    readonly reason: StopReason;
    readonly name = "Stopped";
    constructor(reason: StopReason);
}
export type Outcome = {
    verb: "complete";
    result: string | null;
} | Failure | {
    verb: "release";
    delay: string;
} | {
    verb: "confirm_cancel";
};
export interface Failure {
    verb: "fail";
    error: string;
    details: string;
    retryIn: string | null;
    permanent: boolean;
    /** Whether the handler chose it, by throwing Retry or Discard. */
    chosen?: boolean;
    /** Whether the handler has completed its task in a transaction that may not have been committed. */
    uncommitted?: boolean;
    /** What the handler threw. */
    cause?: unknown;
}
/** Throws if the result cannot be written as JSON. */
export declare function completed(result: unknown): Outcome;
export declare function failed(error: unknown, type: unknown, more?: Partial<Failure>): Failure;
/** Refused by the server if the transaction was committed. */
export declare const UNCOMMITTED: Failure;
export declare function inAscii(text: string): string;
export declare const RELEASED: Outcome;
/** The outcome of a handler that threw. Undefined if there is nothing to report. */
export declare function outcomeOf(task: Task<any>, error: unknown): Outcome | undefined;
