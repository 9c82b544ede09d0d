// The line that says why a message was not sent. It goes with its cause: when that is over, the line says that the
// message can be sent now.
//
//   new RefusalLine(line, key)    `line` is an element, `key` the session
//     -> {show(problem), clear()}
//   refusalText(problem)

import { setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import * as store from "./store.js";
import { t } from "./texts.js";

/** Causes that end by themselves: the slice that shows it, and whether a later value `now` means that it is over. */
const PASSING_CAUSES = {
  // A list of runs is an answer.
  network: { slice: "runs", isOver: () => true },
  held: { slice: "hold", isOver: (now) => !now.held },
  queue_full: { slice: "runs", isOver: (now, then, key) => countQueued(now, key) < countQueued(then, key) },
};

export class RefusalLine {
  constructor(line, key) {
    Object.assign(this, { line, key });
    this.problem = null;
    this.unsubscribe = () => {};
  }

  show(problem) {
    this.clear();
    this.problem = problem;
    this.line.classList.add("problem");
    setText(this.line, refusalText(problem));
    const cause = PASSING_CAUSES[problem.code];
    if (cause) {
      this.waitUntilOver(problem, cause);
    }
  }

  waitUntilOver(problem, { slice, isOver }) {
    const then = store.get(slice);
    this.unsubscribe = store.subscribe(slice, (now) => {
      if (this.problem === problem && now !== then && isOver(now, then, this.key)) {
        this.clear();
        setText(this.line, t("refused.over"));
      }
    });
    store.refresh(slice);
  }

  clear() {
    this.unsubscribe();
    this.problem = null;
    this.line.classList.remove("problem");
    setText(this.line, "");
  }
}

export function refusalText(problem) {
  return problem.code in PASSING_CAUSES
    ? t(`refused.${problem.code}`)
    : t("refused.other", { reason: errorText(problem) });
}

function countQueued(runs, key) {
  return runs.filter((run) => run.sessionKey === key && run.state === "queued").length;
}
