// The picture of what a run held, with its zooms, its overview and the table below. It knows the JSON of a
// run and no daemon.

import * as clock from "./clock.js";
import { h, setText } from "./dom.js";
import { factsOf, rowsOf } from "./ledger.js";
import { fillLedger, ledgerTable } from "./ledger-table.js";
import { counted, millis, t } from "./texts.js";
import { inZoom, layOut, overview, zooms } from "./timeline.js";
import { drawOverview, drawTimeline, s } from "./timeline-svg.js";

const OVERVIEW_HEIGHT = 28;

/**
 * Gives `{element, draw(view, children)}`. `changed()` is called when the reader wants to see it otherwise.
 */
export function picture(changed) {
  const wish = { zoom: null, every: false, below: true };
  const parts = {
    zooms: h("div", { class: "zooms", role: "group", "aria-label": t("timeline.zooms") }),
    every: check("timeline.every", false, (on) => (wish.every = on)),
    below: check("timeline.below", true, (on) => (wish.below = on)),
    overview: s("svg", { class: "overview" }),
    before: h("p", { class: "hint" }),
    svg: s("svg", { class: "timeline" }),
    empty: h("p", { class: "hint" }),
    lost: h("p", { class: "hint record-lost" }, t("timeline.lost")),
    table: ledgerTable(),
  };
  function check(key, on, set) {
    const box = h("input", {
      type: "checkbox",
      checked: on,
      on: {
        change: () => {
          set(box.checked);
          changed();
        },
      },
    });
    return h("label", { class: "check" }, box, " ", t(key));
  }
  const choose = (name) => {
    wish.zoom = name;
    changed();
  };
  parts.svg.addEventListener("click", ({ target }) => {
    if (target.dataset.run) {
      location.hash = `#/r/${encodeURIComponent(target.dataset.run)}`;
    }
  });
  const frame = h("div", { class: "picture" }, parts.overview, parts.before, parts.svg);
  const element = h(
    "div",
    {},
    h("div", { class: "picture-tools" }, parts.zooms, parts.below, parts.every),
    parts.empty,
    parts.lost,
    frame,
    h("div", { class: "table-frame" }, parts.table),
  );
  return { element, frame, draw: (view, children) => draw(parts, frame, wish, choose, { view, children }) };
}

function draw(parts, frame, wish, choose, { view, children }) {
  const now = clock.now();
  const facts = factsOf(view, now);
  const childOf = (id) => (wish.below ? children.get(id) : undefined);
  const rows = rowsOf(view, { now, every: wish.every, childOf });
  parts.below.hidden = children.size === 0;
  const recovered = Boolean(view.receipt?.recovered);
  parts.empty.hidden = rows.length > 0;
  setText(parts.empty, t(recovered ? "timeline.lost.nothing" : "timeline.empty"));
  parts.lost.hidden = !recovered || rows.length === 0;
  frame.hidden = rows.length === 0;
  parts.table.hidden = rows.length === 0;
  const spans = zooms(facts);
  const zoom = spans.find(({ name }) => name === wish.zoom) ?? spans[0];
  drawZooms(parts.zooms, spans, zoom, choose);
  const { shown, before } = wish.every ? { shown: rows, before: 0 } : inZoom(rows, zoom);
  parts.every.hidden = !(wish.every || before > 0 || rows.some((row) => row.times > 1));
  parts.before.hidden = before === 0;
  setText(parts.before, counted("timeline.before", before));
  if (rows.length === 0) {
    return;
  }
  const width = Math.max(240, Math.floor(frame.clientWidth));
  parts.overview.toggleAttribute("hidden", zoom.name === "whole");
  if (zoom.name !== "whole") {
    drawOverview(
      parts.overview,
      overview({ rows, facts, zoom, width, height: OVERVIEW_HEIGHT }),
      width,
      OVERVIEW_HEIGHT,
    );
  }
  const laid = layOut({ rows: shown, zoom, lines: linesOf(facts), width });
  drawTimeline(
    parts.svg,
    laid,
    counted(facts.live ? "timeline.label.live" : "timeline.label", shown.length),
  );
  fillLedger(parts.table, rows, facts);
}

/** The three facts of a stop; without one, the end. */
function linesOf({ requested, delivered, settled, end, live }) {
  const from = requested ?? null;
  const after = (at) => (from === null ? "" : ` +${millis(at - from)}`);
  const lines = [];
  if (requested !== null) {
    lines.push({ name: "requested", at: requested, text: t("timeline.requested") });
  }
  if (delivered !== null) {
    lines.push({ name: "delivered", at: delivered, text: `${t("timeline.delivered")}${after(delivered)}` });
  }
  if (settled !== null) {
    lines.push({
      name: "settled",
      at: settled,
      text: `${t(from === null ? "timeline.ended" : "timeline.settled")}${after(settled)}`,
    });
  }
  if (live) {
    lines.push({ name: "now", at: end, text: `${t("timeline.now")}${after(end)}` });
  }
  return lines;
}

function drawZooms(group, spans, chosen, choose) {
  group.hidden = spans.length < 2;
  const known = [...group.children];
  if (
    known.length !== spans.length ||
    known.some((button, index) => button.dataset.zoom !== spans[index].name)
  ) {
    group.replaceChildren(
      ...spans.map(({ name }) =>
        h("button", { type: "button", data: { zoom: name }, on: { click: () => choose(name) } }),
      ),
    );
  }
  for (const [index, span] of spans.entries()) {
    const button = group.children[index];
    const length = span.name === "whole" ? span.to - span.from : span.to - span.zero;
    setText(button, t(`timeline.zoom.${span.name}`, { time: millis(length) }));
    button.setAttribute("aria-pressed", String(span === chosen));
  }
}
