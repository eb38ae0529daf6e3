// Offset maps as strips, and the last minutes as lines.

import { clock, el, put, say, svg } from "./dom.js";

const CELLS = 96;

/** Draws a partition's offset map into a cell of a table. */
export function drawStrip(td, row) {
  let strip = td.firstElementChild;
  if (strip === null) {
    const parts = ["none", "some", "most", "all", "rest"].map((name) => svg("path", { class: name }));
    strip = svg("svg", { class: "strip", viewBox: `0 0 ${CELLS} 10`, preserveAspectRatio: "none", role: "img" }, ...parts);
    td.append(strip);
  }
  const [none, some, most, all, rest] = strip.children;
  const runs = { none: "", some: "", most: "", all: "" };
  for (let from = 0; from < row.strip.length; ) {
    const kind = kindOf(row.strip[from]);
    let to = from + 1;
    while (to < row.strip.length && kindOf(row.strip[to]) === kind) to++;
    runs[kind] += `M${from} 0h${to - from}v10h${from - to}z`;
    from = to;
  }
  put(none, "d", runs.none);
  put(some, "d", runs.some);
  put(most, "d", runs.most);
  put(all, "d", runs.all);
  const behind = beyond(row);
  put(rest, "d", behind > 0 ? `M${row.strip.length} 9H${CELLS}` : "");
  put(strip, "aria-label", words(row, behind));
}

const kindOf = (digit) => (digit === "9" ? "all" : digit === "0" ? "none" : digit > "4" ? "most" : "some");

/** Offsets behind the highest that is complete. */
function beyond(row) {
  if (row.end === null || row.committed === null) return 0;
  return Math.max(0, row.end - Math.max(row.committed, (row.highest ?? -1) + 1));
}

function words(row, behind) {
  if (row.committed === null) return "nothing committed";
  const above = row.strip === "" ? "nothing complete above" : `${row.incomplete} incomplete up to ${row.highest}`;
  return `committed ${row.committed}, ${above}, ${behind} behind that`;
}

const WINDOWS_MS = [60_000, 120_000, 300_000, 600_000];

/** A line over the last minutes. `lines`: functions of a point; `text(point)`: what the figure says. */
export class Chart {
  constructor(group, title, lines, text, { failing = false } = {}) {
    Object.assign(this, { group, lines, text });
    this.output = el("output");
    this.paths = lines.map((_, index) => svg("path", { class: index > 0 ? "second" : null }));
    this.under = svg("path", { class: "under" });
    this.cross = svg("path", { class: "cross" });
    this.most = el("span", { class: "top-label" });
    this.from = el("span");
    const drawing = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" }, this.under, ...this.paths, this.cross);
    const chart = el(
      "div",
      {
        class: failing ? "chart failing" : "chart", tabindex: "0", role: "img", "aria-label": `${title}, the last ten minutes; arrow keys read it`,
        onpointermove: (event) => group.look((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth),
        onpointerleave: () => group.leave(), onblur: () => group.leave(), onkeydown: (event) => group.step(event),
      },
      this.most, drawing,
    );
    this.node = el("figure", {}, el("figcaption", {}, title, this.output), chart, el("div", { class: "axis" }, this.from, el("span", { text: "now" })));
    group.charts.push(this);
  }

  draw(points, now, window) {
    this.window = window;
    const values = points.flatMap((point) => this.lines.map((line) => line(point))).filter((one) => one !== null);
    const most = nice(Math.max(0, ...values));
    const x = (point) => 1000 * (1 - (now - point[0]) / window);
    this.lines.forEach((line, index) => {
      let path = "", first = null, last = null, open = false;
      for (const point of points) {
        const value = line(point);
        if (value === null) { open = false; continue; }
        const at = x(point).toFixed(1);
        path += `${open ? "L" : "M"}${at} ${(100 - (95 * value) / most).toFixed(1)}`;
        first ??= at;
        last = at;
        open = true;
      }
      put(this.paths[index], "d", path);
      if (index === 0) put(this.under, "d", path === "" || path.lastIndexOf("M") > 0 ? "" : `${path}L${last} 100L${first} 100z`);
    });
    say(this.most, values.length === 0 ? "" : this.label(most));
  }

  label(most) {
    return most >= 1000 ? `${+(most / 1000).toPrecision(3)}k` : `${most}`;
  }

  show(point, now, isNow) {
    this.output.replaceChildren(...(point === undefined ? ["–"] : this.text(point)));
    put(this.cross, "d", isNow || point === undefined ? "" : `M${(1000 * (1 - (now - point[0]) / this.window)).toFixed(1)} 0V100`);
    say(this.from, isNow || point === undefined ? `${this.window / 60_000} min ago` : `at ${clock(point[0])}`);
  }
}

/** Charts that are read at one moment together. */
export class Charts {
  charts = [];
  points = [];
  index = null;

  draw(points) {
    this.points = points;
    this.now = points.length > 0 ? points[points.length - 1][0] : Date.now();
    this.window = WINDOWS_MS.find((one) => points.length === 0 || this.now - points[0][0] <= one) ?? WINDOWS_MS.at(-1);
    for (const chart of this.charts) chart.draw(points, this.now, this.window);
    this.#show();
  }

  look(share) {
    const at = this.now - (1 - share) * this.window;
    let best = null;
    this.points.forEach((point, index) => {
      if (best === null || Math.abs(point[0] - at) < Math.abs(this.points[best][0] - at)) best = index;
    });
    this.index = best;
    this.#show();
  }

  step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined || this.points.length === 0) return;
    event.preventDefault();
    const last = this.points.length - 1;
    this.index = Math.min(last, Math.max(0, (this.index ?? last) + by));
    this.#show();
  }

  leave() {
    this.index = null;
    this.#show();
  }

  #show() {
    const last = this.points.length - 1;
    const index = this.index === null || this.index > last ? last : this.index;
    for (const chart of this.charts) chart.show(this.points[index], this.now, this.index === null);
  }
}

/** The next of 1, 2, 5, 10, … */
function nice(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= value * 0.999);
}
