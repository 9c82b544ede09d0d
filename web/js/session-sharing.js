// The control that shares the open session with every token, after a question, or makes it private again. Exports
// mountSessionSharing.

import * as api from "./api.js";
import { sharingState } from "./derived-state.js";
import { byId, h, icon, listen, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

export function mountSessionSharing() {
  const button = byId("session-sharing");

  const render = () => {
    const sharing = sharingState(store.get("session").view, store.get("me"));
    button.hidden = sharing === null;
    if (sharing === null) {
      return;
    }
    const text = t(`sharing.${sharing.state}`);
    button.setAttribute("aria-checked", String(sharing.state === "shared"));
    button.setAttribute("aria-label", `${t("sharing.name")}: ${text}`);
    button.disabled = !sharing.canChange;
    button.title = sharing.canChange ? t(`sharing.${sharing.state}.tip`) : t("sharing.not-yours");
    if (button.dataset.state !== sharing.state) {
      button.dataset.state = sharing.state;
      button.replaceChildren(icon(sharing.state), h("span", { class: "word" }));
    }
    setText(button.lastElementChild, text);
  };

  const change = async (key, shared) => {
    if (button.getAttribute("aria-busy") === "true") {
      return;
    }
    button.setAttribute("aria-busy", "true");
    try {
      const row = await api.put(`${api.sessionPath(key)}/sharing`, { shared });
      const open = store.get("session");
      if (open.key === key) {
        store.set("session", { key, view: { ...open.view, ...row } });
      }
      toasts.success(t(shared ? "sharing.now-shared" : "sharing.now-private"));
      store.refresh("sessions");
    } catch (problem) {
      toasts.error(t("sharing.failed", { reason: errorText(problem) }), problem);
    } finally {
      button.removeAttribute("aria-busy");
      render();
    }
  };

  const press = () => {
    const { key, view } = store.get("session");
    if (view.shared) {
      change(key, false);
    } else {
      askToShare(key, () => change(key, true));
    }
  };

  const cleanups = [
    store.subscribe("session", render),
    store.subscribe("me", render),
    listen(button, "click", press),
  ];
  return () => {
    document.querySelector("#share-dialog")?.close();
    cleanups.forEach((cleanup) => cleanup());
  };
}

/** To share gives others a lasting right, so one press does not do it: the focus is on the button that leaves it. */
function askToShare(key, share) {
  const choice = (text, props, value) =>
    h("button", { type: "button", ...props, on: { click: () => dialog.close(value) } }, text);
  const dialog = h(
    "dialog",
    { id: "share-dialog", "aria-labelledby": "share-title", "aria-describedby": "share-text" },
    h("h2", { id: "share-title" }, t("sharing.ask")),
    h("p", { dir: "auto" }, oneLine(key, 120)),
    h("p", { id: "share-text" }, t("sharing.ask.who")),
    h(
      "div",
      { class: "dialog-buttons" },
      choice(t("sharing.ask.leave"), {}, ""),
      choice(t("sharing.ask.share"), { class: "primary" }, "share"),
    ),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (dialog.returnValue === "share") {
      share();
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}
