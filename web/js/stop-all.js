// "Stop all": the button, the dialog that says what will be stopped, its progress, and the result with all leftovers.
// Exports mountStopAll.

import * as api from "./api.js";
import { coveredByStopAll } from "./derived-state.js";
import { byId, h, icon, isSecondClick, listen } from "./dom.js";
import { stopErrorText } from "./error-texts.js";
import {
  progressCounts,
  recordRunDeleted,
  recordRunEnd,
  startProgress,
  summary,
  updateProcesses,
} from "./stop-all-progress.js";
import { reasonAgainst, restrict } from "./rights.js";
import * as store from "./store.js";
import { millis, oneLine, t, tPlural } from "./texts.js";
import * as toasts from "./toasts.js";
import * as websocket from "./websocket.js";

const POLL_MS = 200;
/** Requests at the same time for receipts that no event brought. */
const MAX_PARALLEL_READS = 20;
const MAX_NAMED = 50;

export function mountStopAll(button, dialog) {
  const parts = {
    dialog,
    what: byId("stop-all-what"),
    confirm: byId("stop-all-confirm"),
    cancel: byId("stop-all-cancel"),
    hold: byId("stop-all-hold"),
  };
  let operation = null;
  const open = () => {
    if (!operation || operation.done) {
      operation = null;
      showQuestion(parts);
    }
    dialog.showModal();
    parts.confirm.focus();
  };
  const confirm = (event) => {
    // The button changes under the pointer from Stop to Force to Close.
    if (isSecondClick(event)) {
      return;
    }
    if (!operation || operation.failed) {
      operation = stopAll(parts);
    } else if (operation.done) {
      dialog.close();
    } else {
      operation.force();
    }
  };
  const cleanups = [
    listen(button, "click", open),
    listen(parts.confirm, "click", confirm),
    listen(parts.cancel, "click", () => dialog.close()),
    listen(dialog, "close", () => button.focus()),
    ...["runs", "processes", "approvals"].map((slice) =>
      store.subscribe(slice, () => dialog.open && !operation && renderCovered(parts)),
    ),
  ];
  return () => {
    operation?.dispose();
    if (dialog.open) {
      dialog.close();
    }
    cleanups.forEach((unsubscribe) => unsubscribe());
  };
}

function showQuestion(parts) {
  parts.hold.checked = false;
  restrict(parts.hold, reasonAgainst("admin"));
  parts.hold.closest("label").hidden = false;
  parts.cancel.hidden = false;
  byId("stop-all-title").textContent = t("stop-all.title");
  setButton(parts.confirm, "stop", t("stop-all.confirm"));
  parts.confirm.classList.add("stop-button");
  parts.cancel.textContent = t("stop-all.cancel");
  renderCovered(parts);
}

function renderCovered({ what }) {
  const covered = coveredByStopAll(store.get("runs"), store.get("processes"), store.get("approvals"));
  const lines = ["runs", "processes", "approvals"]
    .filter((name) => covered[name] > 0)
    .map((name) => h("li", {}, `${covered[name]} ${tPlural(`stop-all.covers.${name}`, covered[name])}`));
  if (covered.queued > 0) {
    lines.splice(1, 0, h("li", {}, t("stop-all.covers.queued", { n: covered.queued })));
  }
  what.replaceChildren(
    ...(lines.length > 0 ? [h("ul", { class: "covered-list" }, lines)] : [t("stop-all.covers.nothing")]),
  );
}

function setButton(button, iconName, text) {
  button.replaceChildren(icon(iconName), text);
}

/** Starts the stop. It continues when the dialog is closed. */
function stopAll(parts) {
  const operation = { done: false, progress: null, earlyEnds: new Map(), timer: 0 };
  // A run may end before the answer to the stop arrives.
  const unsubscribe = websocket.on("run", ({ state, runId, receipt }) => {
    if (state !== "ended") {
      return;
    }
    operation.earlyEnds.set(runId, receipt);
    if (operation.progress) {
      recordRunEnd(operation.progress, runId, receipt);
    }
  });
  operation.dispose = () => {
    unsubscribe();
    clearTimeout(operation.timer);
    operation.disposed = true;
  };
  operation.force = () => requestStop(parts, operation, { force: true });
  parts.hold.closest("label").hidden = true;
  byId("stop-all-title").textContent = t("stop-all.stopping");
  parts.what.replaceChildren(t("stop-all.asking"));
  requestStop(parts, operation, { hold: parts.hold.checked });
  return operation;
}

async function requestStop(parts, operation, body) {
  setButton(parts.confirm, "force", t("stop-all.force"));
  parts.cancel.textContent = t("stop-all.close");
  operation.problem = null;
  try {
    const answer = await api.stop("/api/stop", body);
    if (!body.force) {
      operation.progress = startProgress(answer);
      operation.holdProblem = answer.holdProblem;
      for (const [runId, receipt] of operation.earlyEnds) {
        recordRunEnd(operation.progress, runId, receipt);
      }
      pollProgress(parts, operation);
    }
  } catch (problem) {
    operation.problem = stopErrorText("stop-all.failed", problem);
    if (!body.force) {
      showFailure(parts, operation);
    }
  }
  store.refresh("runs", "processes", "approvals", "hold");
}

