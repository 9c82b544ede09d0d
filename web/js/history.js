// The history of a session in pages, and the order of what is shown. It knows the daemon's routes and no
// element.
//
//   pagesOf(key)     {newest(), older(), look(), hasOlder()}: items, oldest first; `older` goes on where the
//                    last page ended, `look` reads the newest page again without losing that place
//   await isKnown(key)         whether the daemon has this session: a session begins with its first message
//   mergeNewest(shown, page)   the order after the newest page was read again; the first `older` of the items
//                    are older than that page; pure
//   itemsOf(messages)          items of the messages of a page; pure
//
// An item: {id, runId, messages} for a turn, {id, resetAt} for a place where the history was emptied.

import * as api from "./api.js";
import * as store from "./store.js";

const TURNS = 30;

/**
 * Asks the list, which has an answer for every key: to be asked about what is not there would be an error
 * each time.
 */
export async function isKnown(key) {
  if (store.get("sessions").items.some((row) => row.key === key)) {
    return true;
  }
  const { items, nextCursor } = await api.get(`/api/sessions?limit=100&search=${encodeURIComponent(key)}`);
  return Boolean(nextCursor) || items.some((row) => row.key === key);
}

export function pagesOf(key) {
  let cursor = null;
  let known = false;

  async function page(query) {
    known ||= await isKnown(key);
    return known ? api.get(`${api.session(key)}/history?turns=${TURNS}${query}`) : { items: [] };
  }

  return {
    hasOlder: () => cursor !== null,
    async newest() {
      const { items, nextCursor } = await page("");
      cursor = nextCursor ?? null;
      return itemsOf(items);
    },
    async look() {
      return itemsOf((await page("")).items);
    },
    async older() {
      const { items, nextCursor } = await page(`&cursor=${encodeURIComponent(cursor)}`);
      cursor = nextCursor ?? null;
      return itemsOf(items);
    },
  };
}

export function itemsOf(messages) {
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
  const fresh = new Set(page.map((item) => item.id));
  const meet = shown.findIndex((item) => fresh.has(item.id));
  // Runs that are not sealed yet are in no page, and come behind all that is.
  const open = shown
    .slice(Math.max(0, meet))
    .filter((item) => !item.messages && !item.resetAt && !fresh.has(item.id));
  if (meet < 0) {
    const gap = shown.some((item) => item.messages);
    // More happened than a page holds: what is shown does not join on any more, and is read again when one
    // scrolls up.
    return { items: [...page, ...open], gap, older: 0 };
  }
  return { items: [...shown.slice(0, meet), ...page, ...open], gap: false, older: meet };
}
