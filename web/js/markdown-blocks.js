// Parses the block structure of markdown in linear time, with bounded depth. Pure.
//
//   parse(text)               -> [block]
//   new IncrementalParser()   -> {push(text) -> {keep, blocks}}: `text` is the whole text so far; the first `keep`
//                             blocks have not changed, `blocks` follow them
//
// A block: {type: "paragraph", inline} | {type: "heading", level, inline} | {type: "rule"}
//   | {type: "code", language, text} | {type: "quote", blocks}
//   | {type: "list", ordered, start, tight, items: [{checked: null | bool, blocks}]}
//   | {type: "table", align: ["left" | "right" | "center" | null], head: [inline], rows: [[inline]]}

import { parseInline } from "./markdown-inline.js";

const MAX_DEPTH = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/s;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|(\d{1,9})[.)])( +|$)(.*)$/s;

export class IncrementalParser {
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
    // More text can change the last block, and where it begins while its first line is incomplete.
    const openCount = starts.length > 0 && starts[starts.length - 1] === lines.length - 1 ? 2 : 1;
    const closedCount = Math.max(0, blocks.length - openCount);
    if (closedCount > 0) {
      this.#openAt += lengthOfLines(lines, starts[closedCount]);
      this.#closed += closedCount;
    }
    return { keep, blocks };
  }
}

function lengthOfLines(lines, count) {
  let length = 0;
  for (let index = 0; index < count; index += 1) {
    length += lines[index].length + 1;
  }
  return length;
}

export function parse(text) {
  return parseLines(text.split("\n"), 0, []);
}

/** Pushes the index of the first line of each block to `starts`. */
function parseLines(lines, depth, starts) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = parseBlock(lines, at, depth);
    starts.push(at);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function isBlank(line) {
  return line.trim() === "";
}

function parseBlock(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) {
    return parseCode(lines, at, fence);
  }
  const heading = HEADING.exec(line);
  if (heading) {
    const text = heading[2].replace(/[ \t]#+[ \t]*$/, "").trim();
    return [{ type: "heading", level: heading[1].length, inline: parseInline(text) }, at + 1];
  }
  if (RULE.test(line)) {
    return [{ type: "rule" }, at + 1];
  }
  if (QUOTE.test(line) && depth < MAX_DEPTH) {
    return parseQuote(lines, at, depth);
  }
  if (ITEM.test(line) && depth < MAX_DEPTH) {
    return parseList(lines, at, depth);
  }
  if (isTableAt(lines, at)) {
    return parseTable(lines, at);
  }
  return parseParagraph(lines, at, depth);
}

function parseCode(lines, at, fence) {
  const [, mark, info] = fence;
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`);
  const indent = /^ */.exec(lines[at])[0].length;
  const indentPattern = new RegExp(`^ {0,${indent}}`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) {
    end += 1;
  }
  const text = lines
    .slice(at + 1, end)
    .map((line) => line.replace(indentPattern, ""))
    .join("\n");
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  return [{ type: "code", language, text }, end + 1];
}

function parseQuote(lines, at, depth) {
  let end = at;
  const inside = [];
  while (end < lines.length && !isBlank(lines[end])) {
    if (!QUOTE.test(lines[end]) && (end === at || endsParagraph(lines, end, depth))) {
      break;
    }
    inside.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  return [{ type: "quote", blocks: parseLines(inside, depth + 1, []) }, end];
}

function endsParagraph(lines, at, depth) {
  const line = lines[at];
  const item = ITEM.exec(line);
  const begins = item && item[5] !== "" && (!item[3] || item[3] === "1") && depth < MAX_DEPTH;
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    (QUOTE.test(line) && depth < MAX_DEPTH) ||
    Boolean(begins) ||
    isTableAt(lines, at)
  );
}

function parseParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !endsParagraph(lines, end, depth)) {
    end += 1;
  }
  const text = lines
    .slice(at, end)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
  return [{ type: "paragraph", inline: parseInline(text) }, end];
}

function parseList(lines, at, depth) {
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
    const hasGap = next < lines.length && next > end + 1 && isBlank(lines[next - 1]);
    end = next;
    const following = next < lines.length ? ITEM.exec(lines[next]) : null;
    loose = loose || (hasGap && Boolean(following) && sameKind(following[2], marker));
  }
  const parsed = items.map((inside) => parseItem(inside, depth));
  loose = loose || items.some((inside) => hasInnerGap(inside));
  const start = number === undefined ? 1 : Number(number);
  return [{ type: "list", ordered: number !== undefined, start, tight: !loose, items: parsed }, end];
}

function sameKind(one, other) {
  return one[one.length - 1] === other[other.length - 1];
}

/** The lines of one item without their indent, blank lines at its end included, and the index after it. */
function itemLines(lines, at, item) {
  const space = item[4].length > 4 || item[4].length === 0 ? 1 : item[4].length;
  const indent = item[1].length + item[2].length + space;
  const inside = [item[5]];
  let end = at + 1;
  let hasGap = false;
  while (end < lines.length) {
    const line = lines[end];
    if (isBlank(line)) {
      hasGap = true;
    } else {
      const indentOfLine = /^ */.exec(line)[0].length;
      // Models often indent by two spaces where four are required.
      const deeper = indentOfLine >= Math.min(indent, item[1].length + 2);
      if (!deeper && (hasGap || ITEM.test(line) || endsParagraph(lines, end, 0))) {
        break;
      }
      hasGap = false;
    }
    inside.push(dedent(line, indent));
    end += 1;
  }
  return [inside, end];
}

function dedent(line, indent) {
  const indentOfLine = /^ */.exec(line)[0].length;
  return line.slice(Math.min(indentOfLine, indent));
}

function hasInnerGap(inside) {
  let last = inside.length - 1;
  while (last > 0 && isBlank(inside[last])) {
    last -= 1;
  }
  return inside.slice(1, last).some((line, index) => isBlank(line) && !ITEM.test(inside[index + 2] || ""));
}

function parseItem(inside, depth) {
  const task = /^\[([ xX])\] +/.exec(inside[0]);
  const lines = task ? [inside[0].slice(task[0].length), ...inside.slice(1)] : inside;
  return { checked: task ? task[1] !== " " : null, blocks: parseLines(lines, depth + 1, []) };
}

function isTableAt(lines, at) {
  return (
    at + 1 < lines.length &&
    lines[at].includes("|") &&
    lines[at + 1].includes("-") &&
    isDelimiterRow(lines[at + 1]) &&
    splitCells(lines[at]).length === splitCells(lines[at + 1]).length
  );
}

function isDelimiterRow(line) {
  return /^[|:\- \t]*$/.test(line) && splitCells(line).every((cell) => /^:?-+:?$/.test(cell));
}

function parseTable(lines, at) {
  const head = splitCells(lines[at]);
  const align = splitCells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : left ? "left" : null;
  });
  const rows = [];
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) {
    const row = splitCells(lines[end]);
    rows.push(head.map((_, column) => parseInline(row[column] || "")));
    end += 1;
  }
  return [{ type: "table", align, head: head.map(parseInline), rows }, end];
}

function splitCells(line) {
  const bare = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(^|[^\\])\|$/, "$1");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
