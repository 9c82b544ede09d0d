// Numbers that are shown in more than one place, from what the store holds. Pure. It knows the rows of the
// API and no element.

/**
 * Processes that are alive: those that runs wait for, and those in the background. While the run that started
 * a background process is active, its own number holds that one already.
 */
export function aliveProcesses(runs, processes) {
  const active = new Set(runs.map((run) => run.runId));
  const background = processes.filter((process) => isAlive(process) && !active.has(process.startedByRun));
  return runs.reduce((sum, run) => sum + (run.processes ?? 0), 0) + background.length;
}

export function isAlive(process) {
  return process.state !== "ended";
}

/** What "Stop all" would cover now. */
export function coveredByStopAll(runs, processes, approvals) {
  return {
    runs: runs.length,
    queued: runs.filter((run) => run.state === "queued").length,
    sessions: new Set(runs.map((run) => run.sessionKey)).size,
    processes: aliveProcesses(runs, processes),
    approvals: approvals.length,
  };
}

/** Runs in the order in which they are shown: the oldest first, sub-runs below the run that started them. */
export function runRows(runs) {
  const known = new Set(runs.map((run) => run.runId));
  const below = new Map();
  const tops = [];
  const inOrder = [...runs].sort((a, b) =>
    a.acceptedAt < b.acceptedAt ? -1 : a.acceptedAt > b.acceptedAt ? 1 : 0,
  );
  for (const run of inOrder) {
    if (!known.has(run.parent)) {
      tops.push(run);
    } else if (below.has(run.parent)) {
      below.get(run.parent).push(run);
    } else {
      below.set(run.parent, [run]);
    }
  }
  const rows = [];
  const add = (run, depth) => {
    rows.push({ run, depth });
    for (const child of below.get(run.runId) ?? []) {
      add(child, depth + 1);
    }
  };
  for (const run of tops) {
    add(run, 0);
  }
  return rows;
}
