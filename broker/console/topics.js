// Topics, and the partitions of one: lists that the broker sorts and cuts into
// pages, asked for again every other second.
import { h, say, keyed, ask, bytes, count, amount, ago, utc } from "./dom.js";

const size = 100; // rows a page

// list is a table of what an address answers. Its columns are {name, title,
// show(row, rate, now), number}; name is what the broker sorts by, none if it
// cannot.
function list({ address, parameters, query, columns, key, grown, empty, sort }) {
  const state = { sort: query.get("sort") || sort, order: query.get("order") || "asc", skip: Number(query.get("skip")) || 0 };
  const body = h("tbody"), where = h("span"), error = h("p", { class: "notice bad", hidden: true });
  const back = h("button", { type: "button", onclick: () => turn(-size) }, "← Before"), on = h("button", { type: "button", onclick: () => turn(size) }, "Next →");
  const heads = columns.map((c) => {
    const mark = h("span", { class: "mark", "aria-hidden": "true" });
    const head = h("th", { class: c.number ? "n" : null, scope: "col", title: c.help }, c.name ? h("button", { type: "button", onclick: () => order(c) }, c.title, mark) : c.title);
    return { head, mark };
  });
  const element = h("div", {}, error,
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads.map((x) => x.head))), body)),
    h("div", { class: "pager" }, back, where, on));
  let before = null, asked = 0, at = 0; // before: the last answer; at: when it was asked for

  function order(c) {
    state.order = state.sort === c.name && state.order === "asc" ? "desc" : "asc";
    if (state.sort !== c.name && c.number) state.order = "desc"; // the greatest are looked for
    state.sort = c.name;
    state.skip = 0;
    renew();
  }
  function turn(by) {
    state.skip = Math.max(state.skip + by, 0);
    renew();
  }

  async function renew(o) {
    const mine = ++asked;
    at = Date.now();
    try {
      const answer = await ask(address, { ...parameters(), sort: state.sort, order: state.order, skip: state.skip, limit: size });
      if (mine === asked) draw(answer, o?.wall ?? Date.now());
    } catch (e) {
      error.hidden = false;
      say(error, e.message);
    }
  }

  function draw(answer, now) {
    error.hidden = true;
    if (answer.total && answer.skip >= answer.total) return turn(-size);
    const old = new Map((before?.rows ?? []).map((r) => [key(r), grown(r)]));
    const dt = before ? (answer.now - before.now) / 1000 : 0;
    const rate = (r) => (dt > 0 && old.has(key(r)) ? Math.max(grown(r) - old.get(key(r)), 0) / dt : null);
    before = answer;
    columns.forEach((c, i) => {
      const mine = c.name && c.name === state.sort;
      heads[i].head.setAttribute("aria-sort", mine ? (state.order === "asc" ? "ascending" : "descending") : "none");
      say(heads[i].mark, mine ? (state.order === "asc" ? " ▲" : " ▼") : "");
    });
    keyed(body, answer.rows, key, (r) => h("tr", {}, columns.map((c) => h("td", { class: c.number ? "n" : null }, c.make?.(r) ?? null))),
      (row, r) => columns.forEach((c, i) => c.show && show(row.children[i], c.show(r, rate(r), now))));
    if (!answer.rows.length) keyed(body, ["empty"], (x) => x, () => h("tr", {}, h("td", { class: "none", colspan: columns.length }, empty)));
    say(where, answer.total ? `${count(answer.skip + 1)} to ${count(answer.skip + answer.rows.length)} of ${count(answer.total)}` : "");
    back.disabled = answer.skip === 0;
    on.disabled = answer.skip + answer.rows.length >= answer.total;
    answered?.(answer);
  }

  let answered = null;
  const tick = (o) => (Date.now() - at >= 1900 ? renew(o) : null);
  return { element, tick, renew, whenAnswered: (f) => (answered = f), restart: () => ((state.skip = 0), renew()) };
}

// show puts a text into a cell, or a text with a class and a title.
function show(cell, what) {
  const { text, title = "", mood = "" } = typeof what === "string" ? { text: what } : what;
  say(cell, text);
  if (cell.title !== title) cell.title = title;
  cell.classList.toggle("bad", mood === "bad");
  cell.classList.toggle("none", mood === "none");
}

