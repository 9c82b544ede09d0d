// What a stop request of this page means for the runs that are active now. Exports newStopRequest,
// activeStopRequest, buttonMode and isNothingStopped. Pure.
//
//   request   null, or {push: "gentle" | "forced", ids: Set of the runs that were active when it was made}
//   runs      [{runId, stopping}] that have not ended; sending: ids of messages that the daemon has not answered

/** A request for all runs that are active now; it never covers later ones. */
export function newStopRequest(push, runs, sending) {
  return { push, ids: new Set([...runs.map((run) => run.runId), ...sending]) };
}

/** The request while at least one of its runs is active, else null. */
export function activeStopRequest(request, runs, sending) {
  const activeIds = [...runs.map((run) => run.runId), ...sending];
  return request && activeIds.some((id) => request.ids.has(id)) ? request : null;
}

/** What the composer's button does: "send" | "stop" | "force". */
export function buttonMode(request, runs, sending) {
  if (runs.length === 0 && sending.length === 0) {
    return "send";
  }
  const isStopping = activeStopRequest(request, runs, sending) !== null || runs.some((run) => run.stopping);
  return isStopping ? "force" : "stop";
}

/** True when the answer to the stop of a session names no run and no message. */
export function isNothingStopped({ aborted, runIds, ending = [], withdrawn }) {
  return !aborted && runIds.length + ending.length + withdrawn.length === 0;
}
