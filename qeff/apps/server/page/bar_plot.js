// Draws a few named values as bars, in SVG. Knows nothing of what they mean; null has no bar.

import { make, makeSvg } from "./dom.js";
import { niceTop } from "./line_plot.js";

const ROW = 30;
const LABEL = 40;
const READING = 76;

export class BarPlot {
  constructor({ title, note, names, format }) {
    Object.assign(this, { title, names, format });
    this.width = 320;
    this.values = names.map(() => null);
    this.svg = makeSvg("svg", { class: "plot", role: "img", height: ROW * names.length + 6 });
    this.node = make(
      "figure",
      { class: "card" },
      make("figcaption", {}, make("h3", {}, title), make("span", { class: "legend" }, note)),
      this.svg,
    );
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width) || this.width;
      this.draw();
    }).observe(this.svg);
  }

  update(values) {
    this.values = values;
    this.draw();
  }

  draw() {
    const known = this.values.filter(Number.isFinite);
    const most = known.length > 0 && Math.max(...known) > 0 ? niceTop(Math.max(...known)) : 1;
    const room = Math.max(10, this.width - LABEL - READING);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${ROW * this.names.length + 6}`);
    this.svg.replaceChildren(
      ...this.names.flatMap((name, number) => {
        const value = this.values[number];
        const middle = ROW * number + ROW / 2 + 3;
        const length = Number.isFinite(value) ? Math.max(2, (value / most) * room) : 0;
        const text = Number.isFinite(value) ? this.format(value) : "–";
        return [
          makeSvg("text", { x: 0, y: middle + 4, class: "tick start" }, name),
          makeSvg("rect", { x: LABEL, y: middle - 7, width: room, height: 14, rx: 4, class: "track" }),
          makeSvg("rect", { x: LABEL, y: middle - 7, width: length, height: 14, rx: 4, class: `bar bar-${number}` }),
          makeSvg("text", { x: this.width, y: middle + 4, class: "reading end" }, text),
        ];
      }),
    );
    const said = this.names.map((name, number) => {
      const value = this.values[number];
      return `${name} ${Number.isFinite(value) ? this.format(value) : "not known"}`;
    });
    this.svg.setAttribute("aria-label", `${this.title}: ${said.join(", ")}.`);
  }
}
