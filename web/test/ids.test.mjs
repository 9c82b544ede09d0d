// Tests of ids.js.

import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { test } from "node:test";

import { newId } from "../js/ids.js";

test("ids are unique and need no secure page", () => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "crypto");
  const ofPlainHttp = { getRandomValues: (bytes) => webcrypto.getRandomValues(bytes) };
  Object.defineProperty(globalThis, "crypto", { value: ofPlainHttp, configurable: true });
  try {
    const ids = new Set(Array.from({ length: 1000 }, newId));
    assert.equal(ids.size, 1000);
    for (const id of ids) {
      assert.match(id, /^[0-9a-f]{32}$/);
    }
  } finally {
    delete globalThis.crypto;
    if (before) {
      Object.defineProperty(globalThis, "crypto", before);
    }
  }
});
