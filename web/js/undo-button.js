// The button that takes the file changes of a run back, in two presses, and what came of it.
//
//   changesFiles(view)      whether a run that has ended may have changed files
//   createUndo(runId)       -> an element with the button and the answer

import * as api from "./api.js";
import { h, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import { reasonAgainst, restrict } from "./rights.js";
import { oneLine, t, tPlural } from "./texts.js";

/** The second press has to come within this time. */
const CONFIRM_MS = 6000;
const FILE_TOOLS = ["write_file ", "edit_file ", "apply_patch "];

export function changesFiles(view) {
  const resources = view.state === "ended" ? (view.receipt?.resources ?? []) : [];
  const isWrite = (row) => FILE_TOOLS.some((tool) => row.label?.startsWith(tool));
  return resources.some((row) => row.kind === "run" || isWrite(row));
}

export function createUndo(runId) {
  let timer = null;
  const answer = h("p", { class: "undo-answer", role: "status" });
  const details = h("ul", { class: "undo-details" });
  const button = h("button", { type: "button", class: "undo-button" }, t("inspector.undo"));
  const disarm = () => {
    clearTimeout(timer);
    timer = null;
    setText(button, t("inspector.undo"));
  };
  button.addEventListener("click", async () => {
    if (timer === null) {
      timer = setTimeout(disarm, CONFIRM_MS);
      setText(button, t("inspector.undo.confirm"));
      return;
    }
    disarm();
    button.disabled = true;
    const { text, lines } = await undo(runId);
    button.disabled = false;
    setText(answer, text);
    details.replaceChildren(...lines.map((line) => h("li", {}, oneLine(line, 300))));
  });
  return h("div", { class: "undo" }, restrict(button, reasonAgainst("write")), answer, details);
}

async function undo(runId) {
  try {
    const report = await api.post(`${api.runPath(runId)}/undo`, {});
    const count = report.files.length;
    return {
      text: count === 0 ? t("inspector.undo.nothing") : tPlural("inspector.undo.done", count),
      lines: [
        ...report.files.map((file) => file.path),
        ...report.notCovered.map((what) => t("inspector.undo.not-covered", { what })),
      ],
    };
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    return { text: t("inspector.undo.failed", { reason: errorText(problem) }), lines: [] };
  }
}
