// Tests of derived-state.js: counts, the order of runs, who may share a session.

import assert from "node:assert/strict";
import { test } from "node:test";

import { aliveProcesses, coveredByStopAll, runRows, sharingState } from "../js/derived-state.js";

const run = (runId, more = {}) => ({
  runId,
  sessionKey: `s-${runId}`,
  state: "running",
  processes: 0,
  acceptedAt: "2026-03-01T12:00:00Z",
  ...more,
});

test("a background process is counted once", () => {
  const server = { id: "p1", state: "running", startedByRun: "a" };
  assert.equal(aliveProcesses([run("a", { processes: 3 })], [server]), 3);
  assert.equal(aliveProcesses([run("b", { processes: 3 })], [server]), 4);
  assert.equal(aliveProcesses([], [server, { ...server, id: "p2", state: "ended" }]), 1);
});

test("counts what a stop of everything covers", () => {
  const runs = [run("a", { processes: 2 }), run("b", { state: "queued", sessionKey: "s-a" }), run("c")];
  const processes = [{ id: "p1", state: "running", startedByRun: "gone" }];
  assert.deepEqual(coveredByStopAll(runs, processes, [{}]), {
    runs: 3,
    queued: 1,
    sessions: 2,
    processes: 3,
    approvals: 1,
  });
});

test("runs are in order of acceptance, sub-runs below parents", () => {
  const at = (second) => ({ acceptedAt: `2026-03-01T12:00:0${second}Z` });
  const runs = [
    run("later", at(5)),
    run("child-2", { parent: "first", ...at(4) }),
    run("grandchild", { parent: "child-1", ...at(6) }),
    run("first", at(1)),
    run("child-1", { parent: "first", ...at(3) }),
    run("orphan", { parent: "gone", ...at(2) }),
  ];
  const shown = runRows(runs).map(({ run: { runId }, depth }) => `${"-".repeat(depth)}${runId}`);
  assert.deepEqual(shown, ["first", "-child-1", "--grandchild", "-child-2", "orphan", "later"]);
});

test("10,000 runs are sorted within a second", () => {
  const runs = Array.from({ length: 10000 }, (_, i) =>
    run(`r${i}`, { parent: i % 3 ? `r${i - 1}` : undefined }),
  );
  const before = performance.now();
  assert.equal(runRows(runs).length, 10000);
  assert.ok(performance.now() - before < 1000);
});

test("a session is shared by its owner, or by a token with rights over all", () => {
  const row = { key: "s", owner: "ann", shared: false };
  const can = (principal, scopes) => sharingState(row, { principal, scopes }).canChange;
  assert.equal(can("ann", ["write"]), true);
  assert.equal(can("ann", ["read"]), false);
  assert.equal(can("bob", ["write", "read:all"]), false);
  assert.equal(can("bob", ["write:all"]), true);
  assert.equal(can("root", ["admin"]), true);
  assert.equal(sharingState(row, { principal: "ann", scopes: ["read"] }).state, "private");
  assert.equal(sharingState({ ...row, shared: true }, { principal: "bob", scopes: ["read"] }).state, "shared");
  assert.equal(sharingState(null, { principal: "ann", scopes: ["write"] }), null);
  assert.equal(sharingState(row, null), null);
  assert.equal(sharingState({ key: "new" }, { principal: "ann", scopes: ["write"] }), null);
});
