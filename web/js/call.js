// One tool call as one quiet line that unfolds to its arguments and its live output. It knows a call of run.js.
//
//   callView(call) -> {element, update(call, run)}

import { h, icon, setText } from "./dom.js";
import { argumentLine, callInFull, inFull, millis, size, t } from "./texts.js";

const ENDS = {
  ok: { icon: "done", text: "call.end.ok" },
  error: { icon: "failed", text: "call.end.error" },
  stopped: { icon: "stop", text: "call.end.stopped" },
  not_started: { icon: "stop", text: "call.end.not_started" },
  denied: { icon: "approval", text: "call.end.denied" },
};
/** What a command says of its own end stands in brackets in the last line of its result. */
const EXIT = /\n?\[exit code (-?\d+)[^\n]*\]\s*$/;

export function callView(call) {
  const mark = h("span", { class: "call-mark" });
  const tool = h("span", { class: "call-tool" });
  const line = h("span", { class: "call-line", dir: "ltr" });
  const time = h("span", { class: "call-time" });
  const end = h("span", { class: "call-end" });
  const summary = h("summary", null, mark, tool, line, time, end);
  const given = h("pre", { class: "call-arguments", tabindex: "0" });
  const cut = h("p", { class: "hint", hidden: true });
  const output = h("pre", { class: "call-output", tabindex: "0", "aria-label": t("call.output") });
  const element = h("details", { class: "call", data: { call: call.id } }, summary, given, cut, output);
  let latest = call;
  let printed = "";
  let shownArguments = null;
  let shownEnd;

  element.addEventListener("toggle", () => element.open && showInside());

  function update(next, run) {
    latest = next;
    setText(tool, inFull(next.tool || ""));
    if (next.arguments !== null && shownArguments !== next.arguments) {
      shownArguments = next.arguments;
      setText(line, argumentLine(next.arguments));
    }
    showEnd(next, run);
    if (element.open) {
      showInside();
    }
  }

  function showEnd(next, run) {
    const word = endOf(next, run);
    const key = `${word.text}${next.ms}`;
    if (shownEnd === key) {
      return;
    }
    shownEnd = key;
    element.dataset.end = word.end;
    mark.replaceChildren(icon(word.icon));
    setText(time, next.ms === null ? "" : millis(next.ms));
    setText(end, word.text);
  }

  function showInside() {
    if (latest.arguments !== null) {
      setText(given, callInFull(latest.arguments).join("\n"));
    }
    const text = latest.result ?? latest.output;
    cut.hidden = latest.result !== null || latest.dropped === 0;
    if (!cut.hidden) {
      setText(cut, t("call.cut", { size: size(latest.dropped) }));
    }
    print(text);
  }

  function print(text) {
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
    if (text.startsWith(printed) && printed !== "") {
      output.append(visible(text.slice(printed.length)));
    } else if (text !== printed) {
      output.textContent = visible(text);
    }
    if (text === "" && latest.end !== null) {
      output.textContent = t("call.no-output");
    }
    printed = text;
    if (atEnd) {
      output.scrollTop = output.scrollHeight;
    }
  }

  return { element, update };
}

/** Output of programs is hostile, too: what would turn a line around or hide in it is spelt out, tabs are not. */
function visible(text) {
  return inFull(text.replaceAll("\r\n", "\n")).replaceAll("\\t", "\t");
}

function endOf(call, run) {
  const exit = call.result === null ? null : EXIT.exec(call.result);
  if (call.end !== null || call.gone) {
    const code = exit && Number(exit[1]);
    // The history does not say how a call ended; a command says it itself.
    const kind = call.end || (code === 0 ? "ok" : code === null ? "gone" : "error");
    const row = ENDS[kind] || { icon: "done", text: "" };
    const failed = kind === "ok" && code !== null && code !== 0;
    const said = code !== null && (kind === "ok" || kind === "error");
    return {
      end: failed ? "error" : kind,
      icon: failed ? "failed" : row.icon,
      text: said ? t("call.exit", { code }) : row.text && t(row.text),
    };
  }
  if (call.approval) {
    return { end: "approval", icon: "approval", text: t("call.approval") };
  }
  if (run.state === "ended") {
    return { end: "gone", icon: "stop", text: "" };
  }
  return { end: "running", icon: "gear", text: t("call.running") };
}
