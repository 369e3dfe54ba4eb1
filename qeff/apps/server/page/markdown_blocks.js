// Splits markdown into blocks: headings, paragraphs, lists, quotes, tables, code, rules. Gives
// plain objects, each with the lines it was read from (`raw`); a block whose `raw` and `open` are
// equal to an earlier one looks the same. `open` marks the block that is still being written.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*)|[ \t]*)$/;
const DIVIDER = /^ {0,3}\|?(?:[ \t]*:?-+:?[ \t]*\|)*[ \t]*:?-+:?[ \t]*\|?[ \t]*$/;
const HALF_DIVIDER = /^[ \t|:-]*$/;
const MAX_DEPTH = 12;

export function readBlocks(text, open = false) {
  return blocksOf(untabbed(text.replaceAll("\r\n", "\n").split("\n")), open, 0);
}

// Tabs that indent become spaces, but for those of code, which is copied as it was written.
function untabbed(lines) {
  let fence = null;
  return lines.map((line) => {
    const mark = /^\s*(`{3,}|~{3,})/.exec(line)?.[1];
    const isInside = fence !== null;
    if (fence === null) fence = mark ?? null;
    else if (mark?.startsWith(fence)) fence = null;
    return isInside && fence !== null ? line : line.replace(/^\s+/, (space) => space.replaceAll("\t", "    "));
  });
}

function blocksOf(lines, open, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const { block, end } = readBlock(lines, at, open, depth);
    block.raw = lines.slice(at, end).join("\n");
    block.open = open && end >= lines.length;
    blocks.push(block);
    at = end;
  }
  return blocks;
}

function readBlock(lines, at, open, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return readFence(lines, at);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = (heading[2] ?? "").replace(/(?:^|[ \t]+)#+[ \t]*$/, "");
    return { block: { kind: "heading", level: heading[1].length, text }, end: at + 1 };
  }
  if (RULE.test(line)) return { block: { kind: "rule" }, end: at + 1 };
  if (QUOTE.test(line) && depth < MAX_DEPTH) return readQuote(lines, at, open, depth);
  if (beginsTable(lines, at, open)) return readTable(lines, at);
  if (ITEM.test(line) && depth < MAX_DEPTH) return readList(lines, at, open, depth);
  return readParagraph(lines, at, open);
}

function readFence(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const indent = indentOf(lines[at]);
  const code = [];
  let end = at + 1;
  let isClosed = false;
  while (end < lines.length && !isClosed) {
    const line = lines[end].trim();
    isClosed = line.length >= fence.length && line === fence[0].repeat(line.length);
    if (!isClosed) code.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
    end += 1;
  }
  // The first ticks of the closing fence are not shown as code while the rest is on its way.
  if (!isClosed && code.length && /^ {0,3}[`~]{1,2}$/.test(code.at(-1))) code.pop();
  const language = info.trim().split(/[\s{]/)[0];
  return { block: { kind: "code", language, text: code.join("\n"), isClosed }, end };
}

function readQuote(lines, at, open, depth) {
  const inside = [];
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) {
    inside.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  const isOpen = open && end >= lines.length;
  return { block: { kind: "quote", blocks: blocksOf(inside, isOpen, depth + 1) }, end };
}

function beginsTable(lines, at, open) {
  const [head, divider] = [lines[at], lines[at + 1]];
  if (!head.includes("|")) return false;
  const isDivided = divider !== undefined && DIVIDER.test(divider) && divider.includes("-");
  if (isDivided && cellsOf(head).length === cellsOf(divider).length) return true;
  // A table that is being written: its head alone, or with the first part of the line below.
  const isLast = at + 1 >= lines.length || (at + 2 === lines.length && HALF_DIVIDER.test(divider));
  return open && isLast && /^ {0,3}\|/.test(head);
}

function readTable(lines, at) {
  const head = cellsOf(lines[at]);
  const sides = cellsOf(lines[at + 1] ?? "").map((cell) => {
    if (/^:-*:$/.test(cell)) return "center";
    return cell.endsWith(":") ? "right" : null;
  });
  const rows = [];
  let end = Math.min(at + 2, lines.length);
  while (end < lines.length && lines[end].trim() !== "" && lines[end].includes("|")) {
    rows.push(fitted(cellsOf(lines[end]), head.length));
    end += 1;
  }
  return { block: { kind: "table", head, sides, rows }, end };
}

// As many cells as the head has; what is too much stays in the last one.
function fitted(cells, width) {
  const first = Array.from({ length: width - 1 }, (_, column) => cells[column] ?? "");
  return [...first, cells.slice(width - 1).join(" | ")];
}

function cellsOf(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function readList(lines, at, open, depth) {
  const first = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first[2]);
  const indent = first[1].length;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    const isSame = found && /\d/.test(found[2]) === isOrdered && found[1].length < indent + 2;
    if (!isSame || RULE.test(lines[end])) break;
    const item = readItem(lines, end, indent);
    items.push(item.lines);
    end = item.end;
  }
  const isTight = items.every((item) => !item.slice(0, -1).includes(""));
  const list = items.map((item, number) => {
    const isOpen = open && end >= lines.length && number === items.length - 1;
    return itemOf(item, isOpen, depth);
  });
  const start = isOrdered ? parseInt(first[2], 10) : null;
  return { block: { kind: "list", start, isTight, items: list }, end };
}

// The lines of one item: those further in than its mark, and plain lines that carry on a paragraph.
function readItem(lines, at, indent) {
  const found = ITEM.exec(lines[at]);
  const inside = [found[3] ?? ""];
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    if (line.trim() === "") {
      const next = lines.slice(end).find((other) => other.trim() !== "");
      if (next === undefined || indentOf(next) < indent + 2) break;
      inside.push("");
    } else if (indentOf(line) >= indent + 2) {
      const width = lines[at].length - (found[3] ?? "").length;
      inside.push(line.slice(Math.min(indentOf(line), found[3] ? width : indent + 2)));
    } else if (lines[end - 1].trim() !== "" && !beginsBlock(line)) {
      inside.push(line.trim());
    } else {
      break;
    }
    end += 1;
  }
  // Blank lines between two items of one list belong to the list.
  let next = end;
  while (next < lines.length && lines[next].trim() === "") next += 1;
  const follows = next < lines.length && next > end && ITEM.test(lines[next]);
  return { lines: inside, end: follows ? next : end };
}

function itemOf(lines, open, depth) {
  const box = /^\[([ xX])\] +/.exec(lines[0]);
  const inside = box ? [lines[0].slice(box[0].length), ...lines.slice(1)] : lines;
  return { isDone: box ? box[1] !== " " : null, blocks: blocksOf(inside, open, depth + 1) };
}

function readParagraph(lines, at, open) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !beginsBlock(lines[end])) {
    if (beginsTable(lines, end, false)) break;
    end += 1;
  }
  let inside = lines.slice(at, end).map((line) => line.trim());
  // A lone mark at the end may become a list, a heading, a rule or a fence with the next piece.
  if (open && end === lines.length && /^(?:[-*+_`~]{1,3}|#{1,6}|\d{1,3}[.)]?)$/.test(inside.at(-1))) {
    inside = inside.slice(0, -1);
  }
  return { block: { kind: "paragraph", text: inside.join("\n") }, end };
}

function beginsBlock(line) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && Boolean(item[3]);
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}
