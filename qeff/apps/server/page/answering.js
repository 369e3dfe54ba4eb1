// One answer on its way: takes the server's chunks into a version, and the times that a reader
// feels (until the first token, tokens per second). Knows nothing of what is shown.

import { chat, Problem } from "./api.js";

export class Answering {
  constructor(body, version, changed) {
    this.body = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    this.version = version;
    this.changed = changed;
    this.stopping = new AbortController();
  }

  stop() {
    this.stopping.abort();
  }

  // Runs to the end of the answer. A wrong or missing key is thrown, all else is in the version.
  async run() {
    const { version } = this;
    this.began = performance.now();
    try {
      for await (const chunk of chat(this.body, this.stopping.signal)) this.take(chunk);
      version.finish ??= "stop";
    } catch (error) {
      if (this.stopping.signal.aborted) {
        version.finish = "stopped";
      } else if (error instanceof Problem) {
        if (error.status === 401) throw error;
        version.error = error.message;
        version.finish = "error";
      } else {
        throw error;
      }
    }
  }

  take(chunk) {
    const { version } = this;
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    const calls = delta.tool_calls ?? [];
    version.model = chunk.model ?? version.model;
    version.content += delta.content ?? "";
    version.reasoning += reasoning;
    for (const call of calls) this.takeCall(call);
    if (choice?.finish_reason) version.finish = choice.finish_reason;
    if (delta.content || reasoning || calls.length > 0) this.count();
    this.takeUsage(chunk.usage);
    this.changed();
  }

  takeCall(part) {
    const { calls } = this.version;
    const at = part.index ?? calls.length;
    calls[at] ??= { id: "", name: "", arguments: "" };
    const call = calls[at];
    call.id ||= part.id ?? "";
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }

  count() {
    const { version } = this;
    const now = performance.now();
    if (version.firstSeconds === null) {
      this.first = now;
      version.firstSeconds = (now - this.began) / 1000;
    }
    version.seconds = (now - this.first) / 1000;
    if (!version.isCounted) version.tokens = (version.tokens ?? 0) + 1;
  }

  takeUsage(usage) {
    if (!usage) return;
    const { version } = this;
    version.tokens = usage.completion_tokens ?? version.tokens;
    version.isCounted = usage.completion_tokens !== undefined;
    version.promptTokens = usage.prompt_tokens ?? null;
    version.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? null;
  }
}

// Tokens per second after the first one, or null where there are too few to say.
export function speedOf(version) {
  if (!version.seconds || !version.tokens || version.tokens < 2) return null;
  return (version.tokens - 1) / version.seconds;
}
