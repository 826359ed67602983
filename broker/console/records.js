// Records of one partition: by offset, by time or from an end, those that match,
// a page at a time and back and forth.
import { h, say, keyed, ask, bytes, count, moment, utc } from "./dom.js";
import { pretty } from "./json.js";

const every = 1900; // ms between two looks for new records
const most = 200; // records shown

export function records(query) {
  const names = h("datalist", { id: "topics" });
  const field = (name, properties, label, help, width) => {
    const input = h("input", { name, value: query.get(name) ?? "", autocomplete: "off", spellcheck: "false", ...properties });
    return { input, element: h("label", { title: help, class: width }, h("span", {}, label), input) };
  };
  const topic = field("topic", { list: "topics", required: true, placeholder: "name", oninput: () => suggest() }, "Topic", null, "w5");
  const partition = field("partition", { type: "number", min: "0", step: "1", placeholder: "0" }, "Partition", null, "w2");
  const place = h("select", { name: "at", onchange: () => follow() },
    ...[["newest", "the newest"], ["oldest", "the oldest"], ["offset", "at offset"], ["time", "at time"]].map(([v, t]) => h("option", { value: v, selected: (query.get("at") ?? (query.has("offset") ? "offset" : query.has("time") ? "time" : "newest")) === v }, t)));
  const offset = field("offset", { inputmode: "numeric", pattern: "[0-9]*", placeholder: "0" }, "Offset");
  const time = field("time", { placeholder: "-15m or 2026-01-31T10:00:00Z" }, "Time", "the first record at or after it: -15m, 2026-01-31, 2026-01-31T10:00:00Z, or seconds or ms since 1970");
  const key = field("key", { placeholder: "any" }, "Key", "the whole key; * at its beginning or end stands for anything", "left");
  const header = field("header", { placeholder: "any" }, "Header", "NAME or NAME=VALUE; * at the beginning or end of the value stands for anything");
  const value = field("value", { placeholder: "any" }, "Value", "the whole value; * at its beginning or end stands for anything", "w4");
  const form = h("form", { class: "panel search", onsubmit: (e) => (e.preventDefault(), go()) },
    topic.element, names, partition.element, h("label", { class: "w2" }, h("span", {}, "Show"), place), offset.element, time.element,
    key.element, header.element, value.element, h("button", { type: "submit", class: "first w2" }, "Show"));

  const error = h("p", { class: "notice bad", role: "alert", hidden: true });
  const damaged = h("ul", { class: "notice bad reasons", hidden: true });
  const body = h("div", { class: "records" });
  const where = h("span", { role: "status" });
  const older = h("button", { type: "button", onclick: () => look({ before: page.from }) }, "← Older");
  const newer = h("button", { type: "button", onclick: () => look({ offset: page.to }) }, "Newer →");
  const live = h("input", { type: "checkbox", checked: !query.has("still") });
  const following = h("label", { class: "live" }, live, " follow the newest");
  const result = h("div", { hidden: true }, damaged,
    h("div", { class: "pager" }, older, where, newer, following),
    h("div", { class: "panel" }, body));
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, "Records")), form, error, result);
  let page = null, asked = 0, at = 0, tail = false; // tail: what is shown are the newest

  const chosen = () => ({ topic: topic.input.value.trim(), partition: partition.input.value || "0", key: key.input.value, header: header.input.value, value: value.input.value });

  function follow() { // the field that the choice of a place needs
    offset.element.hidden = place.value !== "offset";
    time.element.hidden = place.value !== "time";
  }

  async function suggest() {
    const { rows } = await ask("/api/topics", { find: topic.input.value.trim(), limit: 20 }).catch(() => ({ rows: [] }));
    keyed(names, rows, (t) => t.name, (t) => h("option", { value: t.name }));
  }

  // go puts what the form says into the address, so that it can be passed on.
  function go() {
    const p = new URLSearchParams(Object.entries({ ...chosen(), at: place.value, [place.value]: place.value === "offset" ? offset.input.value || "0" : place.value === "time" ? time.input.value : "" }).filter(([, v]) => v !== ""));
    const next = `#/records?${p}`;
    if (next === location.hash) start();
    else history.replaceState(null, "", next), start();
  }

  const first = () => (place.value === "oldest" ? { offset: 0 } : place.value === "offset" ? { offset: offset.input.value || 0 } : place.value === "time" ? { time: time.input.value || "-0s" } : { before: Number.MAX_SAFE_INTEGER });
  const start = () => look(first(), place.value === "newest");

  // look shows the records from somewhere. newest says that they are the newest;
  // more, that they come behind those shown.
  async function look(from, newest = false, more = false) {
    const mine = ++asked;
    at = Date.now();
    result.classList.add("busy");
    try {
      const answer = await ask("/api/records", { ...chosen(), ...from });
      if (mine !== asked) return;
      tail = newest;
      draw(more ? { ...answer, from: page.from, looked: page.looked + answer.looked, records: [...page.records, ...answer.records].slice(-most), damaged: [...page.damaged, ...answer.damaged].slice(-most) } : answer);
    } catch (e) {
      if (mine !== asked) return;
      error.hidden = false;
      say(error, e.message);
      if (!newest || !page) result.hidden = true;
    } finally {
      if (mine === asked) result.classList.remove("busy");
    }
  }

  function draw(answer) {
    page = answer;
    error.hidden = true;
    result.hidden = false;
    following.hidden = !tail;
    keyed(body, tail ? answer.records.toReversed() : answer.records, (r) => r.offset, (r) => row(answer, r));
    if (!answer.records.length) keyed(body, [answer], () => "none", () => h("p", { class: "none" }), (e) => say(e, nothing(answer)));
    damaged.hidden = !answer.damaged.length;
    keyed(damaged, answer.damaged, (d) => `${d.from}-${d.to}`, (d) => h("li", {}, `Offsets ${d.from} to ${d.to - 1} cannot be read: ${d.why}.`));
    say(where, `${text(answer)}${answer.stopped ? "; the search ended here, its bounds were reached" : ""}`);
    older.disabled = answer.from <= answer.start;
    newer.disabled = answer.to >= answer.committed;
  }

  const filtered = () => key.input.value || header.input.value || value.input.value;
  const text = (a) => `${filtered() ? `${count(a.records.length)} of ${count(a.looked)} looked at, ` : ""}offsets ${a.from} to ${Math.max(a.to - 1, a.from)} of ${a.start} to ${Math.max(a.committed - 1, a.start)}`;
  function nothing(a) {
    if (a.committed === a.start) return "The partition is empty.";
    if (a.from === a.to && a.to >= a.committed) return "Nothing here yet: this is the end of the partition.";
    return a.stopped ? "None matched so far; go on with the buttons above." : "None matched.";
  }

  function tick() {
    if (!tail || !live.checked || !page || Date.now() - at < every || document.getSelection()?.toString()) return null;
    // What has been searched already is not searched again every other second.
    return filtered() ? look({ offset: page.to, limit: most }, true, true) : look(first(), true);
  }

  follow();
  if (topic.input.value) start();
  else suggest();
  return { element, tick };
}

