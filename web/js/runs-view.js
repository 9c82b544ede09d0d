// The runs view: active runs, background processes, chat networks, schedules, live sessions and recently ended runs.
// Exports mountRunsView. Rows keep their elements, so that an update of a thousand rows touches only changes.

import { mountBackgroundProcesses } from "./background-processes.js";
import { mountChannels } from "./channels.js";
import { runRows } from "./derived-state.js";
import { h, icon, reconcileChildren, setText } from "./dom.js";
import { holdText } from "./header.js";
import { shortId } from "./ids.js";
import { receiptLine } from "./receipt.js";
import { createPhaseMark, phaseOf, updatePhaseMark } from "./run-phase.js";
import { mountSchedules } from "./schedules.js";
import * as clock from "./server-clock.js";
import { forceButton, stopButton } from "./stop-buttons.js";
import * as store from "./store.js";
import { age, ago, exactTime, oneLine, t } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import { mountTokens } from "./tokens.js";

const AGE_MS = 1000;

export function mountRunsView(root) {
  const parts = createElements(root);
  // Rendered only while this view is shown.
  const frame = throttleToFrame(() => {
    if (store.get("route").view !== "runs") {
      return;
    }
    renderRuns(parts.runs, runRows(store.get("runs")));
    renderSessions(
      parts.sessions,
      store.get("sessions").items.filter((session) => session.state !== "expired"),
    );
    renderEnded(parts.ended, store.get("ended"));
    const hold = store.get("hold");
    parts.hold.hidden = !hold.held;
    setText(parts.hold, hold.held ? holdText(hold) : "");
  });
  const timer = setInterval(() => !document.hidden && updateAges(root), AGE_MS);
  const cleanups = [
    ...["runs", "sessions", "ended", "hold", "route"].map((slice) => store.subscribe(slice, frame.schedule)),
    mountBackgroundProcesses(parts.processes),
    mountChannels(parts.channels),
    mountSchedules(parts.schedules),
    mountTokens(parts.tokens),
  ];
  return () => {
    clearInterval(timer);
    frame.cancel();
    cleanups.forEach((cleanup) => cleanup());
    root.replaceChildren();
  };
}

function createElements(root) {
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
  const schedules = h(
    "section",
    { class: "part", "aria-labelledby": "schedules-title", hidden: true },
    h("h2", { id: "schedules-title" }, t("schedules.title")),
    h("ul", { id: "schedules", class: "schedules" }),
  );
  const tokens = h(
    "section",
    { class: "part", "aria-labelledby": "tokens-title", hidden: true },
    h("h2", { id: "tokens-title" }, t("tokens.title")),
    h("ul", { id: "tokens", class: "schedules" }),
  );
  const hold = h("p", { class: "hold-facts", hidden: true });
  root.replaceChildren(
    h("h1", { class: "unseen" }, t("everything.title")),
    hold,
    runs,
    processes,
    networks,
    schedules,
    tokens,
    sessions,
    ended,
  );
  return { hold, runs, sessions, ended, processes: processes.lastElementChild, channels: networks, schedules, tokens };
}

/** A heading, a table, and its empty state. */
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
      commandElement(key),
    ),
  );
}

function commandElement(key) {
  const text = t(`${key}.command`);
  return text === `${key}.command` ? null : h("code", {}, text);
}

function renderSection(section, rows, keyOf, create, update) {
  const [heading, frame, empty] = section.children;
  setText(heading.lastElementChild, rows.length > 0 ? String(rows.length) : "");
  frame.hidden = rows.length === 0;
  empty.hidden = rows.length > 0;
  reconcileChildren(frame.querySelector("tbody"), rows, keyOf, create, update);
}

function renderRuns(section, rows) {
  renderSection(section, rows, ({ run }) => run.runId, createRunRow, updateRunRow);
}

function cells(names) {
  return names.map((name) => h("td", { class: `c-${name}`, data: { label: t(`column.${name}`) } }));
}

function createRunRow({ run }) {
  const row = h(
    "tr",
    { data: { run: run.runId } },
    cells(["doing", "message", "agent", "session", "age", "tokens", "processes", "stop"]),
  );
  const [stateCell, message, agent, session, ageCell, , , stop] = row.children;
  stateCell.append(createPhaseMark());
  message.append(runLink(run));
  agent.append(oneLine(run.agent, 60));
  session.append(sessionLink(run.sessionKey));
  ageCell.append(h("span", { class: "age", title: exactTime(run.acceptedAt) }));
  stop.append(h("span"));
  return row;
}

/** What each row shows; rows without a change are skipped. */
const shownSignatures = new WeakMap();

function updateRunRow(row, { run, depth }) {
  const { state, startedAt, usage, processes: processCount } = run;
  const signature = [state, phaseOf(run), startedAt, processCount, depth, tokensOf(usage)].join("\n");
  if (shownSignatures.get(row) === signature) {
    return;
  }
  shownSignatures.set(row, signature);
  const [stateCell, message, , , ageCell, tokens, processes, stop] = row.children;
  row.dataset.state = run.state;
  row.dataset.phase = phaseOf(run);
  message.style.setProperty("--depth", String(depth));
  updatePhaseMark(stateCell.firstElementChild, run);
  const since = run.startedAt ?? run.acceptedAt;
  ageCell.firstElementChild.dataset.since = since;
  setText(ageCell.firstElementChild, age(since) ?? "");
  setText(tokens, tokensOf(run.usage));
  setText(processes, run.processes > 0 ? String(run.processes) : "");
  // Stop turns into Force in the same place.
  const buttonKind = run.state === "ending" ? "force" : "stop";
  if (stop.dataset.button !== buttonKind) {
    const hadFocus = stop.contains(document.activeElement);
    stop.dataset.button = buttonKind;
    stop.replaceChildren(
      buttonKind === "force"
        ? forceButton(run, { small: true })
        : stopButton(run, { small: true }),
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

function renderSessions(section, sessions) {
  const createRow = (session) => {
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
  renderSection(
    section,
    sessions,
    (session) => session.key,
    createRow,
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

/** Sets a new time; main.js keeps the relative text up to date. */
function setTime(element, at) {
  if (element.getAttribute("datetime") === at) {
    return;
  }
  element.setAttribute("datetime", at);
  element.title = exactTime(at);
  setText(element, ago(at));
}

function renderEnded(section, runs) {
  const createRow = (run) => {
    const row = h(
      "tr",
      { data: { run: run.runId, state: "ended" } },
      cells(["how", "message", "agent", "session", "when", "receipt"]),
    );
    const [how, message, agent, session, when, receipt] = row.children;
    const mark = createPhaseMark();
    updatePhaseMark(mark, run);
    how.append(mark);
    message.append(runLink(run));
    agent.append(oneLine(run.agent, 60));
    session.append(sessionLink(run.sessionKey));
    when.append(h("time", { datetime: run.endedAt, title: exactTime(run.endedAt) }, ago(run.endedAt)));
    receipt.append(run.receipt ? receiptLine(run.receipt) : "");
    return row;
  };
  renderSection(section, runs, (run) => run.runId, createRow);
}

function updateAges(root) {
  const now = clock.now();
  for (const element of root.querySelectorAll(".age")) {
    setText(element, age(element.dataset.since, now) ?? "");
  }
}
