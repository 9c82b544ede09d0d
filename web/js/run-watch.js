// Looks at one run for as long as somebody wants to see it: often while it works, more often while it stops,
// once more when it is over, and at the runs that it started; or only for its end, when nobody tells of that.
// It knows the route and the times; what is shown is for others.

import * as api from "./api.js";
import { subRunsOf } from "./ledger.js";
import * as live from "./live.js";

const RUNNING_MS = 250;
const STOPPING_MS = 100;
const QUEUED_MS = 1000;
const AWAY_MS = 1000;
const ASK_AGAIN_MS = 1500;
const CHILDREN_MS = 1000;
/** A run that started more than these is still shown, without what those held. */
const MOST_CHILDREN = 48;

/**
 * The end of a run that nobody tells of, once there is one; null when it goes on and `isTold()` says that
 * somebody tells of it again. `goesOn()` is called whenever it was asked and goes on.
 */
export async function endOf(runId, isTold, goesOn) {
  let view = await viewOf(runId);
  while (view?.state !== "ended" && !isTold()) {
    await new Promise((done) => setTimeout(done, ASK_AGAIN_MS));
    if (view) {
      goesOn();
    }
    view = isTold() ? null : await viewOf(runId);
  }
  return view?.state === "ended" ? view : null;
}

/** A run as the daemon knows it, `{state: "ended"}` when it does not, null when it does not answer. */
async function viewOf(runId) {
  try {
    return await api.get(api.run(runId));
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    return problem.status === 404 ? { state: "ended" } : null;
  }
}

/**
 * Calls `tell({view, children, problem})` at every change; `children` are the sub-runs by their ids. Gives
 * `{look, leave}`: `look()` asks at once, for when something is known to have happened; `isSeen()` says
 * whether somebody looks.
 */
export function watch(runId, tell, isSeen) {
  const known = { view: null, children: new Map(), problem: null };
  let gone = false;
  let wake = () => {};
  const undo = [
    live.on("run", (event) => event.runId === runId && wake()),
    live.on("run.amended", (event) => event.runId === runId && amended()),
  ];
  const pause = (ms) =>
    new Promise((done) => {
      const timer = setTimeout(done, ms);
      wake = () => {
        clearTimeout(timer);
        done();
      };
    });
  const readUntilOver = async () => {
    let childrenAt = 0;
    let over = false;
    while (!over && !gone) {
      // Nobody looks: the first look is kept for whoever comes, and news can wait.
      const idle = known.view && !isSeen();
      over = idle ? false : await read(runId, known);
      if (over || (!idle && Date.now() - childrenAt >= CHILDREN_MS)) {
        childrenAt = Date.now();
        await readChildren(known);
      }
      if (!gone) {
        tell(known);
        await pause(over ? 0 : idle ? AWAY_MS : pauseAfter(known));
      }
    }
  };
  // A receipt is amended when the run is over already, after the last of the looks above or between two of them.
  const amended = async () => {
    await read(runId, known);
    if (!gone) {
      tell(known);
    }
  };
  readUntilOver();
  return {
    look: () => wake(),
    leave() {
      gone = true;
      undo.forEach((forget) => forget());
      wake();
    },
  };
}

function pauseAfter({ view, problem }) {
  if (problem) {
    return AWAY_MS;
  }
  return view.state === "ending" ? STOPPING_MS : view.state === "queued" ? QUEUED_MS : RUNNING_MS;
}

/** True when there will be no news. What was seen before stays while the daemon is away. */
async function read(runId, known) {
  try {
    known.view = await api.get(api.run(runId));
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
  const ids = new Set(views.flatMap(subRunsOf));
  const open = [...ids].filter((id) => known.children.get(id)?.state !== "ended").slice(0, MOST_CHILDREN);
  const before = known.children.size;
  for (const id of open) {
    const child = { view: null };
    await read(id, child);
    if (child.view) {
      known.children.set(id, child.view);
    }
  }
  // What is new may have started runs of its own. Each round knows more runs, and there are only so many.
  if (known.children.size > before && known.children.size < MOST_CHILDREN) {
    await readChildren(known);
  }
}
