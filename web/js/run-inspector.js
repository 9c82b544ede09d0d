// One run in the inspector: its state, its stop button, its facts, and everything that it holds or held, with data
// from run-polling.js. Exports showRun, which returns its clean-up.

import { mountBackgroundProcesses } from "./background-processes.js";
import { h, listen, reconcileChildren, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import { shortId } from "./ids.js";
import { amendmentLines, receiptLine } from "./receipt.js";
import { createPhaseMark, updatePhaseMark } from "./run-phase.js";
import { pollRun } from "./run-polling.js";
import { forceButton, stopButton } from "./stop-buttons.js";
import * as store from "./store.js";
import { escapeInvisible, millis, oneLine, t, timeElement } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import { createTimelineView } from "./timeline-view.js";
import { changesFiles, createUndo } from "./undo-button.js";

export function showRun(root, runId) {
  let shown = null;
  const parts = createElements(root, runId, () => frame.schedule());
  const frame = throttleToFrame(() => shown && render(parts, shown));
  const onUpdate = (update) => {
    shown = update;
    frame.schedule();
  };
  const poller = pollRun(
    runId,
    onUpdate,
    () => !document.hidden && root.checkVisibility({ visibilityProperty: true }),
  );
  const resizeObserver = new ResizeObserver(frame.schedule);
  resizeObserver.observe(parts.timeline.frame.parentElement);
  const cleanups = [
    listen(parts.stop, "click", () => setTimeout(poller.pollNow, 30)),
    store.subscribe("route", ({ view }) => {
      // The main landmark as a view of its own, complementary content beside the chat.
      root.setAttribute("role", view === "run" ? "main" : "complementary");
      parts.title.setAttribute("aria-level", view === "run" ? "1" : "2");
      poller.pollNow();
      frame.schedule();
    }),
    mountBackgroundProcesses(parts.processes, (process) => process.startedByRun === runId),
    store.subscribe(
      "processes",
      (all) => (parts.processesSection.hidden = !all.some((one) => one.startedByRun === runId)),
    ),
  ];
  return () => {
    poller.stop();
    resizeObserver.disconnect();
    frame.cancel();
    cleanups.forEach((cleanup) => cleanup());
  };
}

function createElements(root, runId, redraw) {
  root.dataset.run = runId;
  const link = h(
    "a",
    { href: `#/r/${encodeURIComponent(runId)}` },
    t("inspector.title", { run: shortId(runId) }),
  );
  const parts = {
    title: h("h2", { class: "inspect-title", title: runId }, link),
    phase: createPhaseMark(),
    stop: h("span", { class: "inspect-stop" }),
    problem: h("p", { class: "problem", role: "alert", hidden: true }),
    message: h("p", { class: "inspect-message" }),
    facts: h("dl", { class: "facts" }),
    receipt: h("p", { class: "receipt-line", "aria-live": "polite" }),
    leftovers: h("ul", { class: "leftovers", hidden: true }),
    amendments: h("ul", { class: "amendments", hidden: true }),
    heading: h("h2", { id: "timeline-title" }),
    timeline: createTimelineView(redraw),
    processes: h("div", {}),
    undo: createUndo(runId),
  };
  parts.undo.hidden = true;
  parts.processesSection = h(
    "section",
    { class: "part" },
    h("h2", {}, t("inspector.processes")),
    parts.processes,
  );
  parts.body = h(
    "div",
    { class: "inspect-body", hidden: true },
    parts.message,
    parts.receipt,
    parts.leftovers,
    parts.amendments,
    parts.undo,
    parts.facts,
    h(
      "section",
      { class: "part", "aria-labelledby": "timeline-title" },
      parts.heading,
      parts.timeline.element,
    ),
    parts.processesSection,
  );
  root.replaceChildren(
    h("header", { class: "inspect-head" }, parts.title, parts.phase, parts.stop),
    parts.problem,
    parts.body,
  );
  return parts;
}

function render(parts, { view, children, problem }) {
  parts.problem.hidden = !problem;
  if (problem) {
    setText(parts.problem, t("inspector.failed", { reason: errorText(problem) }));
  }
  parts.body.hidden = !view;
  if (!view) {
    return;
  }
  updatePhaseMark(parts.phase, view);
  renderStopButton(parts.stop, view);
  setText(parts.message, escapeInvisible(view.text));
  renderReceipt(parts, view.receipt);
  parts.undo.hidden = !changesFiles(view);
  renderFacts(parts.facts, factsOf(view));
  setText(parts.heading, t(view.receipt ? "inspector.timeline" : "inspector.timeline.live"));
  parts.timeline.render(view, children);
}

/** Stop turns into Force in the same place. */
function renderStopButton(slot, view) {
  const buttonKind = { queued: "stop", running: "stop", ending: "force" }[view.state] ?? "none";
  if (slot.dataset.button === buttonKind) {
    return;
  }
  const hadFocus = slot.contains(document.activeElement);
  slot.dataset.button = buttonKind;
  slot.replaceChildren(
    ...(buttonKind === "stop"
      ? [stopButton(view)]
      : buttonKind === "force"
        ? [forceButton(view)]
        : []),
  );
  if (hadFocus) {
    slot.firstElementChild?.focus();
  }
}

function renderReceipt(parts, receipt) {
  parts.receipt.hidden = !receipt;
  setText(parts.receipt, receipt ? receiptLine(receipt) : "");
  const leftovers = receipt?.leftovers ?? [];
  parts.leftovers.hidden = leftovers.length === 0;
  reconcileChildren(
    parts.leftovers,
    leftovers,
    ({ name }) => name,
    ({ name }) => h("li", {}, oneLine(name, 300)),
  );
  const amendments = receipt ? amendmentLines(receipt) : [];
  parts.amendments.hidden = amendments.length === 0;
  reconcileChildren(
    parts.amendments,
    amendments,
    (line) => line,
    (line) => h("li", {}, line),
  );
}

/** `{name, text, href?}` or `{name, at}`, in the order in which they are shown. */
function factsOf(view) {
  const began = view.startedAt ?? view.acceptedAt;
  const { inputTokens, outputTokens, cachedTokens, estimated } = view.usage;
  const tokens = (number) => `${estimated ? "~" : ""}${number.toLocaleString("en")}`;
  const session = `#/s/${encodeURIComponent(view.sessionKey)}`;
  const took = view.endedAt && Date.parse(view.endedAt) - Date.parse(began);
  return [
    { name: "agent", text: oneLine(view.agent, 80) },
    { name: "session", text: oneLine(view.sessionKey, 80), href: session },
    {
      name: "from",
      text: t("inspector.from", { principal: oneLine(view.principal, 60), surface: view.surface }),
    },
    view.parent && {
      name: "parent",
      text: shortId(view.parent),
      href: `#/r/${encodeURIComponent(view.parent)}`,
    },
    { name: "began", at: began },
    view.endedAt && { name: "took", text: millis(took) },
    { name: "steps", text: String(view.steps) },
    {
      name: "tokens",
      text: t(cachedTokens ? "inspector.tokens-cached" : "inspector.tokens", {
        in: tokens(inputTokens),
        cached: tokens(cachedTokens ?? 0),
        out: tokens(outputTokens),
      }),
    },
    view.processes > 0 && { name: "processes", text: String(view.processes) },
    view.verdict && endText(view.verdict) && { name: "end", text: endText(view.verdict) },
    { name: "id", text: view.runId },
  ].filter(Boolean);
}

function endText(verdict) {
  if (verdict.kind === "failed") {
    return `${oneLine(verdict.message, 300)} (${verdict.code})`;
  }
  if (verdict.kind !== "aborted") {
    return null;
  }
  const principal = verdict.by
    ? t("inspector.from", { principal: oneLine(verdict.by.principal, 60), surface: verdict.by.surface })
    : "Quell";
  return t("inspector.stopped-by", { who: principal, reason: oneLine(verdict.reason, 200) });
}

/** Writes only changes, so that selected text stays selected. */
function renderFacts(list, facts) {
  const create = ({ name }) =>
    h("div", {}, h("dt", {}, t(`inspector.fact.${name}`)), h("dd", { class: `fact-${name}` }));
  reconcileChildren(
    list,
    facts,
    ({ name }) => name,
    create,
    (item, { text, href, at }) => {
      const value = item.lastElementChild;
      const shownText = text ?? at;
      if (value.dataset.shown !== shownText) {
        value.dataset.shown = shownText;
        value.replaceChildren(at ? timeElement(at) : href ? h("a", { href }, text) : text);
      }
    },
  );
}
