// What a conversation is: messages in order, and for each answer the versions that were generated.
// Gives the messages in the form that the server takes. Knows nothing of storing or showing.
//
//   {id, title, isNamed, created, updated, model, system, messages: [
//     {role: "user", content}
//     {role: "assistant", chosen, versions: [{content, reasoning, calls, finish, error, ...}]}
//     {role: "tool", id, name, content}]}

const TITLE_LENGTH = 60;

export function emptyConversation(system) {
  const now = Date.now();
  return { id: newId(), title: "", isNamed: false, created: now, updated: now, model: null, system, messages: [] };
}

export function emptyVersion(model) {
  return {
    model,
    content: "",
    reasoning: "",
    calls: [], // {id, name, arguments}
    finish: null, // why it ended: stop, length, tool_calls, stopped (by the reader), error
    error: null, // a sentence
    firstSeconds: null, // until the first token
    seconds: null, // from the first token to the last
    tokens: null,
    promptTokens: null,
    cachedTokens: null,
    isCounted: false, // by the server; else the pieces were counted
  };
}

export function chosenVersion(message) {
  return message.versions[Math.min(message.chosen, message.versions.length - 1)];
}

// The messages before place `end`, as the server takes them.
export function wireMessages(conversation, end = conversation.messages.length) {
  const wire = [];
  if (conversation.system.trim()) wire.push({ role: "system", content: conversation.system });
  for (const message of conversation.messages.slice(0, end)) {
    if (message.role === "user") {
      wire.push({ role: "user", content: message.content });
    } else if (message.role === "tool") {
      wire.push({ role: "tool", tool_call_id: message.id, name: message.name, content: message.content });
    } else {
      const { content, calls } = chosenVersion(message);
      if (!content && calls.length === 0) continue; // an answer that failed
      const said = { role: "assistant", content };
      if (calls.length > 0) {
        said.tool_calls = calls.map((call) => ({
          id: call.id,
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        }));
      }
      wire.push(said);
    }
  }
  return wire;
}

export function titleFrom(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  if (line.length <= TITLE_LENGTH) return line;
  const cut = line.slice(0, TITLE_LENGTH);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), TITLE_LENGTH / 2)).trimEnd()}…`;
}

// A conversation out of a file that somebody gives: known fields of the right kind, or null.
export function readConversation(given) {
  if (!given || typeof given !== "object" || !Array.isArray(given.messages)) return null;
  const messages = given.messages.map(readMessage);
  if (messages.includes(null)) return null;
  const base = emptyConversation(text(given.system));
  return {
    ...base,
    title: text(given.title) || titleFrom(messages.find((one) => one.role === "user")?.content ?? ""),
    isNamed: given.isNamed === true,
    created: number(given.created) ?? base.created,
    updated: number(given.updated) ?? base.updated,
    model: text(given.model) || null,
    messages,
  };
}

function readMessage(given) {
  if (given?.role === "user") return { role: "user", content: text(given.content) };
  if (given?.role === "tool") {
    return { role: "tool", id: text(given.id), name: text(given.name), content: text(given.content) };
  }
  if (given?.role !== "assistant" || !Array.isArray(given.versions) || given.versions.length === 0) return null;
  const versions = given.versions.map(readVersion);
  const chosen = number(given.chosen) ?? 0;
  return { role: "assistant", versions, chosen: Math.min(Math.max(0, Math.trunc(chosen)), versions.length - 1) };
}

function readVersion(given) {
  const version = emptyVersion(text(given?.model) || null);
  for (const name of ["content", "reasoning"]) version[name] = text(given?.[name]);
  for (const name of ["finish", "error"]) version[name] = text(given?.[name]) || null;
  for (const name of ["firstSeconds", "seconds", "tokens", "promptTokens", "cachedTokens"]) {
    version[name] = number(given?.[name]);
  }
  version.isCounted = given?.isCounted === true;
  const calls = Array.isArray(given?.calls) ? given.calls : [];
  version.calls = calls.map((call) => ({
    id: text(call?.id),
    name: text(call?.name),
    arguments: text(call?.arguments),
  }));
  return version;
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

// Not crypto.randomUUID: browsers give that to secure origins only.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
