// The chat view: which session is open, its head with agent and model, and the keys that work anywhere in it.
// What stands in the turns and in the composer is for their modules.

import { Problem, get, patch, session } from "./api.js";
import * as approvals from "./approvals.js";
import { Composer } from "./composer.js";
import { emptySession, openConversation } from "./conversation.js";
import { byId, h, isComposing, listen, setText } from "./dom.js";
import { isKnown } from "./history.js";
import { newId } from "./new-id.js";
import { reasonOf } from "./reasons.js";
import { recall, remember } from "./remembered.js";
import * as store from "./store.js";
import { t } from "./texts.js";
import * as toasts from "./toasts.js";

const LAST = "quell.session";
const DRAWERS = ["rail", "inspector"];

let open = null;

export function mount(root) {
  const forget = [
    store.subscribe("route", (route) => route.view === "chat" && openSession(route.key)),
    store.subscribe("agents", () => showChoices()),
    store.subscribe("models", () => showChoices()),
    listen(document, "keydown", onEscape),
    listen(root, "click", copyCode),
    listen(byId("session-agent"), "change", (event) => choose({ agent: event.target.value })),
    listen(byId("session-model"), "change", (event) => choose({ model: event.target.value })),
  ];
  return () => {
    forget.forEach((leave) => leave());
    closeSession();
  };
}

/** A key for a session that begins here; it says when that was. */
export function newKey() {
  const now = new Date();
  const two = (number) => String(number).padStart(2, "0");
  const day = `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}`;
  return `page-${day}-${two(now.getHours())}${two(now.getMinutes())}-${newId().slice(0, 4)}`;
}

function openSession(wanted) {
  const key = wanted || recall(LAST) || newKey();
  if (!wanted) {
    history.replaceState(null, "", `#/s/${encodeURIComponent(key)}`);
    store.put("route", { view: "chat", key });
    return;
  }
  if (open?.key === key) {
    inspectHere();
    return;
  }
  closeSession();
  remember(LAST, key);
  store.inspect(null);
  setText(byId("chat-title"), key);
  byId("chat-title").title = key;
  byId("chat-empty").replaceChildren(emptySession(key));
  const place = {
    turns: byId("turns"),
    older: byId("older"),
    scroll: byId("scroll"),
    empty: byId("chat-empty"),
    newest: byId("to-newest"),
  };
  const actions = {
    inspect: showRun,
    again: (text) => open.composer.putBack(text),
    changed: () => onChange(key),
    stepBegins: (runId) => open?.key === key && open.composer.stepBegins(runId),
  };
  const conversation = openConversation(key, place, actions);
  const undo = approvals.mount(byId("chat-approvals"), { only: (row) => row.sessionKey === key });
  const composer = new Composer(key, conversation, followNewest);
  open = { key, conversation, composer, config: null, chosen: null, undo };
  open.composer.update();
  showChoices();
  readConfig();
  if (!window.matchMedia("(pointer: coarse)").matches) {
    byId("message").focus();
  }
}

function closeSession() {
  open?.composer.close();
  open?.conversation.close();
  open?.undo();
  open = null;
}

function onChange(key) {
  if (open?.key !== key) {
    return;
  }
  open.composer.update();
  inspectHere();
}

/**
 * Beside the chat stands the run that the reader has chosen, or the one at work, or the newest. Another view
 * is about the run in its address, whatever happens here.
 */
function inspectHere() {
  if (store.get("route").view === "chat") {
    const [run] = open.conversation.active();
    store.inspect(open.chosen ?? run?.runId ?? open.conversation.newestRun());
  }
}

/** Whoever sends a message wants to see what becomes of it. */
function followNewest() {
  open.chosen = null;
}

/** On a phone there is no room beside the chat, so that the run gets the whole screen. */
function showRun(runId) {
  open.chosen = runId;
  store.inspect(runId);
  if (window.matchMedia("(max-width: 700px)").matches) {
    location.hash = `#/r/${encodeURIComponent(runId)}`;
  } else {
    document.body.classList.add("inspector-open");
    byId("inspector-toggle").setAttribute("aria-expanded", "true");
  }
}

/**
 * Esc stops, wherever the focus is, unless it belongs to something that is open above the chat, to a search
 * that it empties, or to a keyboard that composes.
 */
