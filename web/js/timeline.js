// The layout of the timeline of a run in pixels: zoom levels, bars, ticks, lines and labels. Exports zoomLevels,
// layOutTimeline, rowsInZoom, layOutOverview, tickStep, textWidth, truncateToWidth, MONO_CHAR_WIDTH. Pure.

/** The length of the zoom level "last". */
const LAST_MS = 100;
/** The shortest time that a zoom level shows. */
const MIN_SPAN_MS = 0.5;
/** Times have one decimal, so finer ticks would repeat labels. */
const MIN_TICK_MS = 0.1;
const ROW_HEIGHT = { wide: 24, narrow: 40 };
const BAR_HEIGHT = 12;
const LABEL_TIER_HEIGHT = 18;
const AXIS_HEIGHT = 22;
/** Space at the right for the label of a bar that ends there. */
const END_LABEL_WIDTH = { wide: 176, narrow: 104 };
const NAME_WIDTH = { share: 0.28, min: 150, max: 360 };
const NARROW_MAX_WIDTH = 560;
const CHAR_WIDTH = 6.7;
/** Of the monospaced font of names. */
export const MONO_CHAR_WIDTH = 7.3;

/**
 * The zoom levels of a run, the default first: the stop, the last 100 ms (when the stop took less), the whole run.
 * A run without a stop has only the last one. `origin` is the time of tick 0.
 */
export function zoomLevels(times) {
  const whole = {
    name: "whole",
    from: times.began,
    to: Math.max(times.end, times.began + MIN_SPAN_MS),
    origin: times.began,
  };
  if (times.requested === null) {
    return [whole];
  }
  const took = Math.max(times.end - times.requested, MIN_SPAN_MS);
  const stop = {
    name: "stop",
    from: times.requested - took * 0.15,
    to: times.requested + took,
    origin: times.requested,
  };
  const last = { name: "last", from: times.end - LAST_MS, to: times.end, origin: times.requested };
  const hasLast = took < LAST_MS && times.end - times.began > LAST_MS;
  return hasLast ? [stop, last, whole] : [stop, whole];
}

/**
 * Lays out one zoom level. `lines` are `{name, at, text}` in the order of time. In a narrow layout the name of a
 * row is above its bar.
 */
export function layOutTimeline({ rows, zoom, lines, width }) {
  const narrow = width < NARROW_MAX_WIDTH;
  const labels = narrow ? 0 : Math.min(NAME_WIDTH.max, Math.max(NAME_WIDTH.min, width * NAME_WIDTH.share));
  const endLabelWidth = narrow ? END_LABEL_WIDTH.narrow : END_LABEL_WIDTH.wide;
  const plot = { x: labels, width: Math.max(40, width - labels - endLabelWidth) };
  const scale = (at) => plot.x + ((at - zoom.from) / (zoom.to - zoom.from)) * plot.width;
  const placed = placeLines(
    lines.filter((line) => line.at >= zoom.from && line.at <= zoom.to),
    scale,
    width,
  );
  const tiers = placed.reduce((max, line) => Math.max(max, line.tier + 1), 0);
  const top = tiers * LABEL_TIER_HEIGHT + 6;
  const rowHeight = narrow ? ROW_HEIGHT.narrow : ROW_HEIGHT.wide;
  const bottom = top + rows.length * rowHeight;
  return {
    narrow,
    width,
    height: bottom + AXIS_HEIGHT,
    plot: { ...plot, top, bottom },
    rows: rows.map((row, index) =>
      placeRow(row, { top: top + index * rowHeight, rowHeight, narrow, scale, plot }),
    ),
    lines: placed.map((line) => ({ ...line, y: line.tier * LABEL_TIER_HEIGHT + 12 })),
    ticks: ticks(zoom, plot.width).map((tick) => placeTick(tick, scale(tick.at))),
  };
}

/** More rows than this that ended before a zoom level are counted instead of shown. */
const MAX_ENDED_BEFORE = 6;

/** `{shown, before}`: the rows to show in a zoom level, and the number of rows that ended before it. */
export function rowsInZoom(rows, zoom) {
  const shown = rows.filter((row) => row.spans.at(-1).to >= zoom.from);
  const before = rows.length - shown.length;
  return before > MAX_ENDED_BEFORE ? { shown, before } : { shown: rows, before: 0 };
}

/** The overview of the whole run, with the part that the zoom level shows. */
export function layOutOverview({ rows, times, zoom, width, height }) {
  const [whole] = zoomLevels(times).slice(-1);
  const scale = (at) => Math.min(width, Math.max(0, ((at - whole.from) / (whole.to - whole.from)) * width));
  const step = height / Math.max(1, rows.length);
  const markHeight = Math.min(3, Math.max(1, step - 1));
  const marks = rows.flatMap((row, index) =>
    row.spans.map(({ from, to }) => ({
      y: index * step,
      height: markHeight,
      ...barSegment(scale, from, to, 1),
    })),
  );
  const view = barSegment(scale, zoom.from, zoom.to, 3);
  return { marks, view: { ...view, x: Math.min(view.x, width - view.width) } };
}

