// Splits code into coloured tokens: comments, strings, numbers, keywords, names of functions. A few
// rules per family of languages, not a parser: a wrong colour is a small harm, and a language that
// is not known stays plain. Gives [kind, text] pairs that joined are the code.

const WORDS = {
  python:
    "and as assert async await break case class continue def del elif else except False finally for from " +
    "global if import in is lambda match None nonlocal not or pass raise return self True try while with yield",
  curly:
    "abstract as async await auto bool boolean break byte case catch char class const constexpr continue " +
    "default defer delete do double else enum export extends extern false final finally float fn for from " +
    "func function go if impl implements import in int interface internal is let long loop match mod module " +
    "move mut mutable namespace new nil noexcept null nullptr of operator override package private protected " +
    "pub public range ref return self short sizeof static std string struct super switch template this throw " +
    "throws trait true try type typedef typename typeof undefined union unsafe unsigned use using val var " +
    "virtual void volatile when where while yield",
  shell:
    "break case cd continue do done echo elif else esac exit export fi for function if in local read return " +
    "set shift source sudo then unset until while",
  sql:
    "add all alter and as asc between by case create cross default delete desc distinct drop else end exists " +
    "foreign from full group having if in index inner insert into is join key left like limit not null offset " +
    "on or order outer primary references right select set table then union unique update values view when " +
    "where with",
  data: "true false null yes no on off",
  ruby:
    "and begin break case class def do else elsif end ensure false for function if in local module next nil " +
    "not or repeat require rescue return self super then true unless until when while yield",
};

const FAMILIES = {
  python: ["py", "python3", "pycon", "starlark"],
  curly: [
    "js", "javascript", "ts", "typescript", "jsx", "tsx", "c", "h", "cpp", "c++", "cc", "cs", "csharp", "java",
    "kotlin", "kt", "go", "golang", "rust", "rs", "swift", "php", "scala", "dart", "zig", "cuda", "glsl", "proto",
    "css", "scss", "less",
  ],
  shell: ["sh", "bash", "zsh", "console", "dockerfile", "make", "makefile", "powershell", "ps1"],
  sql: ["postgres", "mysql", "sqlite"],
  data: ["json", "jsonc", "json5", "yaml", "yml", "toml", "ini", "cfg"],
  ruby: ["rb", "lua", "julia", "elixir", "r"],
  markup: ["html", "xml", "svg", "vue"],
  diff: ["patch"],
};

const STRING = `"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?`;
const NUMBER = "\\b(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w*";
const HASH = "#[^\\n]*";
const SLASHES = "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)";
const DASHES = "--[^\\n]*";

const RULES = {
  python: rules(HASH, `(?:[rbfuRBFU]{0,2})(?:"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|${STRING})`, "@[\\w.]+"),
  curly: rules(SLASHES, `\`(?:[^\`\\\\]|\\\\[\\s\\S])*\`?|${STRING}`, "[#@][\\w-]+"),
  shell: rules("(?<![^\\s;(])#[^\\n]*", STRING, "\\$(?:\\w+|\\{[^}\\n]*\\}?)"),
  sql: rules(`${DASHES}|/\\*[\\s\\S]*?(?:\\*/|$)`, STRING),
  data: rules(`${HASH}|//[^\\n]*`, STRING, "[\\w.-]+(?=\\s*[:=])"),
  ruby: rules(`${HASH}|${DASHES}`, STRING, ":\\w+"),
  markup: oneOf({
    comment: "<!--[\\s\\S]*?(?:-->|$)",
    keyword: "</?[\\w:-]+|/?>",
    string: "\"[^\"]*\"?|'[^']*'?",
    other: "[^<>\"']+|<",
  }),
  diff: oneOf({
    comment: "(?:@@|diff|index|---|\\+\\+\\+)[^\\n]*\\n?",
    string: "\\+[^\\n]*\\n?",
    removed: "-[^\\n]*\\n?",
    other: "[^\\n]*\\n|[^\\n]+",
  }),
};

const BY_NAME = new Map();
for (const [family, names] of Object.entries(FAMILIES)) {
  for (const name of [family, ...names]) BY_NAME.set(name, family);
}

const KEYWORDS = Object.fromEntries(
  Object.entries(WORDS).map(([family, words]) => [family, new Set(words.split(" "))]),
);

function rules(comment, string, special = "(?!)") {
  const word = "[\\p{L}_$][\\p{L}\\p{N}_$]*";
  return oneOf({ comment, string, special, number: NUMBER, word, other: "\\s+|[^\\s]" });
}

// A pattern that takes the first kind that fits at a place.
function oneOf(kinds) {
  return new RegExp(
    Object.entries(kinds)
      .map(([kind, pattern]) => `(?<${kind}>${pattern})`)
      .join("|"),
    "yu",
  );
}

export function colourCode(code, language) {
  const family = BY_NAME.get(language.toLowerCase());
  if (!family) return [["plain", code]];
  const pattern = RULES[family];
  const tokens = [];
  pattern.lastIndex = 0;
  let at = 0;
  while (at < code.length) {
    const found = pattern.exec(code);
    const text = found?.[0] || code[at];
    const [kind] = Object.entries(found?.groups ?? {}).find(([, part]) => part !== undefined) ?? ["other"];
    at += text.length;
    pattern.lastIndex = at;
    add(tokens, kind === "word" ? wordKind(text, code, at, family) : kind, text);
  }
  return tokens;
}

function wordKind(word, code, end, family) {
  const isKeyword = KEYWORDS[family]?.has(family === "sql" ? word.toLowerCase() : word);
  if (isKeyword) return "keyword";
  return code[end] === "(" && family !== "shell" ? "name" : "plain";
}

function add(tokens, kind, text) {
  const shown = kind === "other" ? "plain" : kind;
  const last = tokens.at(-1);
  if (last?.[0] === shown) last[1] += text;
  else tokens.push([shown, text]);
}
