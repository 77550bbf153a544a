import type { ConnectionOptions, Logger } from "./connection.js";
import type { Around, Handler } from "./handlers.js";
import type { Interval, Queryable } from "./sql.js";
export interface WorkerOptions {
    /** How many tasks run at the same time. Default 10. */
    concurrency?: number;
    /** How long a lease is. By default each task's own, or its queue's option. */
    lease?: Interval;
    /** Seconds between heartbeats; less if a lease is shorter than three times that. Default 10. */
    heartbeat?: number;
    /** Seconds that running tasks have to end after `stop`. Default 30. */
    shutdownTimeout?: number;
    /** Shown in queue.workers and in errors of tasks. Default host:pid. */
    name?: string;
    /** Default: the console. */
    logger?: Logger;
    around?: Around[];
    /** Whether SIGTERM and SIGINT stop the worker. Default true. */
    signals?: boolean;
}
export declare class Worker {
    #private;
    /** Resolves when the first claim has succeeded. */
    readonly ready: Promise<void>;
    /** `queues` is a name, or names in the order of preference. */
    constructor(connection: ConnectionOptions | undefined, queues: string | string[], options?: WorkerOptions);
    /** Sets the handler for tasks of one kind, or the one for all tasks that have no handler of their own. */
    handler<Payload = any>(handler: Handler<Payload>): this;
    handler<Payload = any>(kind: string, handler: Handler<Payload>): this;
    /** Works until `stop` is called or a signal arrives. Throws if the database refuses the worker for good. */
    run(): Promise<void>;
    /** Claims nothing more and lets the running tasks end; called a second time, gives them back at once. */
    stop(): void;
    /** Runs all due tasks one after the other on the caller's connection, in its transaction, and returns how many. For
     *  tests: with `raise` the first error of a handler is thrown instead of reported. What a handler has written before its
     *  error is rolled back. Throws after `limit` tasks. */
    drain(connection: Queryable, { raise, limit }?: {
        raise?: boolean | undefined;
        limit?: number | undefined;
    }): Promise<number>;
}
