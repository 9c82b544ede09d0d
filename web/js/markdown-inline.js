// What stands inside one block of markdown: code, emphasis, links, breaks. Pure. One pass; every look ahead
// is bounded.
//
//   parseInline(text) -> [node]
//
// A node: {type: "text", text} | {type: "code", text} | {type: "break"}
//   | {type: "strong" | "em" | "del", children} | {type: "link", href, children}. Links lead to http, https or mailto, or they stay text.

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const LONGEST_LABEL = 1000;
const LONGEST_TARGET = 2000;
const MOST_OPEN = 32;
/** Brackets inside brackets; deeper ones are no link. */
const DEEPEST = 32;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const BARE = /https?:\/\/[^\s<>"'`\u0000-\u0020]{1,2000}/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const SPECIAL = /[\\`*_~[!<\nh]/g;

export function parseInline(text) {
  return new Inline(text).parse();
}

/** Signs that end a sentence rather than an address. */
const SENTENCE = ".,:;!?*_~";

/** The address if it may be a link here, else null. */
export function safeAddress(text) {
  try {
    const url = new URL(text.trim());
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

class Inline {
  constructor(text, insideLink = false) {
    this.text = text;
    this.insideLink = insideLink;
    this.at = 0;
    // The bottom frame is the whole; each frame above it is an emphasis that was opened and not closed yet.
    this.frames = [{ mark: null, children: [] }];
    this.backticks = null;
    this.noAddressBefore = 0;
  }

  parse() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      const next = found ? found.index : this.text.length;
      if (next > this.at) {
        this.say(this.text.slice(this.at, next));
        this.at = next;
      }
      if (found) {
        this.special(found[0]);
      }
    }
    while (this.frames.length > 1) {
      this.giveUp();
    }
    return this.frames[0].children;
  }

  special(letter) {
    const done =
      (letter === "\\" && this.escape()) ||
      (letter === "`" && this.code()) ||
      (letter === "\n" && this.lineBreak()) ||
      ((letter === "*" || letter === "_" || letter === "~") && this.emphasis(letter)) ||
      ((letter === "[" || letter === "!") && this.link(letter)) ||
      (letter === "<" && this.address(ANGLE, 1)) ||
      (letter === "h" && !this.insideLink && this.bareAddress());
    if (!done) {
      this.say(letter);
      this.at += 1;
    }
  }

  say(text) {
    const { children } = this.frames[this.frames.length - 1];
    const last = children[children.length - 1];
    if (last?.type === "text") {
      last.text += text;
    } else if (text !== "") {
      children.push({ type: "text", text });
    }
  }

  add(node) {
    this.frames[this.frames.length - 1].children.push(node);
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") {
      this.at += 1;
      return this.lineBreak();
    }
    if (!next || !PUNCTUATION.test(next)) {
      return false;
    }
    this.say(next);
    this.at += 2;
    return true;
  }

  /** Models break lines where they want them broken, so each break is one. */
  lineBreak() {
    const { children } = this.frames[this.frames.length - 1];
    const last = children[children.length - 1];
    if (last?.type === "text") {
      last.text = last.text.trimEnd();
    }
    this.add({ type: "break" });
    this.at += 1;
    return true;
  }

  code() {
    let end = this.at;
    while (this.text[end] === "`") {
      end += 1;
    }
    const length = end - this.at;
    const close = this.closer(length, end);
    if (close < 0) {
      this.say(this.text.slice(this.at, end));
      this.at = end;
      return true;
    }
    let inside = this.text.slice(end, close).replaceAll("\n", " ");
    if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "") {
      inside = inside.slice(1, -1);
    }
    this.add({ type: "code", text: inside });
    this.at = close + length;
    return true;
  }

  /**
   * Where the next run of exactly `length` backticks begins. All runs are found once; `from` only grows, so
   * what lies before it is let go.
   */
  closer(length, from) {
    this.backticks ??= runsOfBackticks(this.text);
    const runs = this.backticks.get(length) ?? [];
    while (runs.length > 0 && runs[runs.length - 1] < from) {
      runs.pop();
    }
    return runs.length > 0 ? runs[runs.length - 1] : -1;
  }

  emphasis(letter) {
    const double = this.text[this.at + 1] === letter;
    if (letter === "~" && !double) {
      return false;
    }
    // Of `***` the inner one is closed first, whichever that was.
    const inner = this.text[this.at + 2] === letter && this.frames[this.frames.length - 1].mark === letter;
    const mark = double && !inner ? letter + letter : letter;
    const before = this.text[this.at - 1] || " ";
    const after = this.text[this.at + mark.length] || " ";
    const word = /[\p{L}\p{N}]/u;
    const closes = !/\s/.test(before) && !(letter === "_" && word.test(after));
    const opens = !/\s/.test(after) && !(letter === "_" && word.test(before));
    if (closes && this.closeFrame(mark)) {
      this.at += mark.length;
      return true;
    }
    if (opens && this.frames.length < MOST_OPEN) {
      this.frames.push({ mark, children: [] });
      this.at += mark.length;
      return true;
    }
    this.say(mark);
    this.at += mark.length;
    return true;
  }

  /**
   * Closes the innermost emphasis with this mark; what was opened inside it and never closed was no emphasis.
   */
  closeFrame(mark) {
    if (!this.frames.some((frame) => frame.mark === mark)) {
      return false;
    }
    while (this.frames[this.frames.length - 1].mark !== mark) {
      this.giveUp();
    }
    const { children } = this.frames.pop();
    if (children.length === 0) {
      this.say(mark + mark);
    } else {
      this.add({ type: mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em", children });
    }
    return true;
  }

  giveUp() {
    const { mark, children } = this.frames.pop();
    this.say(mark);
    for (const child of children) {
      if (child.type === "text") {
        this.say(child.text);
      } else {
        this.add(child);
      }
    }
  }

  /**
   * `[label](target)`, and `![label](target)`, which is shown as a link: the page loads nothing from
   * elsewhere.
   */
  link(letter) {
    const open = letter === "!" ? this.at + 1 : this.at;
    if (this.text[open] !== "[" || this.insideLink) {
      return false;
    }
    const close = this.labelEnd(open + 1);
    if (close < 0 || this.text[close + 1] !== "(") {
      return false;
    }
    const end = this.targetEnd(close + 2);
    if (end < 0) {
      return false;
    }
    const href = safeAddress(withoutTitle(this.text.slice(close + 2, end).trim()).replace(/^<(.*)>$/, "$1"));
    if (!href) {
      return false;
    }
    const label = this.text.slice(open + 1, close);
    const children = label === "" ? [{ type: "text", text: href }] : new Inline(label, true).parse();
    this.add({ type: "link", href, children });
    this.at = end + 1;
    return true;
  }

  labelEnd(from) {
    const most = Math.min(this.text.length, from + LONGEST_LABEL);
    let depth = 0;
    for (let at = from; at < most && depth < DEEPEST; at += 1) {
      const letter = this.text[at];
      if (letter === "\\") {
        at += 1;
      } else if (letter === "[") {
        depth += 1;
      } else if (letter === "]" && depth === 0) {
        return at;
      } else if (letter === "]") {
        depth -= 1;
      }
    }
    return -1;
  }

  targetEnd(from) {
    const most = Math.min(this.text.length, from + LONGEST_TARGET);
    let depth = 0;
    for (let at = from; at < most && depth < DEEPEST && this.text[at] !== "\n"; at += 1) {
      if (this.text[at] === "(") {
        depth += 1;
      } else if (this.text[at] === ")" && depth === 0) {
        return at;
      } else if (this.text[at] === ")") {
        depth -= 1;
      }
    }
    return -1;
  }

  address(pattern, group) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    const href = found && safeAddress(found[group]);
    if (!href) {
      return false;
    }
    this.add({ type: "link", href, children: [{ type: "text", text: found[group] }] });
    this.at += found[0].length;
    return true;
  }

  /** An address in running text ends before the punctuation of its sentence. */
  bareAddress() {
    const insideWord = /[\p{L}\p{N}]$/u.test(this.text.slice(Math.max(0, this.at - 2), this.at));
    if (insideWord || this.at < this.noAddressBefore) {
      return false;
    }
    BARE.lastIndex = this.at;
    const found = BARE.exec(this.text);
    if (!found) {
      return false;
    }
    const shown = found[0].slice(0, addressLength(found[0]));
    const href = safeAddress(shown);
    if (!href) {
      // Looked at once and found to be none: the addresses that seem to begin inside it are none either.
      this.noAddressBefore = this.at + found[0].length;
      return false;
    }
    this.add({ type: "link", href, children: [{ type: "text", text: shown }] });
    this.at += shown.length;
    return true;
  }
}

/** Where runs of backticks begin, by their length; the first one last. */
function runsOfBackticks(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) {
      runs.set(run.length, []);
    }
    runs.get(run.length).push(index);
  }
  runs.forEach((places) => places.reverse());
  return runs;
}

/** A link's target without the title behind it: `address "title"`. */
function withoutTitle(target) {
  const quote = target[target.length - 1];
  const open = quote === '"' || quote === "'" ? target.lastIndexOf(quote, target.length - 2) : -1;
  return open > 0 && /\s/.test(target[open - 1]) ? target.slice(0, open).trimEnd() : target;
}

/** How much of a word is its address: not the sentence's signs behind it, and no bracket opened before it. */
function addressLength(word) {
  let open = 0;
  for (const letter of word) {
    open += letter === "(" ? 1 : letter === ")" ? -1 : 0;
  }
  let end = word.length;
  while (end > 0 && (SENTENCE.includes(word[end - 1]) || (word[end - 1] === ")" && open < 0))) {
    open += word[end - 1] === ")" ? 1 : 0;
    end -= 1;
  }
  return end;
}
