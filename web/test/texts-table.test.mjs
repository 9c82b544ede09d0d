// Every text of texts.json is used, and every used text exists. The format is checked by `tidy`.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const WEB = new URL("../", import.meta.url);
const table = JSON.parse(readFileSync(new URL("texts.json", WEB), "utf8"));
const scripts = readdirSync(new URL("js/", WEB)).map((name) =>
  readFileSync(new URL(`js/${name}`, WEB), "utf8"),
);
const page = [readFileSync(new URL("index.html", WEB), "utf8"), ...scripts].join("\n");

test("every text that the page uses exists", () => {
  const asked = [...page.matchAll(/\b(?:t|counted)\("([^"]+)"|data-(?:text|label|placeholder)="([^"]+)"/g)];
  const there = (key) => key in table || (`${key}.one` in table && `${key}.many` in table);
  assert.ok(asked.length > 150, `only ${asked.length} found`);
  for (const [, called, marked] of asked) {
    assert.ok(there(called ?? marked), called ?? marked);
  }
});

test("every text of the page is used", () => {
  const named = new Set([...page.matchAll(/["'`]([a-z][\w.-]*)["'`]/g)].map((match) => match[1]));
  const built = [...page.matchAll(/`([a-z][\w.-]*\.)?\$\{[^}]+\}(\.[\w.-]+)?`/g)];
  const beginnings = built.filter(([, beginning]) => beginning).map(([, beginning]) => beginning);
  const ends = built.filter(([, beginning, end]) => !beginning && end).map(([, , end]) => end);
  for (const key of Object.keys(table).filter((name) => !name.startsWith("term."))) {
    const whole = named.has(key) || named.has(key.replace(/\.(one|many)$/, ""));
    const parts =
      beginnings.some((beginning) => key.startsWith(beginning)) || ends.some((end) => key.endsWith(end));
    assert.ok(whole || parts, `nobody shows ${key}`);
  }
});
