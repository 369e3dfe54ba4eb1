// Draws values over the last seconds as lines, in SVG: a grid, the lines, and the values under the
// pointer. Knows nothing of what the values mean. A value of null is a gap.

import { make, makeSvg } from "./dom.js";

const HEIGHT = 172;
const MARGIN = { left: 46, right: 12, top: 18, bottom: 24 };
const WIDEST = 640; // where the width is not known yet

export class LinePlot {
  // series: [{name, colour}], colour a class of dashboard.css; format turns a value into text;
  // least is the smallest top of the axis; top, where given, is its fixed top.
  constructor({ title, series, format, span, least = 1, top = null }) {
    Object.assign(this, { title, series, format, span, least, top });
    this.values = series.map(() => []);
    this.width = WIDEST;
    this.hovered = null;
    this.readings = series.map(() => make("b"));
    const legend = series.map(({ name, colour }, number) =>
      make("span", { class: `key ${colour}` }, make("i"), name, " ", this.readings[number]),
    );
    this.svg = makeSvg("svg", { class: "plot", role: "img", height: HEIGHT });
    this.node = make(
      "figure",
      { class: "card" },
      make("figcaption", {}, make("h3", {}, title), make("span", { class: "legend" }, ...legend)),
      this.svg,
    );
    this.svg.addEventListener("pointermove", (event) => this.hover(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.hover(null));
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.svg);
  }

  // Each array ends with the latest value; the values are a second apart.
  update(values) {
    this.values = values.map((list) => list.slice(-this.span - 1));
    this.draw();
  }

  hover(x) {
    this.hovered = null;
    if (x !== null) {
      const share = (x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
      this.hovered = Math.min(this.span, Math.max(0, Math.round((1 - share) * this.span)));
    }
    this.draw();
  }

  draw() {
    const most = this.top ?? niceTop(Math.max(this.least, ...this.values.flat().filter(Number.isFinite)));
    const place = {
      x: (ago) => MARGIN.left + (1 - ago / this.span) * (this.width - MARGIN.left - MARGIN.right),
      y: (value) => HEIGHT - MARGIN.bottom - (Math.min(value, most) / most) * (HEIGHT - MARGIN.top - MARGIN.bottom),
    };
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.replaceChildren(
      ...this.grid(most, place),
      ...this.values.flatMap((list, number) => this.line(list, this.series[number].colour, place)),
      ...this.cursor(place),
    );
    const read = this.values.map((list) => list.at(-1 - (this.hovered ?? 0)) ?? null);
    read.forEach((value, number) => {
      this.readings[number].textContent = value === null ? "–" : this.format(value);
    });
    this.svg.setAttribute("aria-label", this.summary());
  }

  grid(most, place) {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const y = place.y(most * share);
      parts.push(
        makeSvg("line", { x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y, class: "grid" }),
        makeSvg("text", { x: MARGIN.left - 8, y: y + 4, class: "tick end" }, this.format(most * share)),
      );
    }
    for (const ago of [this.span, this.span / 2, 0]) {
      const text = ago === 0 ? "now" : `−${ago} s`;
      const side = ago === 0 ? "end" : ago === this.span ? "start" : "middle";
      parts.push(makeSvg("text", { x: place.x(ago), y: HEIGHT - 6, class: `tick ${side}` }, text));
    }
    return parts;
  }

  line(list, colour, place) {
    const points = list.map((value, at) => (value === null ? null : [place.x(list.length - 1 - at), place.y(value)]));
    const parts = [];
    for (const run of runsOf(points)) {
      const path = `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
      const floor = place.y(0);
      if (run.length === 1) {
        parts.push(makeSvg("circle", { cx: run[0][0], cy: run[0][1], r: 1.6, class: `dot ${colour}` }));
        continue;
      }
      parts.push(
        makeSvg("path", { d: `${path}L${run.at(-1)[0]} ${floor}L${run[0][0]} ${floor}Z`, class: `area ${colour}` }),
        makeSvg("path", { d: path, class: `line ${colour}` }),
      );
    }
    return parts;
  }

  cursor(place) {
    if (this.hovered === null) return [];
    const x = place.x(this.hovered);
    const dots = this.values.flatMap((list, number) => {
      const value = list.at(-1 - this.hovered);
      if (value === undefined || value === null) return [];
      return [makeSvg("circle", { cx: x, cy: place.y(value), r: 3.5, class: `dot ${this.series[number].colour}` })];
    });
    const side = this.hovered > this.span * 0.85 ? "start" : this.hovered < this.span * 0.15 ? "end" : "middle";
    return [
      makeSvg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, class: "cursor" }),
      makeSvg("text", { x, y: MARGIN.top - 4, class: `tick ${side}` }, `${this.hovered} s ago`),
      ...dots,
    ];
  }

  summary() {
    const parts = this.values.map((list, number) => {
      const known = list.filter(Number.isFinite);
      if (known.length === 0) return `${this.series[number].name}: no value yet`;
      const now = this.format(known.at(-1));
      return `${this.series[number].name}: ${now} now, ${this.format(Math.max(...known))} at most`;
    });
    return `${this.title}, last ${this.span} seconds. ${parts.join(". ")}.`;
  }
}

function runsOf(points) {
  const runs = [];
  let run = [];
  for (const point of [...points, null]) {
    if (point !== null) run.push(point);
    else if (run.length > 0) runs.push(run.splice(0));
  }
  return runs;
}

// The least of 1, 1.2, 1.6, 2, 4, 6, 8, 10, 12, … that is not below: halves of these are short to write.
export function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.9999) ?? 10 * power;
}
