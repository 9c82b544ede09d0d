// The list of tool calls that wait for approval, with all arguments and the buttons Allow and Deny. Exports
// mountApprovals, emptyApprovals, allowedAnswers and patternSubject. All text that a model wrote is shown escaped and in full.

import * as api from "./api.js";
import { h, icon, isComposing, reconcileChildren, setText } from "./dom.js";
import { errorText } from "./error-texts.js";
import { focusMessage, isField } from "./fields.js";
import { shortId } from "./ids.js";
import { questionForm } from "./question-form.js";
import * as clock from "./server-clock.js";
import * as store from "./store.js";
import { callArgumentLines, escapeInvisible, millis, oneLine, t, timeElement } from "./texts.js";
import { throttleToFrame } from "./throttle.js";
import * as toasts from "./toasts.js";

const COUNTDOWN_MS = 1000;
/** The countdown is highlighted when less time than this remains. */
const URGENT_MS = 60_000;
/** A card that has just appeared or moved ignores clicks for this time, so that none hits it by accident. */
const CLICK_GUARD_MS = 500;

const guardTimers = new WeakMap();

/** Shows the approvals that pass `filter` in `root`, or the element of `createEmpty` when there are none. */
export function mountApprovals(root, { filter = () => true, createEmpty = null } = {}) {
  const frame = throttleToFrame(() => render(root, store.get("approvals").filter(filter), createEmpty));
  const timer = setInterval(() => !document.hidden && updateCountdowns(root), COUNTDOWN_MS);
  const unsubscribe = store.subscribe("approvals", frame.schedule);
  return () => {
    unsubscribe();
    clearInterval(timer);
    frame.cancel();
    root.replaceChildren();
  };
}

/** The empty state of the approvals view. */
export function emptyApprovals() {
  return h(
    "div",
    { class: "empty", tabindex: "-1" },
    h("p", {}, t("approvals.none")),
    h("p", {}, t("approvals.next")),
    h("code", {}, '[agents.main.approvals]\nshell = "ask"'),
  );
}

function render(root, approvals, createEmpty) {
  const focused = root.contains(document.activeElement)
    ? document.activeElement.closest("[data-approval]")
    : null;
  const focusedIndex = focused ? [...root.children].indexOf(focused) : -1;
  const previous = [...root.children];
  const rows = approvals.length === 0 && createEmpty ? [null] : approvals;
  reconcileChildren(
    root,
    rows,
    (row) => (row ? `${row.id} ${row.allowedBy?.length ?? 0}` : "empty"),
    (row) => (row ? createCard(row) : createEmpty()),
  );
  [...root.children].filter((card, index) => card !== previous[index]).forEach(guardAgainstClick);
  updateCountdowns(root);
  // The next card, and not a button of it: a key that is pressed twice must not answer two calls.
  if (focused && !focused.isConnected) {
    const next = root.children[Math.min(focusedIndex, root.children.length - 1)];
    if (next) {
      next.focus();
    } else {
      focusMessage();
    }
  }
}

const KEY_BUTTONS = { y: ".allow, .answer", n: ".deny, .decline" };
/** What Enter in a field does: its part of the card has one of these. */
const ENTER_BUTTONS = ".answer, .allow-pattern, details .deny";

/**
 * Answers by a letter, y or n, while the card itself or one of its first buttons has the focus: what is typed anywhere
 * else is meant for that place. A letter never allows later calls. Enter in a field sends the answer of that field.
 */
function answerByKey(event) {
  const { currentTarget: card, target } = event;
  const isPlain = !event.repeat && !event.ctrlKey && !event.altKey && !event.metaKey;
  if (!isPlain) {
    return;
  }
  if (card.classList.contains("click-guard")) {
    // The rest of a text that was begun elsewhere.
    if (!isField(target)) {
      guardAgainstClick(card);
    }
    return;
  }
  if (isField(target)) {
    if (event.key === "Enter" && !isComposing(event)) {
      event.preventDefault();
      (target.closest("details") ?? card).querySelector(ENTER_BUTTONS)?.click();
    }
    return;
  }
  if (target !== card && target.parentElement !== card.querySelector(".approval-answers")) {
    return;
  }
  const button = card.querySelector(KEY_BUTTONS[event.key.toLowerCase()] ?? "none");
  if (button) {
    event.preventDefault();
    button.click();
  }
}

function guardAgainstClick(card) {
  card.classList.add("click-guard");
  clearTimeout(guardTimers.get(card));
  guardTimers.set(
    card,
    setTimeout(() => card.classList.remove("click-guard"), CLICK_GUARD_MS),
  );
}

