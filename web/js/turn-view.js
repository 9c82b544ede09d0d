// One turn of a conversation: the user's message, the answer with its calls, and how the run ended.
//
//   new TurnView(runId, actions) -> {userElement, answerElement, showUserMessage(text, at, name), update(run),
//     showReceipt(receipt), showSubRuns(rows, run)}
//     userElement, answerElement    two <article> elements; `run` is a run of run.js
//     actions                       {inspect(runId), insertText(text)}

import { CallView } from "./call-view.js";
import { h, icon, reconcileChildren, setText } from "./dom.js";
import { markdownView } from "./markdown.js";
import { receiptLine } from "./receipt.js";
import { reasonAgainst, restrict } from "./rights.js";
import { outcome } from "./run.js";
import { millis, oneLine, t, timeElement, tPlural } from "./texts.js";

const STATES = {
  queued: { icon: "clock", text: "turn.state.queued" },
  waiting: { icon: "hourglass", text: "turn.state.waiting" },
  running: { icon: "gear", text: "turn.state.running" },
  stopping: { icon: "stop", text: "turn.state.stopping" },
  ending: { icon: "gear", text: "turn.state.ending" },
  completed: null,
  failed: { icon: "failed", text: "turn.state.failed" },
  stopped: { icon: "stop", text: "turn.state.stopped" },
  unknown: { icon: "failed", text: "turn.state.unknown" },
};

export class TurnView {
  constructor(runId, actions) {
    this.actions = actions;
    this.userText = h("div", { class: "asked-text", dir: "auto" });
    this.userHead = h("header", { class: "turn-head" });
    this.userElement = h(
      "article",
      { class: "turn", data: { run: runId, role: "user" } },
      this.userHead,
      this.userText,
    );
    this.head = createAnswerHead(runId, actions);
    this.body = h("div", { class: "turn-body" });
    this.subRuns = h("div", { class: "sub-runs" });
    this.foot = h("footer", { class: "turn-foot" });
    this.answerElement = h(
      "article",
      { class: "turn", data: { run: runId, role: "assistant" } },
      this.head.element,
      this.body,
      this.subRuns,
      this.foot,
    );
    this.steps = new Map();
    this.shownEnd = null;
  }

  showUserMessage(text, at, name) {
    setText(this.userText, text);
    this.userHead.replaceChildren(h("span", { class: "who" }, name), timeElement(at));
  }

  update(run) {
    const state = outcome(run);
    this.answerElement.dataset.state = state;
    this.answerElement.setAttribute("aria-busy", String(run.state !== "ended"));
    this.answerElement.classList.toggle("stopped", state === "stopped");
    this.answerElement.classList.toggle("failed", state === "failed");
    this.head.update(run, state);
    this.showSteps(run);
    if (run.state === "ended") {
      this.showEnd(run, state);
    }
  }

  showSteps(run) {
    const numbers = new Set(run.steps.map((step) => step.number));
    for (const [number, view] of this.steps) {
      if (!numbers.has(number)) {
        view.element.remove();
        this.steps.delete(number);
      }
    }
    for (const step of run.steps) {
      let view = this.steps.get(step.number);
      if (!view) {
        view = createStepView();
        this.steps.set(step.number, view);
        this.body.append(view.element);
      }
      view.update(step, run);
    }
  }

  showEnd(run, state) {
    const shown = `${state} ${run.incomplete} ${run.modelNote} ${run.compacted} ${run.fallbacks.length} ${run.searches.length} ${Boolean(run.receipt)}`;
    if (this.shownEnd === shown) {
      return;
    }
    this.shownEnd = shown;
    const parts = [
      run.compacted > 0 && h("p", { class: "turn-note" }, tPlural("turn.compacted", run.compacted)),
      ...run.searches.map((query) => h("p", { class: "turn-note" }, t("turn.search", { query }))),
      ...run.fallbacks.map((change) => h("p", { class: "turn-note" }, t("turn.fallback", change))),
      run.incomplete && h("p", { class: "turn-note" }, t("turn.missed")),
      state === "failed" &&
        createFailure(run.verdict, () => this.actions.insertText(this.userText.textContent)),
      state === "stopped" && run.receipt && createReceiptLine(run.receipt),
      run.modelNote &&
        h("details", { class: "turn-note" }, h("summary", null, t("turn.told")), run.modelNote),
    ];
    this.foot.replaceChildren(...parts.filter(Boolean));
  }

  showReceipt(receipt) {
    if (!this.foot.querySelector(".receipt-line")) {
      this.foot.prepend(createReceiptLine(receipt));
    }
  }

  /** Active sub-runs of other agents, as links to their details. */
  showSubRuns(rows, run) {
    reconcileChildren(
      this.subRuns,
      rows,
      (row) => row.runId,
      createSubRunLink,
      (element, row) => {
        if (run.state === "ended") {
          setText(element.querySelector(".sub-run-state"), t("turn.sub-run.goes-on"));
          return;
        }
        const state =
          row.verdict?.kind === "aborted" ? "stopping" : row.phase === "waiting_llm" ? "waiting" : row.state;
        setText(element.querySelector(".sub-run-state"), t(STATES[state]?.text ?? "turn.state.running"));
      },
    );
  }
}

