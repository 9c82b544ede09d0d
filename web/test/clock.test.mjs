// The daemon's time on a page whose own clock is wrong: clock.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { heard, now } from "../js/clock.js";

test("a clock that is minutes off is corrected, and the way of a message is no difference", () => {
  assert.equal(now(1_000_000), 1_000_000, "as long as nothing was heard");
  heard(1_180_000, 1_000_000);
  assert.equal(now(1_000_000), 1_180_000, "three minutes slow");
  heard(1_209_900, 1_030_000);
  assert.equal(now(1_030_000), 1_210_000, "a message that took longer moves nothing");
  heard(860_000, 1_040_000);
  assert.equal(now(1_040_000), 860_000, "three minutes fast");
  heard(undefined, 1_040_000);
  assert.equal(now(1_040_000), 860_000, "no time is none");
  heard(1_040_000, 1_040_000);
  assert.equal(now(1_040_000), 1_040_000);
});
