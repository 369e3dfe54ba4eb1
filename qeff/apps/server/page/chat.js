// Holds the open conversation and does what the reader asks: send, stop, generate again, edit. Each
// conversation has at most one answer on its way; it goes on while another conversation is open.

import { Answering } from "./answering.js";
import { Problem } from "./api.js";
import { chosenVersion, emptyConversation, emptyVersion, titleFrom, wireMessages } from "./conversation.js";
import { Thread } from "./thread.js";
import { withKey } from "./with_key.js";

const SAVE_MS = 2000; // between two saves of an answer that is on its way

const SPOKEN_ENDINGS = {
  stopped: "Stopped.",
  length: "The answer was cut at the largest number of tokens.",
  tool_calls: "The model calls a tool.",
};

export class Chat {
  constructor({ store, speaker, model, sampling, changed }) {
    this.store = store;
    this.speaker = speaker;
    this.model = model; // gives the chosen model's name, or null
    this.sampling = sampling; // gives the fields of a request that the reader has set
    this.changed = changed; // the open conversation, its title or what runs is different
    this.running = new Map(); // id of a conversation: its Answering
    this.thread = new Thread({
      send: (text) => this.send(text),
      edit: (place, text) => this.edit(place, text),
      regenerate: (place) => this.regenerate(place),
      choose: (place, chosen) => this.choose(place, chosen),
      results: (place, calls, results) => this.giveResults(place, calls, results),
    });
    window.addEventListener("pagehide", () => this.saveRunning());
  }

  get isRunning() {
    return this.running.has(this.conversation.id);
  }

  openNew(system) {
    this.open(emptyConversation(system));
  }

  open(conversation) {
    this.conversation = conversation;
    this.thread.show(conversation, this.isRunning);
    this.changed();
  }

  send(text) {
    if (this.isRunning) return;
    const { conversation } = this;
    conversation.messages.push({ role: "user", content: text.trim() });
    if (!conversation.title) conversation.title = titleFrom(text);
    this.answer();
  }

  edit(place, text) {
    this.stop();
    const { conversation } = this;
    conversation.messages.splice(place, Infinity, { role: "user", content: text.trim() });
    if (place === 0 && !conversation.isNamed) conversation.title = titleFrom(text);
    this.answer();
  }

  // Another version of an answer; what came after the answer it stands for is dropped.
  regenerate(place) {
    this.stop();
    const { messages } = this.conversation;
    messages.splice(place + 1);
    this.answer(messages[place]);
  }

  choose(place, chosen) {
    const message = this.conversation.messages[place];
    message.chosen = Math.min(Math.max(0, chosen), message.versions.length - 1);
    this.store.save(this.conversation);
    this.thread.show(this.conversation, this.isRunning);
  }

  giveResults(place, calls, results) {
    const { messages } = this.conversation;
    messages.splice(place + 1);
    calls.forEach((call, number) => {
      messages.push({ role: "tool", id: call.id, name: call.name, content: results[number] });
    });
    this.answer();
  }

  stop(id = this.conversation.id) {
    this.running.get(id)?.stop();
  }

  // Asks for the next answer, or for one more version of `message`.
  async answer(message = null) {
    const { conversation } = this;
    const model = this.model();
    const version = emptyVersion(model);
    const place = message ? conversation.messages.indexOf(message) : conversation.messages.length;
    const body = { messages: wireMessages(conversation, place), ...this.sampling() };
    if (model) body.model = model;
    if (message) {
      message.versions.push(version);
      message.chosen = message.versions.length - 1;
    } else {
      conversation.messages.push({ role: "assistant", chosen: 0, versions: [version] });
    }
    conversation.model = model;
    conversation.updated = Date.now();
    this.store.save(conversation);
    const answering = new Answering(body, version, () => this.grown(conversation, version));
    this.running.set(conversation.id, answering);
    this.thread.show(conversation, true);
    this.changed();
    this.speaker.begin();
    await this.follow(answering, conversation, version);
  }

  async follow(answering, conversation, version) {
    try {
      await withKey(() => answering.run());
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      version.error = error.message;
      version.finish = "error";
    } finally {
      this.ended(answering, conversation, version);
    }
  }

  grown(conversation, version) {
    const isKept = this.store.get(conversation.id) !== null; // it may have been deleted meanwhile
    if (isKept && performance.now() - (this.savedAt ?? 0) > SAVE_MS) {
      this.savedAt = performance.now();
      this.store.save(conversation);
    }
    if (conversation !== this.conversation || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (conversation !== this.conversation || version.finish) return;
      this.thread.update(true);
      this.speaker.hear(version.content);
    });
  }

  ended(answering, conversation, version) {
    // Another answer may have taken the place of one that was stopped.
    const isCurrent = this.running.get(conversation.id) === answering;
    if (isCurrent) this.running.delete(conversation.id);
    if (this.store.get(conversation.id)) this.store.save(conversation);
    if (conversation === this.conversation && isCurrent) {
      this.thread.update(false);
      this.speaker.end(version.content, version.error ?? SPOKEN_ENDINGS[version.finish] ?? "The answer is complete.");
    }
    this.changed();
  }

  // An answer that the reader leaves with the page is kept as far as it came.
  saveRunning() {
    for (const id of this.running.keys()) {
      const conversation = this.store.get(id);
      if (!conversation) continue;
      const version = chosenVersion(conversation.messages.at(-1));
      version.finish ??= "stopped";
      this.store.save(conversation);
    }
  }
}
