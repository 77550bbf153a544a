// Tests of the TypeScript client. They need a database with queue_ext, and for some of them the libraries of
// package.json; a test whose library is missing is skipped.
//
//     npm ci --ignore-scripts        # here, or in a copy of package.json and package-lock.json elsewhere
//     DATABASE_URL=... node --test test_typescript.mjs
//
// QUEUE_EXT_CLIENT names the module to be tested, by default that of the checkout; QUEUE_EXT_LIBRARIES the folder whose
// node_modules has the libraries, by default this one.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { dirname, join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const client = resolve(process.env.QUEUE_EXT_CLIENT ?? join(here, "../../../clients/typescript/dist/index.js"));
const libraries = resolve(process.env.QUEUE_EXT_LIBRARIES ?? here);
const { Discard, Retry, Snooze, Suspended, Worker, push, pushMany, pushManyStatement, pushStatement } =
  await import(pathToFileURL(client).href);
const { Connection, Outages } = await import(pathToFileURL(join(dirname(client), "connection.js")).href);
const pg = createRequire(client)("pg");
const library = createRequire(join(libraries, "package.json"));
const url = process.env.DATABASE_URL;

const has = (name) => existsSync(join(libraries, "node_modules", name));
const needs = (name) => ({ skip: has(name) ? false : `${name} is not installed in ${libraries}` });
const silent = { info() {}, warn() {} };

let db;
const queues = [];

before(async () => {
  db = new pg.Client({ connectionString: url });
  await db.connect();
});

after(async () => {
  for (const queue of queues) await db.query("SELECT queue.drop($1, force => true)", [queue]);
  await db.end();
});

/** A queue for one test, in which a failed attempt is retried at once. */
async function newQueue() {
  const queue = `typescript_${process.pid}_${queues.length}`;
  await db.query(`SELECT queue.create($1, '{"backoff": {"base": "0"}}')`, [queue]);
  queues.push(queue);
  return queue;
}

/** What `read` returns, as soon as it is true. */
async function eventually(what, read) {
  const limit = Date.now() + 30_000;
  for (;;) {
    const value = await read();
    if (value) return value;
    if (Date.now() > limit) assert.fail(`never: ${what}`);
    await new Promise(setImmediate);
  }
}

async function get(id, connection = db) {
  return (await connection.query("SELECT * FROM queue.get($1)", [id])).rows[0];
}

function untilState(id, state) {
  return eventually(`task ${id} is ${state}`, async () => {
    const task = await get(id);
    return task.state === state && task;
  });
}

/** Runs a worker while `work` runs. */
async function working(queue, { connection = url, ...options }, handlers, work) {
  const worker = new Worker(connection, queue, { signals: false, logger: silent, ...options });
  for (const [kind, handler] of Object.entries(handlers)) worker.handler(kind, handler);
  const run = worker.run();
  try {
    await Promise.race([run, work(worker)]);
  } finally {
    worker.stop();
    await run;
  }
}

/** A transaction that is rolled back. */
async function rolledBack(work) {
  await db.query("BEGIN");
  try {
    await work();
  } finally {
    await db.query("ROLLBACK");
  }
}

// Pushing

const ALL_OPTIONS = {
  kind: "welcome", priority: -3, delay: "1 hour", headers: { trace: "\"'\\{},ä" }, max_attempts: 4,
  backoff: { kind: "fixed", base: "2 s" }, lease: 90, timeout: "1 day", ttl: 86400 * 2, key: undefined,
};

async function checkPushes(transaction, queue) {
  const payload = { text: "\"quoted\", 'this', \\ {that} ä 🎈", nested: [1, null, { a: true }] };
  const [id, ids] = await transaction(async (tx) => [
    await push(tx, queue, payload, ALL_OPTIONS),
    await pushMany(tx, queue, [payload, 2, "x", null], { keys: ["a\"\\,{}", null, null, null], run_at: new Date(0) }),
  ]);
  assert.match(id, /^\d+$/);
  const task = await get(id);
  assert.deepEqual([task.queue, task.payload, task.kind, task.headers], [queue, payload, "welcome", ALL_OPTIONS.headers]);
  assert.deepEqual([task.priority, task.max_attempts], [-3, 4]);
  const many = await Promise.all(ids.map((one) => get(one)));
  assert.deepEqual(many.map((one) => one.payload), [payload, 2, "x", null]);
  assert.deepEqual(many.map((one) => one.key), ["a\"\\,{}", null, null, null]);
  let lost;
  const back = transaction(async (tx) => {
    lost = await push(tx, queue);
    throw new Error("back");
  });
  await assert.rejects(back, /back/);
  await assert.rejects(get(lost), { code: "QX003" });
}

test("push and pushMany belong to the transaction of pg", async () => {
  const queue = await newQueue();
  await checkPushes(async (work) => {
    await db.query("BEGIN");
    try {
      const result = await work(db);
      await db.query("COMMIT");
      return result;
    } catch (error) {
      await db.query("ROLLBACK");
      throw error;
    }
  }, queue);
});

test("push and pushMany belong to the transaction of Drizzle", needs("drizzle-orm"), async () => {
  const { drizzle } = library("drizzle-orm/node-postgres");
  const pool = new pg.Pool({ connectionString: url, max: 1 });
  const drizzled = drizzle(pool);
  const queue = await newQueue();
  await checkPushes((work) => drizzled.transaction(work), queue);
  await drainInTransaction((work) => drizzled.transaction(work), queue);
  await pool.end();
});

/** Prisma's client is code that its program writes. It asks for an engine that only migrations use, and is content with
 *  any program in the place of it. */
function prismaClient() {
  const schema = join(libraries, "schema.prisma");
  if (libraries !== here) cpSync(join(here, "schema.prisma"), schema);
  const made = spawnSync(process.execPath, [library.resolve("prisma/build/index.js"), "generate", "--schema", schema], {
    cwd: libraries, encoding: "utf8", env: { ...process.env, PRISMA_SCHEMA_ENGINE_BINARY: process.execPath },
  });
  assert.equal(made.status, 0, made.stdout + made.stderr);
  const { PrismaClient } = library("@prisma/client");
  const { PrismaPg } = library("@prisma/adapter-pg");
  return new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) });
}

test("push and pushMany belong to the transaction of Prisma", needs("prisma"), async () => {
  const prisma = prismaClient();
  const queue = await newQueue();
  // Prisma ends transactions of more than five seconds unless it is told otherwise.
  const transaction = (work) => prisma.$transaction(work, { maxWait: 60_000, timeout: 60_000 });
  await checkPushes(transaction, queue);
  await drainInTransaction(transaction, queue);
  await prisma.$disconnect();
});

async function drainInTransaction(transaction, queue) {
  const worker = new Worker(url, queue, { logger: silent });
  worker.handler("a", async (task) => ({ at: task.run_at.toISOString() }));
  worker.handler("b", () => { throw new Discard("never"); });
  const [done, dead] = await transaction(async (tx) => {
    const ids = [await push(tx, queue, {}, { kind: "a", priority: -9 }), await push(tx, queue, {}, { kind: "b", priority: -9 })];
    const count = await worker.drain(tx);
    assert.ok(count >= 2);
    return ids;
  });
  assert.equal((await get(done)).state, "completed");
  assert.ok(Date.now() - Date.parse((await get(done)).result.at) < 60_000);
  assert.equal((await get(dead)).state, "failed");
}

