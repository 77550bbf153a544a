// A connection that the worker owns. It is opened when a statement is to be sent, and again after it was lost. Nothing
// of it outlives a statement, so PgBouncer in transaction mode may be in between.

import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import type { Row } from "./sql.js";

/** Where the database is: a connection string, or options of pg's Client. They are sent to another thread, so the
 *  password cannot be a function. */
export type ConnectionOptions = string | {
  connectionString?: string;
  host?: string;
  port?: number;
  user?: string;
  password?: string;
  database?: string;
  ssl?: boolean | object;
  sslnegotiation?: string;
  application_name?: string;
  options?: string;
  connectionTimeoutMillis?: number;
};

/** The longest time in milliseconds that a timer takes; longer ones end at once. */
export const LONGEST = 2 ** 31 - 1;

export class Connection {
  /** Whether it was ever open. */
  opened = false;
  /** Whether the last statement was sent: a connection was open. */
  sent = false;
  readonly #config: object;
  #client: pg.Client | undefined;

  constructor(options: ConnectionOptions | undefined, name: string) {
    const string = typeof options === "string" ? options : options?.connectionString;
    if (string && !/^(\/|[a-z][a-z0-9+.-]*:\/\/)/i.test(string)) {
      throw new TypeError("pg reads connection strings of the form postgresql://user@host:port/database only");
    }
    this.#config = {
      fallback_application_name: name, connectionTimeoutMillis: 10_000, keepAlive: true,
      ...(typeof options === "string" ? { connectionString: options } : options),
      // A parser that the application has set for all of pg may throw, and the rows of a claim would be lost. So all
      // values arrive as texts.
      types: { getTypeParser: () => (text: string) => text },
    };
    // It reads the string, and may refuse it in a text that has the password.
    let host: string;
    try {
      host = new pg.Client(this.#config).host;
    } catch {
      throw new TypeError("pg cannot read the connection string");
    }
    if (host.includes(",")) throw new TypeError("pg connects to one host only");
  }

