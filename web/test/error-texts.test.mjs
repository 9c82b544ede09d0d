// Tests of error-texts.js.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { errorText, stopErrorText } from "../js/error-texts.js";
import { useTexts } from "../js/texts.js";

const table = JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8"));
const inLanguage = (code) => useTexts(table, code);

test("in English the daemon's detail is shown unchanged", () => {
  inLanguage("en");
  const detail = 'there is no agent "scout"';
  assert.equal(errorText({ code: "agent_not_found", detail, status: 404 }), detail);
  assert.equal(errorText({ code: "something_new", detail, status: 418 }), detail);
});

test("other languages use the page's text for known codes", () => {
  inLanguage("ko");
  assert.equal(
    errorText({ code: "agent_not_found", detail: "x", status: 404 }),
    table["reason.agent_not_found"].ko,
  );
  assert.equal(errorText({ code: "something_new", detail: "what happened", status: 418 }), "what happened");
});

test("lost network, proxy answers and empty details have reasons", () => {
  inLanguage("en");
  assert.match(errorText({ code: "network", detail: "Failed to fetch", status: 0 }), /does not answer/);
  assert.match(
    errorText({ code: "error", detail: "502 Bad Gateway", status: 502 }),
    /answered: 502 Bad Gateway$/,
  );
  assert.match(errorText({ code: "error", detail: "", status: 502 }), /answered: 502$/);
  assert.equal(errorText({ code: "forbidden", detail: "", status: 403 }), table["reason.forbidden"].en);
  assert.equal(errorText({ code: "something_new", status: 418 }), table["reason.unknown"].en);
});

test("a reason is one line of limited length", () => {
  inLanguage("en");
  const told = errorText({ code: "x", detail: `one\ntwo\u001b[2J ${"long ".repeat(500)}`, status: 500 });
  assert.ok(told.startsWith("one two [2J ") && told.length <= 300 && told.endsWith("…"));
});

test("a stop without an answer is not reported as failed", () => {
  for (const language of ["en", "ko", "zh"]) {
    inLanguage(language);
    const lost = stopErrorText("stop-all.failed", { code: "network", detail: "", status: 0 });
    assert.equal(lost, table["stop.unanswered"][language]);
    const refused = stopErrorText("stop-all.failed", { code: "something_new", detail: "why", status: 418 });
    assert.equal(refused, table["stop-all.failed"][language].replace("{reason}", "why"));
  }
});
