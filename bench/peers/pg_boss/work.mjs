// Runs jobs with pg-boss's own worker: work.mjs JOBS CONCURRENCY
//
// A worker that finds a full batch fetches again at once (burstWhenBatchFull) instead of after its
// polling interval, which is at least half a second. That needs batches; 100 are a batch here.
import { PgBoss } from "pg-boss";
import { Handled } from "./handled.mjs";

const [jobs, concurrency] = process.argv.slice(2).map(Number);
const boss = new PgBoss({
  host: process.env.PGHOST, user: process.env.PGUSER, database: process.env.PGDATABASE, max: concurrency + 2,
});
boss.on("error", (error) => console.error(error));
await boss.start();
const handled = new Handled(jobs);
boss.work(
  "bench",
  { batchSize: 100, localConcurrency: concurrency, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true },
  async (batch) => { for (const job of batch) handled.add(() => job.data); },
);
await handled.all;
await boss.stop({ graceful: true, timeout: 20000 });
await handled.print();
process.exit(0);
