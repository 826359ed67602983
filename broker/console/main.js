// The page as a whole: which part is shown, whether the broker answers, and the
// overview, which is asked for every second whatever is shown.
import { ask, say, clock, Refusal } from "./dom.js";
import { overview } from "./overview.js";
import { topics, partitions } from "./topics.js";
import { records } from "./records.js";

const every = 1000; // ms between two questions
const kept = 300; // samples

const main = document.getElementById("main");
const away = document.getElementById("away");
const standing = document.getElementById("standing");

// history is what the charts draw: a sample a second, with rates since the one
// before. It starts when the page is opened.
const history = [];
let newest = null; // overview
let shown = null; // the part shown: {element, tick?, end?}
let lost = 0; // when the broker stopped answering, 0: it answers
let answered = 0; // when it did last

// The address behind # says what is shown: a part, and its parameters.
function place() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const [, part = "", name = ""] = path.split("/");
  return { part, name: decoded(name), query: new URLSearchParams(query ?? "") };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // nobody has a topic of that name
  }
}

function show() {
  const { part, name, query } = place();
  shown?.end?.();
  const known = part === "topics" || part === "records" ? part : "overview";
  shown = known === "topics" ? (name ? partitions(name, query) : topics(query)) : known === "records" ? records(query) : overview(history);
  main.replaceChildren(shown.element);
  for (const a of document.querySelectorAll("nav a")) {
    if (a.dataset.part === known) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  document.title = `Teralog · ${name || known}`;
  if (newest) shown.tick?.(newest);
}

function note(o) {
  const before = newest;
  newest = o;
  answered = Date.now();
  const again = before && (o.now <= before.now || o.start !== before.start); // another process answers
  const dt = before && !again ? (o.now - before.now) / 1000 : 0;
  const rate = (f) => (dt > 0 ? Math.max(f(o) - f(before), 0) / dt : null);
  history.push({
    t: answered,
    in: rate((x) => x.counters.bytes_in),
    out: rate((x) => x.counters.bytes_out),
    records: rate((x) => x.counters.records),
    requests: rate((x) => x.counters.requests),
    latency: dt > 0 ? latencies(before.latency, o.latency) : null,
  });
  if (history.length > kept) history.shift();
}

// latencies returns the quantiles of what was counted between two answers, a
// histogram each: upper bounds in seconds, and how many lay at or below each.
function latencies(before, after) {
  if (!before || !after) return null;
  const counted = after.counts.map((n, i) => n - before.counts[i]);
  const all = counted[counted.length - 1];
  if (!(all > 0)) return null;
  const quantile = (q) => {
    const i = counted.findIndex((n) => n >= q * all);
    const low = i === 0 ? 0 : after.bounds[i - 1], under = i === 0 ? 0 : counted[i - 1];
    const high = after.bounds[i] ?? after.bounds[after.bounds.length - 1];
    return low + (high - low) * ((q * all - under) / Math.max(counted[i] - under, 1));
  };
  return { p50: quantile(0.5), p99: quantile(0.99) };
}

function frame(o) {
  say(standing, o.ready ? (o.reasons.length ? "ready, warned" : "ready") : "not ready");
  standing.className = `pill ${o.ready ? (o.reasons.length ? "fair" : "good") : "bad"}`;
  standing.title = o.reasons.join("\n");
  say(document.getElementById("who"), `Node ${o.node} of cluster ${o.cluster}, Teralog ${o.version}${o.address ? `, clients at ${o.address}` : ""}.`);
  say(document.getElementById("seen"), o.records_off ? `Records are not shown to you: ${o.records_off}.` : "Records are shown to you.");
}

function fail(error) {
  if (!lost) lost = Date.now();
  const why = error instanceof Refusal ? `it says "${error.message}"` : "it does not answer";
  away.hidden = false;
  const old = answered ? `What stands here is of ${clock(answered)}. ` : "";
  say(away, `The broker is away: ${why}, since ${clock(lost)}. ${old}Asking again every second.`);
  say(standing, "away");
  standing.className = "pill bad";
}

async function turn() {
  try {
    const o = await ask("/api/overview");
    note(o);
    lost = 0;
    away.hidden = true;
    frame(o);
    await shown.tick?.(o);
  } catch (error) {
    fail(error);
  }
  setTimeout(turn, every);
}

addEventListener("hashchange", () => {
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
show();
turn();
