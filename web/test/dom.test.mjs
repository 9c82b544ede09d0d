// What of the builder needs no document: dom.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { isComposing, isSecondHalf } from "../js/dom.js";

test("a double click is one press, and whoever presses a third time means it; keys count no clicks", () => {
  const pressed = [0, 1, 2, 3].filter((detail) => !isSecondHalf({ detail }));
  assert.deepEqual(pressed, [0, 1, 3]);
});

test("a key that ends the composing of letters is the keyboard's, whichever way the browser says so", () => {
  assert.equal(isComposing({ isComposing: true, keyCode: 27 }), true);
  assert.equal(isComposing({ isComposing: false, keyCode: 229 }), true);
  assert.equal(isComposing({ isComposing: false, keyCode: 27 }), false);
});
