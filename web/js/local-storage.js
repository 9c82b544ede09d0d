// Settings in the browser's localStorage. Exports readSetting, saveSetting and removeSetting, which do nothing without
// storage.

export function readSetting(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function saveSetting(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Applies until the next reload.
  }
}

export function removeSetting(key) {
  try {
    localStorage.removeItem(key);
  } catch {
    // There is nothing.
  }
}
