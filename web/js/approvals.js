// The inbox of calls that wait for a person: what each wants to do, whole, and the two answers. Nothing that
// a model wrote can hide a part of itself here. It takes approvals from the store and does not know what the
// tools do.

import * as api from "./api.js";
import * as clock from "./clock.js";
import { h, icon, keyed, setText } from "./dom.js";
import { framed } from "./frame.js";
import { reasonOf } from "./reasons.js";
import { shortId } from "./short-id.js";
import * as store from "./store.js";
import { callInFull, inFull, millis, oneLine, t, timeElement } from "./texts.js";
import * as toasts from "./toasts.js";

const COUNT_MS = 1000;
/** From here on the time that is left is said with more weight. */
const SOON_MS = 60_000;
/** A pointer that was about to press something else must not answer a call that nobody has read. */
const FRESH_MS = 500;

/** The timers of cards that are new in their place. */
const fresh = new WeakMap();

/** Shows those approvals in `root` that `only` lets through; `empty` is shown when there are none. */
export function mount(root, { only = () => true, empty = null } = {}) {
  const frame = framed(() => draw(root, store.get("approvals").filter(only), empty));
  const timer = setInterval(() => !document.hidden && countDown(root), COUNT_MS);
  const forget = store.subscribe("approvals", frame.ask);
  return () => {
    forget();
    clearInterval(timer);
    frame.cancel();
    root.replaceChildren();
  };
}

/** What the inbox says while nobody waits. */
export function emptyInbox() {
  return h(
    "div",
    { class: "empty" },
    h("p", {}, t("approvals.none")),
    h("p", {}, t("approvals.next")),
    h("code", {}, '[agents.main.approvals]\nshell = "ask"'),
  );
}

function draw(root, approvals, empty) {
  const focused = root.contains(document.activeElement)
    ? document.activeElement.closest("[data-approval]")
    : null;
  const place = focused ? [...root.children].indexOf(focused) : -1;
  const before = [...root.children];
  const rows = approvals.length === 0 && empty ? [null] : approvals;
  keyed(
    root,
    rows,
    (row) => row?.id ?? "empty",
    (row) => (row ? make(row) : empty()),
  );
  [...root.children].filter((card, at) => card !== before[at]).forEach(keepFromPointer);
  countDown(root);
  // Whoever answers with the keyboard goes on with the next one.
  if (focused && !focused.isConnected) {
    const next = root.children[Math.min(place, root.children.length - 1)];
    next?.querySelector(".deny")?.focus();
  }
}

/** What came or moved up under the pointer cannot be pressed with it at once; keys find it by its name. */
function keepFromPointer(card) {
  card.classList.add("fresh");
  clearTimeout(fresh.get(card));
  fresh.set(
    card,
    setTimeout(() => card.classList.remove("fresh"), FRESH_MS),
  );
}

function make(row) {
  const title = h(
    "h2",
    { id: `approval-${row.id}` },
    t("approvals.wants", { agent: oneLine(row.agent, 60) }),
    " ",
    h("code", {}, inFull(row.tool)),
  );
  const card = h(
    "article",
    { class: "approval", data: { approval: row.id, expires: row.expiresAt }, "aria-labelledby": title.id },
    title,
    h(
      "pre",
      { class: "approval-call", tabindex: "0", "aria-label": t("approvals.arguments") },
      callInFull(row.arguments).join("\n"),
    ),
    h(
      "p",
      { class: "approval-facts" },
      h(
        "a",
        { class: "quiet-link", href: `#/s/${encodeURIComponent(row.sessionKey)}` },
        oneLine(row.sessionKey, 60),
      ),
      " · ",
      h(
        "a",
        { class: "quiet-link", href: `#/r/${encodeURIComponent(row.runId)}` },
        t("processes.by-run", { run: shortId(row.runId) }),
      ),
      " · ",
      t("approvals.asked"),
      " ",
      timeElement(row.requestedAt),
      " · ",
      h("span", { class: "countdown" }),
    ),
    ...answers(row),
  );
  return card;
}

/** The answers that who is signed in may give, and why one of them is missing. */
function answers(row) {
  const { allow, deny, missing } = mayAnswer(store.get("me"), row);
  return [
    h(
      "div",
      { class: "approval-answers" },
      allow ? answerButton(row, "allow", "done") : null,
      deny ? answerButton(row, "deny", "close") : null,
    ),
    missing ? h("p", { class: "approval-facts" }, t(`approvals.missing.${missing}`)) : null,
  ];
}

/**
 * What a token may answer: {allow, deny, missing}. The rule is the daemon's (kernel/approval); here it only keeps buttons away
 * that would be refused.
 */
export function mayAnswer(me, row) {
  const has = (scope) => me?.scopes?.includes(scope) ?? false;
  if (has("admin")) {
    return { allow: true, deny: true, missing: null };
  }
  const approves = has("approve");
  const allow = approves && !row.ownModel;
  const missing = allow ? null : approves ? "admin" : "approve";
  return { allow, deny: approves || row.principal === me?.principal, missing };
}

function answerButton(row, decision, drawing) {
  const text = t(`approvals.${decision}`);
  const button = h(
    "button",
    {
      type: "button",
      class: decision,
      "aria-label": `${text}: ${oneLine(row.tool, 60)}`,
      on: { click: ({ detail }) => detail <= 1 && answer(row, decision, button) },
    },
    icon(drawing),
    text,
  );
  return button;
}

async function answer(row, decision, button) {
  const card = button.closest("[data-approval]");
  if (card.getAttribute("aria-busy") === "true") {
    return;
  }
  card.setAttribute("aria-busy", "true");
  try {
    await api.post(`/api/approvals/${encodeURIComponent(row.id)}`, { decision });
    store.put(
      "approvals",
      store.get("approvals").filter((other) => other.id !== row.id),
    );
    toasts.info(t(`approvals.${decision}.done`, { tool: oneLine(row.tool, 60) }));
  } catch (problem) {
    // Somebody else, a stop or the time was first: that is no fault of the page, and the call did what the
    // first word said.
    if (problem.status === 409) {
      toasts.info(t("approvals.late", { reason: oneLine(problem.detail, 200) }));
    } else {
      toasts.error(t("approvals.failed", { reason: reasonOf(problem) }), problem);
    }
  } finally {
    card.removeAttribute("aria-busy");
    store.refresh("approvals", "runs");
  }
}

function countDown(root) {
  const now = clock.now();
  for (const card of root.querySelectorAll("[data-expires]")) {
    const left = Date.parse(card.dataset.expires) - now;
    const element = card.querySelector(".countdown");
    element.classList.toggle("soon", left < SOON_MS);
    setText(
      element,
      left > 0
        ? t("approvals.left", { time: millis(Math.ceil(left / 1000) * 1000) })
        : t("approvals.expired"),
    );
  }
}
