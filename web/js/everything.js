// Everything at once: runs that are not over, what goes on in the background, chat networks, sessions that are
// live, and the newest ends. It takes all of it from the store; rows keep their elements, so that a thousand of them cost
// only what has changed.

import * as clock from "./clock.js";
import * as background from "./background.js";
import * as channels from "./channels.js";
import { h, icon, keyed, setText } from "./dom.js";
import { runRows } from "./facts.js";
import { framed } from "./frame.js";
import { holdFacts } from "./header.js";
import { receiptLine } from "./receipt.js";
import { phaseMark, phaseOf, updatePhase } from "./run-row.js";
import { shortId } from "./short-id.js";
import { forceButton, stopButton } from "./stop-run.js";
import * as store from "./store.js";
import { age, ago, exactTime, oneLine, t } from "./texts.js";

const AGE_MS = 1000;

export function mount(root) {
  const parts = furnish(root);
  // While another view is shown this one does no work; it is drawn when somebody comes back.
  const frame = framed(() => {
    if (store.get("route").view !== "runs") {
      return;
    }
    drawRuns(parts.runs, runRows(store.get("runs")));
    drawSessions(
      parts.sessions,
      store.get("sessions").items.filter((session) => session.state !== "expired"),
    );
    drawEnded(parts.ended, store.get("ended"));
    const hold = store.get("hold");
    parts.hold.hidden = !hold.held;
    setText(parts.hold, hold.held ? holdFacts(hold) : "");
  });
  const timer = setInterval(() => !document.hidden && tick(root), AGE_MS);
  const undo = [
    ...["runs", "sessions", "ended", "hold", "route"].map((slice) => store.subscribe(slice, frame.ask)),
    background.mount(parts.processes),
    channels.mount(parts.channels),
  ];
  return () => {
    clearInterval(timer);
    frame.cancel();
    undo.forEach((forget) => forget());
    root.replaceChildren();
  };
}

function furnish(root) {
  const runs = section("everything.runs", "runs", [
    "doing",
    "message",
    "agent",
    "session",
    "age",
    "tokens",
    "processes",
    "stop",
  ]);
  const sessions = section("everything.sessions", "live-sessions", [
    "doing",
    "session",
    "agent",
    "runs",
    "used",
  ]);
  const ended = section("everything.ended", "ended", [
    "how",
    "message",
    "agent",
    "session",
    "when",
    "receipt",
  ]);
  const processes = h(
    "section",
    { class: "part", "aria-labelledby": "processes-title" },
    h("h2", { id: "processes-title" }, t("everything.processes")),
    h("div", { id: "processes" }),
  );
  const networks = h(
    "section",
    { class: "part", "aria-labelledby": "channels-title", hidden: true },
    h("h2", { id: "channels-title" }, t("everything.channels")),
    h("ul", { id: "channels", class: "channels" }),
  );
  const hold = h("p", { class: "hold-facts", hidden: true });
  root.replaceChildren(
    h("h1", { class: "unseen" }, t("everything.title")),
    hold,
    runs,
    processes,
    networks,
    sessions,
    ended,
  );
  return { hold, runs, sessions, ended, processes: processes.lastElementChild, channels: networks };
}

/** A heading, a table, and what is said while it is empty. */
function section(key, id, columns) {
  return h(
    "section",
    { class: "part", "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, t(key), " ", h("span", { class: "number" })),
    h(
      "div",
      { class: "table-frame" },
      h(
        "table",
        { id, class: "rows", "aria-labelledby": `${id}-title` },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            columns.map((column) => h("th", { scope: "col", class: `c-${column}` }, t(`column.${column}`))),
          ),
        ),
        h("tbody"),
      ),
    ),
    h(
      "div",
      { class: "empty", hidden: true },
      h("p", {}, t(`${key}.none`)),
      h("p", {}, t(`${key}.next`)),
      command(key),
    ),
  );
}

function command(key) {
  const text = t(`${key}.command`);
  return text === `${key}.command` ? null : h("code", {}, text);
}

function fill(part, rows, keyOf, make, update) {
  const [heading, frame, empty] = part.children;
  setText(heading.lastElementChild, rows.length > 0 ? String(rows.length) : "");
  frame.hidden = rows.length === 0;
  empty.hidden = rows.length > 0;
  keyed(frame.querySelector("tbody"), rows, keyOf, make, update);
}

function drawRuns(part, rows) {
  fill(part, rows, ({ run }) => run.runId, makeRun, updateRun);
}

function cells(names) {
  return names.map((name) => h("td", { class: `c-${name}`, data: { label: t(`column.${name}`) } }));
}

