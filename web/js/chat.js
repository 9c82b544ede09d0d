// The chat view: the open session, its head with agent and model, and the keys that work anywhere in the view.
// Exports mountChat and newSessionKey. Turns are in conversation.js, the composer in composer.js.

import { patch, sessionPath } from "./api.js";
import { mountApprovals } from "./approvals.js";
import { Composer } from "./composer.js";
import { openConversation } from "./conversation.js";
import { byId, h, isComposing, listen, setText } from "./dom.js";
import { emptySession } from "./empty-session.js";
import { errorText } from "./error-texts.js";
import { focusMessage, leaveField } from "./fields.js";
import { newId } from "./ids.js";
import { readSetting, saveSetting } from "./local-storage.js";
import { reasonAgainstChange, restrict } from "./rights.js";
import * as store from "./store.js";
import { t } from "./texts.js";
import * as toasts from "./toasts.js";

const LAST_SESSION = "quell.session";
const DRAWERS = ["rail", "inspector"];

let open = null;

export function mountChat(root) {
  const cleanups = [
    store.subscribe("route", (route) => route.view === "chat" && openSession(route.key)),
    store.subscribe("agents", () => updateSelects()),
    store.subscribe("models", () => updateSelects()),
    store.subscribe("session", onSessionRead),
    listen(document, "keydown", onEscape),
    listen(root, "click", copyCode),
    listen(byId("session-agent"), "change", (event) => changeConfig({ agent: event.target.value })),
    listen(byId("session-model"), "change", (event) => changeConfig({ model: event.target.value })),
  ];
  return () => {
    cleanups.forEach((cleanup) => cleanup());
    closeSession();
  };
}

/** A key for a new session: date and time, and four random digits. */
export function newSessionKey() {
  const now = new Date();
  const twoDigits = (number) => String(number).padStart(2, "0");
  const day = `${now.getFullYear()}-${twoDigits(now.getMonth() + 1)}-${twoDigits(now.getDate())}`;
  return `page-${day}-${twoDigits(now.getHours())}${twoDigits(now.getMinutes())}-${newId().slice(0, 4)}`;
}

function openSession(wanted) {
  const key = wanted || readSetting(LAST_SESSION) || newSessionKey();
  if (!wanted) {
    history.replaceState(null, "", `#/s/${encodeURIComponent(key)}`);
    store.set("route", { view: "chat", key });
    return;
  }
  if (open?.key === key) {
    updateInspectedRun();
    return;
  }
  closeSession();
  store.openSession(key);
  saveSetting(LAST_SESSION, key);
  store.inspect(null);
  setText(byId("chat-title"), key);
  byId("chat-title").title = key;
  byId("chat-empty").replaceChildren(emptySession(key));
  const elements = {
    turns: byId("turns"),
    older: byId("older"),
    scroll: byId("scroll"),
    empty: byId("chat-empty"),
    newest: byId("to-newest"),
  };
  const actions = {
    inspect: showRun,
    insertText: (text) => open.composer.insertText(text),
    onRunsChanged: () => onRunsChanged(key),
    onStepStarted: (runId) => open?.key === key && open.composer.onStepStarted(runId),
  };
  const conversation = openConversation(key, elements, actions);
  const unmountApprovals = mountApprovals(byId("chat-approvals"), {
    filter: (row) => row.sessionKey === key,
  });
  const composer = new Composer(key, conversation, { onSent: inspectNewest, agent: openAgent });
  open = { key, conversation, composer, config: null, inspectedRunId: null, unmountApprovals };
  open.composer.update();
  updateSelects();
  focusMessage();
}

function closeSession() {
  open?.composer.close();
  open?.conversation.close();
  open?.unmountApprovals();
  open = null;
}

function onRunsChanged(key) {
  if (open?.key !== key) {
    return;
  }
  open.composer.update();
  updateInspectedRun();
}

/** Beside the chat, inspects the run that was chosen, else the active one, else the newest. */
function updateInspectedRun() {
  if (store.get("route").view === "chat") {
    const [run] = open.conversation.activeRuns();
    store.inspect(open.inspectedRunId ?? run?.runId ?? open.conversation.newestRunId());
  }
}

/** After a message was sent, inspects the newest run again. */
function inspectNewest() {
  open.inspectedRunId = null;
}