/** Round steps: 1, 2 or 5 times a power of ten up to 5 s, then 10 s, 15 s, 30 s, 1 min and so on. */
export function tickStep(span, maxTicks) {
  const minimum = span / Math.max(1, maxTicks);
  const clockSteps = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map(
    (s) => s * 1000,
  );
  if (minimum > 5000) {
    return clockSteps.find((step) => step >= minimum) ?? Math.ceil(minimum / 86400000) * 86400000;
  }
  const magnitude = 10 ** Math.floor(Math.log10(minimum));
  return [1, 2, 5, 10].map((digit) => digit * magnitude).find((step) => step >= minimum * 0.999999);
}

function ticks(zoom, width) {
  const step = Math.max(MIN_TICK_MS, tickStep(zoom.to - zoom.from, width / 84));
  const first = Math.ceil((zoom.from - zoom.origin) / step - 1e-9);
  const last = Math.floor((zoom.to - zoom.origin) / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => {
    const ms = (first + index) * step;
    return { ms, at: zoom.origin + ms, sinceStop: zoom.name !== "whole" };
  });
}

/** A centred label at the left edge would be cut off. */
function placeTick(tick, x) {
  return { ...tick, x, anchor: x < 24 ? "start" : "middle" };
}

function placeRow(row, { top, rowHeight, narrow, scale, plot }) {
  const edge = plot.x + plot.width;
  const first = row.spans[0].from;
  const last = row.spans.at(-1).to;
  const outside = scale(last) < plot.x ? "before" : scale(first) > edge + 0.01 ? "after" : null;
  const inPlot = (at) => Math.min(edge, Math.max(plot.x, scale(at)));
  const segments = outside
    ? []
    : mergeSegments(row.spans.map(({ from, to }) => barSegment(inPlot, from, to, 2)));
  const late = outside || row.requested === null ? [] : row.spans.filter(({ to }) => to > row.requested);
  const end =
    outside === "before" ? plot.x : outside === "after" ? edge : segments.at(-1).x + segments.at(-1).width;
  const barY = narrow ? top + 20 : top + (rowHeight - BAR_HEIGHT) / 2;
  return {
    row,
    y: top,
    height: rowHeight,
    textY: narrow ? top + 14 : top + rowHeight / 2 + 4,
    bar: { y: barY, height: BAR_HEIGHT },
    outside,
    segments,
    lateSegments: mergeSegments(
      late.map(({ from, to }) => barSegment(inPlot, Math.max(from, row.requested), to, 1)),
    ),
    labelPosition: { x: end + 7, y: barY + BAR_HEIGHT - 2 },
    from: first,
    to: last,
  };
}

function barSegment(scale, from, to, minimum) {
  const x = scale(from);
  return { x, width: Math.max(minimum, scale(to) - x) };
}

/** Merges segments that touch, so that hundreds of calls in one row need few elements. */
function mergeSegments(segments) {
  const all = [];
  for (const next of segments) {
    const last = all.at(-1);
    if (last && next.x <= last.x + last.width + 0.5) {
      last.width = Math.max(last.width, next.x + next.width - last.x);
    } else {
      all.push({ ...next });
    }
  }
  return all;
}

/** Labels that would overlap get different tiers. A label without space at the right goes to the left. */
function placeLines(lines, scale, width) {
  const ends = [];
  return lines.map((line) => {
    const x = scale(line.at);
    const length = textWidth(line.text) + 10;
    const left = x + length > width;
    const [from, to] = left ? [x - length, x] : [x, x + length];
    const freeTier = ends.findIndex((taken) => taken.every((other) => to <= other.from || from >= other.to));
    const tier = freeTier < 0 ? ends.length : freeTier;
    ends[tier] = [...(ends[tier] ?? []), { from, to }];
    return { ...line, x, tier, anchor: left ? "end" : "start" };
  });
}

/** An estimate of the width; Chinese, Japanese and Korean characters are almost twice as wide. */
export function textWidth(text, charWidth = CHAR_WIDTH) {
  let width = 0;
  for (const char of text) {
    width += char.codePointAt(0) >= 0x1100 ? charWidth * 1.85 : charWidth;
  }
  return width;
}

export function truncateToWidth(text, maxWidth, charWidth = CHAR_WIDTH) {
  if (textWidth(text, charWidth) <= maxWidth) {
    return text;
  }
  let kept = "";
  let width = charWidth;
  for (const char of text) {
    width += textWidth(char, charWidth);
    if (width > maxWidth) {
      break;
    }
    kept += char;
  }
  return `${kept.trimEnd()}…`;
}