  /** Opens it unless it is open. */
  async open(): Promise<void> {
    try {
      if (this.#client === undefined) await this.#open();
    } catch (error) {
      this.drop();
      throw error;
    }
  }

  /** Sends one statement, outside of a transaction block. Without an answer in time the connection counts as lost. */
  async query(text: string, values: unknown[], seconds = 60): Promise<Row[]> {
    this.sent = false;
    try {
      const client = this.#client ?? await this.#open();
      this.sent = true;
      return (await inTime(client, client.query<Row>({ text, values }), seconds)).rows;
    } catch (error) {
      // Without that, a claim that waits for a lock on the table would take tasks later, for nobody.
      if (this.sent && sqlState(error) === undefined) this.cancel();
      // A server that has become read-only is not the right one any more.
      if (!this.sent || isConnectionLost(error) || sqlState(error) === "25006") this.drop();
      throw error;
    }
  }

  /** Asks the server to cancel the statement that is running. It may come too late, or too early. */
  cancel(): void {
    const client = this.#client as any;
    if (!client?.processID) return; // It is not open yet.
    try {
      const other = new pg.Client(this.#config) as any;
      const wire = other.connection;
      wire.on("error", () => {});
      wire.stream.unref?.();
      if (other.ssl && other.sslNegotiation !== "direct") wire.once("connect", () => wire.requestSsl());
      wire.once(other.ssl ? "sslconnect" : "connect", () => wire.cancel(client.processID, client.secretKey));
      if (other.host.startsWith("/")) wire.connect(`${other.host}/.s.PGSQL.${other.port}`);
      else wire.connect(other.port, other.host);
    } catch {
      this.drop(); // This part of pg is not documented. A server that loses its client ends the statement, too.
    }
  }

  /** Closes it without waiting for a statement that is running. */
  drop(): void {
    this.#client?.end().catch(() => {});
    this.#client = undefined;
  }

  async #open(): Promise<pg.Client> {
    const client = new pg.Client(this.#config);
    client.on("error", () => { if (this.#client === client) this.#client = undefined; });
    this.#client = client;
    await client.connect();
    this.opened = true;
    return client;
  }
}

/** The answer, or an error after so many seconds without one. */
async function inTime<T>(client: pg.Client, answer: Promise<T>, seconds: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(async () => {
      // A handler may have blocked the event loop for as long, and the answer, such as the tasks of a claim, is there. It is
      // read before the second of these turns.
      const { stream } = (client as any).connection;
      let read: number;
      do {
        read = stream.bytesRead;
        for (const _turn of [1, 2]) await new Promise((resume) => setImmediate(resume));
      } while (stream.bytesRead !== read);
      reject(new Error("no answer in time"));
    }, seconds * 1000);
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
    answer.catch(() => {});
  }
}

/** The SQLSTATE of an error that the server reported. */
export function sqlState(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined;
}

/** Whether another connection may help. A server in recovery (25006) is to be replaced by the new primary. An error of a trigger
 *  leaves the connection open, for example when the trigger has lost a connection of its own to a foreign server. */
export function isConnectionLost(error: unknown): boolean {
  const code = sqlState(error) ?? "08000";
  return /^(08...|57P0[1-5]|53300)$/.test(code) && (error as pg.DatabaseError).severity !== "ERROR";
}

/** Whether the server refuses what a statement contains: the values themselves, or by a trigger of the user's, which can use any
 *  SQLSTATE. The other classes are about the server, the connection, a lock, or an object that is missing or in use. */
export function isRefused(error: unknown): boolean {
  return !/^(08|25|28|3D|3F|40|42|53|55|57|58|XX)/.test(sqlState(error) ?? "08");
}

/** Waits before a repetition: exponentially longer with full jitter, at most `limit` seconds. */
export async function backoff(attempt: number, limit = 10, signal?: AbortSignal): Promise<void> {
  const seconds = Math.random() * Math.min(limit, 0.1 * 2 ** Math.min(attempt, 10));
  await sleep(seconds * 1000, undefined, signal && { signal }).catch(() => {});
}

/** A short description of an error. */
export function describe(error: any): string {
  return error?.message || error?.code || String(error);
}

const NAMES: Record<string, string> = {
  "25006": "the server is read-only", "40001": "serialization failure", "40P01": "deadlock", "42501": "permission denied",
  "53100": "the disk is full", "53200": "out of memory", "53300": "too many connections", "55P03": "a lock is not available",
  "57014": "the statement was cancelled or took too long", P0001: "an error of a trigger",
};

/** A short description of an error for the log. A trigger of the user's can have a payload in the text of its error, with any
 *  SQLSTATE. So only errors of a connection have their text: others than the server's, and those with which it refuses or ends
 *  a connection. */
export function summary(error: unknown): string {
  const code = sqlState(error);
  if (code === undefined || /^(FATAL|PANIC)$/.test((error as pg.DatabaseError).severity ?? "")) return describe(error);
  return `SQLSTATE ${code}` + (NAMES[code] ? ` (${NAMES[code]})` : "");
}

/** What logs have to offer; the console does. */
export interface Logger {
  info(message: string): void;
  warn(message: string): void;
}

/** The same logger, but an error in it is ignored: it must not end the process. */
export function guardLogger(logger: Logger): Logger {
  const log = async (level: keyof Logger, message: string) => {
    try {
      await logger[level](message);
    } catch { // There is nowhere to report it.
    }
  };
  return { info: (message) => void log("info", message), warn: (message) => void log("warn", message) };
}

const MOST_REASONS = 10; // Of one outage: some texts have a number or a time, and differ each time.

/** Logs each reason of an outage once, and its end, however many connections it concerns and however often they try. */
export class Outages {
  readonly #failing = new Set<string>();
  readonly #reasons = new Set<string>();
  constructor(private readonly logger: Logger) {}

  failed(what: string, reason: string): void {
    this.#failing.add(what);
    // One connection can fail by a trigger of the user on some tasks, and then all of them because the server is gone.
    if (this.#reasons.has(reason) || this.#reasons.size === MOST_REASONS) return;
    this.#reasons.add(reason);
    this.logger.warn(`queue_ext: ${what} failed, trying again: ${reason}`);
  }

  worked(what: string): void {
    if (!this.#failing.delete(what) || this.#failing.size > 0) return;
    this.#reasons.clear();
    this.logger.info("queue_ext: working again");
  }
}
