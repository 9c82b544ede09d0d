// Lines of unified diffs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { countChanges, diffLines } from "../js/diff-view.js";
import { planItems } from "../js/plan-view.js";

const DIFF = `--- a/x
+++ b/x
@@ -1,3 +1,3 @@
 a
--- b
+++ c
 d
--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+x
\\ No newline at end of file
`;

test("lines of a hunk are never taken for names of files", () => {
  assert.deepEqual(
    diffLines(DIFF).map((line) => line.kind),
    ["file", "file", "hunk", "context", "removed", "added", "context", "file", "file", "hunk", "added", "context"],
  );
  assert.deepEqual(countChanges(DIFF), { added: 2, removed: 1 });
  assert.deepEqual(diffLines("[cut here]\n"), [{ kind: "context", text: "[cut here]" }]);
});

test("only a valid plan is shown as one", () => {
  const items = [{ text: "a", status: "pending" }];
  const call = { tool: "todo", end: null, arguments: { items } };
  assert.deepEqual(planItems(call), items);
  for (const odd of [
    { ...call, tool: "shell" },
    { ...call, end: "error" },
    { ...call, arguments: null },
    { ...call, arguments: { items: [] } },
    { ...call, arguments: { items: [{ text: 1, status: "pending" }] } },
    { ...call, arguments: { items: [{ text: "a", status: "toString" }] } },
  ]) {
    assert.equal(planItems(odd), null);
  }
});
