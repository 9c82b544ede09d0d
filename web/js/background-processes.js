// Background processes: the list, the live output of each, and the buttons that end one. Exports
// mountBackgroundProcesses. The list comes from the store; the output is polled while it is open.

import * as api from "./api.js";
import { isAlive } from "./derived-state.js";
import { h, icon, reconcileChildren, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import { shortId } from "./ids.js";
import { reasonAgainstStop, restrict } from "./rights.js";
import * as store from "./store.js";
import { age, exactTime, oneLine, size, t } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import * as toasts from "./toasts.js";

const POLL_MS = 1000;
const NOT_FOUND = Symbol("not found");
/** Characters of output that the page keeps. */
const MAX_OUTPUT = 200_000;

/** Shows the processes that pass `filter` in `root`. */
export function mountBackgroundProcesses(root, filter = () => true) {
  const frame = throttleToFrame(() => render(root, store.get("processes").filter(filter)));
  const unsubscribe = store.subscribe("processes", frame.schedule);
  return () => {
    unsubscribe();
    frame.cancel();
    for (const item of root.querySelectorAll("details[open]")) {
      item.open = false;
    }
    root.replaceChildren();
  };
}

function render(root, processes) {
  if (root.children.length !== 2) {
    root.replaceChildren(
      h("ul", { class: "processes" }),
      h("div", { class: "empty" }, h("p", {}, t("processes.none")), h("p", {}, t("processes.next"))),
    );
  }
  const [list, empty] = root.children;
  const sorted = [...processes].sort(
    (a, b) => Number(isAlive(b)) - Number(isAlive(a)) || (a.startedAt < b.startedAt ? 1 : -1),
  );
  empty.hidden = processes.length > 0;
  // A shared server is listed in each session that has used it.
  reconcileChildren(list, sorted, (process) => `${process.id} ${process.sessionKey}`, createItem, updateItem);
}

function createItem(process) {
  const output = h("pre", { class: "process-output", tabindex: "0", "aria-label": t("processes.output") });
  const viewer = h(
    "details",
    {},
    h("summary", {}, h("span", { class: "command" }, oneLine(process.command, 300))),
    output,
  );
  viewer.addEventListener("toggle", () => viewer.open && pollOutput(process, viewer, output));
  return h(
    "li",
    { class: "process", data: { process: process.id } },
    h(
      "div",
      { class: "process-head" },
      h("span", { class: "phase" }),
      viewer,
      h("span", { class: "process-end" }),
    ),
    h(
      "p",
      { class: "process-facts" },
      h("span"),
      " · ",
      h(
        "a",
        { class: "quiet-link", href: `#/r/${encodeURIComponent(process.startedByRun)}` },
        t("processes.by-run", { run: shortId(process.startedByRun) }),
      ),
      " · ",
      h(
        "a",
        { class: "quiet-link", href: `#/s/${encodeURIComponent(process.sessionKey)}` },
        oneLine(process.sessionKey, 60),
      ),
    ),
    h("ul", { class: "leftovers" }),
  );
}

function updateItem(item, process) {
  const [head, details, leftovers] = item.children;
  const [phase, viewer, buttons] = head.children;
  item.dataset.state = process.state;
  const state = isAlive(process) ? "running" : endText(process);
  if (phase.dataset.phase !== state) {
    phase.dataset.phase = state;
    phase.replaceChildren(
      icon(iconNameOf(process)),
      h("span", {}, isAlive(process) ? t("processes.running") : state),
    );
    buttons.replaceChildren(
      ...(isAlive(process) ? [endButton(process, "end"), endButton(process, "force")] : []),
    );
  }
  viewer.title = process.command;
  setText(details.firstElementChild, detailText(process));
  details.title = exactTime(process.startedAt);
  leftovers.hidden = !process.leftovers?.length;
  reconcileChildren(
    leftovers,
    process.leftovers ?? [],
    (name) => name,
    (name) => h("li", {}, icon("failed"), oneLine(name, 200)),
  );
}

function iconNameOf(process) {
  if (isAlive(process)) {
    return "gear";
  }
  if (process.how !== "exited" && process.how !== "failed") {
    return "stop";
  }
  return process.exitCode === 0 ? "done" : "failed";
}

function endText({ how, exitCode, signal }) {
  if (how !== "exited") {
    return how ?? t("processes.ended");
  }
  return exitCode !== undefined ? `exited ${exitCode}` : `signal ${signal}`;
}

function detailText(process) {
  const parts = [t("processes.age", { age: age(process.startedAt) ?? "" })];
  if (process.kind !== "mcp_server") {
    parts.push(size(process.outputBytes));
  }
  if (process.pid) {
    parts.unshift(`pid ${process.pid}`);
  }
  if (process.alive?.length > 1) {
    parts.push(t("processes.alive", { count: process.alive.length }));
  }
  if (process.swept > 0) {
    parts.push(t("processes.swept", { count: process.swept }));
  }
  return parts.join(" · ");
}

function endButton(process, kind) {
  const name = t(`processes.${kind}.of`, { command: oneLine(process.command, 60) });
  const button = h(
    "button",
    {
      type: "button",
      class: `stop-button small ${kind}-process`,
      "aria-label": name,
      on: { click: () => endProcess(process, kind, button) },
    },
    icon(kind === "force" ? "force" : "stop"),
    t(`processes.${kind}`),
  );
  button.hidden = kind === "force";
  return restrict(button, reasonAgainstStop(process), name);
}

function processPath(process) {
  return `${api.sessionPath(process.sessionKey)}/processes/${encodeURIComponent(process.id)}`;
}

/** Waits until the process is dead; shows the Force button when that takes longer than 300 ms. */
async function endProcess(process, kind, button) {
  button.setAttribute("aria-busy", "true");
  const force = button.parentElement.querySelector(".force-process");
  const offerTimer = setTimeout(() => (force.hidden = false), 300);
  try {
    await api.del(`${processPath(process)}${kind === "force" ? "?force=1" : ""}`);
  } catch (problem) {
    const message = t("processes.end-failed", { reason: errorText(problem) });
    console.error(message, problem);
    toasts.error(message, problem);
  } finally {
    clearTimeout(offerTimer);
    button.removeAttribute("aria-busy");
    store.refresh("processes");
  }
}

/** Polls the output while it is open, the tab is visible and the process can print more. */
async function pollOutput(process, viewer, output) {
  const path = processPath(process);
  let next = 0;
  output.textContent = "";
  while (viewer.open && viewer.isConnected) {
    const chunk = await fetchOutput(`${path}?after=${next}`);
    if (chunk && chunk !== NOT_FOUND) {
      next = chunk.next;
      appendOutput(output, chunk);
      if (!isAlive(chunk) && chunk.output === "") {
        if (output.textContent === "") {
          setText(output, t("processes.silent"));
        }
        return;
      }
    }
    if (chunk === NOT_FOUND) {
      store.refresh("processes");
      return;
    }
    await new Promise((done) => setTimeout(done, chunk?.output ? POLL_MS / 4 : POLL_MS));
    await whenVisible();
  }
}

/** Resolves when the tab is visible. */
function whenVisible() {
  return document.hidden
    ? new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }))
    : Promise.resolve();
}

/** The next output, null when there was no answer, NOT_FOUND when the process is unknown. */
async function fetchOutput(path) {
  try {
    return await api.get(path);
  } catch (problem) {
    if (problem instanceof api.Problem) {
      return problem.status === 404 ? NOT_FOUND : null;
    }
    throw problem;
  }
}

function appendOutput(output, { output: text, missing }) {
  const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
  const gapNote = missing > 0 ? `${t("processes.missing", { size: size(missing) })}\n` : "";
  if (gapNote || text) {
    setText(output, (output.textContent + gapNote + text).slice(-MAX_OUTPUT));
  }
  if (atEnd) {
    output.scrollTop = output.scrollHeight;
  }
}
