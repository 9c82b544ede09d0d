// The words of the picture of a run: ledger-words.js, in English.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { rowsOf } from "../js/ledger.js";
import { endWord, heldMs, labelOf, nameOf, offsetWord, rowTitle } from "../js/ledger-words.js";
import { useTexts } from "../js/texts.js";
import { NOON, ended, held, live } from "./ledger-fixtures.mjs";

useTexts(JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8")), "en");

const only = (resource, times = { requested: 0, settled: 12 }) =>
  rowsOf(ended([resource], times), { now: 0 })[0];

test("a bar ends in its word", () => {
  const words = (how, more = {}, to = 11) => endWord(only(held("process", 1, -5, to, how, more)));
  assert.equal(words("closed"), "closed");
  assert.equal(words("exited", { exitCode: 0 }), "exited 0");
  assert.equal(words("exited", { exitCode: 101 }), "exited 101");
  assert.equal(words("exited", { signal: 9 }), "signal 9");
  assert.equal(words("term", { swept: 2, signal: 15 }), "term, 2 below it");
  assert.equal(words("held", {}, null), "not given back");
  const [open] = rowsOf(live([held("process", 1, -5, null, "held")]), { now: NOON });
  assert.equal(endWord(open), "held");
  const [stopping] = rowsOf(live([held("process", 1, -5, null, "held")], { requested: 0 }), {
    now: NOON + 5,
  });
  assert.equal(endWord(stopping), "still held");
});

test("beside it stands how long after the stop it was given back, else how long it was held", () => {
  assert.equal(offsetWord(only(held("model_request", 1, -1000, 0.4, "closed"))), "+0.4 ms");
  assert.equal(offsetWord(only(held("process", 1, -1000, -980, "exited"))), "20 ms");
  assert.equal(offsetWord(only(held("process", 1, -1000, -980, "exited"), { settled: 12 })), "20 ms");
});

test("a row says what held a command", () => {
  const title = (heldBy) => rowTitle(only(held("process", 1, -5, 11, "exited", { exitCode: 0, heldBy })));
  assert.match(title("namespace"), /held by a PID namespace/);
  assert.match(title("sweep"), /held by a search of \/proc, which is weaker/);
  assert.doesNotMatch(title(undefined), /held by/);
  assert.doesNotMatch(title("something newer"), /held by/);
});

test("folded rows say how many they are, and how long at least one was held", () => {
  const calls = Array.from({ length: 30 }, (_, i) => held("mcp_call", i + 1, i * 10, i * 10 + 4, "finished"));
  const [folded] = rowsOf(ended(calls, { settled: 999 }), { now: 0 });
  assert.equal(nameOf(folded), "mcp_call ×30");
  assert.ok(Math.abs(heldMs(folded) - 120) < 0.1);
  const different = calls.map((call, i) => ({ ...call, label: `files: ${i}` }));
  const rows = rowsOf(
    ended([...different, ...different.map((call) => ({ ...call, id: call.id + 100 }))], { settled: 999 }),
    {
      now: 0,
    },
  );
  const many = rowsOf(
    ended(
      Array.from({ length: 90 }, (_, i) =>
        held("mcp_call", i + 1, i, i + 1, "finished", { label: `files: ${i}` }),
      ),
      { settled: 999 },
    ),
    { now: 0 },
  );
  assert.equal(rows.length, 30);
  assert.match(nameOf(many.find((row) => row.others)), /^\d+ others$/);
});

test("a sub-run is called by its agent and the end of its id", () => {
  const row = only(
    held("run", 1, -5, 1, "cancelled", { label: "reader (01a1fe9a-a1fa-77a0-bb48-234f78daddaa)" }),
  );
  assert.equal(labelOf(row), "reader (…daddaa)");
  assert.equal(nameOf(row), "reader (01a1fe9a-a1fa-77a0-bb48-234f78daddaa)");
});

test("the tooltip knows everything", () => {
  const row = only(held("process", 1, -600, 11, "kill", { label: "sleep 600", pid: 4242, swept: 2 }));
  assert.equal(
    rowTitle(row),
    "process sleep 600\nkill, 2 below it\nheld for 611 ms\ngiven back 11 ms after the stop\npid 4242",
  );
});
