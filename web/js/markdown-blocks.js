// The block structure of markdown. Pure. Hostile text costs no more than its length: depth is bounded,
// nothing is tried twice.
//
//   parse(text)     -> [block]
//   new Blocks()    -> {push(text) -> {keep, blocks}}: the same while the text grows, looking only at what is
//                      not closed yet
//
// A block: {type: "paragraph", inline} | {type: "heading", level, inline} | {type: "rule"}
//   | {type: "code", language, text} | {type: "quote", blocks}
//   | {type: "list", ordered, start, tight, items: [{checked: null | bool, blocks}]}
//   | {type: "table", align: ["left" | "right" | "center" | null], head: [inline], rows: [[inline]]}

import { parseInline } from "./markdown-inline.js";

const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/s;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|(\d{1,9})[.)])( +|$)(.*)$/s;

export class Blocks {
  #text = "";
  #closed = 0;
  #openAt = 0;

  push(text) {
    if (!text.startsWith(this.#text)) {
      this.#closed = 0;
      this.#openAt = 0;
    }
    this.#text = text;
    const keep = this.#closed;
    const lines = text.slice(this.#openAt).split("\n");
    const starts = [];
    const blocks = parseLines(lines, 0, starts);
    // More text can still change what the last block is; and where it begins, as long as its first line is
    // not complete.
    const unsure = starts.length > 0 && starts[starts.length - 1] === lines.length - 1 ? 2 : 1;
    const sure = Math.max(0, blocks.length - unsure);
    if (sure > 0) {
      this.#openAt += lengthOf(lines, starts[sure]);
      this.#closed += sure;
    }
    return { keep, blocks };
  }
}

function lengthOf(lines, count) {
  let length = 0;
  for (let index = 0; index < count; index += 1) {
    length += lines[index].length + 1;
  }
  return length;
}

export function parse(text) {
  return parseLines(text.split("\n"), 0, []);
}

/** The blocks of some lines; the number of each block's first line goes into `starts`. */
function parseLines(lines, depth, starts) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    starts.push(at);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function blank(line) {
  return line.trim() === "";
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) {
    return code(lines, at, fence);
  }
  const heading = HEADING.exec(line);
  if (heading) {
    const text = heading[2].replace(/[ \t]#+[ \t]*$/, "").trim();
    return [{ type: "heading", level: heading[1].length, inline: parseInline(text) }, at + 1];
  }
  if (RULE.test(line)) {
    return [{ type: "rule" }, at + 1];
  }
  if (QUOTE.test(line) && depth < DEEPEST) {
    return quote(lines, at, depth);
  }
  if (ITEM.test(line) && depth < DEEPEST) {
    return list(lines, at, depth);
  }
  if (tableAt(lines, at)) {
    return table(lines, at);
  }
  return paragraph(lines, at, depth);
}

function code(lines, at, fence) {
  const [, mark, info] = fence;
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`);
  const indent = /^ */.exec(lines[at])[0].length;
  const strip = new RegExp(`^ {0,${indent}}`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) {
    end += 1;
  }
  const text = lines
    .slice(at + 1, end)
    .map((line) => line.replace(strip, ""))
    .join("\n");
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  return [{ type: "code", language, text }, end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  const inside = [];
  while (end < lines.length && !blank(lines[end])) {
    if (!QUOTE.test(lines[end]) && (end === at || interrupts(lines, end, depth))) {
      break;
    }
    inside.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  return [{ type: "quote", blocks: parseLines(inside, depth + 1, []) }, end];
}

/** Whether a line ends the paragraph before it. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  const item = ITEM.exec(line);
  const begins = item && item[5] !== "" && (!item[3] || item[3] === "1") && depth < DEEPEST;
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    (QUOTE.test(line) && depth < DEEPEST) ||
    Boolean(begins) ||
    tableAt(lines, at)
  );
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !blank(lines[end]) && !interrupts(lines, end, depth)) {
    end += 1;
  }
  const text = lines
    .slice(at, end)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
  return [{ type: "paragraph", inline: parseInline(text) }, end];
}

/** Lines of a list: items of the same kind and what is indented below them. */
function list(lines, at, depth) {
  const [, lead, marker, number] = ITEM.exec(lines[at]);
  const base = lead.length;
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length > base + 3 || !sameKind(item[2], marker) || RULE.test(lines[end])) {
      break;
    }
    const [inside, next] = itemLines(lines, end, item);
    items.push(inside);
    const gap = next < lines.length && next > end + 1 && blank(lines[next - 1]);
    end = next;
    const following = next < lines.length ? ITEM.exec(lines[next]) : null;
    loose = loose || (gap && Boolean(following) && sameKind(following[2], marker));
  }
  const parsed = items.map((inside) => itemOf(inside, depth));
  loose = loose || items.some((inside) => innerGap(inside));
  const start = number === undefined ? 1 : Number(number);
  return [{ type: "list", ordered: number !== undefined, start, tight: !loose, items: parsed }, end];
}

function sameKind(one, other) {
  return one[one.length - 1] === other[other.length - 1];
}

/**
 * The lines of one item without their indent, and the line behind it. Blank lines at its end belong to it.
 */
function itemLines(lines, at, item) {
  const space = item[4].length > 4 || item[4].length === 0 ? 1 : item[4].length;
  const indent = item[1].length + item[2].length + space;
  const inside = [item[5]];
  let end = at + 1;
  let gap = false;
  while (end < lines.length) {
    const line = lines[end];
    if (blank(line)) {
      gap = true;
    } else {
      const own = /^ */.exec(line)[0].length;
      // Models indent by two where four are due; anything deeper than the marker belongs to the item.
      const deeper = own >= Math.min(indent, item[1].length + 2);
      if (!deeper && (gap || ITEM.test(line) || interrupts(lines, end, 0))) {
        break;
      }
      gap = false;
    }
    inside.push(dedent(line, indent));
    end += 1;
  }
  return [inside, end];
}

function dedent(line, indent) {
  const own = /^ */.exec(line)[0].length;
  return line.slice(Math.min(own, indent));
}

function innerGap(inside) {
  let last = inside.length - 1;
  while (last > 0 && blank(inside[last])) {
    last -= 1;
  }
  return inside.slice(1, last).some((line, index) => blank(line) && !ITEM.test(inside[index + 2] || ""));
}

function itemOf(inside, depth) {
  const task = /^\[([ xX])\] +/.exec(inside[0]);
  const lines = task ? [inside[0].slice(task[0].length), ...inside.slice(1)] : inside;
  return { checked: task ? task[1] !== " " : null, blocks: parseLines(lines, depth + 1, []) };
}

function tableAt(lines, at) {
  return (
    at + 1 < lines.length &&
    lines[at].includes("|") &&
    lines[at + 1].includes("-") &&
    delimits(lines[at + 1]) &&
    cells(lines[at]).length === cells(lines[at + 1]).length
  );
}

/** Whether a line stands between the head of a table and its rows. */
function delimits(line) {
  return /^[|:\- \t]*$/.test(line) && cells(line).every((cell) => /^:?-+:?$/.test(cell));
}

function table(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : left ? "left" : null;
  });
  const rows = [];
  let end = at + 2;
  while (end < lines.length && !blank(lines[end]) && lines[end].includes("|")) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => parseInline(row[column] || "")));
    end += 1;
  }
  return [{ type: "table", align, head: head.map(parseInline), rows }, end];
}

function cells(line) {
  const bare = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(^|[^\\])\|$/, "$1");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
