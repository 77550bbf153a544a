// Formats numbers and times.

// The time of the database's clock, independent of the browser's.
let ahead = 0;
export const setClock = (seconds) => { ahead = seconds - Date.now() / 1000; };
export const now = () => Date.now() / 1000 + ahead;

const whole = new Intl.NumberFormat("en-US");
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const count = (n) => whole.format(n || 0);
export const rate = (n) => (n >= 100 ? whole.format(Math.round(n)) : tenth.format(n || 0));

// 1234567 as 1.2 M, where there is little space.
export function short(n) {
  if (n < 10000) return count(n);
  if (n < 999500) return `${tenth.format(n / 1e3)} k`;
  return `${tenth.format(n / 1e6)} M`;
}

export function bytes(n) {
  if (n < 1024) return `${n} bytes`;
  return n < 1048576 ? `${tenth.format(n / 1024)} kB` : `${tenth.format(n / 1048576)} MB`;
}

// A duration in its two largest units.
export function span(seconds) {
  if (!Number.isFinite(seconds)) return "for ever";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${tenth.format(s)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => s >= size);
  const [unit, size] = units[first];
  const [small, part] = units[first + 1];
  const rest = Math.floor((s % size) / part);
  return `${Math.floor(s / size)} ${unit}${rest && s < 86400 * 10 ? ` ${rest} ${small}` : ""}`;
}

export function ago(time) {
  const past = now() - time;
  if (!Number.isFinite(past)) return past > 0 ? "ever ago" : "never";
  if (Math.abs(past) < 1) return "now";
  const rounded = Math.abs(past) < 60 ? Math.floor(Math.abs(past)) : Math.abs(past);
  return past > 0 ? `${span(rounded)} ago` : `in ${span(rounded)}`;
}

// A future time: "14:00", or "Mon 23 Nov 14:00" if it is not today.
export function timetable(time) {
  const at = new Date(time * 1000);
  const hour = clock(time, true).slice(11).replace(/:00$/, "");
  const day = at.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short" }).replace(",", "");
  return at.toDateString() === new Date(now() * 1000).toDateString() ? hour : `${day} ${hour}`;
}

const two = (n) => String(n).padStart(2, "0");

// Local time, with the date if it is not today.
export function clock(time, always = false) {
  if (!Number.isFinite(Number(time))) return String(time);
  const at = new Date(time * 1000);
  const hour = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const today = at.toDateString() === new Date(now() * 1000).toDateString();
  return today && !always ? hour : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${hour}`;
}
