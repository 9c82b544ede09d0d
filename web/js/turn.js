// One turn of a conversation: who said what, the calls, and how it ended. It shows a run of run.js and
// changes only what changed; it knows neither where runs come from nor what stands around the turn.
//
//   new TurnView(runId, actions) -> {asked, answer, showAsked(text, at, who), update(run),
//     showReceipt(receipt), showSubRuns(rows, run)}
//     asked, answer    the two <article>s
//     actions          {inspect(runId), again(text)}: what the turn's buttons do

import { CallView } from "./call.js";
import { h, icon, keyed, setText } from "./dom.js";
import { markdownView } from "./markdown.js";
import { receiptLine } from "./receipt.js";
import { outcome } from "./run.js";
import { counted, millis, oneLine, t, timeElement } from "./texts.js";

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
    this.askedText = h("div", { class: "asked-text", dir: "auto" });
    this.askedHead = h("header", { class: "turn-head" });
    this.asked = h(
      "article",
      { class: "turn", data: { run: runId, role: "user" } },
      this.askedHead,
      this.askedText,
    );
    this.head = answerHead(runId, actions);
    this.body = h("div", { class: "turn-body" });
    this.subRuns = h("div", { class: "sub-runs" });
    this.foot = h("footer", { class: "turn-foot" });
    this.answer = h(
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

  showAsked(text, at, who) {
    setText(this.askedText, text);
    this.askedHead.replaceChildren(h("span", { class: "who" }, who), timeElement(at));
  }

  update(run) {
    const state = outcome(run);
    this.answer.dataset.state = state;
    this.answer.setAttribute("aria-busy", String(run.state !== "ended"));
    this.answer.classList.toggle("stopped", state === "stopped");
    this.answer.classList.toggle("failed", state === "failed");
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
        view = stepView();
        this.steps.set(step.number, view);
        this.body.append(view.element);
      }
      view.update(step, run);
    }
  }

  showEnd(run, state) {
    const shown = `${state} ${run.missed} ${run.told} ${run.compacted} ${Boolean(run.receipt)}`;
    if (this.shownEnd === shown) {
      return;
    }
    this.shownEnd = shown;
    const parts = [
      run.compacted > 0 && h("p", { class: "told" }, counted("turn.compacted", run.compacted)),
      run.missed && h("p", { class: "told" }, t("turn.missed")),
      state === "failed" && failure(run.verdict, () => this.actions.again(this.askedText.textContent)),
      state === "stopped" && run.receipt && receiptElement(run.receipt),
      run.told && h("details", { class: "told" }, h("summary", null, t("turn.told")), run.told),
    ];
    this.foot.replaceChildren(...parts.filter(Boolean));
  }

  showReceipt(receipt) {
    if (!this.foot.querySelector(".receipt-line")) {
      this.foot.prepend(receiptElement(receipt));
    }
  }

  /** Runs that this one started in other agents and that are not over; each leads to its own details. */
  showSubRuns(rows, run) {
    keyed(
      this.subRuns,
      rows,
      (row) => row.runId,
      subRunLine,
      (element, row) => {
        if (run.state === "ended") {
          // It is the session's now, and no part of what is over.
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

function subRunLine(row) {
  return h(
    "a",
    { class: "sub-run", href: `#/r/${encodeURIComponent(row.runId)}`, data: { subRun: row.runId } },
    icon("agents"),
    h("span", { class: "sub-run-agent" }, row.agent),
    h("span", { class: "sub-run-text", dir: "auto" }, oneLine(row.text, 160)),
    h("span", { class: "sub-run-state" }),
  );
}

function receiptElement(receipt) {
  const left = receipt.leftovers.length > 0;
  return h(
    "p",
    { class: left ? "receipt-line leftovers" : "receipt-line" },
    icon(left ? "failed" : "stop"),
    h("span", null, receiptLine(receipt)),
  );
}

function failure(verdict, again) {
  return h(
    "div",
    { class: "failure", role: "note" },
    icon("failed"),
    h(
      "div",
      null,
      h("p", { dir: "auto" }, verdict.message || verdict.code),
      h("p", { class: "hint" }, h("code", null, verdict.code), " ", t("turn.failed-next")),
      h("button", { type: "button", on: { click: again } }, t("turn.again")),
    ),
  );
}

function answerHead(runId, actions) {
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

  function update(run, word) {
    setText(who, run.agent || t("turn.agent"));
    const at = run.endedAt || run.startedAt;
    if (at && time.firstChild?.getAttribute("datetime") !== at) {
      time.replaceChildren(timeElement(at));
    }
    const now = word === "running" && silent(run) ? "waiting" : word;
    const retry = now === "waiting" ? retryLine(run.retry) : "";
    if (shown !== now + retry) {
      shown = now + retry;
      const row = STATES[now];
      state.dataset.state = now;
      state.replaceChildren(...(row ? [icon(row.icon), retry || t(row.text)] : []));
    }
  }

  return { element: h("header", { class: "turn-head" }, who, time, state, details), update };
}

/** How far a model call is that does not get through; empty while all is well. */
function retryLine(retry) {
  if (!retry) {
    return "";
  }
  const { attempt, attempts, delayMs, reason } = retry;
  return t("retry.next", { attempt, attempts, time: millis(delayMs), why: oneLine(reason, 200) });
}

/** Nothing of the step at work has come yet: neither a word nor a call. */
function silent(run) {
  const step = run.steps[run.steps.length - 1];
  const calls = step?.calls ?? [];
  return (
    !step ||
    (calls.length === 0 ? step.text === "" && step.thinking === "" : calls.every((call) => call.end !== null))
  );
}

function stepView() {
  const element = h("div", { class: "step" });
  const calls = new Map();
  let thinking = null;
  let said = null;
  let steered = 0;

  function update(step, run) {
    if (step.thinking !== "") {
      thinking ??= thinkingView(element);
      thinking(step.thinking);
    }
    if (step.text !== "") {
      said ??= saidView(element);
      said(step.text, step.partial);
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
    for (; steered < step.steered.length; steered += 1) {
      element.append(
        h(
          "p",
          { class: "steered", dir: "auto" },
          h("span", { class: "who" }, `${t("turn.you")}: `),
          step.steered[steered],
        ),
      );
    }
  }

  return { element, update };
}

function thinkingView(parent) {
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

function saidView(parent) {
  const markdown = h("div", { class: "markdown" });
  const note = h("p", { class: "partial-note", hidden: true });
  const frame = h("div", { class: "said" }, markdown, note);
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
