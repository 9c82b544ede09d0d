// Sign-in: exchanges a token, or the code of a one-time link, for a cookie and the secret of this origin. Exports
// mountSignIn, signInByLink and showError.

import * as api from "./api.js";
import { byId, listen, setText } from "./dom.js";
import { savePageSecret } from "./page-secret.js";
import { t } from "./texts.js";

/** The address to which a one-time link leads. */
const LINK_HASH = /^#sign-in=([0-9a-z]+)$/i;

/** Signs in with the code in the address, if there is one, and takes it out of the address. */
export async function signInByLink() {
  const code = LINK_HASH.exec(location.hash)?.[1];
  if (!code) {
    return;
  }
  history.replaceState(null, "", "#/");
  try {
    await signIn({ code });
  } catch {
    // A used link: the form says so, unless this browser is signed in anyway.
    history.replaceState(null, "", "#sign-in-failed");
  }
}

async function signIn(proof) {
  const { pageSecret } = await api.post("/api/sign-in", proof);
  savePageSecret(pageSecret);
}

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
    await signIn({ token });
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
