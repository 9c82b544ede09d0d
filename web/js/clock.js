// The time as the daemon has it: every time on the page was stamped there, and the reader's own clock may be
// minutes off. It knows no document and no connection.
//
//   heard(ms)    the daemon just said that it is `ms` milliseconds since 1970
//   now()        milliseconds since 1970 by the daemon's clock

/** What a message takes on its way is no difference between clocks. */
const JITTER_MS = 500;
let ahead = 0;

export function heard(ms, here = Date.now()) {
  const heardAhead = ms - here;
  if (Number.isFinite(heardAhead) && Math.abs(heardAhead - ahead) > JITTER_MS) {
    ahead = heardAhead;
  }
}

export function now(here = Date.now()) {
  return here + ahead;
}
