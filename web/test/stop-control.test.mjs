// The stop of the open session against a daemon that is a list of answers: stop-control.js.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, beforeEach, test } from "node:test";

import { StopControl } from "../js/stop-control.js";
import { useTexts } from "../js/texts.js";
import { connection } from "./lost-connection.mjs";

useTexts(JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8")), "en");

const realFetch = globalThis.fetch;
const NOTHING = { aborted: false, runIds: [], withdrawn: [] };
/** What was asked, and how it is answered: path -> [status, body] or a promise of it. */
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

/** A control over facts that the test changes, and the line that it writes. */
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
    lastEnded: () => null,
    withdrawn: (messages) => all.back.push(...messages),
    changed: () => stop.update(),
    principal: () => "anna",
    told: [],
    failed: (text) => all.told.push(text),
    notes: [],
    noted: (text) => all.notes.push(text),
    ...facts,
  };
  const stop = new StopControl("s", line, all);
  return { stop, line, facts: all, classes };
}

/** Lets everything that can go on go on. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a run that follows the stopped one is stopped gently and not said to be stopping", async () => {
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
  assert.deepEqual(stops.map(({ body }) => body.force ?? false), [false, false]);
  stop.close();
});

test("a closed control writes and asks nothing any more, and gives back what was withdrawn", async () => {
  const { stop, line, facts, classes } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  let answer;
  answers["/api/sessions/s/stop"] = new Promise((resolve) => {
    answer = resolve;
  });
  stop.press();
  const looking = stop.look();
  stop.close();
  assert.equal(line.textContent, "");
  line.textContent = "what the next one says";
  answer([200, { aborted: true, runIds: ["a"], withdrawn: [{ runId: "q", text: "later" }] }]);
  await settled();
  stop.tell("a problem");
  await looking;
  assert.equal(stop.looking, 0, "it does not look again");
  assert.equal(line.textContent, "what the next one says");
  assert.deepEqual([...classes], []);
  assert.deepEqual(facts.back, [{ runId: "q", text: "later" }]);
});

test("a stop that may not stop the run says whose it is, and not that it is stopping", async () => {
  const { stop, line, facts } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  answers["/api/runs/a"] = [200, { runId: "a", state: "running", principal: "bela", held: [] }];
  stop.press();
  assert.equal(stop.mode(), "force", "shown at once");
  await settled();
  assert.equal(stop.mode(), "stop");
  assert.equal(line.textContent, "");
  assert.deepEqual(facts.told, ["Not stopped: this run is bela's. An admin can stop it."]);
  stop.close();
});

test("a stop that comes just behind the end of the run has nothing to tell", async () => {
  const { stop, facts } = control();
  facts.now = [{ runId: "a", state: "running", stopping: false }];
  answers["/api/runs/a"] = [200, { runId: "a", state: "ended", principal: "bela" }];
  stop.press();
  await settled();
  assert.equal(stop.mode(), "stop");
  assert.deepEqual(facts.told, []);
  stop.close();
});

test("a message that is under way is stopped ahead of its arrival, and once more behind it", async () => {
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
/** Asks over HTTP fail from now on. */
const noNetwork = () => {
  globalThis.fetch = network;
};
const stopsOf = (line) => line.requests.filter(({ method }) => method === "runs.stop");

test("a stop while the connection is lost waits for it, and goes first by run id", async () => {
  const line = connection();
  await line.open();
  await line.lose();
  noNetwork();
  const { stop, line: settling, facts } = control();
  facts.now = [RUNNING];
  stop.press();
  await settled();
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

test("a kept stop is never that of a run which follows", async () => {
  const line = connection();
  await line.open();
  await line.lose();
  noNetwork();
  const { stop, line: settling, facts } = control();
  facts.now = [RUNNING];
  stop.press();
  await settled();
  facts.now = [{ runId: "b", state: "running", stopping: false }];
  const verdict = { kind: "completed" };
  line.answer("runs.stop", () => [true, { runId: "a", state: "ended", aborted: false, withdrawn: [], verdict }]);
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

test("a kept stop outlives a connection that is lost again before the answer", async () => {
  const line = connection();
  await line.open();
  const { stop, facts } = control();
  facts.now = [RUNNING];
  // The line breaks while the stop is on its way.
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

test("a second press while the connection is lost makes the kept stop a forced one", async () => {
  const line = connection();
  await line.open();
  await line.lose();
  noNetwork();
  const { stop, facts } = control();
  facts.now = [RUNNING];
  stop.press();
  await settled();
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
