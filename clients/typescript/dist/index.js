export { push, pushMany, pushManyStatement, pushStatement } from "./push.js";
export { Discard, Retry, Snooze, Stopped, Suspended } from "./outcomes.js";
export { Task } from "./task.js";
export { Worker } from "./worker.js";
