// How an attempt can end, and what a handler throws to choose it.
import { inspect } from "node:util";
import { intervalText, jsonText } from "./sql.js";
/** Ends the attempt as failed. The task is retried after `delay`, or without one after its backoff. */
export class Retry extends Error {
    delay;
    name = "Retry";
    constructor(delay, message = "the handler asked for a retry") {
        super(message);
        this.delay = delay;
    }
}
/** Ends the task as failed: it moves to the dead letters without further attempts. */
export class Discard extends Error {
    name = "Discard";
}
/** Gives the task back for `delay`. The attempt does not count. */
export class Snooze extends Error {
    delay;
    name = "Snooze";
    constructor(delay) {
        super("the handler gave the task back");
        this.delay = delay;
    }
}
/** The reason of a task's signal. A handler that stops throws it, as `task.signal.throwIfAborted()` does. */
export class Stopped extends Error {
    reason;
    name = "Stopped";
    constructor(reason) {
        super(`the task was stopped: ${reason}`);
        this.reason = reason;
    }
}
/** Throws if the result cannot be written as JSON. */
export function completed(result) {
    return { verb: "complete", result: jsonText(result) };
}
export function failed(error, type, more = {}) {
    return {
        // PostgreSQL stores no NUL character, and queue.fail refuses an error of more than 1 MB.
        verb: "fail", error: error.replaceAll("\0", "").slice(0, 200_000) || type, details: JSON.stringify({ type }),
        retryIn: null, permanent: false, ...more,
    };
}
export const RELEASED = { verb: "release", delay: "0" };
/** The outcome of a handler that threw. Undefined if there is nothing to report. */
export function outcomeOf(task, error) {
    if (task.refused)
        return undefined;
    if (task.stopReason !== undefined && isStop(error)) {
        return { cancelled: { verb: "confirm_cancel" }, shutdown: RELEASED, lost: undefined }[task.stopReason];
    }
    if (error instanceof Retry) {
        const retryIn = error.delay == null ? null : intervalText(error.delay);
        return failed(error.message, error.name, { retryIn, chosen: true });
    }
    if (error instanceof Discard)
        return failed(error.message, error.name, { permanent: true, chosen: true });
    if (error instanceof Snooze)
        return { verb: "release", delay: intervalText(error.delay) };
    return failed(report(error), error instanceof Error ? error.constructor.name : typeof error, { cause: error });
}
/** Libraries that take a signal throw its reason, or an AbortError of their own. */
function isStop(error) {
    return error instanceof Stopped || (error instanceof Error && (error.name === "AbortError" || isStop(error.cause)));
}
function report(error) {
    if (!(error instanceof Error))
        return inspect(error);
    const stack = error.stack || String(error);
    return error.cause === undefined ? stack : `${stack}\nCaused by: ${report(error.cause)}`;
}