function makeRun({ run }) {
  const row = h(
    "tr",
    { data: { run: run.runId } },
    cells(["doing", "message", "agent", "session", "age", "tokens", "processes", "stop"]),
  );
  const [doing, message, agent, session, lived, , , stop] = row.children;
  doing.append(phaseMark());
  message.append(runLink(run));
  agent.append(oneLine(run.agent, 60));
  session.append(sessionLink(run.sessionKey));
  lived.append(h("span", { class: "age", title: exactTime(run.acceptedAt) }));
  stop.append(h("span"));
  return row;
}

/** What each row shows, so that of a thousand only those are touched that have changed. */
const shown = new WeakMap();

function updateRun(row, { run, depth }) {
  const { state, startedAt, usage, processes: alive } = run;
  const shows = [state, phaseOf(run), startedAt, alive, depth, tokensOf(usage)].join("\n");
  if (shown.get(row) === shows) {
    return;
  }
  shown.set(row, shows);
  const [doing, message, , , lived, tokens, processes, stop] = row.children;
  row.dataset.state = run.state;
  row.dataset.phase = phaseOf(run);
  message.style.setProperty("--depth", String(depth));
  updatePhase(doing.firstElementChild, run);
  const since = run.startedAt ?? run.acceptedAt;
  lived.firstElementChild.dataset.since = since;
  setText(lived.firstElementChild, age(since) ?? "");
  setText(tokens, tokensOf(run.usage));
  setText(processes, run.processes > 0 ? String(run.processes) : "");
  // The place of the button stays the same: a second press does not hit something else.
  const wanted = run.state === "ending" ? "force" : "stop";
  if (stop.dataset.button !== wanted) {
    const hadFocus = stop.contains(document.activeElement);
    stop.dataset.button = wanted;
    stop.replaceChildren(
      wanted === "force" ? forceButton(run.runId, { small: true }) : stopButton(run.runId, { small: true }),
    );
    if (hadFocus) {
      stop.firstElementChild.focus();
    }
  }
}

function runLink(run) {
  const text = oneLine(run.text, 160) || shortId(run.runId);
  return h("a", { href: `#/r/${encodeURIComponent(run.runId)}`, title: run.runId }, text);
}

function sessionLink(key) {
  return h(
    "a",
    { class: "quiet-link", href: `#/s/${encodeURIComponent(key)}`, title: key },
    oneLine(key, 60),
  );
}

function tokensOf({ inputTokens, outputTokens, estimated }) {
  const sum = inputTokens + outputTokens;
  return sum === 0 ? "" : `${estimated ? "~" : ""}${sum.toLocaleString("en")}`;
}

function drawSessions(part, sessions) {
  const make = (session) => {
    const row = h(
      "tr",
      { data: { liveSession: session.key } },
      cells(["doing", "session", "agent", "runs", "used"]),
    );
    row.children[0].append(h("span", { class: "phase" }));
    row.children[1].append(sessionLink(session.key));
    row.children[4].append(h("time"));
    return row;
  };
  fill(
    part,
    sessions,
    (session) => session.key,
    make,
    (row, session) => {
      const [state, , agent, runs, used] = row.children;
      if (state.firstElementChild.dataset.phase !== session.state) {
        state.firstElementChild.dataset.phase = session.state;
        state.firstElementChild.replaceChildren(
          icon(session.state === "active" ? "gear" : "clock"),
          t(`sessions.state.${session.state}`),
        );
      }
      setText(agent, session.agent ? oneLine(session.agent, 60) : "");
      setText(runs, session.activeRuns.length > 0 ? String(session.activeRuns.length) : "");
      setTime(used.firstElementChild, session.lastUsedAt);
    },
  );
}

/** How long ago it was is kept up to date by the page; here only a new time is of interest. */
function setTime(element, at) {
  if (element.getAttribute("datetime") === at) {
    return;
  }
  element.setAttribute("datetime", at);
  element.title = exactTime(at);
  setText(element, ago(at));
}

function drawEnded(part, runs) {
  const make = (run) => {
    const row = h(
      "tr",
      { data: { run: run.runId, state: "ended" } },
      cells(["how", "message", "agent", "session", "when", "receipt"]),
    );
    const [how, message, agent, session, when, receipt] = row.children;
    const mark = phaseMark();
    updatePhase(mark, run);
    how.append(mark);
    message.append(runLink(run));
    agent.append(oneLine(run.agent, 60));
    session.append(sessionLink(run.sessionKey));
    when.append(h("time", { datetime: run.endedAt, title: exactTime(run.endedAt) }, ago(run.endedAt)));
    receipt.append(run.receipt ? receiptLine(run.receipt) : "");
    return row;
  };
  fill(part, runs, (run) => run.runId, make);
}

/** Ages go on by themselves; everything else waits for news. */
function tick(root) {
  const now = clock.now();
  for (const element of root.querySelectorAll(".age")) {
    setText(element, age(element.dataset.since, now) ?? "");
  }
}
