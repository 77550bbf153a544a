// The same for clients in JavaScript: see handled.py.
const PICKUP = "BENCH_PICKUP" in process.env;
const now = () => Number(process.hrtime.bigint()) / 1e9; // Linux's monotonic clock, as in Python.

export class Handled {
  #jobs;
  #first;
  #count = 0;
  #at = [];
  #finish;

  constructor(jobs) {
    this.#jobs = jobs;
    this.all = new Promise((resolve) => { this.#finish = resolve; });
  }

  // The payload is read only where it is needed.
  add(payload) {
    this.#first ??= now();
    if (PICKUP) this.#at.push([payload().n, now()]);
    this.#count += 1;
    if (this.#count < this.#jobs) return;
    console.log("handled");
    this.#finish();
  }

  // Resolves when it is written: process.exit does not wait for that.
  print() {
    const found = PICKUP ? { first: this.#first, at: this.#at } : { first: this.#first };
    return new Promise((resolve) => process.stdout.write(`${JSON.stringify(found)}\n`, resolve));
  }
}
