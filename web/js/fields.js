// What keys mean in fields, for all fields alike: Esc leaves a field before it stops anything, and letters are text.
//
//   isField(element)      a field whose content can be lost; lists outside of cards apply at once, so they are none
//   leaveField(element)   moves the focus to the place of the field; false for the message field, where Esc stops
//   focusMessage()        the place of everything that has no other one

import { byId } from "./dom.js";

const FIELDS = "input, textarea, [data-approval] select";

export function isField(element) {
  return Boolean(element.matches?.(FIELDS));
}

export function leaveField(element) {
  if (!isField(element) || element.id === "message") {
    return false;
  }
  const place = element.closest("details")?.querySelector("summary") ?? element.closest("[data-approval]");
  (place ?? byId("message")).focus();
  return true;
}

/** Not on a touch screen, whose keyboard would cover the page. */
export function focusMessage() {
  if (!window.matchMedia("(pointer: coarse)").matches) {
    byId("message").focus();
  }
}
