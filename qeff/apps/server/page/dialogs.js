// The page's dialogs: the keys of the keyboard, the API key, a question before something is deleted,
// and short notes at the edge. Knows nothing of why they are shown.

import { setKey } from "./api.js";
import { find, make } from "./dom.js";

const NOTE_MS = 6000;

export function showHelp() {
  if (!find("help-dialog").open) find("help-dialog").showModal();
}

// Asks for the server's key. Gives true when one was given, false when the reader left.
export function askKey(sentence) {
  const dialog = find("key-dialog");
  const field = find("key-field");
  find("key-note").textContent = sentence;
  field.value = "";
  return choice(dialog, find("key-use")).then((isGiven) => {
    const key = field.value.trim();
    if (isGiven && key) setKey(key);
    field.value = "";
    return isGiven && key !== "";
  });
}

export function confirmThen(question, word, act) {
  find("confirm-question").textContent = question;
  find("confirm-yes").textContent = word;
  choice(find("confirm-dialog"), find("confirm-yes")).then((isWanted) => isWanted && act());
}

// A dialog that is open already is not asked twice.
function choice(dialog, yes) {
  if (dialog.open) return Promise.resolve(false);
  return new Promise((resolve) => {
    let isChosen = false;
    const choose = (event) => {
      event.preventDefault();
      isChosen = true;
      dialog.close();
    };
    const enter = (event) => {
      if (event.key === "Enter" && event.target.tagName === "INPUT") choose(event);
    };
    const done = () => {
      yes.removeEventListener("click", choose);
      dialog.removeEventListener("keydown", enter);
      resolve(isChosen);
    };
    yes.addEventListener("click", choose);
    dialog.addEventListener("keydown", enter);
    dialog.addEventListener("close", done, { once: true });
    dialog.showModal();
  });
}

export function startDialogs() {
  for (const button of document.querySelectorAll("dialog [data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}

export function tell(sentence) {
  const note = make("p", { class: "note" }, sentence);
  find("notes").append(note);
  setTimeout(() => note.remove(), NOTE_MS);
}
