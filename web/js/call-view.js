// One tool call as one line that unfolds to its arguments and its live output.
//
//   new CallView(call) -> {element, update(call, run)}    of a call and a run of run.js

import { callStatus } from "./call-status.js";
import { countChanges, createDiff } from "./diff-view.js";
import { h, icon, setText } from "./dom.js";
import { createPlan, planItems } from "./plan-view.js";
import { argumentLine, callArgumentLines, escapeInvisible, millis, size, t } from "./texts.js";

export class CallView {
  constructor(call) {
    this.mark = h("span", { class: "call-mark" });
    this.tool = h("span", { class: "call-tool" });
    this.line = h("span", { class: "call-line", dir: "ltr" });
    this.time = h("span", { class: "call-time" });
    this.end = h("span", { class: "call-end" });
    this.changes = h("span", { class: "call-changes", hidden: true });
    this.diff = h("div", { class: "call-diff", hidden: true });
    this.arguments = h("pre", {
      class: "call-arguments",
      tabindex: "0",
      role: "group",
      "aria-label": t("call.arguments"),
    });
    this.cut = h("p", { class: "hint", hidden: true });
    this.output = h("pre", {
      class: "call-output",
      tabindex: "0",
      role: "group",
      "aria-label": t("call.output"),
    });
    this.details = h(
      "details",
      { class: "call", data: { call: call.id }, on: { toggle: () => this.showContent() } },
      h("summary", null, this.mark, this.tool, this.line, this.changes, this.time, this.end),
      this.arguments,
      this.cut,
      this.output,
      this.diff,
    );
    // A plan is shown without unfolding.
    this.plan = h("div", { class: "call-plan", hidden: true });
    this.element = h("div", { class: "call-frame" }, this.details, this.plan);
    this.call = call;
    this.printed = "";
    this.shownArguments = null;
    this.shownEnd = null;
    this.shownDiff = null;
    this.shownPlan = null;
  }

  update(call, run) {
    this.call = call;
    setText(this.tool, escapeInvisible(call.tool || ""));
    if (call.arguments !== null && this.shownArguments !== call.arguments) {
      this.shownArguments = call.arguments;
      setText(this.line, argumentLine(call.arguments));
    }
    this.showEnd(call, run);
    this.showChanges(call);
    this.showPlan(call);
    this.showContent();
  }

  showEnd(call, run) {
    const { status, icon: iconName, text } = callStatus(call, run);
    const key = `${status} ${text} ${call.ms}`;
    if (this.shownEnd === key) {
      return;
    }
    this.shownEnd = key;
    this.details.dataset.end = status;
    this.mark.replaceChildren(icon(iconName));
    setText(this.time, call.ms === null ? "" : millis(call.ms));
    setText(this.end, text);
  }

  /** Renders arguments and output, only while the call is unfolded. */
  showContent() {
    if (!this.details.open) {
      return;
    }
    const { call } = this;
    if (call.arguments !== null) {
      setText(this.arguments, callArgumentLines(call.arguments).join("\n"));
    }
    this.cut.hidden = call.result !== null || call.dropped === 0;
    if (!this.cut.hidden) {
      setText(this.cut, t("call.cut", { size: size(call.dropped) }));
    }
    this.print(call.result ?? call.output);
    if (call.diff && this.shownDiff !== call.diff) {
      this.shownDiff = call.diff;
      this.diff.replaceChildren(createDiff(call.diff));
      this.diff.hidden = false;
    }
  }

  /** How many lines of files the call has added and removed. */
  showChanges(call) {
    this.changes.hidden = !call.diff;
    if (call.diff) {
      setText(this.changes, t("call.diff.lines", countChanges(call.diff)));
    }
  }

  showPlan(call) {
    if (this.shownPlan === call.arguments) {
      return;
    }
    this.shownPlan = call.arguments;
    const items = planItems(call);
    this.plan.hidden = items === null;
    this.plan.replaceChildren(...(items ? [createPlan(items)] : []));
  }

  print(text) {
    const { output, printed } = this;
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
    if (text === "" && this.call.end !== null) {
      setText(output, t("call.no-output"));
    } else if (text.startsWith(printed) && printed !== "") {
      output.append(escapeOutput(text.slice(printed.length)));
    } else if (text !== printed) {
      output.textContent = escapeOutput(text);
    }
    this.printed = text;
    if (atEnd) {
      output.scrollTop = output.scrollHeight;
    }
  }
}

/** Escapes invisible and bidirectional characters in the output of a program; keeps tabs. */
function escapeOutput(text) {
  return escapeInvisible(text.replaceAll("\r\n", "\n")).replaceAll("\\t", "\t");
}
