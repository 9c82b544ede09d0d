// Tests of stop-request.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { activeStopRequest, buttonMode, isNothingStopped, newStopRequest } from "../js/stop-request.js";

const run = (runId, stopping = false) => ({ runId, stopping });

test("the button sends, stops and forces", () => {
  assert.equal(buttonMode(null, [], []), "send");
  assert.equal(buttonMode(null, [run("a")], []), "stop");
  assert.equal(buttonMode(null, [], ["a"]), "stop", "a message under way can be stopped");
  assert.equal(buttonMode(newStopRequest("gentle", [run("a")], []), [run("a")], []), "force");
  assert.equal(buttonMode(null, [run("a", true)], []), "force", "somebody else stopped it");
});

test("a stop request does not cover later runs", () => {
  let asked = newStopRequest("gentle", [run("a")], []);
  const steps = [
    [[run("a", true)], "force"],
    [[run("a", true), run("b")], "force"],
    [[run("b")], "stop"],
  ];
  for (const [runs, mode] of steps) {
    assert.equal(buttonMode(asked, runs, []), mode);
    asked = activeStopRequest(asked, runs, []);
  }
  assert.equal(asked, null);
});

test("a stop request covers unanswered messages and their runs", () => {
  const asked = newStopRequest("gentle", [], ["m"]);
  assert.equal(buttonMode(asked, [], ["m"]), "force");
  assert.equal(buttonMode(asked, [run("m")], []), "force");
  assert.equal(activeStopRequest(asked, [], ["n"]), null);
  assert.equal(buttonMode(asked, [], ["n"]), "stop");
});

test("an answer without runs means that nothing was stopped", () => {
  const nothing = { aborted: false, runIds: [], withdrawn: [] };
  assert.equal(isNothingStopped(nothing), true);
  assert.equal(isNothingStopped({ ...nothing, aborted: true, runIds: ["a"] }), false);
  assert.equal(isNothingStopped({ ...nothing, ending: ["a"] }), false);
  assert.equal(isNothingStopped({ ...nothing, withdrawn: [{ runId: "q", text: "" }] }), false);
});
