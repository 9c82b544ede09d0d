// The client state in named slices, from which views read everything. Live events update slices or fetch them again;
// while something runs they are also polled every 2 s.
//
//   get(slice)                  the present value
//   subscribe(slice, fn)        fn(value) at once and at every change -> function that removes fn
//   set(slice, value)           for what the page itself knows, such as `route`
//   refresh(...slices)          fetches again soon; several calls become one
//   openSession(key)            what the slice `session` is about from now on
//   await readSession(key)      the daemon's view of a session, or null when it has none
//   start(), stop()             when the views are mounted and unmounted
//
//   slice        value
//   connection   "live" | "connecting" | "lost"
//   staleSlices  [slice]: those whose last fetch failed; they are retried
//   me           {principal, scope, scopes, version}, or null when signed out
//   route        {view: "chat"|"runs"|"run"|"agents"|"approvals", key?: session, run?: run id}
//   inspected    id of the run in the inspector, or null; set by inspect(runId)
//   agent        id of the agent that was selected in the tree, or null
//   agents       [AgentRow]
//   runs         [RunView] that have not ended
//   ended        [RunView] that ended last, at most 50
//   sessions     {items: [SessionRow], nextCursor?} for the text of searchSessions(text); loadMoreSessions() adds a
//                page
//   session      {key, view}: the open session, read by its key, because the list may lack it. `view` is null before
//                its first message, and undefined until it is read
//   approvals    [ApprovalRow] that wait
//   processes    [ProcessRow] in the background, with the last ended ones
//   channels     [ChannelRow]
//   hold         {held, reason?, since?, by?}
//   models       [{model, agents}]

import * as api from "./api.js";
import * as websocket from "./websocket.js";

/** Collects bursts of events, for example of a stop of a run tree. */
const BATCH_MS = 80;
/** The shortest time between two rounds of fetches. */
const MIN_INTERVAL_MS = 400;
const POLL_MS = 2000;
/** Fetches run one after the other, so one without an answer would block all. */
const REQUEST_TIMEOUT_MS = 15_000;
/** Delays before a failed slice is fetched again. */
const MIN_BACKOFF_MS = 1_000;
const MAX_BACKOFF_MS = 16_000;
const MAX_ENDED = 50;
const MAX_PAGE = 500;
const SESSIONS_PER_PAGE = 100;
const MAX_SESSIONS = 1000;

const INITIAL = {
  connection: "connecting",
  staleSlices: [],
  inspected: null,
  agents: [],
  runs: [],
  ended: [],
  sessions: { items: [] },
  session: { key: null, view: undefined },
  approvals: [],
  processes: [],
  channels: [],
  hold: { held: false },
  models: [],
};

const slices = { ...INITIAL, me: null, route: { view: "chat" } };

const fetchers = {
  agents: fetchAgents,
  runs: async () => (await read("/api/runs?state=active")).items,
  ended: fetchEnded,
  sessions: async () => read(sessionsPath()),
  session: fetchSession,
  approvals: async () => (await read("/api/approvals")).items,
  processes: async () => (await read("/api/processes")).items,
  channels: async () => (await read("/api/channels")).items,
  hold: async () => read("/api/hold"),
  models: async () => (await read("/api/models")).items,
};

const listeners = new Map();
/** The last event of each agent, with the number of the fetch that it belongs to. */
const agentEvents = new Map();
const dueSlices = new Set();
let search = "";
let fetchTimer = 0;
let pollTimer = 0;
let fetchCount = 0;
let lastFetchAt = 0;
let isFetching = false;
/** Slices whose last fetch failed: slice -> {nextDelay, timer}. */
const retries = new Map();
const openRequests = new Set();
let cleanups = [];

export function get(slice) {
  return slices[slice];
}

export function subscribe(slice, fn) {
  if (!listeners.has(slice)) {
    listeners.set(slice, new Set());
  }
  listeners.get(slice).add(fn);
  fn(slices[slice]);
  return () => listeners.get(slice).delete(fn);
}

export function set(slice, value) {
  slices[slice] = value;
  for (const fn of [...(listeners.get(slice) || [])]) {
    try {
      fn(value);
    } catch (error) {
      // An error in one view must not keep changes from the others.
      reportError(error);
    }
  }
}

export function inspect(runId) {
  if (slices.inspected !== runId) {
    set("inspected", runId);
  }
}

export function refresh(...names) {
  for (const name of names) {
    dueSlices.add(name);
  }
  if (!fetchTimer && !isFetching && pollTimer) {
    fetchTimer = setTimeout(fetchDue, Math.max(BATCH_MS, lastFetchAt + MIN_INTERVAL_MS - Date.now()));
  }
}

/** The list has all runs, the newest first, so active ones are in it too. */
async function fetchEnded() {
  const limit = Math.min(MAX_PAGE, MAX_ENDED + slices.runs.length);
  const { items } = await read(`/api/runs?limit=${limit}`);
  return items.filter((run) => run.state === "ended").slice(0, MAX_ENDED);
}

export function searchSessions(text) {
  search = text;
  slices.sessions = { items: [] };
  refresh("sessions");
}

export async function loadMoreSessions() {
  const before = slices.sessions;
  if (!before.nextCursor) {
    return;
  }
  const page = await read(
    `${sessionsPath(SESSIONS_PER_PAGE)}&cursor=${encodeURIComponent(before.nextCursor)}`,
  );
  if (slices.sessions === before) {
    set("sessions", { items: [...before.items, ...page.items], nextCursor: page.nextCursor });
  }
}

export function openSession(key) {
  set("session", { key, view: undefined });
}

export async function readSession(key, request = api.get) {
  const view = await request(`${api.sessionPath(key)}?allowMissing=1`);
  if (slices.session.key === key) {
    set("session", { key, view });
  }
  return view;
}

