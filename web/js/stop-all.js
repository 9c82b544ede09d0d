// Stop everything: a button, a dialog that says what it will cover, its progress, and how it ended with all
// that is left by name. What counts as over is in stop-progress.js.

import * as api from "./api.js";
import { byId, h, icon, isSecondHalf, listen } from "./dom.js";
import { coveredByStopAll } from "./facts.js";
import * as live from "./live.js";
import { stopFailure } from "./reasons.js";
import { begun, processesSeen, runEnded, runGone, standing, summary } from "./stop-progress.js";
import * as store from "./store.js";
import { counted, millis, oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

const LOOK_MS = 200;
/** Receipts that no event brought are asked for, as many at a time. */
const ASKED_AT_ONCE = 20;
const MOST_NAMED = 50;

export function mount(button, dialog) {
  const parts = {
    dialog,
    what: byId("stop-all-what"),
    confirm: byId("stop-all-confirm"),
    cancel: byId("stop-all-cancel"),
    hold: byId("stop-all-hold"),
  };
  let work = null;
  const open = () => {
    if (!work || work.done) {
      work = null;
      ask(parts);
    }
    dialog.showModal();
    parts.confirm.focus();
  };
  const confirm = (event) => {
    // Stop turns into Force under the pointer, and that into Close.
    if (isSecondHalf(event)) {
      return;
    }
    if (!work || work.failed) {
      work = stopAll(parts);
    } else if (work.done) {
      dialog.close();
    } else {
      work.force();
    }
  };
  const undo = [
    listen(button, "click", open),
    listen(parts.confirm, "click", confirm),
    listen(parts.cancel, "click", () => dialog.close()),
    listen(dialog, "close", () => button.focus()),
    ...["runs", "processes", "approvals"].map((slice) =>
      store.subscribe(slice, () => dialog.open && !work && describe(parts)),
    ),
  ];
  return () => {
    work?.leave();
    if (dialog.open) {
      dialog.close();
    }
    undo.forEach((forget) => forget());
  };
}

function ask(parts) {
  parts.hold.checked = false;
  parts.hold.closest("label").hidden = false;
  parts.cancel.hidden = false;
  byId("stop-all-title").textContent = t("stop-all.title");
  label(parts.confirm, "stop", t("stop-all.confirm"));
  parts.confirm.classList.add("stop-button");
  parts.cancel.textContent = t("stop-all.cancel");
  describe(parts);
}

function describe({ what }) {
  const covered = coveredByStopAll(store.get("runs"), store.get("processes"), store.get("approvals"));
  const lines = ["runs", "processes", "approvals"]
    .filter((of) => covered[of] > 0)
    .map((of) => h("li", {}, `${covered[of]} ${counted(`stop-all.covers.${of}`, covered[of])}`));
  if (covered.queued > 0) {
    lines.splice(1, 0, h("li", {}, t("stop-all.covers.queued", { n: covered.queued })));
  }
  what.replaceChildren(
    ...(lines.length > 0 ? [h("ul", { class: "covers" }, lines)] : [t("stop-all.covers.nothing")]),
  );
}

function label(button, drawing, text) {
  button.replaceChildren(icon(drawing), text);
}

/** The stop itself. It goes on when the dialog is closed; who opens that again sees where it is. */
function stopAll(parts) {
  const work = { done: false, progress: null, early: new Map(), timer: 0 };
  // An end may be told before the answer to the stop has come.
  const forget = live.on("run", ({ state, runId, receipt }) => {
    if (state !== "ended") {
      return;
    }
    work.early.set(runId, receipt);
    if (work.progress) {
      runEnded(work.progress, runId, receipt);
    }
  });
  work.leave = () => {
    forget();
    clearTimeout(work.timer);
    work.left = true;
  };
  work.force = () => order(parts, work, { force: true });
  parts.hold.closest("label").hidden = true;
  byId("stop-all-title").textContent = t("stop-all.stopping");
  parts.what.replaceChildren(t("stop-all.asking"));
  order(parts, work, { hold: parts.hold.checked });
  return work;
}

async function order(parts, work, body) {
  label(parts.confirm, "force", t("stop-all.force"));
  parts.cancel.textContent = t("stop-all.close");
  work.problem = null;
  try {
    const answer = await api.stop("/api/stop", body);
    if (!body.force) {
      work.progress = begun(answer);
      work.holdProblem = answer.holdProblem;
      for (const [runId, receipt] of work.early) {
        runEnded(work.progress, runId, receipt);
      }
      look(parts, work);
    }
  } catch (problem) {
    work.problem = stopFailure("stop-all.failed", problem);
    if (!body.force) {
      failed(parts, work);
    }
  }
  store.refresh("runs", "processes", "approvals", "hold");
}

/** Nothing was stopped as far as one knows: the same button tries again. */
function failed(parts, work) {
  work.leave();
  work.done = true;
  work.failed = true;
  byId("stop-all-title").textContent = t("stop-all.title");
  parts.what.replaceChildren(trouble(work.problem));
  label(parts.confirm, "stop", t("stop-all.again"));
}

function trouble(text) {
  return h("p", { class: "problem", role: "alert" }, icon("failed"), ` ${text}`);
}

async function look(parts, work) {
  const now = standing(work.progress);
  if (now.over) {
    work.leave();
    work.done = true;
    finish(parts, told(summary(work.progress), work.holdProblem));
    store.refresh("runs", "ended", "processes", "hold");
    return;
  }
  parts.what.replaceChildren(...left(now), ...(work.problem ? [trouble(work.problem)] : []));
  work.timer = setTimeout(async () => {
    await readMissing(work.progress);
    if (!work.left) {
      look(parts, work);
    }
  }, LOOK_MS);
}

function left({ runs, processes }) {
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

/**
 * Events can be lost with the connection; what has no receipt yet is looked up, and a daemon that is away is
 * asked again.
 */
async function readMissing(progress) {
  const asked = standing(progress).waiting.slice(0, ASKED_AT_ONCE);
  try {
    await Promise.all(asked.map((id) => readRun(progress, id)));
    if (standing(progress).processes.left > 0) {
      processesSeen(progress, (await api.get("/api/processes")).items);
    }
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
  }
}

async function readRun(progress, id) {
  try {
    runEnded(progress, id, (await api.get(api.run(id))).receipt);
  } catch (problem) {
    if (problem.status !== 404) {
      throw problem;
    }
    runGone(progress, id);
  }
}

/**
 * Where all is really over the dialog has nothing more to say than one line; what is left stays on the screen
 * until somebody has read it: in the dialog, or beside what they have turned to since.
 */
function finish(parts, { line, content, left }) {
  if (content.length === 0) {
    parts.dialog.close();
    toasts.success(line);
    return;
  }
  if (!parts.dialog.open) {
    toasts.error([line, ...left].join(" · "));
  }
  parts.what.replaceChildren(h("p", { role: "status" }, line), ...content);
  byId("stop-all-title").textContent = t("stop-all.over");
  parts.cancel.hidden = true;
  label(parts.confirm, "done", t("stop-all.close"));
  parts.confirm.classList.remove("stop-button");
}

function told({ runs, slowestMs, processes, leftovers, gone }, holdProblem) {
  const parts = [];
  if (runs > 0) {
    parts.push(
      `${runs} ${counted("stop-all.runs", runs)} ${t("stop-all.within", { time: millis(slowestMs) })}`,
    );
  }
  if (processes > 0) {
    parts.push(`${processes} ${counted("stop-all.processes", processes)}`);
  }
  if (parts.length === 0) {
    parts.push(t("stop-all.nothing"));
  } else if (leftovers.length === 0) {
    parts.push(t("stop-all.no-leftovers"));
  }
  const content = leftovers.length > 0 ? [leftoverList(leftovers)] : [];
  if (gone > 0) {
    content.push(trouble(counted("stop-all.gone", gone)));
  }
  if (holdProblem) {
    content.push(trouble(t("stop-all.hold-problem", { reason: oneLine(holdProblem, 200) })));
  }
  const left = leftovers.slice(0, MOST_NAMED).map(({ name }) => oneLine(name, 200));
  if (gone > 0) {
    left.push(counted("stop-all.gone", gone));
  }
  if (holdProblem) {
    left.push(t("stop-all.hold-problem", { reason: oneLine(holdProblem, 200) }));
  }
  return { line: parts.join(" · "), content, left };
}

function leftoverList(leftovers) {
  const rows = leftovers
    .slice(0, MOST_NAMED)
    .map(({ runId, name }) =>
      h("li", {}, h("a", { href: `#/r/${encodeURIComponent(runId)}` }, oneLine(name, 200))),
    );
  const rest = leftovers.length - rows.length;
  return h(
    "div",
    { class: "leftovers", role: "alert" },
    h("p", {}, icon("failed"), " ", t("stop-all.leftovers", { n: leftovers.length })),
    h("ul", {}, rows, rest > 0 && h("li", {}, t("stop-all.more", { n: rest }))),
  );
}
