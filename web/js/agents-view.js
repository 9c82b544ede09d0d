// The agents as a page: what each is, what it does, and its runs; the one that was chosen in the tree stands
// first to be seen. It takes agents and runs from the store. The stop of a model call belongs to the tree;
// here are stops of whole runs and whole trees.

import * as api from "./api.js";
import { treeOf } from "./agent-tree.js";
import { h, icon, keyed, setText } from "./dom.js";
import { framed } from "./frame.js";
import { stopFailure } from "./reasons.js";
import { phaseMark, updatePhase } from "./run-row.js";
import { shortId } from "./short-id.js";
import * as store from "./store.js";
import { counted, oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

/** All of an agent's runs stand in the list of everything. */
const MOST_RUNS = 20;

export function mount(root) {
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
  const frame = framed(() => store.get("route").view === "agents" && draw(list, empty));
  const undo = [
    ...["agents", "runs", "route"].map((slice) => store.subscribe(slice, frame.ask)),
    store.subscribe("agent", () =>
      requestAnimationFrame(() => {
        draw(list, empty);
        list.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
      }),
    ),
  ];
  return () => {
    frame.cancel();
    undo.forEach((forget) => forget());
    root.replaceChildren();
  };
}

function draw(list, empty) {
  const rows = treeOf(store.get("agents"));
  const runs = new Map(store.get("runs").map((run) => [run.runId, run]));
  const chosen = store.get("agent");
  empty.hidden = rows.length > 0;
  keyed(
    list,
    rows,
    (row) => row.agent.id,
    make,
    (card, row) => {
      card.classList.toggle("chosen", row.agent.id === chosen);
      update(card, row, runs);
    },
  );
}

function make({ agent }) {
  return h(
    "li",
    { class: "agent-card", data: { agentCard: agent.id } },
    h(
      "div",
      { class: "agent-head" },
      h("h2", {}, oneLine(agent.id, 80)),
      h("span", { class: "agent-role" }),
      h("span", { class: "agent-stops" }, stopTheRuns(agent, "run"), stopTheRuns(agent, "tree")),
    ),
    h("p", { class: "agent-facts" }),
    h("ul", { class: "agent-runs" }),
    h("a", { class: "agent-more", href: "#/runs", hidden: true }),
  );
}

function update(card, { agent, depth, children }, runs) {
  const [head, facts, list, more] = card.children;
  const [, role, stops] = head.children;
  card.style.setProperty("--depth", String(depth));
  setText(
    role,
    [agent.role && oneLine(agent.role, 60), agent.default && t("agents.default")].filter(Boolean).join(" · "),
  );
  setText(
    facts,
    [agent.model, agent.parent && t("agents.below", { agent: oneLine(agent.parent, 60) })]
      .filter(Boolean)
      .join(" · "),
  );
  const working = agent.activeRuns.length > 0;
  stops.children[0].hidden = !working;
  stops.children[1].hidden = children === 0;
  const active = agent.activeRuns.map((id) => runs.get(id)).filter(Boolean);
  keyed(
    list,
    active.slice(0, MOST_RUNS),
    (run) => run.runId,
    makeRun,
    (item, run) => updatePhase(item.firstElementChild, run),
  );
  more.hidden = active.length <= MOST_RUNS;
  setText(more, counted("agents.more", active.length - MOST_RUNS));
}

function makeRun(run) {
  return h(
    "li",
    {},
    phaseMark(),
    h("a", { href: `#/r/${encodeURIComponent(run.runId)}` }, oneLine(run.text, 120) || shortId(run.runId)),
  );
}

/** Two buttons per agent: its own runs in any phase, and those of all agents below it, too. */
function stopTheRuns(agent, scope) {
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
          await stop(agent.id, scope);
          button.removeAttribute("aria-busy");
        },
      },
    },
    icon("stop"),
    text,
  );
  return button;
}

async function stop(id, scope) {
  try {
    const { runIds } = await api.stop(`/api/agent/${encodeURIComponent(id)}/abort?scope=${scope}`);
    if (runIds.length > 0) {
      toasts.success(counted("agents.stop.done", runIds.length));
    } else {
      toasts.info(t("agents.stop.nothing"));
    }
  } catch (problem) {
    const told = stopFailure("agents.stop.failed", problem);
    console.error(told, problem);
    toasts.error(told, problem);
  }
  store.refresh("agents", "runs");
}
