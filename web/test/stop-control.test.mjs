// Tests of stop-control.js and pending-stops.js against scripted answers.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, beforeEach, test } from "node:test";

import { StopControl } from "../js/stop-control.js";
import { useTexts } from "../js/texts.js";
import { fakeConnection } from "./fake-websocket.mjs";

useTexts(JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8")), "en");

const realFetch = globalThis.fetch;
const NOTHING = { aborted: false, runIds: [], withdrawn: [] };
/** Requests, and their answers: path -> [status, body] or a promise of it. */
let asked;
let answers;

beforeEach(() => {
  asked = [];
  answers = {};
  globalThis.fetch = async (path, { body } = {}) => {
    asked.push({ path, body: body && JSON.parse(body) });
    const [status, answer] = (await answers[path]) ?? [200, NOTHING];
    return { ok: status < 300, status, text: async () => JSON.stringify(answer) };
  };
});

after(() => {
  globalThis.fetch = realFetch;
});

/** A control with a host that the test changes, and its status line. */
function control(facts = {}) {
  const classes = new Set();
  const line = {
    textContent: "",
    classList: {
      toggle: (name, on) => (on ? classes.add(name) : classes.delete(name)),
      remove: (...names) => names.forEach((name) => classes.delete(name)),
    },
  };
  const all = {
    now: [],
    under: [],
    back: [],
    runs: () => all.now,
    sending: () => all.under,
    arrival: () => Promise.resolve(false),
    lastEndedRun: () => null,
    onWithdrawn: (messages) => all.back.push(...messages),
    onChange: () => stop.update(),
    principal: () => "anna",
    told: [],
    onFailure: (text) => all.told.push(text),
    notes: [],
    onNotice: (text) => all.notes.push(text),
    ...facts,
  };
  const stop = new StopControl("s", line, all);
  return { stop, line, facts: all, classes };
}

/** Runs pending promises and immediates. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a stop does not carry over to the next run", async () => {
  const { stop, line, facts } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  answers["/api/sessions/s/stop"] = [200, { aborted: true, runIds: ["a"], withdrawn: [] }];
  stop.press();
  await settled();
  assert.match(line.textContent, /stopping/i);
  facts.now = [
    { runId: "a", state: "ending", stopping: true },
    { runId: "b", state: "queued", stopping: false },
  ];
  stop.update();
  facts.now = [{ runId: "b", state: "running", stopping: false }];
  stop.update();
  assert.equal(stop.mode(), "stop");
  assert.equal(line.textContent, "");
  stop.press();
  await settled();
  const stops = asked.filter(({ path }) => path === "/api/sessions/s/stop");
  assert.deepEqual(
    stops.map(({ body }) => body.force ?? false),
    [false, false],
  );
  stop.close();
});

test("a closed control returns withdrawn messages and stays silent", async () => {
  const { stop, line, facts, classes } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  let answer;
  answers["/api/sessions/s/stop"] = new Promise((resolve) => {
    answer = resolve;
  });
  stop.press();
  const looking = stop.pollHeld();
  stop.close();
  assert.equal(line.textContent, "");
  line.textContent = "what the next one says";
  answer([200, { aborted: true, runIds: ["a"], withdrawn: [{ runId: "q", text: "later" }] }]);
  await settled();
  await looking;
  assert.equal(stop.pollTimer, 0, "it does not look again");
  assert.equal(line.textContent, "what the next one says");
  assert.deepEqual([...classes], []);
  assert.deepEqual(facts.back, [{ runId: "q", text: "later" }]);
});

test("a stop of another user's run names its owner", async () => {
  const { stop, line, facts } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  answers["/api/runs/a"] = [200, { runId: "a", state: "running", principal: "bela", held: [] }];
  stop.press();
  assert.equal(stop.mode(), "force", "shown at once");
  await settled();
  assert.equal(stop.mode(), "stop");
  assert.equal(line.textContent, "");
  assert.deepEqual(facts.told, ["Not stopped: this run belongs to bela. An admin can stop it."]);
  stop.close();
});

test("a stop just after the end reports nothing", async () => {
  const { stop, facts } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  answers["/api/runs/a"] = [200, { runId: "a", state: "ended", principal: "bela" }];
  stop.press();
  await settled();
  assert.equal(stop.mode(), "stop");
  assert.deepEqual(facts.told, []);
  stop.close();
});

test("an unanswered message is stopped before and after arrival", async () => {
  const { stop, facts } = control();
  let arrived;
  facts.under = ["m"];
  facts.arrival = () =>
    new Promise((resolve) => {
      arrived = resolve;
    });
  answers["/api/runs/m/stop"] = [404, { code: "run_not_found" }];
  stop.press();
  await settled();
  const stops = () => asked.filter(({ path }) => path === "/api/runs/m/stop").length;
  assert.equal(stops(), 1, "before anything is known of it");
  answers["/api/runs/m/stop"] = [200, { aborted: true, withdrawn: [] }];
  arrived(true);
  await settled();
  assert.equal(stops(), 2);
  assert.deepEqual(facts.told, []);
  stop.close();
});

const RUNNING = { runId: "a", state: "running", stopping: false };
const network = () => Promise.reject(new TypeError("no network"));
/** HTTP requests fail from now on. */
const noNetwork = () => {
  globalThis.fetch = network;
};
/** A stop of run "a" that was pressed while nothing could be sent. */
async function pressWithoutConnection() {
  const line = fakeConnection();
  await line.open();
  await line.lose();
  noNetwork();
  const { stop, line: settling, facts } = control();
  facts.now = [RUNNING];
  stop.press();
  await settled();
  return { line, stop, settling, facts };
}
const stopsOf = (line) => line.requests.filter(({ method }) => method === "runs.stop");

test("a stop without connection is sent first after reconnecting", async () => {
  const { line, stop, settling, facts } = await pressWithoutConnection();
  assert.equal(stop.mode(), "force", "the stop is kept");
  assert.match(settling.textContent, /waits for the connection/);
  assert.deepEqual(facts.told, [], "nothing has failed");
  const before = line.requests.length;
  line.answer("runs.stop", () => [true, { runId: "a", state: "ending", aborted: true, withdrawn: [] }]);
  await line.open();
  await settled();
  const [greeting, first] = line.requests.slice(before);
  assert.equal(greeting.method, "connect");
  assert.deepEqual(first, { method: "runs.stop", params: { runId: "a" } });
  assert.equal(stopsOf(line).length, 1);
  stop.update();
  assert.doesNotMatch(settling.textContent, /waits for the connection/);
  facts.now = [];
  stop.close();
  line.leave();
});

test("a pending stop never stops a later run", async () => {
  const { line, stop, settling, facts } = await pressWithoutConnection();
  facts.now = [{ runId: "b", state: "running", stopping: false }];
  const verdict = { kind: "completed" };
  line.answer("runs.stop", () => [
    true,
    { runId: "a", state: "ended", aborted: false, withdrawn: [], verdict },
  ]);
  facts.now = [];
  await line.open();
  await settled();
  assert.deepEqual(
    stopsOf(line).map(({ params }) => params.runId),
    ["a"],
  );
  assert.match(settling.textContent, /ended before the stop arrived/);
  facts.now = [{ runId: "b", state: "running", stopping: false }];
  stop.update();
  assert.equal(stop.mode(), "stop", "the successor was not asked to stop");
  assert.equal(settling.textContent, "");
  stop.close();
  line.leave();
});

test("a pending stop survives another lost connection", async () => {
  const line = fakeConnection();
  await line.open();
  const { stop, facts } = control();
  facts.now = [RUNNING];
  // The connection is lost while the stop is sent.
  globalThis.fetch = (_path, { signal } = {}) =>
    new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
  stop.press();
  await line.lose();
  await settled();
  noNetwork();
  line.answer("runs.stop", () => null);
  await line.open();
  await line.lose();
  line.answer("runs.stop", () => [true, { runId: "a", state: "ending", aborted: true, withdrawn: [] }]);
  await line.open();
  await settled();
  assert.equal(stopsOf(line).length, 2, "sent on each connection until it was answered");
  await line.lose();
  await line.open();
  await settled();
  assert.equal(stopsOf(line).length, 2);
  stop.close();
  line.leave();
});

test("a second press without connection forces the pending stop", async () => {
  const { line, stop } = await pressWithoutConnection();
  stop.press();
  await settled();
  line.answer("runs.stop", () => [true, { runId: "a", state: "ending", aborted: true, withdrawn: [] }]);
  await line.open();
  await settled();
  assert.deepEqual(
    stopsOf(line).map(({ params }) => params),
    [{ runId: "a", force: true }],
  );
  stop.close();
  line.leave();
});
