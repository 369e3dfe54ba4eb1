// Shows one message: what a person said (and can edit), an answer (with its reasoning, calls, times
// and versions), the result of a call. Tells `actions` what the reader wants; changes nothing itself.

import { speedOf } from "./answering.js";
import { copyButtonClicked } from "./clipboard.js";
import { chosenVersion } from "./conversation.js";
import { make } from "./dom.js";
import { icon, iconButton } from "./icons.js";
import { MarkdownView } from "./markdown.js";

const ENDINGS = {
  length: "The answer reached the largest number of tokens and was cut.",
  stopped: "Stopped.",
  abort: "The server ended this answer.",
  content_filter: "The server ended this answer.",
};

export class UserView {
  constructor(message, place, actions) {
    this.message = message;
    this.place = place;
    this.actions = actions;
    this.text = make("div", { class: "bubble" }, message.content);
    this.bar = make(
      "div",
      { class: "message-bar" },
      copyButton(() => message.content),
      iconButton("pencil", "Edit and send again", () => this.edit()),
    );
    this.node = article("You", "user", this.text, this.bar);
  }

  edit() {
    const area = make("textarea", { class: "edit", "aria-label": "Edit your message", rows: "3" });
    area.value = this.message.content;
    const leave = () => {
      box.replaceWith(this.text);
      this.bar.hidden = false;
      this.bar.lastChild.focus();
    };
    const send = () => area.value.trim() && this.actions.edit(this.place, area.value);
    const box = make(
      "div",
      { class: "edit-box" },
      area,
      make(
        "div",
        { class: "row" },
        make("button", { type: "button", class: "plain", on: { click: leave } }, "Cancel"),
        make("button", { type: "button", class: "main", on: { click: send } }, "Send"),
      ),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        leave();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.text.replaceWith(box);
    this.bar.hidden = true;
    area.focus();
  }
}

export class AnswerView {
  constructor(message, place, actions) {
    this.message = message;
    this.place = place;
    this.actions = actions;
    this.markdown = new MarkdownView();
    this.reasoning = new MarkdownView();
    this.reasoningTitle = make("summary");
    this.reasoningBox = make("details", { class: "reasoning", hidden: true }, this.reasoningTitle, this.reasoning.node);
    this.calls = make("div", { class: "calls" });
    this.waiting = make("div", { class: "waiting", "aria-hidden": "true" }, make("i"), make("i"), make("i"));
    this.notice = make("p", { class: "notice", hidden: true });
    this.facts = make("span", { class: "facts" });
    this.bar = make("div", { class: "message-bar" });
    this.node = article(
      "Answer",
      "assistant",
      this.reasoningBox,
      this.markdown.node,
      this.calls,
      this.waiting,
      this.notice,
      this.bar,
    );
  }

  // `isLast` lets the reader give the results of calls.
  show(isRunning, isLast) {
    const version = chosenVersion(this.message);
    const isThinking = isRunning && !version.content && version.calls.length === 0;
    this.markdown.update(version.content, isRunning);
    this.reasoningBox.hidden = !version.reasoning.trim();
    this.reasoningTitle.textContent = isThinking ? "Thinking…" : "Reasoning";
    if (!this.reasoningBox.hidden) this.reasoning.update(version.reasoning, isThinking);
    this.waiting.hidden = !isRunning || version.content !== "" || version.calls.length > 0;
    this.node.classList.toggle("running", isRunning);
    this.node.setAttribute("aria-busy", String(isRunning));
    this.showCalls(version, isRunning, isLast);
    if (isRunning) {
      this.notice.hidden = true;
      this.bar.replaceChildren();
      return;
    }
    this.showEnding(version);
    this.showBar(version);
  }

  showCalls(version, isRunning, isLast) {
    const wantsResults = !isRunning && isLast && version.calls.length > 0;
    const fields = [];
    const boxes = version.calls.map((call) => {
      const box = make("div", { class: "call" }, callTitle(call.name), make("pre", { tabindex: "0" }, pretty(call)));
      if (wantsResults) {
        const field = make("textarea", { rows: "2", placeholder: `Result of ${call.name}` });
        field.setAttribute("aria-label", `Result of ${call.name}`);
        fields.push(field);
        box.append(field);
      }
      return box;
    });
    if (wantsResults) {
      const send = () => this.actions.results(this.place, version.calls, fields.map((field) => field.value));
      boxes.push(make("button", { type: "button", class: "main", on: { click: send } }, "Send results"));
    }
    this.calls.replaceChildren(...boxes);
  }

  showEnding(version) {
    const isEmpty = !version.content && version.calls.length === 0 && !version.error && version.finish !== "stopped";
    const text = version.error ?? ENDINGS[version.finish] ?? (isEmpty ? "The answer is empty." : "");
    this.notice.hidden = text === "";
    this.notice.textContent = text;
    this.notice.classList.toggle("wrong", version.error !== null);
    if (version.error) this.notice.setAttribute("role", "alert");
    else this.notice.removeAttribute("role");
  }

  showBar(version) {
    const parts = [
      copyButton(() => version.content),
      iconButton("redo", "Generate again", () => this.actions.regenerate(this.place)),
    ];
    const { versions, chosen } = this.message;
    if (versions.length > 1) {
      const go = (step) => () => this.actions.choose(this.place, chosen + step);
      const back = iconButton("left", "Version before", go(-1), { disabled: chosen === 0 });
      const on = iconButton("right", "Version after", go(1), { disabled: chosen === versions.length - 1 });
      parts.push(make("span", { class: "versions" }, back, `${chosen + 1} / ${versions.length}`, on));
    }
    this.facts.textContent = factsOf(version);
    this.facts.title = longFactsOf(version);
    this.bar.replaceChildren(...parts, this.facts);
  }
}

export function toolView(message) {
  const result = make("pre", { tabindex: "0" }, message.content);
  return article("Result", "tool", callTitle(`Result of ${message.name}`), result);
}

function article(name, kind, ...children) {
  return make("article", { class: `message ${kind}` }, make("h2", { class: "unseen" }, name), ...children);
}

function callTitle(name) {
  return make("div", { class: "call-title" }, icon("call"), make("code", {}, name));
}

function copyButton(text) {
  const button = iconButton("copy", "Copy", () => copyButtonClicked(button, text()));
  return button;
}

function pretty(call) {
  try {
    return JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    return call.arguments; // still on its way, or no JSON
  }
}

function factsOf(version) {
  const parts = [];
  const speed = speedOf(version);
  if (speed !== null) parts.push(`${version.isCounted ? "" : "≈ "}${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s`);
  if (version.firstSeconds !== null) parts.push(`first token ${seconds(version.firstSeconds)}`);
  if (version.tokens) parts.push(`${version.tokens} ${version.tokens === 1 ? "token" : "tokens"}`);
  return parts.join(" · ");
}

function longFactsOf(version) {
  const parts = [];
  if (version.model) parts.push(version.model);
  if (version.promptTokens !== null) parts.push(`${version.promptTokens} tokens of prompt`);
  if (version.cachedTokens) parts.push(`${version.cachedTokens} of them from the cache`);
  return parts.join(", ");
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}