test("other libraries send the statement of a push themselves", async () => {
  const queue = await newQueue();
  const one = pushStatement(queue, { n: 1 }, { delay: 5, after: ["7", 8n] });
  assert.equal(one.text,
    "SELECT queue.push($1::text, $2::text::jsonb, delay => $3::text::interval, after => $4::text::bigint[])::text AS id");
  assert.deepEqual(one.values, [queue, '{"n":1}', "5 seconds", '{"7","8"}']);
  const many = pushManyStatement(queue, [1, 2], { group_keys: ["a", null] });
  assert.equal((await db.query(many)).rows.length, 2);
});

test("an option that a push does not have is refused", () => {
  assert.throws(() => pushStatement("mail", {}, { runAt: new Date() }), /no option "runAt"/);
  assert.throws(() => pushStatement("mail", {}, { "x => 1) --": 1 }), TypeError);
  assert.throws(() => pushStatement("mail", {}, { toString: 1 }), TypeError);
});

test("a push refuses what is no JSON value", async () => {
  for (const value of [() => 1, Symbol("a")]) assert.throws(() => pushStatement("mail", value), TypeError);
  for (const values of [[undefined], [1, () => 1], new Array(1)]) {
    assert.throws(() => pushManyStatement("mail", values), TypeError);
  }
});

test("a refused push reports its SQLSTATE", async () => {
  await assert.rejects(push(db, "no such queue"), { code: "QX002" });
});

test("a push that a trigger suppresses is an error", () => rolledBack(async () => {
  const queue = await newQueueInTransaction();
  await db.query(`
    CREATE FUNCTION pg_temp.suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER suppress BEFORE INSERT ON queue.tasks FOR EACH ROW EXECUTE FUNCTION pg_temp.suppress()`);
  await assert.rejects(push(db, queue, 1), /suppressed the task/);
  assert.deepEqual(await pushMany(db, queue, [1, 2]), []);
}));

// Running tasks in a test

test("drain runs all due tasks in the transaction, with each outcome", () => rolledBack(async () => {
  const queue = await newQueueInTransaction();
  const runs = [];
  const worker = new Worker(url, queue, { logger: silent });
  worker.handler("plain", (task) => ({ n: task.payload.n }));
  worker.handler("retry", (task) => {
    runs.push(task.attempt);
    if (task.attempt === 1) throw new Retry(0, "later");
  });
  worker.handler("discard", () => { throw new Discard("never"); });
  worker.handler("snooze", () => { throw new Snooze("1 hour"); });
  worker.handler("suspend", async (task) => {
    await db.query("SELECT queue.sleep($1, $2, 'a while', '1 hour')", [task.id, task.token]);
    throw new Suspended();
  });
  worker.handler("complete", (task) => task.complete(db, "by the handler"));
  worker.handler("broken", () => db.query("SELECT 1 / 0"));
  const ids = {};
  for (const kind of ["plain", "retry", "discard", "snooze", "suspend", "complete", "broken", "unknown"]) {
    ids[kind] = await push(db, queue, { n: 5 }, { kind, max_attempts: 2 });
  }
  assert.equal(await worker.drain(db), 11);
  const found = {};
  for (const [kind, id] of Object.entries(ids)) {
    const { state, attempt, result, errors } = await get(id);
    found[kind] = [state, attempt, result, errors?.at(-1).error.split("\n")[0], errors?.at(-1).details.type];
  }
  assert.deepEqual(found, {
    plain: ["completed", 1, { n: 5 }, undefined, undefined],
    retry: ["completed", 2, null, "later", "Retry"],
    discard: ["failed", 1, null, "never", "Discard"],
    snooze: ["queued", 0, null, undefined, undefined],
    suspend: ["queued", 0, null, undefined, undefined],
    complete: ["completed", 1, "by the handler", undefined, undefined],
    broken: ["failed", 2, null, "error: division by zero", "DatabaseError"],
    unknown: ["failed", 2, null, 'no handler for kind "unknown"', "NoHandler"],
  });
  assert.deepEqual(runs, [1, 2]);
}));

test("drain rolls back what a handler has written before its error", () => rolledBack(async () => {
  const queue = await newQueueInTransaction();
  const ids = [await push(db, queue, "fails", { max_attempts: 2 }), await push(db, queue, "returns"), await push(db, queue, "caught")];
  const found = [];
  const worker = new Worker(url, queue, { logger: silent }).handler(async (task) => {
    found.push([task.payload, task.progress]);
    await db.query("CREATE TABLE IF NOT EXISTS typescript_written AS SELECT ''::text AS what WHERE false");
    await db.query("INSERT INTO typescript_written VALUES ($1)", [task.payload]);
    task.setProgress(task.attempt);
    if (task.payload === "caught") await db.query("SELECT 1 / 0").catch(() => {});
    if (task.payload === "fails") throw new Error("boom");
  });
  assert.equal(await worker.drain(db), 4);
  assert.deepEqual(found, [["fails", null], ["fails", 1], ["returns", null], ["caught", null]]);
  assert.deepEqual((await db.query("SELECT what FROM typescript_written")).rows, [{ what: "returns" }]);
  assert.deepEqual(await Promise.all(ids.map(async (id) => (await get(id)).state)), ["failed", "completed", "completed"]);
}));

test("drain ends if a task becomes due again and again", () => rolledBack(async () => {
  const queue = await newQueueInTransaction();
  await push(db, queue);
  const worker = new Worker(url, queue, { logger: silent }).handler(() => { throw new Snooze(0); });
  await assert.rejects(worker.drain(db, { limit: 20 }), /stopped after 20 tasks/);
}));

test("drain can throw the error of a handler", () => rolledBack(async () => {
  const queue = await newQueueInTransaction();
  await push(db, queue);
  const worker = new Worker(url, queue, { logger: silent }).handler(() => { throw new Error("boom"); });
  await assert.rejects(worker.drain(db, { raise: true }), /^Error: boom$/);
}));

test("a handler that completes its task is no error for drain", () => rolledBack(async () => {
  const queue = await newQueueInTransaction();
  const id = await push(db, queue);
  const worker = new Worker(url, queue, { logger: silent }).handler((task) => task.complete(db, 1));
  assert.equal(await worker.drain(db, { raise: true }), 1);
  assert.equal((await get(id)).state, "completed");
}));

async function newQueueInTransaction() {
  await db.query(`SELECT queue.create('typescript_drain', '{"backoff": {"base": "0"}}')`);
  return "typescript_drain";
}

// The worker

