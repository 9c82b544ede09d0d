// Commands that go on in the background: which there are, what they print, and the button that ends one. It
// knows processes and takes them from the store; what one has printed it reads itself, while somebody looks.

import * as api from "./api.js";
import { h, icon, keyed, setText } from "./dom.js";
import { isAlive } from "./facts.js";
import { framed } from "./frame.js";
import { reasonOf } from "./reasons.js";
import { shortId } from "./short-id.js";
import * as store from "./store.js";
import { age, exactTime, oneLine, size, t } from "./texts.js";
import * as toasts from "./toasts.js";

const READ_MS = 1000;
const GONE = Symbol("gone");
/** What is kept of an output on the page; the daemon keeps the rest. */
const MOST_OUTPUT = 200_000;

/** Shows the processes in `root`: all of them, or those that `only` lets through. */
export function mount(root, only = () => true) {
  const frame = framed(() => draw(root, store.get("processes").filter(only)));
  const forget = store.subscribe("processes", frame.ask);
  return () => {
    forget();
    frame.cancel();
    for (const item of root.querySelectorAll("details[open]")) {
      item.open = false;
    }
    root.replaceChildren();
  };
}

function draw(root, processes) {
  if (root.children.length !== 2) {
    root.replaceChildren(
      h("ul", { class: "processes" }),
      h("div", { class: "empty" }, h("p", {}, t("processes.none")), h("p", {}, t("processes.next"))),
    );
  }
  const [list, empty] = root.children;
  const inOrder = [...processes].sort(
    (a, b) => Number(isAlive(b)) - Number(isAlive(a)) || (a.startedAt < b.startedAt ? 1 : -1),
  );
  empty.hidden = processes.length > 0;
  keyed(list, inOrder, (process) => process.id, make, update);
}

function make(process) {
  const output = h("pre", { class: "process-output", tabindex: "0", "aria-label": t("processes.output") });
  const viewer = h(
    "details",
    {},
    h("summary", {}, h("span", { class: "command" }, oneLine(process.command, 300))),
    output,
  );
  viewer.addEventListener("toggle", () => viewer.open && read(process, viewer, output));
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

function update(item, process) {
  const [head, facts, leftovers] = item.children;
  const [phase, viewer, end] = head.children;
  item.dataset.state = process.state;
  const state = isAlive(process) ? "running" : endOf(process);
  if (phase.dataset.phase !== state) {
    phase.dataset.phase = state;
    phase.replaceChildren(
      icon(signOf(process)),
      h("span", {}, isAlive(process) ? t("processes.running") : state),
    );
    end.replaceChildren(
      ...(isAlive(process) ? [endButton(process, "end"), endButton(process, "force")] : []),
    );
  }
  viewer.title = process.command;
  setText(facts.firstElementChild, factsOf(process));
  facts.title = exactTime(process.startedAt);
  leftovers.hidden = !process.leftovers?.length;
  keyed(
    leftovers,
    process.leftovers ?? [],
    (name) => name,
    (name) => h("li", {}, icon("failed"), oneLine(name, 200)),
  );
}

function signOf(process) {
  if (isAlive(process)) {
    return "gear";
  }
  if (process.how !== "exited" && process.how !== "failed") {
    return "stop";
  }
  return process.exitCode === 0 ? "done" : "failed";
}

function endOf({ how, exitCode, signal }) {
  if (how !== "exited") {
    return how ?? t("processes.ended");
  }
  return exitCode !== undefined ? `exited ${exitCode}` : `signal ${signal}`;
}

function factsOf(process) {
  const parts = [t("processes.age", { age: age(process.startedAt) ?? "" }), size(process.outputBytes)];
  if (process.pid) {
    parts.unshift(`pid ${process.pid}`);
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
      title: name,
      "aria-label": name,
      on: { click: () => end(process, kind, button) },
    },
    icon(kind === "force" ? "force" : "stop"),
    t(`processes.${kind}`),
  );
  button.hidden = kind === "force";
  return button;
}

function pathOf(process) {
  return `${api.session(process.sessionKey)}/processes/${encodeURIComponent(process.id)}`;
}

/**
 * The answer comes when the process is dead. What takes longer than a moment can be forced in the meantime.
 */
async function end(process, kind, button) {
  button.setAttribute("aria-busy", "true");
  const force = button.parentElement.querySelector(".force-process");
  const offer = setTimeout(() => (force.hidden = false), 300);
  try {
    await api.del(`${pathOf(process)}${kind === "force" ? "?force=1" : ""}`);
  } catch (problem) {
    const told = t("processes.end-failed", { reason: reasonOf(problem) });
    console.error(told, problem);
    toasts.error(told, problem);
  } finally {
    clearTimeout(offer);
    button.removeAttribute("aria-busy");
    store.refresh("processes");
  }
}

/**
 * Reads on for as long as the output is unfolded, the tab is seen and more can come. Who has scrolled up
 * stays there.
 */
async function read(process, viewer, output) {
  const path = pathOf(process);
  let next = 0;
  output.textContent = "";
  while (viewer.open && viewer.isConnected) {
    const part = await get(`${path}?after=${next}`);
    if (part && part !== GONE) {
      next = part.next;
      append(output, part);
      if (!isAlive(part) && part.output === "") {
        if (output.textContent === "") {
          setText(output, t("processes.silent"));
        }
        return;
      }
    }
    if (part === GONE) {
      store.refresh("processes");
      return;
    }
    await new Promise((done) => setTimeout(done, part?.output ? READ_MS / 4 : READ_MS));
    await seen();
  }
}

/** Resolves when the tab is in sight. */
function seen() {
  return document.hidden
    ? new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }))
    : Promise.resolve();
}

/** What there is to read, null when there is no answer, GONE when there is nothing any more. */
async function get(path) {
  try {
    return await api.get(path);
  } catch (problem) {
    if (problem instanceof api.Problem) {
      return problem.status === 404 ? GONE : null;
    }
    throw problem;
  }
}

function append(output, { output: text, missing }) {
  const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
  const gap = missing > 0 ? `${t("processes.missing", { size: size(missing) })}\n` : "";
  if (gap || text) {
    setText(output, (output.textContent + gap + text).slice(-MOST_OUTPUT));
  }
  if (atEnd) {
    output.scrollTop = output.scrollHeight;
  }
}
