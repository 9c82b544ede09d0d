// The tree of agents in the rail: the status of each agent, and the button that stops its model call. Exports
// mountAgentTree. The button is in the document if and only if the agent waits for the model (row B8), and only for a
// token that may stop one of its runs.

import { agentTreeRows, modelChain } from "./agent-tree.js";
import * as api from "./api.js";
import { h, icon, listen, reconcileChildren, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import { may, mayStop } from "./rights.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import * as toasts from "./toasts.js";

const collapsedIds = new Set();

/** Shows the tree in `root`, an element with the role tree. */
export function mountAgentTree(root) {
  let focused = null;
  const frame = throttleToFrame(() => render(root, focused));
  const open = (id) => {
    focused = id;
    const alreadyOpen = store.get("agent") === id && store.get("route").view === "agents";
    store.set("agent", alreadyOpen ? null : id);
    location.hash = "#/agents";
  };
  const toggle = (id) => {
    if (!collapsedIds.delete(id)) {
      collapsedIds.add(id);
    }
    frame.schedule();
  };
  const cleanups = [
    store.subscribe("agents", frame.schedule),
    store.subscribe("agent", frame.schedule),
    store.subscribe("runs", frame.schedule),
    listen(root, "click", (event) => onClick(event, { open, toggle })),
    listen(root, "keydown", (event) => onKeyDown(event, root, { open, toggle })),
    listen(root, "focusin", (event) => {
      focused = event.target.closest("[data-agent]")?.dataset.agent ?? focused;
      for (const row of root.children) {
        row.tabIndex = row.dataset.agent === focused ? 0 : -1;
      }
    }),
  ];
  return () => {
    frame.cancel();
    cleanups.forEach((cleanup) => cleanup());
    root.replaceChildren();
  };
}

function render(root, focused) {
  const rows = agentTreeRows(store.get("agents"), collapsedIds);
  const tabStop = rows.some((row) => row.agent.id === focused) ? focused : rows[0]?.agent.id;
  const selected = store.get("agent");
  reconcileChildren(
    root,
    rows,
    (row) => row.agent.id,
    createRow,
    (element, row) => {
      updateRow(element, row);
      const tabIndex = row.agent.id === tabStop ? 0 : -1;
      if (element.tabIndex !== tabIndex || !element.hasAttribute("tabindex")) {
        element.tabIndex = tabIndex;
      }
      const isSelected = String(row.agent.id === selected);
      if (element.getAttribute("aria-selected") !== isSelected) {
        element.setAttribute("aria-selected", isSelected);
      }
    },
  );
}

function createRow({ agent }) {
  return h(
    "div",
    { class: "agent-row", role: "treeitem", data: { agent: agent.id } },
    h("span", { class: "tree-toggle", "aria-hidden": "true" }),
    h("span", { class: "agent-name" }),
    h("span", { class: "agent-role" }),
    h("span", { class: "agent-status" }),
  );
}

function updateRow(element, { agent, depth, position, siblingCount, childCount, collapsed }) {
  const [toggleMark, name, role, status] = element.children;
  const signature = [depth, position, siblingCount, childCount, collapsed, agent.role, modelChain(agent)].join(
    "\n",
  );
  if (element.dataset.signature !== signature) {
    element.dataset.signature = signature;
    element.style.setProperty("--depth", String(depth));
    for (const [key, value] of [
      ["aria-level", depth + 1],
      ["aria-posinset", position],
      ["aria-setsize", siblingCount],
    ]) {
      element.setAttribute(key, String(value));
    }
    if (childCount > 0) {
      element.setAttribute("aria-expanded", String(!collapsed));
    } else {
      element.removeAttribute("aria-expanded");
    }
    setText(toggleMark, childCount === 0 ? "" : collapsed ? "▸" : "▾");
    setText(name, oneLine(agent.id, 80));
    setText(role, oneLine(agent.role ?? "", 40));
    element.title = [agent.id, agent.role, modelChain(agent)].filter(Boolean).join(" · ");
  }
  updateStatus(element, status, agent);
}

/** Row B8: nothing when idle, an hourglass with the button, a gear, or the word "Stopping". */
function updateStatus(element, status, agent) {
  const shown = `${agent.computeStatus} ${mayStopCall(agent)}`;
  if (status.dataset.shown === shown) {
    return;
  }
  status.dataset.shown = shown;
  const hadFocus = status.contains(document.activeElement);
  status.replaceChildren(...statusElements(agent));
  if (hadFocus) {
    element.focus();
  }
}

function statusElements(agent) {
  switch (agent.computeStatus) {
    case "waiting_llm":
      return [statusMark("waiting", "hourglass"), ...(mayStopCall(agent) ? [abortButton(agent)] : [])];
    case "processing":
      return [statusMark("processing", "gear")];
    case "stopping":
      return [statusMark("stopping", "stop", h("span", {}, t("agents.status.stopping")))];
    default:
      return [];
  }
}

/** A run that is not in the list yet may be one's own. */
function mayStopCall(agent) {
  const runs = store.get("runs");
  const mayStopRun = (id) => mayStop(runs.find((run) => run.runId === id) ?? store.get("me"));
  return may("stop-all") || (may("stop") && agent.activeRuns.some(mayStopRun));
}

function statusMark(status, iconName, word) {
  const tooltip = t(`agents.status.${status}`);
  const name = word ? {} : { role: "img", "aria-label": tooltip };
  return h("span", { class: `compute-status ${status}`, title: tooltip, ...name }, icon(iconName), word);
}

function abortButton(agent) {
  const tooltip = t("agents.abort");
  const name = t("agents.abort.of", { agent: oneLine(agent.id, 80) });
  return h(
    "button",
    { type: "button", class: "abort-btn", title: tooltip, "aria-label": name },
    icon("stop"),
  );
}

function onClick(event, { open, toggle }) {
  const row = event.target.closest("[data-agent]");
  if (!row) {
    return;
  }
  const button = event.target.closest(".abort-btn");
  if (button) {
    abortModelCall(row.dataset.agent, button);
  } else if (event.target.closest(".tree-toggle") && row.hasAttribute("aria-expanded")) {
    toggle(row.dataset.agent);
  } else if (event.detail <= 1) {
    // The second click of a double click on the button may hit the row after the button is gone.
    open(row.dataset.agent);
  }
}

async function abortModelCall(id, button) {
  if (button.getAttribute("aria-busy") === "true") {
    return;
  }
  button.setAttribute("aria-busy", "true");
  try {
    const answer = await api.stop(`/api/agent/${encodeURIComponent(id)}/abort`);
    if (answer.aborted) {
      toasts.success(t("agents.abort.done"));
    } else {
      toasts.info(t("agents.abort.nothing"));
    }
  } catch (problem) {
    const message = t("agents.abort.failed", { reason: errorText(problem) });
    console.error(message, problem);
    toasts.error(message, problem);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** Keyboard navigation of a tree view. The button in a row is reached with Tab. */
function onKeyDown(event, root, { open, toggle }) {
  const row = event.target;
  if (!row.matches("[data-agent]") || event.altKey || event.ctrlKey || event.metaKey) {
    return;
  }
  const rows = [...root.children];
  const index = rows.indexOf(row);
  const level = (element) => Number(element.getAttribute("aria-level"));
  const expanded = row.getAttribute("aria-expanded");
  const actions = {
    ArrowDown: () => rows[index + 1]?.focus(),
    ArrowUp: () => rows[index - 1]?.focus(),
    Home: () => rows[0].focus(),
    End: () => rows.at(-1).focus(),
    ArrowRight: () =>
      expanded === "false" ? toggle(row.dataset.agent) : expanded === "true" && rows[index + 1]?.focus(),
    ArrowLeft: () => {
      if (expanded === "true") {
        toggle(row.dataset.agent);
      } else {
        rows
          .slice(0, index)
          .findLast((other) => level(other) < level(row))
          ?.focus();
      }
    },
    Enter: () => open(row.dataset.agent),
    " ": () => open(row.dataset.agent),
  };
  if (!actions[event.key]) {
    return;
  }
  event.preventDefault();
  actions[event.key]();
}
