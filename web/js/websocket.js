// The WebSocket to the daemon: connects, reconnects, and continues the streams of run events where they were.
//
//   start(version), close()        open and keep the connection; close it
//   state()                        "live" | "connecting" | "lost"; onState(fn) -> function that removes fn
//   onConnectFailed(fn)            fn() when an attempt to connect failed: no daemon, or not signed in
//   onHandshake(fn)                fn(request) after each handshake, before all other requests
//   checkConnection()              reconnects now when the connection is lost, probes it when it is live
//   retryFastWhile(fn)             shorter reconnect delays while fn() is true
//   await request(method, params)  the payload, or throws Problem; fails at once while not live
//   on(event, fn)                  fn(payload) for each event of that name -> function that removes fn
//   follow(runId, after, fn)       fn(runEvent) for each event of a run with a number above `after`, across
//                                  reconnects; fn(null) when the daemon refuses, then or later. Returns a function
//                                  that stops it. A run can have several followers.

import { Problem } from "./api.js";
import { readPageSecret } from "./page-secret.js";
import * as clock from "./server-clock.js";

/** The daemon sends a tick every 30 s. */
const IDLE_TIMEOUT_MS = 75_000;
const CONNECT_TIMEOUT_MS = 10_000;
const PROBE_TIMEOUT_MS = 3_000;
const MIN_BACKOFF_MS = 250;
const MAX_BACKOFF_MS = 8_000;
/** While something waits for the connection. */
const MAX_URGENT_BACKOFF_MS = 1_000;
const FOLLOW_RETRY_MS = 2_000;
/** A request with this code fails again when it is repeated. */
const INVALID_REQUEST = "INVALID_REQUEST";

/** Events after which the network may have changed. */
const wakeEvents = () => [
  [window, "online"],
  [window, "offline"],
  [document, "visibilitychange"],
];

const events = new Map();
const stateListeners = new Set();
const connectFailedListeners = new Set();
const handshakeListeners = new Set();
const urgencyChecks = new Set();
const followed = new Map();
let pendingRequests = new Map();
let socket = null;
let currentState = "connecting";
let options = null;
let backoffMs = MIN_BACKOFF_MS;
let retryTimer = 0;
let idleTimer = 0;
let lastRequestId = 0;

export function start(version) {
  options = { version };
  currentState = "connecting";
  backoffMs = MIN_BACKOFF_MS;
  connect();
  wakeEvents().forEach(([target, name]) => target.addEventListener(name, checkConnection));
}

export function close() {
  options = null;
  wakeEvents().forEach(([target, name]) => target.removeEventListener(name, checkConnection));
  clearTimeout(retryTimer);
  followed.clear();
  closeSocket();
}

export function state() {
  return currentState;
}

export function onState(fn) {
  stateListeners.add(fn);
  return () => stateListeners.delete(fn);
}

export function onConnectFailed(fn) {
  connectFailedListeners.add(fn);
  return () => connectFailedListeners.delete(fn);
}

export function onHandshake(fn) {
  handshakeListeners.add(fn);
}

export function retryFastWhile(fn) {
  urgencyChecks.add(fn);
}

export function on(event, fn) {
  if (!events.has(event)) {
    events.set(event, new Set());
  }
  events.get(event).add(fn);
  return () => events.get(event).delete(fn);
}

export function request(method, params = {}) {
  if (currentState !== "live") {
    return Promise.reject(new Problem(0, "network", "not connected"));
  }
  return sendRequest(method, params);
}

export function follow(runId, after, fn) {
  const follower = { fn, seq: after };
  let stream = followed.get(runId);
  if (stream && stream.seq > after) {
    // Restart the stream from the older cursor; each follower skips the events that it already has.
    stream.seq = after;
    stream.followers.add(follower);
    restartFollow(runId);
  } else if (stream) {
    stream.followers.add(follower);
  } else {
    stream = { followers: new Set([follower]), seq: after };
    followed.set(runId, stream);
    startFollow(runId);
  }
  return () => unfollow(runId, follower);
}

function unfollow(runId, follower) {
  const stream = followed.get(runId);
  if (stream && stream.followers.delete(follower) && stream.followers.size === 0) {
    followed.delete(runId);
    request("runs.unfollow", { runId }).catch(() => {});
  }
}

function restartFollow(runId) {
  request("runs.unfollow", { runId })
    .catch(() => {})
    .then(() => startFollow(runId));
}

function startFollow(runId) {
  const stream = followed.get(runId);
  if (!stream || currentState !== "live") {
    return;
  }
  request("runs.follow", { runId, after: stream.seq }).catch((problem) => {
    if (problem.code === "network" || followed.get(runId) !== stream) {
      return;
    }
    if (problem.code !== INVALID_REQUEST) {
      // A temporary error of the daemon.
      setTimeout(() => followed.get(runId) === stream && startFollow(runId), FOLLOW_RETRY_MS);
      return;
    }
    refuseFollowers(runId);
  });
}

