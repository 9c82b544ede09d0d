// Rows of what a run held: ledger.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { factsOf, rowsOf, standing, subRunsOf, wallMs } from "../js/ledger.js";
import { NOON, ended, held, live } from "./ledger-fixtures.mjs";

test("times keep their microseconds", () => {
  const later = wallMs("2026-03-01T12:00:00.000400Z") - wallMs("2026-03-01T12:00:00Z");
  assert.ok(Math.abs(later - 0.4) < 0.001, String(later));
  assert.equal(wallMs("2026-03-01T13:00:00+01:00"), NOON);
  for (const nothing of [undefined, null, "", "some day", "2026-03-01"]) {
    assert.ok(Number.isNaN(wallMs(nothing)));
  }
});

test("a stopped run knows its three times, a finished one only its end", () => {
  const stopped = factsOf(ended([held("process", 1, -600, 11, "term")], { requested: 0, settled: 12 }), 0);
  assert.deepEqual(
    [stopped.began, stopped.requested, stopped.end].map((ms) => ms - NOON),
    [-600, 0, 12],
  );
  assert.equal(stopped.live, false);
  const finished = factsOf(ended([held("process", 1, -600, -10, "exited")], { settled: 0 }), 0);
  assert.deepEqual([finished.requested, finished.delivered], [null, null]);
  assert.equal(finished.settled, NOON);
});

test("a live run ends now, and never before what is known of it", () => {
  const view = live([held("model_request", 1, -100, null, "")]);
  assert.equal(factsOf(view, NOON + 50).end, NOON + 50);
  assert.equal(
    factsOf(view, NOON - 5000).end,
    NOON - 100,
    "a clock that is behind does not turn the picture around",
  );
  assert.equal(factsOf({ runId: "r", state: "queued" }, NOON).began, NOON, "nothing held yet");
});

test("rows stand in the order of their kinds, then of their opening", () => {
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
  const order = rowsOf(view, { now: 0 }).map((row) => `${row.kind} ${row.key}`);
  assert.deepEqual(order, ["model_request 2", "process 3", "process 4", "permit 1", "something_new 5"]);
});

test("every end has its standing", () => {
  const cases = [
    ["finished", {}, "calm"],
    ["exited", { exitCode: 0 }, "calm"],
    ["kept", {}, "calm"],
    ["exited", { exitCode: 2 }, "bad"],
    ["failed", {}, "bad"],
    ["exited", { signal: 9 }, "stopped"],
    ["closed", {}, "stopped"],
    ["cancelled", {}, "stopped"],
    ["term", { signal: 15 }, "stopped"],
    ["kill", { signal: 9 }, "stopped"],
  ];
  for (const [how, more, expected] of cases) {
    const [row] = rowsOf(ended([held("process", 1, -5, 1, how, more)], { settled: 2 }), { now: 0 });
    assert.equal(standing(row), expected, `${how} ${JSON.stringify(more)}`);
  }
  const [left] = rowsOf(ended([held("process", 1, -5, null, "held")], { requested: 0, settled: 7000 }), {
    now: 0,
  });
  assert.equal(standing(left), "left");
  assert.equal(left.spans[0].to, NOON + 7000, "a leftover runs to the edge");
  const [open] = rowsOf(live([held("process", 1, -5, null, "")]), { now: NOON + 3 });
  assert.equal(standing(open), "open");
  assert.equal(open.spans[0].to, NOON + 3);
});

test("23 equal rows stand alone and 24 are one with a count", () => {
  const rows = (number) =>
    Array.from({ length: number }, (_, i) => held("model_request", i + 1, i * 10, i * 10 + 8, "finished"));
  const of = (number, every) => rowsOf(ended(rows(number), { settled: 999 }), { now: 0, every });
  assert.equal(of(23).length, 23);
  const [folded, ...rest] = of(24);
  assert.equal(rest.length, 0);
  assert.equal(folded.times, 24);
  assert.equal(folded.label, "model_request");
  assert.equal(folded.spans.length, 24, "the gaps stay to be seen");
  assert.equal(of(24, true).length, 24);
});

test("spans of equal rows that touch are one", () => {
  const rows = Array.from({ length: 30 }, (_, i) => held("task", i + 1, i * 5, i * 5 + 8, "finished"));
  const [folded] = rowsOf(ended(rows, { settled: 999 }), { now: 0 });
  assert.deepEqual(folded.spans, [{ from: NOON, to: NOON + 29 * 5 + 8 }]);
});

