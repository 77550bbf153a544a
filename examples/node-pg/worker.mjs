// A worker: claims letters, prints them page by page, and sends each exactly once.
//
//     DATABASE_URL=postgresql://localhost/shop node worker.mjs mailer-1

import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const LOST = ["QX001", "QX003"]; // Another worker has the task, or has finished it.
let stopping = false;
process.on("SIGTERM", () => { stopping = true; });

/**
 * @param {pg.Client} db
 * @param {{ id: string, token: string, payload: { to: string, pages?: number } }} task  bigints arrive as strings
 */
async function handle(db, task) {
  const lease = [task.id, task.token];
  for (let page = 1; page <= (task.payload.pages ?? 1); page++) {
    await sleep(20); // The work, a piece at a time.
    const extend = "SELECT * FROM queue.extend($1, $2, progress => jsonb_build_object('page', $3::int))";
    const { rows: [lives] } = await db.query(extend, [...lease, page]);
    if (lives.cancel_requested) return db.query("SELECT queue.confirm_cancel($1, $2)", lease);
    if (stopping) return db.query("SELECT queue.release($1, $2)", lease);
  }
  // What the work writes commits together with the task, or not at all.
  await db.query("BEGIN");
  await db.query("INSERT INTO letters_sent (address) VALUES ($1)", [task.payload.to]);
  await db.query("SELECT queue.complete($1, $2)", lease);
  await db.query("COMMIT");
}

const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
while (!stopping) {
  const { rows: [task] } = await db.query("SELECT * FROM queue.claim(worker => $1)", [process.argv[2]]);
  if (!task) {
    await db.query("CALL queue.wait(timeout => '1 second')");
    continue;
  }
  try {
    await handle(db, task);
  } catch (error) {
    await db.query("ROLLBACK");
    await db.query("SELECT queue.fail($1, $2, $3)", [task.id, task.token, String(error)]).catch((refused) => {
      if (!LOST.includes(refused.code)) throw refused;
      console.error(`task ${task.id}: ${refused.message}`);
    });
  }
}
await db.end();
