// The control that shares the open session with every token, or makes it private again. Exports mountSessionSharing.

import * as api from "./api.js";
import { sharingState } from "./derived-state.js";
import { byId, h, icon, listen, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import * as store from "./store.js";
import { t } from "./texts.js";
import * as toasts from "./toasts.js";

export function mountSessionSharing() {
  const button = byId("session-sharing");
  /** The row of the open session, or null while it is not known. */
  let row = null;
  let key = null;

  const render = () => {
    const sharing = sharingState(row, store.get("me"));
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

  /** Searches the list of sessions: asking for an unknown session would log a 404 on the console. */
  const readRow = async () => {
    const wanted = key;
    const listed = store.get("sessions").items.find((one) => one.key === wanted);
    if (listed || !wanted) {
      row = listed ?? null;
      render();
      return;
    }
    try {
      const { items } = await api.get(`/api/sessions?limit=100&search=${encodeURIComponent(wanted)}`);
      if (key === wanted) {
        row = items.find((one) => one.key === wanted) ?? null;
      }
    } catch (problem) {
      if (!(problem instanceof api.Problem)) {
        throw problem;
      }
      // The control stays as it is until the list of sessions can be read.
    }
    render();
  };

  const toggle = async () => {
    if (button.getAttribute("aria-busy") === "true") {
      return;
    }
    const [changed, shared] = [key, !row.shared];
    button.setAttribute("aria-busy", "true");
    try {
      const answer = await api.put(`${api.sessionPath(changed)}/sharing`, { shared });
      if (key === changed) {
        row = answer;
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

  const cleanups = [
    store.subscribe("route", (route) => {
      if (route.view === "chat" && route.key !== key) {
        [key, row] = [route.key, null];
        readRow();
      }
    }),
    store.subscribe("sessions", ({ items }) => {
      const listed = items.find((one) => one.key === key);
      if (listed) {
        row = listed;
        render();
      }
    }),
    store.subscribe("me", render),
    listen(button, "click", toggle),
  ];
  return () => cleanups.forEach((cleanup) => cleanup());
}
