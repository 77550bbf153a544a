// Runs jobs with graphile-worker's own runner: work.mjs JOBS CONCURRENCY
//
// The settings are those with which its documents reach the highest rate: a local queue of 500 jobs,
// completions in batches.
import { run, Logger } from "graphile-worker";
import { Handled } from "./handled.mjs";

const [jobs, concurrency] = process.argv.slice(2).map(Number);
const handled = new Handled(jobs);
const runner = await run({
  preset: {
    worker: {
      connectionString: process.env.DATABASE_URL,
      concurrentJobs: concurrency,
      maxPoolSize: concurrency + 1,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: new Logger(() => () => {}),
    },
  },
  taskList: { bench: async (payload) => handled.add(() => payload) },
});
await handled.all;
await runner.stop();
await handled.print();
process.exit(0);
