// Ids in every browser, secure or not: new-id.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { newId } from "../js/new-id.js";

test("ids are new each time, of one length, and need no secure page", () => {
  const whole = globalThis.crypto;
  const ofPlainHttp = { getRandomValues: (bytes) => whole.getRandomValues(bytes) };
  Object.defineProperty(globalThis, "crypto", { value: ofPlainHttp, configurable: true });
  try {
    const ids = new Set(Array.from({ length: 1000 }, newId));
    assert.equal(ids.size, 1000);
    for (const id of ids) {
      assert.match(id, /^[0-9a-f]{32}$/);
    }
  } finally {
    Object.defineProperty(globalThis, "crypto", { value: whole, configurable: true });
  }
});
