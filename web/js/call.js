// One tool call as one quiet line that unfolds to its arguments and its live output. It knows a call of
// run.js.
//
//   new CallView(call) -> {element, update(call, run)}

import { endOf } from "./call-end.js";
import { h, icon, setText } from "./dom.js";
import { argumentLine, callInFull, inFull, millis, size, t } from "./texts.js";

export class CallView {
  constructor(call) {
    this.mark = h("span", { class: "call-mark" });
    this.tool = h("span", { class: "call-tool" });
    this.line = h("span", { class: "call-line", dir: "ltr" });
    this.time = h("span", { class: "call-time" });
    this.end = h("span", { class: "call-end" });
    this.given = h("pre", {
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
    this.element = h(
      "details",
      { class: "call", data: { call: call.id }, on: { toggle: () => this.showInside() } },
      h("summary", null, this.mark, this.tool, this.line, this.time, this.end),
      this.given,
      this.cut,
      this.output,
    );
    this.call = call;
    this.printed = "";
    this.shownArguments = null;
    this.shownEnd = null;
  }

  update(call, run) {
    this.call = call;
    setText(this.tool, inFull(call.tool || ""));
    if (call.arguments !== null && this.shownArguments !== call.arguments) {
      this.shownArguments = call.arguments;
      setText(this.line, argumentLine(call.arguments));
    }
    this.showEnd(call, run);
    this.showInside();
  }

  showEnd(call, run) {
    const word = endOf(call, run);
    const key = `${word.end} ${word.text} ${call.ms}`;
    if (this.shownEnd === key) {
      return;
    }
    this.shownEnd = key;
    this.element.dataset.end = word.end;
    this.mark.replaceChildren(icon(word.icon));
    setText(this.time, call.ms === null ? "" : millis(call.ms));
    setText(this.end, word.text);
  }

  /** What a folded call printed is not drawn. */
  showInside() {
    if (!this.element.open) {
      return;
    }
    const { call } = this;
    if (call.arguments !== null) {
      setText(this.given, callInFull(call.arguments).join("\n"));
    }
    this.cut.hidden = call.result !== null || call.dropped === 0;
    if (!this.cut.hidden) {
      setText(this.cut, t("call.cut", { size: size(call.dropped) }));
    }
    this.print(call.result ?? call.output);
  }

  print(text) {
    const { output, printed } = this;
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
    if (text === "" && this.call.end !== null) {
      setText(output, t("call.no-output"));
    } else if (text.startsWith(printed) && printed !== "") {
      output.append(visible(text.slice(printed.length)));
    } else if (text !== printed) {
      output.textContent = visible(text);
    }
    this.printed = text;
    if (atEnd) {
      output.scrollTop = output.scrollHeight;
    }
  }
}

/**
 * Output of programs is hostile, too: what would turn a line around or hide in it is spelt out, tabs are not.
 */
function visible(text) {
  return inFull(text.replaceAll("\r\n", "\n")).replaceAll("\\t", "\t");
}
