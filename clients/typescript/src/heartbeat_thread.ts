// The thread that extends the leases of all tasks in one statement, and reports which of them are lost or to be
// cancelled.

import { parentPort, workerData } from "node:worker_threads";
import { Connection, LONGEST, backoff, isConnectionLost, isRefused, sqlState, summary } from "./connection.js";
import { now } from "./heartbeat.js";
import type { HeartbeatOptions, Order, Report } from "./heartbeat.js";

/** All times are of the monotonic clock. The server says how long a lease is, and it counts from before the statement
 *  was sent, so that it never ends later here than there. */
interface Held {
  key: string;
  id: string;
  token: string;
  ends: number;
  /** When it is to be extended, and how long after the last time. */
  due: number;
  pace: number;
  progress: string | null;
  /** Whether its long progress could not be sent. That is reported once. */
  late: boolean;
  cancelled: boolean;
  /** How often, one after the other, the server has refused to extend it, and whether that was reported. */
  refusals: number;
  warned: boolean;
  /** The handler has completed it in a transaction, which may be rolled back. It is not lost: if the server does not know
   *  the lease, the transaction was committed. */
  completing: boolean;
}

/** How many leases one statement extends. The server takes ten times as many. */
const LARGEST_BATCH = 10_000;
/** How many statements may fail before one succeeds, until the server is taken for the reason, and not the tasks. */
const MOST_IN_VAIN = 50;

const port = parentPort!;
const options: HeartbeatOptions = workerData;
const connection = new Connection(options.connection, options.name);
const leases = new Map<string, Held>();
let beating = false;
let failures = 0;
let timer: NodeJS.Timeout | undefined;

port.on("message", (order: Order) => {
  if ("end" in order) {
    connection.drop();
    setImmediate(() => process.exit()); // Of this thread.
    return;
  }
  if ("hold" in order) {
    for (const { key, id, token, seconds, since } of order.hold) {
      const held: Held = {
        key, id, token, ends: 0, due: 0, pace: 0, progress: null, late: false, cancelled: false, refusals: 0,
        warned: false, completing: false,
      };
      granted(held, seconds, since);
      leases.set(key, held);
    }
  } else if ("drop" in order) {
    for (const key of order.drop) leases.delete(key);
  } else if ("completing" in order) {
    const held = leases.get(order.completing);
    if (held) held.completing = order.begun;
  } else {
    const held = leases.get(order.progress);
    if (held) held.progress = order.json;
  }
  schedule();
});

void open();

/** The worker claims nothing before this connection was open. */
async function open(): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await connection.open();
      return report({ worked: true });
    } catch (error) {
      report({ failed: summary(error) });
      await backoff(attempt);
    }
  }
}

function report(message: Report): void {
  port.postMessage(message);
}

function granted(held: Held, seconds: number, since: number): void {
  held.ends = since + seconds;
  const third = seconds / 3;
  held.pace = Math.max(Math.min(0.1, third), Math.min(options.heartbeat, third));
  held.due = since + held.pace;
}

function schedule(): void {
  clearTimeout(timer);
  let next = Infinity;
  for (const held of leases.values()) {
    next = Math.min(next, held.completing ? Infinity : held.ends, beating ? Infinity : held.due);
  }
  if (isBroken()) next = 0;
  if (next < Infinity) timer = setTimeout(tick, Math.min(Math.max(0, next - now()) * 1000 + 1, LONGEST));
}

/** Whether all leases were lost in an outage. Then no heartbeat finds out that it is over. */
function isBroken(): boolean {
  return !beating && failures > 0 && leases.size === 0;
}

function tick(): void {
  const moment = now();
  lost([...leases.values()].filter((held) => !held.completing && held.ends <= moment));
  if (isBroken() || (!beating && [...leases.values()].some((held) => held.due <= moment))) {
    beating = true;
    void beat().finally(() => {
      beating = false;
      schedule();
    });
  }
  schedule();
}

/** Extends all leases, also those that are not due yet, so that they are due together the next time. */
async function beat(): Promise<void> {
  const active = [...leases.values()].filter((held) => held.completing || held.ends > now());
  let pace = Infinity;
  for (const held of active) pace = Math.min(pace, held.pace);
  try {
    if (active.length === 0) await connection.open();
    await extendAll(active, Math.max(1, pace));
    if (failures > 0) report({ worked: true });
    failures = 0;
  } catch (error) {
    connection.drop(); // Another server, or another session, may not have the error.
    report({ failed: summary(error) });
    return backoff(failures++, Math.min(1, pace)); // A worker that can claim again needs its heartbeat.
  }
  await sendLong(active, now() + pace);
}

/** One task can make the statement fail for all: its progress is not valid for PostgreSQL, too long, or refused by a constraint,
 *  or a trigger of the user's refuses to have the lease extended. The batch is halved until that task is alone. From then on, a
 *  lease that is refused is sent by itself after the others, and it is lost when it ends. */
