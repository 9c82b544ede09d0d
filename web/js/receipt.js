// The receipt in one line, in the same words as the terminal's. Pure but for the table of texts.
// `stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid`
//
//   receiptLine(receipt)     the line
//   amendmentLines(receipt)  what became known after the end, a line each
//   heldLine(resources)      what is still held, for the time while a stop settles: "model gpt-5, process
//                            4242 (cargo test)"

import { counted, millis, oneLine, t } from "./texts.js";

const MOST_NAME = 200;
/** A call whose server reads, was told to cancel it, and did not answer it. */
const UNCONFIRMED = "unconfirmed";
const PUSHED = new Set(["closed", "cancelled", UNCONFIRMED, "term", "kill"]);
const KINDS = {
  model_request: "model-request",
  process: "process",
  mcp_call: "mcp-call",
  run: "sub-run",
  approval: "approval",
  timer: "timer",
  permit: "permit",
  http_request: "http-request",
  task: "task",
  hook: "hook",
  delivery: "delivery",
};
/** Kinds that are counted behind models and processes, in this order. */
const OTHERS = ["run", "mcp_call", "http_request", "approval", "task", "hook", "delivery"];

export function receiptLine(receipt) {
  const parts = [
    head(receipt),
    models(receipt),
    processes(receipt),
    ...OTHERS.map((kind) => other(receipt, kind)),
    unconfirmed(receipt),
    ...leftovers(receipt.leftovers),
    receipt.recovered && t("receipt.recovered"),
    history(receipt),
    reason(receipt.verdict),
  ];
  return parts.filter(Boolean).join(" · ");
}

export function amendmentLines(receipt) {
  const settled = wallMs(receipt.settledAt.at);
  return (receipt.amendments ?? []).map(({ at, text, leftovers: left = [] }) => {
    const time = millis(Math.max(0, (wallMs(at.at) ?? 0) - (settled ?? 0)));
    const named = left.map(({ name }) => t("receipt.still-there", { name: oneLine(name, MOST_NAME) }));
    return [t("receipt.later", { time, what: oneLine(text, MOST_NAME) }), ...named].join("; ");
  });
}

export function heldLine(resources) {
  const names = resources
    .filter((resource) => !resource.releasedAt && resource.kind !== "permit")
    .map((resource) => {
      const kind = t(`receipt.held.${KINDS[resource.kind] || "task"}`);
      const label = oneLine(resource.label || "", 60);
      return resource.pid ? `${kind} ${resource.pid} (${label})` : `${kind} ${label}`.trim();
    });
  if (names.length <= 3) {
    return names.join(", ");
  }
  return `${names.slice(0, 3).join(", ")}, ${t("receipt.more", { n: names.length - 3 })}`;
}

function head(receipt) {
  const { verdict } = receipt;
  if (verdict.kind === "aborted") {
    return within(t("receipt.stopped"), receipt.settledAt.ms);
  }
  if (verdict.kind === "failed") {
    return within(t("receipt.failed", { code: oneLine(verdict.code, MOST_NAME) }), ranFor(receipt));
  }
  return within(t("receipt.completed"), ranFor(receipt));
}

function within(word, ms) {
  return ms === undefined || ms === null ? word : t("receipt.within", { word, time: millis(ms) });
}

/** From the first thing that the run took to its end; the receipt does not know more about its length. */
function ranFor(receipt) {
  const opened = receipt.resources
    .map((resource) => wallMs(resource.openedAt.at))
    .filter((ms) => ms !== null);
  const settled = wallMs(receipt.settledAt.at);
  return opened.length === 0 || settled === null ? null : settled - Math.min(...opened);
}

/** Milliseconds with their fraction: Date knows whole ones only, a receipt has microseconds. */
export function wallMs(at) {
  const whole = Date.parse(at);
  if (Number.isNaN(whole)) {
    return null;
  }
  const [, digits = ""] = /\.(\d+)/.exec(at) || [];
  return Math.floor(whole / 1000) * 1000 + Number(`0.${digits || "0"}`) * 1000;
}

/** Those of one kind that were still held when the end began and were then given back. */
function ended(receipt, kind) {
  return receipt.resources.filter((resource) => {
    if (resource.kind !== kind || !resource.releasedAt) {
      return false;
    }
    return receipt.requestedAt ? resource.releasedAt.ms >= 0 : PUSHED.has(resource.how);
  });
}

function models(receipt) {
  const rows = ended(receipt, "model_request");
  if (rows.length === 0) {
    return null;
  }
  const what = rows.length === 1 ? t("receipt.model") : t("receipt.models", { n: rows.length });
  const times = rows.map((row) => row.releasedAt.ms).filter((ms) => ms !== undefined && ms !== null);
  return times.length === 0
    ? t("receipt.closed", { what })
    : t("receipt.closed-after", { what, time: millis(Math.max(...times)) });
}

function processes(receipt) {
  const rows = ended(receipt, "process");
  const number = rows.reduce((sum, row) => sum + 1 + (row.swept || 0), 0);
  if (number > 0) {
    const hows = [...new Set(rows.map((row) => row.how))].join(", ");
    return t("receipt.processes-ended", { what: counted("receipt.process", number), hows });
  }
  // A command that was left to finish may still have left children behind that had to go.
  const left = receipt.resources
    .filter((row) => row.how === "exited")
    .reduce((sum, row) => sum + (row.swept || 0), 0);
  return left === 0 ? null : t("receipt.ended", { what: counted("receipt.left-behind", left) });
}

function other(receipt, kind) {
  const number = ended(receipt, kind).filter((row) => row.how !== UNCONFIRMED).length;
  return number === 0
    ? null
    : t(`receipt.done.${KINDS[kind]}`, { what: counted(`receipt.${KINDS[kind]}`, number) });
}

/** Calls that were told to be cancelled, of which nothing more is known. */
function unconfirmed(receipt) {
  const number = ended(receipt, "mcp_call").filter((row) => row.how === UNCONFIRMED).length;
  return number === 0 ? null : t("receipt.unconfirmed", { what: counted("receipt.mcp-call", number) });
}

/** What is still there, grouped by kind: it is never hidden. */
function leftovers(rows) {
  const kinds = [...new Set(rows.map((row) => row.kind))];
  return kinds.map((kind) => {
    const names = rows.filter((row) => row.kind === kind).map((row) => oneLine(row.name, MOST_NAME));
    const word = KINDS[kind] || "task";
    return t(`receipt.left.${word}`, {
      what: counted(`receipt.${word}`, names.length),
      names: names.join("; "),
    });
  });
}

function history(receipt) {
  if (receipt.turn.recorded) {
    return t("receipt.history-valid");
  }
  // A queued message that was withdrawn owes no turn: its absence is no damage.
  return receipt.resources.length === 0 ? t("receipt.no-turn") : t("receipt.not-recorded");
}

/** The reason, unless it is the ordinary one: that somebody pressed stop. */
function reason(verdict) {
  if (verdict.kind !== "aborted" || verdict.reason === "user" || verdict.reason === "command") {
    return null;
  }
  return t("receipt.reason", { reason: oneLine(verdict.reason, MOST_NAME) });
}
