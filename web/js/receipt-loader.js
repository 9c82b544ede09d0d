// Loads the receipts of stopped turns when they scroll into view, one after the other.
//
//   createReceiptLoader(root) -> {loadWhenVisible(element, runId, onReceipt), close()}: calls onReceipt(receipt)
//     once, after `element` was visible inside `root`

import { get, Problem, runPath } from "./api.js";

export function createReceiptLoader(root) {
  const waiting = new Map();
  const queue = [];
  let isLoading = false;

  const observer = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting && waiting.has(target)) {
          queue.push(waiting.get(target));
          waiting.delete(target);
          observer.unobserve(target);
        }
      }
      loadQueued();
    },
    { root, rootMargin: "200px" },
  );

  async function loadQueued() {
    if (isLoading) {
      return;
    }
    isLoading = true;
    while (queue.length > 0) {
      const { runId, onReceipt } = queue.shift();
      try {
        const { receipt } = await get(runPath(runId));
        if (receipt) {
          onReceipt(receipt);
        }
      } catch (problem) {
        if (!(problem instanceof Problem)) {
          throw problem;
        }
        // An imported turn has no run, so no receipt.
      }
    }
    isLoading = false;
  }

  function loadWhenVisible(element, runId, onReceipt) {
    waiting.set(element, { runId, onReceipt });
    observer.observe(element);
  }

  function close() {
    observer.disconnect();
    queue.length = 0;
  }

  return { loadWhenVisible, close };
}