function refuseFollowers(runId) {
  const stream = followed.get(runId);
  followed.delete(runId);
  for (const follower of [...(stream?.followers || [])]) {
    follower.fn(null);
  }
}

function onRunEvent(event) {
  const stream = followed.get(event.runId);
  if (!stream) {
    return;
  }
  stream.seq = Math.max(stream.seq, event.seq);
  if (event.type === "run.ended") {
    followed.delete(event.runId);
  }
  for (const follower of [...stream.followers]) {
    // After a crash the end may have a lower number than events that were seen before.
    if (event.seq > follower.seq || event.type === "run.ended") {
      follower.seq = event.seq;
      follower.fn(event);
    }
  }
}

function connect() {
  clearTimeout(retryTimer);
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const created = new WebSocket(`${scheme}://${location.host}/ws`);
  socket = created;
  resetIdleTimer(CONNECT_TIMEOUT_MS);
  created.onmessage = (message) => {
    if (socket === created) {
      resetIdleTimer(currentState === "live" ? IDLE_TIMEOUT_MS : CONNECT_TIMEOUT_MS);
      onFrame(JSON.parse(message.data));
    }
  };
  created.onclose = () => {
    if (socket === created) {
      onClosed();
    }
  };
}

function resetIdleTimer(timeoutMs) {
  clearTimeout(idleTimer);
  idleTimer = setTimeout(dropConnection, timeoutMs);
}

function dropConnection() {
  closeSocket();
  onClosed();
}

function onFrame(message) {
  if (message.type === "res") {
    const pending = pendingRequests.get(message.id);
    pendingRequests.delete(message.id);
    if (pending && message.ok) {
      pending.resolve(message.payload);
    } else if (pending) {
      const { code = "error", message: detail = "" } = message.error || {};
      pending.reject(new Problem(0, code, detail));
    }
  } else if (message.event === "connect.challenge") {
    clock.setServerTime(message.payload?.ts);
    handshake();
  } else if (message.event === "tick") {
    clock.setServerTime(message.payload?.ts);
  } else if (message.event === "run.event") {
    onRunEvent(message.payload);
  } else if (message.event === "run.unfollowed") {
    refuseFollowers(message.payload.runId);
  } else if (message.type === "event") {
    for (const fn of [...(events.get(message.event) || [])]) {
      fn(message.payload);
    }
  }
}

async function handshake() {
  const current = socket;
  try {
    await sendRequest("connect", {
      minProtocol: 4,
      maxProtocol: 4,
      client: { id: "quell-page", version: options.version, platform: "web", mode: "ui" },
      role: "operator",
      scopes: ["operator.read", "operator.write", "operator.admin"],
      caps: ["run-events"],
      auth: { pageSecret: readPageSecret() },
    });
    handshakeListeners.forEach((fn) => fn(sendRequest));
    await sendRequest("sessions.subscribe", {});
  } catch {
    current.close();
    return;
  }
  backoffMs = MIN_BACKOFF_MS;
  resetIdleTimer(IDLE_TIMEOUT_MS);
  setState("live");
  for (const runId of followed.keys()) {
    startFollow(runId);
  }
}

function sendRequest(method, params) {
  lastRequestId += 1;
  const id = String(lastRequestId);
  return new Promise((resolve, reject) => {
    pendingRequests.set(id, { resolve, reject });
    socket.send(JSON.stringify({ type: "req", id, method, params }));
  });
}

function closeSocket() {
  const old = socket;
  socket = null;
  clearTimeout(idleTimer);
  if (old) {
    old.close();
  }
}

function onClosed() {
  socket = null;
  clearTimeout(idleTimer);
  const unanswered = pendingRequests;
  pendingRequests = new Map();
  for (const pending of unanswered.values()) {
    pending.reject(new Problem(0, "network", "the connection was lost"));
  }
  if (!options) {
    return;
  }
  if (currentState !== "live") {
    connectFailedListeners.forEach((fn) => fn());
  }
  setState("lost");
  clearTimeout(retryTimer);
  // Jitter, so that many pages do not reconnect at the same time.
  retryTimer = setTimeout(connect, backoffMs * (0.5 + Math.random() / 2));
  const isUrgent = [...urgencyChecks].some((fn) => fn());
  backoffMs = Math.min(backoffMs * 2, isUrgent ? MAX_URGENT_BACKOFF_MS : MAX_BACKOFF_MS);
}

export function checkConnection() {
  if (!options || document.hidden) {
    return;
  }
  if (currentState === "live") {
    probe();
  } else if (currentState === "lost" && !socket) {
    backoffMs = MIN_BACKOFF_MS;
    connect();
  }
}

/** Losing the network does not break a connection to a daemon on the same machine. */
function probe() {
  const current = socket;
  const timer = setTimeout(() => socket === current && dropConnection(), PROBE_TIMEOUT_MS);
  // An error is an answer too.
  request("health")
    .catch(() => {})
    .then(() => clearTimeout(timer));
}

function setState(next) {
  if (next === currentState) {
    return;
  }
  currentState = next;
  for (const fn of [...stateListeners]) {
    fn(currentState);
  }
}
