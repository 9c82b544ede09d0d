// What this browser remembers for the page. It knows no key; a browser that keeps nothing loses nothing but
// convenience.

export function recall(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Chosen for now, and asked again next time.
  }
}
