// The words for what a run held: kinds, ends, times, in the page's language. It knows rows (ledger.js) and no
// element.

import { KINDS, standing } from "./ledger.js";
import { shortId } from "./short-id.js";
import { millis, t } from "./texts.js";

/** A mark for each standing, since colour alone says nothing to many. */
export const GLYPHS = { calm: "✓", stopped: "■", bad: "▲", left: "▲", open: "…" };

/** What ends the descendants of a command, the surest first. */
const CONTAINMENTS = ["namespace", "cgroup", "sweep"];

export function kindWord(kind) {
  return KINDS.includes(kind) ? t(`ledger.kind.${kind}`) : kind;
}

/**
 * The word at the end of a bar. Ends have the same words everywhere, in every language: they stand so in the
 * receipt.
 */
export function endWord(row) {
  if (row.open === "live") {
    return t(row.requested === null ? "ledger.open" : "ledger.releasing");
  }
  if (row.open === "left") {
    return t("ledger.left");
  }
  const end = exit(row);
  return row.swept > 0 ? t("ledger.end.below", { end, count: row.swept }) : end;
}

/** How long after the request it was given back, where that was later; else how long it was held. */
export function offsetWord(row) {
  if (row.others || (row.times > 1 && !isLate(row))) {
    return "";
  }
  return isLate(row) ? `+${millis(lastOf(row) - row.requested)}` : millis(heldMs(row));
}

/** Everything that is known of a row, for a tooltip. */
export function rowTitle(row) {
  const parts = [
    `${kindWord(row.kind)} ${nameOf(row)}`.trim(),
    endWord(row),
    t("ledger.held-for", { time: millis(heldMs(row)) }),
  ];
  if (isLate(row) && !row.open) {
    parts.push(t("ledger.after-stop", { time: millis(lastOf(row) - row.requested) }));
  }
  if (row.pid) {
    parts.push(`pid ${row.pid}`);
  }
  if (CONTAINMENTS.includes(row.heldBy)) {
    parts.push(t(`ledger.held-by.${row.heldBy}`));
  }
  return parts.join("\n");
}

/** What it is called in a picture: a sub-run by the end of its id, which is what tells it from others. */
export function labelOf(row) {
  if (row.others) {
    return t("ledger.others", { count: row.times });
  }
  return row.runId ? row.label.replace(row.runId, shortId(row.runId)) : row.label;
}

/** What it is called; several different ones folded into a row have only their number. */
export function nameOf(row) {
  if (row.others) {
    return t("ledger.others", { count: row.times });
  }
  return row.times > 1 ? `${row.label} ×${row.times}`.trim() : row.label;
}

/** The time in which it was held; of several, the time in which at least one was. */
export function heldMs(row) {
  return row.spans.reduce((sum, { from, to }) => sum + (to - from), 0);
}

/** True for what was given back after a stop had been asked for. */
export function isLate(row) {
  return row.requested !== null && lastOf(row) >= row.requested;
}

export function lastOf(row) {
  return row.spans.at(-1).to;
}

function exit(row) {
  if (row.others) {
    return standing(row) === "bad" ? t("ledger.failed") : row.how;
  }
  if (row.how !== "exited") {
    return row.how;
  }
  if (row.exitCode !== undefined) {
    return `exited ${row.exitCode}`;
  }
  return row.signal === undefined ? row.how : `signal ${row.signal}`;
}