test("a worker runs tasks, its hooks wrap each call, and results that cannot be stored harm no others", async () => {
  const queue = await newQueue();
  const ids = await pushMany(db, queue, [..."abcdefgh"], { kind: "echo" });
  const bad = await push(db, queue, "nul", { kind: "bad", max_attempts: 1 });
  const cyclic = await push(db, queue, {}, { kind: "cyclic", max_attempts: 1 });
  const calls = [];
  const around = ["outer", "inner"].map((name) => async (task, call) => {
    calls.push(`${name} ${task.id}`);
    return call();
  });
  await working(queue, { around }, {
    echo: (task) => task.payload,
    bad: () => "\0",
    cyclic: () => {
      const value = {};
      value.value = value;
      return value;
    },
  }, async () => {
    const done = await Promise.all(ids.map((id) => untilState(id, "completed")));
    assert.deepEqual(done.map((task) => task.result), [..."abcdefgh"]);
    assert.match((await untilState(bad, "failed")).errors[0].error, /^the result cannot be stored/);
    assert.match((await untilState(cyclic, "failed")).errors[0].error, /circular/);
  });
  assert.ok(calls.indexOf(`inner ${ids[0]}`) > calls.indexOf(`outer ${ids[0]}`));
  assert.equal(calls.length, 20);
});

test("queues are claimed in the order of preference", async () => {
  const [second, first] = [await newQueue(), await newQueue()];
  const [b, a] = [await push(db, second), await push(db, first)];
  const order = [];
  const worker = new Worker(url, [first, second], { concurrency: 1, signals: false, logger: silent });
  worker.handler((task) => { order.push(task.queue); });
  const run = worker.run();
  await Promise.all([untilState(a, "completed"), untilState(b, "completed")]);
  worker.stop();
  await run;
  assert.deepEqual(order, [first, second]);
});

test("progress is stored with a heartbeat, and progress that cannot be stored harms no lease", async () => {
  const queue = await newQueue();
  const ids = await pushMany(db, queue, [{ page: 1 }, "\\u0000"], { kind: "work" });
  let end;
  const ended = new Promise((done) => { end = done; });
  await working(queue, { lease: 1, heartbeat: 0.1 }, {
    work: (task) => {
      task.setProgress(task.payload === "\\u0000" ? "\0" : task.payload);
      return ended;
    },
  }, async () => {
    await eventually("the progress", async () => (await get(ids[0])).progress?.page === 1);
    const extended = async (id) => (await get(id)).lease_until;
    const [first, other] = [await extended(ids[0]), await extended(ids[1])];
    await eventually("both are extended", async () =>
      await extended(ids[0]) > first && await extended(ids[1]) > other);
    end();
    const tasks = await Promise.all(ids.map((id) => untilState(id, "completed")));
    assert.deepEqual(tasks.map((task) => task.attempt), [1, 1]);
  });
});

test("progress that a trigger refuses harms no lease", async () => {
  const queue = await newQueue();
  await db.query(`
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF NEW.queue = '${queue}' AND NEW.progress = '"refused"' THEN RAISE EXCEPTION 'refused'; END IF;
      RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON queue.tasks FOR EACH ROW EXECUTE FUNCTION refuse()`);
  const ids = await pushMany(db, queue, ["refused", "stored"], { kind: "work" });
  const begun = new Set();
  const warnings = [];
  try {
    await working(queue, { lease: 2, heartbeat: 0.1, logger: { info() {}, warn: (text) => warnings.push(text) } }, {
      work: async (task) => {
        begun.add(task.id);
        await eventually("both have begun", () => begun.size === 2);
        task.setProgress(task.payload);
        await eventually("the lease is kept for twice as long", async () =>
          task.signal.aborted || (await get(task.id)).lease_until - task.lease_until > 4000);
        return (await get(task.id)).progress;
      },
    }, async () => {
      const tasks = await Promise.all(ids.map((id) => untilState(id, "completed")));
      assert.deepEqual(tasks.map(({ attempt, result }) => [attempt, result]), [[1, null], [1, "stored"]]);
    });
  } finally {
    await db.query("DROP FUNCTION refuse() CASCADE");
  }
  assert.deepEqual(warnings, [`queue_ext: task ${ids[0]}: PostgreSQL cannot store its progress`]);
});

test("a lease that has ended before a blocked event loop reads the claim is not used, and another answer is not lost", async () => {
  const queue = await newQueue();
  await push(db, queue, "block", { kind: "block", lease: 30 });
  await push(db, queue, "end", { kind: "end", lease: 30 });
  const locker = new pg.Client(url);
  await locker.connect();
  const attempts = [], said = [];
  let end;
  const ended = new Promise((done) => { end = done; });
  await working(queue, { concurrency: 2, logger: { info() {}, warn: (text) => said.push(text) } }, {
    end: () => ended,
    late: (task) => { attempts.push(task.attempt); },
    block: async () => {
      // Claims wait for the lock, and find another task after that.
      const locked = locker.query(`DO $$ BEGIN
        LOCK TABLE queue.tasks IN ACCESS EXCLUSIVE MODE; PERFORM queue.push('${queue}', kind => 'late', lease => '2 s'), pg_sleep(1.5); END $$`);
      await eventually("the lock", async () => (await db.query(
        "SELECT FROM pg_locks WHERE relation = 'queue.tasks'::regclass AND mode = 'AccessExclusiveLock' AND granted")).rowCount);
      end();
      await eventually("a claim that waits", async () => (await db.query(
        "SELECT FROM pg_stat_activity WHERE query LIKE '%queue.claim%' AND wait_event_type = 'Lock'")).rowCount);
      const until = Date.now() + 5000;
      while (Date.now() < until); // longer than the lock and the lease
      await locked;
    },
  }, async () => {
    await eventually("the task is handled", () => attempts.length > 0);
    assert.deepEqual(attempts, [2]);
    assert.match(said.join(), /1 leases ended before the claim was answered/);
  });
  await locker.end();
});

/** A proxy to which a client can send a megabyte a second, and a connection through it. `sent` is called with all data. */
async function slowProxy(sent = () => {}) {
  const { host, port, user, password, database } = new pg.Client(url);
  const proxy = createServer((from) => {
    const to = host.startsWith("/") ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, host);
    for (const [socket, other] of [[from, to], [to, from]]) socket.on("error", () => {}).on("close", () => other.destroy());
    to.pipe(from);
    from.on("data", (data) => {
      sent(data, from);
      to.write(data);
      from.pause();
      setTimeout(() => from.resume(), data.length / 1000);
    });
  });
  await once(proxy.listen(0, "127.0.0.1"), "listening");
  return { proxy, connection: { host: "127.0.0.1", port: proxy.address().port, user, password, database } };
}

test("progress that takes longer than a lease on a slow connection costs no lease", async () => {
  const queue = await newQueue();
  const { proxy, connection } = await slowProxy();
  const [slow, other] = await pushMany(db, queue, ["slow", "other"], { kind: "work" });
  let end;
  const ended = new Promise((done) => { end = done; });
  await working(queue, { connection, lease: 3 }, {
    work: (task) => {
      task.setProgress(task.payload === "slow" ? "x".repeat(6_000_000) : "short");
      return ended;
    },
  }, async () => {
    const leased = async (id) => (await get(id)).lease_until;
    const [first, second] = [await eventually("the lease", () => leased(slow)), await eventually("the lease", () => leased(other))];
    await eventually("the leases are kept for twice as long", async () =>
      await leased(slow) - first > 6000 && await leased(other) - second > 6000);
    assert.equal((await get(other)).progress, "short");
    end();
    const tasks = await Promise.all([slow, other].map((id) => untilState(id, "completed")));
    assert.deepEqual(tasks.map((task) => task.attempt), [1, 1]);
  });
  proxy.close();
});

