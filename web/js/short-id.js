// The end of a run's id, where the whole would be too long. Pure.

import { oneLine } from "./words.js";

/**
 * Enough of an id to tell runs apart. The last signs of those that Quell makes are chance, the first ones the
 * time.
 */
export function shortId(runId) {
  return runId.length > 14 ? `…${runId.slice(-6)}` : oneLine(runId, 14);
}
