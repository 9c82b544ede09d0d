// Draws a laid-out timeline (timeline.js) as SVG. Every text goes in as text. It knows neither the run nor
// the daemon. It is one image: whoever cannot see it, and whoever uses the keyboard, has the table below it
// (ledger-table.js).

import { standing } from "./ledger.js";
import { endWord, GLYPHS, kindWord, labelOf, offsetWord, rowTitle } from "./ledger-words.js";
import { fitting, MONO, textWidth } from "./timeline.js";
import { millis } from "./texts.js";

const SVG = "http://www.w3.org/2000/svg";
const KIND_WIDTH = 66;
const INDENT = 14;

/** An SVG element. Attributes that are undefined are left out. */
export function s(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) {
      element.setAttribute(key, typeof value === "number" ? String(round(value)) : value);
    }
  }
  element.append(...children.flat(2));
  return element;
}

/** Fills an `svg.timeline` with what `layOut` placed. `label` says in words what can be seen. */
export function drawTimeline(svg, laid, label) {
  setSize(svg, laid.width, laid.height);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(
    s("defs", {}, hatch()),
    s(
      "g",
      { class: "ticks" },
      laid.ticks.map((tick) => drawTick(tick, laid.plot)),
    ),
    s(
      "g",
      { class: "rows" },
      laid.rows.map((placed) => drawRow(placed, laid)),
    ),
    s(
      "g",
      { class: "lines" },
      laid.lines.map((line) => drawLine(line, laid.plot)),
    ),
    s(
      "g",
      { class: "words" },
      laid.rows.map((placed) => [drawName(placed, laid), drawEnd(placed, laid)]),
    ),
  );
}

/** Fills an `svg.overview` with what `overview` placed. */
export function drawOverview(svg, placed, width, height) {
  setSize(svg, width, height);
  svg.setAttribute("aria-hidden", "true");
  const marks = placed.marks.map(({ x, y, width: w, height: h }) =>
    s("rect", { class: "mark", x, y, width: w, height: h }),
  );
  const { x, width: w } = placed.view;
  svg.replaceChildren(
    s("g", {}, marks),
    s("rect", { class: "zoomed", x, y: 0.5, width: w, height: height - 1, rx: 2 }),
  );
}

function setSize(svg, width, height) {
  svg.setAttribute("viewBox", `0 0 ${round(width)} ${round(height)}`);
  svg.setAttribute("width", String(round(width)));
  svg.setAttribute("height", String(round(height)));
}

function round(value) {
  return Math.round(value * 100) / 100;
}

/** What lies after the request of a stop: stripes, so that it can be told without colour, too. */
function hatch() {
  const size = { width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return s(
    "pattern",
    { id: "late-hatch", ...size },
    s("rect", { class: "hatch-ground", width: 6, height: 6 }),
    s("rect", { class: "hatch-stripe", width: 2.5, height: 6 }),
  );
}

function drawTick({ x, ms, anchor, sinceStop }, { top, bottom }) {
  const sign = ms < 0 ? "−" : sinceStop && ms > 0 ? "+" : "";
  const text = `${sign}${millis(Math.abs(ms))}`;
  return s(
    "g",
    {},
    s("line", { x1: x, x2: x, y1: top, y2: bottom }),
    s("text", { x, y: bottom + 15, "text-anchor": anchor }, text),
  );
}

function drawRow(placed, laid) {
  const { row, y, height } = placed;
  return s(
    "g",
    { class: "row" },
    s("title", {}, rowTitle(row)),
    s("rect", { class: "row-ground", x: 0, y, width: laid.width, height }),
    drawBar(placed),
  );
}

/** What a row is called. It is drawn above the lines, which a narrow picture leads through the names. */
function drawName({ row, y, textY }, laid) {
  const indent = row.depth * INDENT;
  const room = (laid.narrow ? laid.width : laid.plot.x) - KIND_WIDTH - indent - 12;
  const times = row.times > 1 && !row.others ? ` ×${row.times}` : "";
  const name = fitting(labelOf(row).replace(/\s+/g, " "), room - textWidth(times, MONO), MONO) + times;
  const label = { class: row.runId ? "label link" : "label", "data-run": row.runId };
  return s(
    "g",
    { class: "name" },
    s("title", {}, rowTitle(row)),
    row.depth > 0 ? s("path", { class: "branch", d: `M${indent - 8} ${y}V${textY - 4}h6` }) : [],
    s("text", { class: "kind", x: indent, y: textY }, kindWord(row.kind)),
    s("text", { ...label, x: KIND_WIDTH + indent, y: textY }, name.trim()),
  );
}

function drawBar({ row, bar, pieces, late }) {
  const box = ({ x, width }, name) => s("rect", { class: name, x, width, y: bar.y, height: bar.height });
  const attributes = {
    class: "bar",
    "data-kind": row.kind,
    "data-how": row.how,
    "data-standing": standing(row),
  };
  const held = pieces.map((piece) => box(piece, "held"));
  return s(
    "g",
    attributes,
    held,
    late.map((piece) => box(piece, "late")),
    arrow(row, pieces.at(-1), bar),
  );
}

/** What is still held goes on: its bar ends in a point. */
function arrow(row, last, { y, height }) {
  if (!row.open || !last) {
    return [];
  }
  const x = last.x + last.width;
  return s("path", { class: "on", d: `M${round(x)} ${round(y)}l5 ${height / 2}l-5 ${height / 2}z` });
}

function drawEnd({ row, word, outside }, laid) {
  const room = laid.width - word.x;
  const glyph = outside === "before" ? "◂" : outside === "after" ? "▸" : GLYPHS[standing(row)];
  const offset = outside ? "" : offsetWord(row);
  const end = fitting(endWord(row), room - 14);
  const whole = textWidth(`${end} ${offset}`) + 14 <= room;
  return s(
    "text",
    {
      class: outside ? "end outside" : "end",
      "data-standing": standing(row),
      "data-how": row.how,
      x: word.x,
      y: word.y,
    },
    s("tspan", { class: "glyph" }, glyph),
    ` ${end}`,
    whole ? s("tspan", { class: "offset" }, ` ${offset}`) : [],
  );
}

function drawLine({ name, x, y, text, anchor }, { bottom }) {
  const dx = anchor === "end" ? -4 : 4;
  return s(
    "g",
    { class: `line ${name}` },
    s("line", { x1: x, x2: x, y1: y - 10, y2: bottom }),
    s("text", { x: x + dx, y, "text-anchor": anchor }, text),
  );
}
