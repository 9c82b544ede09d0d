// Tests of allowedAnswers in approvals.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { allowedAnswers } from "../js/approvals.js";

const row = { principal: "ann" };
const own = { ...row, ownModel: true };
const me = (principal, ...scopes) => ({ principal, scopes });

test("an admin answers everything", () => {
  assert.deepEqual(allowedAnswers(me("root", "admin"), own), { allow: true, deny: true, missing: null });
});

test("a write token may deny its own calls and allow none", () => {
  assert.deepEqual(allowedAnswers(me("ann", "write"), row), { allow: false, deny: true, missing: "approve" });
  assert.deepEqual(allowedAnswers(me("bob", "write"), row), {
    allow: false,
    deny: false,
    missing: "approve",
  });
});

test("a call of a session's own model needs an admin", () => {
  assert.deepEqual(allowedAnswers(me("bob", "read", "approve"), row), {
    allow: true,
    deny: true,
    missing: null,
  });
  assert.deepEqual(allowedAnswers(me("bob", "read", "approve"), own), {
    allow: false,
    deny: true,
    missing: "admin",
  });
});

test("signed-out users may answer nothing", () => {
  assert.deepEqual(allowedAnswers(null, row), { allow: false, deny: false, missing: "approve" });
});
