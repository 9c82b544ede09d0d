// Unsent messages, by author and session, kept over a change of session and a reload of the tab.
//
//   readDraft(author, key), writeDraft(author, key, text)    an empty text removes the draft
//   clearStoredDrafts()     removes all from sessionStorage (at sign-out); the open page keeps its own

const STORAGE_PREFIX = "quell.draft ";
const cache = new Map();

export function readDraft(author, key) {
  const name = storageKey(author, key);
  return cache.get(name) ?? readStored(name) ?? "";
}

export function writeDraft(author, key, text) {
  const name = storageKey(author, key);
  cache.set(name, text);
  withStorage((storage) => (text === "" ? storage.removeItem(name) : storage.setItem(name, text)));
}

export function clearStoredDrafts() {
  withStorage((storage) => {
    const names = Array.from({ length: storage.length }, (_, index) => storage.key(index));
    names.filter((name) => name.startsWith(STORAGE_PREFIX)).forEach((name) => storage.removeItem(name));
  });
}

function storageKey(author, key) {
  return `${STORAGE_PREFIX}${JSON.stringify([author, key])}`;
}

function readStored(name) {
  try {
    return globalThis.sessionStorage?.getItem(name);
  } catch {
    return null;
  }
}

function withStorage(action) {
  try {
    if (globalThis.sessionStorage) {
      action(globalThis.sessionStorage);
    }
  } catch {
    // Without storage a draft lives until the next reload.
  }
}
