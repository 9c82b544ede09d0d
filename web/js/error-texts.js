// Error texts for people, from the errors (Problem) of the daemon. Exports errorText and stopErrorText.

import { language, oneLine, t } from "./texts.js";

const MAX_LENGTH = 300;
const TRANSLATED_CODES = new Set([
  "network",
  "unaddressable",
  "unauthorized",
  "forbidden",
  "missing_agent_id",
  "agent_not_found",
  "society_not_initialized",
  "shutting_down",
  "store_unavailable",
  "run_not_found",
  "session_not_found",
  "held",
  "internal",
  "conflict",
]);

/** The text for a stop that failed. `key` is for a refusal; without an answer the stop may have arrived. */
export function stopErrorText(key, problem) {
  return problem.code === "network" ? t("stop.unanswered") : t(key, { reason: errorText(problem) });
}

/**
 * The reason of a Problem. The daemon's detail is specific but in English; for other languages, and without a
 * detail, the page's own text for the code is used where there is one.
 */
export function errorText({ code, detail, status }) {
  const detailText = oneLine(detail ?? "", MAX_LENGTH);
  if (code === "network") {
    return t("reason.network");
  }
  // A proxy between the page and the daemon has answered.
  if (code === "error" || code === "unreadable") {
    return t("reason.error", { detail: detailText || status });
  }
  if (TRANSLATED_CODES.has(code) && (language() !== "en" || detailText === "")) {
    return t(`reason.${code}`);
  }
  return detailText || t("reason.unknown");
}
