// The one WebSocket to the daemon: it connects, stays connected, and goes on where it was. It knows the
// frames and the streams of runs; what an event means is for others.
//
//   start(version), close()        connect and stay connected; leave
//   state()                        "live" | "connecting" | "lost"; onState(fn) -> function that forgets it
//   onRefused(fn)                  fn() when an attempt to connect failed: the daemon is not there, or does
//                                  not know us any more
//   onGreeted(fn)                  fn(request) behind each handshake: what it asks goes before all else
//   hurry(), hurryWhile(fn)        connect now, if that is due at all; and often while fn() is true
//   await request(method, params)  the payload, or throws Problem; fails at once while not live
//   on(event, fn)                  fn(payload) for each event of that name -> function that forgets it
//   follow(runId, after, fn)       fn(runEvent) for each event of a run behind number `after`, across
//                                  reconnects; fn(null) when the daemon refuses to tell of it -> function
//                                  that stops it. Several may follow the same run.

import { Problem } from "./api.js";
import * as clock from "./clock.js";

/** The daemon ticks every 30 s; a socket that is silent for longer is dead, whatever it says. */
const SILENCE_MS = 75_000;
/** How long a connection may take until it is live. */
const OPENING_MS = 10_000;
/** How long an answer may take when there is a reason to think that nobody is there any more. */
const PROBE_MS = 3_000;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8_000;
/** The longest while something waits for the connection. */
const HURRIED_WAIT_MS = 1_000;
const FOLLOW_AGAIN_MS = 2_000;
/** The code of a request that will be refused again, however often it is made. */
const REFUSED = "INVALID_REQUEST";

/** What happens when the network may have come, gone or changed. */
const waking = () => [
  [window, "online"],
  [window, "offline"],
  [document, "visibilitychange"],
];

const events = new Map();
const stateListeners = new Set();
const refusedListeners = new Set();
const greetedListeners = new Set();
const hurrying = new Set();
const followed = new Map();
let waiting = new Map();
let socket = null;
let now = "connecting";
let wanted = null;
let wait = FIRST_WAIT_MS;
let retry = 0;
let watchdog = 0;
let number = 0;

export function start(version) {
  wanted = { version };
  now = "connecting";
  wait = FIRST_WAIT_MS;
  open();
  waking().forEach(([target, name]) => target.addEventListener(name, hurry));
}

export function close() {
  wanted = null;
  waking().forEach(([target, name]) => target.removeEventListener(name, hurry));
  clearTimeout(retry);
  followed.clear();
  drop();
}

export function state() {
  return now;
}

export function onState(fn) {
  stateListeners.add(fn);
  return () => stateListeners.delete(fn);
}

export function onRefused(fn) {
  refusedListeners.add(fn);
  return () => refusedListeners.delete(fn);
}

export function onGreeted(fn) {
  greetedListeners.add(fn);
}

export function hurryWhile(fn) {
  hurrying.add(fn);
}

export function on(event, fn) {
  if (!events.has(event)) {
    events.set(event, new Set());
  }
  events.get(event).add(fn);
  return () => events.get(event).delete(fn);
}

export function request(method, params = {}) {
  if (now !== "live") {
    return Promise.reject(new Problem(0, "network", "not connected"));
  }
  return send(method, params);
}

export function follow(runId, after, fn) {
  const follower = { fn, seq: after };
  let stream = followed.get(runId);
  if (stream && stream.seq > after) {
    // The stream is ahead of what this one needs: it begins again, and each takes only what is new to it.
    stream.seq = after;
    stream.followers.add(follower);
    restart(runId);
  } else if (stream) {
    stream.followers.add(follower);
  } else {
    stream = { followers: new Set([follower]), seq: after };
    followed.set(runId, stream);
    begin(runId);
  }
  return () => forget(runId, follower);
}

function forget(runId, follower) {
  const stream = followed.get(runId);
  if (stream && stream.followers.delete(follower) && stream.followers.size === 0) {
    followed.delete(runId);
    request("runs.unfollow", { runId }).catch(() => {});
  }
}

function restart(runId) {
  request("runs.unfollow", { runId })
    .catch(() => {})
    .then(() => begin(runId));
}

function begin(runId) {
  const stream = followed.get(runId);
  if (!stream || now !== "live") {
    return;
  }
  request("runs.follow", { runId, after: stream.seq }).catch((problem) => {
    if (problem.code === "network" || followed.get(runId) !== stream) {
      return;
    }
    if (problem.code !== REFUSED) {
      // The daemon cannot just now, and says nothing of the run.
      setTimeout(() => followed.get(runId) === stream && begin(runId), FOLLOW_AGAIN_MS);
      return;
    }
    followed.delete(runId);
    for (const follower of stream.followers) {
      follower.fn(null);
    }
  });
}