/** Reads the open session again. The first time it is read with its history. */
async function fetchSession() {
  const { key, view } = slices.session;
  if (view !== undefined) {
    await readSession(key, read);
  }
  return slices.session;
}

/** At least as many sessions as are shown now. */
function sessionsPath(minimum = slices.sessions.items.length) {
  const limit = Math.min(MAX_SESSIONS, Math.max(SESSIONS_PER_PAGE, minimum));
  return `/api/sessions?limit=${limit}${search ? `&search=${encodeURIComponent(search)}` : ""}`;
}

export function start() {
  cleanups = [
    websocket.onState(onConnectionChanged),
    websocket.on("agents.changed", onAgentChanged),
    websocket.on("sessions.changed", ({ sessionKey }) =>
      refresh("sessions", "runs", ...(sessionKey === slices.session.key ? ["session"] : [])),
    ),
    websocket.on("run", () => refresh("runs", "ended", "processes", "approvals")),
    websocket.on("agent", (event) => onAgentEvent(event)),
    websocket.on("execution:cancel", () => refresh("runs")),
    websocket.on("hold.changed", (event) => {
      set("hold", { ...slices.hold, held: event.held });
      refresh("hold");
    }),
  ];
  pollTimer = setInterval(poll, POLL_MS);
  set("connection", websocket.state());
  refresh(...Object.keys(fetchers));
}

export function stop() {
  cleanups.forEach((cleanup) => cleanup());
  cleanups = [];
  clearInterval(pollTimer);
  clearTimeout(fetchTimer);
  pollTimer = 0;
  fetchTimer = 0;
  dueSlices.clear();
  agentEvents.clear();
  retries.forEach(({ timer: retryTimer }) => clearTimeout(retryTimer));
  retries.clear();
  search = "";
  // The next user must not see data of the previous one.
  Object.assign(slices, INITIAL);
}

function onConnectionChanged(state) {
  if (state === "lost" || slices.connection === "lost") {
    // Requests over a lost connection may never be answered.
    openRequests.forEach((request) => request.abort());
  }
  set("connection", state);
  if (state === "live") {
    refresh(...Object.keys(fetchers));
  }
}

/** The event has the status of a known agent; anything else is fetched. */
function onAgentChanged({ agentId, computeStatus, activeRuns, change }) {
  const known = slices.agents.some((agent) => agent.id === agentId);
  agentEvents.set(agentId, { fetchNumber: fetchCount, computeStatus, activeRuns });
  if (change || !known) {
    refresh("agents", "models");
  } else {
    set(
      "agents",
      slices.agents.map((agent) => (agent.id === agentId ? { ...agent, computeStatus, activeRuns } : agent)),
    );
  }
  refresh("agents", "runs");
}

/** Events that arrived after the request are newer than its answer, so they win. */
async function fetchAgents() {
  fetchCount += 1;
  const fetchNumber = fetchCount;
  const { items } = await read("/api/agents");
  return items.map((agent) => {
    const event = agentEvents.get(agent.id);
    return event?.fetchNumber >= fetchNumber
      ? { ...agent, computeStatus: event.computeStatus, activeRuns: event.activeRuns }
      : agent;
  });
}

function onAgentEvent({ stream }) {
  if (stream === "approval") {
    refresh("approvals", "runs");
  } else if (stream === "lifecycle") {
    refresh("runs");
  }
}

function poll() {
  if (document.hidden || slices.connection !== "live") {
    return;
  }
  const alive = slices.processes.some((process) => !process.endedAt);
  if (slices.runs.length > 0 || alive) {
    refresh("runs", "processes", "agents");
  }
  if (slices.route.view === "runs" && slices.channels.length > 0) {
    refresh("channels");
  }
}

async function read(path) {
  const controller = new AbortController();
  openRequests.add(controller);
  const timeout = setTimeout(() => controller.abort(), REQUEST_TIMEOUT_MS);
  try {
    return await api.get(path, { signal: controller.signal });
  } finally {
    openRequests.delete(controller);
    clearTimeout(timeout);
  }
}

/** One request after the other: browsers have few connections to a host, and a stop needs a free one. */
async function fetchDue() {
  fetchTimer = 0;
  lastFetchAt = Date.now();
  isFetching = true;
  try {
    for (const name of [...dueSlices]) {
      dueSlices.delete(name);
      await fetchSlice(name);
    }
  } finally {
    isFetching = false;
    if (dueSlices.size > 0) {
      refresh();
    }
  }
}

async function fetchSlice(name) {
  try {
    const value = await fetchers[name]();
    if (pollTimer) {
      clearRetry(name);
      set(name, value);
    }
  } catch (error) {
    if (!(error instanceof api.Problem)) {
      throw error;
    }
    // A retry does not help without permission.
    if (pollTimer && error.status !== 401 && error.status !== 403) {
      scheduleRetry(name);
    }
  }
}

/** Keeps the old value, marks the slice as stale, and fetches it again later. */
function scheduleRetry(name) {
  const previous = retries.get(name);
  clearTimeout(previous?.timer);
  const delay = previous?.nextDelay ?? MIN_BACKOFF_MS;
  const retryTimer = setTimeout(() => refresh(name), delay);
  retries.set(name, { nextDelay: Math.min(2 * delay, MAX_BACKOFF_MS), timer: retryTimer });
  updateStaleSlices();
}

function clearRetry(name) {
  if (retries.has(name)) {
    clearTimeout(retries.get(name).timer);
    retries.delete(name);
    updateStaleSlices();
  }
}

function updateStaleSlices() {
  if (slices.staleSlices.length !== retries.size) {
    set("staleSlices", [...retries.keys()]);
  }
}