function createSubRunLink(row) {
  return h(
    "a",
    { class: "sub-run", href: `#/r/${encodeURIComponent(row.runId)}`, data: { subRun: row.runId } },
    icon("agents"),
    h("span", { class: "sub-run-agent" }, row.agent),
    h("span", { class: "sub-run-text", dir: "auto" }, oneLine(row.text, 160)),
    h("span", { class: "sub-run-state" }),
  );
}

function createReceiptLine(receipt) {
  const left = receipt.leftovers.length > 0;
  return h(
    "p",
    { class: left ? "receipt-line leftovers" : "receipt-line" },
    icon(left ? "failed" : "stop"),
    h("span", null, receiptLine(receipt)),
  );
}

function createFailure(verdict, insertText) {
  return h(
    "div",
    { class: "failure", role: "note" },
    icon("failed"),
    h(
      "div",
      null,
      h("p", { dir: "auto" }, verdict.message || verdict.code),
      h("p", { class: "hint" }, h("code", null, verdict.code), " ", t("turn.failed-next")),
      restrict(h("button", { type: "button", on: { click: insertText } }, t("turn.again")), reasonAgainst("write")),
    ),
  );
}

function createAnswerHead(runId, actions) {
  const who = h("span", { class: "who" });
  const state = h("span", { class: "state" });
  const time = h("span", { class: "when" });
  const details = h(
    "button",
    {
      class: "details quiet-button",
      type: "button",
      "aria-label": t("turn.details"),
      title: t("turn.details"),
      on: { click: () => actions.inspect(runId) },
    },
    icon("panel"),
  );
  let shown = null;

  function update(run, runOutcome) {
    setText(who, run.agent || t("turn.agent"));
    const at = run.endedAt || run.startedAt;
    if (at && time.firstChild?.getAttribute("datetime") !== at) {
      time.replaceChildren(timeElement(at));
    }
    const shownState = runOutcome === "running" && isWaitingForOutput(run) ? "waiting" : runOutcome;
    const retry = shownState === "waiting" ? retryText(run.retry) : "";
    if (shown !== shownState + retry) {
      shown = shownState + retry;
      const row = STATES[shownState];
      state.dataset.state = shownState;
      state.replaceChildren(...(row ? [icon(row.icon), retry || t(row.text)] : []));
    }
  }

  return { element: h("header", { class: "turn-head" }, who, time, state, details), update };
}

function retryText(retry) {
  if (!retry) {
    return "";
  }
  const { attempt, attempts, delayMs, reason } = retry;
  return t("retry.next", { attempt, attempts, time: millis(delayMs), why: oneLine(reason, 200) });
}

/** True when the current step has no output yet, or all its calls have ended. */
function isWaitingForOutput(run) {
  const step = run.steps[run.steps.length - 1];
  const calls = step?.calls ?? [];
  return (
    !step ||
    (calls.length === 0 ? step.text === "" && step.thinking === "" : calls.every((call) => call.end !== null))
  );
}

function createStepView() {
  const element = h("div", { class: "step" });
  const calls = new Map();
  let showThinking = null;
  let showText = null;
  let steeredCount = 0;

  function update(step, run) {
    if (step.thinking !== "") {
      showThinking ??= createThinkingView(element);
      showThinking(step.thinking);
    }
    if (step.text !== "") {
      showText ??= createTextView(element);
      showText(step.text, step.partial);
    }
    for (const call of step.calls) {
      let view = calls.get(call.id);
      if (!view) {
        view = new CallView(call);
        calls.set(call.id, view);
        element.append(view.element);
      }
      view.update(call, run);
    }
    for (; steeredCount < step.steered.length; steeredCount += 1) {
      element.append(
        h(
          "p",
          { class: "steered", dir: "auto" },
          h("span", { class: "who" }, `${t("turn.you")}: `),
          step.steered[steeredCount],
        ),
      );
    }
  }

  return { element, update };
}

function createThinkingView(parent) {
  const text = h("div", { class: "thinking-text", dir: "auto" });
  const details = h("details", { class: "thinking" }, h("summary", null, t("turn.thinking")), text);
  let length = 0;
  parent.prepend(details);
  return (thinking) => {
    if (thinking.length > length && length > 0) {
      text.append(thinking.slice(length));
    } else if (thinking.length !== length) {
      setText(text, thinking);
    }
    length = thinking.length;
  };
}

function createTextView(parent) {
  const markdown = h("div", { class: "markdown" });
  const note = h("p", { class: "partial-note", hidden: true });
  const frame = h("div", { class: "step-text" }, markdown, note);
  const view = markdownView(markdown);
  const first = parent.querySelector(".call");
  let shown = null;
  parent.insertBefore(frame, first);
  return (text, partial) => {
    if (shown !== text) {
      shown = text;
      view.write(text);
    }
    frame.classList.toggle("partial", partial !== null);
    frame.classList.toggle("not-seen", partial === "not-seen");
    note.hidden = partial === null;
    if (partial !== null) {
      setText(note, t(`turn.partial.${partial}`));
    }
  };
}
