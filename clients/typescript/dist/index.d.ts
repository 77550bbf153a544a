export { push, pushMany, pushManyStatement, pushStatement } from "./push.js";
export type { PushManyOptions, PushOptions } from "./push.js";
export { Discard, Retry, Snooze, Stopped } from "./outcomes.js";
export type { StopReason } from "./outcomes.js";
export type { Interval, Queryable, Statement } from "./sql.js";
export { Task } from "./task.js";
export { Worker } from "./worker.js";
export type { Around, Handler, WorkerOptions } from "./worker.js";
export type { ConnectionOptions, Logger } from "./connection.js";
