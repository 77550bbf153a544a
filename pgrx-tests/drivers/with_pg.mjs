// Makes the calls that it reads with pg, in the mode that its argument names (calls.py says how they are written).

import { createInterface } from "node:readline";
import pg from "pg";

const mode = process.argv[2];
const db = new pg.Client({ connectionString: process.env.DATABASE_URL, pipeline: mode === "pipelined" });
await db.connect();

function argument(text) {
  const value = text.slice(2);
  return text[0] === "i" ? Number(value) : text[0] === "a" ? value.split("\x1f") : value;
}

function cell(value) {
  const type = value === null ? "null" : typeof value === "object" ? value.constructor.name : typeof value;
  return `${type}=${type === "Object" ? JSON.stringify(value) : value}`;
}

function send([statement, ...texts]) {
  const values = texts.map(argument);
  if (mode === "simple") return db.query({ text: statement, rowMode: "array" });
  // A name makes it a prepared statement.
  const name = mode === "prepared" ? statement.slice(0, 60) : undefined;
  return db.query({ name, text: statement, values, rowMode: "array" });
}

function tell(outcome) {
  if (outcome.status === "rejected") console.log(`error\t${outcome.reason.code}`);
  else console.log(["ok", ...outcome.value.rows.flat().map(cell)].join("\t"));
}

let batch = [];
for await (const line of createInterface({ input: process.stdin })) {
  if (line) {
    batch.push(line.split("\t"));
  } else if (mode === "pipelined") {
    (await Promise.allSettled(batch.map(send))).forEach(tell);
    batch = [];
  } else {
    for (const call of batch) tell((await Promise.allSettled([send(call)]))[0]);
    batch = [];
  }
}
await db.end();
