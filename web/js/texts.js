// The texts of the page in the chosen language (texts.json), and relative times.
//
//   await loadTexts()          before everything else
//   useTexts(table, language)  for tests: a table instead of the file
//   t(key, values?)            the text, with {name} replaced by values.name; the key itself when it is missing
//   tPlural(key, number)       t(`${key}.one`) for 1, else t(`${key}.many`), with {n}
//   language()                 "en", "ko" or "zh"
//   await setLanguage(code)    loads its texts, saves the choice and calls the listeners of onLanguage(fn); throws
//                              when the texts cannot be loaded
//   translate(root)            fills data-text, data-label (aria-label and tooltip) and data-placeholder in `root`
//   ago(at, now?)              "just now", "2 min ago"; `at` is RFC 3339, `now` milliseconds since 1970 (default:
//                              the daemon's clock)
//   age(at, now?)              "12 s", "2 min", "3 h", "4 days"
//   exactTime(at)              date and time to the second in the local time zone, for tooltips
//   timeElement(at)            <time> with ago() as its text; refreshTimes(root) updates all in `root`
//   and all exports of format.js

import { h, setText } from "./dom.js";
import { readSetting, saveSetting } from "./local-storage.js";
import * as clock from "./server-clock.js";

export * from "./format.js";

const LANGUAGES = ["en", "ko", "zh"];
const STORAGE_KEY = "quell.language";
const listeners = new Set();
let table = {};
let currentLanguage = "en";
let exactFormat = null;

export function loadTexts() {
  return loadLanguage(preferredLanguage());
}

async function loadLanguage(code) {
  const response = await fetch(`/assets/texts/${code}.json`);
  if (!response.ok) {
    throw new Error(`texts/${code}.json: ${response.status}`);
  }
  useTexts(await response.json(), code);
  document.documentElement.lang = code;
}

export function useTexts(texts, code) {
  table = texts;
  currentLanguage = code;
}

function preferredLanguage() {
  const candidates = [readSetting(STORAGE_KEY), ...(navigator.languages || [])];
  for (const candidate of candidates) {
    const code = (candidate || "").slice(0, 2).toLowerCase();
    if (LANGUAGES.includes(code)) {
      return code;
    }
  }
  return "en";
}

export function language() {
  return currentLanguage;
}

export async function setLanguage(code) {
  if (!LANGUAGES.includes(code) || code === currentLanguage) {
    return;
  }
  await loadLanguage(code);
  saveSetting(STORAGE_KEY, code);
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
  const text = row ? row[currentLanguage] || row.en : key;
  if (!values) {
    return text;
  }
  return text.replace(/\{(\w+)\}/g, (placeholder, name) =>
    name in values ? String(values[name]) : placeholder,
  );
}

export function tPlural(key, number) {
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
  const timestamp = Date.parse(at);
  if (Number.isNaN(timestamp)) {
    return null;
  }
  const seconds = Math.max(0, Math.floor((now - timestamp) / 1000));
  if (seconds < 60) {
    return t("time.seconds", { n: seconds });
  }
  if (seconds < 3600) {
    return t("time.minutes", { n: Math.floor(seconds / 60) });
  }
  if (seconds < 86400) {
    return t("time.hours", { n: Math.floor(seconds / 3600) });
  }
  return tPlural("time.days", Math.floor(seconds / 86400));
}

export function ago(at, now = clock.now()) {
  const timestamp = Date.parse(at);
  if (Number.isNaN(timestamp)) {
    return String(at);
  }
  return now - timestamp < 1000 ? t("time.now") : t("time.ago", { age: age(at, now) });
}

export function exactTime(at) {
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) {
    return String(at);
  }
  if (exactFormat?.language !== currentLanguage) {
    // Creating a format is slow, and a page of history has a hundred times.
    exactFormat = {
      language: currentLanguage,
      format: new Intl.DateTimeFormat(currentLanguage, { dateStyle: "medium", timeStyle: "medium" }),
    };
  }
  return exactFormat.format.format(time);
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
