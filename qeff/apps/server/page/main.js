// Starts the page: puts its parts together, follows the address (#/c/<id>, #/dashboard), listens to
// the keyboard.

import { models, Problem, version } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Dashboard } from "./dashboard.js";
import { confirmThen, showHelp, startDialogs, tell } from "./dialogs.js";
import { find, make } from "./dom.js";
import { History } from "./history.js";
import { icon } from "./icons.js";
import { Panels } from "./panels.js";
import { Settings } from "./settings.js";
import { Speaker } from "./speaking.js";
import { Store } from "./store.js";
import { startTheme } from "./theme.js";
import { withKey } from "./with_key.js";

const RETRY_MS = 3000;

const store = new Store(() =>
  tell("This browser's storage is full: delete conversations, or export and then delete them."),
);
const choices = { system: "", model: null, ...store.choices() };
const chooser = find("model");
const panels = new Panels();
const dashboard = new Dashboard(find("dashboard"));

const settings = new Settings(choices, {
  changed: (chosen) => keep(chosen),
  systemChanged: (text) => {
    const { conversation } = chat;
    conversation.system = text;
    if (conversation.messages.length > 0) store.save(conversation);
    else keep({ system: text });
  },
});

const chat = new Chat({
  store,
  speaker: new Speaker(find("speaking")),
  model: () => chooser.value || null,
  sampling: () => settings.body(),
  changed: chatChanged,
});

const composer = new Composer({
  send: (text) => chat.send(text),
  stop: () => chat.stop(),
  editLast: () => chat.thread.views.findLast((view) => view.edit)?.edit(),
});

const history = new History(store, {
  opened: () => panels.closeOverlays(),
  removed: (id) => {
    chat.stop(id);
    if (id === chat.conversation.id) newConversation();
  },
  confirm: confirmThen,
  tell,
});

function keep(chosen) {
  Object.assign(choices, chosen);
  store.saveChoices(choices);
}

function chatChanged() {
  const { conversation } = chat;
  const address = conversation.messages.length > 0 ? `#/c/${conversation.id}` : "#/";
  find("to-chat").href = address;
  if (!location.hash.startsWith("#/dashboard")) window.history.replaceState(null, "", address);
  document.title = conversation.title ? `${conversation.title} – qeff` : "qeff";
  settings.showSystem(conversation.system);
  history.show(conversation.id);
  composer.show(chat.isRunning);
}

function newConversation() {
  window.history.replaceState(null, "", "#/");
  chat.openNew(choices.system);
  showView();
  panels.closeOverlays();
  composer.focus();
}

// The address decides what is shown.
function follow() {
  const id = /^#\/c\/(\w+)$/.exec(location.hash)?.[1];
  const conversation = id ? store.get(id) : null;
  if (conversation && conversation !== chat.conversation) chat.open(conversation);
  else if (!chat.conversation || (!conversation && location.hash === "#/")) chat.openNew(choices.system);
  showView();
}

function showView() {
  const isDashboard = location.hash.startsWith("#/dashboard");
  find("frame").dataset.view = isDashboard ? "dashboard" : "chat";
  find("chat-view").hidden = isDashboard;
  find("dashboard").hidden = !isDashboard;
  find("to-chat").setAttribute("aria-current", isDashboard ? "false" : "page");
  find("to-dashboard").setAttribute("aria-current", isDashboard ? "page" : "false");
  dashboard.setWanted(isDashboard);
  if (!isDashboard) chat.thread.toEnd();
}

// A server that does not answer yet is asked again, and the reader is told once.
async function showModels(isFirst = true) {
  try {
    const found = await withKey(models);
    const options = found.map(({ id }) => make("option", { value: id }, id));
    chooser.replaceChildren(...options);
    if (found.some(({ id }) => id === choices.model)) chooser.value = choices.model;
    chooser.disabled = found.length === 0;
    chooser.title = chooser.value;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    chooser.replaceChildren(make("option", { value: "" }, "no model"));
    if (isFirst) tell(error.message);
    if (error.status !== 401) setTimeout(() => showModels(false), RETRY_MS);
  }
}

async function showVersion() {
  try {
    find("version").textContent = await version();
  } catch (error) {
    if (!(error instanceof Problem)) throw error; // the version is nothing to speak up about
  }
}

function keyPressed(event) {
  if (event.key === "Escape") {
    if (panels.closeOverlays() || document.querySelector("dialog[open]")) return;
    if (chat.isRunning) chat.stop();
  } else if (event.key === "/" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    showHelp();
  } else if (event.code === "KeyN" && event.altKey && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    newConversation();
  }
}

for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
startTheme(find("theme"));
startDialogs();
find("new").addEventListener("click", newConversation);
find("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which conversation is open
  (find("dashboard").hidden ? find("message") : find("dashboard")).focus();
});
find("help").addEventListener("click", showHelp);
chooser.addEventListener("change", () => {
  keep({ model: chooser.value });
  chooser.title = chooser.value;
});
document.addEventListener("keydown", keyPressed);
window.addEventListener("hashchange", follow);
store.watch((id) => {
  if (id === chat.conversation.id && store.get(id) && !chat.isRunning) chat.open(store.get(id));
  else history.show();
});
follow();
composer.focus();
showModels().then(showVersion);
