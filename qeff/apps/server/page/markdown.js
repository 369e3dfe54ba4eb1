// Shows markdown, also while it is being written: only the blocks that changed are made again, so
// selections and scroll places in the others stay. Makes elements and text nodes, never markup.

import { copyButtonClicked } from "./clipboard.js";
import { colourCode } from "./code_colours.js";
import { make } from "./dom.js";
import { icon } from "./icons.js";
import { readBlocks } from "./markdown_blocks.js";
import { readInline } from "./markdown_inline.js";

const FIRST_LEVEL = 3; // the page's own headings are above those of an answer
const MAX_COLOURED = 40000; // characters of code; longer code stays plain

export class MarkdownView {
  constructor() {
    this.node = make("div", { class: "markdown" });
    this.shown = [];
  }

  update(text, open) {
    const blocks = readBlocks(text, open);
    let same = 0;
    while (same < this.shown.length && same < blocks.length && isEqual(this.shown[same].block, blocks[same])) {
      same += 1;
    }
    const old = this.shown[same];
    const next = blocks[same];
    if (old?.code && next?.kind === "code" && next.language === old.block.language) {
      old.code.update(next.text);
      old.block = next;
      same += 1;
    }
    for (const { node } of this.shown.splice(same)) node.remove();
    for (const block of blocks.slice(same)) {
      const shown = show(block);
      this.shown.push({ block, ...shown });
      this.node.append(shown.node);
    }
  }
}

function isEqual(one, other) {
  return one.kind === other.kind && one.raw === other.raw && one.open === other.open;
}

function show(block) {
  if (block.kind === "code") {
    const code = new CodeView(block.language);
    code.update(block.text);
    return { node: code.node, code };
  }
  return { node: nodeOf(block) };
}

function nodeOf(block) {
  switch (block.kind) {
    case "heading": {
      const level = Math.min(6, block.level + FIRST_LEVEL - 1);
      return make(`h${level}`, { class: `level-${block.level}` }, ...inline(block.text, block.open));
    }
    case "rule":
      return make("hr");
    case "quote":
      return make("blockquote", {}, ...block.blocks.map((inner) => show(inner).node));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    case "code":
      return show(block).node;
    default:
      return make("p", {}, ...inline(block.text, block.open));
  }
}

function listNode(block) {
  const items = block.items.map((item) => {
    const inside = item.blocks.flatMap((inner) =>
      block.isTight && inner.kind === "paragraph" ? inline(inner.text, inner.open) : [show(inner).node],
    );
    if (item.isDone === null) return make("li", {}, ...inside);
    const box = make("input", {
      type: "checkbox",
      disabled: true,
      checked: item.isDone,
      "aria-label": item.isDone ? "done" : "to do",
    });
    return make("li", { class: "task" }, box, ...inside);
  });
  if (block.start === null) return make("ul", {}, ...items);
  return make("ol", { start: block.start === 1 ? null : block.start }, ...items);
}

function tableNode(block) {
  const cell = (tag, text, column, open) =>
    make(
      tag,
      { class: block.sides[column] ?? null, scope: tag === "th" ? "col" : null },
      ...inline(text, open),
    );
  const head = make("tr", {}, ...block.head.map((text, column) => cell("th", text, column, false)));
  const rows = block.rows.map((row, number) => {
    const open = block.open && number === block.rows.length - 1;
    return make("tr", {}, ...row.map((text, column) => cell("td", text, column, open)));
  });
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
  return make("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

function inline(text, open) {
  return readInline(text, open).map(inlineNode);
}

function inlineNode(part) {
  switch (part.kind) {
    case "text":
      return document.createTextNode(part.text);
    case "break":
      return make("br");
    case "code":
      return make("code", {}, part.text);
    case "link": {
      const children = part.children.map(inlineNode);
      if (part.address === null) return make("span", {}, ...children);
      return make("a", { href: part.address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
    }
    default:
      return make(part.kind, {}, ...part.children.map(inlineNode));
  }
}

class CodeView {
  constructor(language) {
    this.language = language;
    this.text = "";
    this.tokens = [];
    this.code = make("code");
    const label = language || "text";
    const copy = make(
      "button",
      {
        type: "button",
        class: "copy-code",
        "aria-label": `Copy ${language} code`.replace("  ", " "),
        on: { click: () => copyButtonClicked(copy, this.text, "Copied") },
      },
      icon("copy"),
      "Copy",
    );
    this.node = make(
      "figure",
      { class: "code-block", "aria-label": `Code, ${label}` },
      make("figcaption", {}, make("span", {}, label), copy),
      make("pre", { tabindex: "0" }, this.code),
    );
  }

  // Tokens that are equal keep their nodes: a block that grows is not made again.
  update(text) {
    this.text = text;
    const tokens = text.length > MAX_COLOURED ? [["plain", text]] : colourCode(text, this.language);
    let same = 0;
    while (
      same < tokens.length &&
      tokens[same][0] === this.tokens[same]?.[0] &&
      tokens[same][1] === this.tokens[same][1]
    ) {
      same += 1;
    }
    while (this.code.childNodes.length > same) this.code.lastChild.remove();
    for (const [kind, part] of tokens.slice(same)) {
      this.code.append(kind === "plain" ? part : make("span", { class: `code-${kind}` }, part));
    }
    this.tokens = tokens;
  }
}
