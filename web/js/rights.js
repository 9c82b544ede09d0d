// What the signed-in token may do. The daemon decides; this keeps the page from offering what it would refuse.
//
//   may(right, me?)                "write", "stop" (own runs at least), "stop-all", "revoke" or "admin"
//   mayStop({principal}, me?)      whether it may stop this run or process
//   reasonAgainst(right), reasonAgainstStop({principal}), reasonAgainstChange(owner)   a text; "" when it may
//   restrict(control, reason, title?)   disables a control for this reason, else enables it with this tooltip

import * as store from "./store.js";
import { oneLine, t } from "./texts.js";

/** The scopes of which each right needs one. An admin has all rights. */
const SCOPES = {
  write: ["write"],
  stop: ["write", "stop:all"],
  "stop-all": ["stop:all"],
  revoke: ["approve", "write"],
  admin: ["admin"],
};

export function may(right, me = store.get("me")) {
  const scopes = me?.scopes ?? [];
  return scopes.includes("admin") || SCOPES[right].some((scope) => scopes.includes(scope));
}

export function mayStop({ principal }, me = store.get("me")) {
  return may("stop-all", me) || (may("stop", me) && principal === me.principal);
}

export function reasonAgainst(right) {
  return may(right) ? "" : t("rights.needs", { scopes: SCOPES[right].join(" / ") });
}

export function reasonAgainstStop(owned) {
  const isOthers = may("stop") && !mayStop(owned);
  return isOthers ? t("rights.not-your-run", { principal: oneLine(owned.principal, 60) }) : reasonAgainst("stop");
}

/** For settings of what belongs to `owner`; without one, the daemon decides. */
export function reasonAgainstChange(owner) {
  const isOthers = owner && owner !== store.get("me")?.principal && !may("admin");
  return may("write") && isOthers ? t("rights.not-owner", { owner: oneLine(owner, 60) }) : reasonAgainst("write");
}

export function restrict(control, reason, title = "") {
  control.disabled = reason !== "";
  control.title = reason || title;
  return control;
}
