// Where everything of a run's picture stands: spans of time, bars, hatched parts, ticks, lines and their
// labels, in pixels. Pure layout. It knows rows (ledger.js) and numbers; it knows no document, no language
// and no clock.

/** The time before the end that the second panel shows. */
const LAST_MS = 100;
/** A stop that was over in no time still gets a panel that one can read. */
const SHORTEST_MS = 0.5;
/** Times are written with one digit behind the point, so finer ticks would say the same twice. */
const FINEST_MS = 0.1;
const ROW = { wide: 24, narrow: 40 };
const BAR = 12;
const TIER = 18;
const AXIS = 22;
/** Room at the right for the word of a bar that ends at the end. */
const WORD = { wide: 176, narrow: 104 };
const LABEL = { wide: 0.28, least: 150, most: 360 };
const NARROW_BELOW = 560;
const LETTER = 6.7;
/** Of the type in which names stand, all of one width. */
export const MONO = 7.3;

/**
 * The spans of time that can be looked at, the one to begin with first: the stop, the last 100 ms (where the
 * stop took less), the whole run. Without a stop there is the whole run alone.
 */
export function zooms(facts) {
  const whole = {
    name: "whole",
    from: facts.began,
    to: Math.max(facts.end, facts.began + SHORTEST_MS),
    zero: facts.began,
  };
  if (facts.requested === null) {
    return [whole];
  }
  const took = Math.max(facts.end - facts.requested, SHORTEST_MS);
  const stop = {
    name: "stop",
    from: facts.requested - took * 0.15,
    to: facts.requested + took,
    zero: facts.requested,
  };
  const last = { name: "last", from: facts.end - LAST_MS, to: facts.end, zero: facts.requested };
  const hasLast = took < LAST_MS && facts.end - facts.began > LAST_MS;
  return hasLast ? [stop, last, whole] : [stop, whole];
}

/**
 * The whole picture of one span of time. `lines` are `{name, at, text}`, in the order of time; `width` is
 * what there is. Narrow pictures put the name of a row above its bar.
 */
export function layOut({ rows, zoom, lines, width }) {
  const narrow = width < NARROW_BELOW;
  const labels = narrow ? 0 : Math.min(LABEL.most, Math.max(LABEL.least, width * LABEL.wide));
  const word = narrow ? WORD.narrow : WORD.wide;
  const plot = { x: labels, width: Math.max(40, width - labels - word) };
  const scale = (at) => plot.x + ((at - zoom.from) / (zoom.to - zoom.from)) * plot.width;
  const placed = placeLines(
    lines.filter((line) => line.at >= zoom.from && line.at <= zoom.to),
    scale,
    width,
  );
  const tiers = placed.reduce((most, line) => Math.max(most, line.tier + 1), 0);
  const top = tiers * TIER + 6;
  const rowHeight = narrow ? ROW.narrow : ROW.wide;
  const bottom = top + rows.length * rowHeight;
  return {
    narrow,
    width,
    height: bottom + AXIS,
    plot: { ...plot, top, bottom },
    rows: rows.map((row, index) =>
      placeRow(row, { top: top + index * rowHeight, rowHeight, narrow, scale, plot }),
    ),
    lines: placed.map((line) => ({ ...line, y: line.tier * TIER + 12 })),
    ticks: ticks(zoom, plot.width).map((tick) => placeTick(tick, scale(tick.at))),
  };
}

/**
 * More rows than these that a zoom leaves out are not drawn but counted: they would hide those that it is
 * about.
 */
const MOST_OUTSIDE = 6;

/** `{shown, before}`: the rows to draw in a zoom, and how many were over before it begins. */
export function inZoom(rows, zoom) {
  const shown = rows.filter((row) => row.spans.at(-1).to >= zoom.from);
  const before = rows.length - shown.length;
  return before > MOST_OUTSIDE ? { shown, before } : { shown: rows, before: 0 };
}

/** The thin picture of the whole run above a zoomed one, with the part that is zoomed. */
export function overview({ rows, facts, zoom, width, height }) {
  const [whole] = zooms(facts).slice(-1);
  const scale = (at) => Math.min(width, Math.max(0, ((at - whole.from) / (whole.to - whole.from)) * width));
  const step = height / Math.max(1, rows.length);
  const thick = Math.min(3, Math.max(1, step - 1));
  const marks = rows.flatMap((row, index) =>
    row.spans.map(({ from, to }) => ({ y: index * step, height: thick, ...piece(scale, from, to, 1) })),
  );
  const view = piece(scale, zoom.from, zoom.to, 3);
  return { marks, view: { ...view, x: Math.min(view.x, width - view.width) } };
}