test("progress that is too long for a slow connection delays neither the heartbeats nor shorter progress", async () => {
  const queue = await newQueue();
  const beats = new Set(); // Connections with a heartbeat: each is lost by the progress after it.
  const { proxy, connection } = await slowProxy((data, from) => data.includes("queue.extend_many(") && beats.add(from));
  const [slow, other] = await pushMany(db, queue, [6_000_000, 70_000], { kind: "work" });
  const warnings = [];
  let end;
  const ended = new Promise((done) => { end = done; });
  await working(queue, { connection, heartbeat: 0.2, lease: 60, logger: { info() {}, warn: (text) => warnings.push(text) } }, {
    work: (task) => {
      task.setProgress("x".repeat(task.payload));
      return ended;
    },
  }, async () => {
    await eventually("heartbeats at their pace", () => beats.size > 40);
    assert.equal((await get(other)).progress?.length, 70_000);
    end();
    for (const id of [slow, other]) await untilState(id, "completed");
  });
  proxy.close();
  assert.deepEqual(warnings, [`queue_ext: task ${slow}: its progress is not stored yet, trying again: no answer in time`]);
});

test("more leases than one statement takes are extended in several", async () => {
  const { Heartbeat } = await import(pathToFileURL(join(dirname(client), "heartbeat.js")).href);
  let statements = 0;
  const { proxy, connection } = await slowProxy((data) => { statements += data.includes("queue.extend_many("); });
  const count = 100_001;
  const lost = new Set();
  const failures = [];
  const heartbeat = new Heartbeat({ connection, name: "many", heartbeat: 10, lease: null }, (report) => {
    if ("failed" in report) failures.push(report.failed);
    for (const key of report.stop ?? []) lost.add(key);
  }, (error) => failures.push(error));
  const tasks = Array.from({ length: count }, (_, i) => ({ id: String(2 ** 50 + i), token: "1" })); // which nobody has pushed
  const due = Number(process.hrtime.bigint()) / 1e9 - 10;
  heartbeat.hold(tasks, Array(count).fill(3600), due);
  await eventually("an answer for each", () => lost.size === count || failures.length > 0);
  assert.deepEqual([failures, statements], [[], 11]);
  await heartbeat.end();
  proxy.close();
});

/** A connection on which no statement may take longer. */
const impatient = (milliseconds) =>
  `${url}${url.includes("?") ? "&" : "?"}options=-c%20statement_timeout%3D${milliseconds}`;

for (const [name, connection, heartbeat] of [["", url, 0.2], [", with a statement timeout", impatient(150), 2]]) {
  test(`a handler that has locked its task in a transaction does not cost other tasks their leases${name}`, () =>
    checkLockedTask(connection, heartbeat));
}

async function checkLockedTask(connection, heartbeat) {
  const queue = await newQueue();
  const locking = await push(db, queue, {}, { kind: "lock" });
  const others = await pushMany(db, queue, [1, 2, 3, 4], { kind: "wait" });
  const own = new pg.Client({ connectionString: url });
  await own.connect();
  const begun = new Set();
  let end;
  const ended = new Promise((done) => { end = done; });
  await working(queue, { connection, lease: heartbeat * 3 + 1.4, heartbeat }, {
    lock: async (task) => {
      await own.query("BEGIN");
      await own.query("SELECT queue.assert_lease($1, $2)", [task.id, task.token]);
      begun.add(task.id);
      await ended;
      await own.query("ROLLBACK");
    },
    wait: (task) => {
      begun.add(task.id);
      return ended;
    },
  }, async () => {
    await eventually("all have begun", () => begun.size === 5);
    const until = async (id) => (await get(id)).lease_until.getTime();
    const since = await until(others[0]);
    for (const id of others) await eventually(`task ${id} is extended`, async () => await until(id) > since + 3000);
    end();
    for (const id of others) assert.equal((await untilState(id, "completed")).attempt, 1);
    await untilState(locking, "completed");
  });
  await own.end();
}

test("type parsers of the application do not read the rows of a claim", async () => {
  const queue = await newQueue();
  const ids = await pushMany(db, queue, [{ n: 1 }, "x", null], { kind: "echo", headers: { h: [1] } });
  const types = [16, 20, 23, 701, 3802]; // boolean, bigint, integer, float8, jsonb
  const parsers = types.map((type) => pg.types.getTypeParser(type));
  const found = new Map();
  for (const type of types) pg.types.setTypeParser(type, () => { throw new Error("an answer cannot be read"); });
  try {
    await working(queue, {}, {
      echo: (task) => { found.set(task.id, task); },
    }, () => eventually("all have run", () => found.size === 3));
  } finally {
    types.forEach((type, i) => pg.types.setTypeParser(type, parsers[i]));
  }
  const tasks = ids.map((id) => found.get(id));
  assert.deepEqual(tasks.map((task) => task.payload), [{ n: 1 }, "x", null]);
  const { headers, attempt, priority, progress } = { ...tasks[0] };
  assert.deepEqual({ headers, attempt, priority, progress }, { headers: { h: [1] }, attempt: 1, priority: 0, progress: null });
  for (const id of ids) assert.equal((await get(id)).state, "completed");
});

/** Errors that are hard to describe, and the type that is stored for them. */
const ODD_ERRORS = {
  "a cycle of causes": ["Error", () => {
    const error = new Error("boom");
    error.cause = error;
    return error;
  }],
  "a stack that is no string": ["Error", () => Object.assign(new Error("boom"), { stack: ["a", "b"] })],
  "a stack that throws": ["Error", () => Object.defineProperty(new Error("boom"), "stack", { get() { throw 1; } })],
  "a message that is no string": ["Discard", () => Object.assign(new Discard("never"), { message: { a: 1 } })],
  "no constructor": ["undefined", () => Object.assign(new Error("boom"), { constructor: undefined })],
  "a name that cannot be stored": ["ab", () => Object.assign(new Error("boom"), { constructor: { name: "a\0\ud800b" } })],
  "a text that cannot be stored": ["Error", () => new Error("\0\ud800")],
  "a revoked proxy": ["Error", () => {
    const { proxy, revoke } = Proxy.revocable(new Error("boom"), {});
    revoke();
    return proxy;
  }],
};

test("an error that is hard to describe is a failed attempt", async () => {
  const queue = await newQueue();
  const odd = Object.keys(ODD_ERRORS);
  const ids = await pushMany(db, queue, odd, { kind: "odd", max_attempts: 1 });
  await working(queue, {}, { odd: (task) => { throw ODD_ERRORS[task.payload][1](); } }, async () => {
    for (const [i, id] of ids.entries()) {
      const { errors } = await untilState(id, "failed");
      assert.equal(errors[0].details.type, ODD_ERRORS[odd[i]][0], odd[i]);
    }
  });
});

