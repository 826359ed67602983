// A chart of lines over the last minutes, drawn anew with every sample.
import { h, s, say, clock } from "./dom.js";

const left = 64, right = 12, top = 10, bottom = 24, height = 180;
const apart = 5000; // ms: two samples farther from each other are not joined

// ticks returns round numbers from 0 up to at least high, five steps at most.
function ticks(high) {
  if (!(high > 0)) high = 1;
  const decade = 10 ** Math.floor(Math.log10(high / 5));
  const step = [1, 2, 5, 10].map((m) => m * decade).find((d) => high / d <= 5);
  const all = [];
  for (let n = 0; n === 0 || all[n - 1] < high * (1 - 1e-9); n++) all.push(n * step);
  return all;
}

// decades returns the powers of ten from low to high, two at least.
function decades(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9), last = Math.max(Math.ceil(Math.log10(high) - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, n) => 10 ** (first + n));
}

// round leaves out the zeros that a round number ends with.
const round = (text) => text.replace(/(\.\d*?)0+(?!\d)/, (_, kept) => (kept === "." ? "" : kept));

// chart returns an element and how to draw samples into it. A sample is {t,
// values}: ms, and a value for each line, null for none known. The axis goes
// back for span ms from the youngest. least is what the axis shows at least; the
// axis of a logarithmic chart, whose values are above 0, begins there or lower.
export function chart({ title, lines, write, span, least, logarithmic = false }) {
  const svg = s("svg", { role: "img", tabindex: "0", height: String(height), "aria-label": title });
  const tip = h("div", { class: "tip", hidden: true });
  const values = lines.map(() => h("b"));
  const legend = h("div", { class: "legend" }, lines.map((l, i) => h("span", { class: `s${l.colour ?? i + 1}` }, h("i"), l.name, " ", values[i])));
  const element = h("figure", { class: "panel chart" }, h("figcaption", {}, h("h2", {}, title), legend), h("div", { class: "plot" }, svg, tip));
  let samples = [], width = 0, pointed = null; // pointed: the t of the sample under the pointer

  const newest = () => (samples.length ? samples[samples.length - 1].t : 0);
  const across = (t) => left + (width - left - right) * (1 - (newest() - t) / span);

  function draw(renewed) {
    if (renewed) samples = renewed;
    width = svg.clientWidth;
    if (!width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const shown = samples.filter((p) => p.t > newest() - span);
    const all = shown.flatMap((p) => p.values.filter((v) => v > 0));
    const marks = logarithmic ? decades(Math.min(least, ...all), Math.max(least, ...all)) : ticks(Math.max(least, ...all));
    const low = marks[0], high = marks[marks.length - 1];
    const share = (v) => (logarithmic ? Math.log(Math.max(v, low) / low) / Math.log(high / low) : v / high);
    const up = (v) => height - bottom - (height - top - bottom) * Math.min(share(v), 1);
    const parts = [];
    for (const m of marks) {
      parts.push(s("line", { class: "grid", x1: left, x2: width - right, y1: up(m), y2: up(m) }));
      parts.push(s("text", { "text-anchor": "end", x: left - 8, y: up(m) + 4 }, round(write(m))));
    }
    const minutes = span / 60000, every = width < 480 ? 2 : 1;
    for (let n = 0; n <= minutes; n += every) {
      const x = left + (width - left - right) * (1 - n / minutes);
      parts.push(s("text", { "text-anchor": n === 0 ? "end" : n === minutes ? "start" : "middle", x, y: height - 6 }, n === 0 ? "now" : `−${n} min`));
    }
    lines.forEach((l, i) => parts.push(...drawLine(shown, i, l.colour ?? i + 1, up)));
    const at = pointed === null ? null : nearest(shown, pointed);
    if (at) parts.push(s("line", { class: "pointer", x1: across(at.t), x2: across(at.t), y1: top, y2: height - bottom }),
      ...at.values.map((v, i) => v === null ? null : s("circle", { class: `s${lines[i].colour ?? i + 1}`, r: 3.5, cx: across(at.t), cy: up(v) })).filter((c) => c));
    svg.replaceChildren(...parts);
    explain(at);
    const last = samples[samples.length - 1];
    lines.forEach((l, i) => say(values[i], last && last.values[i] !== null ? write(last.values[i]) : "–"));
    svg.setAttribute("aria-label", `${title}: ${lines.map((l, i) => `${l.name} ${values[i].textContent}`).join(", ")}`);
  }

  // drawLine leaves a gap where nothing is known.
  function drawLine(shown, i, colour, up) {
    const runs = [];
    let run = [], before = 0;
    for (const p of shown) {
      if (p.values[i] === null || p.t - before > apart) run = [];
      before = p.t;
      if (p.values[i] !== null) {
        if (run.length === 0) runs.push(run);
        run.push(`${across(p.t).toFixed(1)},${up(p.values[i]).toFixed(1)}`);
      }
    }
    return runs.flatMap((r) => {
      const [first, last] = [r[0], r[r.length - 1]].map((p) => p.split(",")[0]);
      const line = s("polyline", { class: `line s${colour}`, points: r.join(" ") });
      return i > 0 ? [line] : [s("polygon", { class: `area s${colour}`, points: `${first},${height - bottom} ${r.join(" ")} ${last},${height - bottom}` }), line];
    });
  }

  const nearest = (all, t) => all.reduce((best, p) => (!best || Math.abs(p.t - t) < Math.abs(best.t - t) ? p : best), null);

  function explain(at) {
    tip.hidden = !at;
    if (!at) return;
    tip.replaceChildren(h("div", {}, clock(at.wall ?? at.t)), ...lines.map((l, i) => h("div", { class: `s${l.colour ?? i + 1}` }, h("i"), `${l.name} `, h("b", {}, at.values[i] === null ? "–" : write(at.values[i])))));
    const x = across(at.t);
    tip.style.left = `${x > width / 2 ? x - tip.offsetWidth - 12 : x + 12}px`;
  }

  function point(t) {
    pointed = t;
    draw();
  }
  svg.addEventListener("pointermove", (e) => {
    const x = e.clientX - svg.getBoundingClientRect().left;
    point(newest() - span * (1 - (x - left) / (width - left - right)));
  });
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("keydown", (e) => {
    if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
    e.preventDefault();
    const at = samples.indexOf(nearest(samples, pointed ?? newest()));
    const next = samples[Math.min(Math.max(at + (e.key === "ArrowLeft" ? -1 : 1), 0), samples.length - 1)];
    if (next) point(next.t);
  });
  const seen = new ResizeObserver(() => draw());
  seen.observe(svg);
  return { element, draw, end: () => seen.disconnect() };
}
