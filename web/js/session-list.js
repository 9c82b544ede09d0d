// The list of sessions in the rail: search, select, create, load more. Exports mountSessionList.

import { newSessionKey } from "./chat.js";
import { byId, h, icon, listen, reconcileChildren, setText } from "./dom.js";
import { reasonAgainst, restrict } from "./rights.js";
import * as store from "./store.js";
import { ago, exactTime, t, tPlural } from "./texts.js";

const SEARCH_MS = 150;

export function mountSessionList() {
  const list = byId("sessions");
  const search = byId("session-search");
  const more = h(
    "button",
    { class: "quiet-button more", type: "button", on: { click: () => store.loadMoreSessions() } },
    t("sessions.more"),
  );
  const note = h("p", { class: "empty" });
  let searchTimer = 0;

  const render = () => {
    const { items, nextCursor } = store.get("sessions");
    const openKey = store.get("route").key;
    const rows = addOpenSession(items, openKey, search.value.trim());
    reconcileChildren(
      list,
      rows,
      (row) => row.key,
      createItem,
      (element, row) => updateItem(element, row, row.key === openKey),
    );
    more.hidden = !nextCursor;
    note.hidden = rows.length > 0;
    setText(
      note,
      search.value === "" ? t("sessions.none") : t("sessions.none-found", { text: search.value }),
    );
  };

  list.after(note, more);
  restrict(byId("new-session"), reasonAgainst("write"), t("sessions.new"));
  const cleanups = [
    store.subscribe("sessions", render),
    store.subscribe("session", render),
    store.subscribe("route", render),
    listen(search, "input", () => {
      clearTimeout(searchTimer);
      searchTimer = setTimeout(() => store.searchSessions(search.value.trim()), SEARCH_MS);
    }),
    listen(list, "keydown", moveFocus),
    listen(byId("new-session"), "click", openNewSession),
  ];
  return () => {
    clearTimeout(searchTimer);
    cleanups.forEach((cleanup) => cleanup());
    note.remove();
    more.remove();
    list.replaceChildren();
  };
}

/** Adds the open session where the list lacks it: before its first message, or when it is older than what is listed. */
function addOpenSession(items, openKey, search) {
  const known = items.some((row) => row.key === openKey);
  if (!openKey || known || search !== "") {
    return items;
  }
  const { key, view } = store.get("session");
  const unread = { key: openKey, state: view === null ? "new" : "unread", lastUsedAt: "", activeRuns: [], turns: 0 };
  return [key === openKey && view ? view : unread, ...items];
}

function openNewSession() {
  location.hash = `#/s/${encodeURIComponent(newSessionKey())}`;
}

function createItem(row) {
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

function updateItem(element, row, isOpen) {
  const link = element.firstElementChild;
  const active = row.activeRuns.length > 0;
  const state = active ? "active" : row.state;
  element.dataset.session = row.key;
  if (element.dataset.state !== state) {
    element.dataset.state = state;
    element.querySelector(".session-mark").replaceChildren(active ? icon("gear") : "");
  }
  if (isOpen) {
    link.setAttribute("aria-current", "page");
  } else {
    link.removeAttribute("aria-current");
  }
  link.title = row.lastUsedAt ? `${row.key}\n${exactTime(row.lastUsedAt)}` : row.key;
  setText(element.querySelector(".session-facts"), detailText(row, active));
}

function detailText(row, active) {
  if (row.state === "unread") {
    return "";
  }
  if (row.state === "new") {
    return t("sessions.state.new");
  }
  const parts = [
    active ? t("sessions.state.active") : ago(row.lastUsedAt),
    row.agent,
    tPlural("sessions.turns", row.turns),
  ];
  return parts.filter(Boolean).join(" · ");
}

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
