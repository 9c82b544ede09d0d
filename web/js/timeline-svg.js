// Draws a timeline layout (timeline.js) as SVG. Exports svgElement, drawTimeline and drawOverview. The SVG is one
// image for screen readers; ledger-table.js shows the same rows.

import { endLabel, kindLabel, offsetLabel, rowTooltip, shortName, STATUS_GLYPHS } from "./ledger-labels.js";
import { rowStatus } from "./ledger.js";
import { millis } from "./texts.js";
import { MONO_CHAR_WIDTH, textWidth, truncateToWidth } from "./timeline.js";

const SVG = "http://www.w3.org/2000/svg";
const KIND_WIDTH = 66;
const INDENT = 14;

/** An SVG element. Attributes that are undefined are left out. */
export function svgElement(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) {
      element.setAttribute(key, typeof value === "number" ? String(round(value)) : value);
    }
  }
  element.append(...children.flat(2));
  return element;
}

/** `layout` of layOutTimeline; `label` is the description for screen readers. */
export function drawTimeline(svg, layout, label) {
  setSize(svg, layout.width, layout.height);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(
    svgElement("defs", {}, createHatch()),
    svgElement(
      "g",
      { class: "ticks" },
      layout.ticks.map((tick) => createTick(tick, layout.plot)),
    ),
    svgElement(
      "g",
      { class: "rows" },
      layout.rows.map((placed) => createRow(placed, layout)),
    ),
    svgElement(
      "g",
      { class: "lines" },
      layout.lines.map((line) => createLine(line, layout.plot)),
    ),
    svgElement(
      "g",
      { class: "words" },
      layout.rows.map((placed) => [createName(placed, layout), createEndLabel(placed, layout)]),
    ),
  );
}

/** `placed` of layOutOverview. */
export function drawOverview(svg, placed, width, height) {
  setSize(svg, width, height);
  svg.setAttribute("aria-hidden", "true");
  const marks = placed.marks.map(({ x, y, width: w, height: h }) =>
    svgElement("rect", { class: "mark", x, y, width: w, height: h }),
  );
  const { x, width: w } = placed.view;
  svg.replaceChildren(
    svgElement("g", {}, marks),
    svgElement("rect", { class: "zoomed", x, y: 0.5, width: w, height: height - 1, rx: 2 }),
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

/** Stripes for the time after a stop request, visible without colour. */
function createHatch() {
  const size = { width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return svgElement(
    "pattern",
    { id: "late-hatch", ...size },
    svgElement("rect", { class: "hatch-background", width: 6, height: 6 }),
    svgElement("rect", { class: "hatch-stripe", width: 2.5, height: 6 }),
  );
}

function createTick({ x, ms, anchor, sinceStop }, { top, bottom }) {
  const prefix = ms < 0 ? "−" : sinceStop && ms > 0 ? "+" : "";
  const text = `${prefix}${millis(Math.abs(ms))}`;
  return svgElement(
    "g",
    {},
    svgElement("line", { x1: x, x2: x, y1: top, y2: bottom }),
    svgElement("text", { x, y: bottom + 15, "text-anchor": anchor }, text),
  );
}

function createRow(placed, layout) {
  const { row, y, height } = placed;
  return svgElement(
    "g",
    { class: "row" },
    svgElement("title", {}, rowTooltip(row)),
    svgElement("rect", { class: "row-background", x: 0, y, width: layout.width, height }),
    createBar(placed),
  );
}

/** Drawn above the vertical lines, which cross the names in a narrow layout. */
function createName({ row, y, textY }, layout) {
  const indent = row.depth * INDENT;
  const maxWidth = (layout.narrow ? layout.width : layout.plot.x) - KIND_WIDTH - indent - 12;
  const count = row.count > 1 && !row.mixed ? ` ×${row.count}` : "";
  const name =
    truncateToWidth(
      shortName(row).replace(/\s+/g, " "),
      maxWidth - textWidth(count, MONO_CHAR_WIDTH),
      MONO_CHAR_WIDTH,
    ) + count;
  const attributes = { class: row.runId ? "label link" : "label", "data-run": row.runId };
  return svgElement(
    "g",
    { class: "name" },
    svgElement("title", {}, rowTooltip(row)),
    row.depth > 0 ? svgElement("path", { class: "branch", d: `M${indent - 8} ${y}V${textY - 4}h6` }) : [],
    svgElement("text", { class: "kind", x: indent, y: textY }, kindLabel(row.kind)),
    svgElement("text", { ...attributes, x: KIND_WIDTH + indent, y: textY }, name.trim()),
  );
}

function createBar({ row, bar, segments, lateSegments }) {
  const createBox = ({ x, width }, name) =>
    svgElement("rect", { class: name, x, width, y: bar.y, height: bar.height });
  const attributes = {
    class: "bar",
    "data-kind": row.kind,
    "data-how": row.how,
    "data-status": rowStatus(row),
  };
  const held = segments.map((piece) => createBox(piece, "held"));
  return svgElement(
    "g",
    attributes,
    held,
    lateSegments.map((piece) => createBox(piece, "late")),
    createArrow(row, segments.at(-1), bar),
  );
}

/** The bar of a resource that is still held ends in an arrow. */
function createArrow(row, last, { y, height }) {
  if (!row.open || !last) {
    return [];
  }
  const x = last.x + last.width;
  return svgElement("path", {
    class: "open-arrow",
    d: `M${round(x)} ${round(y)}l5 ${height / 2}l-5 ${height / 2}z`,
  });
}

function createEndLabel({ row, labelPosition, outside }, layout) {
  const maxWidth = layout.width - labelPosition.x;
  const glyph = outside === "before" ? "◂" : outside === "after" ? "▸" : STATUS_GLYPHS[rowStatus(row)];
  const offset = outside ? "" : offsetLabel(row);
  const end = truncateToWidth(endLabel(row), maxWidth - 14);
  const fits = textWidth(`${end} ${offset}`) + 14 <= maxWidth;
  return svgElement(
    "text",
    {
      class: outside ? "end outside" : "end",
      "data-status": rowStatus(row),
      "data-how": row.how,
      x: labelPosition.x,
      y: labelPosition.y,
    },
    svgElement("tspan", { class: "glyph" }, glyph),
    ` ${end}`,
    fits ? svgElement("tspan", { class: "offset" }, ` ${offset}`) : [],
  );
}

function createLine({ name, x, y, text, anchor }, { bottom }) {
  const dx = anchor === "end" ? -4 : 4;
  return svgElement(
    "g",
    { class: `line ${name}` },
    svgElement("line", { x1: x, x2: x, y1: y - 10, y2: bottom }),
    svgElement("text", { x: x + dx, y, "text-anchor": anchor }, text),
  );
}
