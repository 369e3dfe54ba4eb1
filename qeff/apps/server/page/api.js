// Speaks to the server that gave this page: models, answers piece by piece, numbers of the server.
// Every failure becomes a Problem, whose message is a sentence for a person. Knows nothing of what
// is shown.

import { events } from "./event_stream.js";

const KEY = "qeff.key";
const UNREACHABLE = "The server does not answer. Check that qeff serve is running, then try again.";
const CUT = "The connection ended before the answer was complete.";

export class Problem extends Error {
  constructor(sentence, status = null) {
    super(sentence);
    this.status = status;
  }
}

// The key lives as long as the tab: it is never written where another day could find it.
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export async function models() {
  const list = await json("v1/models");
  return (list.data ?? []).filter((model) => typeof model.id === "string");
}

export function stats() {
  return json("stats");
}

export async function version() {
  return (await json("version")).version ?? "";
}

// The chunks of one answer. Ends quietly when `signal` stops it.
export async function* chat(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  let isDone = false;
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        isDone = true;
        break;
      }
      const chunk = parsed(data);
      if (chunk?.error) throw new Problem(sentence(chunk.error.message ?? CUT));
      if (chunk) yield chunk;
    }
  } catch (error) {
    if (signal.aborted || error instanceof Problem) throw error;
    throw new Problem(CUT);
  }
  if (!isDone && !signal.aborted) throw new Problem(CUT);
}

async function json(path) {
  const response = await ask(path);
  try {
    return await response.json();
  } catch {
    throw new Problem(`The server's answer to /${path} cannot be read.`);
  }
}

// Addresses are relative to the page, so it also works below a path of a proxy.
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(UNREACHABLE);
  }
  if (!response.ok) throw await problem(response);
  return response;
}

async function problem(response) {
  const body = parsed(await response.text().catch(() => ""));
  const said = body?.error?.message ?? body?.detail;
  let text = typeof said === "string" && said ? sentence(said) : `${plain(response.status)}.`;
  const wait = Number(response.headers.get("Retry-After"));
  if (wait > 0) text += ` Try again in ${wait === 1 ? "a second" : `${Math.ceil(wait)} seconds`}.`;
  return new Problem(text, response.status);
}

function plain(status) {
  if (status === 401) return "The server wants an API key";
  if (status === 404) return "The server does not know this address";
  if (status === 413) return "The conversation is too long for the server";
  if (status === 429) return "The server is busy";
  if (status === 503) return "The server is not ready";
  return `The server answered with the error ${status}`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function sentence(text) {
  const trimmed = text.trim();
  const capital = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?)]$/.test(capital) ? capital : `${capital}.`;
}
