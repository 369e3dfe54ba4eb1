// Reads the marks inside a line of markdown: emphasis, code, links, line breaks. Gives a tree of
// plain objects: {kind: "text" | "code", text}, {kind: "strong" | "em" | "del" | "link", children},
// {kind: "break"}. Follows CommonMark's rules for emphasis. With `open` the text is still being
// written: a mark at its end that has no partner counts as closed there.

const SAFE = /^(?:https?:\/\/|mailto:)/i;
const BARE = /https?:\/\/[^\s<>"'`]*[^\s<>"'`.,:;!?)\]}*_~]/iy;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/iy;
const TARGET = /\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const HALF_TARGET = /^\([^\s()]*$/;
const BREAK = /<br\s*\/?>/iy;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const REACH = 2000; // characters within which the other end of a link's text is looked for
const OPEN_REACH = 240; // a mark further back than this from the end is not half written
const MAX_DEPTH = 8;
const MAX_MARKS = 400; // of one paragraph; pairing them takes time with their square

export function readInline(text, open = false, depth = 0) {
  const reading = { text, open, depth, parts: [], plain: "" };
  let at = 0;
  while (at < text.length) at = step(reading, at);
  flush(reading);
  const marks = reading.parts.filter((part) => part.mark);
  if (marks.length <= MAX_MARKS) pair(reading.parts);
  if (open && depth === 0) closeTail(reading.parts);
  return merged(reading.parts);
}

// The address when it may be followed from this page, else null.
export function safeAddress(address) {
  return SAFE.test(address) && !/[\u0000-\u0020]/.test(address) ? address : null;
}

function step(reading, at) {
  const { text } = reading;
  const char = text[at];
  if (char === "\\" && at + 1 < text.length) {
    if (text[at + 1] === "\n") return add(reading, { kind: "break" }, at + 2);
    if (/[!-/:-@[-`{-~]/.test(text[at + 1])) return say(reading, text[at + 1], at + 2);
  }
  if (char === "\n") {
    reading.plain = reading.plain.trimEnd();
    return add(reading, { kind: "break" }, at + 1);
  }
  if (char === "`") return readCode(reading, at);
  if (char === "[" || (char === "!" && text[at + 1] === "[")) return readLink(reading, at);
  if (char === "*" || char === "_" || char === "~") return readMark(reading, at);
  if (char === "<") {
    const length = match(BREAK, text, at)?.[0].length;
    if (length) return add(reading, { kind: "break" }, at + length);
    const found = match(ANGLE, text, at);
    if (found) return add(reading, link(found[1], [said(found[1])]), at + found[0].length);
  }
  if ((char === "h" || char === "H") && !/\w/.test(text[at - 1] ?? "")) {
    const address = match(BARE, text, at)?.[0];
    if (address) return add(reading, link(address, [said(address)]), at + address.length);
  }
  return say(reading, char, at + 1);
}

function readCode(reading, at) {
  const { text } = reading;
  const ticks = /`+/y;
  ticks.lastIndex = at;
  const fence = ticks.exec(text)[0];
  const begin = at + fence.length;
  let end = text.indexOf(fence, begin);
  while (end >= 0 && (text[end + fence.length] === "`" || text[end - 1] === "`")) {
    let next = end;
    while (text[next] === "`") next += 1;
    end = text.indexOf(fence, next);
  }
  if (end >= 0) {
    const code = text.slice(begin, end).replaceAll("\n", " ");
    const isPadded = /^ .* $/.test(code) && code.trim() !== "";
    return add(reading, { kind: "code", text: isPadded ? code.slice(1, -1) : code }, end + fence.length);
  }
  if (reading.open && text.length - begin < OPEN_REACH) {
    const code = text.slice(begin).replace(/`+$/, "");
    return code ? add(reading, { kind: "code", text: code }, text.length) : text.length;
  }
  return say(reading, fence, begin);
}

// [text](address); a picture is shown as a link, since nothing is fetched from elsewhere.
function readLink(reading, at) {
  const { text, depth } = reading;
  const begin = text[at] === "!" ? at + 2 : at + 1;
  const end = depth < MAX_DEPTH ? closing(text, begin) : -1;
  if (end < 0) {
    const isHalf = reading.open && text.length - begin < OPEN_REACH && !/\s/.test(text[begin] ?? "x");
    return isHalf && text[at] === "[" ? begin : say(reading, text.slice(at, begin), begin);
  }
  const found = match(TARGET, text, end + 1);
  if (!found) {
    const isHalf = reading.open && HALF_TARGET.test(text.slice(end + 1));
    if (!isHalf) return say(reading, text.slice(at, begin), begin);
    return add(reading, { kind: "link", address: null, children: inner(reading, begin, end) }, text.length);
  }
  const children = inner(reading, begin, end);
  const address = (found[1] ?? found[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1");
  return add(reading, link(address, children.length ? children : [said(address)]), end + 1 + found[0].length);
}

function inner(reading, begin, end) {
  return readInline(reading.text.slice(begin, end), false, reading.depth + 1);
}

function closing(text, begin) {
  let nested = 0;
  const last = Math.min(text.length, begin + REACH);
  for (let at = begin; at < last; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === "[") nested += 1;
    else if (text[at] === "]" && nested-- === 0) return at;
  }
  return -1;
}

function readMark(reading, at) {
  const { text } = reading;
  const char = text[at];
  let end = at;
  while (text[end] === char) end += 1;
  const before = text[at - 1] ?? " ";
  const after = text[end] ?? " ";
  const opens = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const closes = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  const isWord = char === "_"; // snake_case is no emphasis
  flush(reading);
  reading.parts.push({
    mark: char,
    count: end - at,
    place: at,
    opens: opens && (!isWord || !closes || PUNCTUATION.test(before)),
    closes: closes && (!isWord || !opens || PUNCTUATION.test(after)),
    isLast: end === text.length,
    toEnd: text.length - end,
  });
  return end;
}

// CommonMark's pairing: each closing run takes the nearest opening run of its kind.
function pair(parts) {
  for (let close = 0; close < parts.length; close += 1) {
    const closer = parts[close];
    while (closer.mark && closer.closes && closer.count > 0) {
      let open = close - 1;
      while (open >= 0 && !fits(parts[open], closer)) open -= 1;
      if (open < 0) break;
      const opener = parts[open];
      const size = wrapSize(opener, closer);
      const children = merged(parts.splice(open + 1, close - open - 1));
      parts.splice(open + 1, 0, { kind: kindOf(closer.mark, size), children });
      opener.count -= size;
      closer.count -= size;
      close = open + 2;
    }
  }
}

function fits(opener, closer) {
  if (opener.mark !== closer.mark || !opener.opens || opener.count === 0) return false;
  if (closer.mark === "~") return opener.count === closer.count && closer.count <= 2;
  const isEither = opener.closes || closer.opens;
  return !isEither || (opener.count + closer.count) % 3 !== 0 || closer.count % 3 === 0;
}

function wrapSize(opener, closer) {
  if (closer.mark === "~") return closer.count;
  return opener.count >= 2 && closer.count >= 2 ? 2 : 1;
}

function kindOf(mark, size) {
  if (mark === "~") return "del";
  return size === 2 ? "strong" : "em";
}

// Half of a pair at the end of a text that is being written.
function closeTail(parts) {
  for (let at = parts.length - 1; at >= 0; at -= 1) {
    const part = parts[at];
    if (!part.mark || part.count === 0 || part.toEnd > OPEN_REACH) continue;
    const isFresh = part.isLast && part.count <= 3 && at === parts.length - 1;
    if (isFresh) {
      parts.pop();
    } else if (part.opens && part.count <= 3 && !(part.mark === "~" && part.count === 1)) {
      const children = merged(parts.splice(at + 1));
      const size = Math.min(part.count, 2);
      parts[at] = { kind: kindOf(part.mark, size), children };
    }
  }
}

function merged(parts) {
  const nodes = [];
  for (const part of parts) {
    const node = part.mark ? said(part.mark.repeat(part.count)) : part;
    const last = nodes.at(-1);
    if (node.kind === "text" && node.text === "") continue;
    if (node.kind === "text" && last?.kind === "text") nodes[nodes.length - 1] = said(last.text + node.text);
    else nodes.push(node);
  }
  return nodes;
}

function link(address, children) {
  return { kind: "link", address: safeAddress(address), children };
}

function said(text) {
  return { kind: "text", text };
}

function say(reading, text, next) {
  reading.plain += text;
  return next;
}

function add(reading, node, next) {
  flush(reading);
  reading.parts.push(node);
  return next;
}

function flush(reading) {
  if (reading.plain) reading.parts.push(said(reading.plain));
  reading.plain = "";
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}
