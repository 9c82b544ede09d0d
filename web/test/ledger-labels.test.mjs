// Tests of ledger-labels.js, in English.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { ledgerRows } from "../js/ledger.js";
import { endLabel, fullName, heldMs, offsetLabel, rowTooltip, shortName } from "../js/ledger-labels.js";
import { useTexts } from "../js/texts.js";
import { ended, held, live, NOON } from "./ledger-fixtures.mjs";

useTexts(JSON.parse(readFileSync(new URL("../texts.json", import.meta.url), "utf8")), "en");

const only = (resource, times = { requested: 0, settled: 12 }) =>
  ledgerRows(ended([resource], times), { now: 0 })[0];

test("the label of a bar is how it ended", () => {
  const words = (how, more = {}, to = 11) => endLabel(only(held("process", 1, -5, to, how, more)));
  assert.equal(words("closed"), "closed");
  assert.equal(words("exited", { exitCode: 0 }), "exited 0");
  assert.equal(words("exited", { exitCode: 101 }), "exited 101");
  assert.equal(words("exited", { signal: 9 }), "signal 9");
  assert.equal(words("term", { swept: 2, signal: 15 }), "term, descendants: 2");
  assert.equal(words("held", {}, null), "not released");
  const [open] = ledgerRows(live([held("process", 1, -5, null, "held")]), { now: NOON });
  assert.equal(endLabel(open), "held");
  const [stopping] = ledgerRows(live([held("process", 1, -5, null, "held")], { requested: 0 }), {
    now: NOON + 5,
  });
  assert.equal(endLabel(stopping), "still held");
});

test("the offset is the time since the stop, else the time held", () => {
  assert.equal(offsetLabel(only(held("model_request", 1, -1000, 0.4, "closed"))), "+0.4 ms");
  assert.equal(offsetLabel(only(held("process", 1, -1000, -980, "exited"))), "20 ms");
  assert.equal(offsetLabel(only(held("process", 1, -1000, -980, "exited"), { settled: 12 })), "20 ms");
});

test("the tooltip says how a command is contained", () => {
  const title = (heldBy) => rowTooltip(only(held("process", 1, -5, 11, "exited", { exitCode: 0, heldBy })));
  assert.match(title("namespace"), /in a PID namespace/);
  assert.match(title("sweep"), /a search of \/proc, which is weaker/);
  assert.doesNotMatch(title(undefined), /PID namespace/);
  assert.doesNotMatch(title("something newer"), /PID namespace/);
});

test("folded rows show their number and total time held", () => {
  const calls = Array.from({ length: 30 }, (_, i) => held("mcp_call", i + 1, i * 10, i * 10 + 4, "finished"));
  const [folded] = ledgerRows(ended(calls, { settled: 999 }), { now: 0 });
  assert.equal(fullName(folded), "mcp_call ×30");
  assert.ok(Math.abs(heldMs(folded) - 120) < 0.1);
  const different = calls.map((call, i) => ({ ...call, label: `files: ${i}` }));
  const rows = ledgerRows(
    ended([...different, ...different.map((call) => ({ ...call, id: call.id + 100 }))], { settled: 999 }),
    {
      now: 0,
    },
  );
  const many = ledgerRows(
    ended(
      Array.from({ length: 90 }, (_, i) =>
        held("mcp_call", i + 1, i, i + 1, "finished", { label: `files: ${i}` }),
      ),
      { settled: 999 },
    ),
    { now: 0 },
  );
  assert.equal(rows.length, 30);
  assert.match(fullName(many.find((row) => row.mixed)), /^\d+ others$/);
});

test("a sub-run is named by its agent and a short id", () => {
  const row = only(
    held("run", 1, -5, 1, "cancelled", { label: "reader (01a1fe9a-a1fa-77a0-bb48-234f78daddaa)" }),
  );
  assert.equal(shortName(row), "reader (…daddaa)");
  assert.equal(fullName(row), "reader (01a1fe9a-a1fa-77a0-bb48-234f78daddaa)");
});

test("the tooltip has all details", () => {
  const row = only(held("process", 1, -600, 11, "kill", { label: "sleep 600", pid: 4242, swept: 2 }));
  assert.equal(
    rowTooltip(row),
    "process sleep 600\nkill, descendants: 2\nheld for 611 ms\nreleased 11 ms after the stop\npid 4242",
  );
});