// row is one record: a line, and all of it once it is opened.
function row(page, r) {
  const opened = h("div", { class: "whole" });
  const details = h("details", { class: "record", ontoggle: () => {
    if (details.open && !opened.firstChild) opened.append(...whole(page, r));
  } },
  h("summary", {},
    h("span", { class: "offset" }, String(r.offset)),
    h("time", { title: utc(r.time) }, moment(r.time)),
    h("span", { class: "key" }, brief(r.key)),
    h("span", { class: "value" }, brief(r.value)),
    h("span", { class: "headers" }, r.headers.length + r.headers_left ? `${count(r.headers.length + r.headers_left)} ${r.headers.length + r.headers_left === 1 ? "header" : "headers"}` : "")),
  opened);
  return details;
}

// brief shows bytes in a line; null and empty are told apart, and from text that
// says so.
function brief(b) {
  if (b === null) return h("em", { class: "badge" }, "null");
  if (b.size === 0) return h("em", { class: "badge" }, "empty");
  if (b.text === undefined) return h("span", { class: "hex" }, b.hex.slice(0, 128).replace(/../g, "$& "));
  return h("span", {}, b.text.slice(0, 300));
}

function whole(page, r) {
  const headers = r.headers.length ? h("table", { class: "plain" }, h("tbody", {}, r.headers.map((x, i) => h("tr", {}, h("th", { scope: "row" }, brief(x.name)), h("td", {}, full(page, r, x.value, "header", i)))))) : h("p", { class: "none" }, "none");
  return [
    h("h3", {}, "Key"), full(page, r, r.key, "key"),
    h("h3", {}, "Headers"), headers, r.headers_left ? h("p", { class: "none" }, `and ${count(r.headers_left)} more`) : null,
    h("h3", {}, "Value"), full(page, r, r.value, "value"),
  ].filter((e) => e);
}

// full shows bytes as the broker sent them, with a link to the rest.
function full(page, r, b, part, header) {
  if (b === null || b.size === 0) return brief(b);
  if (part !== "value" && b.text !== undefined && b.text.length === b.size && b.size <= 120 && !b.text.includes("\n")) return h("span", { class: "inline" }, b.text);
  const shown = b.text === undefined ? dump(b.hex) : b.cut ? b.text : pretty(b.text);
  const link = h("a", { download: "", href: `/api/value?${new URLSearchParams({ topic: page.topic, partition: page.partition, offset: r.offset, part, ...(part === "header" ? { header } : {}) })}` }, b.cut ? `fetch all ${bytes(b.size)}` : "download");
  const kind = b.text === undefined ? "not text, shown as hexadecimal" : shown === b.text ? "text" : "JSON, indented";
  return h("div", {}, h("pre", { tabindex: "0" }, shown), h("p", { class: "note" }, `${bytes(b.size)}, ${kind}${b.cut ? `; cut after ${bytes(b.text === undefined ? b.hex.length / 2 : new TextEncoder().encode(b.text).length)}` : ""}; `, link));
}

// dump writes hexadecimal digits 16 bytes a line, with what of them is text.
function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g);
    const text = pairs.map((p) => { const c = parseInt(p, 16); return c >= 0x20 && c < 0x7f ? String.fromCharCode(c) : "."; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
