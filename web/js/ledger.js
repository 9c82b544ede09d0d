// What a run held, as rows: from the JSON of a run, live or ended, to things with names, spans of time and
// ends, equal ones folded. It knows no document, no language, no clock (now is an argument) and no picture:
// timeline.js lays the rows out.

/** The order of the rows: first what does the work, last what only counts. */
export const KINDS = [
  "model_request",
  "process",
  "mcp_call",
  "http_request",
  "run",
  "approval",
  "hook",
  "delivery",
  "task",
  "timer",
  "permit",
];
/** From this many rows on, equal ones are folded. The terminal's picture begins at the same number. */
const FOLD_FROM = 24;
/** Rows that a person can still take in; above it only the ones that tell something stand alone. */
const MOST_ROWS = 32;
const MOST_ALONE = 24;
const ENDED_BY_ITSELF = new Set(["finished", "exited", "kept"]);

/**
 * Milliseconds since 1970, with the microseconds that Date.parse drops; NaN for what is no time.
 * A stop is over within a few milliseconds, so the fraction is what the picture is about.
 */
export function wallMs(at) {
  const parts = /^(.*T\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$/i.exec(at ?? "");
  if (!parts) {
    return NaN;
  }
  return Date.parse(parts[1] + parts[3]) + Number(parts[2] ?? 0) * 1000;
}

/**
 * The times of a run and the things it held. `now` (milliseconds since 1970) stands for the end that a live
 * run does not have yet. Times that are not known are null.
 */
export function factsOf(view, now) {
  const receipt = view.receipt ?? null;
  const resources = (receipt ? receipt.resources : view.held) ?? [];
  const requested = instant(receipt ? receipt.requestedAt : view.requestedAt);
  const delivered = instant(receipt ? receipt.deliveredAt : view.deliveredAt);
  const settled = receipt ? instant(receipt.settledAt) : null;
  const known = resources.flatMap((resource) => [instant(resource.openedAt), instant(resource.releasedAt)]);
  known.push(time(view.startedAt), requested, delivered, settled);
  const times = known.filter((at) => at !== null);
  const last = times.reduce((a, b) => Math.max(a, b), -Infinity);
  const end = settled ?? Math.max(now, last);
  const began = times.reduce((a, b) => Math.min(a, b), end);
  return { began, end, requested, delivered, settled, live: !receipt, resources };
}

/**
 * The rows of a run in the order of their kinds. `childOf(runId)` gives the JSON of a sub-run where it is
 * known, whose rows then follow, one level deeper. `every` turns folding off.
 */
export function rowsOf(view, { now, every = false, childOf = () => undefined }) {
  const rows = ownRows(view, { now, childOf, depth: 0, path: "", seen: new Set([view.runId]) });
  if (every || rows.length < FOLD_FROM) {
    return rows;
  }
  const equal = fold(
    rows,
    (row) => `${place(row)}\n${row.label}\n${row.how}\n${row.exitCode}\n${row.signal}`,
  );
  return equal.length <= MOST_ROWS ? equal : foldTheOrdinary(equal);
}

/** The ids of the runs that a run has started and waited for. */
export function subRunsOf(view) {
  const resources = (view.receipt ? view.receipt.resources : view.held) ?? [];
  return resources
    .filter(({ kind }) => kind === "run")
    .map(({ label }) => runIdIn(label))
    .filter(Boolean);
}

/**
 * How a thing stands: `open` while it is held, `left` when the run ended without it, else `calm`, `stopped`
 * or `bad`.
 */
export function standing(row) {
  if (row.open) {
    return row.open === "left" ? "left" : "open";
  }
  if (row.how === "failed" || row.how === "lost" || (row.how === "exited" && (row.exitCode ?? 0) !== 0)) {
    return "bad";
  }
  return ENDED_BY_ITSELF.has(row.how) && row.signal === undefined ? "calm" : "stopped";
}

function time(at) {
  const ms = wallMs(at);
  return Number.isNaN(ms) ? null : ms;
}

function instant(value) {
  return value ? time(value.at) : null;
}

function ownRows(view, { now, childOf, depth, path, seen }) {
  const facts = factsOf(view, now);
  const inOrder = [...facts.resources].sort((a, b) => rank(a.kind) - rank(b.kind) || a.id - b.id);
  return inOrder.flatMap((resource) => {
    const row = rowOf(resource, facts, depth, path);
    const child = row.runId && !seen.has(row.runId) ? childOf(row.runId) : undefined;
    if (!child) {
      return [row];
    }
    const below = {
      now,
      childOf,
      depth: depth + 1,
      path: `${row.key}/`,
      seen: new Set([...seen, row.runId]),
    };
    return [{ ...row, hasChildren: true }, ...ownRows(child, below)];
  });
}

function rank(kind) {
  const index = KINDS.indexOf(kind);
  return index < 0 ? KINDS.length : index;
}

function rowOf(resource, facts, depth, path) {
  const from = instant(resource.openedAt) ?? facts.began;
  const to = instant(resource.releasedAt);
  const open = to !== null ? null : facts.live ? "live" : "left";
  return {
    key: `${path}${resource.id}`,
    kind: resource.kind,
    label: resource.label ?? "",
    depth,
    times: 1,
    others: false,
    how: resource.how ?? "",
    open,
    pid: resource.pid,
    swept: resource.swept ?? 0,
    heldBy: resource.heldBy,
    exitCode: resource.exitCode,
    signal: resource.signal,
    runId: resource.kind === "run" ? runIdIn(resource.label) : undefined,
    requested: facts.requested,
    spans: [{ from, to: Math.max(from, to ?? facts.end) }],
  };
}

/** A sub-run is labelled `agent (run id)`. */
function runIdIn(label) {
  return /\(([A-Za-z0-9._:-]{1,128})\)$/.exec(label ?? "")?.[1];
}

function place(row) {
  return `${row.key.slice(0, row.key.lastIndexOf("/") + 1)}\n${row.kind}\n${row.open ?? ""}`;
}

/**
 * One row for all with the same word of `keyOf`, at the place of the first. A sub-run whose rows follow stays
 * alone.
 */
function fold(rows, keyOf, alone = (row) => row.hasChildren) {
  const byKey = new Map();
  const folded = [];
  for (const row of rows) {
    const key = alone(row) ? row : keyOf(row);
    if (!byKey.has(key)) {
      byKey.set(key, []);
      folded.push(byKey.get(key));
    }
    byKey.get(key).push(row);
  }
  return folded.map(together);
}

function together(rows) {
  if (rows.length === 1) {
    return rows[0];
  }
  const same = rows.every((row) => row.label === rows[0].label);
  return {
    ...rows[0],
    label: same ? rows[0].label : "",
    others: !same,
    times: rows.reduce((sum, row) => sum + row.times, 0),
    pid: undefined,
    runId: undefined,
    swept: rows.reduce((sum, row) => sum + row.swept, 0),
    heldBy: rows.every((row) => row.heldBy === rows[0].heldBy) ? rows[0].heldBy : undefined,
    spans: union(rows.flatMap((row) => row.spans)),
  };
}

function union(spans) {
  const merged = [];
  for (const span of [...spans].sort((a, b) => a.from - b.from)) {
    const last = merged.at(-1);
    if (last && span.from <= last.to) {
      last.to = Math.max(last.to, span.to);
    } else {
      merged.push({ ...span });
    }
  }
  return merged;
}

/**
 * Keeps those rows alone that tell most: still held, given back late, failed, held long. The others become
 * one per end.
 */
function foldTheOrdinary(rows) {
  const telling = [...rows].sort((a, b) => weight(b) - weight(a)).slice(0, MOST_ALONE);
  const alone = new Set(telling.filter((row) => weight(row) > 0));
  return fold(
    rows,
    (row) => `${place(row)}\n${row.how}\n${standing(row)}`,
    (row) => row.hasChildren || alone.has(row),
  );
}

function weight(row) {
  const { from } = row.spans[0];
  const { to } = row.spans.at(-1);
  const late = row.requested === null ? 0 : Math.max(0, to - row.requested);
  const order = { left: 3e15, open: 2e15, bad: 1e15, stopped: 0, calm: 0 };
  return order[standing(row)] + late * 1e6 + (to - from);
}
