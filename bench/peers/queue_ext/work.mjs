// Runs tasks with queue_ext's library for TypeScript: work.mjs TASKS CONCURRENCY
import { Worker } from "queue-ext";
import { Handled } from "./handled.mjs";

const [tasks, concurrency] = process.argv.slice(2).map(Number);
const handled = new Handled(tasks);
const worker = new Worker(undefined, "bench", { concurrency, logger: { info() {}, warn: console.error } });
worker.handler((task) => handled.add(() => task.payload));
const running = worker.run();
await handled.all;
worker.stop();
await running;
await handled.print();