test("a delay that no server takes is a failed attempt", async () => {
  const queue = await newQueue();
  const thrown = {
    nan: () => new Snooze(NaN), negative: () => new Snooze(-5), long: () => new Snooze(1e12), none: () => new Snooze(),
    retry: () => new Retry(Infinity, "later"), text: () => new Retry("soon", "later"), past: () => new Snooze("-1 hour"),
  };
  const ids = await pushMany(db, queue, Object.keys(thrown), { kind: "delay", max_attempts: 1 });
  await working(queue, {}, { delay: (task) => { throw thrown[task.payload](); } }, async () => {
    const errors = [];
    for (const id of ids) errors.push((await untilState(id, "failed")).errors[0].error.split("\n")[0]);
    for (const error of errors.slice(0, 5)) assert.match(error, /^RangeError: a delay is/);
    assert.match(errors[5], /^later; the delay was refused: .*"soon"/);
    assert.match(errors[6], /the delay was refused/);
  });
});

/** Reports results through a server that refuses statements. `refuse` returns the SQLSTATE for a statement, or nothing.
 *  Returns the ids with what was stored for them. */
async function reported(results, refuse, isOpen = () => true, warnings = []) {
  const { Acknowledger } = await import(pathToFileURL(join(dirname(client), "acknowledge.js")).href);
  const stored = {};
  const connection = {
    async query(text, values) {
      this.sent = isOpen();
      const code = refuse(values);
      if (code) throw Object.assign(new pg.DatabaseError("refused", 0, "error"), { code });
      const ids = values[0].match(/\d+/g);
      for (const id of ids) stored[id] = /complete_many/.test(text) ? "completed" : values[3];
      return ids.map((id) => ({ id }));
    },
  };
  const logger = { info() {}, warn: (text) => warnings.push(text) };
  const acknowledger = new Acknowledger(connection, new Outages(logger), logger, () => {});
  for (const [i, result] of results.entries()) {
    const task = { id: String(i), token: String(i), unsentProgress: null };
    acknowledger.add(task, { verb: "complete", result: JSON.stringify(result) });
  }
  await acknowledger.flush();
  return stored;
}

test("an outage that begins in another is logged with its reason", () => {
  const lines = [];
  const outages = new Outages({ info: (line) => lines.push(line), warn: (line) => lines.push(line) });
  outages.failed("acknowledgement", "SQLSTATE 53100");
  for (let i = 0; i < 2; i++) outages.failed("claim", "ENOENT");
  outages.worked("acknowledgement");
  for (let i = 0; i < 2; i++) outages.worked("claim");
  outages.failed("claim", "ENOENT");
  assert.deepEqual(lines.map((line) => line.split(" ").at(-1)), ["53100", "ENOENT", "again", "ENOENT"]);
});

test("reports that are too much for one statement are sent in smaller groups", async () => {
  const length = (values) => values.join("").length;
  const large = Array(20).fill("x".repeat(100_000));
  for (const code of ["57014", "53200", "08P01"]) {
    const stored = await reported(large, (values) => length(values) > 150_000 && code);
    assert.deepEqual(new Set(Object.values(stored)), new Set(["completed"]), code);
  }
  const lengths = [];
  await reported(Array(6).fill("x".repeat(3_000_000)), (values) => { lengths.push(length(values)); });
  assert.ok(Math.max(...lengths) < 8_100_000, String(lengths));
});

test("a result that the server never takes becomes a failure, and harms no others", async () => {
  const results = ["small", "x".repeat(100_000), "small"];
  const stored = await reported(results, (values) => values.join("").length > 50_000 && "57014");
  assert.deepEqual([stored[0], stored[2]], ["completed", "completed"]);
  assert.match(stored[1], /^\{"the result cannot be stored/);
});

test("a report that a trigger refuses becomes a failure, and harms no others", { timeout: 60_000 }, async () => {
  for (const code of ["P0001", "23514", "QX001", "QX003"]) {
    const stored = await reported([..."ABCDE"], ([, , , results]) => results.includes("D") && code);
    const { 3: refused, ...others } = stored;
    assert.match(refused, /^\{"the result cannot be stored/, code);
    assert.deepEqual(Object.values(others), Array(4).fill("completed"), code);
  }
});

test("results are kept during an outage and while the worker has no right", async () => {
  for (const code of ["57014", "42501", "57P01", "08006"]) {
    let left = 4;
    const stored = await reported(["a", "b"], () => left-- > 0 && code);
    assert.deepEqual(stored, { 0: "completed", 1: "completed" }, code);
  }
});

test("results are kept while the login is refused and the server has a fault", async () => {
  for (const code of ["28P01", "28000", "3D000", "22023", "57014", "55P03", "XX000"]) {
    let left = 3;
    const stored = await reported(["a", "b"], () => left-- > 0 && code, () => code === "XX000");
    assert.deepEqual(stored, { 0: "completed", 1: "completed" }, code);
  }
});

test("a report for which a trigger lacks something waits alone, and is accepted later", { timeout: 60_000 }, async () => {
  for (const code of ["42P01", "55000", "58030"]) {
    const others = new Set();
    const warnings = [];
    let tries = 2;
    const stored = await reported(Array(5).fill("x".repeat(100_000)), (values) => {
      const ids = values[0].match(/\d+/g);
      if (ids.includes("3")) return (others.size < 4 || tries-- > 0) && code;
      for (const id of ids) others.add(id);
    }, () => true, warnings);
    assert.deepEqual(new Set(Object.values(stored)), new Set(["completed"]), code);
    // Of the group, and of the one. The text of an error can have a payload in it.
    assert.ok(warnings.length <= 2, String(warnings));
    assert.deepEqual(new Set(warnings), new Set([`queue_ext: acknowledgement failed, trying again: SQLSTATE ${code}`]));
  }
});

test("a connection whose login was refused is opened again", async () => {
  const { Connection } = await import(pathToFileURL(join(dirname(client), "connection.js")).href);
  const { host, port, password } = new pg.Client(url);
  const queue = await newQueue();
  const connection = new Connection({ host, port, password, user: "postgres", database: queue }, queue);
  await assert.rejects(connection.query("SELECT 1", []), { code: "3D000" });
  await db.query(`CREATE DATABASE ${queue}`);
  try {
    assert.equal((await connection.query("SELECT 1", [])).length, 1);
  } finally {
    connection.drop();
    await db.query(`DROP DATABASE ${queue} WITH (FORCE)`);
  }
});

test("progress that is set just before the end of the attempt reaches the next one", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "work" });
  const other = await push(db, queue, {}, { kind: "other" });
  const found = [];
  await working(queue, { heartbeat: 60 }, {
    work: (task) => {
      found.push(task.progress);
      if (task.attempt === 3) return;
      task.setProgress({ page: task.attempt });
      throw new Retry(0, "later");
    },
    other: (task) => {
      if (task.attempt > 1) return task.progress;
      assert.throws(() => task.setProgress(undefined), TypeError);
      task.setProgress("\0");
      throw new Error("boom");
    },
  }, async () => {
    await untilState(id, "completed");
    assert.equal((await untilState(other, "completed")).attempt, 2);
  });
  assert.deepEqual(found, [null, { page: 1 }, { page: 2 }]);
});

test("the reports of a group with a locked task are sent one by one, and then wait for a short time only", async () => {
  const sizes = [];
  const timeouts = new Set();
  let tries = 3;
  const stored = await reported(Array(8).fill("a"), ([ids, , timeout]) => {
    const group = ids.match(/\d+/g);
    sizes.push(group.length);
    timeouts.add(`${group.length > 1} ${timeout}`);
    return group.includes("5") && tries-- > 0 && "55P03";
  });
  assert.equal(Object.keys(stored).length, 8);
  assert.deepEqual(sizes, [8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
  assert.deepEqual([...timeouts], ["true 1s", "false 50ms"]);
});

for (const [name, connection] of [["", url], [", with a statement timeout", impatient(300)]]) {
  test(`a report whose task is locked does not delay those of others${name}`, () => checkLockedReport(connection));
}

async function checkLockedReport(connection) {
  const queue = await newQueue();
  const [locked, ...others] = await pushMany(db, queue, [0, 1, 2, 3], { kind: "work" });
  const own = new pg.Client({ connectionString: url });
  await own.connect();
  let end;
  const ended = new Promise((done) => { end = done; });
  await working(queue, { connection }, {
    work: async (task) => {
      if (task.id === locked) {
        await own.query("BEGIN");
        await own.query("SELECT queue.assert_lease($1, $2)", [task.id, task.token]);
        setImmediate(end); // The others end after this task.
      } else {
        await ended;
      }
    },
  }, async () => {
    for (const id of others) await untilState(id, "completed");
    await own.query("ROLLBACK");
    assert.equal((await untilState(locked, "completed")).attempt, 1);
  });
  await own.end();
}

test("a cancelled handler that locks its task delays no reports", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "cancelled" });
  const own = new pg.Client({ connectionString: url });
  await own.connect();
  let lock;
  const locked = new Promise((resolve) => { lock = resolve; });
  await working(queue, { heartbeat: 0.1 }, {
    cancelled: async (task) => {
      await eventually("it is cancelled", () => task.signal.aborted);
      await own.query("BEGIN");
      await own.query("SELECT queue.assert_lease($1, $2)", [task.id, task.token]);
      lock();
      task.signal.throwIfAborted();
    },
    quick: () => {},
  }, async () => {
    await untilState(id, "running");
    await db.query("SELECT queue.cancel($1)", [id]);
    await locked;
    await new Promise((resolve) => setTimeout(resolve, 200)); // The report of the task that is locked is under way.
    await untilState(await push(db, queue, {}, { kind: "quick" }), "completed");
    await own.query("ROLLBACK");
    await untilState(id, "cancelled");
  });
  await own.end();
});

