// Shows a conversation: its messages one below the other, and the place that is read. The end stays
// in sight while an answer grows, unless the reader has scrolled away from it.

import { find, make } from "./dom.js";
import { AnswerView, toolView, UserView } from "./message_views.js";

const NEAR = 80; // pixels from the end that count as reading the end
const IDEAS = [
  "Explain how a rainbow forms, in three sentences.",
  "Write a Python function that checks whether a word is a palindrome.",
  "Plan a quiet weekend in the mountains, as a table.",
  "Give me five names for a small bakery.",
];

export class Thread {
  constructor(actions) {
    this.actions = actions;
    this.list = find("thread");
    this.frame = find("reading");
    this.jump = find("jump");
    this.views = [];
    this.isAtEnd = true;
    this.frame.addEventListener("scroll", () => this.look(), { passive: true });
    this.jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(this.list);
  }

  show(conversation, isRunning) {
    const { messages } = conversation;
    this.views = messages.map((message, place) => this.viewOf(message, place));
    this.list.replaceChildren(...this.views.map((view) => view.node));
    this.frame.classList.toggle("empty", messages.length === 0);
    if (messages.length === 0) this.list.append(this.welcome());
    this.views.forEach((view, place) => {
      const isLast = place === messages.length - 1;
      view.show?.(isLast && isRunning, isLast);
    });
    this.toEnd();
  }

  // The last answer has grown or ended.
  update(isRunning) {
    this.views.at(-1)?.show?.(isRunning, true);
    this.follow();
  }

  viewOf(message, place) {
    if (message.role === "user") return new UserView(message, place, this.actions);
    if (message.role === "tool") return { node: toolView(message) };
    return new AnswerView(message, place, this.actions);
  }

  welcome() {
    const ideas = IDEAS.map((idea) =>
      make("button", { type: "button", class: "idea", on: { click: () => this.actions.send(idea) } }, idea),
    );
    return make(
      "div",
      { class: "welcome" },
      make("h2", {}, "What would you like to know?"),
      make("p", {}, "The model runs on this server. What you write goes nowhere else."),
      make("div", { class: "ideas" }, ...ideas),
    );
  }

  look() {
    const { scrollHeight, scrollTop, clientHeight } = this.frame;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    this.jump.hidden = this.isAtEnd;
  }

  follow() {
    if (this.isAtEnd) this.toEnd();
    else this.look();
  }

  toEnd() {
    this.frame.scrollTop = this.frame.scrollHeight;
    this.isAtEnd = true;
    this.jump.hidden = true;
  }
}
