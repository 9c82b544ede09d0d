// Short messages about what a person has just done. They never take the focus; errors stay until they are dismissed.
//
//   success(text), info(text)     hide by themselves
//   error(text, problem?)         `problem` is the Problem that it reports
//   dismissUnanswered()           removes errors about a missing answer; call it when the connection is back

import { byId, h, icon } from "./dom.js";
import { t } from "./texts.js";

/** The timer stops while the pointer or the focus is on a message. */
const SHOWN_MS = 6000;
const MAX_TOASTS = 5;
const ICONS = { success: "done", info: "clock", error: "failed" };

export const success = (text) => showToast("success", text);
export const info = (text) => showToast("info", text);

export function error(text, problem) {
  const toast = showToast("error", text);
  toast.toggleAttribute("data-unanswered", problem?.code === "network");
}

export function dismissUnanswered() {
  byId("toasts")
    .querySelectorAll(".toast[data-unanswered]")
    .forEach((toast) => toast.remove());
}

function showToast(kind, text) {
  const root = byId("toasts");
  for (const previous of root.querySelectorAll(`.toast.${kind}`)) {
    if (previous.querySelector(".toast-text").textContent === text) {
      previous.remove();
    }
  }
  const toast = h(
    "div",
    { class: `toast ${kind}`, role: kind === "error" ? "alert" : null },
    icon(ICONS[kind]),
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
    hideAfterDelay(toast);
  }
  removeExcess(root);
  return toast;
}

function hideAfterDelay(toast) {
  let timer = 0;
  const restart = () => {
    clearTimeout(timer);
    timer = setTimeout(() => toast.remove(), SHOWN_MS);
  };
  for (const type of ["pointerenter", "focusin"]) {
    toast.addEventListener(type, () => clearTimeout(timer));
  }
  for (const type of ["pointerleave", "focusout"]) {
    toast.addEventListener(type, restart);
  }
  restart();
}

/** Removes errors last. */
function removeExcess(root) {
  while (root.children.length > MAX_TOASTS) {
    (root.querySelector(".toast:not(.error)") ?? root.firstElementChild).remove();
  }
}
