import type { ConnectionOptions } from "./connection.js";
import type { Lease, Task } from "./task.js";
/** Messages to the thread. Keys are those of `keyOf`. */
export type Order = {
    hold: {
        key: string;
        id: string;
        token: string;
        seconds: number;
        since: number;
    }[];
} | {
    drop: string[];
} | {
    completing: string;
    begun: boolean;
} | {
    progress: string;
    json: string | null;
} | {
    end: true;
};
/** Messages from the thread. */
export type Report = {
    stop: string[];
    reason: "cancelled" | "lost";
} | {
    failed: string;
} | {
    worked: true;
} | {
    warning: string;
};
export interface HeartbeatOptions {
    connection: ConnectionOptions | undefined;
    name: string;
    /** Seconds between two heartbeats, unless a lease is so short that it needs them more often. */
    heartbeat: number;
    /** How long leases are, or null for the tasks' own. */
    lease: string | null;
}
export declare class Heartbeat implements Lease {
    #private;
    /** Resolves when the connection of the thread was open for the first time. */
    readonly opened: Promise<void>;
    constructor(options: HeartbeatOptions, report: (report: Report) => void, failed: (error: Error) => void);
    /** Extends these leases, which were granted for so many seconds by a statement that was sent at `since`. */
    hold(tasks: Task[], seconds: number[], since: number): void;
    drop(tasks: Task[]): void;
    completing(task: Task, begun: boolean): void;
    progress(task: Task, json: string | null): void;
    end(): Promise<void>;
}
/** The same worker can claim a task again after it has lost its lease. */
export declare function keyOf(task: Task): string;
/** The monotonic clock in seconds, the same in all threads. */
export declare function now(): number;
