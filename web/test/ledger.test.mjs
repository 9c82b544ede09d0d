// Tests of ledger.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ledgerRows, rowStatus, runTimes, subRunIds, wallMs } from "../js/ledger.js";
import { ended, held, live, NOON } from "./ledger-fixtures.mjs";

test("times keep their microseconds", () => {
  const later = wallMs("2026-03-01T12:00:00.000400Z") - wallMs("2026-03-01T12:00:00Z");
  assert.ok(Math.abs(later - 0.4) < 0.001, String(later));
  assert.equal(wallMs("2026-03-01T13:00:00+01:00"), NOON);
  for (const nothing of [undefined, null, "", "some day", "2026-03-01"]) {
    assert.ok(Number.isNaN(wallMs(nothing)));
  }
});

test("a stopped run has three times, a finished one its end", () => {
  const stopped = runTimes(ended([held("process", 1, -600, 11, "term")], { requested: 0, settled: 12 }), 0);
  assert.deepEqual(
    [stopped.began, stopped.requested, stopped.end].map((ms) => ms - NOON),
    [-600, 0, 12],
  );
  assert.equal(stopped.live, false);
  const finished = runTimes(ended([held("process", 1, -600, -10, "exited")], { settled: 0 }), 0);
  assert.deepEqual([finished.requested, finished.delivered], [null, null]);
  assert.equal(finished.settled, NOON);
});

test("a live run ends now, but not before known times", () => {
  const view = live([held("model_request", 1, -100, null, "")]);
  assert.equal(runTimes(view, NOON + 50).end, NOON + 50);
  assert.equal(
    runTimes(view, NOON - 5000).end,
    NOON - 100,
    "a clock that is behind does not turn the picture around",
  );
  assert.equal(runTimes({ runId: "r", state: "queued" }, NOON).began, NOON, "nothing held yet");
});

test("rows are in order of kind, then of opening", () => {
  const view = ended(
    [
      held("permit", 1, -9, 9, "finished"),
      held("process", 4, -5, 1, "term"),
      held("process", 3, -5, 1, "term"),
      held("model_request", 2, -8, 0, "closed"),
      held("something_new", 5, -1, 0, "finished"),
    ],
    { requested: 0, settled: 10 },
  );
  const order = ledgerRows(view, { now: 0 }).map((row) => `${row.kind} ${row.key}`);
  assert.deepEqual(order, ["model_request 2", "process 3", "process 4", "permit 1", "something_new 5"]);
});

test("every kind of end has its status", () => {
  const cases = [
    ["finished", {}, "normal"],
    ["exited", { exitCode: 0 }, "normal"],
    ["kept", {}, "normal"],
    ["exited", { exitCode: 2 }, "failed"],
    ["failed", {}, "failed"],
    ["exited", { signal: 9 }, "stopped"],
    ["closed", {}, "stopped"],
    ["cancelled", {}, "stopped"],
    ["term", { signal: 15 }, "stopped"],
    ["kill", { signal: 9 }, "stopped"],
  ];
  for (const [how, more, expected] of cases) {
    const [row] = ledgerRows(ended([held("process", 1, -5, 1, how, more)], { settled: 2 }), { now: 0 });
    assert.equal(rowStatus(row), expected, `${how} ${JSON.stringify(more)}`);
  }
  const [left] = ledgerRows(ended([held("process", 1, -5, null, "held")], { requested: 0, settled: 7000 }), {
    now: 0,
  });
  assert.equal(rowStatus(left), "leftover");
  assert.equal(left.spans[0].to, NOON + 7000, "a leftover runs to the edge");
  const [open] = ledgerRows(live([held("process", 1, -5, null, "")]), { now: NOON + 3 });
  assert.equal(rowStatus(open), "open");
  assert.equal(open.spans[0].to, NOON + 3);
});

test("23 equal rows are shown, 24 are folded into one", () => {
  const rows = (number) =>
    Array.from({ length: number }, (_, i) => held("model_request", i + 1, i * 10, i * 10 + 8, "finished"));
  const of = (number, unfolded) => ledgerRows(ended(rows(number), { settled: 999 }), { now: 0, unfolded });
  assert.equal(of(23).length, 23);
  const [folded, ...rest] = of(24);
  assert.equal(rest.length, 0);
  assert.equal(folded.count, 24);
  assert.equal(folded.label, "model_request");
  assert.equal(folded.spans.length, 24, "the gaps stay to be seen");
  assert.equal(of(24, true).length, 24);
});

