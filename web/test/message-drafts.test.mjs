// Tests of message-drafts.js with a storage like the browser's.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

let number = 0;
let rows;

/** A fresh instance of the module, as after a reload. */
const loaded = () => import(`../js/message-drafts.js?${(number += 1)}`);

beforeEach(() => {
  rows = new Map();
  globalThis.sessionStorage = {
    get length() {
      return rows.size;
    },
    key: (at) => [...rows.keys()][at],
    getItem: (name) => rows.get(name) ?? null,
    setItem: (name, text) => rows.set(name, text),
    removeItem: (name) => rows.delete(name),
  };
});

test("a draft survives a reload for its author and session only", async () => {
  const before = await loaded();
  before.writeDraft("anna", "s", "half a thought");
  const after = await loaded();
  assert.equal(after.readDraft("anna", "s"), "half a thought");
  assert.equal(after.readDraft("bela", "s"), "");
  assert.equal(after.readDraft("anna", "s2"), "");
});

test("a sent draft is removed from storage", async () => {
  const drafts = await loaded();
  drafts.writeDraft("anna", "s", "half a thought");
  drafts.writeDraft("anna", "s", "");
  assert.equal(rows.size, 0);
  assert.equal((await loaded()).readDraft("anna", "s"), "");
});

test("sign-out clears stored drafts", async () => {
  rows.set("quell.theme", "dark");
  const drafts = await loaded();
  drafts.writeDraft("anna", "s", "secret");
  drafts.writeDraft("anna", "s2", "secret");
  drafts.clearStoredDrafts();
  assert.deepEqual([...rows.keys()], ["quell.theme"]);
  assert.equal(drafts.readDraft("anna", "s"), "secret", "the page that is still open has it");
});

test("without storage a draft lives until the reload", async () => {
  globalThis.sessionStorage = {
    getItem() {
      throw new Error("denied");
    },
    setItem() {
      throw new Error("full");
    },
  };
  const drafts = await loaded();
  drafts.writeDraft("anna", "s", "half a thought");
  assert.equal(drafts.readDraft("anna", "s"), "half a thought");
});
