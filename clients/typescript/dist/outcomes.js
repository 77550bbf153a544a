// How an attempt can end, and what a handler throws to choose it.
import { inspect } from "node:util";
import { delayText, jsonText } from "./sql.js";
/** Ends the attempt as failed. The task is retried after `delay`, or without one after its backoff. */
export class Retry extends Error {
    delay;
    name = "Retry";
    constructor(delay, message = "the handler asked for a retry") {
        super(message);
        this.delay = delay;
        if (delay != null)
            delayText(delay);
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
        delayText(delay);
    }
}
/** The handler has suspended its task by queue.sleep, queue.await_event or queue.await_task, and has committed that. Nothing is
 *  reported: the task is claimed again when its wait is over. If it was not suspended, it is when its lease ends. */
export class Suspended extends Error {
    name = "Suspended";
    constructor() {
        super("the handler has suspended the task");
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
    // queue.fail refuses an error of more than 1 MB, and details of more than 64 kB.
    const name = storable(type, 200) || "Error";
    return {
        verb: "fail", error: storable(error, 200_000) || name, details: JSON.stringify({ type: name }), retryIn: null,
        permanent: false, ...more,
    };
}
/** Refused by the server if the transaction was committed. */
export const UNCOMMITTED = failed("the transaction that completed the task was not committed", "Uncommitted", { uncommitted: true });
export function inAscii(text) {
    return text.replace(/[^\n -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
/** PostgreSQL stores no NUL character and no half of a surrogate pair. */
function storable(text, length) {
    return String(text).slice(0, length).replace(/\0|\p{Surrogate}/gu, "");
}
export const RELEASED = { verb: "release", delay: "0" };
/** The outcome of a handler that threw. Undefined if there is nothing to report. */
export function outcomeOf(task, error) {
    if (task.refused)
        return undefined;
    if (task.stopReason !== undefined && isStop(error)) {
        return { cancelled: { verb: "confirm_cancel" }, shutdown: RELEASED, lost: undefined }[task.stopReason];
    }
    if (error instanceof Suspended)
        return undefined;
    if (error instanceof Retry) {
        const retryIn = error.delay == null ? null : delayText(error.delay);
        return failed(error.message, error.name, { retryIn, chosen: true });
    }
    if (error instanceof Discard)
        return failed(error.message, error.name, { permanent: true, chosen: true });
    if (error instanceof Snooze)
        return { verb: "release", delay: delayText(error.delay) };
    return failed(report(error), error instanceof Error ? error.constructor?.name : typeof error, { cause: error });
}
/** An error and its causes, which may form a cycle. */
function chain(error) {
    const errors = [error];
    while (errors.length < 10 && error instanceof Error && error.cause !== undefined)
        errors.push(error = error.cause);
    return errors;
}
/** Libraries that take a signal throw its reason, or an AbortError of their own. */
function isStop(error) {
    return chain(error).some((one) => one instanceof Stopped || (one instanceof Error && one.name === "AbortError"));
}
function report(error) {
    return chain(error).map((one) => one instanceof Error ? String(one.stack || one) : inspect(one)).join("\nCaused by: ");
}
