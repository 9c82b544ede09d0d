// Tests of rights.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { may, mayChange, mayStop } from "../js/rights.js";

const me = (...scopes) => ({ principal: "ann", scopes });
const rights = (...scopes) =>
  ["write", "stop", "stop-all", "revoke", "admin"].filter((right) => may(right, me(...scopes)));

test("each scope gives its rights and no more", () => {
  assert.deepEqual(rights("read"), []);
  assert.deepEqual(rights("write"), ["write", "stop", "revoke"]);
  assert.deepEqual(rights("read", "stop:all"), ["stop", "stop-all"]);
  assert.deepEqual(rights("read", "approve"), ["revoke"]);
  assert.deepEqual(rights("admin"), ["write", "stop", "stop-all", "revoke", "admin"]);
  assert.equal(may("write", null), false);
});

test("settings of a session are changed by its owner, in a shared one by all who write, or by who writes to all", () => {
  const [own, others, shared] = [{ owner: "ann" }, { owner: "bob" }, { owner: "bob", shared: true }];
  assert.deepEqual([own, others, shared].map((owned) => mayChange(owned, me("write"))), [true, false, true]);
  assert.deepEqual([own, others].map((owned) => mayChange(owned, me("read", "write:all"))), [true, true]);
  assert.equal(mayChange(own, me("read")), false);
});

test("a run is stopped by its own token, or by one that stops all", () => {
  const [own, others] = [{ principal: "ann" }, { principal: "bob" }];
  assert.deepEqual([mayStop(own, me("write")), mayStop(others, me("write"))], [true, false]);
  assert.deepEqual([mayStop(own, me("read")), mayStop(others, me("read", "stop:all"))], [false, true]);
  assert.equal(mayStop(others, me("admin")), true);
});
