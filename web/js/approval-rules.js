// The remembered allowances, each with a button that revokes it. Exports mountApprovalRules.

import * as api from "./api.js";
import { h, icon, reconcileChildren } from "./dom.js";
import { errorText } from "./error-texts.js";
import { reasonAgainst, restrict } from "./rights.js";
import * as store from "./store.js";
import { escapeInvisible, oneLine, t, timeElement } from "./texts.js";
import * as toasts from "./toasts.js";

/** Lists the allowances while the view of approvals is open, and again after each answer. */
export function mountApprovalRules(root) {
  const load = async () => {
    if (store.get("route").view !== "approvals") {
      return;
    }
    try {
      render(root, (await api.get("/api/approval-rules")).items, load);
    } catch {
      // The header says that the daemon does not answer; the list is loaded again with the approvals.
    }
  };
  const cleanups = ["route", "approvals", "connection"].map((slice) => store.subscribe(slice, load));
  load();
  return () => {
    cleanups.forEach((cleanup) => cleanup());
    root.replaceChildren();
  };
}

function render(root, rules, reload) {
  root.hidden = rules.length === 0;
  const list = root.querySelector("ul") ?? h("ul", { class: "approval-rules" });
  if (!list.isConnected) {
    root.replaceChildren(h("h2", {}, t("approvals.rules")), list);
  }
  reconcileChildren(list, rules, ({ id }) => id, (rule) => createRow(rule, reload));
}

function createRow(rule, reload) {
  const covered = rule.pattern ?? t("approvals.rules.session", { session: oneLine(rule.sessionKey ?? "", 60) });
  const button = h("button", { type: "button", on: { click: () => revoke(rule, button, reload) } }, icon("close"), t("approvals.rules.revoke"));
  return h(
    "li",
    { data: { rule: rule.id } },
    h("code", {}, escapeInvisible(rule.tool)),
    " ",
    h("span", {}, escapeInvisible(covered)),
    " ",
    h(
      "span",
      { class: "approval-facts" },
      `${oneLine(rule.agent, 60)} · ${oneLine(rule.allowedBy.principal, 60)} · `,
      timeElement(rule.allowedAt),
      rule.escalated ? ` · ${t("approvals.outside")}` : "",
    ),
    " ",
    restrict(button, reasonAgainst("revoke")),
  );
}

async function revoke(rule, button, reload) {
  button.disabled = true;
  try {
    await api.del(`/api/approval-rules/${encodeURIComponent(rule.id)}`);
    toasts.info(t("approvals.rules.revoked", { tool: oneLine(rule.tool, 60) }));
  } catch (problem) {
    toasts.error(t("approvals.rules.failed", { reason: errorText(problem) }), problem);
    button.disabled = false;
  }
  await reload();
}
