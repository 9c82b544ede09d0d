// Values derived from the store that several views show: counts, the order of runs, who may share a session. Exports
// aliveProcesses, isAlive, coveredByStopAll, runRows and sharingState. Pure.

/**
 * The number of live processes: those that runs wait for, and background ones. An active run already counts
 * the background processes that it started.
 */
export function aliveProcesses(runs, processes) {
  const active = new Set(runs.map((run) => run.runId));
  const background = processes.filter((process) => isAlive(process) && !active.has(process.startedByRun));
  return runs.reduce((sum, run) => sum + (run.processes ?? 0), 0) + background.length;
}

export function isAlive(process) {
  return process.state !== "ended";
}

/** How many things "Stop all" would stop now. */
export function coveredByStopAll(runs, processes, approvals) {
  return {
    runs: runs.length,
    queued: runs.filter((run) => run.state === "queued").length,
    sessions: new Set(runs.map((run) => run.sessionKey)).size,
    processes: aliveProcesses(runs, processes),
    approvals: approvals.length,
  };
}

/** Rows `{run, depth}`: the oldest run first, sub-runs below the run that started them. */
export function runRows(runs) {
  const known = new Set(runs.map((run) => run.runId));
  const childrenOf = new Map();
  const roots = [];
  const sorted = [...runs].sort((a, b) =>
    a.acceptedAt < b.acceptedAt ? -1 : a.acceptedAt > b.acceptedAt ? 1 : 0,
  );
  for (const run of sorted) {
    if (!known.has(run.parent)) {
      roots.push(run);
    } else if (childrenOf.has(run.parent)) {
      childrenOf.get(run.parent).push(run);
    } else {
      childrenOf.set(run.parent, [run]);
    }
  }
  const rows = [];
  const add = (run, depth) => {
    rows.push({ run, depth });
    for (const child of childrenOf.get(run.runId) ?? []) {
      add(child, depth + 1);
    }
  };
  for (const run of roots) {
    add(run, 0);
  }
  return rows;
}

/**
 * Whether a session is "shared" or "private", and whether this caller may change that. Null without a row or a caller.
 * The daemon decides; this only keeps the page from offering what it would refuse.
 */
export function sharingState(row, me) {
  if (!row || !me || row.shared === undefined) {
    return null;
  }
  const scopes = me.scopes ?? [me.scope];
  const managesAll = scopes.includes("admin") || scopes.includes("write:all");
  const ownsIt = row.owner === me.principal && scopes.includes("write");
  return { state: row.shared ? "shared" : "private", canChange: managesAll || ownsIt };
}
