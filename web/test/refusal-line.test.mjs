// Tests of refusal-line.js: the line goes with its cause.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { RefusalLine } from "../js/refusal-line.js";
import * as store from "../js/store.js";
import { useTexts } from "../js/texts.js";

useTexts(JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8")), "en");

function refuse(code) {
  const classes = new Set();
  const element = {
    textContent: "",
    classList: { add: (name) => classes.add(name), remove: (name) => classes.delete(name) },
  };
  const line = new RefusalLine(element, "s");
  line.show({ code, detail: "no" });
  return { line, element, isProblem: () => classes.has("problem") };
}

const queued = (count, sessionKey = "s") =>
  Array.from({ length: count }, (_, n) => ({ runId: `${n}`, sessionKey, state: "queued" }));

test("a lost answer is over with the next list of runs", () => {
  const { element, isProblem } = refuse("network");
  assert.match(element.textContent, /does not answer/);
  assert.equal(isProblem(), true);
  store.set("runs", []);
  assert.match(element.textContent, /can be sent now/);
  assert.equal(isProblem(), false);
});

test("a hold is over when it is lifted", () => {
  const { element } = refuse("held");
  store.set("hold", { held: true });
  assert.match(element.textContent, /on hold/);
  store.set("hold", { held: false });
  assert.match(element.textContent, /can be sent now/);
});

test("a full queue is over when fewer messages of the session wait", () => {
  store.set("runs", queued(2));
  const { element } = refuse("queue_full");
  store.set("runs", [...queued(2), ...queued(1, "other")]);
  assert.match(element.textContent, /is full/);
  store.set("runs", queued(1));
  assert.match(element.textContent, /can be sent now/);
});

test("a line that is cleared at that moment stays empty", () => {
  let clear = () => {};
  const unsubscribe = store.subscribe("runs", () => clear());
  const { line, element } = refuse("network");
  clear = () => line.clear();
  store.set("runs", queued(1));
  unsubscribe();
  assert.equal(element.textContent, "");
});

test("a refusal for good stays until it is cleared", () => {
  const { line, element } = refuse("forbidden");
  store.set("runs", []);
  assert.match(element.textContent, /Not sent: no/);
  line.clear();
  assert.equal(element.textContent, "");
});
