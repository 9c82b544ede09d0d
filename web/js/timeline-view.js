// The timeline of what a run held, with zoom buttons, overview and the table below it. Exports createTimelineView.

import { h, setText } from "./dom.js";
import { createLedgerTable, updateLedgerTable } from "./ledger-table.js";
import { ledgerRows, runTimes } from "./ledger.js";
import * as clock from "./server-clock.js";
import { millis, t, tPlural } from "./texts.js";
import { drawOverview, drawTimeline, svgElement } from "./timeline-svg.js";
import { layOutOverview, layOutTimeline, rowsInZoom, zoomLevels } from "./timeline.js";

const OVERVIEW_HEIGHT = 28;

/** Returns `{element, frame, render(view, children)}`. `redraw()` is called after a setting was changed. */
export function createTimelineView(redraw) {
  const settings = { zoom: null, unfolded: false, showSubRuns: true };
  const parts = {
    zooms: h("div", { class: "zooms", role: "group", "aria-label": t("timeline.zooms") }),
    unfolded: createCheckbox("timeline.every", false, (on) => (settings.unfolded = on)),
    subRuns: createCheckbox("timeline.below", true, (on) => (settings.showSubRuns = on)),
    overview: svgElement("svg", { class: "overview" }),
    before: h("p", { class: "hint" }),
    svg: svgElement("svg", { class: "timeline" }),
    empty: h("p", { class: "hint" }),
    lost: h("p", { class: "hint record-lost" }, t("timeline.lost")),
    table: createLedgerTable(),
  };
  function createCheckbox(key, on, onToggle) {
    const box = h("input", {
      type: "checkbox",
      checked: on,
      on: {
        change: () => {
          onToggle(box.checked);
          redraw();
        },
      },
    });
    return h("label", { class: "check" }, box, " ", t(key));
  }
  const chooseZoom = (name) => {
    settings.zoom = name;
    redraw();
  };
  parts.svg.addEventListener("click", ({ target }) => {
    if (target.dataset.run) {
      location.hash = `#/r/${encodeURIComponent(target.dataset.run)}`;
    }
  });
  const frame = h("div", { class: "timeline-view" }, parts.overview, parts.before, parts.svg);
  const element = h(
    "div",
    {},
    h("div", { class: "timeline-tools" }, parts.zooms, parts.subRuns, parts.unfolded),
    parts.empty,
    parts.lost,
    frame,
    h("div", { class: "table-frame" }, parts.table),
  );
  return {
    element,
    frame,
    render: (view, children) => render(parts, frame, settings, chooseZoom, { view, children }),
  };
}

function render(parts, frame, settings, chooseZoom, { view, children }) {
  const now = clock.now();
  const times = runTimes(view, now);
  const childOf = (id) => (settings.showSubRuns ? children.get(id) : undefined);
  const rows = ledgerRows(view, { now, unfolded: settings.unfolded, childOf });
  parts.subRuns.hidden = children.size === 0;
  const recovered = Boolean(view.receipt?.recovered);
  parts.empty.hidden = rows.length > 0;
  setText(parts.empty, t(recovered ? "timeline.lost.nothing" : "timeline.empty"));
  parts.lost.hidden = !recovered || rows.length === 0;
  frame.hidden = rows.length === 0;
  parts.table.hidden = rows.length === 0;
  const levels = zoomLevels(times);
  const zoom = levels.find(({ name }) => name === settings.zoom) ?? levels[0];
  renderZoomButtons(parts.zooms, levels, zoom, chooseZoom);
  const { shown, before } = settings.unfolded ? { shown: rows, before: 0 } : rowsInZoom(rows, zoom);
  parts.unfolded.hidden = !(settings.unfolded || before > 0 || rows.some((row) => row.count > 1));
  parts.before.hidden = before === 0;
  setText(parts.before, tPlural("timeline.before", before));
  if (rows.length === 0) {
    return;
  }
  const width = Math.max(240, Math.floor(frame.clientWidth));
  parts.overview.toggleAttribute("hidden", zoom.name === "whole");
  if (zoom.name !== "whole") {
    drawOverview(
      parts.overview,
      layOutOverview({ rows, times, zoom, width, height: OVERVIEW_HEIGHT }),
      width,
      OVERVIEW_HEIGHT,
    );
  }
  const laid = layOutTimeline({ rows: shown, zoom, lines: timelineLines(times), width });
  drawTimeline(parts.svg, laid, tPlural(times.live ? "timeline.label.live" : "timeline.label", shown.length));
  updateLedgerTable(parts.table, rows, times);
}

/** The vertical lines: requested, delivered and settled, or the end of a run without a stop. */
function timelineLines({ requested, delivered, settled, end, live }) {
  const from = requested ?? null;
  const sinceRequest = (at) => (from === null ? "" : ` +${millis(at - from)}`);
  const lines = [];
  if (requested !== null) {
    lines.push({ name: "requested", at: requested, text: t("timeline.requested") });
  }
  if (delivered !== null) {
    lines.push({
      name: "delivered",
      at: delivered,
      text: `${t("timeline.delivered")}${sinceRequest(delivered)}`,
    });
  }
  if (settled !== null) {
    lines.push({
      name: "settled",
      at: settled,
      text: `${t(from === null ? "timeline.ended" : "timeline.settled")}${sinceRequest(settled)}`,
    });
  }
  if (live) {
    lines.push({ name: "now", at: end, text: `${t("timeline.now")}${sinceRequest(end)}` });
  }
  return lines;
}

function renderZoomButtons(group, levels, chosen, chooseZoom) {
  group.hidden = levels.length < 2;
  const buttons = [...group.children];
  if (
    buttons.length !== levels.length ||
    buttons.some((button, index) => button.dataset.zoom !== levels[index].name)
  ) {
    group.replaceChildren(
      ...levels.map(({ name }) =>
        h("button", { type: "button", data: { zoom: name }, on: { click: () => chooseZoom(name) } }),
      ),
    );
  }
  for (const [index, span] of levels.entries()) {
    const button = group.children[index];
    const length = span.name === "whole" ? span.to - span.from : span.to - span.origin;
    setText(button, t(`timeline.zoom.${span.name}`, { time: millis(length) }));
    button.setAttribute("aria-pressed", String(span === chosen));
  }
}