/** Opens the inspector beside the chat, or the run view where there is no room (phone). */
function showRun(runId) {
  open.inspectedRunId = runId;
  store.inspect(runId);
  if (window.matchMedia("(max-width: 700px)").matches) {
    location.hash = `#/r/${encodeURIComponent(runId)}`;
  } else {
    document.body.classList.add("inspector-open");
    byId("inspector-toggle").setAttribute("aria-expanded", "true");
  }
}

/**
 * Esc stops the run, wherever the focus is. Before that it belongs to an open dialog or list, an input method,
 * a search that it clears, a drawer above the chat, and a field that it leaves.
 */
function onEscape(event) {
  const ignored = event.defaultPrevented || isComposing(event) || event.repeat || isOpenSelect(event.target);
  if (event.key !== "Escape" || ignored || document.querySelector("dialog[open]")) {
    return;
  }
  const isChat = store.get("route").view === "chat";
  if (clearSearch(event.target)) {
    event.preventDefault();
  } else if (isChat && hasOpenDrawer()) {
    event.preventDefault();
    closeDrawers();
  } else if (leaveField(event.target)) {
    event.preventDefault();
  } else if (isChat) {
    stopOrCloseDrawers(event);
  }
}

function stopOrCloseDrawers(event) {
  if (open && open.composer.mode() !== "send") {
    event.preventDefault();
    open.composer.stop();
  } else {
    closeDrawers();
  }
}

/** True when there was something to clear. Some browsers do it by themselves. */
function clearSearch(field) {
  if (!field.matches?.("input[type=search]") || field.value === "") {
    return false;
  }
  field.value = "";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  return true;
}

/** True when a drawer covers the chat; in a wide window it is a column beside it. */
function hasOpenDrawer() {
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

function isOpenSelect(element) {
  return CSS.supports("selector(select:open)") && element.matches?.("select:open");
}

async function copyCode(event) {
  const button = event.target.closest(".copy");
  if (!button) {
    return;
  }
  try {
    await copyToClipboard(button.parentElement.querySelector("code"));
    toasts.success(t("turn.copied"));
  } catch (error) {
    toasts.error(t("turn.copy-failed", { reason: error.message }));
  }
}

/** The clipboard API needs a secure page; elsewhere the selection is copied, or left for the keyboard. */
async function copyToClipboard(code) {
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

/** Until the session is read, the head shows the defaults. A choice that was made meanwhile stays. */
function onSessionRead({ key, view }) {
  if (open?.key === key) {
    open.config ??= view?.config ?? null;
    updateSelects();
  }
}

/** The agent of the next run. */
function openAgent() {
  const agents = store.get("agents");
  return open.config?.agent || agentOfKey(agents) || agents.find((one) => one.default)?.id || "";
}

function updateSelects() {
  if (!open) {
    return;
  }
  const agents = store.get("agents");
  const agent = openAgent();
  const model = open.config?.model?.value || agents.find((one) => one.id === agent)?.model || "";
  fillSelect(
    byId("session-agent"),
    agents.map((one) => one.id),
    agent,
  );
  fillSelect(
    byId("session-model"),
    store.get("models").map((one) => one.model),
    model,
  );
}

/** The agent that a key of the form `agent:ID:…` names. */
function agentOfKey(agents) {
  const [, id] = /^agent:([^:]+):/.exec(open.key) || [];
  return agents.some((one) => one.id === id) ? id : null;
}

function fillSelect(select, values, chosen) {
  const options = values.includes(chosen) || chosen === "" ? values : [chosen, ...values];
  const shown = [...select.options].map((option) => option.value);
  if (shown.join("\n") !== options.join("\n")) {
    select.replaceChildren(...options.map((value) => h("option", { value }, value)));
  }
  select.value = chosen;
  restrict(select, reasonAgainstChange(store.get("session").view ?? {}));
  select.disabled ||= options.length < 2;
}

async function changeConfig(change) {
  const current = open;
  const previous = current.config;
  // Shown at once, before the daemon answers. A new agent brings its own model.
  current.config = change.agent ? { agent: change.agent } : { ...previous, model: { value: change.model } };
  updateSelects();
  try {
    const view = await patch(sessionPath(current.key), change);
    current.config = view.config ?? current.config;
    store.refresh("sessions", "session");
  } catch (problem) {
    current.config = previous;
    toasts.error(t("chat.not-changed", { reason: errorText(problem) }), problem);
  }
  if (open === current) {
    updateSelects();
  }
}
