// Keeps conversations and choices in this browser's localStorage, one entry per conversation, so
// that a save writes no more than what changed. Knows nothing of what is shown.

import { readConversation } from "./conversation.js";

const PREFIX = "qeff.conversation.";
const CHOICES = "qeff.choices";
const FORMAT = "qeff-conversations";

export class Store {
  constructor(tellFull) {
    this.tellFull = tellFull;
    this.all = new Map();
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) this.read(key);
  }

  // Calls `changed` when another tab of this browser saved or deleted a conversation.
  watch(changed) {
    window.addEventListener("storage", (event) => {
      if (!event.key?.startsWith(PREFIX)) return;
      if (event.newValue === null) this.all.delete(event.key.slice(PREFIX.length));
      else this.read(event.key);
      changed(event.key.slice(PREFIX.length));
    });
  }

  read(key) {
    const id = key.slice(PREFIX.length);
    const conversation = readConversation(parsed(localStorage.getItem(key)));
    if (conversation) this.all.set(id, { ...conversation, id });
  }

  list() {
    return [...this.all.values()].sort((one, other) => other.updated - one.updated);
  }

  get(id) {
    return this.all.get(id) ?? null;
  }

  save(conversation) {
    this.all.set(conversation.id, conversation);
    this.write(PREFIX + conversation.id, conversation);
  }

  remove(id) {
    this.all.delete(id);
    localStorage.removeItem(PREFIX + id);
  }

  removeAll() {
    for (const id of [...this.all.keys()]) this.remove(id);
  }

  exported(conversations = this.list()) {
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2);
  }

  // Adds the conversations of an exported file; gives how many, or null where it is no such file.
  imported(text) {
    const file = parsed(text);
    if (file?.format !== FORMAT || !Array.isArray(file.conversations)) return null;
    const read = file.conversations.map(readConversation).filter((one) => one !== null);
    for (const conversation of read) this.save(conversation);
    return read.length;
  }

  choices() {
    const found = parsed(localStorage.getItem(CHOICES));
    return found && typeof found === "object" ? found : {};
  }

  saveChoices(choices) {
    this.write(CHOICES, choices);
  }

  write(key, value) {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error;
      this.tellFull();
    }
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
