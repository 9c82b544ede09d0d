// Keeps the end of a growing column in sight for as long as the reader is there, and leaves a reader who
// scrolled up alone.
//
//   stickToEnd(scroll, content, button) -> {jump(), hold(change), isThere(), close()}
//     jump()          goes to the end and stays there
//     hold(change)    runs `change`, which adds something above, without moving what is in sight
//     isThere()       whether the end is in sight

import { listen } from "./dom.js";

/** This near the end counts as being there. */
const NEAR = 48;

export function stickToEnd(scroll, content, button) {
  let sticks = true;

  function follow() {
    if (sticks) {
      scroll.scrollTop = scroll.scrollHeight;
    }
  }

  function jump() {
    sticks = true;
    button.hidden = true;
    follow();
  }

  function moved() {
    sticks = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
    button.hidden = sticks;
  }

  function hold(change) {
    const top = scroll.getBoundingClientRect().top;
    // The browser would hold on to something, too, and both together would be too much.
    scroll.style.setProperty("overflow-anchor", "none");
    const anchor = [...content.children].find((child) => child.getBoundingClientRect().bottom > top);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) {
      scroll.scrollTop += anchor.getBoundingClientRect().top - before;
    }
    requestAnimationFrame(() => scroll.style.removeProperty("overflow-anchor"));
  }

  const sizes = new ResizeObserver(follow);
  sizes.observe(content);
  sizes.observe(scroll);
  const forget = [listen(scroll, "scroll", moved, { passive: true }), listen(button, "click", jump)];

  function close() {
    sizes.disconnect();
    forget.forEach((leave) => leave());
    button.hidden = true;
  }

  return { jump, hold, isThere: () => sticks, close };
}