function createCard(row) {
  const form = row.question ? questionForm(row.question) : null;
  const title = h(
    "h2",
    { id: `approval-${row.id}` },
    row.question
      ? t("approvals.asks", { server: oneLine(row.question.server, 60) })
      : t("approvals.wants", { agent: oneLine(row.agent, 60) }),
    " ",
    h("code", {}, escapeInvisible(row.tool)),
  );
  const card = h(
    "article",
    {
      class: row.escalation ? "approval outside" : "approval",
      data: { approval: row.id, expires: row.expiresAt },
      "aria-labelledby": title.id,
      "aria-keyshortcuts": "Y N",
      tabindex: "0",
      on: { keydown: answerByKey },
    },
    title,
    ...escalationElements(row.escalation),
    ...(form
      ? form.elements
      : [
          h(
            "pre",
            { class: "approval-call", tabindex: "0", "aria-label": t("approvals.arguments") },
            callArgumentLines(row.arguments).join("\n"),
          ),
        ]),
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
    row.quorum > 1 ? h("p", { class: "approval-facts approval-quorum" }, quorumText(row)) : null,
    ...(form ? questionAnswerElements(row, form) : answerElements(row)),
  );
  return card;
}

/** The mark of a call that asks to run outside of the sandbox, with the reason, the rule and what it would open. */
function escalationElements(escalation) {
  if (!escalation) {
    return [];
  }
  const reason = escapeInvisible(escalation.reason);
  return [
    h("p", { class: "approval-outside" }, icon("failed"), t("approvals.outside")),
    h("p", {}, t("approvals.reason", { reason })),
    h("p", { class: "approval-facts" }, t("approvals.held-back", { rule: escapeInvisible(escalation.rule) })),
    h("p", { class: "approval-facts" }, t("approvals.opens", { opens: escapeInvisible(escalation.opens) })),
  ];
}

/** How many of the needed people have allowed the call, and who. */
function quorumText({ allowedBy = [], quorum }) {
  const names = allowedBy.map(({ principal }) => oneLine(principal, 60)).join(", ");
  const text = t("approvals.quorum", { n: allowedBy.length, quorum });
  return names ? `${text} (${names})` : text;
}

/** The buttons that the signed-in token may use, and a note why one is missing. */
function answerElements(row) {
  const { allow, deny, missing } = allowedAnswers(store.get("me"), row);
  return [
    h(
      "div",
      { class: "approval-answers" },
      allow ? answerButton(row, "allow", "done", () => ({ decision: "allow" })) : null,
      deny ? answerButton(row, "deny", "close", () => ({ decision: "deny" })) : null,
    ),
    allow && !(row.quorum > 1) ? rememberElement(row) : null,
    deny ? denialElement(row) : null,
    missing ? h("p", { class: "approval-facts" }, t(`approvals.missing.${missing}`)) : null,
  ];
}

/** The buttons that answer or decline a question of an MCP server. */
function questionAnswerElements(row, form) {
  const { allow, deny, missing } = allowedAnswers(store.get("me"), row);
  const accept = () => ({ decision: "allow", fields: form.readFields() });
  return [
    h(
      "div",
      { class: "approval-answers" },
      allow ? answerButton(row, "answer", "done", accept) : null,
      deny ? answerButton(row, "decline", "close", () => ({ decision: "deny" })) : null,
    ),
    missing ? h("p", { class: "approval-facts" }, t(`approvals.missing.${missing}`)) : null,
  ];
}

/**
 * What a caller may answer: `{allow, deny, missing}`, where `missing` says why it may not allow the call. The daemon
 * enforces the same rule (kernel/approval); here it hides buttons that would be refused.
 */
export function allowedAnswers(me, row) {
  const has = (scope) => me?.scopes?.includes(scope) ?? false;
  const canApprove = has("admin") || has("approve");
  const isOwn = row.principal === me?.principal;
  const missing = missingForAllow(me, row, { canApprove, isAdmin: has("admin"), isOwn });
  return { allow: missing === null, deny: canApprove || isOwn, missing };
}

function missingForAllow(me, row, { canApprove, isAdmin, isOwn }) {
  // A question is for the user who sent the message.
  if (row.question && isOwn && me.answersOwnCalls) {
    return null;
  }
  if (!canApprove) {
    return "approve";
  }
  if (row.ownModel && !isAdmin) {
    return "admin";
  }
  if (isOwn && !me.answersOwnCalls) {
    return "person";
  }
  return row.allowedBy?.some(({ principal }) => principal === me.principal) ? "another" : null;
}

/**
 * Buttons that allow later calls, too, the narrow one first. A pattern begins as the exact command or path of this call;
 * one with invisible characters is not offered, because a field cannot spell them out.
 */
