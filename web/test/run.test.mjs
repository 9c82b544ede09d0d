// Tests of run.js, session-history.js and call-status.js.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { callStatus } from "../js/call-status.js";
import { historyItems, mergeNewest } from "../js/session-history.js";
import {
  applyEvent,
  fromHistory,
  MAX_OUTPUT,
  mergeHistory,
  newRun,
  outcome,
  UNKNOWN_VERDICT,
} from "../js/run.js";
import { useTexts } from "../js/texts.js";

useTexts(JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8")), "en");

/** Applies events with rising numbers, from `first` on. */
function listen(run, events, first = run.seq + 1) {
  events.forEach((event, index) =>
    applyEvent(run, {
      runId: "r",
      sessionKey: "s",
      at: "2026-01-01T00:00:00Z",
      seq: first + index,
      ...event,
    }),
  );
  return run;
}

const started = [
  { type: "run.queued", agent: "main" },
  { type: "run.started", agent: "main" },
  { type: "step.started", step: 1 },
];
const aborted = { kind: "aborted", reason: "user" };
const receipt = { usage: { inputTokens: 1, outputTokens: 2, estimated: false } };
const end = (verdict, text) => [
  { type: "run.ending", verdict },
  { type: "run.ended", verdict, receipt, steps: 1, text },
];

test("text, thinking and calls go to their step, in order", () => {
  const run = listen(newRun("r"), [
    ...started,
    { type: "thinking.delta", text: "hm" },
    { type: "text.delta", text: "I " },
    { type: "text.delta", text: "look." },
    { type: "tool.started", callId: "c1", tool: "shell", arguments: { command: "ls" } },
    { type: "tool.output", callId: "c1", stream: "stdout", text: "a\n" },
    { type: "tool.ended", callId: "c1", end: "ok", output: "a\n[exit code 0]", ms: 12 },
    { type: "step.started", step: 2 },
    { type: "text.delta", text: "Done." },
    { type: "usage", usage: { inputTokens: 9, outputTokens: 9 } },
    ...end({ kind: "completed" }, "Done."),
  ]);
  assert.deepEqual(
    run.steps.map((step) => [step.thinking, step.text, step.calls.map((call) => call.id), step.partial]),
    [
      ["hm", "I look.", ["c1"], null],
      ["", "Done.", [], null],
    ],
  );
  assert.equal(run.calls.get("c1").end, "ok");
  assert.equal(outcome(run), "completed");
});

test("repeated events and events after the end are ignored", () => {
  const run = listen(newRun("r"), [...started, { type: "text.delta", text: "once" }]);
  listen(run, [{ type: "text.delta", text: "once" }], 4);
  assert.equal(run.steps[0].text, "once");
  listen(run, end(aborted));
  listen(run, end({ kind: "completed" }), 5);
  assert.equal(outcome(run), "stopped");
});

test("text that was streaming at a stop is marked as partial", () => {
  const cut = listen(newRun("r"), [
    ...started,
    { type: "text.delta", text: "half" },
    { type: "run.ending", verdict: aborted },
  ]);
  assert.equal(outcome(cut), "stopping");
  assert.equal(cut.steps[0].partial, "cut");
  const whole = listen(newRun("r"), [
    ...started,
    { type: "text.delta", text: "I look." },
    { type: "tool.started", callId: "c", tool: "shell", arguments: {} },
    ...end(aborted),
  ]);
  assert.equal(whole.steps[0].partial, null);
  const finished = listen(newRun("r"), [
    ...started,
    { type: "text.delta", text: "all" },
    ...end({ kind: "completed" }, "all"),
  ]);
  assert.equal(finished.steps[0].partial, null);
});

test("the end counts with any number and brings a missed answer", () => {
  const run = listen(newRun("r"), started, 1);
  applyEvent(run, { seq: 2, type: "run.ended", verdict: aborted, receipt, at: "2026-01-01T00:00:00Z" });
  assert.equal(outcome(run), "stopped");
  const late = listen(
    newRun("r"),
    [{ type: "run.ended", verdict: { kind: "completed" }, receipt, text: "42" }],
    90,
  );
  assert.equal(late.steps[0].text, "42");
});

test("a snapshot replaces missed events", () => {
  const run = listen(newRun("r"), [...started, { type: "text.delta", text: "abc" }]);
  listen(run, [{ type: "run.snapshot", text: "abcdef", thinking: "t", calls: [] }], 9);
  assert.deepEqual(
    run.steps.map((step) => step.text),
    ["abcdef"],
  );
  listen(
    run,
    [
      {
        type: "run.snapshot",
        text: "next",
        thinking: "",
        calls: [{ callId: "c", tool: "shell", end: "ok" }],
      },
    ],
    20,
  );
  assert.deepEqual(
    run.steps.map((step) => [step.text, step.calls.length]),
    [
      ["abcdef", 1],
      ["next", 0],
    ],
  );
  listen(run, [
    { type: "step.started", step: 2 },
    { type: "text.delta", text: "last" },
  ]);
  assert.deepEqual(
    run.steps.map((step) => step.text),
    ["abcdef", "next", "last"],
  );
  assert.equal(run.incomplete, true);
});

test("a call that needs approval waits", () => {
  const run = listen(newRun("r"), [
    ...started,
    { type: "approval.requested", id: "a", callId: "c", tool: "shell", arguments: {} },
  ]);
  assert.equal(run.calls.get("c").approval, "a");
  listen(run, [
    { type: "approval.resolved", id: "a", decision: "deny" },
    { type: "tool.ended", callId: "c", end: "denied", output: "", ms: 0 },
  ]);
  assert.equal(run.calls.get("c").approval, null);
  assert.equal(run.steps[0].calls.length, 1);
});

test("only the end of long output is kept", () => {
  const run = listen(newRun("r"), [
    ...started,
    { type: "tool.started", callId: "c", tool: "shell", arguments: {} },
  ]);
  const line = "0123456789".repeat(1000);
  for (let count = 0; count < 50; count += 1) {
    listen(run, [{ type: "tool.output", callId: "c", stream: "stdout", text: line }]);
  }
  const call = run.calls.get("c");
  assert.ok(call.output.length <= MAX_OUTPUT * 1.25);
  assert.equal(call.output.length + call.dropped, 500_000);
});

test("a carriage return overwrites the open line", () => {
  const run = newRun("a");
  listen(run, [
    { type: "tool.started", callId: "c", tool: "shell", arguments: {} },
    { type: "tool.output", callId: "c", stream: "stderr", text: "begun\n10%" },
    { type: "tool.output", callId: "c", stream: "stderr", text: "\r99%\n" },
  ]);
  assert.equal(run.calls.get("c").output, "begun\n99%\n");
});

test("a snapshot has the end of a missed call", () => {
  const run = newRun("a");
  const call = { callId: "c", tool: "shell", end: "error", code: 3, ms: 2, output: "4000\n[exit code 3]" };
  listen(run, [{ type: "run.snapshot", text: "", thinking: "", calls: [call] }]);
  const { end, ms, result } = run.calls.get("c");
  assert.deepEqual([end, ms, result], ["error", 2, "4000\n[exit code 3]"]);
});

const history = [
  { runId: "a", role: "user", text: "one", at: "1" },
  {
    runId: "a",
    role: "assistant",
    text: "look",
    at: "1",
    calls: [{ id: "c", tool: "shell", arguments: { command: "ls" } }],
  },
  { runId: "a", role: "tool", text: "x", at: "1", callId: "c" },
  { runId: "a", role: "user", text: "faster", at: "1" },
  { runId: "a", role: "assistant", text: "half", at: "1", partial: true },
  { runId: "a", role: "note", text: "stopped", at: "1", verdict: aborted },
  { role: "reset", text: "", at: "2" },
  { runId: "b", role: "user", text: "two", at: "3" },
  { runId: "b", role: "assistant", text: "2", at: "3", verdict: { kind: "completed" } },
];

test("a turn of the history becomes an ended run", () => {
  const [item] = historyItems(history);
  const run = fromHistory(item.messages);
  assert.equal(run.userText, "one");
  assert.equal(outcome(run), "stopped");
  assert.equal(run.modelNote, "stopped");
  assert.deepEqual(
    run.steps.map((step) => [step.text, step.partial, step.steered]),
    [
      ["look", null, ["faster"]],
      ["half", "not-seen", []],
    ],
  );
  assert.equal(run.calls.get("c").result, "x");
});

test("the history corrects a run that was followed live", () => {
  const live = listen(newRun("a"), [...started, { type: "text.delta", text: "half" }, ...end(aborted)]);
  const answer = { runId: "a", role: "assistant", at: "1", verdict: aborted, text: "half", kept: true };
  const kept = fromHistory([{ runId: "a", role: "user", text: "q", at: "1" }, answer]);
  assert.equal(kept.steps[0].text, "half");
  mergeHistory(live, kept);
  assert.equal(live.steps[0].partial, "kept");
  const lost = listen(
    newRun("a"),
    [{ type: "run.snapshot", text: "z", thinking: "", calls: [] }, ...end(aborted)],
    50,
  );
  mergeHistory(lost, fromHistory(historyItems(history)[0].messages));
  assert.deepEqual(
    lost.steps.map((step) => step.text),
    ["look", "half"],
  );
  const heard = listen(newRun("a"), [...started, { type: "text.delta", text: "nobody wrote this down" }]);
  listen(heard, [{ type: "run.snapshot", text: "", thinking: "", calls: [] }, ...end(aborted)], 50);
  mergeHistory(heard, fromHistory([{ runId: "a", role: "user", text: "q", at: "1", verdict: aborted }]));
  assert.equal(heard.steps[0].text, "nobody wrote this down");
  assert.equal(heard.steps[0].partial, "cut");
});

test("the history names the agent of a run that was followed late", () => {
  const snapshot = { type: "run.snapshot", text: "z", thinking: "", calls: [] };
  const late = listen(newRun("a"), [snapshot, ...end(aborted)], 50);
  assert.equal(late.agent, null);
  mergeHistory(late, fromHistory([{ runId: "a", role: "user", text: "q", at: "1", agent: "main" }]));
  assert.equal(late.agent, "main");
});

test("history pages and active runs are in one order", () => {
  const page = historyItems(history);
  assert.deepEqual(
    page.map((item) => item.id),
    ["run a", "reset 2", "run b"],
  );
  const live = { id: "run c", runId: "c" };
  const old = { id: "run 0", runId: "0", messages: [] };
  assert.deepEqual(
    mergeNewest([old, page[0], live], page).items.map((item) => item.id),
    ["run 0", "run a", "reset 2", "run b", "run c"],
  );
  assert.deepEqual(
    mergeNewest([{ id: "run b", runId: "b" }, live], page).items.map((item) => item.id),
    ["run a", "reset 2", "run b", "run c"],
  );
  assert.equal(mergeNewest([old], page).gap, true);
  assert.equal(mergeNewest([live], page).gap, false);
});

test("an unknown end is not shown as completed", () => {
  const run = listen(newRun("r"), [...started, { type: "text.delta", text: "Do" }]);
  Object.assign(run, { state: "ended", verdict: UNKNOWN_VERDICT, incomplete: true });
  assert.equal(outcome(run), "unknown");
  const at = "2026-01-01T00:00:00Z";
  mergeHistory(
    run,
    fromHistory([
      { runId: "r", at, role: "user", text: "?" },
      { runId: "r", at, role: "assistant", text: "Done.", verdict: { kind: "completed" } },
    ]),
  );
  assert.equal(outcome(run), "completed");
  assert.equal(run.steps[0].text, "Done.");
});

test("turns that were only followed live appear once, in order", () => {
  const heard = ["a", "b", "c", "d"].map((runId) => ({ id: `run ${runId}`, runId }));
  const page = ["b", "c"].map((runId) => ({ id: `run ${runId}`, runId, messages: [{}] }));
  const { items, older } = mergeNewest(heard, page);
  assert.deepEqual(
    items.map((item) => item.id),
    ["run a", "run b", "run c", "run d"],
  );
  assert.equal(older, 1);
});

/** Reproducible pseudo-random numbers (a linear congruential generator). */
function randomSource(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

function anyEvent(pick) {
  const callId = `c${pick(3)}`;
  const id = `a-${callId}`;
  const kinds = [
    { type: "step.started", step: 1 + pick(3) },
    { type: "text.delta", text: "some text" },
    { type: "thinking.delta", text: "a thought" },
    { type: "tool.started", callId, tool: "shell", arguments: {} },
    { type: "tool.output", callId, stream: "stdout", text: "out" },
    { type: "tool.ended", callId, end: ["ok", "error", "stopped"][pick(3)], output: "out", ms: 2 },
    { type: "approval.requested", id, callId, tool: "shell", arguments: {}, expiresAt: "" },
    { type: "approval.resolved", id, decision: "allow" },
    { type: "run.snapshot", text: "some text and more", thinking: "", calls: [{ callId, tool: "shell" }] },
    { type: "run.ending", verdict: aborted },
  ];
  return kinds[pick(kinds.length)];
}

test("no call is open after the end of its run", () => {
  const verdicts = [aborted, { kind: "completed" }, { kind: "failed", code: "internal", message: "broken" }];
  for (let seed = 0; seed < 500; seed += 1) {
    const pick = randomSource(seed);
    const run = listen(newRun("r"), [
      ...started,
      ...Array.from({ length: pick(20) }, () => anyEvent(pick)),
      { type: "run.ended", verdict: verdicts[pick(3)], receipt, steps: 1 },
    ]);
    listen(run, [anyEvent(pick)]);
    const live = [...run.calls.values()].filter((call) =>
      ["approval", "running"].includes(callStatus(call, run).status),
    );
    assert.deepEqual(live, [], `seed ${seed}`);
  }
});

test("a call that waited for an approval when the stop came has not started", () => {
  const run = listen(newRun("r"), [
    ...started,
    { type: "tool.started", callId: "c1", tool: "shell", arguments: {} },
    { type: "approval.requested", id: "a", callId: "c2", tool: "shell", arguments: {}, expiresAt: "" },
    ...end(aborted),
  ]);
  assert.deepEqual(
    [...run.calls.values()].map((call) => callStatus(call, run).status),
    ["stopped", "not_started"],
  );
});

test("searches of the provider are kept in their order", () => {
  const searches = ["one", "two"].map((query) => ({ type: "model.search", query }));
  const run = listen(newRun("r"), [...started, ...searches, ...end({ kind: "completed" }, "Hi.")]);
  assert.deepEqual(run.searches, ["one", "two"]);
});

test("a model that takes over is kept with the reason", () => {
  const change = { from: "a/x", to: "b/y", reason: "overloaded" };
  const fallback = { type: "model.fallback", ...change };
  const run = listen(newRun("r"), [...started, fallback, ...end({ kind: "completed" }, "Hi.")]);
  assert.deepEqual(run.fallbacks, [change]);
});
