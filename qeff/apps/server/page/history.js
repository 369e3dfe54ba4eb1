// The list of conversations at the side: open, rename, delete, export, import. Changes the store and
// tells `actions` what was opened or removed; knows nothing of messages.

import { find, make } from "./dom.js";
import { iconButton } from "./icons.js";

const DAY_MS = 86400000;

export class History {
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.list = find("conversations");
    this.current = null;
    find("export-all").addEventListener("click", () => save("conversations", store.exported()));
    const file = find("import-file");
    find("import").addEventListener("click", () => file.click());
    file.addEventListener("change", () => this.import(file));
  }

  show(current = this.current) {
    this.current = current;
    const all = this.store.list();
    find("export-all").disabled = all.length === 0;
    const rows = [];
    let group = null;
    for (const conversation of all) {
      const when = groupOf(conversation.updated);
      if (when !== group) rows.push(make("li", { class: "group" }, make("h3", {}, when)));
      group = when;
      rows.push(this.row(conversation));
    }
    if (rows.length === 0) rows.push(make("li", { class: "none" }, "Conversations are kept in this browser only."));
    this.list.replaceChildren(...rows);
  }

  row(conversation) {
    const title = conversation.title || "Untitled";
    const isCurrent = conversation.id === this.current;
    const open = make(
      "a",
      { href: `#/c/${conversation.id}`, class: "title", title, "aria-current": isCurrent ? "page" : null },
      title,
    );
    open.addEventListener("click", () => this.actions.opened());
    const row = make(
      "li",
      { class: isCurrent ? "conversation current" : "conversation" },
      open,
      make(
        "span",
        { class: "tools" },
        iconButton("pencil", `Rename ${title}`, () => this.rename(row, conversation)),
        iconButton("download", `Export ${title}`, () => save(title, this.store.exported([conversation]))),
        iconButton("trash", `Delete ${title}`, () => this.remove(conversation)),
      ),
    );
    return row;
  }

  rename(row, conversation) {
    const field = make("input", { type: "text", class: "rename", "aria-label": "Name of the conversation" });
    field.value = conversation.title;
    let isOver = false;
    const leave = (isKept) => {
      if (isOver) return;
      isOver = true;
      if (isKept && field.value.trim()) {
        conversation.title = field.value.trim();
        conversation.isNamed = true;
        this.store.save(conversation);
      }
      this.show();
    };
    field.addEventListener("blur", () => leave(true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") leave(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        leave(false);
      }
    });
    row.replaceChildren(field);
    field.select();
    field.focus();
  }

  remove(conversation) {
    this.actions.confirm(`Delete “${conversation.title || "Untitled"}”?`, "Delete", () => {
      this.store.remove(conversation.id);
      this.show();
      this.actions.removed(conversation.id);
    });
  }

  async import(file) {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    const count = this.store.imported(await chosen.text());
    this.show();
    if (count === null) this.actions.tell(`${chosen.name} is no file of exported conversations.`);
    else this.actions.tell(count === 1 ? "One conversation was imported." : `${count} conversations were imported.`);
  }
}

function groupOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY_MS) return "Yesterday";
  if (time >= today - 7 * DAY_MS) return "Last 7 days";
  return "Older";
}

function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const file = `${name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation"}.json`;
  const link = make("a", { href: address, download: file });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
