import type { Interval, Queryable, Statement } from "./sql.js";
/** The arguments of queue.push, with their SQL names. What is undefined is not sent. */
export interface PushOptions {
    priority?: number | undefined;
    run_at?: Date | string | null | undefined;
    delay?: Interval | null | undefined;
    key?: string | null | undefined;
    on_duplicate?: "skip" | "replace" | "reschedule" | "error" | undefined;
    group_key?: string | null | undefined;
    max_attempts?: number | null | undefined;
    headers?: object | null | undefined;
    after?: readonly (string | number | bigint)[] | null | undefined;
    backoff?: object | null | undefined;
    key_ttl?: Interval | null | undefined;
    on_predecessor_failure?: "cancel" | "fail" | "continue" | null | undefined;
    key_ttl_from?: "end" | "push" | null | undefined;
    kind?: string | null | undefined;
    lease?: Interval | null | undefined;
    timeout?: Interval | null | undefined;
    start_by?: Date | string | null | undefined;
    ttl?: Interval | null | undefined;
    weight?: number | undefined;
    batch?: string | number | bigint | null | undefined;
}
/** The arguments of queue.push_many. */
export interface PushManyOptions extends PushOptions {
    keys?: readonly (string | null)[] | null | undefined;
    group_keys?: readonly (string | null)[] | null | undefined;
}
/** Adds a task and returns its id. The connection may be in a transaction. Throws if a trigger of yours on queue.tasks has
 *  suppressed the task. */
export declare function push(connection: Queryable, queue: string, payload?: unknown, options?: PushOptions): Promise<string>;
/** Adds a task for each payload, all or none, and returns their ids in the same order, without those of tasks that a
 *  trigger of yours has suppressed. */
export declare function pushMany(connection: Queryable, queue: string, payloads: readonly unknown[], options?: PushManyOptions): Promise<string[]>;
/** The statement of a push, for libraries that `push` does not know. It returns one row with the column `id`. */
export declare function pushStatement(queue: string, payload?: unknown, options?: PushOptions): Statement;
/** The same for `pushMany`. It returns a row for each payload. */
export declare function pushManyStatement(queue: string, payloads: readonly unknown[], options?: PushManyOptions): Statement;