test("what ended otherwise is not folded into the rest", () => {
  const rows = Array.from({ length: 30 }, (_, i) =>
    held("process", i + 1, i, i + 1, "exited", { exitCode: 0 }),
  );
  rows[7] = held("process", 8, 7, 8, "exited", { exitCode: 1 });
  rows[9] = held("process", 10, 9, null, "held");
  const folded = rowsOf(ended(rows, { requested: 40, settled: 50 }), { now: 0 });
  assert.deepEqual(
    folded.map((row) => [row.times, standing(row)]),
    [
      [28, "calm"],
      [1, "bad"],
      [1, "left"],
    ],
  );
});

test("of 300 different rows those stand alone that tell most, and none is lost", () => {
  const rows = Array.from({ length: 300 }, (_, i) =>
    held("process", i + 1, i, i + 20, "exited", { exitCode: 0, label: `command ${i}` }),
  );
  rows[11] = held("process", 12, 11, null, "held", { label: "sudo" });
  rows[12] = held("process", 13, 12, 1400, "kill", { label: "stubborn" });
  rows[13] = held("process", 14, 13, 14, "exited", { exitCode: 3, label: "failing" });
  const folded = rowsOf(ended(rows, { requested: 1000, settled: 1500 }), { now: 0 });
  assert.ok(folded.length <= 32, `${folded.length} rows`);
  assert.equal(
    folded.reduce((sum, row) => sum + row.times, 0),
    300,
  );
  for (const name of ["sudo", "stubborn", "failing"]) {
    assert.ok(
      folded.some((row) => row.label === name),
      name,
    );
  }
  const rest = folded.find((row) => row.others);
  assert.ok(rest.times > 200 && rest.label === "" && standing(rest) === "calm");
});

test("a sub-run is known by its id, and what it held follows one level deeper", () => {
  const child = {
    ...ended([held("process", 1, -40, 5, "term")], { requested: 1, settled: 6 }),
    runId: "child-1",
  };
  const parent = ended([held("run", 1, -50, 6, "cancelled", { label: "reader (child-1)" })], {
    requested: 0,
    settled: 7,
  });
  const childOf = (id) => (id === "child-1" ? child : undefined);
  const rows = rowsOf(parent, { now: 0, childOf });
  assert.deepEqual(
    rows.map((row) => [row.key, row.depth, row.runId]),
    [
      ["1", 0, "child-1"],
      ["1/1", 1, undefined],
    ],
  );
  assert.equal(rows[1].requested, NOON + 1, "its own stop");
  assert.equal(rowsOf(parent, { now: 0 }).length, 1, "an unknown one stays closed");
});

test("runs that name each other do not go in circles", () => {
  const of = (id, other) => ({
    ...ended([held("run", 1, -5, 1, "cancelled", { label: `a (${other})` })], { settled: 2 }),
    runId: id,
  });
  const views = { one: of("one", "two"), two: of("two", "one") };
  assert.equal(rowsOf(views.one, { now: 0, childOf: (id) => views[id] }).length, 2);
});

test("a label that is no sub-run's names none, and hostile labels pass through unchanged", () => {
  const label = "<img src=x onerror=alert(1)> (not a run id!)";
  const [row] = rowsOf(ended([held("run", 1, -5, 1, "cancelled", { label })], { settled: 2 }), { now: 0 });
  assert.equal(row.runId, undefined);
  assert.equal(row.label, label);
  assert.deepEqual(subRunsOf(ended([held("run", 1, -5, 1, "cancelled", { label })], { settled: 2 })), []);
  assert.deepEqual(subRunsOf(live([held("run", 1, -5, null, "", { label: "team/a (b) (child-2)" })])), [
    "child-2",
  ]);
});

test("10,000 rows are folded in no time worth mentioning", () => {
  const rows = Array.from({ length: 10000 }, (_, i) =>
    held("process", i + 1, i, i + 3, "exited", { exitCode: 0, label: `command ${i % 5000}` }),
  );
  const before = performance.now();
  assert.ok(rowsOf(ended(rows, { settled: 20000 }), { now: 0 }).length <= 32);
  assert.ok(performance.now() - before < 1000);
});
