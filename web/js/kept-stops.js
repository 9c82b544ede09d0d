// Stops of runs that the daemon has not answered yet: each is kept until it does, over any number of lost
// connections, and is the first thing that a new connection carries. A kept stop names its run, so that it
// never stops one that follows. It knows the connection, and no element.
//
//   keep(runId, {force}, told)   sends the stop now, and again as soon as there is a connection, until it is
//                                answered. A later stop of the same run takes the place of an earlier one;
//                                force stays
//                                told: {answered(answer), refused(problem)}, called once
//   isWaiting(runId)             true while that stop waits for the connection
//   UNKNOWN_RUN                  codes of a Problem that says that there is no such run
//   forgetAll()                  who was signed in asks for nothing any more

import * as api from "./api.js";
import * as live from "./live.js";

/** Between two tries over HTTP, when the connection that tells of events works and that did not. */
const AGAIN_MS = 1_000;

/** Over HTTP, and over the socket. */
export const UNKNOWN_RUN = new Set(["run_not_found", "INVALID_REQUEST"]);

const kept = new Map();

live.onGreeted((ask) => kept.forEach((stop, runId) => deliver(runId, stop, ask)));
live.hurryWhile(() => kept.size > 0);

export function keep(runId, { force = false }, told) {
  const stop = { force: force || Boolean(kept.get(runId)?.force), told };
  kept.set(runId, stop);
  deliver(runId, stop, overHttp);
  if (live.state() === "lost") {
    live.hurry();
  }
}

export function isWaiting(runId) {
  return kept.has(runId) && live.state() !== "live";
}

export function forgetAll() {
  kept.clear();
}

/** There may be a network although the socket is lost; and HTTP tells in more words why a stop is refused. */
function overHttp(_method, { runId, ...force }) {
  return api.stop(`${api.run(runId)}/stop`, force);
}

async function deliver(runId, stop, ask) {
  try {
    const answer = await ask("runs.stop", { runId, ...(stop.force ? { force: true } : {}) });
    settle(runId, stop, () => stop.told.answered(answer));
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    if (problem.code !== "network") {
      settle(runId, stop, () => stop.told.refused(problem));
    } else if (live.state() === "live") {
      setTimeout(() => kept.get(runId) === stop && deliver(runId, stop, live.request), AGAIN_MS);
    }
  }
}

/** The first answer counts: a stop may be under way on two connections. */
function settle(runId, stop, tell) {
  if (kept.get(runId) === stop) {
    kept.delete(runId);
    tell();
  }
}
