// Chat networks in the runs view: connection state, account and message counts. Exports mountChannels. The
// section is hidden while there are none.

import { h, icon, reconcileChildren, setText } from "./dom.js";
import * as store from "./store.js";
import { exactTime, oneLine, t } from "./texts.js";
import { throttleToFrame } from "./throttle.js";

const STATE_ICONS = {
  connecting: "clock",
  connected: "connection",
  lost: "failed",
  refused: "failed",
  stopped: "stop",
};

/** `section` has a heading and a list. */
export function mountChannels(section) {
  const frame = throttleToFrame(() => render(section, store.get("channels")));
  const cleanups = [
    store.subscribe("channels", frame.schedule),
    // No event announces a channel that was added to the configuration.
    store.subscribe("route", (route) => route.view === "runs" && store.refresh("channels")),
  ];
  return () => {
    cleanups.forEach((cleanup) => cleanup());
    frame.cancel();
  };
}

function render(section, channels) {
  section.hidden = channels.length === 0;
  reconcileChildren(section.lastElementChild, channels, (channel) => channel.name, createItem, updateItem);
}

function createItem(channel) {
  return h(
    "li",
    { class: "channel", data: { channel: channel.name } },
    h("span", { class: "phase" }),
    h("span", { class: "channel-name" }, oneLine(channel.name, 64)),
    h("span", { class: "channel-facts" }),
    h("p", { class: "channel-why" }),
  );
}

function updateItem(item, channel) {
  const [phase, , details, reason] = item.children;
  if (phase.dataset.phase !== channel.state) {
    phase.dataset.phase = channel.state;
    phase.replaceChildren(icon(STATE_ICONS[channel.state] ?? "clock"), t(`channels.state.${channel.state}`));
  }
  phase.title = channel.since ? exactTime(channel.since) : "";
  setText(details, detailText(channel));
  reason.hidden = !channel.detail;
  setText(reason, channel.detail ? oneLine(channel.detail, 400) : "");
}

function detailText({ kind, account, heard, answered, undelivered }) {
  const parts = [kind];
  if (account) {
    parts.push(oneLine(account, 60));
  }
  parts.push(t("channels.counts", { heard, answered }));
  if (undelivered > 0) {
    parts.push(t("channels.undelivered", { undelivered }));
  }
  return parts.join(" · ");
}
