// What a run does in one word with its sign: the same in lists and in the inspector. It knows RunView and no
// place.

import { h, icon, setText } from "./dom.js";
import { t } from "./texts.js";

const SIGNS = {
  queued: "clock",
  waiting_llm: "hourglass",
  processing: "gear",
  stopping: "stop",
  ending: "gear",
  completed: "done",
  failed: "failed",
  aborted: "stop",
};

/** One word for the state, phase and verdict of a run. */
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

export function phaseMark() {
  return h("span", { class: "phase" });
}

/** Brings a mark up to date; nothing is touched while the phase is the same. */
export function updatePhase(mark, run) {
  const phase = phaseOf(run);
  if (mark.dataset.phase === phase) {
    return;
  }
  mark.dataset.phase = phase;
  mark.replaceChildren(icon(SIGNS[phase] ?? "gear"), h("span"));
  setText(mark.lastElementChild, t(`run.phase.${phase}`));
}
