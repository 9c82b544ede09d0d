// When a stop of everything is over, and what is told then: stop-progress.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { begun, processesSeen, runEnded, runGone, standing, summary } from "../js/stop-progress.js";
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

test("it is over when every run has its receipt and every process is dead", () => {
  const progress = begun({
    runIds: ["a", "b"],
    ending: ["c"],
    processes: [{ id: "p1", state: "running", startedByRun: "old" }],
  });
  assert.deepEqual(standing(progress).runs, { left: 3, all: 3 });
  for (const id of ["a", "b", "c"]) {
    assert.equal(standing(progress).over, false);
    runEnded(progress, id, receipt([], 5));
  }
  assert.deepEqual(standing(progress).waiting, []);
  assert.equal(standing(progress).over, false, "the process is still alive");
  processesSeen(progress, [
    { id: "p1", state: "ended", startedByRun: "old" },
    { id: "other", state: "running" },
  ]);
  assert.deepEqual(standing(progress).processes, { left: 0, all: 1 });
  assert.equal(standing(progress).over, true);
});

test("a run that is not covered, and an end without a receipt, change nothing", () => {
  const progress = begun({ runIds: ["a"] });
  runEnded(progress, "z", receipt([], 5));
  runEnded(progress, "a", undefined);
  assert.deepEqual(standing(progress).waiting, ["a"]);
});

test("nothing to stop is over at once", () => {
  const progress = begun({ runIds: [], withdrawn: [] });
  assert.equal(standing(progress).over, true);
  assert.deepEqual(summary(progress), { runs: 0, slowestMs: 0, processes: 0, leftovers: [], gone: 0 });
});

test("the summary has the slowest run, all processes that were ended, and every leftover by name", () => {
  const progress = begun({
    runIds: ["a", "b"],
    processes: [{ id: "p1", state: "running", startedByRun: "old" }],
  });
  const tree = held("process", 1, -50, 8, "term", { swept: 2 });
  const before = held("process", 2, -50, -20, "exited", { swept: 0 });
  const kept = held("process", 3, -50, 3, "kept");
  runEnded(progress, "a", receipt([tree, before, kept], 12));
  runEnded(
    progress,
    "b",
    receipt([], 504, [{ kind: "process", name: "pid 4242 (sudo), cannot be signalled" }]),
  );
  processesSeen(progress, [
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
    gone: 0,
  });
});

test("a run that was deleted meanwhile is over, and is not passed over in silence", () => {
  const progress = begun({ runIds: ["a"] });
  runGone(progress, "a");
  runGone(progress, "of another stop");
  assert.equal(standing(progress).over, true);
  assert.deepEqual([summary(progress).runs, summary(progress).gone], [0, 1]);
});
