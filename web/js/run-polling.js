// Polls a run while it is shown: more often while it stops, with the sub-runs that it started, and its end when no
// events come. Exports pollRun and waitForEnd.

import * as api from "./api.js";
import { subRunIds } from "./ledger.js";
import * as websocket from "./websocket.js";

const RUNNING_POLL_MS = 250;
const STOPPING_POLL_MS = 100;
const QUEUED_POLL_MS = 1000;
const IDLE_POLL_MS = 1000;
const END_POLL_MS = 1500;
const CHILDREN_POLL_MS = 1000;
/** Sub-runs whose resources are shown. */
const MAX_CHILDREN = 48;

/**
 * Polls a run without events until it has ended, and returns its record. Returns null when `isFollowed()` becomes
 * true. Calls `onStillRunning()` after each answer of a run that goes on.
 */
export async function waitForEnd(runId, isFollowed, onStillRunning) {
  let view = await fetchRun(runId);
  while (view?.state !== "ended" && !isFollowed()) {
    await new Promise((done) => setTimeout(done, END_POLL_MS));
    if (view) {
      onStillRunning();
    }
    view = isFollowed() ? null : await fetchRun(runId);
  }
  return view?.state === "ended" ? view : null;
}

/** The record of a run, `{state: "ended"}` for an unknown run, null without an answer. */
async function fetchRun(runId) {
  try {
    return await api.get(api.runPath(runId));
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    return problem.status === 404 ? { state: "ended" } : null;
  }
}

/**
 * Calls `onUpdate({view, children, problem})` after each poll; `children` are the sub-runs by id. Polls only once
 * while `isVisible()` is false. Returns `{pollNow, stop}`.
 */
export function pollRun(runId, onUpdate, isVisible) {
  const known = { view: null, children: new Map(), problem: null };
  let stopped = false;
  let wake = () => {};
  const cleanups = [
    websocket.on("run", (event) => event.runId === runId && wake()),
    websocket.on("run.amended", (event) => event.runId === runId && onAmended()),
  ];
  const pause = (ms) =>
    new Promise((done) => {
      const timer = setTimeout(done, ms);
      wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  const pollUntilOver = async () => {
    let childrenReadAt = 0;
    let isOver = false;
    while (!isOver && !stopped) {
      const isIdle = known.view && !isVisible();
      isOver = isIdle ? false : await readRun(runId, known);
      if (isOver || (!isIdle && Date.now() - childrenReadAt >= CHILDREN_POLL_MS)) {
        childrenReadAt = Date.now();
        await readChildren(known);
      }
      if (!stopped) {
        onUpdate(known);
        await pause(isOver ? 0 : isIdle ? IDLE_POLL_MS : pollInterval(known));
      }
    }
  };
  // A receipt can be amended after the last poll.
  const onAmended = async () => {
    await readRun(runId, known);
    if (!stopped) {
      onUpdate(known);
    }
  };
  pollUntilOver();
  return {
    pollNow: () => wake(),
    stop() {
      stopped = true;
      cleanups.forEach((cleanup) => cleanup());
      wake();
    },
  };
}

function pollInterval({ view, problem }) {
  if (problem) {
    return IDLE_POLL_MS;
  }
  return view.state === "ending"
    ? STOPPING_POLL_MS
    : view.state === "queued"
      ? QUEUED_POLL_MS
      : RUNNING_POLL_MS;
}

/** True when no more changes can come. Without an answer the last view stays. */
async function readRun(runId, known) {
  try {
    known.view = await api.get(api.runPath(runId));
    known.problem = null;
    return known.view.state === "ended";
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    known.problem = problem;
    return problem.status === 404 || problem.status === 401;
  }
}

async function readChildren(known) {
  const views = [known.view, ...known.children.values()].filter(Boolean);
  const ids = new Set(views.flatMap(subRunIds));
  const openIds = [...ids].filter((id) => known.children.get(id)?.state !== "ended").slice(0, MAX_CHILDREN);
  const countBefore = known.children.size;
  for (const id of openIds) {
    const child = { view: null };
    await readRun(id, child);
    if (child.view) {
      known.children.set(id, child.view);
    }
  }
  // New sub-runs may have started runs of their own. MAX_CHILDREN ends the recursion.
  if (known.children.size > countBefore && known.children.size < MAX_CHILDREN) {
    await readChildren(known);
  }
}