/** The same button tries again. */
function showFailure(parts, operation) {
  operation.dispose();
  operation.done = true;
  operation.failed = true;
  byId("stop-all-title").textContent = t("stop-all.title");
  parts.what.replaceChildren(problemElement(operation.problem));
  setButton(parts.confirm, "stop", t("stop-all.again"));
}

function problemElement(text) {
  return h("p", { class: "problem", role: "alert" }, icon("failed"), ` ${text}`);
}

async function pollProgress(parts, operation) {
  const now = progressCounts(operation.progress);
  if (now.over) {
    operation.dispose();
    operation.done = true;
    showSummary(parts, summaryContent(summary(operation.progress), operation.holdProblem));
    store.refresh("runs", "ended", "processes", "hold");
    return;
  }
  parts.what.replaceChildren(
    ...progressElements(now),
    ...(operation.problem ? [problemElement(operation.problem)] : []),
  );
  operation.timer = setTimeout(async () => {
    await readMissing(operation.progress);
    if (!operation.disposed) {
      pollProgress(parts, operation);
    }
  }, POLL_MS);
}

function progressElements({ runs, processes }) {
  const words = [t("stop-all.left.runs", { left: runs.left, all: runs.all })];
  if (processes.all > 0) {
    words.push(t("stop-all.left.processes", { left: processes.left, all: processes.all }));
  }
  const all = runs.all + processes.all;
  return [
    h("p", { role: "status" }, words.join(" · ")),
    h("progress", {
      max: String(all),
      value: String(all - runs.left - processes.left),
      "aria-label": t("stop-all.stopping"),
    }),
  ];
}

/** Fetches receipts that are missing, because events can be lost with the connection. */
async function readMissing(progress) {
  const waiting = progressCounts(progress).waiting.slice(0, MAX_PARALLEL_READS);
  try {
    await Promise.all(waiting.map((id) => readRun(progress, id)));
    if (progressCounts(progress).processes.left > 0) {
      updateProcesses(progress, (await api.get("/api/processes")).items);
    }
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
  }
}

async function readRun(progress, id) {
  try {
    recordRunEnd(progress, id, (await api.get(api.runPath(id))).receipt);
  } catch (problem) {
    if (problem.status !== 404) {
      throw problem;
    }
    recordRunDeleted(progress, id);
  }
}

/**
 * Closes the dialog when nothing is left. Otherwise the result stays visible: in the dialog, or as an error toast
 * when the dialog was closed meanwhile.
 */
function showSummary(parts, { line, elements, leftoverNames }) {
  if (elements.length === 0) {
    parts.dialog.close();
    toasts.success(line);
    return;
  }
  if (!parts.dialog.open) {
    toasts.error([line, ...leftoverNames].join(" · "));
  }
  parts.what.replaceChildren(h("p", { role: "status" }, line), ...elements);
  byId("stop-all-title").textContent = t("stop-all.over");
  parts.cancel.hidden = true;
  setButton(parts.confirm, "done", t("stop-all.close"));
  parts.confirm.classList.remove("stop-button");
}

function summaryContent({ runs, slowestMs, processes, leftovers, deleted }, holdProblem) {
  const parts = [];
  if (runs > 0) {
    parts.push(
      `${runs} ${tPlural("stop-all.runs", runs)} ${t("stop-all.within", { time: millis(slowestMs) })}`,
    );
  }
  if (processes > 0) {
    parts.push(`${processes} ${tPlural("stop-all.processes", processes)}`);
  }
  if (parts.length === 0) {
    parts.push(t("stop-all.nothing"));
  } else if (leftovers.length === 0) {
    parts.push(t("stop-all.no-leftovers"));
  }
  const elements = leftovers.length > 0 ? [leftoverElement(leftovers)] : [];
  if (deleted > 0) {
    elements.push(problemElement(tPlural("stop-all.gone", deleted)));
  }
  if (holdProblem) {
    elements.push(problemElement(t("stop-all.hold-problem", { reason: oneLine(holdProblem, 200) })));
  }
  const leftoverNames = leftovers.slice(0, MAX_NAMED).map(({ name }) => oneLine(name, 200));
  if (deleted > 0) {
    leftoverNames.push(tPlural("stop-all.gone", deleted));
  }
  if (holdProblem) {
    leftoverNames.push(t("stop-all.hold-problem", { reason: oneLine(holdProblem, 200) }));
  }
  return { line: parts.join(" · "), elements, leftoverNames };
}

function leftoverElement(leftovers) {
  const rows = leftovers
    .slice(0, MAX_NAMED)
    .map(({ runId, name }) =>
      h("li", {}, h("a", { href: `#/r/${encodeURIComponent(runId)}` }, oneLine(name, 200))),
    );
  const hiddenCount = leftovers.length - rows.length;
  return h(
    "div",
    { class: "leftovers", role: "alert" },
    h("p", {}, icon("failed"), " ", t("stop-all.leftovers", { n: leftovers.length })),
    h("ul", {}, rows, hiddenCount > 0 && h("li", {}, t("stop-all.more", { n: hiddenCount }))),
  );
}
