// The live view of the server: numbers of this second, their course over the last two minutes, and
// the percentiles of latency, and each model. Asks /stats each second, and only while it is seen.

import { Problem, stats } from "./api.js";
import { BarPlot } from "./bar_plot.js";
import { make } from "./dom.js";
import { LinePlot } from "./line_plot.js";
import { withKey } from "./with_key.js";

const POLL_MS = 1000;
const SPAN = 120; // seconds
const LATE_S = 3;
const PERCENTILES = ["p50", "p90", "p95", "p99"];

// field of /stats, label, format, hint, what stands below in small type
const TILES = [
  ["running", "Running", whole, "requests that are being answered", (all) => counted(all.finished, "finished")],
  ["waiting", "Waiting", whole, "requests that wait for a place", (all) => counted(all.refused, "refused")],
  [
    "tokens_per_s",
    "Tokens/s",
    short,
    "tokens generated per second, all answers together",
    (all) => counted(all.output_tokens, "in all"),
  ],
  ["cache_use", "Cache use", percent, "share of the cache that running requests hold", () => "of all blocks"],
  [
    "prefix_hit_rate",
    "Prefix hits",
    percent,
    "share of the prompts' tokens that came from the cache",
    (all) => counted(all.prompt_tokens, "prompt tokens"),
  ],
  [
    "acceptance",
    "Accepted drafts",
    percent,
    "share of the guessed tokens that the model agreed with",
    (all) => (all.drafted ? counted(all.drafted, "guessed") : "no speculation"),
  ],
];

const PLOTS = [
  { title: "Tokens per second", names: [["tokens_per_s", "generated", "one"]], format: short, least: 10 },
  {
    title: "Requests",
    names: [
      ["running", "running", "one"],
      ["waiting", "waiting", "two"],
    ],
    format: short,
    least: 4,
  },
  { title: "Cache use", names: [["cache_use", "of all blocks", "one"]], format: percent, least: 0.1 },
  {
    title: "Work saved",
    names: [
      ["prefix_hit_rate", "prefix hits", "one"],
      ["acceptance", "accepted drafts", "two"],
    ],
    format: percent,
    top: 1,
  },
];

const MODEL_COLUMNS = [
  ["Running", (model) => whole(model.running ?? 0)],
  ["Waiting", (model) => whole(model.waiting ?? 0)],
  ["Tokens/s", (model) => short(model.tokens_per_s ?? 0)],
  ["Finished", (model) => whole(model.finished ?? 0)],
  ["First token, p95", (model) => (Number.isFinite(model.ttft_s?.p95) ? duration(model.ttft_s.p95) : "–")],
];

const LATENCIES = [
  ["ttft_s", "Time to first token"],
  ["itl_s", "Between two tokens"],
  ["e2e_s", "Whole answer"],
];

export class Dashboard {
  constructor(section) {
    this.isWanted = false;
    this.timer = null;
    this.kept = new Map(); // what was seen here, of values whose history the server does not give
    this.readings = new Map();
    this.models = make("table");
    this.state = make("p", { class: "live", role: "status" });
    this.plots = PLOTS.map(({ title, names, ...rest }) => ({
      names: names.map(([name]) => name),
      plot: new LinePlot({
        title,
        span: SPAN,
        series: names.map(([, name, colour]) => ({ name, colour })),
        ...rest,
      }),
    }));
    this.latencies = LATENCIES.map(([name, title]) => ({
      name,
      plot: new BarPlot({ title, note: "percentiles", names: PERCENTILES, format: duration }),
    }));
    section.append(
      make("div", { class: "heading" }, make("h2", {}, "Dashboard"), this.state),
      make("dl", { class: "tiles" }, ...TILES.map((tile) => this.tile(tile))),
      make("div", { class: "plots" }, ...this.plots.map(({ plot }) => plot.node)),
      make("h2", { class: "part" }, "Latency"),
      make("div", { class: "plots three" }, ...this.latencies.map(({ plot }) => plot.node)),
      make("h2", { class: "part" }, "Models"),
      make("div", { class: "card models", tabindex: "0", role: "region", "aria-label": "Models" }, this.models),
    );
    document.addEventListener("visibilitychange", () => this.go());
  }

