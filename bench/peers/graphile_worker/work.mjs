// Runs jobs with graphile-worker's own runner: work.mjs JOBS CONCURRENCY
//
// The settings are those with which its documents reach the highest rate: a local queue of 500 jobs,
// completions in batches.
import { run, Logger } from "graphile-worker";

const [jobs, concurrency] = process.argv.slice(2).map(Number);
let done = 0;
let first;
let finish;
const finished = new Promise((resolve) => { finish = resolve; });
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
  taskList: {
    bench: async () => {
      first ??= performance.now();
      done += 1;
      if (done === jobs) finish();
    },
  },
});
await finished;
const seconds = (performance.now() - first) / 1000;
await runner.stop();
console.log(JSON.stringify({ jobs: done, seconds }));
process.exit(0);
