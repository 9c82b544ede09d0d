// The header of every view: what runs, what is alive, who waits for an answer, whether the page is connected,
// the hold, the theme, the language and the way out. It takes the facts from the store. What "Stop all" does
// is in stop-all.js.

import * as api from "./api.js";
import { byId, h, icon, listen, setText } from "./dom.js";
import { aliveProcesses } from "./facts.js";
import { framed } from "./frame.js";
import { reasonOf } from "./reasons.js";
import * as stopAll from "./stop-all.js";
import * as store from "./store.js";
import { ago, counted, exactTime, language, oneLine, setLanguage, t } from "./texts.js";
import * as toasts from "./toasts.js";

const SLICES = ["runs", "processes", "approvals", "connection", "behind", "hold", "me"];
const AGE_MS = 10_000;

export function mount(root) {
  furnish(root);
  const frame = framed(() => draw(root));
  const timer = setInterval(frame.ask, AGE_MS);
  const undo = [
    ...SLICES.map((slice) => store.subscribe(slice, frame.ask)),
    listen(byId("hold"), "click", toggleHold),
    listen(byId("theme"), "click", toggleTheme),
    listen(byId("language"), "change", (event) => chooseLanguage(event.target)),
    listen(byId("sign-out"), "click", signOut),
    stopAll.mount(byId("stop-all"), byId("stop-all-dialog")),
  ];
  return () => {
    clearInterval(timer);
    frame.cancel();
    undo.forEach((forget) => forget());
  };
}

function furnish(root) {
  const facts = { runs: "runs", processes: "gear", approvals: "approval", connection: "connection" };
  for (const [name, drawing] of Object.entries(facts)) {
    fact(root, name).replaceChildren(
      icon(drawing),
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
  byId("sign-out").replaceChildren(icon("leave"));
  name(byId("stop-all"), t("stop-all.button"));
  name(byId("theme"), t("shell.theme"));
  name(byId("sign-out"), t("shell.sign-out"));
  byId("language").value = language();
}

function name(element, text) {
  element.setAttribute("aria-label", text);
  element.title = text;
}

function fact(root, of) {
  return root.querySelector(`[data-fact="${of}"]`);
}

function draw(root) {
  const runs = store.get("runs");
  const queued = runs.filter((run) => run.state === "queued").length;
  drawNumber(root, "runs", runs.length, queued > 0 ? t("fact.queued", { n: queued }) : "");
  drawNumber(root, "processes", aliveProcesses(runs, store.get("processes")), "");
  drawNumber(root, "approvals", store.get("approvals").length, "");
  drawConnection(fact(root, "connection"), store.get("connection"), store.get("behind"));
  drawHold(byId("hold"), store.get("hold"));
}

function drawNumber(root, of, number, more) {
  const element = fact(root, of);
  const [, digits, word] = element.children;
  setText(digits, String(number));
  setText(word, counted(`fact.${of}`, number));
  element.classList.toggle("none", number === 0);
  const tip = [`${number} ${counted(`fact.${of}`, number)}`, more].filter(Boolean).join(", ");
  element.title = tip;
  element.setAttribute("aria-label", tip);
}

function drawConnection(element, state, behind) {
  const word = state === "live" && behind.length > 0 ? "behind" : state;
  element.dataset.state = state;
  setText(element.lastElementChild, t(`fact.connection.${word}`));
  element.title = t(`fact.connection.${word}.tip`);
}

function drawHold(button, hold) {
  button.setAttribute("aria-checked", String(hold.held));
  const told = hold.held ? holdFacts(hold) : t("hold.off");
  button.title = told;
  button.setAttribute("aria-label", `${t("hold.name")}: ${told}`);
  const banner = byId("hold-banner");
  banner.hidden = !hold.held;
  if (hold.held) {
    setText(banner.firstElementChild, whoHolds(hold).join(" · "));
    banner.title = hold.since ? `${told}\n${exactTime(hold.since)}` : told;
  }
}

/** What a hold does, who set it, when and why. */
export function holdFacts(hold) {
  return [t("hold.on"), ...whoHolds(hold)].join(" · ");
}

function whoHolds(hold) {
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
    store.put("hold", held ? await api.del("/api/hold") : await api.put("/api/hold", { held: true }));
  } catch (problem) {
    toasts.error(t(held ? "hold.lift-failed" : "hold.failed", { reason: reasonOf(problem) }), problem);
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
    // Not remembered, but chosen for now.
  }
}

async function signOut() {
  try {
    await api.post("/api/sign-out");
    location.reload();
  } catch (problem) {
    toasts.error(t("shell.sign-out-failed", { reason: reasonOf(problem) }), problem);
  }
}

async function chooseLanguage(select) {
  try {
    await setLanguage(select.value);
  } catch {
    // Its texts did not come: the connection's state says why.
    select.value = language();
  }
}
