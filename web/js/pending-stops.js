// Stops of runs that the daemon has not answered yet. Each is repeated until there is an answer, and is the first
// request of a new connection. A stop names its run, so it never stops a later one.
//
//   sendStop(runId, {force}, callbacks)   sends the stop now, and again on each new connection until it is answered.
//                                A later stop of the same run replaces an earlier one; `force` stays set.
//                                callbacks: {onAnswer(answer), onRefusal(problem)}, one of them called once
//   isWaitingForConnection(runId)
//   UNKNOWN_RUN                  codes of a Problem that mean that there is no such run
//   clearPendingStops()          at sign-out

import * as api from "./api.js";
import * as websocket from "./websocket.js";

/** The delay before a retry while the WebSocket is connected. */
const RETRY_MS = 1_000;

/** Over HTTP, and over the socket. */
export const UNKNOWN_RUN = new Set(["run_not_found", "INVALID_REQUEST"]);

const pendingStops = new Map();

websocket.onHandshake((request) => pendingStops.forEach((stop, runId) => deliver(runId, stop, request)));
websocket.retryFastWhile(() => pendingStops.size > 0);

export function sendStop(runId, { force = false }, callbacks) {
  const stop = { force: force || Boolean(pendingStops.get(runId)?.force), callbacks };
  pendingStops.set(runId, stop);
  deliver(runId, stop, sendOverHttp);
  if (websocket.state() === "lost") {
    websocket.checkConnection();
  }
}

export function isWaitingForConnection(runId) {
  return pendingStops.has(runId) && websocket.state() !== "live";
}

export function clearPendingStops() {
  pendingStops.clear();
}

/** HTTP may work while the WebSocket is lost, and its errors have more detail. */
function sendOverHttp(_method, { runId, ...force }) {
  return api.stop(`${api.runPath(runId)}/stop`, force);
}

async function deliver(runId, stop, request) {
  try {
    const answer = await request("runs.stop", { runId, ...(stop.force ? { force: true } : {}) });
    finish(runId, stop, () => stop.callbacks.onAnswer(answer));
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    if (problem.code !== "network") {
      finish(runId, stop, () => stop.callbacks.onRefusal(problem));
    } else if (websocket.state() === "live") {
      setTimeout(() => pendingStops.get(runId) === stop && deliver(runId, stop, websocket.request), RETRY_MS);
    }
  }
}

/** The first answer counts: the stop may have been sent on two connections. */
function finish(runId, stop, callback) {
  if (pendingStops.get(runId) === stop) {
    pendingStops.delete(runId);
    callback();
  }
}
