// Tests of server-clock.js with a wrong local clock.

import assert from "node:assert/strict";
import { test } from "node:test";

import { now, setServerTime } from "../js/server-clock.js";

test("a wrong clock is corrected, network delay is ignored", () => {
  assert.equal(now(1_000_000), 1_000_000, "as long as nothing was heard");
  setServerTime(1_180_000, 1_000_000);
  assert.equal(now(1_000_000), 1_180_000, "three minutes slow");
  setServerTime(1_209_900, 1_030_000);
  assert.equal(now(1_030_000), 1_210_000, "a message that took longer moves nothing");
  setServerTime(860_000, 1_040_000);
  assert.equal(now(1_040_000), 860_000, "three minutes fast");
  setServerTime(undefined, 1_040_000);
  assert.equal(now(1_040_000), 860_000, "no time is none");
  setServerTime(1_040_000, 1_040_000);
  assert.equal(now(1_040_000), 1_040_000);
});