test("a worker that ends leaves alone a task whose completion is not committed yet", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "completes" });
  const own = new pg.Client({ connectionString: url });
  await own.connect();
  let end;
  const ended = new Promise((done) => { end = done; });
  const warnings = [];
  await working(queue, { shutdownTimeout: 0, logger: { info() {}, warn: (text) => warnings.push(text) } }, {
    completes: async (task) => {
      await own.query("BEGIN");
      await task.complete(own, "late");
      end();
      await new Promise(() => {});
    },
  }, async (worker) => {
    await ended;
    worker.stop(); // And again at the end.
  });
  await own.query("COMMIT");
  await own.end();
  assert.deepEqual(warnings, []);
  const { state, result } = await get(id);
  assert.deepEqual([state, result], ["completed", "late"]);
});

test("the signal has the reason: cancelled, lost, shutdown", async () => {
  const queue = await newQueue();
  const reasons = {};
  const begun = new Set();
  const wait = (task) => new Promise((done, stopped) => {
    begun.add(task.id);
    task.signal.addEventListener("abort", () => {
      reasons[task.id] ??= task.signal.reason.reason;
      stopped(task.signal.reason);
    });
  });
  const [cancelled, lost, shutdown] = await pushMany(db, queue, [1, 2, 3], { kind: "wait" });
  await working(queue, { lease: 5, heartbeat: 0.1, shutdownTimeout: 0 }, { wait }, async () => {
    await eventually("all have begun", () => begun.size === 3);
    await db.query("SELECT queue.cancel($1)", [cancelled]);
    await untilState(cancelled, "cancelled");
    begun.delete(lost);
    await db.query("SELECT queue.end_lease($1)", [lost]);
    await eventually("it runs again", () => begun.has(lost));
  });
  assert.deepEqual(reasons, { [cancelled]: "cancelled", [lost]: "lost", [shutdown]: "shutdown" });
  for (const id of [lost, shutdown]) assert.equal((await get(id)).state, "queued");
  assert.equal((await get(shutdown)).attempt, 0);
});

test("results of a queue that was dropped are counted in the log", async () => {
  const queue = await newQueue();
  const dropped = `${queue}_dropped`;
  await db.query("SELECT queue.create($1)", [dropped]);
  const ids = await pushMany(db, dropped, [1, 2], { kind: "waits" });
  const warnings = [];
  let end;
  const ended = new Promise((resolve) => { end = resolve; });
  const logger = { info() {}, warn: (text) => warnings.push(text) };
  await assert.rejects(working([queue, dropped], { heartbeat: 60, logger }, { waits: () => ended }, async () => {
    for (const id of ids) await untilState(id, "running");
    await db.query("SELECT queue.drop($1, force => true)", [dropped]);
    end();
    await new Promise(() => {}); // Until the claim ends the worker.
  }), { code: "QX002" });
  const counts = warnings.map((text) => text.match(`queue ${dropped}: (\\d) ends of tasks were not accepted`)?.[1] ?? 0);
  assert.equal(counts.reduce((sum, count) => sum + Number(count), 0), 2, warnings.join("\n"));
});

test("an error in a listener of the signal or in the logger ends nothing", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "listens" });
  const heard = [];
  const logged = [];
  const logger = { info() { throw new Error("of the logger"); }, async warn(text) { logged.push(text); throw new Error("of the logger"); } };
  await working(queue, { heartbeat: 0.1, logger }, {
    listens: async ({ signal }) => {
      const removed = () => heard.push("removed");
      signal.addEventListener("abort", removed);
      signal.removeEventListener("abort", removed);
      signal.onabort = () => { throw new Error("S3CR3T"); };
      signal.addEventListener("abort", async () => { throw new Error("S3CR3T"); });
      signal.addEventListener("abort", { handleEvent() { heard.push(this !== undefined); throw new Error("S3CR3T"); } }, { once: true });
      await eventually("it is cancelled", () => signal.aborted);
      signal.throwIfAborted();
    },
  }, async () => {
    await untilState(id, "running");
    await db.query("SELECT queue.cancel($1)", [id]);
    await untilState(id, "cancelled");
  });
  assert.deepEqual(heard, [true]);
  assert.deepEqual(logged, Array(3).fill(`queue_ext: task ${id}: a listener of its signal threw an error`));
});

test("a statement without an answer in time is cancelled, so that a claim does not take tasks for nobody later", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {});
  const connection = new Connection(url, "late");
  const other = new pg.Client({ connectionString: url });
  await other.connect();
  await other.query("BEGIN");
  await other.query("LOCK TABLE queue.tasks IN ACCESS EXCLUSIVE MODE");
  try {
    await assert.rejects(connection.query("SELECT id FROM queue.claim('1 hour', $1)", [queue], 0.5), /no answer in time/);
    const waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'late' AND state = 'active'";
    await eventually("the server has stopped", async () => (await db.query(waiting)).rowCount === 0);
  } finally {
    await other.end(); // and with it the lock
  }
  assert.equal((await get(id)).state, "queued");
  connection.drop();
});

