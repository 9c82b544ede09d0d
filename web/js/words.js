// Numbers and foreign text as people read them, in the same words as the terminal's. Pure functions; the time
// comes in as an argument. It knows no language: what differs by language is in texts.js.
//
//   millis(ms)      "<0.1 ms", "0.4 ms", "12 ms", "1.4 s", "2 min 5 s", "3 h 4 min"
//   size(bytes)     "512 B", "1.5 KiB", "20 MiB"
//   oneLine(text, most)   foreign text for one line; longer ends in "…"
//   inFull(text)    foreign text for whoever decides about it: what would be invisible is spelt out
//   callInFull(arguments)  every argument of a call, whole: an array of lines
//   argumentLine(arguments)  the arguments of a call in short, for its one quiet line

export function millis(ms) {
  const length = Math.max(0, ms);
  if (length === 0) {
    return "0 ms";
  }
  if (length < 0.05) {
    return "<0.1 ms";
  }
  if (length < 9.95) {
    return `${tenth(length)} ms`;
  }
  if (length < 999.5) {
    return `${Math.round(length)} ms`;
  }
  if (length < 9950) {
    return `${tenth(length / 1000)} s`;
  }
  if (length < 59500) {
    return `${Math.round(length / 1000)} s`;
  }
  return minutes(Math.round(length / 1000));
}

function tenth(value) {
  return value.toFixed(1).replace(/\.0$/, "");
}

function minutes(total) {
  const hours = Math.floor(total / 3600);
  const rest = Math.floor(total / 60) % 60;
  const seconds = total % 60;
  if (hours === 0) {
    return seconds === 0 ? `${rest} min` : `${rest} min ${seconds} s`;
  }
  return rest === 0 ? `${hours} h` : `${hours} h ${rest} min`;
}

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let rest = bytes;
  let unit = 0;
  while (rest >= 1023.5 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest < 9.95 ? tenth(rest) : Math.round(rest)} ${units[unit]}`;
}

const CONTROL = /[\u0000-\u001f\u007f-\u009f]/g;
/**
 * Signs that show nothing or turn a line around: what Unicode calls format characters or lets a font leave
 * out, the separators of lines and paragraphs, and the empty Braille cell. The terminal has the same ones.
 */
const UNSEEN = [
  "\\u{ad}\\u{34f}\\u{600}-\\u{605}\\u{61c}\\u{6dd}\\u{70f}\\u{890}-\\u{891}\\u{8e2}\\u{115f}-\\u{1160}",
  "\\u{17b4}-\\u{17b5}\\u{180b}-\\u{180f}\\u{200b}-\\u{200f}\\u{2028}-\\u{202e}\\u{2060}-\\u{206f}",
  "\\u{2800}\\u{3164}\\u{fe00}-\\u{fe0f}\\u{feff}\\u{ffa0}\\u{fff0}-\\u{fffb}\\u{110bd}\\u{110cd}",
  "\\u{13430}-\\u{1343f}\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}",
];
const INVISIBLE = new RegExp(`[\\0-\\x09\\x0b-\\x1f\\x7f-\\x9f${UNSEEN.join("")}]`, "gu");

export function oneLine(text, most) {
  const line = text
    .slice(0, most * 8)
    .replace(CONTROL, " ")
    .replace(/\s+/g, " ")
    .trim();
  const letters = [...line];
  if (letters.length <= most && text.length <= most * 8) {
    return line;
  }
  return `${letters.slice(0, most - 1).join("")}…`;
}

export function inFull(text) {
  return text.replace(INVISIBLE, (letter) => {
    const short = { "\t": "\\t", "\r": "\\r" }[letter];
    return short || `\\u{${letter.codePointAt(0).toString(16)}}`;
  });
}

/** A name is one line, whatever stands in it: a break would let it pass for several arguments. */
function nameInFull(name) {
  return inFull(name).replaceAll("\n", "\\n");
}

export function callInFull(args) {
  if (args === null || typeof args !== "object" || Array.isArray(args)) {
    return [inFull(JSON.stringify(args) ?? "")];
  }
  const lines = [];
  for (const [name, value] of Object.entries(args)) {
    const text = inFull(typeof value === "string" ? value : JSON.stringify(value));
    if (text.includes("\n")) {
      lines.push(`${nameInFull(name)}:`, ...text.split("\n").map((line) => `  | ${line}`));
    } else {
      lines.push(`${nameInFull(name)}: ${text}`);
    }
  }
  return lines;
}

/** The one argument of a call with a single text says enough by its value; several are named. */
export function argumentLine(args) {
  if (args === null || typeof args !== "object" || Array.isArray(args)) {
    return oneLine(inFull(JSON.stringify(args) ?? ""), 200);
  }
  const entries = Object.entries(args);
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const [main] = entries;
  if (entries.length === 1) {
    return oneLine(inFull(shown(main[1])), 200);
  }
  const parts = entries.map(([name, value]) => `${nameInFull(name)}: ${inFull(shown(value))}`);
  return oneLine(parts.join(" · "), 200);
}
