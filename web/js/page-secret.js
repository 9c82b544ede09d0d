// The secret of this origin. The daemon gives it at sign-in and accepts the cookie only together with it, because
// browsers send the cookie to every port of the host. Storage belongs to the origin, so all tabs of the page have the
// secret, and a page on another port has not.
//
//   readPageSecret()         the secret, or null
//   savePageSecret(secret)   at sign-in; null at sign-out

import { readSetting, removeSetting, saveSetting } from "./local-storage.js";

const KEY = "quell.page-secret";

/** For a browser without storage; lasts until the next reload. */
let unsaved = null;

export function readPageSecret() {
  // Read each time: another tab may have signed in anew.
  return readSetting(KEY) ?? unsaved;
}

export function savePageSecret(secret) {
  unsaved = secret;
  if (secret === null) {
    removeSetting(KEY);
  } else {
    saveSetting(KEY, secret);
  }
}