for (const [name, stops] of [["a stop", 1], ["a second stop", 2]]) {
  test(`${name} cancels a claim that waits for a lock, so that it does not take tasks for nobody later`, async () => {
    const queue = await newQueue();
    const ids = await pushMany(db, queue, [1, 2, 3]);
    const other = new pg.Client({ connectionString: url });
    await other.connect();
    await other.query("BEGIN");
    await other.query("LOCK TABLE queue.tasks IN ACCESS EXCLUSIVE MODE");
    const sessions = async (more) =>
      (await db.query(`SELECT FROM pg_stat_activity WHERE application_name = $1 ${more}`, [queue])).rowCount;
    const warnings = [];
    try {
      await working(queue, { name: queue, logger: { info() {}, warn: (text) => warnings.push(text) } }, {}, async (worker) => {
        await eventually("the claim waits", () => sessions("AND query LIKE '%queue.claim%' AND wait_event_type = 'Lock'"));
        for (let i = 1; i < stops; i++) worker.stop();
      });
    } finally {
      await other.end(); // and with it the lock
    }
    await eventually("its sessions have ended", async () => await sessions("") === 0);
    for (const id of ids) {
      const { state, attempt } = await get(id);
      assert.deepEqual([state, attempt], ["queued", 0]);
    }
    assert.deepEqual(warnings, []);
  });
}

test("a server that does not answer a claim does not delay the shutdown", { timeout: 60_000 }, async () => {
  const queue = await newQueue();
  const { host, port, user, password, database } = new pg.Client(url);
  const sockets = [];
  let freeze;
  const frozen = new Promise((resolve) => { freeze = resolve; });
  const proxy = createServer((from) => {
    const to = host.startsWith("/") ? connect(`${host}/.s.PGSQL.${port}`) : connect(port, host);
    sockets.push(from, to);
    for (const socket of [from, to]) socket.on("error", () => {});
    to.pipe(from);
    from.on("data", (data) => data.includes("queue.claim(") ? freeze() : to.write(data));
  });
  await once(proxy.listen(0, "127.0.0.1"), "listening");
  const worker = new Worker({ host: "127.0.0.1", port: proxy.address().port, user, password, database }, queue,
    { signals: false, logger: silent, shutdownTimeout: 0 });
  const run = worker.run();
  await frozen;
  const since = Date.now();
  worker.stop();
  await run;
  assert.ok(Date.now() - since < 20_000);
  for (const socket of sockets) socket.destroy();
  proxy.close();
});

test("a handler's own transaction with complete is rolled back when the lease is lost", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "stale" });
  const codes = [];
  let written;
  const own = new pg.Client({ connectionString: url });
  await own.connect();
  await working(queue, { heartbeat: 60 }, {
    stale: async (task) => {
      if (task.attempt === 2) return;
      await own.query("BEGIN");
      try {
        written = await push(own, queue, {}, { delay: "1 day" });
        await db.query("SELECT queue.end_lease($1)", [task.id]);
        await task.complete(own);
        await own.query("COMMIT");
      } catch (error) {
        codes.push(error.code);
        await own.query("ROLLBACK");
        throw error;
      }
    },
  }, () => untilState(id, "completed"));
  await own.end();
  assert.deepEqual(codes, ["QX001"]);
  await assert.rejects(get(written), { code: "QX003" });
});

test("a handler can complete its task again after a rollback", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "complete" });
  const own = new pg.Client({ connectionString: url });
  await own.connect();
  await working(queue, { lease: 1, heartbeat: 0.1 }, {
    complete: async (task) => {
      await own.query("BEGIN");
      await task.complete(own);
      await own.query("ROLLBACK");
      await eventually("the lease is extended", async () =>
        task.signal.aborted || (await get(id)).lease_until - task.lease_until > 1000);
      await own.query("BEGIN");
      await task.complete(own, "done");
      await own.query("COMMIT");
    },
  }, async () => {
    const { attempt, result } = await untilState(id, "completed");
    assert.deepEqual([attempt, result], [1, "done"]);
  });
  await own.end();
});

test("a task whose completion was not committed is a failed attempt", async () => {
  const queue = await newQueue();
  const ids = await pushMany(db, queue, ["ROLLBACK", "COMMIT"], { kind: "complete", max_attempts: 1 });
  const warnings = [];
  await working(queue, { concurrency: 1, logger: { info() {}, warn: (text) => warnings.push(text) } }, {
    complete: async (task) => {
      const own = new pg.Client({ connectionString: url });
      await own.connect();
      await own.query("BEGIN");
      await task.complete(own);
      await own.query(task.payload);
      await own.end();
    },
  }, async () => {
    const { errors } = await untilState(ids[0], "failed");
    assert.equal(errors[0].error, "the transaction that completed the task was not committed");
    await untilState(ids[1], "completed");
  });
  assert.equal((await get(ids[1])).errors, null);
  assert.deepEqual(warnings, [`queue_ext: task ${ids[0]}: the transaction that completed the task was not committed`]);
});

test("a lease of 100 ms is extended in time", async () => {
  const queue = await newQueue();
  const id = await push(db, queue, {}, { kind: "work", max_attempts: 1000 });
  await working(queue, { lease: 0.1 }, {
    // On a busy machine an attempt may be lost, but not each of them.
    work: (task) => eventually("it was extended", async () => {
      task.signal.throwIfAborted();
      const { lease_until, token } = await get(id);
      return String(token) === task.token && lease_until - task.lease_until > 300;
    }),
  }, () => untilState(id, "completed"));
});

test("times are exact and delays can be tiny, whatever the settings of the role are", async () => {
  const queue = await newQueue();
  await db.query("BEGIN");
  try {
    await db.query("SET LOCAL extra_float_digits = -15");
    const moment = new Date("2024-02-29T12:30:15.123Z");
    await push(db, queue, {}, { run_at: moment });
    await push(db, queue, {}, { delay: 0.1 + 0.2 - 0.3 });
    const seen = [];
    const worker = new Worker(url, queue, { signals: false });
    worker.handler((task) => {
      if (task.attempt === 1 && seen.push(task.run_at) === 2) throw new Snooze(5e-8);
    });
    assert.ok(await worker.drain(db) >= 2);
    assert.equal(seen[0].getTime(), moment.getTime());
    const failed = await db.query("SELECT count(*) FROM queue.all_tasks WHERE queue = $1 AND errors IS NOT NULL", [queue]);
    assert.equal(failed.rows[0].count, "0");
  } finally {
    await db.query("ROLLBACK");
  }
});

test("a worker claims nothing before its three connections were open", async () => {
  const queue = await newQueue();
  const role = `${queue}_role`;
  const ids = await pushMany(db, queue, [1, 2, 3], { kind: "work" });
  await db.query(`CREATE ROLE ${role} LOGIN CONNECTION LIMIT 1`);
  await db.query("SELECT queue.grant_worker($1, $2)", [role, queue]);
  const { host, port, database, password } = new pg.Client(url);
  const outages = [];
  const worker = new Worker({ host, port, database, password, user: role }, queue, {
    signals: false, logger: { info() {}, warn: (text) => outages.push(text) },
  });
  worker.handler(() => {});
  const run = worker.run();
  await eventually("it cannot connect", () => outages.length > 0);
  assert.match(outages[0], /too many connections/);
  for (const id of ids) assert.equal((await get(id)).attempt, 0);
  await db.query(`ALTER ROLE ${role} CONNECTION LIMIT 3`);
  for (const id of ids) assert.equal((await untilState(id, "completed")).attempt, 1);
  worker.stop();
  await run;
  await db.query("SELECT queue.revoke_worker($1, $2)", [role, queue]);
  await db.query(`DROP ROLE ${role}`);
});

