// Keeps the end of a growing column in view while the reader is at the end (stick to bottom).
//
//   stickToBottom(scroll, content, button) -> {scrollToBottom(), keepPosition(change), isAtBottom(), close()}
//     keepPosition(change)   runs `change`, which adds content above, without moving what is in view

import { listen } from "./dom.js";

/** Closer to the end than this counts as being there. */
const NEAR_PX = 48;

export function stickToBottom(scroll, content, button) {
  let isSticking = true;

  function scrollIfSticking() {
    if (isSticking) {
      scroll.scrollTop = scroll.scrollHeight;
    }
  }

  function scrollToBottom() {
    isSticking = true;
    button.hidden = true;
    scrollIfSticking();
  }

  function onScroll() {
    isSticking = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_PX;
    button.hidden = isSticking;
  }

  function keepPosition(change) {
    const top = scroll.getBoundingClientRect().top;
    // The browser's own scroll anchoring would move the content a second time.
    scroll.style.setProperty("overflow-anchor", "none");
    const anchor = [...content.children].find((child) => child.getBoundingClientRect().bottom > top);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) {
      scroll.scrollTop += anchor.getBoundingClientRect().top - before;
    }
    requestAnimationFrame(() => scroll.style.removeProperty("overflow-anchor"));
  }

  const resizeObserver = new ResizeObserver(scrollIfSticking);
  resizeObserver.observe(content);
  resizeObserver.observe(scroll);
  const cleanups = [
    listen(scroll, "scroll", onScroll, { passive: true }),
    listen(button, "click", scrollToBottom),
  ];

  function close() {
    resizeObserver.disconnect();
    cleanups.forEach((cleanup) => cleanup());
    button.hidden = true;
  }

  return { scrollToBottom, keepPosition, isAtBottom: () => isSticking, close };
}
