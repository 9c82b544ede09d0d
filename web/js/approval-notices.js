// Draws attention to calls that wait for a person: the number in the title of the page and on its icon, and desktop
// notifications while the page is hidden. Exports mountApprovalNotices.

import { h, icon } from "./dom.js";
import { readSetting, saveSetting } from "./local-storage.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";

const SETTING = "quell-approval-notices";
const TITLE = document.title;

/** `root` gets the switch for desktop notifications, unless the browser has none. */
export function mountApprovalNotices(root) {
  const shown = new Map();
  let known = new Set(store.get("approvals").map(({ id }) => id));
  const update = () => {
    const approvals = store.get("approvals");
    showCount(approvals.length);
    const waiting = new Set(approvals.map(({ id }) => id));
    // What was decided on any surface disappears here, too.
    for (const [id, notice] of shown) {
      if (!waiting.has(id)) {
        notice.close();
        shown.delete(id);
      }
    }
    if (document.hidden && isOn()) {
      approvals.filter(({ id }) => !known.has(id)).forEach((row) => shown.set(row.id, notify(row)));
    }
    known = waiting;
  };
  const unsubscribe = store.subscribe("approvals", update);
  update();
  renderSwitch(root);
  return () => {
    unsubscribe();
    shown.forEach((notice) => notice.close());
    showCount(0);
    root.replaceChildren();
  };
}

function showCount(count) {
  document.title = count > 0 ? `(${count}) ${TITLE}` : TITLE;
  if (count > 0) {
    navigator.setAppBadge?.(count).catch(() => {});
  } else {
    navigator.clearAppBadge?.().catch(() => {});
  }
}

function notify(row) {
  const title = t("approvals.notice", { agent: oneLine(row.agent, 60), tool: oneLine(row.tool, 60) });
  // The arguments stay on the page: a notification can be read by anybody who sees the screen.
  const notice = new Notification(title, { tag: row.id, body: oneLine(row.sessionKey, 60), icon: "/assets/icon.svg" });
  notice.onclick = () => {
    window.focus();
    location.hash = "#/approvals";
    notice.close();
  };
  return notice;
}

function isSupported() {
  return "Notification" in window;
}

function isOn() {
  return isSupported() && Notification.permission === "granted" && readSetting(SETTING) === "on";
}

function renderSwitch(root) {
  if (!isSupported()) {
    return;
  }
  const button = h(
    "button",
    { type: "button", role: "switch", "aria-checked": String(isOn()), on: { click: () => toggle(root) } },
    icon("approval"),
    t("approvals.notify"),
  );
  const isBlocked = Notification.permission === "denied";
  button.disabled = isBlocked;
  root.replaceChildren(button, ...(isBlocked ? [h("p", { class: "hint" }, t("approvals.notify.blocked"))] : []));
}

async function toggle(root) {
  const wanted = !isOn();
  if (wanted) {
    await Notification.requestPermission();
  }
  saveSetting(SETTING, wanted ? "on" : "off");
  renderSwitch(root);
}
