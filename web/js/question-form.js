// The fields of a question that an MCP server asks during a call. Exports questionForm. All text of the server is shown
// escaped.

import { h } from "./dom.js";
import { escapeInvisible, oneLine } from "./texts.js";

/** Returns `{elements, readFields}`: the question with one input for each field, and the values that are filled in. */
export function questionForm({ message, fields }) {
  const inputs = fields.map((field) => [field, createInput(field)]);
  const labels = inputs.map(([field, input]) =>
    h("label", {}, labelText(field), input, field.description ? h("small", {}, escapeInvisible(field.description)) : null),
  );
  const elements = [
    h("p", { class: "approval-question" }, escapeInvisible(message)),
    labels.length > 0 ? h("div", { class: "approval-fields" }, ...labels) : null,
  ];
  const readFields = () =>
    Object.fromEntries(inputs.map(([field, input]) => [field.name, readInput(input)]).filter(([, value]) => value !== null));
  return { elements, readFields };
}

function labelText({ name, title, required }) {
  return `${oneLine(title ?? name, 100)}${required ? " *" : ""}`;
}

function createInput(field) {
  const { kind, options = [], required } = field;
  const preset = field.default ?? null;
  if (kind === "boolean") {
    return h("input", { type: "checkbox", ...(preset === true && { checked: "" }) });
  }
  if (kind === "choice" || kind === "choices") {
    const isMultiple = kind === "choices";
    const isChosen = (option) => (isMultiple ? (preset ?? []).includes(option) : preset === option);
    const none = isMultiple || required ? [] : [h("option", { value: "" })];
    const choices = options.map((option) =>
      h("option", { value: option, ...(isChosen(option) && { selected: "" }) }, escapeInvisible(option)),
    );
    return h("select", { ...(isMultiple && { multiple: "" }) }, ...none, ...choices);
  }
  const isNumber = kind === "number" || kind === "integer";
  return h("input", {
    type: isNumber ? "number" : "text",
    value: preset === null ? "" : String(preset),
    ...(isNumber && { step: kind === "integer" ? "1" : "any" }),
  });
}

/** The value of an input; null where nobody filled it in. Text is converted by the daemon. */
function readInput(input) {
  if (input.type === "checkbox") {
    return input.checked;
  }
  if (input.multiple) {
    return [...input.selectedOptions].map(({ value }) => value);
  }
  return input.value === "" ? null : input.value;
}
