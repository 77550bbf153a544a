// Round numbers and times for the axes of charts.

import { count, span } from "./format.js";

// The marks of an axis from 0 to at least `most`: multiples of 1, 2 or 5 times a power of ten.
export function counts(most, marks = 4) {
  const raw = Math.max(1, most) / marks;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(1, [1, 2, 5, 10].find((n) => n * power >= raw) * power);
  const end = Math.max(1, Math.ceil(most / step)) * step;
  const at = Array.from({ length: end / step + 1 }, (_, i) => i * step);
  return { at, text: count, place: (value) => value / end };
}

const DURATIONS = [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000];

// A logarithmic axis of durations in seconds, because the slowest task often takes a thousand times as long as most.
export function durations(values) {
  const least = Math.max(DURATIONS[0], Math.min(...values));
  const most = Math.max(least, ...values);
  const from = DURATIONS.findLastIndex((n) => n <= least);
  const to = Math.max(from + 1, DURATIONS.findIndex((n) => n >= most));
  const at = DURATIONS.slice(from, to < from + 1 ? undefined : to + 1);
  const [low, high] = [Math.log(at[0]), Math.log(at.at(-1))];
  const place = (value) => (Math.log(Math.min(Math.max(value, at[0]), at.at(-1))) - low) / (high - low);
  return { at, text: span, place };
}

const TIMES = [1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000];

// The times to mark between two times, at most `marks` of them: round in the time zone of the browser.
export function times(from, to, marks) {
  const step = TIMES.find((n) => (to - from) / n <= marks) || (to - from) / marks;
  const zone = (time) => new Date(time * 1000).getTimezoneOffset() * 60;
  const at = [];
  const first = from - zone(from);
  for (let local = Math.ceil(first / step) * step; local + zone(from) <= to; local += step) at.push(local + zone(from));
  return { at, text: (time) => moment(time, step) };
}

function moment(time, step) {
  const at = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const midnight = at.getHours() + at.getMinutes() + at.getSeconds() === 0;
  if (step >= 86400 || midnight) return at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return `${two(at.getHours())}:${two(at.getMinutes())}${step < 60 ? `:${two(at.getSeconds())}` : ""}`;
}
