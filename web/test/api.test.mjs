// Tests of api.js: ids must not change the path of a request.

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import * as api from "../js/api.js";

const realFetch = globalThis.fetch;
let asked;

beforeEach(() => {
  asked = [];
  globalThis.fetch = async (path) => {
    asked.push(path);
    return { ok: true, status: 200, text: async () => "{}" };
  };
});

afterEach(() => {
  globalThis.fetch = realFetch;
});

test("ids with dot segments are rejected", async () => {
  const ids = [".", ".."];
  const paths = [
    ...ids.map((id) => `${api.runPath(id)}/stop`),
    ...ids.map(api.sessionPath),
    ...ids.map((id) => `/api/agent/${encodeURIComponent(id)}/abort?scope=tree`),
    "/api/runs/%2e%2E/stop",
    "/api/runs/.%2e?wait=1",
  ];
  for (const path of paths) {
    assert.notEqual(new URL(path, "http://quell").pathname, path.split("?")[0], "a browser folds it");
    await assert.rejects(api.stop(path), { name: "Problem", code: "unaddressable", status: 0 });
  }
  assert.deepEqual(asked, []);
});

test("ids that only resemble dot segments are sent unchanged", async () => {
  const paths = ["...", "a..b", "../..", "%2e%2e", "a/../b", "?..", "..#"].map(
    (id) => `${api.runPath(id)}/stop`,
  );
  for (const path of paths) {
    assert.equal(new URL(path, "http://quell").pathname, path, "a browser leaves it");
    await api.stop(path);
  }
  assert.deepEqual(asked, paths);
});

test("nodes that could not be asked for a stop are reported", async () => {
  const unreached = [{ node: "b", stored: true, leaseEndsInMs: 900, leaseEndsBy: "2026-01-02T03:04:05Z" }];
  const reported = [];
  api.onUnreachedNodes((nodes) => reported.push(nodes));
  globalThis.fetch = async () => ({ ok: true, status: 200, text: async () => JSON.stringify({ unreached }) });
  assert.deepEqual(await api.stop("/api/stop"), { unreached });
  globalThis.fetch = async () => ({ ok: true, status: 200, text: async () => "{}" });
  await api.stop("/api/stop");
  assert.deepEqual(reported, [unreached]);
});
