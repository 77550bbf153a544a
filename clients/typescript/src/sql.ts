// One way to send a statement through every library that a caller may use.
//
// Every parameter is sent as text and cast by the statement ($1::text::jsonb), because libraries differ in how they send
// objects, dates and arrays, but not in how they send a string.

export interface Statement {
  text: string;
  values: (string | null)[];
}

export type Row = Record<string, any>;

/** Whatever can run a statement: a connection or transaction of pg, TypeORM, Prisma or Drizzle. */
export type Queryable =
  | { query(text: string, values: any[]): Promise<any> }
  | { $queryRawUnsafe(text: string, ...values: any[]): Promise<any> }
  | { execute(query: any): Promise<any> };

export async function send(connection: Queryable, { text, values }: Statement): Promise<Row[]> {
  const library = connection as Record<string, any>;
  let result;
  if (typeof library.$queryRawUnsafe === "function") {
    result = await library.$queryRawUnsafe(text, ...values);
  } else if (typeof library.query === "function") {
    result = await library.query(text, values);
  } else if (typeof library.execute === "function") {
    // Drizzle takes anything with this method for a query. Its own template would need the caller's copy of Drizzle.
    const query = { toQuery: () => ({ sql: text, params: values }), getSQL: () => query };
    result = await library.execute(query);
  } else {
    throw new TypeError("the connection has none of the methods query, $queryRawUnsafe and execute");
  }
  return Array.isArray(result) ? result : result.rows;
}

/** The text of a PostgreSQL array. */
export function arrayText(elements: readonly (string | number | bigint | null)[]): string {
  return `{${elements.map((element) =>
    element === null ? "NULL" : `"${String(element).replace(/["\\]/g, "\\$&")}"`).join(",")}}`;
}

/** The text of a JSON value, or null if there is none. */
export function jsonText(value: unknown): string | null {
  return value === null ? null : JSON.stringify(value) ?? null;
}

/** The same for a value that there must be. */
export function requiredJson(value: unknown): string {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError("JSON has no value for undefined, functions and symbols");
  return text;
}

/** A PostgreSQL interval, such as "5 minutes", or a number of seconds. */
export type Interval = string | number;

/** The text of a delay. Throws if no server would take it: not a number, negative, or longer than 100 years. */
export function delayText(delay: Interval): string {
  const valid = typeof delay === "number" ? delay >= 0 && delay <= 100 * 365 * 86400 : typeof delay === "string";
  if (!valid) throw new RangeError("a delay is an SQL interval or a number of seconds from 0 to 100 years");
  return intervalText(delay);
}

export function intervalText(interval: Interval): string {
  if (typeof interval === "string") return interval;
  const seconds = String(interval);
  // JavaScript writes small numbers with an exponent, which PostgreSQL does not read in an interval.
  return `${seconds.includes("e-") ? interval.toFixed(6) : seconds} seconds`;
}
