// HTTP requests to the daemon. Exports one function for each method, paths, and the error type.
//
//   await get(path, {signal}?), post(path, body?, {signal}?), put(path, body?), patch(path, body), del(path)
//                               parsed JSON, or null for an empty answer
//   await stop(path, body?, {signal}?)  a POST with high priority that outlives the page (keepalive)
//   All throw Problem {code, detail, status}. `code` is "network" when there was no answer or the signal aborted,
//   "unaddressable" when the path cannot be requested, "unreadable" when the answer is not JSON.
//   sessionPath(key), runPath(id)  escaped paths
//   onSignedOut(fn)             called when an answer says that this browser is not signed in

import { readPageSecret } from "./page-secret.js";

export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.name = "Problem";
    this.status = status;
    this.code = code;
    this.detail = detail;
  }
}

/** Browsers resolve dot segments, escaped or not: stopping a run named `..` would stop everything. */
const DOT_SEGMENT = /\/(?:\.|%2e){1,2}(?=[/?#]|$)/i;

const signedOutListeners = new Set();

export function onSignedOut(fn) {
  signedOutListeners.add(fn);
  return () => signedOutListeners.delete(fn);
}

let unreachedNodesListener = () => {};

/** `fn(nodes)` is called with the nodes of the cluster that could not be asked for a stop. */
export function onUnreachedNodes(fn) {
  unreachedNodesListener = fn;
}

let pausedSchedulesListener = () => {};
let unstoredPausesListener = () => {};

/** `fn(ids)` is called with the schedules that a stop has paused. */
export function onPausedSchedules(fn) {
  pausedSchedulesListener = fn;
}

export function onUnstoredPauses(fn) {
  unstoredPausesListener = fn;
}

export function sessionPath(key) {
  return `/api/sessions/${encodeURIComponent(key)}`;
}

export function runPath(id) {
  return `/api/runs/${encodeURIComponent(id)}`;
}

export function get(path, options) {
  return sendRequest("GET", path, undefined, options);
}

export function post(path, body, options) {
  return sendRequest("POST", path, body, options);
}

export function put(path, body) {
  return sendRequest("PUT", path, body);
}

export function patch(path, body) {
  return sendRequest("PATCH", path, body);
}

export function del(path) {
  return sendRequest("DELETE", path);
}

export async function stop(path, body = {}, options = {}) {
  const answer = await sendRequest("POST", path, body, { priority: "high", keepalive: true, ...options });
  if (answer?.unreached?.length > 0) {
    unreachedNodesListener(answer.unreached);
  }
  if (answer?.pausedSchedules?.length > 0) {
    pausedSchedulesListener(answer.pausedSchedules);
  }
  if (answer?.unstoredPauses) {
    unstoredPausesListener();
  }
  return answer;
}

async function sendRequest(method, path, body, options = {}) {
  if (DOT_SEGMENT.test(path)) {
    throw new Problem(0, "unaddressable", `a browser would rewrite the path ${path}`);
  }
  const request = {
    method,
    credentials: "same-origin",
    cache: "no-store",
    headers: { Accept: "application/json" },
    ...options,
  };
  const secret = readPageSecret();
  if (secret !== null) {
    request.headers["X-Quell-Page"] = secret;
  }
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let response;
  let text;
  try {
    response = await fetch(path, request);
    text = await response.text();
  } catch (error) {
    throw new Problem(0, "network", String(error.message || error));
  }
  if (response.ok) {
    return text === "" ? null : parseJson(text, response.status);
  }
  // The sign-in route answers 401 to a wrong token: nobody was signed in.
  if (response.status === 401 && path !== "/api/sign-in") {
    for (const listener of signedOutListeners) {
      listener();
    }
  }
  throw parseProblem(response, text);
}

function parseJson(text, status) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(
      status,
      "unreadable",
      "the answer is not JSON; is something else between this page and Quell?",
    );
  }
}

function parseProblem(response, text) {
  try {
    const body = JSON.parse(text);
    return new Problem(response.status, body.code || body.error || "error", body.detail || body.title || "");
  } catch {
    return new Problem(response.status, "error", `${response.status} ${response.statusText}`.trim());
  }
}
