// Why something could not be done, for people: reasons.js.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { reasonOf, stopFailure } from "../js/reasons.js";
import { useTexts } from "../js/texts.js";

const table = JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8"));
const inLanguage = (code) => useTexts(table, code);

test("the daemon's own words are told as they are, to whoever reads English", () => {
  inLanguage("en");
  const detail = 'there is no agent "scout"';
  assert.equal(reasonOf({ code: "agent_not_found", detail, status: 404 }), detail);
  assert.equal(reasonOf({ code: "something_new", detail, status: 418 }), detail);
});

test("who reads another language gets the page's sentence where there is one", () => {
  inLanguage("ko");
  assert.equal(
    reasonOf({ code: "agent_not_found", detail: "x", status: 404 }),
    table["reason.agent_not_found"].ko,
  );
  assert.equal(reasonOf({ code: "something_new", detail: "what happened", status: 418 }), "what happened");
});

test("a lost network, an answer of somebody else and an empty one are reasons, too", () => {
  inLanguage("en");
  assert.match(reasonOf({ code: "network", detail: "Failed to fetch", status: 0 }), /does not answer/);
  assert.match(
    reasonOf({ code: "error", detail: "502 Bad Gateway", status: 502 }),
    /answered: 502 Bad Gateway$/,
  );
  assert.match(reasonOf({ code: "error", detail: "", status: 502 }), /answered: 502$/);
  assert.equal(reasonOf({ code: "forbidden", detail: "", status: 403 }), table["reason.forbidden"].en);
  assert.equal(reasonOf({ code: "something_new", status: 418 }), table["reason.unknown"].en);
});

test("a reason stays in its line", () => {
  inLanguage("en");
  const told = reasonOf({ code: "x", detail: `one\ntwo\u001b[2J ${"long ".repeat(500)}`, status: 500 });
  assert.ok(told.startsWith("one two [2J ") && told.length <= 300 && told.endsWith("…"));
});

test("a stop without an answer is not said to have failed", () => {
  for (const language of ["en", "ko", "zh"]) {
    inLanguage(language);
    const lost = stopFailure("stop-all.failed", { code: "network", detail: "", status: 0 });
    assert.equal(lost, table["stop.unanswered"][language]);
    const refused = stopFailure("stop-all.failed", { code: "something_new", detail: "why", status: 418 });
    assert.equal(refused, table["stop-all.failed"][language].replace("{reason}", "why"));
  }
});
