// Why something could not be done, in a sentence for people. It knows the codes of the daemon's errors and no route.

import { oneLine, t } from "./texts.js";

const TOLD = new Set([
  "network", "unauthorized", "forbidden", "missing_agent_id", "agent_not_found", "society_not_initialized", "shutting_down",
  "store_unavailable", "run_not_found", "session_not_found", "held", "internal", "conflict",
]);

/** The page's own words for a Problem where it has some, else the daemon's. */
export function reasonOf(problem) {
  if (TOLD.has(problem.code)) return t(`reason.${problem.code}`);
  return oneLine(problem.detail || problem.message || problem.code || "", 300) || t("reason.unknown");
}
