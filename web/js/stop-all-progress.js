// The progress and the result of "Stop all", from receipts and process rows. Exports startProgress, recordRunEnd,
// recordRunDeleted, updateProcesses, progressCounts and summary. Pure.

const DELETED = Symbol("deleted");

/** From the answer to the stop; `ending` has the runs that were already stopping. */
export function startProgress(answer) {
  return {
    runs: new Map([...answer.runIds, ...(answer.ending ?? [])].map((id) => [id, null])),
    processes: new Map((answer.processes ?? []).map((process) => [process.id, process])),
  };
}

/** Ignores runs that the stop does not cover. */
export function recordRunEnd(progress, runId, receipt) {
  if (progress.runs.has(runId) && receipt) {
    progress.runs.set(runId, receipt);
  }
}

/** The daemon no longer knows the run, so it has no receipt. */
export function recordRunDeleted(progress, runId) {
  if (progress.runs.get(runId) === null) {
    progress.runs.set(runId, DELETED);
  }
}

export function updateProcesses(progress, rows) {
  for (const row of rows) {
    if (progress.processes.has(row.id)) {
      progress.processes.set(row.id, row);
    }
  }
}

/** `{left, all}` for runs and processes, and the ids of runs that have not ended. */
export function progressCounts(progress) {
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

/** The slowest run, what was ended, all leftovers by name, and the number of runs without a receipt. */
export function summary(progress) {
  const receipts = [...progress.runs].filter(([, receipt]) => receipt && receipt !== DELETED);
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
      receipts.reduce((sum, [, receipt]) => sum + countEndedProcesses(receipt), 0) + progress.processes.size,
    leftovers,
    deleted: [...progress.runs.values()].filter((receipt) => receipt === DELETED).length,
  };
}

/** Processes that the stop ended, with their descendants. */
function countEndedProcesses(receipt) {
  const ended = receipt.resources.filter(
    ({ kind, releasedAt, how }) => kind === "process" && releasedAt?.ms >= 0 && how !== "kept",
  );
  return ended.reduce((sum, { swept }) => sum + 1 + (swept ?? 0), 0);
}
