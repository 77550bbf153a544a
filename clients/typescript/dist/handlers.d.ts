import type { Logger } from "./connection.js";
import type { Outcome } from "./outcomes.js";
import type { Task } from "./task.js";
export type Handler<Payload = any> = (task: Task<Payload>) => unknown;
/** Wraps each call of a handler, for traces and metrics. It returns what `call` returns, and lets pass what it throws. */
export type Around = (task: Task, call: () => Promise<unknown>) => Promise<unknown>;
export declare class Handlers {
    #private;
    private readonly logger;
    private readonly around;
    constructor(logger: Logger, around: Around[]);
    /** Without a kind it takes the tasks that no other handler takes. */
    add(kind: string | null, handler: Handler): void;
    /** Never throws. Returns undefined if there is nothing to report. */
    run(task: Task): Promise<Outcome | undefined>;
}
