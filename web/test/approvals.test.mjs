import assert from "node:assert/strict";
import { test } from "node:test";

import { mayAnswer } from "../js/approvals.js";

const row = { principal: "ann" };
const own = { ...row, ownModel: true };
const me = (principal, ...scopes) => ({ principal, scopes });

test("an admin answers everything", () => {
  assert.deepEqual(mayAnswer(me("root", "admin"), own), { allow: true, deny: true, missing: null });
});

test("who writes may deny what it sent itself, and allow nothing", () => {
  assert.deepEqual(mayAnswer(me("ann", "write"), row), { allow: false, deny: true, missing: "approve" });
  assert.deepEqual(mayAnswer(me("bob", "write"), row), { allow: false, deny: false, missing: "approve" });
});

test("a call of a model that a session brought along takes an admin", () => {
  assert.deepEqual(mayAnswer(me("bob", "read", "approve"), row), { allow: true, deny: true, missing: null });
  assert.deepEqual(mayAnswer(me("bob", "read", "approve"), own), { allow: false, deny: true, missing: "admin" });
});

test("nobody who is signed out answers", () => {
  assert.deepEqual(mayAnswer(null, row), { allow: false, deny: false, missing: "approve" });
});
