// The handlers of a worker by kind, and what a call of one comes to.
import { UNCOMMITTED, completed, failed, outcomeOf } from "./outcomes.js";
export class Handlers {
    logger;
    around;
    #handlers = new Map();
    constructor(logger, around) {
        this.logger = logger;
        this.around = around;
    }
    /** Without a kind it takes the tasks that no other handler takes. */
    add(kind, handler) {
        this.#handlers.set(kind, handler);
    }
    /** Never throws. Returns undefined if there is nothing to report. */
    async run(task) {
        const handler = this.#handlers.get(task.kind) ?? this.#handlers.get(null);
        if (handler === undefined) {
            return failed(`no handler for ${task.kind === null ? "tasks without a kind" : `kind "${task.kind}"`}`, "NoHandler");
        }
        try {
            task.parse();
            const call = this.around.reduceRight((inner, around) => () => around(task, inner), async () => handler(task));
            const result = await call();
            return task.completed ? UNCOMMITTED : completed(result);
        }
        catch (error) {
            if (task.refused)
                this.logger.warn(`queue_ext: task ${task.id}: complete was refused, the lease is lost`);
            try {
                return outcomeOf(task, error);
            }
            catch { // What a handler throws may have getters and methods that throw.
                return failed("the handler threw an error that cannot be described", "Error");
            }
        }
    }
}
