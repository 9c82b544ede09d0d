// What the signed-in token may do. The daemon decides; this keeps the page from offering what it would refuse.
//
//   may(right, me?)                "write", "write-all", "stop" (own runs at least), "stop-all", "revoke" or "admin"
//   mayStop({principal}, me?)      whether it may stop this run or process
//   reasonAgainst(right), reasonAgainstStop({principal}), reasonAgainstChange({owner, shared})   a text; "" when it may
//   restrict(control, reason, title?)   disables a control for this reason, else enables it with this tooltip

import * as store from "./store.js";
import { oneLine, t } from "./texts.js";

/** The scopes of which each right needs one. An admin has all rights. */
const SCOPES = {
  write: ["write", "write:all"],
  "write-all": ["write:all"],
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

/** Whether it may change the settings of what belongs to `owner`; without one, the daemon decides. */
export function mayChange({ owner, shared = false }, me = store.get("me")) {
  const isOwn = !owner || shared || owner === me?.principal;
  return may("write-all", me) || (may("write", me) && isOwn);
}

export function reasonAgainstChange(owned) {
  const isOthers = may("write") && !mayChange(owned);
  return isOthers ? t("rights.not-owner", { owner: oneLine(owned.owner, 60) }) : reasonAgainst("write");
}

export function restrict(control, reason, title = "") {
  control.disabled = reason !== "";
  control.title = reason || title;
  return control;
}
