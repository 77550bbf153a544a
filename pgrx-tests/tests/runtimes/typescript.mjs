// The contract program of the TypeScript client: a worker whose handlers do what the contract for runtimes says.
//
//     QUEUE_EXT_CLIENT=clients/typescript/dist/index.js DATABASE_URL=... QUEUE=... node typescript.mjs
//
// An import does not heed NODE_PATH, so the module that is tested is named by QUEUE_EXT_CLIENT. pg is found from there.

import { createRequire } from "node:module";
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const { DATABASE_URL, QUEUE, CONCURRENCY, LEASE, HEARTBEAT, SHUTDOWN, NAME } = process.env;
const checkout = fileURLToPath(new URL("../../../clients/typescript/dist/index.js", import.meta.url));
const client = resolve(process.env.QUEUE_EXT_CLIENT ?? checkout);
const { Discard, Retry, Snooze, Worker } = await import(pathToFileURL(client).href);
const pg = createRequire(client)("pg");

const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 5 });
const ignore = () => {}; // A connection that is lost between two statements: the next one fails.
pool.on("connect", (db) => db.on("error", ignore));
pool.on("error", ignore);

/** Runs `work` on a connection, in a transaction of its own. */
async function transaction(work) {
  const db = await pool.connect();
  try {
    await db.query("BEGIN");
    await work(db);
    await db.query("COMMIT");
    db.release();
  } catch (error) {
    db.release(true);
    throw error;
  }
}

function insert(db, task, what) {
  return db.query("INSERT INTO effects (task, token, what) VALUES ($1, $2, $3)", [task.id, task.token, what]);
}

const record = (task, what) => transaction((db) => insert(db, task, what));
const pause = (seconds) => new Promise((done) => { setTimeout(done, seconds * 1000); });

/** Waits like `pause`, but throws the reason of the task's signal as soon as the task is stopped. */
function pauseUnlessStopped(task, seconds) {
  return new Promise((done, stopped) => {
    const timer = setTimeout(done, seconds * 1000);
    const stop = () => {
      clearTimeout(timer);
      stopped(task.signal.reason);
    };
    if (task.signal.aborted) stop();
    task.signal.addEventListener("abort", stop, { once: true });
  });
}

const seconds = (text) => (text === undefined || text === "" ? undefined : Number(text));
const worker = new Worker(DATABASE_URL, QUEUE, {
  concurrency: seconds(CONCURRENCY), lease: seconds(LEASE), heartbeat: seconds(HEARTBEAT),
  shutdownTimeout: seconds(SHUTDOWN), name: NAME,
  logger: { info: console.error, warn: console.error },
});

worker.handler("effect", (task) => transaction(async (db) => {
  await insert(db, task, "effect");
  await task.complete(db, { ok: true });
}));
worker.handler("lock", (task) => transaction(async (db) => {
  await db.query("SELECT queue.step($1, $2, 'locks', 'true')", [task.id, task.token]);
  await db.query("SELECT pg_sleep($1)", [task.payload.seconds]);
  await insert(db, task, "effect");
  await task.complete(db);
}));
worker.handler("plain", (task) => ({ n: task.payload.n }));
worker.handler("sleep", async (task) => {
  await record(task, "begun");
  try {
    await pauseUnlessStopped(task, task.payload.seconds);
  } catch (stopped) {
    await record(task, `stopped: ${stopped.reason}`);
    throw stopped;
  }
  await record(task, "ended");
  return null;
});
worker.handler("stubborn", async (task) => {
  await record(task, "begun");
  await pause(task.payload.seconds);
  await record(task, "ended");
});
worker.handler("block", async (task) => {
  await record(task, "begun");
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, task.payload.seconds * 1000);
  await record(task, "ended");
  return null;
});
worker.handler("raise", () => { throw new Error("boom"); });
worker.handler("retry", (task) => {
  if (task.attempt === 1) throw new Retry(task.payload.seconds, "later");
  return null;
});
worker.handler("discard", () => { throw new Discard("never"); });
worker.handler("snooze", async (task) => {
  const { rows } = await pool.query("SELECT FROM effects WHERE task = $1 AND what = 'snoozed'", [task.id]);
  if (rows.length > 0) return null;
  await record(task, "snoozed");
  throw new Snooze(task.payload.seconds);
});
worker.handler("die", () => { process.kill(process.pid, "SIGKILL"); });
worker.handler("stale", (task) => transaction(async (db) => {
  await insert(db, task, "stale");
  await pool.query("SELECT queue.end_lease($1)", [task.id]);
  await task.complete(db);
}));

worker.ready.then(() => console.log("ready"));
await worker.run();
process.exit(0);
