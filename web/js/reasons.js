// Why something could not be done, in words for people. It knows the codes of the daemon's errors and no
// route.

import { language, oneLine, t } from "./texts.js";

const MOST = 300;
const TOLD = new Set([
  "network",
  "unspeakable",
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

/**
 * What is told of a stop that was not confirmed. `key` names the text for one that the daemon refused; where
 * no answer came, the stop may have arrived all the same.
 */
export function stopFailure(key, problem) {
  return problem.code === "network" ? t("stop.unanswered") : t(key, { reason: reasonOf(problem) });
}

/**
 * The reason of a Problem. The daemon says what happened to just this request, in English; who reads another
 * language gets the page's own sentence where there is one, and so does everybody where the daemon did not
 * say anything.
 */
export function reasonOf({ code, detail, status }) {
  const said = oneLine(detail ?? "", MOST);
  if (code === "network") {
    return t("reason.network");
  }
  // Something between the page and the daemon has answered.
  if (code === "error" || code === "unreadable") {
    return t("reason.error", { detail: said || status });
  }
  if (TOLD.has(code) && (language() !== "en" || said === "")) {
    return t(`reason.${code}`);
  }
  return said || t("reason.unknown");
}
