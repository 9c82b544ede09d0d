// Tests of websocket.js with a fake connection.

import assert from "node:assert/strict";
import { test } from "node:test";

import { follow } from "../js/websocket.js";
import { fakeConnection } from "./fake-websocket.mjs";

test("followers hear that the daemon ends what they follow", async () => {
  const connection = fakeConnection();
  await connection.open();
  const heard = [];
  follow("r1", 0, (event) => heard.push(["first", event]));
  follow("r1", 0, (event) => heard.push(["second", event]));
  follow("r2", 0, (event) => heard.push(["other", event]));
  connection.tell("run.unfollowed", { runId: "r1", code: "forbidden" });
  connection.tell("run.event", { runId: "r1", seq: 1, type: "model.delta" });
  assert.deepEqual(heard, [
    ["first", null],
    ["second", null],
  ]);
  // It is not asked for again.
  await connection.lose();
  await connection.open();
  const asked = connection.requests.filter(({ method }) => method === "runs.follow");
  assert.deepEqual(
    asked.map(({ params }) => params.runId),
    ["r1", "r2", "r2"],
  );
  connection.leave();
});
