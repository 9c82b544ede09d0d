// The receipt in one line, in the same words as the terminal's:
// `stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid`
//
//   receiptLine(receipt)     the line
//   amendmentLines(receipt)  one line for each amendment
//   heldLine(resources)      what is still held while a stop settles: "model gpt-5, process 4242 (cargo test)"
//   wallMs(at)               milliseconds since 1970 with fraction, or null

import { millis, oneLine, t, tPlural } from "./texts.js";

const MAX_NAME = 200;
/** An MCP call whose server was told to cancel it and did not answer. */
const UNCONFIRMED = "unconfirmed";
const FORCED_RELEASES = new Set(["closed", "cancelled", UNCONFIRMED, "term", "kill"]);
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
/** Kinds that follow models and processes, in this order. */
const OTHERS = ["run", "mcp_call", "http_request", "approval", "task", "hook", "delivery"];

export function receiptLine(receipt) {
  const parts = [
    headText(receipt),
    modelText(receipt),
    processText(receipt),
    ...OTHERS.map((kind) => otherText(receipt, kind)),
    unconfirmedText(receipt),
    ...leftoverTexts(receipt.leftovers),
    receipt.recovered && t("receipt.recovered"),
    historyText(receipt),
    reasonText(receipt.verdict),
  ];
  return parts.filter(Boolean).join(" · ");
}

export function amendmentLines(receipt) {
  const settled = wallMs(receipt.settledAt.at);
  return (receipt.amendments ?? []).map(({ at, text, leftovers = [] }) => {
    const time = millis(Math.max(0, (wallMs(at.at) ?? 0) - (settled ?? 0)));
    const names = leftovers.map(({ name }) => t("receipt.still-there", { name: oneLine(name, MAX_NAME) }));
    return [t("receipt.later", { time, what: oneLine(text, MAX_NAME) }), ...names].join("; ");
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

function headText(receipt) {
  const { verdict } = receipt;
  if (verdict.kind === "aborted") {
    return withDuration(t("receipt.stopped"), receipt.settledAt.ms);
  }
  if (verdict.kind === "failed") {
    return withDuration(t("receipt.failed", { code: oneLine(verdict.code, MAX_NAME) }), runDuration(receipt));
  }
  return withDuration(t("receipt.completed"), runDuration(receipt));
}

function withDuration(word, ms) {
  return ms === undefined || ms === null ? word : t("receipt.within", { word, time: millis(ms) });
}

/** From the first resource to the end: a receipt has no start time. */
function runDuration(receipt) {
  const opened = receipt.resources
    .map((resource) => wallMs(resource.openedAt.at))
    .filter((ms) => ms !== null);
  const settled = wallMs(receipt.settledAt.at);
  return opened.length === 0 || settled === null ? null : settled - Math.min(...opened);
}

export function wallMs(at) {
  const whole = Date.parse(at);
  if (Number.isNaN(whole)) {
    return null;
  }
  const [, digits = ""] = /\.(\d+)/.exec(at) || [];
  return Math.floor(whole / 1000) * 1000 + Number(`0.${digits || "0"}`) * 1000;
}

/** The resources of a kind that were still held when the run began to end, and were then released. */
function releasedAtEnd(receipt, kind) {
  return receipt.resources.filter((resource) => {
    if (resource.kind !== kind || !resource.releasedAt) {
      return false;
    }
    return receipt.requestedAt ? resource.releasedAt.ms >= 0 : FORCED_RELEASES.has(resource.how);
  });
}

function modelText(receipt) {
  const rows = releasedAtEnd(receipt, "model_request");
  if (rows.length === 0) {
    return null;
  }
  const what = rows.length === 1 ? t("receipt.model") : t("receipt.models", { n: rows.length });
  const times = rows.map((row) => row.releasedAt.ms).filter((ms) => ms !== undefined && ms !== null);
  return times.length === 0
    ? t("receipt.closed", { what })
    : t("receipt.closed-after", { what, time: millis(Math.max(...times)) });
}

function processText(receipt) {
  const rows = releasedAtEnd(receipt, "process");
  const number = rows.reduce((sum, row) => sum + 1 + (row.swept || 0), 0);
  if (number > 0) {
    const hows = [...new Set(rows.map((row) => row.how))].join(", ");
    return t("receipt.processes-ended", { what: tPlural("receipt.process", number), hows });
  }
  // Commands that ended by themselves may have left processes behind.
  const leftBehind = receipt.resources
    .filter((row) => row.how === "exited")
    .reduce((sum, row) => sum + (row.swept || 0), 0);
  return leftBehind === 0 ? null : t("receipt.ended", { what: tPlural("receipt.left-behind", leftBehind) });
}

function otherText(receipt, kind) {
  const number = releasedAtEnd(receipt, kind).filter((row) => row.how !== UNCONFIRMED).length;
  return number === 0
    ? null
    : t(`receipt.done.${KINDS[kind]}`, { what: tPlural(`receipt.${KINDS[kind]}`, number) });
}

function unconfirmedText(receipt) {
  const number = releasedAtEnd(receipt, "mcp_call").filter((row) => row.how === UNCONFIRMED).length;
  return number === 0 ? null : t("receipt.unconfirmed", { what: tPlural("receipt.mcp-call", number) });
}

/** Leftovers, grouped by kind. */
function leftoverTexts(rows) {
  const kinds = [...new Set(rows.map((row) => row.kind))];
  return kinds.map((kind) => {
    const names = rows.filter((row) => row.kind === kind).map((row) => oneLine(row.name, MAX_NAME));
    const kindKey = KINDS[kind] || "task";
    return t(`receipt.left.${kindKey}`, {
      what: tPlural(`receipt.${kindKey}`, names.length),
      names: names.join("; "),
    });
  });
}

function historyText(receipt) {
  if (receipt.turn.recorded) {
    return t("receipt.history-valid");
  }
  // A queued message that was withdrawn leaves no turn.
  return receipt.resources.length === 0 ? t("receipt.no-turn") : t("receipt.not-recorded");
}

/** The reason, unless a person asked for the stop. */
function reasonText(verdict) {
  if (verdict.kind !== "aborted" || verdict.reason === "user" || verdict.reason === "command") {
    return null;
  }
  return t("receipt.reason", { reason: oneLine(verdict.reason, MAX_NAME) });
}