async function extendAll(active: Held[], seconds: number): Promise<void> {
  const together = active.filter((held) => held.refusals === 0);
  const batches: [Held[], boolean][] = [];
  for (let start = 0; start < together.length; start += LARGEST_BATCH) {
    batches.push([together.slice(start, start + LARGEST_BATCH), true]);
  }
  for (const held of active) if (held.refusals > 0) batches.push([[held], true]);
  batches.reverse(); // The last one is sent first.
  const refused: [Held, unknown][] = [];
  let inVain = 0;
  let succeeded = false;
  for (let next = batches.pop(); next !== undefined; next = batches.pop()) {
    const [batch, withProgress] = next;
    try {
      await extend(batch, seconds, false, withProgress);
      succeeded = true;
      continue;
    } catch (error) {
      if (!connection.sent || isConnectionLost(error)) throw error;
      inVain++;
      const held = batch[0]!;
      if (batch.length > 1) {
        const half = batch.length >> 1;
        batches.push([batch.slice(half), withProgress], [batch.slice(0, half), withProgress]);
      } else if (withProgress && held.progress !== null && !isLong(held.progress)) {
        if (isRefused(error)) giveUpProgress(held);
        batches.push([batch, false]);
      } else {
        refused.push([held, error]);
        // As likely, the server has no time for any of them. It would take long to find out.
        if (isSlow(error) && held.refusals === 0) [inVain, succeeded] = [MOST_IN_VAIN, false];
      }
      if (inVain >= MOST_IN_VAIN && !succeeded) {
        for (const [other] of refused) other.refusals++;
        throw error;
      }
    }
  }
  if (refused.length > 0 && !succeeded && !refused.some(([, error]) => isRefused(error))) throw refused[0]![1];
  for (const [held, error] of refused) {
    held.due = now() + held.pace;
    held.refusals++;
    if (!held.warned) report({ warning: `task ${held.id}: the server does not extend its lease: ${summary(error)}` });
    held.warned = true;
  }
}

const isSlow = (error: unknown): boolean => /^(53200|57014)$/.test(sqlState(error) ?? "");

function giveUpProgress(held: Held): void {
  report({ warning: `task ${held.id}: PostgreSQL cannot store its progress` });
  held.progress = null;
}

/** Long progress may be too slow for the connection. Then only it is late, and no lease. The shortest is sent first, so that
 *  one that is too slow does not delay others. */
async function sendLong(batch: Held[], until: number): Promise<void> {
  const long = batch.filter((held) => isLong(held.progress));
  for (const held of long.sort((one, other) => one.progress!.length - other.progress!.length)) {
    const seconds = until - now();
    if (seconds <= 0) return;
    if (leases.get(held.key) !== held) continue;
    try {
      await extend([held], seconds, true);
    } catch (error) {
      if (connection.sent && !isConnectionLost(error) && (isRefused(error) || isSlow(error))) {
        giveUpProgress(held);
        continue;
      }
      if (!held.late) report({ warning: `task ${held.id}: its progress is not stored yet, trying again: ${summary(error)}` });
      held.late = true;
      return;
    }
  }
}

/** Whether a server may need much time or memory for it. */
const isLong = (progress: string | null): boolean => progress !== null && progress.length >= 64_000;

/** Extends leases, in one statement that may take so many seconds. */
async function extend(batch: Held[], seconds: number, withLong = false, withProgress = true): Promise<void> {
  if (batch.length === 0) return;
  const since = now();
  const progress = batch.map((held) => withProgress && (withLong || !isLong(held.progress)) ? held.progress : null);
  const rows = await connection.query(`
    SELECT id, cancel_requested, extended, extract(epoch FROM lease_until - statement_timestamp())::text AS seconds
    FROM queue.extend_many($1::bigint[], $2::bigint[], $3::interval, $4::jsonb[], skip_locked => true)`,
  [batch.map((held) => held.id), batch.map((held) => held.token), options.lease,
    progress.some((json) => json !== null) ? progress : null], seconds);
  // If the worker has claimed a task again, only the newer lease counts.
  const newest = new Map<string, Held>();
  for (const held of batch) {
    if (Number(held.token) > Number(newest.get(held.id)?.token ?? -1)) newest.set(held.id, held);
  }
  const kept = new Set<Held>();
  const cancelled: string[] = [];
  for (const row of rows) {
    const held = newest.get(row.id)!;
    kept.add(held);
    if (row.extended === "t") {
      granted(held, Number(row.seconds), since);
      held.refusals = 0;
      if (held.progress === progress[batch.indexOf(held)]) held.progress = null;
    } else {
      // Another transaction has locked the task, for example one in which its handler completes it.
      held.ends = since + Number(row.seconds);
      held.due = since + held.pace / 4;
    }
    const cancelledNow = row.cancel_requested === "t";
    if (cancelledNow && !held.cancelled) cancelled.push(held.key);
    held.cancelled = cancelledNow;
  }
  if (cancelled.length > 0) report({ stop: cancelled, reason: "cancelled" });
  // Some of the others may have ended, or been completed, while the statement was under way.
  const left = batch.filter((held) => !kept.has(held) && leases.get(held.key) === held);
  for (const held of left) if (held.completing) leases.delete(held.key);
  lost(left.filter((held) => !held.completing));
}

function lost(batch: Held[]): void {
  if (batch.length === 0) return;
  for (const held of batch) leases.delete(held.key);
  report({ stop: batch.map((held) => held.key), reason: "lost" });
}
