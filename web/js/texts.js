// The page's texts in the chosen language, and words for times. It knows texts.json and nothing of what is
// shown where.
//
//   await loadTexts()          once, before anything else
//   useTexts(table, language)  for tests: a table instead of the file
//   t(key, values?)            the text, with {name} replaced by values.name; a missing key is shown as
//                              itself
//   counted(key, number)       t(`${key}.one`) for 1, else t(`${key}.many`), with {n}
//   language()                 "en", "ko" or "zh"
//   await setLanguage(code)    fetches its texts, remembers it and calls the listeners of onLanguage(fn); throws
//                              and changes nothing when they do not come
//   translate(root)            fills data-text, data-label (aria-label and tooltip) and data-placeholder
//                              below `root`
//   ago(at, now?)              "just now", "2 min ago"; `at` is RFC 3339, `now` milliseconds since 1970,
//                              by the daemon's clock when left out
//   age(at, now?)              "12 s", "2 min", "3 h", "4 days", in its largest unit
//   exactTime(at)              for tooltips: date and time to the second, in the reader's own zone
//   timeElement(at)            <time> with ago() as its text, the exact time on hover; refreshTimes(root)
//                              brings them up to date
//   and all of words.js: millis, size, oneLine, inFull, callInFull, argumentLine

import * as clock from "./clock.js";
import { h, setText } from "./dom.js";
import { recall, remember } from "./remembered.js";

export * from "./words.js";

const LANGUAGES = ["en", "ko", "zh"];
const REMEMBERED = "quell.language";
const listeners = new Set();
let table = {};
let chosen = "en";
let exact = null;

export function loadTexts() {
  return load(remembered());
}

async function load(code) {
  const answer = await fetch(`/assets/texts/${code}.json`);
  if (!answer.ok) {
    throw new Error(`texts/${code}.json: ${answer.status}`);
  }
  useTexts(await answer.json(), code);
  document.documentElement.lang = code;
}

export function useTexts(texts, code) {
  table = texts;
  chosen = code;
}

function remembered() {
  const wishes = [recall(REMEMBERED), ...(navigator.languages || [])];
  for (const wish of wishes) {
    const code = (wish || "").slice(0, 2).toLowerCase();
    if (LANGUAGES.includes(code)) {
      return code;
    }
  }
  return "en";
}

export function language() {
  return chosen;
}

export async function setLanguage(code) {
  if (!LANGUAGES.includes(code) || code === chosen) {
    return;
  }
  await load(code);
  remember(REMEMBERED, code);
  for (const listener of [...listeners]) {
    listener(code);
  }
}

export function onLanguage(fn) {
  listeners.add(fn);
  return () => listeners.delete(fn);
}

export function t(key, values) {
  const row = table[key];
  const text = row ? row[chosen] || row.en : key;
  if (!values) {
    return text;
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

export function counted(key, number) {
  return t(number === 1 ? `${key}.one` : `${key}.many`, { n: number });
}

export function translate(root) {
  for (const element of root.querySelectorAll("[data-text]")) {
    setText(element, t(element.dataset.text));
  }
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", t(element.dataset.label));
    if (element.matches("button, a")) {
      element.title = t(element.dataset.label);
    }
  }
  for (const element of root.querySelectorAll("[data-placeholder]")) {
    element.placeholder = t(element.dataset.placeholder);
  }
}

export function age(at, now = clock.now()) {
  const then = Date.parse(at);
  if (Number.isNaN(then)) {
    return null;
  }
  const seconds = Math.max(0, Math.floor((now - then) / 1000));
  if (seconds < 60) {
    return t("time.seconds", { n: seconds });
  }
  if (seconds < 3600) {
    return t("time.minutes", { n: Math.floor(seconds / 60) });
  }
  if (seconds < 86400) {
    return t("time.hours", { n: Math.floor(seconds / 3600) });
  }
  return counted("time.days", Math.floor(seconds / 86400));
}

export function ago(at, now = clock.now()) {
  const then = Date.parse(at);
  if (Number.isNaN(then)) {
    return String(at);
  }
  return now - then < 1000 ? t("time.now") : t("time.ago", { age: age(at, now) });
}

export function exactTime(at) {
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) {
    return String(at);
  }
  if (exact?.language !== chosen) {
    // Making one takes far longer than using it, and a page of history has a hundred times in it.
    exact = {
      language: chosen,
      format: new Intl.DateTimeFormat(chosen, { dateStyle: "medium", timeStyle: "medium" }),
    };
  }
  return exact.format.format(time);
}

export function timeElement(at) {
  return h("time", { datetime: at, title: exactTime(at) }, ago(at));
}

export function refreshTimes(root) {
  const now = clock.now();
  for (const element of root.querySelectorAll("time[datetime]")) {
    setText(element, ago(element.getAttribute("datetime"), now));
  }
}
