// The run inspector. Exports mountInspector. It shows the run that the store calls `inspected`; what that needs is loaded
// with the first one.

import { h } from "./dom.js";
import * as store from "./store.js";
import { t } from "./texts.js";

export function mountInspector(root) {
  let unmount = () => {};
  let wanted = null;
  let shown = null;
  const show = async (runId) => {
    unmount();
    unmount = () => {};
    [wanted, shown] = [runId, null];
    if (!runId) {
      showEmpty(root);
      return;
    }
    // Null when the daemon does not answer: the next attempt comes with the connection.
    const module = await import("./run-inspector.js").catch(() => null);
    // Another run may have been chosen meanwhile.
    if (module && wanted === runId && shown !== runId) {
      shown = runId;
      unmount = module.showRun(root, runId);
    }
  };
  const cleanups = [
    store.subscribe("inspected", show),
    store.subscribe("connection", () => wanted && shown !== wanted && show(wanted)),
  ];
  return () => {
    cleanups.forEach((cleanup) => cleanup());
    wanted = null;
    unmount();
    root.replaceChildren();
  };
}

function showEmpty(root) {
  delete root.dataset.run;
  root.replaceChildren(
    h(
      "div",
      { class: "empty" },
      h("h2", {}, t("inspector.none")),
      h("p", {}, t("inspector.none.next")),
      h("code", {}, 'quell send "hello"'),
    ),
  );
}
