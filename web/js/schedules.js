// Schedules in the runs view, each with buttons that pause, resume and remove it. Exports mountSchedules. The section
// is hidden while there are none.

import * as api from "./api.js";
import { h, icon, reconcileChildren } from "./dom.js";
import { errorText } from "./error-texts.js";
import { reasonAgainstChange, restrict } from "./rights.js";
import * as store from "./store.js";
import { escapeInvisible, exactTime, oneLine, t } from "./texts.js";
import * as toasts from "./toasts.js";

const TEXT_CHARS = 120;

/** `section` has a heading and a list. */
export function mountSchedules(section) {
  const load = loadOneAtATime(async () => {
    if (store.get("route").view === "runs") {
      render(section, (await api.get("/api/schedules")).items, load);
    }
  });
  // No event announces a changed schedule; a firing ends a run.
  const cleanups = ["route", "connection", "hold", "ended"].map((slice) => store.subscribe(slice, load));
  load();
  return () => cleanups.forEach((cleanup) => cleanup());
}

/** While it loads, further wishes become one. */
function loadOneAtATime(loadOnce) {
  let state = "idle";
  return async function load() {
    if (state !== "idle") {
      state = "again";
      return;
    }
    do {
      state = "loading";
      try {
        await loadOnce();
      } catch {
        // The header says that the daemon does not answer; the list is loaded again with the connection.
      }
    } while (state === "again");
    state = "idle";
  };
}

function render(section, schedules, reload) {
  section.hidden = schedules.length === 0;
  reconcileChildren(section.lastElementChild, schedules, rowKey, (schedule) => createRow(schedule, reload));
}

/** A changed schedule gets a new row. */
function rowKey({ id, paused, nextAt, problem }) {
  return [id, paused?.reason, nextAt, problem].join(" ");
}

function createRow(schedule, reload) {
  const row = h(
    "li",
    { data: { schedule: schedule.id } },
    h(
      "div",
      {},
      h("code", {}, timesText(schedule)),
      " ",
      oneLine(schedule.text, TEXT_CHARS),
      h("div", { class: "schedule-facts" }, factsText(schedule)),
    ),
    h(
      "div",
      { class: "schedule-actions" },
      isOver(schedule) ? null : changeButton(schedule, reload),
      removeButton(schedule, reload),
    ),
  );
  return row;
}

function timesText({ cron, every, at }) {
  return at ? exactTime(at) : escapeInvisible(cron ?? every ?? "");
}

function isOver({ paused, nextAt }) {
  return !paused && !nextAt;
}

function factsText(schedule) {
  const { paused, nextAt, timezone, sessionKey, createdBy, problem } = schedule;
  const state = paused
    ? t("schedules.paused", { reason: oneLine(paused.reason, TEXT_CHARS) })
    : nextAt
      ? t("schedules.next", { time: exactTime(nextAt) })
      : t("schedules.over");
  const parts = [state, timezone, oneLine(sessionKey, 60), oneLine(createdBy, 60)];
  if (problem) {
    parts.push(oneLine(problem, TEXT_CHARS));
  }
  return parts.join(" · ");
}

function changeButton(schedule, reload) {
  const isPaused = Boolean(schedule.paused);
  const label = isPaused ? t("schedules.resume") : t("schedules.pause");
  const change = () => api.patch(schedulePath(schedule), { paused: !isPaused });
  const button = actionButton("pause-schedule", isPaused ? "clock" : "hold", label, change, reload);
  return restrict(button, reasonAgainstChange({ owner: schedule.createdBy }));
}

function removeButton(schedule, reload) {
  const remove = () => api.del(schedulePath(schedule));
  const button = actionButton("remove-schedule", "close", t("schedules.remove"), remove, reload);
  return restrict(button, reasonAgainstChange({ owner: schedule.createdBy }));
}

function actionButton(name, iconName, label, act, reload) {
  const click = async () => {
    button.disabled = true;
    try {
      await act();
    } catch (problem) {
      toasts.error(t("schedules.failed", { reason: errorText(problem) }), problem);
      button.disabled = false;
    }
    await reload();
  };
  const button = h("button", { type: "button", class: name, on: { click } }, icon(iconName), label);
  return button;
}

function schedulePath({ id }) {
  return `/api/schedules/${encodeURIComponent(id)}`;
}
