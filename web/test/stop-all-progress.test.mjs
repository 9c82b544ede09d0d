// Tests of stop-all-progress.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  progressCounts,
  recordRunDeleted,
  recordRunEnd,
  startProgress,
  summary,
  updateProcesses,
} from "../js/stop-all-progress.js";
import { at, ended, held } from "./ledger-fixtures.mjs";

const ms = (time) => ({ ...at(time), ms: time });

/** A receipt of a run that a stop at noon ended. */
function receipt(resources, settled, leftovers = []) {
  const rows = resources.map((row) => ({
    ...row,
    releasedAt: row.releasedAt && ms(Date.parse(row.releasedAt.at) - Date.parse(at(0).at)),
  }));
  return { ...ended(rows, { requested: 0, settled }).receipt, settledAt: ms(settled), leftovers };
}

test("over when all runs have receipts and all processes are dead", () => {
  const progress = startProgress({
    runIds: ["a", "b"],
    ending: ["c"],
    processes: [{ id: "p1", state: "running", startedByRun: "old" }],
  });
  assert.deepEqual(progressCounts(progress).runs, { left: 3, all: 3 });
  for (const id of ["a", "b", "c"]) {
    assert.equal(progressCounts(progress).over, false);
    recordRunEnd(progress, id, receipt([], 5));
  }
  assert.deepEqual(progressCounts(progress).waiting, []);
  assert.equal(progressCounts(progress).over, false, "the process is still alive");
  updateProcesses(progress, [
    { id: "p1", state: "ended", startedByRun: "old" },
    { id: "other", state: "running" },
  ]);
  assert.deepEqual(progressCounts(progress).processes, { left: 0, all: 1 });
  assert.equal(progressCounts(progress).over, true);
});

test("other runs and ends without a receipt are ignored", () => {
  const progress = startProgress({ runIds: ["a"] });
  recordRunEnd(progress, "z", receipt([], 5));
  recordRunEnd(progress, "a", undefined);
  assert.deepEqual(progressCounts(progress).waiting, ["a"]);
});

test("nothing to stop is over at once", () => {
  const progress = startProgress({ runIds: [], withdrawn: [] });
  assert.equal(progressCounts(progress).over, true);
  assert.deepEqual(summary(progress), { runs: 0, slowestMs: 0, processes: 0, leftovers: [], deleted: 0 });
});

test("the summary has slowest run, ended processes, leftovers", () => {
  const progress = startProgress({
    runIds: ["a", "b"],
    processes: [{ id: "p1", state: "running", startedByRun: "old" }],
  });
  const tree = held("process", 1, -50, 8, "term", { swept: 2 });
  const before = held("process", 2, -50, -20, "exited", { swept: 0 });
  const kept = held("process", 3, -50, 3, "kept");
  recordRunEnd(progress, "a", receipt([tree, before, kept], 12));
  recordRunEnd(
    progress,
    "b",
    receipt([], 504, [{ kind: "process", name: "pid 4242 (sudo), cannot be signalled" }]),
  );
  updateProcesses(progress, [
    { id: "p1", state: "ended", startedByRun: "old", leftovers: ["pid 9 (mount), stuck"] },
  ]);
  assert.deepEqual(summary(progress), {
    runs: 2,
    slowestMs: 504,
    processes: 4,
    leftovers: [
      { runId: "b", name: "pid 4242 (sudo), cannot be signalled" },
      { runId: "old", name: "pid 9 (mount), stuck" },
    ],
    deleted: 0,
  });
});

test("a deleted run is over and is reported", () => {
  const progress = startProgress({ runIds: ["a"] });
  recordRunDeleted(progress, "a");
  recordRunDeleted(progress, "of another stop");
  assert.equal(progressCounts(progress).over, true);
  assert.deepEqual([summary(progress).runs, summary(progress).deleted], [0, 1]);
});
