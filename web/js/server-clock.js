// The daemon's clock, which every time on the page refers to; the clock of the browser may be wrong. Pure.
//
//   setServerTime(ms)   the daemon's time, as a message has just brought it
//   now()               the daemon's time now; both in milliseconds since 1970

/** Smaller changes of the offset are network delay. */
const TOLERANCE_MS = 500;
let offsetMs = 0;

export function setServerTime(ms, localMs = Date.now()) {
  const newOffsetMs = ms - localMs;
  if (Number.isFinite(newOffsetMs) && Math.abs(newOffsetMs - offsetMs) > TOLERANCE_MS) {
    offsetMs = newOffsetMs;
  }
}

export function now(localMs = Date.now()) {
  return localMs + offsetMs;
}
