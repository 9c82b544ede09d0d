// Tests of timeline.js.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ledgerRows, runTimes } from "../js/ledger.js";
import {
  layOutOverview,
  layOutTimeline,
  rowsInZoom,
  textWidth,
  tickStep,
  truncateToWidth,
  zoomLevels,
} from "../js/timeline.js";
import { ended, held, live, NOON } from "./ledger-fixtures.mjs";

const STOPPED = ended(
  [
    held("model_request", 1, -1000, 0.4, "closed"),
    held("process", 2, -600, 11, "term"),
    held("process", 3, -900, -700, "exited", { exitCode: 0 }),
    held("process", 4, -100, null, "held"),
  ],
  { requested: 0, delivered: 0.2, settled: 12 },
);

function picture(view, { width = 1000, zoom = 0, now = NOON } = {}) {
  const times = runTimes(view, now);
  const lines = ["requested", "delivered", "settled"]
    .filter((name) => times[name] !== null)
    .map((name) => ({ name, at: times[name], text: name }));
  const rows = ledgerRows(view, { now });
  return { times, laid: layOutTimeline({ rows, zoom: zoomLevels(times)[zoom], lines, width }) };
}

test("zoom levels of a stopped run: stop, last 100 ms, whole", () => {
  const names = (view, now = NOON) => zoomLevels(runTimes(view, now)).map((zoom) => zoom.name);
  assert.deepEqual(names(STOPPED), ["stop", "last", "whole"]);
  const [stop, last, whole] = zoomLevels(runTimes(STOPPED, 0));
  assert.ok(stop.from < NOON && stop.from > NOON - 2 && stop.to === NOON + 12);
  assert.deepEqual([last.to - last.from, last.to], [100, NOON + 12]);
  assert.deepEqual([whole.from, whole.to], [NOON - 1000, NOON + 12]);
  const slow = ended([held("process", 1, -1000, 502, "kill")], { requested: 0, settled: 504 });
  assert.deepEqual(names(slow), ["stop", "whole"], "the last 100 ms would hide where a slow stop began");
  assert.deepEqual(names(ended([held("process", 1, -10, -1, "exited")], { settled: 0 })), ["whole"]);
  assert.deepEqual(names(live([held("process", 1, -10, null, "")])), ["whole"]);
  assert.deepEqual(names(live([held("process", 1, -1000, null, "")], { requested: 0 }), NOON + 20), [
    "stop",
    "last",
    "whole",
  ]);
});

test("everything is inside the plot at every zoom and width", () => {
  for (const width of [280, 360, 559, 560, 1000, 1900]) {
    for (const zoom of [0, 1, 2]) {
      const { laid } = picture(STOPPED, { width, zoom });
      const right = laid.plot.x + laid.plot.width;
      assert.equal(laid.narrow, width < 560);
      assert.ok(right <= width);
      for (const placed of laid.rows) {
        for (const { x, width: w } of [...placed.segments, ...placed.lateSegments]) {
          assert.ok(x >= laid.plot.x - 0.01 && x + w <= right + 2.01, `${width} ${zoom} ${x} ${w}`);
        }
        assert.ok(placed.y >= laid.plot.top && placed.y + placed.height <= laid.plot.bottom + 0.01);
        assert.ok(placed.labelPosition.x <= right + 10);
      }
      for (const line of laid.lines) {
        assert.ok(line.x >= laid.plot.x && line.x <= right + 0.01);
      }
    }
  }
});

test("only the time after the request is hatched", () => {
  const { times, laid } = picture(STOPPED, { zoom: 2 });
  const at = (name) => laid.lines.find((line) => line.name === name).x;
  const [model, process, , left] = laid.rows;
  assert.ok(Math.abs(process.lateSegments[0].x - at("requested")) < 0.01);
  assert.ok(process.lateSegments[0].width < at("settled") - at("requested") + 0.01);
  assert.ok(
    Math.abs(left.lateSegments[0].x + left.lateSegments[0].width - at("settled")) < 0.01,
    "to the end, as it was never given back",
  );
  assert.equal(model.lateSegments.length, 1);
  assert.deepEqual(laid.rows[2].lateSegments, [], "it was over before");
  assert.equal(times.requested, NOON);
});

test("rows outside the zoom are marked at their edge", () => {
  const { laid } = picture(STOPPED);
  const over = laid.rows.find((placed) => placed.row.key === "3");
  assert.equal(over.outside, "before");
  assert.deepEqual(over.segments, []);
  assert.equal(laid.rows.filter((placed) => placed.outside).length, 1);
});

test("many rows before a zoom are counted, few are shown", () => {
  const over = (number) =>
    Array.from({ length: number }, (_, i) =>
      held("process", i + 10, -900 + i, -800 + i, "exited", { label: `command ${i}` }),
    );
  const of = (number) => {
    const view = ended([held("process", 1, -600, 11, "term"), ...over(number)], {
      requested: 0,
      settled: 12,
    });
    const [stop, , whole] = zoomLevels(runTimes(view, NOON));
    const rows = ledgerRows(view, { now: NOON });
    return [rowsInZoom(rows, stop), rowsInZoom(rows, whole)].map(({ shown, before }) => [
      shown.length,
      before,
    ]);
  };
  assert.deepEqual(of(6), [
    [7, 0],
    [7, 0],
  ]);
  assert.deepEqual(of(7), [
    [1, 7],
    [8, 0],
  ]);
});

