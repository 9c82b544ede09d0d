// Drafts over a storage like the browser's: drafts.js.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

let number = 0;
let rows;

/** The module as a page that was just loaded has it. */
const loaded = () => import(`../js/drafts.js?${(number += 1)}`);

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

test("a draft outlives a reload, for its writer and session alone", async () => {
  const before = await loaded();
  before.write("anna", "s", "half a thought");
  const after = await loaded();
  assert.equal(after.read("anna", "s"), "half a thought");
  assert.equal(after.read("bela", "s"), "");
  assert.equal(after.read("anna", "s2"), "");
});

test("a draft that was sent is in no storage", async () => {
  const drafts = await loaded();
  drafts.write("anna", "s", "half a thought");
  drafts.write("anna", "s", "");
  assert.equal(rows.size, 0);
  assert.equal((await loaded()).read("anna", "s"), "");
});

test("who signs out leaves no draft in the storage", async () => {
  rows.set("quell.theme", "dark");
  const drafts = await loaded();
  drafts.write("anna", "s", "secret");
  drafts.write("anna", "s2", "secret");
  drafts.forgetStored();
  assert.deepEqual([...rows.keys()], ["quell.theme"]);
  assert.equal(drafts.read("anna", "s"), "secret", "the page that is still open has it");
});

test("a browser that keeps nothing keeps the draft until the reload", async () => {
  globalThis.sessionStorage = {
    getItem() {
      throw new Error("denied");
    },
    setItem() {
      throw new Error("full");
    },
  };
  const drafts = await loaded();
  drafts.write("anna", "s", "half a thought");
  assert.equal(drafts.read("anna", "s"), "half a thought");
});
