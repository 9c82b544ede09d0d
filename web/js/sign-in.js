// The sign-in form, which exchanges a token for a cookie. Exports mountSignIn and showError.

import * as api from "./api.js";
import { byId, listen, setText } from "./dom.js";
import { t } from "./texts.js";

/** Calls `onSignedIn` after a successful sign-in. */
export function mountSignIn(form, onSignedIn) {
  if (location.hash === "#sign-in-failed") {
    setText(byId("sign-in-error"), t("sign-in.link-used"));
    history.replaceState(null, "", "#/");
  }
  byId("token").focus();
  return listen(form, "submit", (event) => {
    event.preventDefault();
    submit(onSignedIn);
  });
}

export function showError(problem) {
  setText(byId("sign-in-error"), signInErrorText(problem));
}

async function submit(onSignedIn) {
  const field = byId("token");
  const button = byId("sign-in-button");
  const token = field.value.trim();
  if (token === "") {
    field.focus();
    return;
  }
  button.disabled = true;
  setText(byId("sign-in-error"), "");
  try {
    await api.post("/api/sign-in", { token });
    field.value = "";
    await onSignedIn();
  } catch (problem) {
    showError(problem);
    field.select();
  } finally {
    button.disabled = false;
  }
}

function signInErrorText(problem) {
  if (problem.code === "network") {
    return t("sign-in.no-daemon");
  }
  if (problem.status === 401) {
    return t("sign-in.wrong");
  }
  return t("sign-in.failed", { reason: problem.detail });
}
