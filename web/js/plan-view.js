// The plan that a run shows with the tool `todo`: a list of items with their status.
//
//   planItems(call) -> [{text, status}] of a call that gives a valid plan, else null
//   createPlan(items) -> an element

import { h, icon } from "./dom.js";
import { escapeInvisible, t } from "./texts.js";

const ICONS = { pending: "clock", in_progress: "gear", completed: "done" };

export function planItems(call) {
  const items = call.tool === "todo" && call.end !== "error" ? call.arguments?.items : null;
  const isItem = (item) => typeof item?.text === "string" && Object.hasOwn(ICONS, item.status);
  return Array.isArray(items) && items.length > 0 && items.every(isItem) ? items : null;
}

export function createPlan(items) {
  return h(
    "ol",
    { class: "plan", "aria-label": t("call.plan") },
    items.map(({ text, status }) =>
      h(
        "li",
        { class: "plan-item", data: { status } },
        icon(ICONS[status]),
        h("span", { class: "plan-text" }, escapeInvisible(text)),
        h("span", { class: "plan-status" }, t(`call.plan.${status}`)),
      ),
    ),
  );
}
