// The button that stops one run, and the one that forces it, wherever a run is shown. It does not know the
// place.

import { h, icon } from "./dom.js";
import { isWaiting, keep, UNKNOWN_RUN } from "./kept-stops.js";
import { stopFailure } from "./reasons.js";
import { shortId } from "./short-id.js";
import * as store from "./store.js";
import { t } from "./texts.js";
import * as toasts from "./toasts.js";

/** A stop button for a run. `small` ones show their sign alone. */
export function stopButton(runId, { small = false } = {}) {
  const name = t("run.stop.of", { run: shortId(runId) });
  return button("stop-run", "stop", { name, text: t("run.stop"), small, order: () => stopRun(runId, false) });
}

export function forceButton(runId, { small = false } = {}) {
  const name = t("run.force.of", { run: shortId(runId) });
  return button("force-run", "force", {
    name,
    text: t("run.force"),
    small,
    order: () => stopRun(runId, true),
  });
}

function button(name, drawing, { name: label, text, small, order }) {
  const element = h(
    "button",
    {
      type: "button",
      class: `stop-button ${name}${small ? " small" : ""}`,
      title: label,
      "aria-label": label,
      on: {
        click: async ({ detail }) => {
          // Rows of a list move up when one goes: the second half of a double click must not stop the next
          // run.
          if (small && detail > 1) {
            return;
          }
          element.setAttribute("aria-busy", "true");
          await order();
          element.removeAttribute("aria-busy");
        },
      },
    },
    icon(drawing),
    !small && text,
  );
  return element;
}

/** Until the daemon has answered; what is asked while the connection is lost waits for it. */
async function stopRun(runId, force) {
  await new Promise((answered) => {
    keep(runId, { force }, {
      answered,
      refused: (problem) => {
        if (!UNKNOWN_RUN.has(problem.code)) {
          const told = stopFailure("run.stop.failed", problem);
          console.error(told, problem);
          toasts.error(told);
        }
        answered();
      },
    });
    if (isWaiting(runId)) {
      toasts.info(t("run.stop.waits"));
    }
  });
  store.refresh("runs");
}
