// The box that a message is written in, and its button: Send, or Stop while an answer is on its way.

import { find } from "./dom.js";
import { icon } from "./icons.js";

export class Composer {
  constructor({ send, stop, editLast }) {
    this.send = send;
    this.stop = stop;
    this.area = find("message");
    this.button = find("send");
    this.isRunning = false;
    // With a keyboard on the screen, Enter is the only way to a second line.
    this.isTouch = window.matchMedia("(hover: none) and (pointer: coarse)").matches;
    this.area.addEventListener("input", () => this.fit());
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !this.isTouch) {
        event.preventDefault();
        if (!this.isRunning) this.submit();
      } else if (event.key === "ArrowUp" && this.area.value === "") {
        event.preventDefault();
        editLast();
      }
    });
    this.button.addEventListener("click", () => (this.isRunning ? this.stop() : this.submit()));
    this.show(false);
  }

  submit() {
    const text = this.area.value;
    if (!text.trim()) return;
    this.area.value = "";
    this.fit();
    this.send(text);
    this.area.focus();
  }

  show(isRunning) {
    this.isRunning = isRunning;
    const label = isRunning ? "Stop the answer (Esc)" : "Send (Enter)";
    this.button.setAttribute("aria-label", isRunning ? "Stop" : "Send");
    this.button.title = label;
    this.button.classList.toggle("stopping", isRunning);
    this.button.replaceChildren(icon(isRunning ? "stop" : "up"));
    this.fit();
  }

  fit() {
    this.area.style.height = "auto";
    this.area.style.height = `${this.area.scrollHeight}px`;
    this.button.disabled = !this.isRunning && !this.area.value.trim();
  }

  focus() {
    if (!this.isTouch) this.area.focus();
  }
}