test("options that cannot work are refused", () => {
  const made = (connection, queues = "default", options = {}) => () => new Worker(connection, queues, options);
  const errors = [
    "host=/tmp dbname=x password=S3CR3T", "postgresql://me:S3CR3T@a:5432,b:5432/x", "postgresql:///x?host=a,b",
    "postgresql://me:S3CR3T@a:port/x", { connectionString: "dbname=x" }, { host: "a,b" },
  ].map((connection) => {
    try {
      made(connection)();
    } catch (error) {
      return error;
    }
    return assert.fail(`accepted: ${connection}`);
  });
  for (const error of errors) {
    assert.ok(error instanceof TypeError);
    assert.ok(!error.stack.includes("S3CR3T"));
  }
  for (const connection of ["postgresql:///x?host=/tmp", "postgres://a/x", "/tmp x", { host: "a" }, "", undefined]) made(connection)();
  assert.throws(made(url, []), RangeError);
  for (const options of [{ heartbeat: 0 }, { shutdownTimeout: NaN }, { shutdownTimeout: -1 }, { lease: -1 }, { lease: NaN }]) {
    assert.throws(made(url, "default", options), RangeError);
  }
});

test("a database that refuses the worker for good ends run with the error", async () => {
  const refused = (queue, connection = url, options = {}) =>
    new Worker(connection, queue, { signals: false, logger: silent, ...options }).run();
  await assert.rejects(refused("no such queue"), { code: "QX002" });
  await assert.rejects(refused("default", url, { lease: "-1 second" }), { code: "22023" });
  await assert.rejects(refused("default", url, { name: "x".repeat(129) }), { code: "54000" });
  // The path names the database; the name of the host may be among the parameters.
  const elsewhere = url.replace(/^(\w+:\/\/[^/?]*\/)[^?]*/, "$1no_such_database");
  await assert.rejects(refused("default", elsewhere), { code: "3D000" });
});

test("stop ends a waiting worker at once", async () => {
  const queue = await newQueue();
  const name = `${queue} waits`;
  await working(queue, { name }, {}, async (worker) => {
    await worker.ready;
    await eventually("it waits", async () => (await db.query(
      "SELECT FROM pg_stat_activity WHERE application_name = $1 AND state = 'active' AND query LIKE 'CALL%'", [name],
    )).rows.length > 0);
    const since = Date.now();
    worker.stop();
    await eventually("its connections are closed", async () => (await db.query(
      "SELECT FROM pg_stat_activity WHERE application_name = $1", [name])).rows.length === 0);
    assert.ok(Date.now() - since < 5000);
  });
});

// The package

const PROGRAM = `
import pg from "pg";
import { Discard, Retry, Snooze, Stopped, Worker, push, pushMany, pushStatement } from "queue-ext";
import type { Around, Task } from "queue-ext";

interface Letter { to: string; pages?: number }
const db = new pg.Client();
const pool = new pg.Pool();
const id: string = await push(db, "mail", { to: "ada" }, { kind: "welcome", delay: "5 minutes", run_at: undefined });
const ids: string[] = await pushMany(pool, "mail", [1, 2], { keys: ["a", null], priority: 3 });
const { text, values } = pushStatement("mail", {}, { after: [id, ...ids] });
await db.query(text, values);
const trace: Around = async (task, call) => { console.log(task.kind); return call(); };
const worker = new Worker({ host: "localhost", ssl: true }, ["urgent", "mail"], { around: [trace], lease: "1 minute" });
worker.handler<Letter>("welcome", async (task) => {
  const to: string = task.payload.to;
  await fetch(to, { signal: task.signal });
  if (task.signal.reason instanceof Stopped && task.signal.reason.reason === "lost") return;
  if (task.attempt > 3) throw new Discard("never");
  if (task.progress === null) throw new Retry(30, "later");
  throw new Snooze("1 hour");
});
worker.handler(async (task: Task<unknown>) => { await task.complete(db, { ok: true }); });
await worker.run();
const count: number = await worker.drain(db, { raise: true });
// @ts-expect-error an option that a push does not have
await push(db, "mail", {}, { runAt: new Date() });
// @ts-expect-error nothing to send a statement with
await push({}, "mail");
// @ts-expect-error the password is sent to another thread
new Worker({ password: () => "secret" }, "mail");
`;
const DRIZZLE = `
import pg from "pg";
import { drizzle } from "drizzle-orm/node-postgres";
import { push } from "queue-ext";
await drizzle(new pg.Pool()).transaction((tx) => push(tx, "mail", {}));
`;
const PRISMA = `
import { PrismaClient } from "@prisma/client";
import { push } from "queue-ext";
declare const prisma: PrismaClient;
await prisma.$transaction((tx) => push(tx, "mail", {}));
`;

test("an installation runs no script", () => {
  const { scripts } = JSON.parse(readFileSync(join(here, "../../../clients/typescript/package.json"), "utf8"));
  assert.deepEqual(Object.keys(scripts), ["build"]);
});

test("programs that use the client have the right types", needs("typescript"), () => {
  const folder = mkdtempSync(join(libraries, "types-"));
  try {
    const programs = { "program.ts": PROGRAM };
    if (has("drizzle-orm")) programs["drizzle.ts"] = DRIZZLE;
    if (existsSync(join(libraries, "node_modules/.prisma/client/index.d.ts"))) programs["prisma.ts"] = PRISMA;
    for (const [name, text] of Object.entries(programs)) writeFileSync(join(folder, name), text);
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({
      compilerOptions: {
        strict: true, exactOptionalPropertyTypes: true, noEmit: true, module: "NodeNext", target: "ES2022",
        skipLibCheck: true, types: ["node"], paths: { "queue-ext": [client.replace(/\.js$/, ".d.ts")] },
      },
      files: Object.keys(programs),
    }));
    writeFileSync(join(folder, "package.json"), '{"type": "module"}');
    const tsc = spawnSync(process.execPath, [library.resolve("typescript/bin/tsc")], { cwd: folder, encoding: "utf8" });
    assert.equal(tsc.stdout, "");
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("the compiled files in the repository are those of the sources", needs("typescript"), () => {
  const source = join(here, "../../../clients/typescript");
  const folder = mkdtempSync(join(libraries, "built-"));
  try {
    cpSync(join(source, "src"), join(folder, "src"), { recursive: true });
    for (const file of ["tsconfig.json", "package.json"]) cpSync(join(source, file), join(folder, file));
    const tsc = spawnSync(process.execPath, [library.resolve("typescript/bin/tsc")], { cwd: folder, encoding: "utf8" });
    assert.equal(tsc.stdout, "");
    const read = (at) => Object.fromEntries(readdirSync(at).sort().map((name) => [name, readFileSync(join(at, name), "utf8")]));
    assert.deepEqual(read(join(source, "dist")), read(join(folder, "dist")));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
