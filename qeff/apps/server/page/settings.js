// The panel of how answers are generated: system prompt, sampling, JSON schema, tools. An empty
// field is not sent: the model's own default holds. Knows nothing of conversations or requests.

import { find, make } from "./dom.js";

// name in a request, label, what it does, smallest, largest, step, where the slider rests when unset
const NUMBERS = [
  ["temperature", "Temperature", "Higher is more varied, 0 always takes the likeliest token.", 0, 2, 0.05, 1],
  ["top_p", "Top-p", "Only the likeliest tokens that together reach this share.", 0.05, 1, 0.01, 1],
  ["min_p", "Min-p", "Only tokens at least this likely, against the likeliest.", 0, 1, 0.01, 0],
  ["repetition_penalty", "Repetition penalty", "Above 1, tokens that were used become less likely.", 0.5, 2, 0.01, 1],
  ["top_k", "Top-k", "Only this many of the likeliest tokens.", 0, 1000000, 1, null],
  ["max_tokens", "Max tokens", "The answer ends after this many.", 1, 10000000, 1, null],
  ["seed", "Seed", "The same seed gives the same answer.", 0, Number.MAX_SAFE_INTEGER, 1, null],
];

export class Settings {
  constructor(choices, { changed, systemChanged }) {
    this.changed = changed;
    this.fields = new Map();
    this.system = find("system-prompt");
    this.system.addEventListener("input", () => systemChanged(this.system.value));
    const rows = NUMBERS.map((row) => this.numberRow(row, choices.sampling?.[row[0]]));
    find("sampling-fields").append(...rows.slice(0, 4), make("div", { class: "pair" }, ...rows.slice(4)));
    this.schema = this.jsonField("json-schema", choices.schema, isObject, "a JSON schema is an object: {…}");
    this.tools = this.jsonField("tools-json", choices.tools, Array.isArray, "tools are a list: [{…}, …]");
    find("reset-sampling").addEventListener("click", () => this.reset());
  }

  numberRow([name, label, hint, least, most, step, rest], value) {
    const field = make("input", {
      type: "number",
      id: `sampling-${name}`,
      min: least,
      max: most,
      step: step < 1 ? "any" : 1,
      placeholder: name === "seed" ? "random" : "default",
      inputmode: step < 1 ? "decimal" : "numeric",
      "aria-describedby": `hint-${name}`,
    });
    if (typeof value === "number") field.value = String(value);
    const slider = rest === null ? null : make("input", { type: "range", min: least, max: most, step });
    const follow = () => {
      if (!slider) return;
      slider.value = field.value === "" ? rest : field.value;
      slider.classList.toggle("unset", field.value === "");
    };
    slider?.setAttribute("aria-label", `${label}, slider`);
    slider?.addEventListener("input", () => {
      field.value = String(Number(slider.value));
      follow();
      this.save();
    });
    field.addEventListener("input", () => {
      follow();
      field.setAttribute("aria-invalid", String(!field.validity.valid));
      this.save();
    });
    this.fields.set(name, { field, follow });
    follow();
    return make(
      "div",
      { class: "setting", title: hint },
      make("label", { for: field.id }, label),
      field,
      slider,
      make("span", { id: `hint-${name}`, class: "unseen" }, hint),
    );
  }

  // A field of JSON text. `get` gives its value, null when empty; what is wrong is said below it.
  jsonField(id, value, isRight, rule) {
    const area = find(id);
    const note = find(`${id}-note`);
    area.value = typeof value === "string" ? value : "";
    const get = () => {
      let found = null;
      let wrong = "";
      if (area.value.trim()) {
        try {
          found = JSON.parse(area.value);
          if (!isRight(found)) wrong = `Not sent: ${rule}.`;
        } catch (error) {
          wrong = `Not sent: this is no JSON (${error.message}).`;
        }
      }
      note.textContent = wrong;
      area.setAttribute("aria-invalid", String(wrong !== ""));
      return wrong ? null : found;
    };
    area.addEventListener("input", () => {
      get();
      this.save();
    });
    get();
    return { area, get };
  }

  // What goes into a request beside the model and the messages.
  body() {
    const body = {};
    for (const [name, { field }] of this.fields) {
      if (field.value !== "" && field.validity.valid) body[name] = Number(field.value);
    }
    const schema = this.schema.get();
    if (schema) {
      body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
    }
    const tools = this.tools.get();
    if (tools?.length) body.tools = tools;
    return body;
  }

  showSystem(text) {
    if (this.system.value !== text) this.system.value = text;
  }

  reset() {
    for (const { field, follow } of this.fields.values()) {
      field.value = "";
      field.setAttribute("aria-invalid", "false");
      follow();
    }
    for (const one of [this.schema, this.tools]) {
      one.area.value = "";
      one.get();
    }
    this.save();
  }

  save() {
    const sampling = {};
    for (const [name, { field }] of this.fields) {
      if (field.value !== "" && field.validity.valid) sampling[name] = Number(field.value);
    }
    this.changed({
      sampling,
      schema: this.schema?.area.value ?? "",
      tools: this.tools?.area.value ?? "",
    });
  }
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
