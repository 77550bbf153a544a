// Adds tasks in the caller's transaction: they exist if and only if it commits.
import { arrayText, intervalText, jsonText, requiredJson, send } from "./sql.js";
const TYPES = {
    priority: "integer", run_at: "timestamptz", delay: "interval", key: "text", on_duplicate: "text", group_key: "text",
    max_attempts: "integer", headers: "jsonb", after: "bigint[]", backoff: "jsonb", key_ttl: "interval",
    on_predecessor_failure: "text", key_ttl_from: "text", kind: "text", lease: "interval", timeout: "interval",
    start_by: "timestamptz", ttl: "interval", weight: "integer", batch: "bigint",
};
const TYPES_OF_MANY = { ...TYPES, keys: "text[]", group_keys: "text[]" };
/** Adds a task and returns its id. The connection may be in a transaction. Throws if a trigger of yours on queue.tasks has
 *  suppressed the task. */
export async function push(connection, queue, payload, options) {
    const rows = await send(connection, pushStatement(queue, payload, options));
    const id = rows[0].id;
    if (id === null)
        throw new Error("a trigger on queue.tasks has suppressed the task");
    return id;
}
/** Adds a task for each payload, all or none, and returns their ids in the same order, without those of tasks that a
 *  trigger of yours has suppressed. */
export async function pushMany(connection, queue, payloads, options) {
    const rows = await send(connection, pushManyStatement(queue, payloads, options));
    return rows.map((row) => row.id);
}
/** The statement of a push, for libraries that `push` does not know. It returns one row with the column `id`. */
export function pushStatement(queue, payload = {}, options = {}) {
    const { list, values } = named(options, TYPES, [queue, requiredJson(payload)]);
    return { text: `SELECT queue.push($1::text, $2::text::jsonb${list})::text AS id`, values };
}
/** The same for `pushMany`. It returns a row for each payload. */
export function pushManyStatement(queue, payloads, options = {}) {
    const texts = Array.from(payloads, (payload) => requiredJson(payload));
    const { list, values } = named(options, TYPES_OF_MANY, [queue, arrayText(texts)]);
    return { text: `SELECT queue.push_many($1::text, $2::text::jsonb[]${list})::text AS id`, values };
}
/** The arguments in named notation. A name that SQL does not have is refused here, and never becomes part of a statement. */
function named(options, types, values) {
    let list = "";
    for (const [name, value] of Object.entries(options)) {
        if (value === undefined)
            continue;
        const type = Object.hasOwn(types, name) ? types[name] : undefined;
        if (type === undefined)
            throw new TypeError(`a push has no option "${name}"`);
        list += `, ${name} => $${values.push(textOf(value, type))}::text::${type}`;
    }
    return { list, values };
}
function textOf(value, type) {
    if (value === null)
        return null;
    if (value instanceof Date)
        return value.toISOString();
    if (type === "jsonb")
        return jsonText(value);
    if (type === "interval")
        return intervalText(value);
    return Array.isArray(value) ? arrayText(value) : String(value);
}
