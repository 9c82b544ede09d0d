// What an empty session shows. It knows the session's name and nothing else.

import { h, icon } from "./dom.js";
import { t } from "./texts.js";

/** What an empty session shows: what to do next, here or in the terminal. */
export function emptySession(key) {
  return h(
    "div",
    { class: "empty" },
    icon("chat"),
    h("p", null, t("chat.empty")),
    h("p", null, t("chat.empty-next")),
    h("p", null, t("chat.empty-terminal")),
    h("code", null, `quell chat --session ${shellWord(key)}`),
  );
}

function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
