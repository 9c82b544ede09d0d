// The empty state of a session: what to do next, here or in the terminal. Exports emptySession.

import { h, icon } from "./dom.js";
import { t } from "./texts.js";

export function emptySession(key) {
  return h(
    "div",
    { class: "empty" },
    icon("chat"),
    h("p", null, t("chat.empty")),
    h("p", null, t("chat.empty-next")),
    h("p", null, t("chat.empty-terminal")),
    h("code", null, `quell chat --session ${quoteForShell(key)}`),
  );
}

function quoteForShell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
