// Which runs a stop was meant for, and what the button does: asked-stop.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { asking, modeOf, stillAsked, stoppedNothing } from "../js/asked-stop.js";

const run = (runId, stopping = false) => ({ runId, stopping });

test("the button sends, stops and forces", () => {
  assert.equal(modeOf(null, [], []), "send");
  assert.equal(modeOf(null, [run("a")], []), "stop");
  assert.equal(modeOf(null, [], ["a"]), "stop", "a message under way can be stopped");
  assert.equal(modeOf(asking("gentle", [run("a")], []), [run("a")], []), "force");
  assert.equal(modeOf(null, [run("a", true)], []), "force", "somebody else stopped it");
});

test("a stop is not passed on to the run that follows", () => {
  let asked = asking("gentle", [run("a")], []);
  const steps = [
    [[run("a", true)], "force"],
    [[run("a", true), run("b")], "force"],
    [[run("b")], "stop"],
  ];
  for (const [runs, mode] of steps) {
    assert.equal(modeOf(asked, runs, []), mode);
    asked = stillAsked(asked, runs, []);
  }
  assert.equal(asked, null);
});

test("a message that was under way when the stop was asked is meant, and so is the run it becomes", () => {
  const asked = asking("gentle", [], ["m"]);
  assert.equal(modeOf(asked, [], ["m"]), "force");
  assert.equal(modeOf(asked, [run("m")], []), "force");
  assert.equal(stillAsked(asked, [], ["n"]), null);
  assert.equal(modeOf(asked, [], ["n"]), "stop");
});

test("an answer that names nothing says that nothing was stopped", () => {
  const nothing = { aborted: false, runIds: [], withdrawn: [] };
  assert.equal(stoppedNothing(nothing), true);
  assert.equal(stoppedNothing({ ...nothing, aborted: true, runIds: ["a"] }), false);
  assert.equal(stoppedNothing({ ...nothing, ending: ["a"] }), false);
  assert.equal(stoppedNothing({ ...nothing, withdrawn: [{ runId: "q", text: "" }] }), false);
});
