// The agents view: each agent with its configuration, its active runs and buttons to stop them. Exports
// mountAgentsView. The button that stops one model call is in agent-tree-view.js.

import { agentTreeRows, modelChain } from "./agent-tree.js";
import * as api from "./api.js";
import { h, icon, reconcileChildren, setText } from "./dom.js";
import { stopErrorText } from "./error-texts.js";
import { shortId } from "./ids.js";
import { reasonAgainst, restrict } from "./rights.js";
import { createPhaseMark, updatePhaseMark } from "./run-phase.js";
import * as store from "./store.js";
import { oneLine, t, tPlural } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import * as toasts from "./toasts.js";

/** Runs shown for each agent; the runs view lists all of them. */
const MAX_RUNS = 20;

export function mountAgentsView(root) {
  const list = h("ul", { class: "agent-cards" });
  const empty = h(
    "div",
    { class: "empty", hidden: true },
    h("p", {}, t("agents.none")),
    h("p", {}, t("agents.none.next")),
    h("code", {}, '[agents.main]\nmodel = "openai/gpt-5"'),
  );
  root.replaceChildren(
    h("h1", {}, t("agents.title")),
    h("p", { class: "hint" }, t("agents.lead")),
    list,
    empty,
  );
  const frame = throttleToFrame(() => store.get("route").view === "agents" && render(list, empty));
  const cleanups = [
    ...["agents", "runs", "route"].map((slice) => store.subscribe(slice, frame.schedule)),
    store.subscribe("agent", () =>
      requestAnimationFrame(() => {
        render(list, empty);
        list.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
      }),
    ),
  ];
  return () => {
    frame.cancel();
    cleanups.forEach((cleanup) => cleanup());
    root.replaceChildren();
  };
}

function render(list, empty) {
  const rows = agentTreeRows(store.get("agents"));
  const runs = new Map(store.get("runs").map((run) => [run.runId, run]));
  const chosen = store.get("agent");
  empty.hidden = rows.length > 0;
  reconcileChildren(
    list,
    rows,
    (row) => row.agent.id,
    createCard,
    (card, row) => {
      card.classList.toggle("chosen", row.agent.id === chosen);
      updateCard(card, row, runs);
    },
  );
}

function createCard({ agent }) {
  return h(
    "li",
    { class: "agent-card", data: { agentCard: agent.id } },
    h(
      "div",
      { class: "agent-head" },
      h("h2", {}, oneLine(agent.id, 80)),
      h("span", { class: "agent-role" }),
      h("span", { class: "agent-stops" }, stopRunsButton(agent, "run"), stopRunsButton(agent, "tree")),
    ),
    h("p", { class: "agent-facts" }),
    h("ul", { class: "agent-runs" }),
    h("a", { class: "agent-more", href: "#/runs", hidden: true }),
  );
}

function updateCard(card, { agent, depth, childCount }, runs) {
  const [head, facts, list, more] = card.children;
  const [, role, stops] = head.children;
  card.style.setProperty("--depth", String(depth));
  setText(
    role,
    [agent.role && oneLine(agent.role, 60), agent.default && t("agents.default")].filter(Boolean).join(" · "),
  );
  setText(
    facts,
    [modelChain(agent), agent.parent && t("agents.below", { agent: oneLine(agent.parent, 60) })]
      .filter(Boolean)
      .join(" · "),
  );
  const hasRuns = agent.activeRuns.length > 0;
  stops.children[0].hidden = !hasRuns;
  stops.children[1].hidden = childCount === 0;
  const active = agent.activeRuns.map((id) => runs.get(id)).filter(Boolean);
  reconcileChildren(
    list,
    active.slice(0, MAX_RUNS),
    (run) => run.runId,
    createRunItem,
    (item, run) => updatePhaseMark(item.firstElementChild, run),
  );
  more.hidden = active.length <= MAX_RUNS;
  setText(more, tPlural("agents.more", active.length - MAX_RUNS));
}

function createRunItem(run) {
  return h(
    "li",
    {},
    createPhaseMark(),
    h("a", { href: `#/r/${encodeURIComponent(run.runId)}` }, oneLine(run.text, 120) || shortId(run.runId)),
  );
}

/** `scope` is "run" for all runs of the agent, "tree" to include the agents below it. */
function stopRunsButton(agent, scope) {
  const text = t(`agents.stop.${scope}`);
  const button = h(
    "button",
    {
      type: "button",
      class: "stop-button small",
      "aria-label": `${text}: ${oneLine(agent.id, 80)}`,
      on: {
        click: async () => {
          button.setAttribute("aria-busy", "true");
          await stopAgentRuns(agent.id, scope);
          button.removeAttribute("aria-busy");
        },
      },
    },
    icon("stop"),
    text,
  );
  return restrict(button, reasonAgainst("stop"));
}

async function stopAgentRuns(id, scope) {
  try {
    const { runIds } = await api.stop(`/api/agent/${encodeURIComponent(id)}/abort?scope=${scope}`);
    if (runIds.length > 0) {
      toasts.success(tPlural("agents.stop.done", runIds.length));
    } else {
      toasts.info(t("agents.stop.nothing"));
    }
  } catch (problem) {
    const message = stopErrorText("agents.stop.failed", problem);
    console.error(message, problem);
    toasts.error(message, problem);
  }
  store.refresh("agents", "runs");
}
