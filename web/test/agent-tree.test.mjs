// Tests of agent-tree.js: the order of the tree.

import assert from "node:assert/strict";
import { test } from "node:test";

import { agentTreeRows, modelChain } from "../js/agent-tree.js";

const shown = (agents, closed) =>
  agentTreeRows(agents, closed).map((row) => `${"-".repeat(row.depth)}${row.agent.id}`);

test("children stand below their parents, in the order of the list", () => {
  const agents = [
    { id: "b", parent: "a" },
    { id: "a" },
    { id: "d", parent: "b" },
    { id: "c", parent: "a" },
    { id: "z" },
  ];
  assert.deepEqual(shown(agents), ["a", "-b", "--d", "-c", "z"]);
  const [a, b] = agentTreeRows(agents);
  assert.deepEqual([a.position, a.siblingCount, a.childCount], [1, 2, 2]);
  assert.deepEqual([b.position, b.siblingCount, b.childCount], [1, 2, 1]);
});

test("all models of an agent are named in their order", () => {
  assert.equal(modelChain({ model: "a/x", models: ["a/x", "b/y"] }), "a/x → b/y");
  assert.equal(modelChain({ model: "a/x", models: ["a/x"] }), "a/x");
  assert.equal(modelChain({ model: "a/x" }), "a/x");
});

test("a collapsed agent hides only its descendants", () => {
  const agents = [{ id: "a" }, { id: "b", parent: "a" }, { id: "c", parent: "b" }, { id: "d" }];
  assert.deepEqual(shown(agents, new Set(["a"])), ["a", "d"]);
  assert.deepEqual(shown(agents, new Set(["b"])), ["a", "-b", "d"]);
});

test("unknown parents, cycles and own parents lose no agent", () => {
  assert.deepEqual(shown([{ id: "a", parent: "gone" }]), ["a"]);
  const circle = [
    { id: "a", parent: "b" },
    { id: "b", parent: "a" },
    { id: "c", parent: "c" },
  ];
  assert.deepEqual(
    agentTreeRows(circle)
      .map((row) => row.agent.id)
      .sort(),
    ["a", "b", "c"],
  );
});
