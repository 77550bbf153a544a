// Orders: reserve, charge, wait for the payment, ship, and remind after a week.
//
//     DATABASE_URL=postgresql://localhost/shop node order.mjs

import pg from "pg";

const { DATABASE_URL, PAYMENT_TIMEOUT = "3 days", REMIND_AFTER = "7 days" } = process.env;

async function fulfil(flow, number, item) {
  await flow.step("reserve", () => changeStock(item, -1));
  await flow.call("charge", (key) => request("charge", key, number));
  if (!(await flow.event(`payment:${number}`, PAYMENT_TIMEOUT)).arrived) {
    await flow.step("cancel", () => changeStock(item, 1));
    return "cancelled";
  }
  await flow.call("ship", (key) => request("ship", key, number));
  await flow.sleep("before the reminder", REMIND_AFTER);
  await flow.step("remind", () => remind(number));
  return "shipped";
}

/** The task waits. It is claimed again when its wait is over. */
class Suspended extends Error {}

/** A task and its finished steps. */
class Flow {
  constructor(id, token, steps) {
    this.lease = [id, token];
    this.done = new Map(steps.map(({ name, value }) => [name, value]));
  }

  static async begin(id, token) {
    const { rows } = await db.query("SELECT name, value FROM queue.steps($1) WHERE kind = 'step'", [id]);
    return new Flow(id, token, rows);
  }

  /** Changes this database. The changes and the step commit together, or not at all. */
  async step(name, work) {
    if (!this.done.has(name)) {
      await db.query("BEGIN");
      await db.query("SELECT queue.assert_lease($1, $2)", this.lease);
      await this.store(name, await work());
      await db.query("COMMIT");
    }
    return this.done.get(name);
  }

  /** Calls another service. If the worker dies before the step is stored, it is called again with the same key. */
  async call(name, work) {
    if (!this.done.has(name)) await this.store(name, await work(`${this.lease[0]}/${name}`));
    return this.done.get(name);
  }

  async store(name, value = null) {
    const step = "SELECT queue.step($1, $2, $3, $4) AS value";
    const { rows } = await db.query(step, [...this.lease, name, JSON.stringify(value)]);
    this.done.set(name, rows[0].value);
  }

  /** Returns whether an event was emitted in time, and its payload. */
  async event(name, timeout) {
    const awaitEvent = "SELECT arrived, payload FROM queue.await_event($1, $2, $3, $4)";
    const { rows } = await db.query(awaitEvent, [...this.lease, name, timeout]);
    if (rows.length === 0) throw new Suspended();
    return rows[0];
  }

  async sleep(name, duration) {
    const { rows } = await db.query("SELECT queue.sleep($1, $2, $3, $4) AS over", [...this.lease, name, duration]);
    if (!rows[0].over) throw new Suspended();
  }
}

async function changeStock(item, number) {
  await db.query("UPDATE stock SET available = available + $1 WHERE item = $2", [number, item]);
}

/** Stands for an HTTP request with the header Idempotency-Key. */
async function request(service, key, number) {
  return (await db.query("SELECT request($1, $2, $3) AS receipt", [service, key, number])).rows[0].receipt;
}

async function remind(number) {
  const mail = `SELECT queue.push('mail', jsonb_build_object('review_order', $1::bigint))
                WHERE NOT EXISTS (SELECT FROM reviews WHERE order_number = $1)`;
  return (await db.query(mail, [number])).rowCount === 1;
}

async function work({ id, token, payload }) {
  try {
    const result = await fulfil(await Flow.begin(id, token), payload.order, payload.item);
    await db.query("SELECT queue.complete($1, $2, $3)", [id, token, JSON.stringify(result)]);
  } catch (error) {
    if (error instanceof Suspended) return;
    console.error(`task ${id}:`, error);
    await db.query("ROLLBACK");
    await db.query("SELECT queue.fail($1, $2, $3)", [id, token, String(error)]).catch((refused) => {
      if (refused.code !== "QX001") throw refused; // The lease is lost: another worker has the task.
    });
  }
}

const db = new pg.Client({ connectionString: DATABASE_URL });
await db.connect();
for (;;) {
  await db.query("CALL queue.wait('orders')");
  const { rows } = await db.query("SELECT id, token, payload FROM queue.claim(queue => 'orders')");
  for (const task of rows) await work(task);
}
