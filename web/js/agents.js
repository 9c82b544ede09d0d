// The tree of agents in the rail: what each does, and the button that stops its model call. The button is in
// the document if and only if the agent waits for the model. It takes agents from the store and does not know
// what runs do.

import * as api from "./api.js";
import { treeOf } from "./agent-tree.js";
import { h, icon, keyed, listen, setText } from "./dom.js";
import { framed } from "./frame.js";
import { reasonOf } from "./reasons.js";
import * as store from "./store.js";
import { oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

const closed = new Set();

/** Shows the tree in `root`, an element with the role tree. */
export function mount(root) {
  let focused = null;
  const frame = framed(() => draw(root, focused));
  const open = (id) => {
    focused = id;
    const again = store.get("agent") === id && store.get("route").view === "agents";
    store.put("agent", again ? null : id);
    location.hash = "#/agents";
  };
  const toggle = (id) => {
    if (!closed.delete(id)) {
      closed.add(id);
    }
    frame.ask();
  };
  const undo = [
    store.subscribe("agents", frame.ask),
    store.subscribe("agent", frame.ask),
    listen(root, "click", (event) => clicked(event, { open, toggle })),
    listen(root, "keydown", (event) => pressed(event, root, { open, toggle })),
    listen(root, "focusin", (event) => {
      focused = event.target.closest("[data-agent]")?.dataset.agent ?? focused;
      for (const row of root.children) {
        row.tabIndex = row.dataset.agent === focused ? 0 : -1;
      }
    }),
  ];
  return () => {
    frame.cancel();
    undo.forEach((forget) => forget());
    root.replaceChildren();
  };
}

function draw(root, focused) {
  const rows = treeOf(store.get("agents"), closed);
  const stop = rows.some((row) => row.agent.id === focused) ? focused : rows[0]?.agent.id;
  const selected = store.get("agent");
  keyed(
    root,
    rows,
    (row) => row.agent.id,
    makeRow,
    (element, row) => {
      updateRow(element, row);
      const tabIndex = row.agent.id === stop ? 0 : -1;
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

function makeRow({ agent }) {
  return h(
    "div",
    { class: "agent-row", role: "treeitem", data: { agent: agent.id } },
    h("span", { class: "twisty", "aria-hidden": "true" }),
    h("span", { class: "agent-name" }),
    h("span", { class: "agent-role" }),
    h("span", { class: "agent-status" }),
  );
}

function updateRow(element, { agent, depth, place, siblings, children, closed: isClosed }) {
  const [twisty, name, role, status] = element.children;
  const shape = [depth, place, siblings, children, isClosed, agent.role, agent.model].join("\n");
  if (element.dataset.shape !== shape) {
    element.dataset.shape = shape;
    element.style.setProperty("--depth", String(depth));
    for (const [key, value] of [
      ["aria-level", depth + 1],
      ["aria-posinset", place],
      ["aria-setsize", siblings],
    ]) {
      element.setAttribute(key, String(value));
    }
    if (children > 0) {
      element.setAttribute("aria-expanded", String(!isClosed));
    } else {
      element.removeAttribute("aria-expanded");
    }
    setText(twisty, children === 0 ? "" : isClosed ? "▸" : "▾");
    setText(name, oneLine(agent.id, 80));
    setText(role, oneLine(agent.role ?? "", 40));
    element.title = [agent.id, agent.role, agent.model].filter(Boolean).join(" · ");
  }
  updateStatus(element, status, agent);
}

/** Row B8: nothing, hourglass with button, gear, or what a stop looks like while it settles. */
function updateStatus(element, status, agent) {
  if (status.dataset.status === agent.computeStatus) {
    return;
  }
  status.dataset.status = agent.computeStatus;
  const hadFocus = status.contains(document.activeElement);
  status.replaceChildren(...statusOf(agent));
  if (hadFocus) {
    element.focus();
  }
}

function statusOf(agent) {
  switch (agent.computeStatus) {
    case "waiting_llm":
      return [mark("waiting", "hourglass"), abortButton(agent)];
    case "processing":
      return [mark("processing", "gear")];
    case "stopping":
      return [mark("stopping", "stop", h("span", {}, t("agents.status.stopping")))];
    default:
      return [];
  }
}

function mark(status, drawing, word) {
  const tip = t(`agents.status.${status}`);
  const name = word ? {} : { role: "img", "aria-label": tip };
  return h("span", { class: `compute-status ${status}`, title: tip, ...name }, icon(drawing), word);
}

function abortButton(agent) {
  const tip = t("agents.abort");
  const name = t("agents.abort.of", { agent: oneLine(agent.id, 80) });
  return h("button", { type: "button", class: "abort-btn", title: tip, "aria-label": name }, icon("stop"));
}

function clicked(event, { open, toggle }) {
  const row = event.target.closest("[data-agent]");
  if (!row) {
    return;
  }
  const button = event.target.closest(".abort-btn");
  if (button) {
    abort(row.dataset.agent, button);
  } else if (event.target.closest(".twisty") && row.hasAttribute("aria-expanded")) {
    toggle(row.dataset.agent);
  } else if (event.detail <= 1) {
    // The second half of a double click on the button may find it gone, and is not meant for the row.
    open(row.dataset.agent);
  }
}

/** Stops the agent's model call, and says what became of it. */
async function abort(id, button) {
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
    const told = t("agents.abort.failed", { reason: reasonOf(problem) });
    console.error(told, problem);
    toasts.error(told, problem);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** The keys of a tree. The button in a row is reached by Tab and has its own. */
function pressed(event, root, { open, toggle }) {
  const row = event.target;
  if (!row.matches("[data-agent]") || event.altKey || event.ctrlKey || event.metaKey) {
    return;
  }
  const rows = [...root.children];
  const at = rows.indexOf(row);
  const level = (element) => Number(element.getAttribute("aria-level"));
  const expanded = row.getAttribute("aria-expanded");
  const moves = {
    ArrowDown: () => rows[at + 1]?.focus(),
    ArrowUp: () => rows[at - 1]?.focus(),
    Home: () => rows[0].focus(),
    End: () => rows.at(-1).focus(),
    ArrowRight: () =>
      expanded === "false" ? toggle(row.dataset.agent) : expanded === "true" && rows[at + 1]?.focus(),
    ArrowLeft: () => {
      if (expanded === "true") {
        toggle(row.dataset.agent);
      } else {
        rows
          .slice(0, at)
          .findLast((other) => level(other) < level(row))
          ?.focus();
      }
    },
    Enter: () => open(row.dataset.agent),
    " ": () => open(row.dataset.agent),
  };
  if (!moves[event.key]) {
    return;
  }
  event.preventDefault();
  moves[event.key]();
}
