import type { Queryable } from "./sql.js";
/** What the heartbeat does for a task. */
export interface Lease {
    completing(task: Task, begun: boolean): void;
    progress(task: Task, json: string): void;
}
export declare class Task<Payload = any> {
    #private;
    /** A bigint, as a string. */
    readonly id: string;
    /** The fencing token of this attempt: a bigint below 2^53, as a string. */
    readonly token: string;
    readonly queue: string;
    readonly kind: string | null;
    readonly payload: Payload;
    readonly headers: Record<string, any> | null;
    readonly attempt: number;
    readonly max_attempts: number;
    readonly priority: number;
    readonly key: string | null;
    readonly group_key: string | null;
    /** What an earlier attempt last reported as progress. */
    readonly progress: any;
    get run_at(): Date;
    get created_at(): Date;
    /** When the lease would have ended without heartbeats, by the server's clock. */
    get lease_until(): Date;
    /** Aborted when the handler should stop. Its reason is a `Stopped`. */
    get signal(): AbortSignal;
    /** Reports any JSON value as the progress of the task, with the next heartbeat, or with the report of its end. */
    setProgress(value: unknown): void;
    /** Completes the task in the transaction of `connection`: its other changes and the completion commit together. */
    complete(connection: Queryable, result?: unknown): Promise<void>;
}
/** Libraries wrap the error of PostgreSQL in one of their own. */
export declare function isLeaseLost(error: any): boolean;
