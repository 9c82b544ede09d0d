// How far a stop of everything has come, and how it ended. Pure. It knows receipts and process rows, no
// element and no route.

const GONE = Symbol("gone");

/** What a stop covers, from its answer. A second, forcing stop answers the same runs as `ending`. */
export function begun(answer) {
  return {
    runs: new Map([...answer.runIds, ...(answer.ending ?? [])].map((id) => [id, null])),
    processes: new Map((answer.processes ?? []).map((process) => [process.id, process])),
  };
}

/** The end of a run. One that the stop does not cover changes nothing. */
export function runEnded(progress, runId, receipt) {
  if (progress.runs.has(runId) && receipt) {
    progress.runs.set(runId, receipt);
  }
}

/** A run that the daemon does not know any more is over, and has left no receipt. */
export function runGone(progress, runId) {
  if (progress.runs.get(runId) === null) {
    progress.runs.set(runId, GONE);
  }
}

export function processesSeen(progress, rows) {
  for (const row of rows) {
    if (progress.processes.has(row.id)) {
      progress.processes.set(row.id, row);
    }
  }
}

/** `{left, all}` for runs and processes, and the runs that are not over. */
export function standing(progress) {
  const waiting = [...progress.runs].filter(([, receipt]) => !receipt).map(([id]) => id);
  const processes = [...progress.processes.values()];
  const alive = processes.filter((process) => process.state !== "ended").length;
  return {
    waiting,
    runs: { left: waiting.length, all: progress.runs.size },
    processes: { left: alive, all: processes.length },
    over: waiting.length === 0 && alive === 0,
  };
}

/**
 * What is told when all is over: the slowest run, what was ended, everything that is still there, by name,
 * and how many runs left no receipt.
 */
export function summary(progress) {
  const receipts = [...progress.runs].filter(([, receipt]) => receipt && receipt !== GONE);
  const times = receipts.map(([, receipt]) => receipt.settledAt.ms ?? 0);
  const leftovers = receipts.flatMap(([runId, { leftovers: left }]) =>
    left.map(({ name }) => ({ runId, name })),
  );
  for (const process of progress.processes.values()) {
    for (const name of process.leftovers ?? []) {
      leftovers.push({ runId: process.startedByRun, name });
    }
  }
  return {
    runs: receipts.length,
    slowestMs: times.reduce((a, b) => Math.max(a, b), 0),
    processes:
      receipts.reduce((sum, [, receipt]) => sum + endedProcesses(receipt), 0) + progress.processes.size,
    leftovers,
    gone: [...progress.runs.values()].filter((receipt) => receipt === GONE).length,
  };
}

/** Processes with their descendants that the stop itself ended. */
function endedProcesses(receipt) {
  const ended = receipt.resources.filter(
    ({ kind, releasedAt, how }) => kind === "process" && releasedAt?.ms >= 0 && how !== "kept",
  );
  return ended.reduce((sum, { swept }) => sum + 1 + (swept ?? 0), 0);
}
