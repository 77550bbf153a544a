// The statements that claim tasks of the worker's queues, and wait for some.

import { sqlState } from "./connection.js";
import type { Connection } from "./connection.js";
import { arrayText } from "./sql.js";
import type { Statement } from "./sql.js";

/** How long a wait takes at most, in seconds: less than the statement timeouts that servers and proxies usually have. */
const WAIT = 10;

/** JSON is sent as text, which the task parses: an error in one payload must not lose the rows of all. Times are sent as
 *  texts of exact numbers, because libraries read timestamps in different ways, and extra_float_digits rounds others. The
 *  server says how long a lease is, so that its clock need not agree with the worker's. */
const COLUMNS = `id::text, token::text, queue, kind, payload::text, headers::text, attempt, max_attempts, priority, key,
  group_key, progress::text, extract(epoch FROM run_at)::text AS run_at, extract(epoch FROM created_at)::text AS created_at,
  extract(epoch FROM lease_until)::text AS lease_until,
  extract(epoch FROM lease_until - statement_timestamp())::text AS lease_seconds`;

export class Claims {
  readonly #queues: string;
  readonly #type: string;

  constructor(queues: string | string[], private readonly lease: string | null, private readonly worker: string) {
    this.#queues = Array.isArray(queues) ? arrayText(queues) : queues;
    // Without the type a list would be taken for the name of one queue.
    this.#type = Array.isArray(queues) ? "text::text[]" : "text";
  }

  claim(tasks: number): Statement {
    return {
      text: `SELECT ${COLUMNS} FROM queue.claim($1::text::interval, $2::${this.#type}, $3::text::integer, $4::text)`,
      values: [this.lease, this.#queues, String(tasks), this.worker],
    };
  }

  /** Waits on the server until there may be something to claim, or until the signal. */
  async wait(connection: Connection, stop: AbortSignal): Promise<void> {
    let cancels: NodeJS.Timeout | undefined;
    // The request may arrive before the statement does, so it is repeated until the statement has ended.
    const cancel = () => {
      let left = 20;
      connection.cancel();
      cancels = setInterval(() => left-- > 0 ? connection.cancel() : connection.drop(), 100);
    };
    stop.addEventListener("abort", cancel);
    try {
      await connection.query(
        `CALL queue.wait($1::${this.#type}, $2::text::interval, worker => $3::text)`,
        [this.#queues, `${WAIT} seconds`, this.worker], WAIT + 10);
    } catch (error) {
      // Cancelled, by this worker or by a statement timeout.
      if (sqlState(error) !== "57014" && !stop.aborted) throw error;
    } finally {
      stop.removeEventListener("abort", cancel);
      clearInterval(cancels);
    }
  }
}