  tile([name, label, format, hint, below]) {
    const value = make("dd", {}, "–");
    const note = make("dd", { class: "below-tile" });
    this.readings.set(name, (found) => {
      value.textContent = Number.isFinite(found[name]) ? format(found[name]) : "–";
      note.textContent = below(found);
    });
    return make("div", { class: "card tile", title: hint }, make("dt", {}, label), value, note);
  }

  setWanted(isWanted) {
    this.isWanted = isWanted;
    this.go();
  }

  go() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.isWanted && !document.hidden) this.poll();
  }

  async poll() {
    const began = performance.now();
    const turn = Symbol("poll");
    this.turn = turn;
    try {
      const found = await withKey(stats);
      this.show(found);
      this.tell(found.draining ? "The server is ending: it takes no more requests." : "Live", !found.draining);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.tell(error.message, false);
      if (error.status === 401) return; // the reader gave no key: not asked again each second
    }
    // A view that was left meanwhile, or left and opened again, has another turn or none.
    if (!this.isWanted || document.hidden || this.turn !== turn) return;
    this.timer = setTimeout(() => this.poll(), Math.max(100, POLL_MS - (performance.now() - began)));
  }

  tell(text, isLive) {
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.classList.toggle("on", isLive);
  }

  show(found) {
    for (const show of this.readings.values()) show(found);
    for (const { names, plot } of this.plots) plot.update(names.map((name) => this.course(found, name)));
    for (const { name, plot } of this.latencies) {
      plot.update(PERCENTILES.map((percentile) => found[name]?.[percentile] ?? null));
    }
    this.showModels(found.models ?? {});
  }

  showModels(models) {
    const head = ["Model", ...MODEL_COLUMNS.map(([title]) => title)];
    const rows = Object.entries(models).map(([name, model]) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, name, model.open === 0 ? make("small", {}, " not loaded") : null),
        ...MODEL_COLUMNS.map(([, read]) => make("td", {}, read(model))),
      ),
    );
    const titles = make("tr", {}, ...head.map((title) => make("th", { scope: "col" }, title)));
    this.models.replaceChildren(make("thead", {}, titles), make("tbody", {}, ...rows));
  }

  course(found, name) {
    const given = found.history?.[name];
    if (Array.isArray(given)) return given.map((value) => (Number.isFinite(value) ? value : null));
    const kept = this.kept.get(name) ?? { time: null, values: [] };
    // The seconds in which nobody looked have no value; an answer that was late is no such gap.
    const missed = kept.time === null ? 0 : Math.max(0, Math.min(SPAN, found.time - kept.time - 1)) || 0;
    const between = missed <= LATE_S ? (kept.values.at(-1) ?? null) : null;
    kept.values.push(...Array(missed).fill(between), Number.isFinite(found[name]) ? found[name] : null);
    this.kept.set(name, { time: found.time, values: kept.values.slice(-SPAN - 1) });
    return this.kept.get(name).values;
  }
}

function counted(value, word) {
  return Number.isFinite(value) ? `${short(value)} ${word}` : "";
}

function whole(value) {
  return String(Math.round(value));
}

function short(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(value >= 1e8 ? 0 : 1)}M`;
  if (value >= 10000) return `${(value / 1000).toFixed(value >= 100000 ? 0 : 1)}k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

function percent(value) {
  const hundred = value * 100;
  return `${hundred < 10 ? Number(hundred.toFixed(1)) : Math.round(hundred)}%`;
}

function duration(value) {
  if (value >= 100) return `${Math.round(value)} s`;
  if (value >= 1) return `${value.toFixed(value >= 10 ? 1 : 2)} s`;
  const ms = value * 1000;
  return `${ms >= 10 ? Math.round(ms) : ms.toFixed(1)} ms`;
}
