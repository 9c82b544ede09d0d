// What a stop that was asked here means for what runs now. Pure. It knows run ids, no element and no route.
//
//   asked   null, or {how: "gentle" | "forced", ids: Set of the runs that were there when it was asked}
//   runs    [{runId, stopping}] that are not over; sending: ids of messages under way to the daemon

/** A stop of everything that is there now. What comes later was not meant. */
export function asking(how, runs, sending) {
  return { how, ids: new Set([...runs.map((run) => run.runId), ...sending]) };
}

/** The stop for as long as one of its runs is there; a run that follows them was never asked to stop. */
export function stillAsked(asked, runs, sending) {
  const there = [...runs.map((run) => run.runId), ...sending];
  return asked && there.some((id) => asked.ids.has(id)) ? asked : null;
}

/** What the one button does: "send" | "stop" | "force". */
export function modeOf(asked, runs, sending) {
  if (runs.length === 0 && sending.length === 0) {
    return "send";
  }
  const isStopping = stillAsked(asked, runs, sending) !== null || runs.some((run) => run.stopping);
  return isStopping ? "force" : "stop";
}

/** True when the answer to a stop of a session says that there was nothing which it could stop. */
export function stoppedNothing({ aborted, runIds, ending = [], withdrawn }) {
  return !aborted && runIds.length + ending.length + withdrawn.length === 0;
}
