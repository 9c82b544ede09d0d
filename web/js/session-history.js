// Pages of a session's history, and how they combine with what is shown.
//
//   historyPages(key)  {newest(), older(), newestAgain(), hasOlder()}: items, oldest first. `older` continues after
//                      the last page; `newestAgain` reads the newest page and keeps that position
//   mergeNewest(shown, page)   the items after the newest page was read again: {items, gap, older}, where the
//                      first `older` items are older than that page. Pure
//   historyItems(messages)     the items of the messages of a page. Pure
//
// An item is {id, runId, messages} for a turn, or {id, resetAt} where the history was emptied.

import * as api from "./api.js";
import * as store from "./store.js";

const TURNS_PER_PAGE = 30;

export function historyPages(key) {
  let cursor = null;
  let exists = false;

  async function fetchPage(query) {
    // The history of an unknown session is a 404, which browsers write on the console.
    exists ||= (await store.readSession(key)) !== null;
    return exists
      ? api.get(`${api.sessionPath(key)}/history?turns=${TURNS_PER_PAGE}${query}`)
      : { items: [] };
  }

  return {
    hasOlder: () => cursor !== null,
    async newest() {
      const { items, nextCursor } = await fetchPage("");
      cursor = nextCursor ?? null;
      return historyItems(items);
    },
    async newestAgain() {
      return historyItems((await fetchPage("")).items);
    },
    async older() {
      const { items, nextCursor } = await fetchPage(`&cursor=${encodeURIComponent(cursor)}`);
      cursor = nextCursor ?? null;
      return historyItems(items);
    },
  };
}

export function historyItems(messages) {
  const items = [];
  for (const message of messages) {
    const last = items[items.length - 1];
    if (message.role === "reset") {
      items.push({ id: `reset ${message.at}`, resetAt: message.at });
    } else if (last?.runId === message.runId) {
      last.messages.push(message);
    } else {
      items.push({ id: `run ${message.runId}`, runId: message.runId, messages: [message] });
    }
  }
  return items;
}

export function mergeNewest(shown, page) {
  const pageIds = new Set(page.map((item) => item.id));
  const firstShared = shown.findIndex((item) => pageIds.has(item.id));
  // Runs that are not sealed are in no page yet, and come last.
  const unsealed = shown
    .slice(Math.max(0, firstShared))
    .filter((item) => !item.messages && !item.resetAt && !pageIds.has(item.id));
  if (firstShared < 0) {
    const gap = shown.some((item) => item.messages);
    // More happened than one page holds: older turns are loaded again when scrolled to.
    return { items: [...page, ...unsealed], gap, older: 0 };
  }
  return { items: [...shown.slice(0, firstShared), ...page, ...unsealed], gap: false, older: firstShared };
}
