// What is known now, in slices; views take everything from here. It keeps the slices current: live events
// change them at once or have them fetched again, and while something runs they are fetched every 2 s. It
// knows no element.
//
//   get(slice)                  the present value
//   subscribe(slice, fn)        fn(value) at once and at every change -> function that forgets it
//   put(slice, value)           sets a slice (for what the page itself knows, such as `route`)
//   refresh(...slices)          fetches again soon; several calls become one
//   begin(), end()              when the shell appears and goes
//
//   slice        value
//   connection   "live" | "connecting" | "lost"
//   behind       [slice]: those that could not be fetched and may be old; they are tried again
//   me           {principal, scope, scopes, version} or null when signed out
//   route        {view: "chat"|"runs"|"run"|"agents"|"approvals", key?: session, run?: run id}
//   inspected    id of the run that the inspector shows, or null; views call inspect(runId)
//   agent        id of the agent that was chosen in the tree, or null
//   agents       [AgentRow]
//   runs         [RunView] that are not over
//   ended        [RunView] newest runs that are over, at most 50
//   sessions     {items: [SessionRow], nextCursor?}, for the search text of searchSessions(text);
//                `moreSessions()` appends a page
//   approvals    [ApprovalRow] that wait
//   processes    [ProcessRow] in the background, the last ended ones too
//   channels     [ChannelRow]: the chat networks
//   hold         {held, reason?, since?, by?}
//   models       [{model, agents}]

import * as api from "./api.js";
import * as live from "./live.js";

/** Events come in bursts: a stop of a tree is many. */
const SETTLE_MS = 80;
/** And with a hundred runs at work they do not end: what is fetched is fetched this often at most. */
const ROUND_MS = 400;
const BEAT_MS = 2000;
/** A fetch without an answer keeps all others waiting; and a line that is gone is not always told of. */
const ANSWER_MS = 15_000;
/** The first pause before what failed is fetched again, and the longest. */
const AGAIN_MS = 1_000;
const LONGEST_AGAIN_MS = 16_000;
const ENDED = 50;
const LONGEST_PAGE = 500;
const SESSIONS = 100;
const MOST_SESSIONS = 1000;

/** What is known of a daemon before it was asked. */
const NOTHING = {
  connection: "connecting",
  behind: [],
  inspected: null,
  agents: [],
  runs: [],
  ended: [],
  sessions: { items: [] },
  approvals: [],
  processes: [],
  channels: [],
  hold: { held: false },
  models: [],
};

const slices = { ...NOTHING, me: null, route: { view: "chat" } };

const fetchers = {
  agents: fetchAgents,
  runs: async () => (await read("/api/runs?state=active")).items,
  ended: fetchEnded,
  sessions: async () => read(sessionsPath()),
  approvals: async () => (await read("/api/approvals")).items,
  processes: async () => (await read("/api/processes")).items,
  channels: async () => (await read("/api/channels")).items,
  hold: async () => read("/api/hold"),
  models: async () => (await read("/api/models")).items,
};

const listeners = new Map();
/** What events said of agents, and in which round of fetching they said it. */
const told = new Map();
const due = new Set();
let search = "";
let timer = 0;
let beat = 0;
let rounds = 0;
let lastRound = 0;
let fetching = false;
/** The pause that comes next for slices whose last fetch failed, and what waits for its end. */
const again = new Map();
/** The requests that are under way. */
const under = new Set();
let undo = [];

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

export function put(slice, value) {
  slices[slice] = value;
  for (const fn of [...(listeners.get(slice) || [])]) {
    try {
      fn(value);
    } catch (error) {
      // One view that fails must not keep the others, or a stop, from what they need to know.
      reportError(error);
    }
  }
}

export function inspect(runId) {
  if (slices.inspected !== runId) {
    put("inspected", runId);
  }
}

export function refresh(...names) {
  for (const name of names) {
    due.add(name);
  }
  if (!timer && !fetching && beat) {
    timer = setTimeout(fetchDue, Math.max(SETTLE_MS, lastRound + ROUND_MS - Date.now()));
  }
}

/** The list has all runs, the newest first, so those that are not over take places in it. */
async function fetchEnded() {
  const limit = Math.min(LONGEST_PAGE, ENDED + slices.runs.length);
  const { items } = await read(`/api/runs?limit=${limit}`);
  return items.filter((run) => run.state === "ended").slice(0, ENDED);
}

export function searchSessions(text) {
  search = text;
  slices.sessions = { items: [] };
  refresh("sessions");
}

export async function moreSessions() {
  const before = slices.sessions;
  if (!before.nextCursor) {
    return;
  }
  const page = await read(`${sessionsPath(SESSIONS)}&cursor=${encodeURIComponent(before.nextCursor)}`);
  if (slices.sessions === before) {
    put("sessions", { items: [...before.items, ...page.items], nextCursor: page.nextCursor });
  }
}

