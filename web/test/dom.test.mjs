// Tests of dom.js: the functions that need no document.

import assert from "node:assert/strict";
import { test } from "node:test";

import { isComposing, isSecondClick } from "../js/dom.js";

test("only the second click of a double click is ignored", () => {
  const pressed = [0, 1, 2, 3].filter((detail) => !isSecondClick({ detail }));
  assert.deepEqual(pressed, [0, 1, 3]);
});

test("keys of an input method are recognised in all browsers", () => {
  assert.equal(isComposing({ isComposing: true, keyCode: 27 }), true);
  assert.equal(isComposing({ isComposing: false, keyCode: 229 }), true);
  assert.equal(isComposing({ isComposing: false, keyCode: 27 }), false);
});