test("touching spans of folded rows are merged", () => {
  const rows = Array.from({ length: 30 }, (_, i) => held("task", i + 1, i * 5, i * 5 + 8, "finished"));
  const [folded] = ledgerRows(ended(rows, { settled: 999 }), { now: 0 });
  assert.deepEqual(folded.spans, [{ from: NOON, to: NOON + 29 * 5 + 8 }]);
});

test("rows with another end are not folded into the rest", () => {
  const rows = Array.from({ length: 30 }, (_, i) =>
    held("process", i + 1, i, i + 1, "exited", { exitCode: 0 }),
  );
  rows[7] = held("process", 8, 7, 8, "exited", { exitCode: 1 });
  rows[9] = held("process", 10, 9, null, "held");
  const folded = ledgerRows(ended(rows, { requested: 40, settled: 50 }), { now: 0 });
  assert.deepEqual(
    folded.map((row) => [row.count, rowStatus(row)]),
    [
      [28, "normal"],
      [1, "failed"],
      [1, "leftover"],
    ],
  );
});

test("of 300 rows the most important stay unfolded", () => {
  const rows = Array.from({ length: 300 }, (_, i) =>
    held("process", i + 1, i, i + 20, "exited", { exitCode: 0, label: `command ${i}` }),
  );
  rows[11] = held("process", 12, 11, null, "held", { label: "sudo" });
  rows[12] = held("process", 13, 12, 1400, "kill", { label: "stubborn" });
  rows[13] = held("process", 14, 13, 14, "exited", { exitCode: 3, label: "failing" });
  const folded = ledgerRows(ended(rows, { requested: 1000, settled: 1500 }), { now: 0 });
  assert.ok(folded.length <= 32, `${folded.length} rows`);
  assert.equal(
    folded.reduce((sum, row) => sum + row.count, 0),
    300,
  );
  for (const name of ["sudo", "stubborn", "failing"]) {
    assert.ok(
      folded.some((row) => row.label === name),
      name,
    );
  }
  const rest = folded.find((row) => row.mixed);
  assert.ok(rest.count > 200 && rest.label === "" && rowStatus(rest) === "normal");
});

test("rows of a sub-run follow one level deeper", () => {
  const child = {
    ...ended([held("process", 1, -40, 5, "term")], { requested: 1, settled: 6 }),
    runId: "child-1",
  };
  const parent = ended([held("run", 1, -50, 6, "cancelled", { label: "reader (child-1)" })], {
    requested: 0,
    settled: 7,
  });
  const childOf = (id) => (id === "child-1" ? child : undefined);
  const rows = ledgerRows(parent, { now: 0, childOf });
  assert.deepEqual(
    rows.map((row) => [row.key, row.depth, row.runId]),
    [
      ["1", 0, "child-1"],
      ["1/1", 1, undefined],
    ],
  );
  assert.equal(rows[1].requested, NOON + 1, "its own stop");
  assert.equal(ledgerRows(parent, { now: 0 }).length, 1, "an unknown one stays closed");
});

test("cycles of sub-runs end", () => {
  const of = (id, other) => ({
    ...ended([held("run", 1, -5, 1, "cancelled", { label: `a (${other})` })], { settled: 2 }),
    runId: id,
  });
  const views = { one: of("one", "two"), two: of("two", "one") };
  assert.equal(ledgerRows(views.one, { now: 0, childOf: (id) => views[id] }).length, 2);
});

test("other labels name no sub-run and stay unchanged", () => {
  const label = "<img src=x onerror=alert(1)> (not a run id!)";
  const [row] = ledgerRows(ended([held("run", 1, -5, 1, "cancelled", { label })], { settled: 2 }), {
    now: 0,
  });
  assert.equal(row.runId, undefined);
  assert.equal(row.label, label);
  assert.deepEqual(subRunIds(ended([held("run", 1, -5, 1, "cancelled", { label })], { settled: 2 })), []);
  assert.deepEqual(subRunIds(live([held("run", 1, -5, null, "", { label: "team/a (b) (child-2)" })])), [
    "child-2",
  ]);
});

test("10,000 rows are folded within a second", () => {
  const rows = Array.from({ length: 10000 }, (_, i) =>
    held("process", i + 1, i, i + 3, "exited", { exitCode: 0, label: `command ${i % 5000}` }),
  );
  const before = performance.now();
  assert.ok(ledgerRows(ended(rows, { settled: 20000 }), { now: 0 }).length <= 32);
  assert.ok(performance.now() - before < 1000);
});
