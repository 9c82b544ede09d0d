// Ids that nobody else has. The browser gives its own only to pages that came over TLS or from this machine;
// chance it gives to every page.

/** 32 hexadecimal digits of chance. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