/** As many as are shown, so that a change at the top does not fold the rest away. */
function sessionsPath(least = slices.sessions.items.length) {
  const limit = Math.min(MOST_SESSIONS, Math.max(SESSIONS, least));
  return `/api/sessions?limit=${limit}${search ? `&search=${encodeURIComponent(search)}` : ""}`;
}

export function begin() {
  undo = [
    live.onState(connectionChanged),
    live.on("agents.changed", agentChanged),
    live.on("sessions.changed", () => refresh("sessions", "runs")),
    live.on("run", () => refresh("runs", "ended", "processes", "approvals")),
    live.on("agent", (event) => agentEvent(event)),
    live.on("execution:cancel", () => refresh("runs")),
    live.on("hold.changed", (event) => {
      put("hold", { ...slices.hold, held: event.held });
      refresh("hold");
    }),
  ];
  beat = setInterval(onBeat, BEAT_MS);
  put("connection", live.state());
  refresh(...Object.keys(fetchers));
}

export function end() {
  undo.forEach((forget) => forget());
  undo = [];
  clearInterval(beat);
  clearTimeout(timer);
  beat = 0;
  timer = 0;
  due.clear();
  told.clear();
  again.forEach(({ timer: waits }) => clearTimeout(waits));
  again.clear();
  search = "";
  // Whoever signs in next is not shown what the one before was.
  Object.assign(slices, NOTHING);
}

function connectionChanged(state) {
  if (state === "lost" || slices.connection === "lost") {
    // What was asked on a line that is gone, or while there was none, may never be answered.
    under.forEach((request) => request.abort());
  }
  put("connection", state);
  if (state === "live") {
    refresh(...Object.keys(fetchers));
  }
}

/** The event alone is enough for the status; who works on what needs the list of runs. */
function agentChanged({ agentId, computeStatus, activeRuns, change }) {
  const known = slices.agents.some((agent) => agent.id === agentId);
  told.set(agentId, { round: rounds, computeStatus, activeRuns });
  if (change || !known) {
    refresh("agents", "models");
  } else {
    put(
      "agents",
      slices.agents.map((agent) => (agent.id === agentId ? { ...agent, computeStatus, activeRuns } : agent)),
    );
  }
  refresh("agents", "runs");
}

/** A list that was asked for before an event may be older than it: of that agent, the event is believed. */
async function fetchAgents() {
  rounds += 1;
  const round = rounds;
  const { items } = await read("/api/agents");
  return items.map((agent) => {
    const event = told.get(agent.id);
    return event?.round >= round
      ? { ...agent, computeStatus: event.computeStatus, activeRuns: event.activeRuns }
      : agent;
  });
}

function agentEvent({ stream }) {
  if (stream === "approval") {
    refresh("approvals", "runs");
  } else if (stream === "lifecycle") {
    refresh("runs");
  }
}

function onBeat() {
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
  const mine = new AbortController();
  under.add(mine);
  const late = setTimeout(() => mine.abort(), ANSWER_MS);
  try {
    return await api.getUntil(mine.signal, path);
  } finally {
    under.delete(mine);
    clearTimeout(late);
  }
}

/**
 * One request after the other: a browser keeps few connections to one host, and a stop has to find one free.
 */
async function fetchDue() {
  timer = 0;
  lastRound = Date.now();
  fetching = true;
  try {
    for (const name of [...due]) {
      due.delete(name);
      await fetchSlice(name);
    }
  } finally {
    fetching = false;
    if (due.size > 0) {
      refresh();
    }
  }
}

async function fetchSlice(name) {
  try {
    const value = await fetchers[name]();
    if (beat) {
      caughtUp(name);
      put(name, value);
    }
  } catch (error) {
    if (!(error instanceof api.Problem)) {
      throw error;
    }
    // Who may not see it, or is not signed in any more, is not helped by asking again.
    if (beat && error.status !== 401 && error.status !== 403) {
      fellBehind(name);
    }
  }
}

/** What could not be fetched stays as it was, is said to be old, and is fetched again after a while. */
function fellBehind(name) {
  const before = again.get(name);
  clearTimeout(before?.timer);
  const pause = before?.next ?? AGAIN_MS;
  const timer = setTimeout(() => refresh(name), pause);
  again.set(name, { next: Math.min(2 * pause, LONGEST_AGAIN_MS), timer });
  tellBehind();
}

function caughtUp(name) {
  if (again.has(name)) {
    clearTimeout(again.get(name).timer);
    again.delete(name);
    tellBehind();
  }
}

function tellBehind() {
  if (slices.behind.length !== again.size) {
    put("behind", [...again.keys()]);
  }
}