function rememberElement(row) {
  const subject = patternSubject(row);
  const hasPattern = subject !== null && escapeInvisible(subject) === subject;
  // The kernel allows no call outside of the sandbox for a whole session (kernel/approval_rules).
  const hasSession = !row.escalation;
  if (!hasPattern && !hasSession) {
    return null;
  }
  const pattern = h("input", { type: "text", value: subject ?? "", spellcheck: "false", dir: "ltr" });
  const session = () => ({ decision: "allow", scope: "session" });
  const byPattern = () => ({ decision: "allow", scope: "pattern", pattern: pattern.value });
  return openingElement(
    t("approvals.remember"),
    hasPattern ? pattern : null,
    hasPattern ? h("label", {}, t("approvals.pattern"), pattern) : null,
    hasPattern ? h("div", { class: "approval-answers" }, answerButton(row, "allow-pattern", "done", byPattern)) : null,
    hasSession ? h("div", { class: "approval-answers" }, answerButton(row, "allow-session", "done", session)) : null,
  );
}

/** A denial with a reason, which the model reads. */
function denialElement(row) {
  const reason = h("input", { type: "text", maxlength: "2000" });
  const denial = () => ({ decision: "deny", ...(reason.value.trim() && { reason: reason.value.trim() }) });
  return openingElement(
    t("approvals.deny-with-reason"),
    reason,
    h("label", {}, t("approvals.deny-reason"), reason),
    h("div", { class: "approval-answers" }, answerButton(row, "deny", "close", denial)),
  );
}

/**
 * A part of a card that is closed at first. Its field gets the focus when it opens, for what is typed next; a second
 * Enter or click at once gives no answer.
 */
function openingElement(title, field, ...children) {
  const onToggle = ({ currentTarget }) => {
    if (currentTarget.open) {
      guardAgainstClick(currentTarget.closest("[data-approval]"));
      field?.focus();
    }
  };
  return h(
    "details",
    { class: "approval-remember", on: { toggle: onToggle } },
    h("summary", {}, title),
    ...children,
  );
}

/** The text that a pattern matches: the command of the shell, or the path of a file tool in the sandbox; else null. */
export function patternSubject({ tool, arguments: given, escalation }) {
  const isFileTool = /^(?:read|write|edit|list|search)_files?$/.test(tool) && !escalation;
  const field = tool === "shell" ? "command" : isFileTool ? "path" : "";
  return typeof given?.[field] === "string" ? given[field] : null;
}

function answerButton(row, kind, iconName, createAnswer) {
  const text = t(`approvals.${kind}`, { tool: oneLine(row.tool, 60) });
  const button = h(
    "button",
    {
      type: "button",
      class: kind,
      "aria-label": kind === "allow-session" ? text : `${text}: ${oneLine(row.tool, 60)}`,
      on: { click: ({ detail }) => detail <= 1 && sendAnswer(row, createAnswer(), button) },
    },
    icon(iconName),
    text,
  );
  return button;
}

async function sendAnswer(row, answer, button) {
  const card = button.closest("[data-approval]");
  if (card.getAttribute("aria-busy") === "true") {
    return;
  }
  card.setAttribute("aria-busy", "true");
  try {
    const answered = await api.post(`/api/approvals/${encodeURIComponent(row.id)}`, answer);
    store.set(
      "approvals",
      store.get("approvals").filter((other) => other.id !== row.id),
    );
    const tool = oneLine(row.tool, 60);
    const word = row.question ? { allow: "answer", deny: "decline" }[answer.decision] : answer.decision;
    toasts.info(answered?.state === "pending" ? quorumText(answered) : t(`approvals.${word}.done`, { tool }));
  } catch (problem) {
    // Another client, a stop or the expiry has already decided the call: not an error of the page.
    if (problem.status === 409) {
      toasts.info(t("approvals.late", { reason: oneLine(problem.detail, 200) }));
    } else {
      toasts.error(t("approvals.failed", { reason: errorText(problem) }), problem);
    }
  } finally {
    card.removeAttribute("aria-busy");
    store.refresh("approvals", "runs");
  }
}

function updateCountdowns(root) {
  const now = clock.now();
  for (const card of root.querySelectorAll("[data-expires]")) {
    const remainingMs = Date.parse(card.dataset.expires) - now;
    const element = card.querySelector(".countdown");
    element.classList.toggle("urgent", remainingMs < URGENT_MS);
    setText(
      element,
      remainingMs > 0
        ? t("approvals.left", { time: millis(Math.ceil(remainingMs / 1000) * 1000) })
        : t("approvals.expired"),
    );
  }
}
