// Chat networks: how each one fares, as what account, and how much it has heard and answered. It takes them from
// the store, and hides its whole part of the view while there are none.

import { h, icon, keyed, setText } from "./dom.js";
import { framed } from "./frame.js";
import * as store from "./store.js";
import { exactTime, oneLine, t } from "./texts.js";

const SIGNS = { connecting: "clock", connected: "connection", lost: "failed", refused: "failed", stopped: "stop" };

/** Shows the channels in `part`, a section with a heading and a list. */
export function mount(part) {
  const frame = framed(() => draw(part, store.get("channels")));
  const undo = [
    store.subscribe("channels", frame.ask),
    // A channel that was added to the configuration is told of by nobody.
    store.subscribe("route", (route) => route.view === "runs" && store.refresh("channels")),
  ];
  return () => {
    undo.forEach((forget) => forget());
    frame.cancel();
  };
}

function draw(part, channels) {
  part.hidden = channels.length === 0;
  keyed(part.lastElementChild, channels, (channel) => channel.name, make, update);
}

function make(channel) {
  return h(
    "li",
    { class: "channel", data: { channel: channel.name } },
    h("span", { class: "phase" }),
    h("span", { class: "channel-name" }, oneLine(channel.name, 64)),
    h("span", { class: "channel-facts" }),
    h("p", { class: "channel-why" }),
  );
}

function update(item, channel) {
  const [phase, , facts, why] = item.children;
  if (phase.dataset.phase !== channel.state) {
    phase.dataset.phase = channel.state;
    phase.replaceChildren(icon(SIGNS[channel.state] ?? "clock"), t(`channels.state.${channel.state}`));
  }
  phase.title = channel.since ? exactTime(channel.since) : "";
  setText(facts, factsOf(channel));
  why.hidden = !channel.detail;
  setText(why, channel.detail ? oneLine(channel.detail, 400) : "");
}

function factsOf({ kind, account, heard, answered, undelivered }) {
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
