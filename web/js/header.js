// The header of every view: counts, connection state, hold, theme, language and sign-out. Exports mountHeader and
// holdText. "Stop all" is in stop-all.js.

import * as api from "./api.js";
import { aliveProcesses } from "./derived-state.js";
import { byId, h, icon, listen, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import { savePageSecret } from "./page-secret.js";
import { reasonAgainst, restrict } from "./rights.js";
import { mountStopAll } from "./stop-all.js";
import * as store from "./store.js";
import { ago, exactTime, language, oneLine, setLanguage, t, tPlural } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import * as toasts from "./toasts.js";

const SLICES = ["runs", "processes", "approvals", "connection", "staleSlices", "hold", "me"];
const AGE_MS = 10_000;

export function mountHeader(root) {
  createElements(root);
  const frame = throttleToFrame(() => render(root));
  const timer = setInterval(frame.schedule, AGE_MS);
  const cleanups = [
    ...SLICES.map((slice) => store.subscribe(slice, frame.schedule)),
    listen(byId("hold"), "click", toggleHold),
    listen(byId("theme"), "click", toggleTheme),
    listen(byId("language"), "change", (event) => chooseLanguage(event.target)),
    listen(byId("sign-out"), "click", signOut),
    mountStopAll(byId("stop-all"), byId("stop-all-dialog")),
  ];
  return () => {
    clearInterval(timer);
    frame.cancel();
    cleanups.forEach((cleanup) => cleanup());
  };
}

function createElements(root) {
  const facts = { runs: "runs", processes: "gear", approvals: "approval", connection: "connection" };
  for (const [name, iconName] of Object.entries(facts)) {
    factElement(root, name).replaceChildren(
      icon(iconName),
      h("span", { class: "number" }),
      " ",
      h("span", { class: "word" }),
    );
  }
  byId("hold").replaceChildren(
    h("span", { class: "switch", "aria-hidden": "true" }),
    icon("hold"),
    h("span", { class: "hold-word" }, t("hold.name")),
  );
  byId("stop-all").replaceChildren(icon("stop"), h("span", { class: "word" }, t("stop-all.button")));
  byId("theme").replaceChildren(icon("theme"));
  byId("sign-out").replaceChildren(icon("sign-out"));
  setLabel(byId("stop-all"), t("stop-all.button"));
  restrict(byId("stop-all"), reasonAgainst("stop-all"), t("stop-all.button"));
  setLabel(byId("theme"), t("shell.theme"));
  setLabel(byId("sign-out"), t("shell.sign-out"));
  byId("language").value = language();
}

function setLabel(element, text) {
  element.setAttribute("aria-label", text);
  element.title = text;
}

function factElement(root, name) {
  return root.querySelector(`[data-fact="${name}"]`);
}

function render(root) {
  const runs = store.get("runs");
  const queued = runs.filter((run) => run.state === "queued").length;
  renderCount(root, "runs", runs.length, queued > 0 ? t("fact.queued", { n: queued }) : "");
  renderCount(root, "processes", aliveProcesses(runs, store.get("processes")), "");
  renderCount(root, "approvals", store.get("approvals").length, "");
  renderConnection(factElement(root, "connection"), store.get("connection"), store.get("staleSlices"));
  renderHold(byId("hold"), store.get("hold"));
}

function renderCount(root, name, number, more) {
  const element = factElement(root, name);
  const [, digits, label] = element.children;
  setText(digits, String(number));
  setText(label, tPlural(`fact.${name}`, number));
  element.classList.toggle("zero", number === 0);
  const tooltip = [`${number} ${tPlural(`fact.${name}`, number)}`, more].filter(Boolean).join(", ");
  element.title = tooltip;
  element.setAttribute("aria-label", tooltip);
}

function renderConnection(element, state, staleSlices) {
  const stateKey = state === "live" && staleSlices.length > 0 ? "behind" : state;
  element.dataset.state = state;
  setText(element.lastElementChild, t(`fact.connection.${stateKey}`));
  element.title = t(`fact.connection.${stateKey}.tip`);
}

function renderHold(button, hold) {
  button.setAttribute("aria-checked", String(hold.held));
  const text = hold.held ? holdText(hold) : t("hold.off");
  restrict(button, reasonAgainst("admin"), text);
  button.setAttribute("aria-label", `${t("hold.name")}: ${text}`);
  const banner = byId("hold-banner");
  banner.hidden = !hold.held;
  if (hold.held) {
    setText(banner.firstElementChild, holdDetails(hold).join(" · "));
    banner.title = hold.since ? `${text}\n${exactTime(hold.since)}` : text;
  }
}

export function holdText(hold) {
  return [t("hold.on"), ...holdDetails(hold)].join(" · ");
}

function holdDetails(hold) {
  const parts = [];
  if (hold.by) {
    parts.push(t("hold.by", { who: oneLine(hold.by, 60) }));
  }
  if (hold.since) {
    parts.push(ago(hold.since));
  }
  if (hold.reason) {
    parts.push(`“${oneLine(hold.reason, 160)}”`);
  }
  return parts;
}

async function toggleHold() {
  const { held } = store.get("hold");
  const button = byId("hold");
  if (button.getAttribute("aria-busy") === "true") {
    return;
  }
  button.setAttribute("aria-busy", "true");
  try {
    store.set("hold", held ? await api.del("/api/hold") : await api.put("/api/hold", { held: true }));
  } catch (problem) {
    toasts.error(t(held ? "hold.lift-failed" : "hold.failed", { reason: errorText(problem) }), problem);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

function toggleTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("quell.theme", next);
  } catch {
    // Applies until the next reload.
  }
}

async function signOut() {
  try {
    await api.post("/api/sign-out");
    savePageSecret(null);
    location.reload();
  } catch (problem) {
    toasts.error(t("shell.sign-out-failed", { reason: errorText(problem) }), problem);
  }
}

async function chooseLanguage(select) {
  try {
    await setLanguage(select.value);
  } catch {
    // The texts could not be loaded; the connection state says why.
    select.value = language();
  }
}
