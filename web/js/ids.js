// Makes random ids, and shortens run ids for display. Exports newId and shortId.

import { oneLine } from "./format.js";

/** 32 random hexadecimal digits. crypto.randomUUID() exists on secure pages only, getRandomValues() on all. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The last characters of an id: in ids of Quell these are random, the first ones are the time. */
export function shortId(runId) {
  return runId.length > 14 ? `…${runId.slice(-6)}` : oneLine(runId, 14);
}
