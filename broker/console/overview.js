// The overview: is it well, what does it do, how full is it, what happened.
import { h, say, keyed, bytes, byteRate, amount, count, duration, moment, clock, ago, utc } from "./dom.js";
import { chart } from "./chart.js";

const span = 5 * 60 * 1000; // ms that the charts show

// A part is a panel with a title and a body.
function panel(title, note, ...body) {
  return h("section", { class: "panel" }, h("header", {}, h("h2", {}, title), note ? h("small", {}, note) : null), ...body);
}

function tile(name, link) {
  const value = h("b", {}, "–"), note = h("span", { class: "note" }, " ");
  return { element: h(link ? "a" : "div", { class: "tile", href: link }, h("span", { class: "name" }, name), value, note), value, note };
}

// meter shows how much of something is used; beyond the two shares it is to be
// looked at, and to be acted on.
function meter(name) {
  const figure = h("span", { class: "figure" }), fill = h("i"), track = h("div", { class: "track", role: "meter", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  const label = h("span", { class: "label" }, name), note = h("small", {});
  const element = h("li", { class: "meter" }, label, figure, track, note);
  element.set = (share, text, [fair, bad], below = "") => {
    const p = Math.min(Math.max(share, 0), 1);
    say(figure, text);
    say(note, below);
    note.hidden = !below;
    fill.style.width = `${p * 100}%`;
    track.className = `track ${p >= bad ? "bad" : p >= fair ? "fair" : "good"}`;
    track.setAttribute("aria-valuenow", (p * 100).toFixed(0));
    track.setAttribute("aria-valuetext", text);
  };
  return element;
}

const write = (v, unit) => (unit === "bytes" ? bytes(v) : count(v));

export function overview(history) {
  const tiles = { well: tile("State"), in: tile("Produced"), out: tile("Fetched"), latency: tile("Produce P99"), hosted: tile("Topics", "#/topics") };
  const reasons = h("ul", { class: "notice reasons", hidden: true });
  const throughput = chart({ title: "Throughput", lines: [{ name: "produced" }, { name: "fetched" }], write: byteRate, span, least: 1000 });
  const latency = chart({ title: "Produce latency", lines: [{ name: "P50", colour: 3 }, { name: "P99", colour: 2 }], write: duration, span, least: 0.0001, logarithmic: true });
  const rates = chart({ title: "Records produced, requests", lines: [{ name: "records" }, { name: "requests", colour: 3 }], write: (v) => `${amount(v)}/s`, span, least: 10 });
  const limits = h("ul", { class: "meters" }), directories = h("ul", { class: "meters" });
  const refused = h("tbody"), recovery = h("ol", { class: "lines" }), events = h("ol", { class: "lines events" });
  const start = h("p", { class: "lead" });
  const eventsPanel = panel("Events", "the newest first", events);
  eventsPanel.classList.add("fill");
  const element = h("div", { class: "overview" },
    h("h1", { class: "hidden" }, "Overview"),
    reasons,
    h("div", { class: "tiles" }, Object.values(tiles).map((t) => t.element)),
    h("div", { class: "charts" }, throughput.element, latency.element, rates.element),
    h("div", { class: "panels" },
      h("div", {}, panel("Limits in use", "what is beyond one is refused", limits), panel("Refused since the start", null, h("table", { class: "plain" }, refused))),
      h("div", {}, panel("Data directories", null, directories), panel("Last start", null, start, recovery), eventsPanel)));

  const draw = () => {
    const sample = (pick) => history.map((p) => ({ t: p.t, values: pick(p) }));
    throughput.draw(sample((p) => [p.in, p.out]));
    latency.draw(sample((p) => [p.latency?.p50 ?? null, p.latency?.p99 ?? null]));
    rates.draw(sample((p) => [p.records, p.requests]));
  };

  function tick(o) {
    const now = history[history.length - 1] ?? {};
    state(tiles.well, o);
    reasons.hidden = o.reasons.length === 0;
    reasons.className = `notice reasons ${o.ready ? "fair" : "bad"}`;
    keyed(reasons, o.reasons, (r) => r, (r) => h("li", {}, r));
    say(tiles.in.value, now.in === null ? "–" : byteRate(now.in));
    say(tiles.in.note, now.records === null ? " " : `${amount(now.records)} records/s`);
    say(tiles.out.value, now.out === null ? "–" : byteRate(now.out));
    say(tiles.out.note, now.requests === null ? " " : `${amount(now.requests)} requests/s`);
    say(tiles.latency.value, now.latency ? duration(now.latency.p99) : "–");
    say(tiles.latency.note, now.latency ? `P50 ${duration(now.latency.p50)}` : "none in the last second");
    say(tiles.hosted.value, count(o.topics));
    say(tiles.hosted.note, `${count(o.partitions)} partitions here${o.offline ? `, ${count(o.offline)} offline` : ""}`);
    draw();
    keyed(limits, o.limits, (l) => l.name, (l) => meter(l.name), (e, l) => e.set(l.max > 0 ? l.used / l.max : 0, `${write(l.used, l.unit)} of ${write(l.max, l.unit)}`, [0.7, 0.9]));
    keyed(directories, o.directories, (d) => d.path, (d) => meter(d.path), showDirectory);
    keyed(refused, o.refused, (r) => r.why, (r) => h("tr", {}, h("td", {}, r.why), h("td", { class: "n" })), (e, r) => {
      say(e.lastChild, count(r.count));
      e.className = r.count ? "some" : "none";
    });
    say(start, startText(o));
    keyed(recovery, o.recovery.map((text, i) => ({ text, i })), (l) => `${l.i} ${l.text}`, (l) => h("li", {}, l.text));
    showEvents(o);
  }

  function showEvents(o) {
    const all = o.events.toReversed();
    keyed(events, all, (e) => e.seq, (e) => h("li", {}, h("time", { title: utc(Date.parse(e.time)) }, clock(Date.parse(e.time))), h("b", {}, e.kind), h("span", {}, fieldsOf(e)), h("small", { class: "ago" })),
      (e, v) => say(e.lastChild, ago(Date.parse(v.time), o.wall)));
    if (!all.length) keyed(events, ["none"], (x) => x, () => h("li", { class: "none" }, "No event yet."));
  }

  return { element, tick, end: () => [throughput, latency, rates].forEach((c) => c.end()) };
}

function state(t, o) {
  const [word, colour] = !o.ready ? ["not ready", "bad"] : o.reasons.length ? ["warned", "fair"] : ["well", "good"];
  say(t.value, word);
  t.element.className = `tile ${colour}`;
  say(t.note, o.reasons.length ? `${count(o.reasons.length)} ${o.reasons.length === 1 ? "reason" : "reasons"}, above` : "ready to serve");
}

const mark = (percent) => (percent < 100 ? percent / 100 : 2); // 100: never

const fieldsOf = (e) => Object.entries(e.fields).map(([name, value]) => `${name}: ${value}`).join(" · ");

function showDirectory(element, d) {
  const placed = `${count(d.partitions)} partitions`;
  if (d.error) return element.set(1, "offline", [0, 0], `${placed}; ${d.error}`);
  if (!d.total) return element.set(0, "its file system does not say", [2, 2], placed);
  const used = 1 - d.free / d.total;
  element.set(used, `${bytes(d.free)} free of ${bytes(d.total)}`, [mark(d.warn), mark(d.refuse)], `${placed}, ${(used * 100).toFixed(0)} % used`);
}

function startText(o) {
  const started = o.started ? `${moment(o.started)} (${ago(o.started, o.wall)}), ` : "";
  const unclean = o.directories.filter((d) => !d.clean);
  return `Start ${count(o.start)}: ${started}${unclean.length ? `after no clean stop of ${unclean.length === o.directories.length ? "any directory" : unclean.map((d) => d.path).join(", ")}` : "after a clean stop, so nothing had to be scanned"}.`;
}
