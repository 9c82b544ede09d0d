// Unified diffs as coloured lines, and how many lines they add and remove.
//
//   diffLines(diff) -> [{kind: "file" | "hunk" | "added" | "removed" | "context", text}]
//   countChanges(diff) -> {added, removed}
//   createDiff(diff) -> an element; each line is text

import { h } from "./dom.js";
import { escapeInvisible, t } from "./texts.js";

/** Lines that are shown at most. */
const MAX_LINES = 2000;

export function diffLines(diff) {
  const lines = diff.split("\n");
  if (lines.at(-1) === "") {
    lines.pop();
  }
  // Within a hunk a removed line may begin with "-- ", so its head says how many lines belong to it.
  let left = { before: 0, after: 0 };
  return lines.map((text) => {
    const head = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(text);
    if (head) {
      left = { before: Number(head[1] ?? 1), after: Number(head[2] ?? 1) };
      return { kind: "hunk", text };
    }
    if (left.before <= 0 && left.after <= 0) {
      return { kind: /^(---|\+\+\+) /.test(text) ? "file" : "context", text };
    }
    if (text.startsWith("+")) {
      left.after -= 1;
      return { kind: "added", text };
    }
    if (text.startsWith("-")) {
      left.before -= 1;
      return { kind: "removed", text };
    }
    if (!text.startsWith("\\")) {
      left.before -= 1;
      left.after -= 1;
    }
    return { kind: "context", text };
  });
}

export function countChanges(diff) {
  const lines = diffLines(diff);
  const count = (kind) => lines.filter((line) => line.kind === kind).length;
  return { added: count("added"), removed: count("removed") };
}

export function createDiff(diff) {
  const lines = diffLines(diff);
  const shown = lines.slice(0, MAX_LINES);
  return h(
    "pre",
    { class: "diff", tabindex: "0", role: "group", "aria-label": t("call.diff") },
    shown.map(({ kind, text }) => h("span", { class: `diff-line diff-${kind}` }, `${escapeLine(text)}\n`)),
    lines.length > shown.length && h("span", { class: "diff-line diff-hunk" }, "…\n"),
  );
}

/** Escapes invisible and bidirectional characters; keeps tabs. */
function escapeLine(text) {
  return escapeInvisible(text).replaceAll("\\t", "\t");
}
