// The status of a tool call as an icon and a text.
//
//   callStatus(call, run) -> {status, icon, text}    `status` is a key of END_MARKS, "unknown" when it is not known
//                            how the call ended, "approval", "waiting" or "running"

import { t } from "./texts.js";

const END_MARKS = {
  ok: { icon: "done", text: "call.end.ok" },
  error: { icon: "failed", text: "call.end.error" },
  stopped: { icon: "stop", text: "call.end.stopped" },
  not_started: { icon: "stop", text: "call.end.not_started" },
  denied: { icon: "approval", text: "call.end.denied" },
};
/** The last line of the result of a command. */
const EXIT_CODE = /\n?\[exit code (-?\d+)[^\n]*\]\s*$/;

export function callStatus(call, run) {
  const exit = call.result === null ? null : EXIT_CODE.exec(call.result);
  if (call.end !== null || call.over) {
    const code = exit && Number(exit[1]);
    // The history has no end of a call, but the result of a command has its exit code.
    const kind = call.end || (code === 0 ? "ok" : code === null ? "unknown" : "error");
    const mark = END_MARKS[kind] || { icon: "done", text: "" };
    const failed = kind === "ok" && code !== null && code !== 0;
    const showCode = code !== null && (kind === "ok" || kind === "error");
    return {
      status: failed ? "error" : kind,
      icon: failed ? "failed" : mark.icon,
      text: showCode ? t("call.exit", { code }) : mark.text && t(mark.text),
    };
  }
  if (call.approval) {
    return { status: "approval", icon: "approval", text: t("call.approval") };
  }
  if (run.state === "ended") {
    return { status: "unknown", icon: "stop", text: "" };
  }
  if (call.waiting) {
    return { status: "waiting", icon: "hourglass", text: t("call.waiting") };
  }
  return { status: "running", icon: "gear", text: t("call.running") };
}
