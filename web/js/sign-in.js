// The sign-in form: a token for a cookie. It knows the form and nothing of the shell behind it.

import * as api from "./api.js";
import { byId, listen, setText } from "./dom.js";
import { t } from "./texts.js";

/** Shows the form; `arrive` is called when somebody has signed in. */
export function mount(form, arrive) {
  if (location.hash === "#sign-in-failed") {
    setText(byId("sign-in-error"), t("sign-in.link-used"));
    history.replaceState(null, "", "#/");
  }
  byId("token").focus();
  const forget = listen(form, "submit", (event) => {
    event.preventDefault();
    submit(arrive);
  });
  return forget;
}

/** Says why nobody could be asked. */
export function tell(problem) {
  setText(byId("sign-in-error"), words(problem));
}

async function submit(arrive) {
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
    await arrive();
  } catch (problem) {
    tell(problem);
    field.select();
  } finally {
    button.disabled = false;
  }
}

function words(problem) {
  if (problem.code === "network") {
    return t("sign-in.no-daemon");
  }
  if (problem.status === 401) {
    return t("sign-in.wrong");
  }
  return t("sign-in.failed", { reason: problem.detail });
}
