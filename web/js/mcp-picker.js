// The dialog that puts a prompt or a resource of an MCP server into the message field. Exports openMcpPicker. All text of
// the servers is shown escaped.

import * as api from "./api.js";
import { h } from "./dom.js";
import { errorText } from "./error-texts.js";
import { escapeInvisible, oneLine, t } from "./texts.js";

const MAX_NAME = 120;
const MAX_ABOUT = 300;

/** Opens the dialog. `insert(text)` gets the chosen text; `onClosed()` is called at the end in any case. */
export function openMcpPicker({ agent, insert, onClosed }) {
  const closing = new AbortController();
  const body = h("div", { class: "mcp-picker-body", "aria-live": "polite" });
  const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, t("mcp.cancel"));
  const dialog = h(
    "dialog",
    { id: "mcp-picker", "aria-labelledby": "mcp-picker-title" },
    h("h2", { id: "mcp-picker-title" }, t("mcp.title")),
    body,
    h("div", { class: "dialog-buttons" }, cancel),
  );
  dialog.addEventListener("close", () => {
    closing.abort();
    dialog.remove();
    onClosed();
  });
  document.body.append(dialog);
  dialog.showModal();
  const picker = { agent, insert, dialog, body, signal: closing.signal };
  showItems(picker);
}

async function showItems(picker) {
  const { agent, body } = picker;
  const query = agent ? `?agent=${encodeURIComponent(agent)}` : "";
  const read = (kind) => api.get(`/api/mcp/${kind}${query}`, { signal: picker.signal });
  const lists = await attempt(picker, () => Promise.all([read("prompts"), read("resources")]));
  if (!lists) {
    return;
  }
  const [prompts, resources] = lists;
  const rows = [
    ...prompts.items.map((item) => itemRow(picker, "prompt", item)),
    ...resources.items.map((item) => itemRow(picker, "resource", item)),
  ];
  const filter = h("input", { type: "search", "aria-label": t("mcp.filter"), placeholder: t("mcp.filter") });
  const none = h("p", {}, t("mcp.none"));
  const update = () => {
    const wanted = filter.value.trim().toLowerCase();
    rows.forEach((row) => {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    none.hidden = rows.some((row) => !row.hidden);
  };
  filter.addEventListener("input", update);
  filter.addEventListener("keydown", (event) => {
    const first = rows.find((row) => !row.hidden);
    if (event.key === "Enter" && first) {
      event.preventDefault();
      first.querySelector("button").click();
    }
  });
  // A server that cannot be asked is in both lists.
  const problems = new Map([...prompts.unavailable, ...resources.unavailable].map((one) => [one.server, one.problem]));
  const notes = [...problems].map(([server, problem]) =>
    h("p", { class: "mcp-problem" }, `${oneLine(server, MAX_NAME)}: ${oneLine(problem, MAX_ABOUT)}`),
  );
  body.replaceChildren(filter, h("ul", { class: "mcp-items" }, rows), none, ...notes);
  update();
  filter.focus();
}

function itemRow(picker, kind, item) {
  const choose = () => (item.arguments?.length > 0 ? showArguments(picker, item) : insertContent(picker, kind, item, {}));
  return h(
    "li",
    {},
    h(
      "button",
      { type: "button", data: { kind }, on: { click: choose } },
      h("strong", {}, oneLine(item.id, MAX_NAME)),
      h("small", {}, `${oneLine(item.server, MAX_NAME)} · ${t(`mcp.kind.${kind}`)} · ${oneLine(item.description, MAX_ABOUT)}`),
    ),
  );
}

/** Asks for the arguments of a prompt. */
function showArguments(picker, item) {
  const inputs = item.arguments.map(({ name, required }) => [name, h("input", { type: "text", required })]);
  const labels = inputs.map(([name, input]) =>
    h("label", {}, `${oneLine(name, MAX_NAME)}${input.required ? " *" : ""}`, input),
  );
  const submit = (event) => {
    event.preventDefault();
    const filled = inputs.filter(([, input]) => input.value !== "");
    insertContent(picker, "prompt", item, Object.fromEntries(filled.map(([name, input]) => [name, input.value])));
  };
  const form = h(
    "form",
    { on: { submit } },
    h("p", {}, escapeInvisible(`${item.server} · ${item.id}`)),
    h("div", { class: "approval-fields" }, labels),
    h("div", { class: "dialog-buttons" }, h("button", { type: "submit", class: "primary" }, t("mcp.insert"))),
  );
  picker.body.replaceChildren(form);
  inputs[0][1].focus();
}

async function insertContent(picker, kind, item, values) {
  const target = kind === "prompt" ? { name: item.id, arguments: values } : { uri: item.id };
  const body = { ...target, ...(picker.agent && { agent: picker.agent }) };
  const path = `/api/mcp/${encodeURIComponent(item.server)}/${kind}`;
  const content = await attempt(picker, () => api.post(path, body, { signal: picker.signal }));
  if (content) {
    picker.insert(content.text);
    picker.dialog.close();
  }
}

/** The result of a request; null when it failed, which the dialog says, or when the dialog was closed. */
async function attempt({ body, signal }, request) {
  body.replaceChildren(h("p", {}, t("mcp.loading")));
  try {
    const result = await request();
    return signal.aborted ? null : result;
  } catch (problem) {
    if (!(problem instanceof api.Problem)) {
      throw problem;
    }
    body.replaceChildren(h("p", { class: "mcp-problem", role: "alert" }, errorText(problem)));
    return null;
  }
}
