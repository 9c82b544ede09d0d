// The entry point: loads texts and the signed-in user, mounts the sign-in form or the views, and maps the address
// to a route.

import { mountAgentTree } from "./agent-tree-view.js";
import * as api from "./api.js";
import { mountApprovalNotices } from "./approval-notices.js";
import { emptyApprovals, mountApprovals } from "./approvals.js";
import { mountChat } from "./chat.js";
import { byId, listen } from "./dom.js";
import { mountHeader } from "./header.js";
import { mountInspector } from "./inspector.js";
import { clearStoredDrafts } from "./message-drafts.js";
import { clearPendingStops } from "./pending-stops.js";
import { mountSessionList } from "./session-list.js";
import { mountSessionSharing } from "./session-sharing.js";
import { mountSignIn, showError, signInByLink } from "./sign-in.js";
import * as store from "./store.js";
import { loadTexts, onLanguage, oneLine, refreshTimes, t, translate } from "./texts.js";
import * as toasts from "./toasts.js";
import * as websocket from "./websocket.js";

const REFRESH_TIMES_MS = 10_000;
const REFRESH_LIVE_TIMES_MS = 1_000;
const VIEWS = { runs: "runs", agents: "agents", approvals: "approvals" };

let unmountViews = [];
let unmountSignIn = null;

async function start() {
  await loadTexts();
  translate(document);
  onLanguage(() => {
    translate(document);
    if (store.get("me")) {
      unmountShell();
      mountShell();
    }
  });
  api.onSignedOut(onSignedOut);
  api.onUnreachedNodes(showUnreachedNodes);
  api.onPausedSchedules((ids) => toasts.info(t("stop.paused-schedules", { ids: oneLine(ids.join(", "), 200) })));
  api.onUnstoredPauses(() => toasts.error(t("stop.unstored")));
  // A 401 answer shows the sign-in form.
  websocket.onConnectFailed(() => api.get("/api/me").catch(() => {}));
  listen(window, "hashchange", route);
  setInterval(() => !document.hidden && refreshTimes(document), REFRESH_TIMES_MS);
  setInterval(
    () => document.querySelectorAll('.turn[aria-busy="true"]').forEach(refreshTimes),
    REFRESH_LIVE_TIMES_MS,
  );
  await signInByLink();
  await loadUser();
}

async function loadUser() {
  try {
    const me = await api.get("/api/me");
    store.set("me", me);
    unmountSignIn?.();
    unmountSignIn = null;
    route();
    websocket.start(me.version);
    store.start();
    mountShell();
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    if (problem.status !== 401) {
      showSignIn(problem);
    }
  }
}

function onSignedOut() {
  if (store.get("me")) {
    store.set("me", null);
    unmountShell();
    store.stop();
    websocket.close();
    clearPendingStops();
    clearStoredDrafts();
  }
  showSignIn(null);
}

function showUnreachedNodes(nodes) {
  const seconds = Math.ceil(Math.max(...nodes.map((node) => node.leaseEndsInMs)) / 1000);
  toasts.error(t("stop.unreached", { nodes: nodes.map(({ node }) => oneLine(node, 60)).join(", "), seconds }));
}

function showSignIn(problem) {
  document.body.dataset.view = "sign-in";
  unmountSignIn ??= mountSignIn(byId("sign-in"), loadUser);
  if (problem) {
    showError(problem);
  }
}

function mountShell() {
  unmountViews = [
    mountHeader(byId("header")),
    mountAgentTree(byId("agents")),
    mountSessionList(byId("rail")),
    mountSessionSharing(),
    mountChat(byId("chat")),
    mountOnFirstView("runs", async () => (await import("./runs-view.js")).mountRunsView(byId("everything"))),
    mountOnFirstView("agents", async () => (await import("./agents-view.js")).mountAgentsView(byId("agents-view"))),
    mountApprovals(byId("approvals"), { createEmpty: emptyApprovals }),
    mountOnFirstView("approvals", async () =>
      (await import("./approval-rules.js")).mountApprovalRules(byId("approval-rules")),
    ),
    mountApprovalNotices(byId("approval-notices")),
    mountInspector(byId("inspector")),
    mountDrawers(),
    ...["connection", "staleSlices"].map((slice) => store.subscribe(slice, updateStale)),
    store.subscribe("connection", (state) => state === "live" && toasts.dismissUnanswered()),
  ];
}

/** Loads and mounts a part of the page when its view is opened for the first time. Returns its clean-up. */
function mountOnFirstView(view, mount) {
  let mounted = null;
  const update = () => {
    if (store.get("route").view === view) {
      mounted ??= mount().catch(() => {
        // The daemon does not answer: the next attempt comes with the connection.
        mounted = null;
      });
    }
  };
  const unsubscribe = ["route", "connection"].map((slice) => store.subscribe(slice, update));
  update();
  return () => {
    unsubscribe.forEach((cleanup) => cleanup());
    mounted?.then((cleanup) => cleanup?.());
  };
}

function updateStale() {
  const stale = store.get("connection") !== "live" || store.get("staleSlices").length > 0;
  document.body.classList.toggle("stale", stale);
}

function unmountShell() {
  unmountViews.forEach((cleanup) => cleanup());
  unmountViews = [];
}

function route() {
  if (!store.get("me")) {
    return;
  }
  const target = parseRoute(location.hash);
  document.body.dataset.view = target.view;
  setDrawerOpen("rail", false);
  if (target.view !== "chat") {
    setDrawerOpen("inspector", false);
  }
  for (const tab of document.querySelectorAll("#tabs a, #facts a")) {
    const isCurrent = tab.dataset.tab === target.view;
    if (isCurrent) {
      tab.setAttribute("aria-current", "page");
    } else {
      tab.removeAttribute("aria-current");
    }
  }
  store.set("route", target);
  if (target.view === "run") {
    store.inspect(target.run);
  }
}

function parseRoute(hash) {
  const [, kind = "", rest = ""] = /^#\/([^/]*)\/?(.*)$/.exec(hash) || [];
  if (kind === "s" && rest) {
    return { view: "chat", key: decode(rest) };
  }
  if (kind === "r" && rest) {
    return { view: "run", run: decode(rest) };
  }
  return { view: VIEWS[kind] || "chat" };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Rail and inspector are drawers in a narrow window. */
function mountDrawers() {
  const rail = byId("rail");
  const cleanups = [
    listen(byId("rail-toggle"), "click", () =>
      setDrawerOpen("rail", !document.body.classList.contains("rail-open")),
    ),
    listen(byId("inspector-toggle"), "click", () =>
      setDrawerOpen("inspector", !document.body.classList.contains("inspector-open")),
    ),
    listen(rail, "click", (event) => event.target.closest("a") && setDrawerOpen("rail", false)),
    listen(
      document,
      "pointerdown",
      (event) =>
        rail.contains(event.target) || event.target.closest("#header") || setDrawerOpen("rail", false),
    ),
  ];
  return () => cleanups.forEach((cleanup) => cleanup());
}

function setDrawerOpen(name, open) {
  document.body.classList.toggle(`${name}-open`, open);
  byId(`${name}-toggle`).setAttribute("aria-expanded", String(open));
}

start();
