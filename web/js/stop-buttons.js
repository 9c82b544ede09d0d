// The buttons that stop and force one run, for every place that shows a run. Exports stopButton and forceButton.

import { h, icon } from "./dom.js";
import { stopErrorText } from "./error-texts.js";
import { shortId } from "./ids.js";
import { isWaitingForConnection, sendStop, UNKNOWN_RUN } from "./pending-stops.js";
import { reasonAgainstStop, restrict } from "./rights.js";
import * as store from "./store.js";
import { t } from "./texts.js";
import * as toasts from "./toasts.js";

/** A `small` button shows only its icon. */
export function stopButton(run, { small = false } = {}) {
  const name = t("run.stop.of", { run: shortId(run.runId) });
  const button = createButton("stop-run", "stop", {
    name,
    text: t("run.stop"),
    small,
    onPress: () => stopRun(run.runId, false),
  });
  return restrict(button, reasonAgainstStop(run), name);
}

export function forceButton(run, { small = false } = {}) {
  const name = t("run.force.of", { run: shortId(run.runId) });
  const button = createButton("force-run", "force", {
    name,
    text: t("run.force"),
    small,
    onPress: () => stopRun(run.runId, true),
  });
  return restrict(button, reasonAgainstStop(run), name);
}

function createButton(name, iconName, { name: label, text, small, onPress }) {
  const element = h(
    "button",
    {
      type: "button",
      class: `stop-button ${name}${small ? " small" : ""}`,
      "aria-label": label,
      on: {
        click: async ({ detail }) => {
          // Rows move up when one is removed: the second click of a double click must not stop the next run.
          if (small && detail > 1) {
            return;
          }
          element.setAttribute("aria-busy", "true");
          await onPress();
          element.removeAttribute("aria-busy");
        },
      },
    },
    icon(iconName),
    !small && text,
  );
  return element;
}

/** Resolves after the answer of the daemon. */
async function stopRun(runId, force) {
  await new Promise((resolve) => {
    sendStop(
      runId,
      { force },
      {
        onAnswer: resolve,
        onRefusal: (problem) => {
          if (!UNKNOWN_RUN.has(problem.code)) {
            const message = stopErrorText("run.stop.failed", problem);
            console.error(message, problem);
            toasts.error(message);
          }
          resolve();
        },
      },
    );
    if (isWaitingForConnection(runId)) {
      toasts.info(t("run.stop.waits"));
    }
  });
  store.refresh("runs");
}
