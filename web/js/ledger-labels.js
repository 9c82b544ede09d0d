// Labels of the rows of a ledger (ledger.js): kinds, ends and durations, in the page's language. Exports
// kindLabel, endLabel, offsetLabel, rowTooltip, shortName, fullName, heldMs, isLate, lastReleaseMs, STATUS_GLYPHS.

import { shortId } from "./ids.js";
import { KINDS, rowStatus } from "./ledger.js";
import { millis, t } from "./texts.js";

/** So that the status is not shown by colour alone. */
export const STATUS_GLYPHS = { normal: "✓", stopped: "■", failed: "▲", leftover: "▲", open: "…" };

/** What ends the descendants of a command, the strongest first. */
const CONTAINMENTS = ["namespace", "cgroup", "sweep"];
const SANDBOX_MODES = ["read-only", "workspace", "off"];

export function kindLabel(kind) {
  return KINDS.includes(kind) ? t(`ledger.kind.${kind}`) : kind;
}

/** The text at the end of a bar. How a resource was released is not translated: receipts use the same words. */
export function endLabel(row) {
  if (row.open === "live") {
    return t(row.requested === null ? "ledger.open" : "ledger.releasing");
  }
  if (row.open === "leftover") {
    return t("ledger.left");
  }
  const end = exitLabel(row);
  return row.swept > 0 ? t("ledger.end.below", { end, count: row.swept }) : end;
}

/** The time from the stop request to the release, or how long it was held when it was released before. */
export function offsetLabel(row) {
  if (row.mixed || (row.count > 1 && !isLate(row))) {
    return "";
  }
  return isLate(row) ? `+${millis(lastReleaseMs(row) - row.requested)}` : millis(heldMs(row));
}

export function rowTooltip(row) {
  const parts = [
    `${kindLabel(row.kind)} ${fullName(row)}`.trim(),
    endLabel(row),
    t("ledger.held-for", { time: millis(heldMs(row)) }),
  ];
  if (isLate(row) && !row.open) {
    parts.push(t("ledger.after-stop", { time: millis(lastReleaseMs(row) - row.requested) }));
  }
  if (row.pid) {
    parts.push(`pid ${row.pid}`);
  }
  if (CONTAINMENTS.includes(row.heldBy)) {
    parts.push(t(`ledger.held-by.${row.heldBy}`));
  }
  parts.push(...sandboxLines(row.sandbox));
  return parts.join("\n");
}

/** The mode of the sandbox, its user, and the layers that the system did not permit. */
function sandboxLines(sandbox) {
  if (!SANDBOX_MODES.includes(sandbox?.mode)) {
    return [];
  }
  const lines = [t(`ledger.sandbox.${sandbox.mode}`)];
  if (sandbox.user !== undefined) {
    lines.push(t("ledger.sandbox-user", { user: sandbox.user }));
  }
  if (sandbox.missing?.length) {
    const layers = sandbox.missing.map((missing) => missing.layer).join(", ");
    lines.push(t("ledger.sandbox-missing", { layers }));
  }
  return lines;
}

/** The label in the timeline, with a shortened run id. */
export function shortName(row) {
  if (row.mixed) {
    return t("ledger.others", { count: row.count });
  }
  return row.runId ? row.label.replace(row.runId, shortId(row.runId)) : row.label;
}

/** The label with the number of folded rows. */
export function fullName(row) {
  if (row.mixed) {
    return t("ledger.others", { count: row.count });
  }
  return row.count > 1 ? `${row.label} ×${row.count}`.trim() : row.label;
}

/** How long it was held; for folded rows, how long at least one of them was. */
export function heldMs(row) {
  return row.spans.reduce((sum, { from, to }) => sum + (to - from), 0);
}

/** True when it was released after the stop request. */
export function isLate(row) {
  return row.requested !== null && lastReleaseMs(row) >= row.requested;
}

export function lastReleaseMs(row) {
  return row.spans.at(-1).to;
}

function exitLabel(row) {
  if (row.mixed) {
    return rowStatus(row) === "failed" ? t("ledger.failed") : row.how;
  }
  if (row.how !== "exited") {
    return row.how;
  }
  if (row.exitCode !== undefined) {
    return `exited ${row.exitCode}`;
  }
  return row.signal === undefined ? row.how : `signal ${row.signal}`;
}
