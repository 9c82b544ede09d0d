// The rows of what a run held, live or ended: names, spans of time and how each was released; equal rows are folded.
// Exports KINDS, wallMs, runTimes, ledgerRows, subRunIds and rowStatus. Pure; timeline.js lays the rows out.

/** In the order of the rows. */
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
/** From this many rows on, equal rows are folded. The terminal uses the same number. */
const FOLD_FROM = 24;
/** Above this many rows, only MAX_UNFOLDED of the most important ones stay unfolded. */
const MAX_ROWS = 32;
const MAX_UNFOLDED = 24;
const NORMAL_RELEASES = new Set(["finished", "exited", "kept"]);

/**
 * Milliseconds since 1970 with the microseconds that Date.parse drops, because a stop takes a few milliseconds;
 * NaN when `at` is not a time.
 */
export function wallMs(at) {
  const parts = /^(.*T\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$/i.exec(at ?? "");
  if (!parts) {
    return NaN;
  }
  return Date.parse(parts[1] + parts[3]) + Number(parts[2] ?? 0) * 1000;
}

/**
 * The times of a run, in milliseconds since 1970 or null, and its resources. `now` is the end of a live run.
 */
export function runTimes(view, now) {
  const receipt = view.receipt ?? null;
  const resources = (receipt ? receipt.resources : view.held) ?? [];
  const requested = instantMs(receipt ? receipt.requestedAt : view.requestedAt);
  const delivered = instantMs(receipt ? receipt.deliveredAt : view.deliveredAt);
  const settled = receipt ? instantMs(receipt.settledAt) : null;
  const instants = resources.flatMap((resource) => [
    instantMs(resource.openedAt),
    instantMs(resource.releasedAt),
  ]);
  instants.push(parseTime(view.startedAt), requested, delivered, settled);
  const times = instants.filter((at) => at !== null);
  const last = times.reduce((a, b) => Math.max(a, b), -Infinity);
  const end = settled ?? Math.max(now, last);
  const began = times.reduce((a, b) => Math.min(a, b), end);
  return { began, end, requested, delivered, settled, live: !receipt, resources };
}

/**
 * The rows of a run in the order of their kinds. `childOf(runId)` returns the JSON of a sub-run if known, whose
 * rows then follow one level deeper. `unfolded` turns folding off.
 */
export function ledgerRows(view, { now, unfolded = false, childOf = () => undefined }) {
  const rows = ownRows(view, { now, childOf, depth: 0, path: "", seen: new Set([view.runId]) });
  if (unfolded || rows.length < FOLD_FROM) {
    return rows;
  }
  const foldedRows = foldRows(
    rows,
    (row) => `${groupKey(row)}\n${row.label}\n${row.how}\n${row.exitCode}\n${row.signal}`,
  );
  return foldedRows.length <= MAX_ROWS ? foldedRows : foldUnremarkable(foldedRows);
}

/** The ids of the runs that a run has started and waited for. */
export function subRunIds(view) {
  const resources = (view.receipt ? view.receipt.resources : view.held) ?? [];
  return resources
    .filter(({ kind }) => kind === "run")
    .map(({ label }) => runIdInLabel(label))
    .filter(Boolean);
}

/**
 * "open" while it is held, "leftover" when the run ended before its release, "normal" when it ended by itself,
 * else "stopped" or "failed".
 */
export function rowStatus(row) {
  if (row.open) {
    return row.open === "leftover" ? "leftover" : "open";
  }
  if (row.how === "failed" || row.how === "lost" || (row.how === "exited" && (row.exitCode ?? 0) !== 0)) {
    return "failed";
  }
  return NORMAL_RELEASES.has(row.how) && row.signal === undefined ? "normal" : "stopped";
}

function parseTime(at) {
  const ms = wallMs(at);
  return Number.isNaN(ms) ? null : ms;
}

function instantMs(value) {
  return value ? parseTime(value.at) : null;
}

function ownRows(view, { now, childOf, depth, path, seen }) {
  const times = runTimes(view, now);
  const sorted = [...times.resources].sort((a, b) => rank(a.kind) - rank(b.kind) || a.id - b.id);
  return sorted.flatMap((resource) => {
    const row = rowOf(resource, times, depth, path);
    const child = row.runId && !seen.has(row.runId) ? childOf(row.runId) : undefined;
    if (!child) {
      return [row];
    }
    const childOptions = {
      now,
      childOf,
      depth: depth + 1,
      path: `${row.key}/`,
      seen: new Set([...seen, row.runId]),
    };
    return [{ ...row, hasChildren: true }, ...ownRows(child, childOptions)];
  });
}

function rank(kind) {
  const index = KINDS.indexOf(kind);
  return index < 0 ? KINDS.length : index;
}

function rowOf(resource, times, depth, path) {
  const from = instantMs(resource.openedAt) ?? times.began;
  const to = instantMs(resource.releasedAt);
  const open = to !== null ? null : times.live ? "live" : "leftover";
  return {
    key: `${path}${resource.id}`,
    kind: resource.kind,
    label: resource.label ?? "",
    depth,
    count: 1,
    mixed: false,
    how: resource.how ?? "",
    open,
    pid: resource.pid,
    swept: resource.swept ?? 0,
    heldBy: resource.heldBy,
    sandbox: resource.sandbox,
    exitCode: resource.exitCode,
    signal: resource.signal,
    runId: resource.kind === "run" ? runIdInLabel(resource.label) : undefined,
    requested: times.requested,
    spans: [{ from, to: Math.max(from, to ?? times.end) }],
  };
}

/** A sub-run is labelled `agent (run id)`. */
function runIdInLabel(label) {
  return /\(([A-Za-z0-9._:-]{1,128})\)$/.exec(label ?? "")?.[1];
}

function groupKey(row) {
  return `${row.key.slice(0, row.key.lastIndexOf("/") + 1)}\n${row.kind}\n${row.open ?? ""}`;
}

/** Merges rows with the same key at the position of the first; sub-runs whose rows follow stay unfolded. */
function foldRows(rows, keyOf, isUnfolded = (row) => row.hasChildren) {
  const byKey = new Map();
  const folded = [];
  for (const row of rows) {
    const key = isUnfolded(row) ? row : keyOf(row);
    if (!byKey.has(key)) {
      byKey.set(key, []);
      folded.push(byKey.get(key));
    }
    byKey.get(key).push(row);
  }
  return folded.map(mergeRows);
}

function mergeRows(rows) {
  if (rows.length === 1) {
    return rows[0];
  }
  const same = rows.every((row) => row.label === rows[0].label);
  return {
    ...rows[0],
    label: same ? rows[0].label : "",
    mixed: !same,
    count: rows.reduce((sum, row) => sum + row.count, 0),
    pid: undefined,
    runId: undefined,
    swept: rows.reduce((sum, row) => sum + row.swept, 0),
    heldBy: rows.every((row) => row.heldBy === rows[0].heldBy) ? rows[0].heldBy : undefined,
    sandbox: undefined,
    spans: mergeSpans(rows.flatMap((row) => row.spans)),
  };
}

function mergeSpans(spans) {
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

/** Keeps the most important rows unfolded: still held, released late, failed, held long. */
function foldUnremarkable(rows) {
  const ranked = [...rows].sort((a, b) => importance(b) - importance(a)).slice(0, MAX_UNFOLDED);
  const isUnfolded = new Set(ranked.filter((row) => importance(row) > 0));
  return foldRows(
    rows,
    (row) => `${groupKey(row)}\n${row.how}\n${rowStatus(row)}`,
    (row) => row.hasChildren || isUnfolded.has(row),
  );
}

function importance(row) {
  const { from } = row.spans[0];
  const { to } = row.spans.at(-1);
  const late = row.requested === null ? 0 : Math.max(0, to - row.requested);
  const order = { leftover: 3e15, open: 2e15, failed: 1e15, stopped: 0, normal: 0 };
  return order[rowStatus(row)] + late * 1e6 + (to - from);
}
