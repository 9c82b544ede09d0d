// Formats numbers, and text of unknown origin, in the same way as the terminal. Pure; independent of the language.
//
//   millis(ms)      "<0.1 ms", "0.4 ms", "12 ms", "1.4 s", "2 min 5 s", "3 h 4 min"
//   size(bytes)     "512 B", "1.5 KiB", "20 MiB"
//   oneLine(text, maxLength)   one line, truncated with "…"
//   escapeInvisible(text)      escapes control, invisible and bidirectional characters, but no newlines
//   callArgumentLines(args)    all arguments of a call in full, as an array of lines
//   argumentLine(args)         the arguments of a call in one short line

export function millis(ms) {
  const length = Math.max(0, ms);
  if (length === 0) {
    return "0 ms";
  }
  if (length < 0.05) {
    return "<0.1 ms";
  }
  if (length < 9.95) {
    return `${oneDecimal(length)} ms`;
  }
  if (length < 999.5) {
    return `${Math.round(length)} ms`;
  }
  if (length < 9950) {
    return `${oneDecimal(length / 1000)} s`;
  }
  if (length < 59500) {
    return `${Math.round(length / 1000)} s`;
  }
  return formatMinutes(Math.round(length / 1000));
}

function oneDecimal(value) {
  return value.toFixed(1).replace(/\.0$/, "");
}

function formatMinutes(total) {
  const hours = Math.floor(total / 3600);
  const remainder = Math.floor(total / 60) % 60;
  const seconds = total % 60;
  if (hours === 0) {
    return seconds === 0 ? `${remainder} min` : `${remainder} min ${seconds} s`;
  }
  return remainder === 0 ? `${hours} h` : `${hours} h ${remainder} min`;
}

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let remainder = bytes;
  let unit = 0;
  while (remainder >= 1023.5 && unit < units.length - 1) {
    remainder /= 1024;
    unit += 1;
  }
  return `${remainder < 9.95 ? oneDecimal(remainder) : Math.round(remainder)} ${units[unit]}`;
}

const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f-\u009f]/g;
/**
 * Format characters, default ignorable code points, line and paragraph separators, and the blank Braille cell.
 * The terminal has the same list (crates/client).
 */
const INVISIBLE_RANGES = [
  "\\u{ad}\\u{34f}\\u{600}-\\u{605}\\u{61c}\\u{6dd}\\u{70f}\\u{890}-\\u{891}\\u{8e2}\\u{115f}-\\u{1160}",
  "\\u{17b4}-\\u{17b5}\\u{180b}-\\u{180f}\\u{200b}-\\u{200f}\\u{2028}-\\u{202e}\\u{2060}-\\u{206f}",
  "\\u{2800}\\u{3164}\\u{fe00}-\\u{fe0f}\\u{feff}\\u{ffa0}\\u{fff0}-\\u{fffb}\\u{110bd}\\u{110cd}",
  "\\u{13430}-\\u{1343f}\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}",
];
const INVISIBLE = new RegExp(`[\\0-\\x09\\x0b-\\x1f\\x7f-\\x9f${INVISIBLE_RANGES.join("")}]`, "gu");

export function oneLine(text, maxLength) {
  const line = text
    .slice(0, maxLength * 8)
    .replace(CONTROL_CHARACTERS, " ")
    .replace(/\s+/g, " ")
    .trim();
  const characters = [...line];
  if (characters.length <= maxLength && text.length <= maxLength * 8) {
    return line;
  }
  return `${characters.slice(0, maxLength - 1).join("")}…`;
}

export function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => {
    const short = { "\t": "\\t", "\r": "\\r" }[character];
    return short || `\\u{${character.codePointAt(0).toString(16)}}`;
  });
}

/** A newline in a name could fake another argument. */
function escapeName(name) {
  return escapeInvisible(name).replaceAll("\n", "\\n");
}

export function callArgumentLines(args) {
  if (args === null || typeof args !== "object" || Array.isArray(args)) {
    return [escapeInvisible(JSON.stringify(args) ?? "")];
  }
  const lines = [];
  for (const [name, value] of Object.entries(args)) {
    const text = escapeInvisible(typeof value === "string" ? value : JSON.stringify(value));
    if (text.includes("\n")) {
      lines.push(`${escapeName(name)}:`, ...text.split("\n").map((line) => `  | ${line}`));
    } else {
      lines.push(`${escapeName(name)}: ${text}`);
    }
  }
  return lines;
}

/** A single argument is shown without its name. */
export function argumentLine(args) {
  if (args === null || typeof args !== "object" || Array.isArray(args)) {
    return oneLine(escapeInvisible(JSON.stringify(args) ?? ""), 200);
  }
  const entries = Object.entries(args);
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const [main] = entries;
  if (entries.length === 1) {
    return oneLine(escapeInvisible(shown(main[1])), 200);
  }
  const parts = entries.map(([name, value]) => `${escapeName(name)}: ${escapeInvisible(shown(value))}`);
  return oneLine(parts.join(" · "), 200);
}
