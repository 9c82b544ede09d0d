// Requests to the daemon over HTTP. It knows the form of answers and errors, and no single route.
//
//   await get(path), post(path, body?), put(path, body?), patch(path, body), del(path)
//                               parsed JSON, or null for an empty answer
//   await getUntil(signal, path)  a GET that an AbortSignal can end
//   await stop(path, body?)     a POST that must not wait behind anything and outlives the page
//   await stopUntil(signal, path, body?)  the same, given up with code "network" when the signal says so
//   all throw Problem {code, detail, status}; `code` is "network" when the daemon did not answer at all, and
//                               "unspeakable" when no address can name what was meant
//   session(key), run(id)       the paths of these, escaped
//   onSignedOut(fn)             called whenever an answer says that this browser is not signed in (any more)

export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.name = "Problem";
    this.status = status;
    this.code = code;
    this.detail = detail;
  }
}

/**
 * A browser folds these, escaped or not, before it asks: the stop of a run called `..` would be the stop of
 * everything.
 */
const FOLDED = /\/(?:\.|%2e){1,2}(?=[/?#]|$)/i;

const signedOut = new Set();

export function onSignedOut(fn) {
  signedOut.add(fn);
  return () => signedOut.delete(fn);
}

export function session(key) {
  return `/api/sessions/${encodeURIComponent(key)}`;
}

export function run(id) {
  return `/api/runs/${encodeURIComponent(id)}`;
}

export function get(path) {
  return ask("GET", path);
}

/** The same, given up with code "network" when the signal says so. */
export function getUntil(signal, path) {
  return ask("GET", path, undefined, { signal });
}

export function post(path, body) {
  return ask("POST", path, body);
}

export function put(path, body) {
  return ask("PUT", path, body);
}

export function patch(path, body) {
  return ask("PATCH", path, body);
}

export function del(path) {
  return ask("DELETE", path);
}

export function stop(path, body = {}) {
  return ask("POST", path, body, { priority: "high", keepalive: true });
}

export function stopUntil(signal, path, body = {}) {
  return ask("POST", path, body, { priority: "high", keepalive: true, signal });
}

async function ask(method, path, body, options = {}) {
  if (FOLDED.test(path)) {
    throw new Problem(0, "unspeakable", `no address can name a part of ${path}`);
  }
  const request = {
    method,
    credentials: "same-origin",
    cache: "no-store",
    headers: { Accept: "application/json" },
    ...options,
  };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  let text;
  try {
    answer = await fetch(path, request);
    text = await answer.text();
  } catch (error) {
    throw new Problem(0, "network", String(error.message || error));
  }
  if (answer.ok) {
    return text === "" ? null : read(text, answer.status);
  }
  // The sign-in route tells of a wrong token with the same status; who signs in is not signed in yet.
  if (answer.status === 401 && path !== "/api/sign-in") {
    for (const listener of signedOut) {
      listener();
    }
  }
  throw problem(answer, text);
}

function read(text, status) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(
      status,
      "unreadable",
      "the answer is not JSON; is something else between this page and Quell?",
    );
  }
}

function problem(answer, text) {
  try {
    const body = JSON.parse(text);
    return new Problem(answer.status, body.code || body.error || "error", body.detail || body.title || "");
  } catch {
    return new Problem(answer.status, "error", `${answer.status} ${answer.statusText}`.trim());
  }
}
