// The order of the agents' tree: agent-tree.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { treeOf } from "../js/agent-tree.js";

const shown = (agents, closed) =>
  treeOf(agents, closed).map((row) => `${"-".repeat(row.depth)}${row.agent.id}`);

test("children stand below their parents, in the order of the list", () => {
  const agents = [
    { id: "b", parent: "a" },
    { id: "a" },
    { id: "d", parent: "b" },
    { id: "c", parent: "a" },
    { id: "z" },
  ];
  assert.deepEqual(shown(agents), ["a", "-b", "--d", "-c", "z"]);
  const [a, b] = treeOf(agents);
  assert.deepEqual([a.place, a.siblings, a.children], [1, 2, 2]);
  assert.deepEqual([b.place, b.siblings, b.children], [1, 2, 1]);
});

test("a closed agent hides all that is below it and nothing else", () => {
  const agents = [{ id: "a" }, { id: "b", parent: "a" }, { id: "c", parent: "b" }, { id: "d" }];
  assert.deepEqual(shown(agents, new Set(["a"])), ["a", "d"]);
  assert.deepEqual(shown(agents, new Set(["b"])), ["a", "-b", "d"]);
});

test("none is lost: unknown parents, circles, an agent that is its own parent", () => {
  assert.deepEqual(shown([{ id: "a", parent: "gone" }]), ["a"]);
  const circle = [
    { id: "a", parent: "b" },
    { id: "b", parent: "a" },
    { id: "c", parent: "c" },
  ];
  assert.deepEqual(
    treeOf(circle)
      .map((row) => row.agent.id)
      .sort(),
    ["a", "b", "c"],
  );
});
