// How a tool call stands, in a word and a sign. Pure but for the table of texts. It knows a call and a run of
// run.js.
//
//   endOf(call, run) -> {end, icon, text}    `end` is one of ENDS, "gone" for one of which nobody knows how it
//                    ended, "approval" or "running"

import { t } from "./texts.js";

const ENDS = {
  ok: { icon: "done", text: "call.end.ok" },
  error: { icon: "failed", text: "call.end.error" },
  stopped: { icon: "stop", text: "call.end.stopped" },
  not_started: { icon: "stop", text: "call.end.not_started" },
  denied: { icon: "approval", text: "call.end.denied" },
};
/** What a command says of its own end stands in brackets in the last line of its result. */
const EXIT = /\n?\[exit code (-?\d+)[^\n]*\]\s*$/;

export function endOf(call, run) {
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
