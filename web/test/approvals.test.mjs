// Tests of allowedAnswers and patternSubject in approvals.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { allowedAnswers, patternSubject } from "../js/approvals.js";

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

test("the principal of the run allows its calls only as a person", () => {
  const admin = me("ann", "admin");
  assert.deepEqual(allowedAnswers(admin, row), { allow: false, deny: true, missing: "person" });
  assert.deepEqual(allowedAnswers({ ...admin, answersOwnCalls: true }, row), {
    allow: true,
    deny: true,
    missing: null,
  });
});

test("the user answers a question as a person, without the right to allow calls", () => {
  const asked = { ...row, question: { server: "files", message: "Which?", fields: [] } };
  const person = { ...me("ann", "write"), answersOwnCalls: true };
  assert.deepEqual(allowedAnswers(person, asked), { allow: true, deny: true, missing: null });
  assert.equal(allowedAnswers(me("ann", "write"), asked).missing, "approve");
  assert.equal(allowedAnswers({ ...me("bob", "write"), answersOwnCalls: true }, asked).missing, "approve");
});

test("who has allowed a call leaves the rest to others", () => {
  const counted = { ...row, quorum: 2, allowedBy: [{ principal: "bob", surface: "page" }] };
  assert.deepEqual(allowedAnswers(me("bob", "admin"), counted), { allow: false, deny: true, missing: "another" });
  assert.deepEqual(allowedAnswers(me("cy", "admin"), counted), { allow: true, deny: true, missing: null });
});

test("signed-out users may answer nothing", () => {
  assert.deepEqual(allowedAnswers(null, row), { allow: false, deny: false, missing: "approve" });
});

test("a pattern is offered for commands and paths only", () => {
  assert.equal(patternSubject({ tool: "shell", arguments: { command: "git push" } }), "git push");
  assert.equal(patternSubject({ tool: "write_file", arguments: { path: "/srv/a", content: "x" } }), "/srv/a");
  const escalated = { tool: "write_file", arguments: { path: "/srv/a" }, escalation: { reason: "why" } };
  for (const other of [{ tool: "fetch_url", arguments: { url: "x" } }, { tool: "shell", arguments: null }, escalated]) {
    assert.equal(patternSubject(other), null);
  }
});
