// Runs as the API returns them, with times in milliseconds around noon, for the tests of ledger.js and timeline.js.

export const NOON = Date.parse("2026-03-01T12:00:00Z");

/** A time with microseconds, as a receipt writes it. */
export function at(ms) {
  const whole = Math.floor(ms);
  const micros = String(Math.round((ms - whole) * 1000)).padStart(3, "0");
  return { at: new Date(NOON + whole).toISOString().replace("Z", `${micros}Z`) };
}

/** One thing that a run held; `to` is null for what was not given back. */
export function held(kind, id, from, to, how, more = {}) {
  const released = to === null ? {} : { releasedAt: at(to) };
  return { kind, id, label: kind, openedAt: at(from), ...released, how, ...more };
}

export function ended(resources, { requested, delivered, settled }) {
  const stop =
    requested === undefined
      ? {}
      : { requestedAt: at(requested), deliveredAt: at(delivered ?? requested + 0.2) };
  return {
    runId: "run-1",
    state: "ended",
    receipt: { runId: "run-1", ...stop, settledAt: at(settled), resources },
  };
}

export function live(resources, { requested } = {}) {
  const stop =
    requested === undefined ? {} : { requestedAt: at(requested), deliveredAt: at(requested + 0.2) };
  return { runId: "run-1", state: requested === undefined ? "running" : "ending", held: resources, ...stop };
}
