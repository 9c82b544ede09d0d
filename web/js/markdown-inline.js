// Parses the inline structure of markdown: code, emphasis, links and line breaks. Pure. One pass with bounded
// lookahead.
//
//   parseInline(text) -> [node]
//   safeUrl(text)     the URL if its scheme is http, https or mailto, else null
//
// A node: {type: "text", text} | {type: "code", text} | {type: "break"}
//   | {type: "strong" | "em" | "del", children} | {type: "link", href, children}

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const MAX_LABEL = 1000;
const MAX_TARGET = 2000;
const MAX_OPEN = 32;
/** Nested brackets in a link. */
const MAX_DEPTH = 32;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const BARE_URL = /https?:\/\/[^\s<>"'`\u0000-\u0020]{1,2000}/y;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const SPECIAL = /[\\`*_~[!<\nh]/g;

export function parseInline(text) {
  return new InlineParser(text).parse();
}

/** At the end of a URL, these belong to the sentence. */
const SENTENCE_PUNCTUATION = ".,:;!?*_~";

export function safeUrl(text) {
  try {
    const url = new URL(text.trim());
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

class InlineParser {
  constructor(text, insideLink = false) {
    this.text = text;
    this.insideLink = insideLink;
    this.pos = 0;
    // The first frame is the whole text; the others are emphases that are still open.
    this.frames = [{ mark: null, children: [] }];
    this.backticks = null;
    this.noUrlBefore = 0;
  }

  parse() {
    while (this.pos < this.text.length) {
      SPECIAL.lastIndex = this.pos;
      const found = SPECIAL.exec(this.text);
      const next = found ? found.index : this.text.length;
      if (next > this.pos) {
        this.addText(this.text.slice(this.pos, next));
        this.pos = next;
      }
      if (found) {
        this.parseSpecial(found[0]);
      }
    }
    while (this.frames.length > 1) {
      this.undoFrame();
    }
    return this.frames[0].children;
  }

  parseSpecial(char) {
    const done =
      (char === "\\" && this.parseEscape()) ||
      (char === "`" && this.parseCode()) ||
      (char === "\n" && this.parseLineBreak()) ||
      ((char === "*" || char === "_" || char === "~") && this.parseEmphasis(char)) ||
      ((char === "[" || char === "!") && this.parseLink(char)) ||
      (char === "<" && this.parseAngleUrl(ANGLE_URL, 1)) ||
      (char === "h" && !this.insideLink && this.parseBareUrl());
    if (!done) {
      this.addText(char);
      this.pos += 1;
    }
  }

  addText(text) {
    const { children } = this.frames[this.frames.length - 1];
    const last = children[children.length - 1];
    if (last?.type === "text") {
      last.text += text;
    } else if (text !== "") {
      children.push({ type: "text", text });
    }
  }

  addNode(node) {
    this.frames[this.frames.length - 1].children.push(node);
  }

  parseEscape() {
    const char = this.text[this.pos + 1];
    if (char === "\n") {
      this.pos += 1;
      return this.parseLineBreak();
    }
    if (!char || !PUNCTUATION.test(char)) {
      return false;
    }
    this.addText(char);
    this.pos += 2;
    return true;
  }

  /** Every newline is a line break, unlike in CommonMark. */
  parseLineBreak() {
    const { children } = this.frames[this.frames.length - 1];
    const last = children[children.length - 1];
    if (last?.type === "text") {
      last.text = last.text.trimEnd();
    }
    this.addNode({ type: "break" });
    this.pos += 1;
    return true;
  }

  parseCode() {
    let end = this.pos;
    while (this.text[end] === "`") {
      end += 1;
    }
    const length = end - this.pos;
    const close = this.findClosing(length, end);
    if (close < 0) {
      this.addText(this.text.slice(this.pos, end));
      this.pos = end;
      return true;
    }
    let inside = this.text.slice(end, close).replaceAll("\n", " ");
    if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "") {
      inside = inside.slice(1, -1);
    }
    this.addNode({ type: "code", text: inside });
    this.pos = close + length;
    return true;
  }

  /** Where the next run of exactly `length` backticks begins. `from` only grows, so earlier runs are dropped. */
  findClosing(length, from) {
    this.backticks ??= findBackticks(this.text);
    const runs = this.backticks.get(length) ?? [];
    while (runs.length > 0 && runs[runs.length - 1] < from) {
      runs.pop();
    }
    return runs.length > 0 ? runs[runs.length - 1] : -1;
  }

  parseEmphasis(char) {
    const double = this.text[this.pos + 1] === char;
    if (char === "~" && !double) {
      return false;
    }
    // `***` closes the innermost emphasis first.
    const inner = this.text[this.pos + 2] === char && this.frames[this.frames.length - 1].mark === char;
    const mark = double && !inner ? char + char : char;
    const before = this.text[this.pos - 1] || " ";
    const after = this.text[this.pos + mark.length] || " ";
    const word = /[\p{L}\p{N}]/u;
    const closes = !/\s/.test(before) && !(char === "_" && word.test(after));
    const opens = !/\s/.test(after) && !(char === "_" && word.test(before));
    if (closes && this.closeFrame(mark)) {
      this.pos += mark.length;
      return true;
    }
    if (opens && this.frames.length < MAX_OPEN) {
      this.frames.push({ mark, children: [] });
      this.pos += mark.length;
      return true;
    }
    this.addText(mark);
    this.pos += mark.length;
    return true;
  }

  /** Closes the innermost emphasis with this mark; marks that are still open inside it become text. */
  closeFrame(mark) {
    if (!this.frames.some((frame) => frame.mark === mark)) {
      return false;
    }
    while (this.frames[this.frames.length - 1].mark !== mark) {
      this.undoFrame();
    }
    const { children } = this.frames.pop();
    if (children.length === 0) {
      this.addText(mark + mark);
    } else {
      this.addNode({ type: mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em", children });
    }
    return true;
  }

  undoFrame() {
    const { mark, children } = this.frames.pop();
    this.addText(mark);
    for (const child of children) {
      if (child.type === "text") {
        this.addText(child.text);
      } else {
        this.addNode(child);
      }
    }
  }

  /** `[label](target)`. An image becomes a link too: the page loads nothing from other hosts. */
  parseLink(char) {
    const open = char === "!" ? this.pos + 1 : this.pos;
    if (this.text[open] !== "[" || this.insideLink) {
      return false;
    }
    const close = this.findLabelEnd(open + 1);
    if (close < 0 || this.text[close + 1] !== "(") {
      return false;
    }
    const end = this.findTargetEnd(close + 2);
    if (end < 0) {
      return false;
    }
    const href = safeUrl(withoutTitle(this.text.slice(close + 2, end).trim()).replace(/^<(.*)>$/, "$1"));
    if (!href) {
      return false;
    }
    const label = this.text.slice(open + 1, close);
    const children = label === "" ? [{ type: "text", text: href }] : new InlineParser(label, true).parse();
    this.addNode({ type: "link", href, children });
    this.pos = end + 1;
    return true;
  }

  findLabelEnd(from) {
    const end = Math.min(this.text.length, from + MAX_LABEL);
    let depth = 0;
    for (let pos = from; pos < end && depth < MAX_DEPTH; pos += 1) {
      const char = this.text[pos];
      if (char === "\\") {
        pos += 1;
      } else if (char === "[") {
        depth += 1;
      } else if (char === "]" && depth === 0) {
        return pos;
      } else if (char === "]") {
        depth -= 1;
      }
    }
    return -1;
  }

  findTargetEnd(from) {
    const end = Math.min(this.text.length, from + MAX_TARGET);
    let depth = 0;
    for (let pos = from; pos < end && depth < MAX_DEPTH && this.text[pos] !== "\n"; pos += 1) {
      if (this.text[pos] === "(") {
        depth += 1;
      } else if (this.text[pos] === ")" && depth === 0) {
        return pos;
      } else if (this.text[pos] === ")") {
        depth -= 1;
      }
    }
    return -1;
  }

  parseAngleUrl(pattern, group) {
    pattern.lastIndex = this.pos;
    const found = pattern.exec(this.text);
    const href = found && safeUrl(found[group]);
    if (!href) {
      return false;
    }
    this.addNode({ type: "link", href, children: [{ type: "text", text: found[group] }] });
    this.pos += found[0].length;
    return true;
  }

  parseBareUrl() {
    const insideWord = /[\p{L}\p{N}]$/u.test(this.text.slice(Math.max(0, this.pos - 2), this.pos));
    if (insideWord || this.pos < this.noUrlBefore) {
      return false;
    }
    BARE_URL.lastIndex = this.pos;
    const found = BARE_URL.exec(this.text);
    if (!found) {
      return false;
    }
    const shown = found[0].slice(0, urlLength(found[0]));
    const href = safeUrl(shown);
    if (!href) {
      // Do not try again inside this text.
      this.noUrlBefore = this.pos + found[0].length;
      return false;
    }
    this.addNode({ type: "link", href, children: [{ type: "text", text: shown }] });
    this.pos += shown.length;
    return true;
  }
}

/** Where runs of backticks begin, by their length, in reverse order. */
function findBackticks(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) {
      runs.set(run.length, []);
    }
    runs.get(run.length).push(index);
  }
  runs.forEach((positions) => positions.reverse());
  return runs;
}

/** The URL of a link target of the form `url "title"`. */
function withoutTitle(target) {
  const quote = target[target.length - 1];
  const open = quote === '"' || quote === "'" ? target.lastIndexOf(quote, target.length - 2) : -1;
  return open > 0 && /\s/.test(target[open - 1]) ? target.slice(0, open).trimEnd() : target;
}

/** The length of the URL without trailing punctuation and unmatched closing brackets. */
function urlLength(word) {
  let open = 0;
  for (const char of word) {
    open += char === "(" ? 1 : char === ")" ? -1 : 0;
  }
  let end = word.length;
  while (end > 0 && (SENTENCE_PUNCTUATION.includes(word[end - 1]) || (word[end - 1] === ")" && open < 0))) {
    open += word[end - 1] === ")" ? 1 : 0;
    end -= 1;
  }
  return end;
}
