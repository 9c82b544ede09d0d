// The run inspector: one run with what it is, how it stands, how to stop it, and everything that it holds or
// held. Which run it is says the store (`inspected`); what is known of it comes from run-watch.js.

import * as background from "./background.js";
import { h, keyed, listen, setText } from "./dom.js";
import { framed } from "./frame.js";
import { picture } from "./picture.js";
import { reasonOf } from "./reasons.js";
import { amendmentLines, receiptLine } from "./receipt.js";
import { phaseMark, updatePhase } from "./run-row.js";
import { watch } from "./run-watch.js";
import { shortId } from "./short-id.js";
import { forceButton, stopButton } from "./stop-run.js";
import * as store from "./store.js";
import { inFull, millis, oneLine, t, timeElement } from "./texts.js";

export function mount(root) {
  let leave = () => {};
  const show = (runId) => {
    leave();
    leave = runId ? inspect(root, runId) : nothing(root);
  };
  const forget = store.subscribe("inspected", show);
  return () => {
    forget();
    leave();
    root.replaceChildren();
  };
}

function nothing(root) {
  delete root.dataset.run;
  root.replaceChildren(
    h(
      "div",
      { class: "empty" },
      h("h2", {}, t("inspector.none")),
      h("p", {}, t("inspector.none.next")),
      h("code", {}, 'quell send "hello"'),
    ),
  );
  return () => {};
}

function inspect(root, runId) {
  let known = null;
  const parts = furnish(root, runId, () => frame.ask());
  const frame = framed(() => known && draw(parts, known));
  const tell = (now) => {
    known = now;
    frame.ask();
  };
  const watching = watch(
    runId,
    tell,
    () => !document.hidden && root.checkVisibility({ visibilityProperty: true }),
  );
  const sizes = new ResizeObserver(frame.ask);
  sizes.observe(parts.picture.frame.parentElement);
  const undo = [
    listen(parts.stop, "click", () => setTimeout(watching.look, 30)),
    store.subscribe("route", ({ view }) => {
      // As a view of its own it is what the page is about; beside the chat it is an aside.
      root.setAttribute("role", view === "run" ? "main" : "complementary");
      parts.title.setAttribute("aria-level", view === "run" ? "1" : "2");
      watching.look();
      frame.ask();
    }),
    background.mount(parts.processes, (process) => process.startedByRun === runId),
    store.subscribe(
      "processes",
      (all) => (parts.processesPart.hidden = !all.some((one) => one.startedByRun === runId)),
    ),
  ];
  return () => {
    watching.leave();
    sizes.disconnect();
    frame.cancel();
    undo.forEach((forget) => forget());
  };
}

function furnish(root, runId, changed) {
  root.dataset.run = runId;
  const link = h(
    "a",
    { href: `#/r/${encodeURIComponent(runId)}` },
    t("inspector.title", { run: shortId(runId) }),
  );
  const parts = {
    title: h("h2", { class: "inspect-title", title: runId }, link),
    phase: phaseMark(),
    stop: h("span", { class: "inspect-stop" }),
    problem: h("p", { class: "problem", role: "alert", hidden: true }),
    message: h("p", { class: "inspect-message" }),
    facts: h("dl", { class: "facts" }),
    receipt: h("p", { class: "receipt-line", "aria-live": "polite" }),
    leftovers: h("ul", { class: "leftovers", hidden: true }),
    amendments: h("ul", { class: "amendments", hidden: true }),
    heading: h("h2", { id: "timeline-title" }),
    picture: picture(changed),
    processes: h("div", {}),
  };
  parts.processesPart = h(
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
    parts.facts,
    h(
      "section",
      { class: "part", "aria-labelledby": "timeline-title" },
      parts.heading,
      parts.picture.element,
    ),
    parts.processesPart,
  );
  root.replaceChildren(
    h("header", { class: "inspect-head" }, parts.title, parts.phase, parts.stop),
    parts.problem,
    parts.body,
  );
  return parts;
}