/** Round steps of time: 1, 2 or 5 of a power of ten below a second's tens, then the steps of a clock. */
export function niceStep(span, most) {
  const least = span / Math.max(1, most);
  const clock = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map(
    (s) => s * 1000,
  );
  if (least > 5000) {
    return clock.find((step) => step >= least) ?? Math.ceil(least / 86400000) * 86400000;
  }
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * 0.999999);
}

function ticks(zoom, width) {
  const step = Math.max(FINEST_MS, niceStep(zoom.to - zoom.from, width / 84));
  const first = Math.ceil((zoom.from - zoom.zero) / step - 1e-9);
  const last = Math.floor((zoom.to - zoom.zero) / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => {
    const ms = (first + index) * step;
    return { ms, at: zoom.zero + ms, sinceStop: zoom.name !== "whole" };
  });
}

/** The first label of a plot that begins at the left edge would be cut in the middle. */
function placeTick(tick, x) {
  return { ...tick, x, anchor: x < 24 ? "start" : "middle" };
}

function placeRow(row, { top, rowHeight, narrow, scale, plot }) {
  const edge = plot.x + plot.width;
  const first = row.spans[0].from;
  const last = row.spans.at(-1).to;
  const outside = scale(last) < plot.x ? "before" : scale(first) > edge + 0.01 ? "after" : null;
  const inPlot = (at) => Math.min(edge, Math.max(plot.x, scale(at)));
  const pieces = outside ? [] : joined(row.spans.map(({ from, to }) => piece(inPlot, from, to, 2)));
  const late = outside || row.requested === null ? [] : row.spans.filter(({ to }) => to > row.requested);
  const end =
    outside === "before" ? plot.x : outside === "after" ? edge : pieces.at(-1).x + pieces.at(-1).width;
  const barY = narrow ? top + 20 : top + (rowHeight - BAR) / 2;
  return {
    row,
    y: top,
    height: rowHeight,
    textY: narrow ? top + 14 : top + rowHeight / 2 + 4,
    bar: { y: barY, height: BAR },
    outside,
    pieces,
    late: joined(late.map(({ from, to }) => piece(inPlot, Math.max(from, row.requested), to, 1))),
    word: { x: end + 7, y: barY + BAR - 2 },
    from: first,
    to: last,
  };
}

function piece(scale, from, to, least) {
  const x = scale(from);
  return { x, width: Math.max(least, scale(to) - x) };
}

/** Hundreds of calls in one lane are no more elements than the lane has room for. */
function joined(pieces) {
  const all = [];
  for (const next of pieces) {
    const last = all.at(-1);
    if (last && next.x <= last.x + last.width + 0.5) {
      last.width = Math.max(last.width, next.x + next.width - last.x);
    } else {
      all.push({ ...next });
    }
  }
  return all;
}

/**
 * Labels of lines that stand close to each other get a tier each. A label that has no room at the right goes
 * to the left.
 */
function placeLines(lines, scale, width) {
  const ends = [];
  return lines.map((line) => {
    const x = scale(line.at);
    const length = textWidth(line.text) + 10;
    const left = x + length > width;
    const [from, to] = left ? [x - length, x] : [x, x + length];
    const free = ends.findIndex((taken) => taken.every((other) => to <= other.from || from >= other.to));
    const tier = free < 0 ? ends.length : free;
    ends[tier] = [...(ends[tier] ?? []), { from, to }];
    return { ...line, x, tier, anchor: left ? "end" : "start" };
  });
}

/** About how wide a text is; Chinese, Japanese and Korean signs take twice the room. */
export function textWidth(text, letter = LETTER) {
  let width = 0;
  for (const sign of text) {
    width += sign.codePointAt(0) >= 0x1100 ? letter * 1.85 : letter;
  }
  return width;
}

/** A text cut to what fits, with an ellipsis where something is missing. */
export function fitting(text, room, letter = LETTER) {
  if (textWidth(text, letter) <= room) {
    return text;
  }
  let kept = "";
  let width = letter;
  for (const sign of text) {
    width += textWidth(sign, letter);
    if (width > room) {
      break;
    }
    kept += sign;
  }
  return `${kept.trimEnd()}…`;
}
