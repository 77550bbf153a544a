// The worker's side of the heartbeat, which runs in a thread of its own: a handler that blocks the event loop does not
// lose leases.
import { Worker as Thread } from "node:worker_threads";
export class Heartbeat {
    /** Resolves when the connection of the thread was open for the first time. */
    opened;
    #thread;
    #ended;
    constructor(options, report, failed) {
        this.#thread = new Thread(new URL("./heartbeat_thread.js", import.meta.url), { workerData: options });
        this.opened = new Promise((resolve) => this.#thread.on("message", (message) => {
            if ("worked" in message)
                resolve();
            report(message);
        }));
        this.#thread.on("error", failed);
        this.#ended = new Promise((resolve) => this.#thread.once("exit", resolve));
    }
    /** Extends these leases, which were granted for so many seconds by a statement that was sent at `since`. */
    hold(tasks, seconds, since) {
        this.#send({
            hold: tasks.map((task, i) => ({ key: keyOf(task), id: task.id, token: task.token, seconds: seconds[i], since })),
        });
    }
    drop(tasks) {
        this.#send({ drop: tasks.map(keyOf) });
    }
    completing(task, begun) {
        this.#send({ completing: keyOf(task), begun });
    }
    progress(task, json) {
        this.#send({ progress: keyOf(task), json });
    }
    async end() {
        this.#send({ end: true });
        await this.#ended;
    }
    #send(order) {
        this.#thread.postMessage(order);
    }
}
/** The same worker can claim a task again after it has lost its lease. */
export function keyOf(task) {
    return `${task.id}/${task.token}`;
}
/** The monotonic clock in seconds, the same in all threads. */
export function now() {
    return Number(process.hrtime.bigint()) / 1e9;
}
