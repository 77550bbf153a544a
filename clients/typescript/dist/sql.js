// One way to send a statement through every library that a caller may use.
//
// Every parameter is sent as text and cast by the statement ($1::text::jsonb), because libraries differ in how they send
// objects, dates and arrays, but not in how they send a string.
export async function send(connection, { text, values }) {
    const library = connection;
    let result;
    if (typeof library.$queryRawUnsafe === "function") {
        result = await library.$queryRawUnsafe(text, ...values);
    }
    else if (typeof library.query === "function") {
        result = await library.query(text, values);
    }
    else if (typeof library.execute === "function") {
        // Drizzle takes anything with this method for a query. Its own template would need the caller's copy of Drizzle.
        const query = { toQuery: () => ({ sql: text, params: values }), getSQL: () => query };
        result = await library.execute(query);
    }
    else {
        throw new TypeError("the connection has none of the methods query, $queryRawUnsafe and execute");
    }
    return Array.isArray(result) ? result : result.rows;
}
/** The text of a PostgreSQL array. */
export function arrayText(elements) {
    return `{${elements.map((element) => element === null ? "NULL" : `"${String(element).replace(/["\\]/g, "\\$&")}"`).join(",")}}`;
}
/** The text of a JSON value, or null if there is none. */
export function jsonText(value) {
    return value === null ? null : JSON.stringify(value) ?? null;
}
export function intervalText(interval) {
    return typeof interval === "number" ? `${interval} seconds` : interval;
}
