// Fetches the receipts of stopped turns when they come into sight, one after the other: a history of a
// thousand stops costs nothing until somebody looks.
//
//   receiptReader(root) -> {want(element, runId, take), close()}: take(receipt) once, after `element` was
//     seen inside `root`

import { Problem, get, run } from "./api.js";

export function receiptReader(root) {
  const wanted = new Map();
  const queue = [];
  let busy = false;

  const sight = new IntersectionObserver(
    (seen) => {
      for (const { isIntersecting, target } of seen) {
        if (isIntersecting && wanted.has(target)) {
          queue.push(wanted.get(target));
          wanted.delete(target);
          sight.unobserve(target);
        }
      }
      read();
    },
    { root, rootMargin: "200px" },
  );

  async function read() {
    if (busy) {
      return;
    }
    busy = true;
    while (queue.length > 0) {
      const { runId, take } = queue.shift();
      try {
        const { receipt } = await get(run(runId));
        if (receipt) {
          take(receipt);
        }
      } catch (problem) {
        if (!(problem instanceof Problem)) {
          throw problem;
        }
        // An imported turn has no run here, and so no receipt to show.
      }
    }
    busy = false;
  }

  function want(element, runId, take) {
    wanted.set(element, { runId, take });
    sight.observe(element);
  }

  function close() {
    sight.disconnect();
    queue.length = 0;
  }

  return { want, close };
}
