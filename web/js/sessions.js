// The list of sessions: search, choose, begin a new one, more as one asks. It knows the rows of the store and
// no conversation.

import { newKey } from "./chat.js";
import { byId, h, icon, keyed, listen, setText } from "./dom.js";
import * as store from "./store.js";
import { ago, counted, exactTime, t } from "./texts.js";

const SEARCH_MS = 150;

export function mount() {
  const list = byId("sessions");
  const search = byId("session-search");
  const more = h(
    "button",
    { class: "quiet-button more", type: "button", on: { click: () => store.moreSessions() } },
    t("sessions.more"),
  );
  const note = h("p", { class: "empty" });
  let typing = 0;

  const show = () => {
    const { items, nextCursor } = store.get("sessions");
    const here = store.get("route").key;
    const rows = withOpen(items, here, search.value.trim());
    keyed(
      list,
      rows,
      (row) => row.key,
      make,
      (element, row) => update(element, row, row.key === here),
    );
    more.hidden = !nextCursor;
    note.hidden = rows.length > 0;
    setText(
      note,
      search.value === "" ? t("sessions.none") : t("sessions.none-found", { text: search.value }),
    );
  };

  list.after(note, more);
  const forget = [
    store.subscribe("sessions", show),
    store.subscribe("route", show),
    listen(search, "input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => store.searchSessions(search.value.trim()), SEARCH_MS);
    }),
    listen(list, "keydown", moveFocus),
    listen(byId("new-session"), "click", begin),
  ];
  return () => {
    clearTimeout(typing);
    forget.forEach((leave) => leave());
    note.remove();
    more.remove();
    list.replaceChildren();
  };
}

/** The open session is in the list before its first message is. */
function withOpen(items, here, search) {
  const known = items.some((row) => row.key === here);
  if (!here || known || search !== "") {
    return items;
  }
  return [{ key: here, state: "new", lastUsedAt: "", activeRuns: [], turns: 0 }, ...items];
}

function begin() {
  location.hash = `#/s/${encodeURIComponent(newKey())}`;
}

function make(row) {
  return h(
    "li",
    null,
    h(
      "a",
      { class: "session", href: `#/s/${encodeURIComponent(row.key)}` },
      h("span", { class: "session-mark" }),
      h("span", { class: "session-key", dir: "auto" }, row.key),
      h("span", { class: "session-facts" }),
    ),
  );
}

function update(element, row, here) {
  const link = element.firstElementChild;
  const active = row.activeRuns.length > 0;
  const state = active ? "active" : row.state;
  element.dataset.session = row.key;
  if (element.dataset.state !== state) {
    element.dataset.state = state;
    element.querySelector(".session-mark").replaceChildren(active ? icon("gear") : "");
  }
  if (here) {
    link.setAttribute("aria-current", "page");
  } else {
    link.removeAttribute("aria-current");
  }
  link.title = row.lastUsedAt ? `${row.key}\n${exactTime(row.lastUsedAt)}` : row.key;
  setText(element.querySelector(".session-facts"), facts(row, active));
}

function facts(row, active) {
  if (row.state === "new") {
    return t("sessions.state.new");
  }
  const parts = [
    active ? t("sessions.state.active") : ago(row.lastUsedAt),
    row.agent,
    counted("sessions.turns", row.turns),
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Up and down walk the list, as in any list. */
function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) {
    return;
  }
  const links = [...event.currentTarget.querySelectorAll("a")];
  const next = links[links.indexOf(document.activeElement) + step];
  if (next) {
    event.preventDefault();
    next.focus();
  }
}