function runEvent(event) {
  const stream = followed.get(event.runId);
  if (!stream) {
    return;
  }
  stream.seq = Math.max(stream.seq, event.seq);
  if (event.type === "run.ended") {
    followed.delete(event.runId);
  }
  for (const follower of [...stream.followers]) {
    // The end is for everybody, whatever its number: after a crash, the daemon numbers it by what it still
    // knows.
    if (event.seq > follower.seq || event.type === "run.ended") {
      follower.seq = event.seq;
      follower.fn(event);
    }
  }
}

function open() {
  clearTimeout(retry);
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const mine = new WebSocket(`${scheme}://${location.host}/ws`);
  socket = mine;
  listenOn(OPENING_MS);
  mine.onmessage = (message) => {
    if (socket === mine) {
      listenOn(now === "live" ? SILENCE_MS : OPENING_MS);
      frame(JSON.parse(message.data));
    }
  };
  mine.onclose = () => {
    if (socket === mine) {
      lost();
    }
  };
}

function listenOn(most) {
  clearTimeout(watchdog);
  watchdog = setTimeout(giveUp, most);
}

/** Nobody is there, whatever the socket says. */
function giveUp() {
  drop();
  lost();
}

function frame(message) {
  if (message.type === "res") {
    const asked = waiting.get(message.id);
    waiting.delete(message.id);
    if (asked && message.ok) {
      asked.resolve(message.payload);
    } else if (asked) {
      const { code = "error", message: detail = "" } = message.error || {};
      asked.reject(new Problem(0, code, detail));
    }
  } else if (message.event === "connect.challenge") {
    clock.heard(message.payload?.ts);
    greet();
  } else if (message.event === "tick") {
    clock.heard(message.payload?.ts);
  } else if (message.event === "run.event") {
    runEvent(message.payload);
  } else if (message.type === "event") {
    for (const fn of [...(events.get(message.event) || [])]) {
      fn(message.payload);
    }
  }
}

async function greet() {
  const mine = socket;
  try {
    await send("connect", {
      minProtocol: 4,
      maxProtocol: 4,
      client: { id: "quell-page", version: wanted.version, platform: "web", mode: "ui" },
      role: "operator",
      scopes: ["operator.read", "operator.write", "operator.admin"],
      caps: ["run-events"],
    });
    greetedListeners.forEach((fn) => fn(send));
    await send("sessions.subscribe", {});
  } catch {
    mine.close();
    return;
  }
  wait = FIRST_WAIT_MS;
  listenOn(SILENCE_MS);
  turn("live");
  for (const runId of followed.keys()) {
    begin(runId);
  }
}

function send(method, params) {
  number += 1;
  const id = String(number);
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    socket.send(JSON.stringify({ type: "req", id, method, params }));
  });
}

function drop() {
  const old = socket;
  socket = null;
  clearTimeout(watchdog);
  if (old) {
    old.close();
  }
}

function lost() {
  socket = null;
  clearTimeout(watchdog);
  const unanswered = waiting;
  waiting = new Map();
  for (const asked of unanswered.values()) {
    asked.reject(new Problem(0, "network", "the connection was lost"));
  }
  if (!wanted) {
    return;
  }
  if (now !== "live") {
    refusedListeners.forEach((fn) => fn());
  }
  turn("lost");
  clearTimeout(retry);
  // Half of the wait is chance, so that the pages of a house do not all come back in the same moment.
  retry = setTimeout(open, wait * (0.5 + Math.random() / 2));
  const hurried = [...hurrying].some((fn) => fn());
  wait = Math.min(wait * 2, hurried ? HURRIED_WAIT_MS : LONGEST_WAIT_MS);
}

export function hurry() {
  if (!wanted || document.hidden) {
    return;
  }
  if (now === "live") {
    probe();
  } else if (now === "lost" && !socket) {
    wait = FIRST_WAIT_MS;
    open();
  }
}

/** A daemon on this same machine outlives the network, so a network that went proves nothing by itself. */
function probe() {
  const mine = socket;
  const late = setTimeout(() => socket === mine && giveUp(), PROBE_MS);
  // A refusal is an answer, too.
  request("health")
    .catch(() => {})
    .then(() => clearTimeout(late));
}

function turn(next) {
  if (next === now) {
    return;
  }
  now = next;
  for (const fn of [...stateListeners]) {
    fn(now);
  }
}
