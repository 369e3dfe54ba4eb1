// Tells a screen reader how an answer goes on: whole sentences, some seconds apart, not each token.
// Knows nothing of conversations.

import { make } from "./dom.js";

const PAUSE_MS = 4000;

export class Speaker {
  constructor(region) {
    this.region = region;
    this.said = 0;
    this.last = 0;
  }

  begin() {
    this.said = 0;
    this.last = performance.now();
    this.region.replaceChildren();
    this.say("The answer begins.");
  }

  // `text` is all that there is of the answer so far.
  hear(text) {
    if (performance.now() - this.last < PAUSE_MS) return;
    const end = lastSentenceEnd(text);
    if (end > this.said) this.speak(text, end);
  }

  end(text, ending) {
    if (text.length > this.said) this.speak(text, text.length);
    this.say(ending);
  }

  speak(text, end) {
    this.say(text.slice(this.said, end).replace(/[*_`#|>]+/g, " "));
    this.said = end;
    this.last = performance.now();
  }

  say(text) {
    if (text.trim()) this.region.append(make("p", {}, text.trim()));
  }
}

function lastSentenceEnd(text) {
  const ends = [...text.matchAll(/[.!?:]["')]*\s|\n/g)];
  const last = ends.at(-1);
  return last ? last.index + last[0].length : 0;
}
