// Short messages at the edge of the page about what a person has just asked for. They never take the focus;
// errors stay until they are dismissed; one that says that the daemon did not answer goes when it answers again.
// It does not know what the messages are about.
//
//   success(text), info(text)     fade
//   error(text, problem?)         the Problem that it is about
//   connectionIsBack()            what was not answered is known by now

import { byId, h, icon } from "./dom.js";
import { t } from "./texts.js";

/**
 * Long enough to be read twice; whoever points at a message or reads it with the keyboard has all the time.
 */
const SHOWN_MS = 6000;
const MOST = 5;
const MARKS = { success: "done", info: "clock", error: "failed" };

export const success = (text) => show("success", text);
export const info = (text) => show("info", text);

export function error(text, problem) {
  const toast = show("error", text);
  toast.toggleAttribute("data-unanswered", problem?.code === "network");
}

export function connectionIsBack() {
  byId("toasts")
    .querySelectorAll(".toast[data-unanswered]")
    .forEach((toast) => toast.remove());
}

function show(kind, text) {
  const root = byId("toasts");
  for (const old of root.querySelectorAll(`.toast.${kind}`)) {
    if (old.querySelector(".toast-text").textContent === text) {
      old.remove();
    }
  }
  const toast = h(
    "div",
    { class: `toast ${kind}`, role: kind === "error" ? "alert" : null },
    icon(MARKS[kind]),
    h("span", { class: "toast-text" }, text),
    h(
      "button",
      {
        type: "button",
        class: "quiet-button dismiss",
        "aria-label": t("toast.dismiss"),
        title: t("toast.dismiss"),
        on: { click: () => toast.remove() },
      },
      icon("close"),
    ),
  );
  root.append(toast);
  if (kind !== "error") {
    fade(toast);
  }
  makeRoom(root);
  return toast;
}

function fade(toast) {
  let timer = 0;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => toast.remove(), SHOWN_MS);
  };
  for (const type of ["pointerenter", "focusin"]) {
    toast.addEventListener(type, () => clearTimeout(timer));
  }
  for (const type of ["pointerleave", "focusout"]) {
    toast.addEventListener(type, wait);
  }
  wait();
}

/** What somebody has to read goes last. */
function makeRoom(root) {
  while (root.children.length > MOST) {
    (root.querySelector(".toast:not(.error)") ?? root.firstElementChild).remove();
  }
}
