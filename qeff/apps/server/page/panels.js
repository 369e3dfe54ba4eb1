// The two panels at the sides: conversations and settings. On a wide screen they stand beside the
// conversation; on a narrow one they lie over it, one at a time, and the rest waits.

import { find } from "./dom.js";

const KEY = "qeff.panels";

export class Panels {
  constructor() {
    this.narrow = window.matchMedia("(max-width: 900px)");
    this.kept = { side: true, settings: false, ...kept() };
    this.parts = [
      { name: "side", panel: find("side"), button: find("toggle-side") },
      { name: "settings", panel: find("settings"), button: find("toggle-settings") },
    ];
    for (const part of this.parts) {
      part.button.addEventListener("click", () => this.set(part, !part.isOpen));
      part.panel.querySelector("[data-close-panel]").addEventListener("click", () => {
        this.set(part, false);
        part.button.focus();
      });
    }
    find("veil").addEventListener("click", () => this.closeOverlays());
    this.narrow.addEventListener("change", () => this.start());
    this.start();
  }

  start() {
    for (const part of this.parts) this.draw(part, !this.narrow.matches && this.kept[part.name]);
  }

  set(part, isOpen) {
    if (this.narrow.matches) {
      for (const other of this.parts) this.draw(other, other === part && isOpen);
      if (isOpen) part.panel.querySelector("button, a, input, textarea").focus();
      return;
    }
    this.draw(part, isOpen);
    this.kept[part.name] = isOpen;
    localStorage.setItem(KEY, JSON.stringify(this.kept));
  }

  draw(part, isOpen) {
    part.isOpen = isOpen;
    part.panel.hidden = !isOpen;
    part.button.setAttribute("aria-expanded", String(isOpen));
    const isOver = this.narrow.matches && this.parts.some((one) => one.isOpen);
    find("veil").hidden = !isOver;
    find("middle").inert = isOver;
  }

  // Closes a panel that lies over the conversation; true when there was one.
  closeOverlays() {
    const open = this.narrow.matches ? this.parts.filter((part) => part.isOpen) : [];
    for (const part of open) {
      this.draw(part, false);
      part.button.focus();
    }
    return open.length > 0;
  }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}