function onEscape(event) {
  const other =
    event.defaultPrevented || isComposing(event) || event.repeat || store.get("route").view !== "chat";
  if (event.key !== "Escape" || other || document.querySelector("dialog[open]") || inMenu(event.target)) {
    return;
  }
  if (emptySearch(event.target)) {
    event.preventDefault();
  } else if (hasDrawer()) {
    event.preventDefault();
    closeDrawers();
  } else if (open && open.composer.mode() !== "send") {
    event.preventDefault();
    open.composer.stop();
  } else {
    closeDrawers();
  }
}

/** True when there was something to empty. Some browsers do it by themselves, some do not. */
function emptySearch(field) {
  if (!field.matches?.("input[type=search]") || field.value === "") {
    return false;
  }
  field.value = "";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  return true;
}

/** True when something lies above the chat; in a wide window the same things stand beside it. */
function hasDrawer() {
  return DRAWERS.some(
    (name) =>
      document.body.classList.contains(`${name}-open`) && getComputedStyle(byId(name)).position === "fixed",
  );
}

function closeDrawers() {
  for (const name of DRAWERS) {
    document.body.classList.remove(`${name}-open`);
    byId(`${name}-toggle`).setAttribute("aria-expanded", "false");
  }
}

/** A list that is unfolded closes with Esc. */
function inMenu(element) {
  return CSS.supports("selector(select:open)") && element.matches?.("select:open");
}

async function copyCode(event) {
  const button = event.target.closest(".copy");
  if (!button) {
    return;
  }
  try {
    await toClipboard(button.parentElement.querySelector("code"));
    toasts.success(t("turn.copied"));
  } catch (error) {
    toasts.error(t("turn.copy-failed", { reason: error.message }));
  }
}

/** The clipboard is given to secure pages only; elsewhere what is selected is copied, by hand at worst. */
async function toClipboard(code) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(code.textContent);
    return;
  }
  getSelection().selectAllChildren(code);
  if (!document.execCommand("copy")) {
    throw new Error(t("turn.copy-by-hand"));
  }
}

// ---- agent and model ----

async function readConfig() {
  const mine = open;
  try {
    // A session that does not exist yet begins with the default agent and its model.
    mine.config = (await isKnown(mine.key)) ? ((await get(session(mine.key))).config ?? null) : null;
  } catch (problem) {
    if (!(problem instanceof Problem)) {
      throw problem;
    }
    // Then the head shows the defaults; the run itself says which agent it has.
  }
  if (open === mine) {
    showChoices();
  }
}

function showChoices() {
  if (!open) {
    return;
  }
  const agents = store.get("agents");
  const agent = open.config?.agent || agentOfKey(agents) || agents.find((one) => one.default)?.id || "";
  const model = open.config?.model?.value || agents.find((one) => one.id === agent)?.model || "";
  fill(
    byId("session-agent"),
    agents.map((one) => one.id),
    agent,
  );
  fill(
    byId("session-model"),
    store.get("models").map((one) => one.model),
    model,
  );
}

/** A key of the form `agent:ID:…` names its agent. */
function agentOfKey(agents) {
  const [, id] = /^agent:([^:]+):/.exec(open.key) || [];
  return agents.some((one) => one.id === id) ? id : null;
}

function fill(select, values, chosen) {
  const all = values.includes(chosen) || chosen === "" ? values : [chosen, ...values];
  const known = [...select.options].map((option) => option.value);
  if (known.join("\n") !== all.join("\n")) {
    select.replaceChildren(...all.map((value) => h("option", { value }, value)));
  }
  select.value = chosen;
  select.disabled = all.length < 2;
}

async function choose(change) {
  const mine = open;
  const before = mine.config;
  // What was chosen stays chosen while the daemon is asked. An agent that is chosen alone brings its own
  // model: one that was chosen for the session before is dropped.
  mine.config = change.agent ? { agent: change.agent } : { ...before, model: { value: change.model } };
  showChoices();
  try {
    const view = await patch(session(mine.key), change);
    mine.config = view.config ?? mine.config;
    store.refresh("sessions");
  } catch (problem) {
    mine.config = before;
    toasts.error(t("chat.not-changed", { reason: reasonOf(problem) }), problem);
  }
  if (open === mine) {
    showChoices();
  }
}
