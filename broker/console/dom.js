// What all parts of the page use: elements, questions to the broker, and
// numbers as people read them. Whatever comes from the broker enters the page
// as text; nothing here, or anywhere, makes markup of it.

// h returns an element. Properties are attributes, except class, on* handlers
// and booleans; children are elements or text; null is left out.
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

// s is h for drawings.
export function s(tag, properties, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return element;
}

// say sets a text only if it changes, so that a selection in it stays.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// keyed makes the children of a container those of items, in this order. An
// element stays as long as its item's key does, so focus, selections and what
// was opened stay, too.
export function keyed(container, items, key, make, update) {
  const old = new Map([...container.children].map((c) => [c.dataset.key, c]));
  let at = container.firstElementChild;
  for (const item of items) {
    const k = String(key(item));
    let element = old.get(k);
    if (!element) {
      element = make(item);
      element.dataset.key = k;
    }
    old.delete(k);
    update?.(element, item);
    if (element === at) at = at.nextElementSibling;
    else container.insertBefore(element, at);
  }
  for (const gone of old.values()) gone.remove();
}

// A Refusal is an answer of the broker that is no success.
export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const patience = 5000; // ms until a question counts as not answered

// ask returns what the broker answers to an address with parameters, of which
// empty ones are left out. Its error is a Refusal, or says that there was no
// answer.
export async function ask(address, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  const text = query.toString();
  const given = new AbortController();
  const up = setTimeout(() => given.abort(), patience);
  let response, body;
  try {
    response = await fetch(text ? `${address}?${text}` : address, { signal: given.signal, cache: "no-store" });
    body = await response.text();
  } catch {
    throw new Error("The broker did not answer.");
  } finally {
    clearTimeout(up);
  }
  if (!response.headers.get("Content-Type")?.startsWith("application/json")) throw new Refusal(response.status, "", body.trim()); // while it starts
  const answer = JSON.parse(body);
  if (!response.ok) throw new Refusal(response.status, answer.error?.code ?? "", answer.error?.message ?? response.statusText);
  return answer;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (n) => whole.format(n);

// short writes a number with three digits that matter.
function short(v) {
  const a = Math.abs(v);
  return v === 0 ? "0" : a >= 100 ? v.toFixed(0) : a >= 10 ? v.toFixed(1) : v.toFixed(2);
}

function scaled(v, units, base) {
  let i = 0;
  while (i < units.length - 1 && Math.abs(v) >= base * 0.9995) {
    v /= base;
    i++;
  }
  return { v, unit: units[i], i };
}

export function bytes(n) {
  const { v, unit, i } = scaled(n, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);
  return `${i === 0 ? whole.format(v) : short(v)} ${unit}`;
}

export const byteRate = (n) => `${bytes(n)}/s`;

// amount writes a count or a rate of counts in at most five characters.
export function amount(n) {
  const { v, unit, i } = scaled(n, ["", "k", "M", "G"], 1000);
  return i === 0 ? (Number.isInteger(v) || v >= 100 ? whole.format(v) : v.toFixed(v < 10 ? 1 : 0)) : short(v) + unit;
}

// duration writes seconds.
export function duration(seconds) {
  if (seconds === 0) return "0 ms";
  if (seconds < 1e-3) return `${short(seconds * 1e6)} µs`;
  if (seconds < 1) return `${short(seconds * 1e3)} ms`;
  if (seconds < 120) return `${short(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const two = (n) => String(n).padStart(2, "0");

// moment writes a time of this machine, the number itself if it is none.
export function moment(ms) {
  const t = new Date(ms);
  if (Number.isNaN(t.getTime())) return String(ms);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock(ms)}.${String(t.getMilliseconds()).padStart(3, "0")}`;
}

export function clock(ms) {
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

// utc is moment for everybody, to be shown on top of it.
export function utc(ms) {
  const t = new Date(ms);
  return Number.isNaN(t.getTime()) ? `${ms} ms` : `${t.toISOString()} · ${ms} ms`;
}

// ago says how long before now a time was.
export function ago(ms, now) {
  if (!ms) return "never";
  const s = (now - ms) / 1000;
  return s < -2 ? `in ${duration(-s)}` : s < 2 ? "just now" : s < 120 ? `${Math.round(s)} s ago` : `${duration(s)} ago`;
}