const rateText = (rate) => (rate === null ? { text: "–", mood: "none" } : { text: `${amount(rate)}/s`, mood: rate ? "" : "none" });
const appended = (row, _, now) => ({ text: ago(row.last_append, now), title: row.last_append ? utc(row.last_append) : "", mood: row.last_append ? "" : "none" });
const zero = (n, text = count(n)) => ({ text, mood: n ? "" : "none" });

export function topics(query) {
  const find = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Find topics", value: query.get("find") ?? "" });
  const table = list({
    address: "/api/topics", query, sort: "name", key: (t) => t.name, grown: (t) => t.appended,
    parameters: () => ({ find: find.value }), empty: "No topic. teralog topic create NAME makes one.",
    columns: [
      { name: "name", title: "Topic", make: (t) => h("a", { href: `#/topics/${encodeURIComponent(t.name)}` }, t.name) },
      { name: "partitions", title: "Partitions", number: true, show: (t) => count(t.partitions) },
      { name: "offline", title: "Offline", number: true, show: (t) => ({ text: count(t.offline), mood: t.offline ? "bad" : "none" }) },
      { name: "records", title: "Records", number: true, show: (t) => zero(t.records), help: "from the start to the committed end" },
      { name: "bytes", title: "Size", number: true, show: (t) => zero(t.bytes, bytes(t.bytes)), help: "on disk" },
      { title: "In", number: true, show: (t, rate) => rateText(rate), help: "records a second" },
      { name: "queued", title: "Queue", number: true, show: (t) => zero(t.queued), help: "batches that wait to be appended" },
      { name: "last_append", title: "Last append", show: appended },
      { name: "flush", title: "Flush", show: (t) => t.flush, help: "what an acknowledgement waits for" },
    ],
  });
  find.addEventListener("input", () => table.restart());
  table.renew();
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, "Topics"), find), table.element);
  return { element, tick: table.tick };
}

export function partitions(name, query) {
  const settings = h("dl", { class: "facts" });
  const table = list({
    address: "/api/partitions", query, sort: "partition", key: (p) => p.partition, grown: (p) => p.end,
    parameters: () => ({ topic: name }), empty: "No partition.",
    columns: [
      { name: "partition", title: "Partition", make: (p) => h("a", { href: recordsOf(name, p.partition), title: "its newest records" }, String(p.partition)) },
      { name: "state", title: "State", show: (p) => (p.state === "OK" ? { text: "ok" } : { text: p.state, mood: "bad" }) },
      { name: "start", title: "Start", number: true, show: (p) => count(p.start), help: "the first offset kept" },
      { name: "committed", title: "Committed", number: true, show: (p) => count(p.committed), help: "readers see what is below" },
      { name: "end", title: "End", number: true, show: (p) => count(p.end), help: "the offset of the next record" },
      { name: "bytes", title: "Size", number: true, show: (p) => zero(p.bytes, bytes(p.bytes)), help: "on disk" },
      { title: "In", number: true, show: (p, rate) => rateText(rate), help: "records a second" },
      { name: "queued", title: "Queue", number: true, show: (p) => ({ ...zero(p.queued), title: bytes(p.queued_bytes) }), help: "batches that wait to be appended" },
      { name: "last_append", title: "Last append", show: appended },
      { title: "Epoch", number: true, show: (p) => count(p.epoch), help: "of the leader" },
      { name: "directory", title: "Directory", show: (p) => ({ text: p.directory || `on node ${p.leader}` }) },
    ],
  });
  table.whenAnswered((a) => keyed(settings, a.settings ?? [], (s) => s.name, (s) => h("div", {}, h("dt", {}, s.name), h("dd", {})), (e, s) => say(e.lastChild, s.value)));
  table.renew();
  const element = h("div", {},
    h("div", { class: "head" }, h("h1", {}, h("a", { href: "#/topics" }, "Topics"), " / ", name), h("a", { class: "button", href: recordsOf(name, 0) }, "Records")),
    table.element,
    h("details", { class: "panel" }, h("summary", {}, "Settings"), settings));
  return { element, tick: table.tick };
}

const recordsOf = (topic, partition) => `#/records?${new URLSearchParams({ topic, partition })}`;
