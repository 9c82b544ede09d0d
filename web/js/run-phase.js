// The phase of a run as an icon and one word, for lists and for the inspector. Exports phaseOf, createPhaseMark and
// updatePhaseMark.

import { h, icon, setText } from "./dom.js";
import { t } from "./texts.js";

const PHASE_ICONS = {
  queued: "clock",
  waiting_llm: "hourglass",
  processing: "gear",
  stopping: "stop",
  ending: "gear",
  completed: "done",
  failed: "failed",
  aborted: "stop",
};

/** Combines the state, phase and verdict of a run (RunView). */
export function phaseOf(run) {
  if (run.state === "running") {
    return run.phase ?? "processing";
  }
  if (run.state === "ending") {
    return run.verdict?.kind === "aborted" ? "stopping" : "ending";
  }
  if (run.state === "ended") {
    return run.verdict?.kind ?? run.receipt?.verdict.kind ?? "completed";
  }
  return run.state;
}

export function createPhaseMark() {
  return h("span", { class: "phase" });
}

export function updatePhaseMark(mark, run) {
  const phase = phaseOf(run);
  if (mark.dataset.phase === phase) {
    return;
  }
  mark.dataset.phase = phase;
  mark.replaceChildren(icon(PHASE_ICONS[phase] ?? "gear"), h("span"));
  setText(mark.lastElementChild, t(`run.phase.${phase}`));
}
