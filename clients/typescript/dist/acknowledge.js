// Reports how attempts ended. Whatever has gathered while the previous report was under way goes together, so there is
// nothing to wait for when little is going on, and few statements when a lot is.
import { Connection, backoff, describe, isConnectionLost, sqlState } from "./connection.js";
import { failed } from "./outcomes.js";
import { arrayText } from "./sql.js";
import { isLeaseLost } from "./task.js";
const LARGEST_BATCH = 1000;
export class Acknowledger {
    connection;
    outages;
    logger;
    done;
    #waiting = [];
    #count = 0;
    #busy;
    #abandoned = new AbortController();
    constructor(connection, outages, logger, 
    /** Called with the tasks whose ends are acknowledged. */
    done) {
        this.connection = connection;
        this.outages = outages;
        this.logger = logger;
        this.done = done;
    }
    /** How many ends are not acknowledged yet. */
    get count() {
        return this.#count;
    }
    add(task, outcome) {
        this.#count++;
        this.#waiting.push({ task, outcome });
        this.#busy ??= this.#run();
    }
    /** Returns when all are acknowledged. */
    async flush() {
        while (this.#busy)
            await this.#busy;
    }
    /** Gives up what could not be reported. The leases of these tasks will expire. */
    abandon() {
        this.#abandoned.abort();
    }
    async #run() {
        await null; // Handlers that end in the same turn of the event loop go together.
        while (this.#waiting.length > 0) {
            const batch = this.#next();
            for (const group of groups(batch))
                await this.#send(group);
            this.#count -= batch.length;
            this.done(batch.map((ended) => ended.task));
        }
        this.#busy = undefined;
    }
    /** Two attempts of one task must not share a statement, whose answer names the task alone. */
    #next() {
        const ids = new Set();
        let size = 0;
        for (const { task } of this.#waiting) {
            if (size === LARGEST_BATCH || ids.has(task.id))
                break;
            ids.add(task.id);
            size++;
        }
        return this.#waiting.splice(0, size);
    }
    async #send(group) {
        let repeated = false;
        for (let attempt = 0; !this.#abandoned.signal.aborted; attempt++) {
            try {
                const { text, values } = acknowledgement(group);
                const accepted = new Set((await this.connection.query(text, values)).map((row) => row.id));
                this.outages.worked("acknowledgement");
                // An earlier try whose answer was lost may have succeeded.
                if (!repeated)
                    this.#refused(group.filter(({ task }) => !accepted.has(task.id)));
                return;
            }
            catch (error) {
                if (isLeaseLost(error)) {
                    if (!repeated)
                        this.#refused(group);
                    return;
                }
                if (isConnectionLost(error)) {
                    repeated = true;
                }
                else if (!/^(40|53|55|57|58)/.test(sqlState(error))) {
                    return this.#isolate(group, error);
                }
                this.outages.failed("acknowledgement", describe(error));
                await backoff(attempt, 10, this.#abandoned.signal);
            }
        }
    }
    /** PostgreSQL cannot store what a task of this group reports, such as \u0000 in a result. */
    async #isolate(group, error) {
        const [{ task, outcome }] = group;
        if (group.length > 1) {
            for (const ended of group)
                await this.#send([ended]);
        }
        else if (outcome.verb === "complete") {
            await this.#send([{ task, outcome: failed(`the result cannot be stored: ${describe(error)}`, "ResultError") }]);
        }
        else {
            this.logger.warn(`queue_ext: task ${task.id}: ${outcome.verb} failed: ${sqlState(error)}`);
        }
    }
    #refused(group) {
        for (const { task, outcome } of group) {
            if (task.stopReason !== "lost") {
                this.logger.warn(`queue_ext: task ${task.id}: ${outcome.verb} was refused, the lease is lost`);
            }
        }
    }
}
/** Those that one statement can report. */
function groups(batch) {
    const found = new Map();
    for (const ended of batch) {
        const { outcome, task } = ended;
        const shared = outcome.verb === "fail" ? `${outcome.permanent} ${outcome.retryIn}`
            : outcome.verb === "release" ? outcome.delay : outcome.verb === "confirm_cancel" ? task.id : "";
        const name = `${outcome.verb} ${shared}`;
        const group = found.get(name);
        if (group)
            group.push(ended);
        else
            found.set(name, [ended]);
    }
    return [...found.values()];
}
/** The statement for a group. It returns the ids of the tasks for which it was accepted. */
export function acknowledgement(group) {
    const first = group[0].outcome;
    const values = [
        arrayText(group.map(({ task }) => task.id)), arrayText(group.map(({ task }) => task.token)),
    ];
    const each = (member) => values.push(arrayText(group.map(({ outcome }) => outcome[member])));
    const leases = "$1::text::bigint[], $2::text::bigint[]";
    switch (first.verb) {
        case "complete":
            if (group.some(({ outcome }) => outcome.result !== null))
                each("result");
            else
                values.push(null);
            return { text: `SELECT e.id::text FROM queue.complete_many(${leases}, $3::text::jsonb[]) AS e (id)`, values };
        case "fail":
            each("error");
            each("details");
            values.push(first.retryIn, String(first.permanent));
            return {
                text: `SELECT e.id::text FROM queue.fail_many(${leases}, $3::text::text[], details => $4::text::jsonb[],
               retry_in => $5::text::interval, permanent => $6::text::boolean) AS e`, values,
            };
        case "release":
            values.push(first.delay);
            return { text: `SELECT e.id::text FROM queue.release_many(${leases}, $3::text::interval) AS e (id)`, values };
        case "confirm_cancel":
            return {
                text: `SELECT ($1::text::bigint[])[1]::text AS id
               FROM queue.confirm_cancel(($1::text::bigint[])[1], ($2::text::bigint[])[1])`, values,
            };
    }
}