test("a live bar ends now and grows", () => {
  const view = live([held("model_request", 1, -100, null, ""), held("permit", 2, -200, -150, "finished")]);
  const end = (now) => picture(view, { now }).laid.rows[0].segments.at(-1);
  const { laid } = picture(view, { now: NOON });
  assert.ok(Math.abs(end(NOON).x + end(NOON).width - (laid.plot.x + laid.plot.width)) < 0.01);
  assert.ok(
    picture(view, { now: NOON + 100 }).laid.rows[1].segments[0].width < laid.rows[1].segments[0].width,
  );
});

test("a bar without length is visible", () => {
  const view = ended([held("timer", 1, 0, 0, "cancelled"), held("process", 2, -1e7, 1, "term")], {
    requested: 0,
    settled: 2,
  });
  const timer = picture(view, { zoom: 2 }).laid.rows.find((placed) => placed.row.kind === "timer");
  assert.ok(timer.segments[0].width >= 2);
});

test("300 calls in one row become few segments", () => {
  const calls = Array.from({ length: 300 }, (_, i) =>
    held("mcp_call", i + 1, i * 10, i * 10 + 9.9, "finished"),
  );
  const { laid } = picture(ended(calls, { settled: 3000 }), { width: 400 });
  assert.equal(laid.rows.length, 1);
  assert.ok(laid.rows[0].segments.length < 60);
});

test("labels of close lines do not overlap", () => {
  const { laid } = picture(STOPPED, { zoom: 2 });
  const boxes = laid.lines.map((line) => {
    const length = textWidth(line.text);
    return {
      tier: line.tier,
      from: line.anchor === "end" ? line.x - length : line.x,
      to: line.anchor === "end" ? line.x : line.x + length,
    };
  });
  for (const [i, a] of boxes.entries()) {
    for (const b of boxes.slice(i + 1)) {
      assert.ok(a.tier !== b.tier || a.to <= b.from || b.to <= a.from);
    }
  }
  assert.equal(new Set(boxes.map((box) => box.tier)).size, 3);
});

test("ticks are round numbers, few enough to be read", () => {
  assert.deepEqual(
    [13, 100, 0.4, 2600, 61000, 3.6e6, 9e8].map((span) => tickStep(span, 10)),
    [2, 10, 0.05, 500, 10000, 600000, 172800000],
  );
  const { laid } = picture(STOPPED, { zoom: 2 });
  assert.deepEqual(
    laid.ticks.map((tick) => tick.ms),
    [0, 200, 400, 600, 800, 1000],
  );
  const stop = picture(STOPPED).laid.ticks;
  assert.ok(stop.length >= 3 && stop[0].ms === 0, "the stop is counted from its request");
  const quick = picture(ended([held("timer", 1, -5, 0.1, "cancelled")], { requested: 0, settled: 0.2 }), {
    width: 1900,
  });
  assert.deepEqual(new Set(quick.laid.ticks.map((tick) => tick.ms.toFixed(1))).size, quick.laid.ticks.length);
  for (const width of [300, 800, 1600]) {
    const xs = picture(STOPPED, { width }).laid.ticks.map((tick) => tick.x);
    for (const [i, x] of xs.slice(1).entries()) {
      assert.ok(x - xs[i] >= 40, `${width}`);
    }
  }
});

test("an instant run has a layout", () => {
  const { laid } = picture(ended([held("permit", 1, 0, 0, "finished")], { settled: 0 }));
  assert.ok(laid.rows.every((placed) => placed.segments.every(({ x, width }) => Number.isFinite(x + width))));
  const empty = picture(ended([], { requested: 0, settled: 0 })).laid;
  assert.equal(empty.rows.length, 0);
  assert.ok(Number.isFinite(empty.height));
});

test("the overview shows all rows and the zoomed part", () => {
  const times = runTimes(STOPPED, NOON);
  const [stop, , whole] = zoomLevels(times);
  const rows = ledgerRows(STOPPED, { now: NOON });
  const small = layOutOverview({ rows, times, zoom: stop, width: 500, height: 20 });
  assert.equal(small.marks.length, 4);
  assert.ok(small.view.x + small.view.width <= 500.01 && small.view.width >= 3 && small.view.x > 480);
  assert.deepEqual(layOutOverview({ rows, times, zoom: whole, width: 500, height: 20 }).view, {
    x: 0,
    width: 500,
  });
});

test("labels are truncated by characters", () => {
  assert.equal(truncateToWidth("sleep 600", 100), "sleep 600");
  assert.ok(textWidth(truncateToWidth("x".repeat(500), 100)) <= 107);
  assert.ok(truncateToWidth("모델을 기다리는 중입니다", 60).endsWith("…"));
  assert.ok(textWidth("모델") > textWidth("ab") * 1.5);
  assert.ok(!truncateToWidth("👩‍🚀".repeat(40), 80).includes("\uFFFD"));
});
