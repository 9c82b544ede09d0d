// What was written and not sent, by writer and session, so that looking at another session or loading the page
// again loses nothing. It lives as long as the tab; who signs out leaves none of it in the browser's storage.
//
//   read(writer, key), write(writer, key, text)    an empty text is no draft
//   forgetStored()     takes all of them out of the browser's storage; the page itself still has them

const PREFIX = "quell.draft ";
const known = new Map();

export function read(writer, key) {
  const name = nameOf(writer, key);
  return known.get(name) ?? stored(name) ?? "";
}

export function write(writer, key, text) {
  const name = nameOf(writer, key);
  known.set(name, text);
  store((storage) => (text === "" ? storage.removeItem(name) : storage.setItem(name, text)));
}

export function forgetStored() {
  store((storage) => {
    const names = Array.from({ length: storage.length }, (_, at) => storage.key(at));
    names.filter((name) => name.startsWith(PREFIX)).forEach((name) => storage.removeItem(name));
  });
}

function nameOf(writer, key) {
  return `${PREFIX}${JSON.stringify([writer, key])}`;
}

function stored(name) {
  try {
    return globalThis.sessionStorage?.getItem(name);
  } catch {
    return null;
  }
}

function store(change) {
  try {
    if (globalThis.sessionStorage) {
      change(globalThis.sessionStorage);
    }
  } catch {
    // A browser that keeps nothing, or has no room: the draft lives until the page is loaded again.
  }
}
