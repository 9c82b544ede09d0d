// Begins: the texts, who is here, then the sign-in form or the shell with its views; and turns addresses into
// routes. It knows which modules there are, and nothing of what they show.

import * as agents from "./agents.js";
import * as agentsView from "./agents-view.js";
import * as api from "./api.js";
import * as approvals from "./approvals.js";
import * as chat from "./chat.js";
import { byId, listen } from "./dom.js";
import * as drafts from "./drafts.js";
import * as everything from "./everything.js";
import * as header from "./header.js";
import * as inspector from "./inspector.js";
import * as keptStops from "./kept-stops.js";
import * as live from "./live.js";
import * as sessions from "./sessions.js";
import * as signIn from "./sign-in.js";
import * as store from "./store.js";
import { loadTexts, onLanguage, refreshTimes, translate } from "./texts.js";
import * as toasts from "./toasts.js";

const TIMES_MS = 10_000;
const LIVE_TIMES_MS = 1_000;
const VIEWS = { runs: "runs", agents: "agents", approvals: "approvals" };

let unmount = [];
let unmountSignIn = null;

async function boot() {
  await loadTexts();
  translate(document);
  onLanguage(() => {
    translate(document);
    if (store.get("me")) {
      leaveShell();
      enterShell();
    }
  });
  api.onSignedOut(signedOut);
  // Who was signed out meanwhile hears it from the answer, as with any request.
  live.onRefused(() => api.get("/api/me").catch(() => {}));
  listen(window, "hashchange", route);
  setInterval(() => !document.hidden && refreshTimes(document), TIMES_MS);
  // Since when something runs is worth a second; when something was is not.
  setInterval(
    () => document.querySelectorAll('.turn[aria-busy="true"]').forEach(refreshTimes),
    LIVE_TIMES_MS,
  );
  await arrive();
}

/** Who is here, and so what is shown. */
async function arrive() {
  try {
    const me = await api.get("/api/me");
    store.put("me", me);
    unmountSignIn?.();
    unmountSignIn = null;
    route();
    live.start(me.version);
    store.begin();
    enterShell();
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    if (problem.status !== 401) {
      showSignIn(problem);
    }
  }
}

function signedOut() {
  if (store.get("me")) {
    store.put("me", null);
    leaveShell();
    store.end();
    live.close();
    keptStops.forgetAll();
    drafts.forgetStored();
  }
  showSignIn(null);
}

function showSignIn(problem) {
  document.body.dataset.view = "sign-in";
  unmountSignIn ??= signIn.mount(byId("sign-in"), arrive);
  if (problem) {
    signIn.tell(problem);
  }
}

function enterShell() {
  unmount = [
    header.mount(byId("header")),
    agents.mount(byId("agents")),
    sessions.mount(byId("rail")),
    chat.mount(byId("chat")),
    everything.mount(byId("everything")),
    agentsView.mount(byId("agents-view")),
    approvals.mount(byId("approvals"), { empty: approvals.emptyInbox }),
    inspector.mount(byId("inspector")),
    drawers(),
    ...["connection", "behind"].map((slice) => store.subscribe(slice, markStale)),
    store.subscribe("connection", (state) => state === "live" && toasts.connectionIsBack()),
  ];
}

function markStale() {
  const stale = store.get("connection") !== "live" || store.get("behind").length > 0;
  document.body.classList.toggle("stale", stale);
}

function leaveShell() {
  unmount.forEach((leave) => leave());
  unmount = [];
}

function route() {
  if (!store.get("me")) {
    return;
  }
  const next = parse(location.hash);
  document.body.dataset.view = next.view;
  drawer("rail", false);
  if (next.view !== "chat") {
    drawer("inspector", false);
  }
  for (const tab of document.querySelectorAll("#tabs a, #facts a")) {
    const here = tab.dataset.tab === next.view;
    if (here) {
      tab.setAttribute("aria-current", "page");
    } else {
      tab.removeAttribute("aria-current");
    }
  }
  store.put("route", next);
  if (next.view === "run") {
    store.inspect(next.run);
  }
}

function parse(hash) {
  const [, kind = "", rest = ""] = /^#\/([^/]*)\/?(.*)$/.exec(hash) || [];
  if (kind === "s" && rest) {
    return { view: "chat", key: decoded(rest) };
  }
  if (kind === "r" && rest) {
    return { view: "run", run: decoded(rest) };
  }
  return { view: VIEWS[kind] || "chat" };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Rail and inspector are drawers where the window is narrow. */
function drawers() {
  const rail = byId("rail");
  const forget = [
    listen(byId("rail-toggle"), "click", () =>
      drawer("rail", !document.body.classList.contains("rail-open")),
    ),
    listen(byId("inspector-toggle"), "click", () =>
      drawer("inspector", !document.body.classList.contains("inspector-open")),
    ),
    listen(rail, "click", (event) => event.target.closest("a") && drawer("rail", false)),
    listen(
      document,
      "pointerdown",
      (event) => rail.contains(event.target) || event.target.closest("#header") || drawer("rail", false),
    ),
  ];
  return () => forget.forEach((leave) => leave());
}

function drawer(name, open) {
  document.body.classList.toggle(`${name}-open`, open);
  byId(`${name}-toggle`).setAttribute("aria-expanded", String(open));
}

boot();
