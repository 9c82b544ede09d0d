// The tokens in the runs view, for admins: what each may use, and what its runs have used. Exports mountTokens. The
// section is hidden while there are none.

import * as api from "./api.js";
import { h, reconcileChildren } from "./dom.js";
import * as store from "./store.js";
import { escapeInvisible, exactTime, oneLine, t } from "./texts.js";

const LIST_CHARS = 200;

/** `section` has a heading and a list. */
export function mountTokens(section) {
  const load = async () => {
    if (store.get("route").view !== "runs" || store.get("me")?.scope !== "admin") {
      return;
    }
    try {
      render(section, (await api.get("/api/tokens")).items);
    } catch {
      // The header says that the daemon does not answer; the list is loaded again with the connection.
    }
  };
  // No event announces a changed token; the end of a run changes what its token has used.
  const cleanups = ["route", "connection", "ended"].map((slice) => store.subscribe(slice, load));
  load();
  return () => cleanups.forEach((cleanup) => cleanup());
}

function render(section, tokens) {
  section.hidden = tokens.length === 0;
  reconcileChildren(section.lastElementChild, tokens, (token) => JSON.stringify(token), createRow);
}

function createRow(token) {
  const { name, scope, scopes, restrictions, expiresAt, usage } = token;
  const facts = [
    (scopes ?? [scope]).join(", "),
    restrictionsText(restrictions ?? {}),
    expiresAt ? t("tokens.expires", { time: exactTime(expiresAt) }) : t("tokens.never"),
  ];
  return h(
    "li",
    { data: { token: name } },
    h(
      "div",
      {},
      h("code", {}, escapeInvisible(name)),
      h("div", { class: "schedule-facts" }, facts.filter(Boolean).join(" · ")),
      usage ? h("div", { class: "schedule-facts" }, usageText("today", usage.today), " · ", usageText("month", usage.last30Days)) : null,
    ),
  );
}

function restrictionsText({ apis, agents, models, dailyCost }) {
  const list = (key, names) => names && t(key, { names: oneLine(names.join(", "), LIST_CHARS) });
  const parts = [
    list("tokens.apis", apis),
    list("tokens.agents", agents),
    list("tokens.models", models),
    dailyCost === undefined ? null : t("tokens.cost", { cost: dailyCost }),
  ];
  return parts.filter(Boolean).join(" · ");
}

function usageText(period, { inputTokens, outputTokens, cost }) {
  const tokens = (inputTokens + outputTokens).toLocaleString("en-US");
  return cost > 0
    ? t(`tokens.${period}.cost`, { tokens, cost: cost.toFixed(4) })
    : t(`tokens.${period}`, { tokens });
}