function draw(parts, { view, children, problem }) {
  parts.problem.hidden = !problem;
  if (problem) {
    setText(parts.problem, t("inspector.failed", { reason: reasonOf(problem) }));
  }
  parts.body.hidden = !view;
  if (!view) {
    return;
  }
  updatePhase(parts.phase, view);
  drawStop(parts.stop, view);
  setText(parts.message, inFull(view.text));
  drawReceipt(parts, view.receipt);
  drawFacts(parts.facts, factsOf(view));
  setText(parts.heading, t(view.receipt ? "inspector.timeline" : "inspector.timeline.live"));
  parts.picture.draw(view, children);
}

/** One place for both buttons, so that the second press hits what the first one became. */
function drawStop(place, view) {
  const wanted = { queued: "stop", running: "stop", ending: "force" }[view.state] ?? "none";
  if (place.dataset.button === wanted) {
    return;
  }
  const hadFocus = place.contains(document.activeElement);
  place.dataset.button = wanted;
  place.replaceChildren(
    ...(wanted === "stop" ? [stopButton(view.runId)] : wanted === "force" ? [forceButton(view.runId)] : []),
  );
  if (hadFocus) {
    place.firstElementChild?.focus();
  }
}

function drawReceipt(parts, receipt) {
  parts.receipt.hidden = !receipt;
  setText(parts.receipt, receipt ? receiptLine(receipt) : "");
  const left = receipt?.leftovers ?? [];
  parts.leftovers.hidden = left.length === 0;
  keyed(
    parts.leftovers,
    left,
    ({ name }) => name,
    ({ name }) => h("li", {}, oneLine(name, 300)),
  );
  const later = receipt ? amendmentLines(receipt) : [];
  parts.amendments.hidden = later.length === 0;
  keyed(
    parts.amendments,
    later,
    (line) => line,
    (line) => h("li", {}, line),
  );
}

/** `{name, text, href?}` or `{name, at}`, in the order in which they are shown. */
function factsOf(view) {
  const began = view.startedAt ?? view.acceptedAt;
  const { inputTokens, outputTokens, estimated } = view.usage;
  const tokens = (number) => `${estimated ? "~" : ""}${number.toLocaleString("en")}`;
  const session = `#/s/${encodeURIComponent(view.sessionKey)}`;
  const took = view.endedAt && Date.parse(view.endedAt) - Date.parse(began);
  return [
    { name: "agent", text: oneLine(view.agent, 80) },
    { name: "session", text: oneLine(view.sessionKey, 80), href: session },
    { name: "from", text: t("inspector.from", { who: oneLine(view.principal, 60), door: view.surface }) },
    view.parent && {
      name: "parent",
      text: shortId(view.parent),
      href: `#/r/${encodeURIComponent(view.parent)}`,
    },
    { name: "began", at: began },
    view.endedAt && { name: "took", text: millis(took) },
    { name: "steps", text: String(view.steps) },
    { name: "tokens", text: t("inspector.tokens", { in: tokens(inputTokens), out: tokens(outputTokens) }) },
    view.processes > 0 && { name: "processes", text: String(view.processes) },
    view.verdict && endOf(view.verdict) && { name: "end", text: endOf(view.verdict) },
    { name: "id", text: view.runId },
  ].filter(Boolean);
}

/** Who ended it and why, or what went wrong. */
function endOf(verdict) {
  if (verdict.kind === "failed") {
    return `${oneLine(verdict.message, 300)} (${verdict.code})`;
  }
  if (verdict.kind !== "aborted") {
    return null;
  }
  const who = verdict.by
    ? t("inspector.from", { who: oneLine(verdict.by.principal, 60), door: verdict.by.surface })
    : "Quell";
  return t("inspector.stopped-by", { who, reason: oneLine(verdict.reason, 200) });
}

/** A fact is touched only when it says something new: who reads or copies it is not disturbed. */
function drawFacts(list, facts) {
  const make = ({ name }) =>
    h("div", {}, h("dt", {}, t(`inspector.fact.${name}`)), h("dd", { class: `fact-${name}` }));
  keyed(
    list,
    facts,
    ({ name }) => name,
    make,
    (item, { text, href, at }) => {
      const value = item.lastElementChild;
      const said = text ?? at;
      if (value.dataset.said !== said) {
        value.dataset.said = said;
        value.replaceChildren(at ? timeElement(at) : href ? h("a", { href }, text) : text);
      }
    },
  );
}
